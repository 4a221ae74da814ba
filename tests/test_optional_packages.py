"""Missing packages: each message names the package and the extra that installs it."""

import ast
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from minigpt.errors import MissingPackageError
from minigpt.optional_packages import EXTRAS, check_installed, optional_import

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Extras that the package itself never imports.
FOR_DEVELOPERS = {"test", "fuzz", "clients", "docs", "launchers", "wasm"}
# Modules that are only used if they are there, and that no message asks for.
NEVER_ASKED_FOR = {"compression", "ipywidgets", "llama_cpp", "pip"}
# Modules that come with one of the dependencies or with the package of another module.
COMES_WITH = {"click": "typer", "jinja2": "torch", "triton": "torch"}
# Where a package's name is not its module's.
MODULE_OF = {name: name.replace("-", "_") for name in ("google-crc32c", "huggingface-hub", "prometheus-client")}


def module_of(requirement: str) -> str:
    name = re.match(r"[\w.-]+", requirement)
    assert name is not None
    return MODULE_OF.get(name[0], name[0])


REQUIRED = {module_of(requirement) for requirement in PROJECT["dependencies"]}


def imported_modules(source: str) -> Iterator[str]:
    """The modules that a file imports anywhere but for type checkers, and those that it names to importlib."""
    tree = ast.parse(source)
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in for_types:
            continue
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(name), level=0):
                yield name
            case ast.Call(
                func=ast.Name(id="import_module" | "find_spec") | ast.Attribute(attr="import_module" | "find_spec"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name


def sources() -> Iterator[tuple[Path, str]]:
    for path in sorted((ROOT / "minigpt").rglob("*.py")):
        yield path, path.read_text(encoding="utf-8")


def test_every_module_that_the_package_imports_is_a_dependency_or_in_an_extra() -> None:
    imported = {name.split(".")[0] for _, source in sources() for name in imported_modules(source)}
    others = imported - set(sys.stdlib_module_names) - {"minigpt"} - REQUIRED - set(COMES_WITH) - NEVER_ASKED_FOR
    assert others <= {module.partition(".")[0] for module in EXTRAS}
    assert {"gguf", "matplotlib", "pyarrow", "wandb"} <= others


def test_every_module_is_in_its_extra_and_every_extra_of_a_feature_is_named() -> None:
    offered = PROJECT["optional-dependencies"]
    for module, extra in EXTRAS.items():
        assert module in map(module_of, offered[extra])
    assert set(EXTRAS.values()) == set(offered) - FOR_DEVELOPERS


def test_the_extras_of_two_features_ask_for_one_version_of_a_package() -> None:
    asked = {each for extra, needed in PROJECT["optional-dependencies"].items() if extra != "test" for each in needed}
    assert len(set(map(module_of, asked))) == len(asked)


def test_no_other_file_writes_an_install_command() -> None:
    found = [path.stem for path, source in sources() if re.search(r"pip install|\bminigpt(-lm)?\[", source)]
    assert found == ["optional_packages"]


def test_the_distribution_does_not_have_the_name_of_another_project() -> None:
    assert PROJECT["name"] == "minigpt-lm"
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert [page.name for page in pages if re.search(r"\bminigpt\[", page.read_text(encoding="utf-8"))] == []


def test_only_the_missing_modules_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    sentence = 'export to onnx needs onnxruntime, which is not installed; run: pip install "minigpt-lm[onnx]"'
    pytest.importorskip("onnx")
    with pytest.raises(MissingPackageError, match=f"^{re.escape(sentence)}$"):
        check_installed("export to onnx", "onnx", "onnxruntime")
    with (
        pytest.raises(MissingPackageError, match=f"^{re.escape(sentence)}$"),
        optional_import("export to onnx", "onnx", "onnxruntime"),
    ):
        import onnxruntime  # noqa: F401


def test_what_can_be_done_without_the_package_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    sentence = r"^reading x needs pyarrow, which is not installed; pass y, or run: .*\[parquet\]"
    with (
        pytest.raises(MissingPackageError, match=sentence),
        optional_import("reading x", "pyarrow", instead="pass y"),
    ):
        import pyarrow  # noqa: F401


def test_a_package_that_cannot_be_imported_is_upgraded_and_the_reason_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gguf").mkdir()
    (tmp_path / "gguf" / "__init__.py").write_text("import sentencepiece_is_not_here")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "gguf", raising=False)
    reason = r"No module named 'sentencepiece_is_not_here'"
    with (
        pytest.raises(MissingPackageError, match=rf"needs gguf, which is not usable \({reason}\); run: .*\[gguf\]"),
        optional_import("reading", "gguf"),
    ):
        import gguf  # noqa: F401


def test_another_error_in_the_block_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError), optional_import("reading", "gguf"):
        raise ZeroDivisionError


def test_a_folder_of_a_packages_name_is_not_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights & Biases writes to a folder wandb/ in the working directory."""
    if "wandb" in sys.modules or shutil.which("wandb"):
        pytest.skip("wandb is installed")
    (tmp_path / "wandb").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingPackageError, match=r"^--log wandb needs wandb, which is not installed"):
        check_installed("--log wandb", "wandb")
