"""Missing packages: each message names the package and a command that installs it for this interpreter."""

import ast
import os
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from minigpt import optional_packages, shell
from minigpt.errors import MissingPackageError
from minigpt.optional_packages import REQUIREMENTS, check_installed, install_command, optional_import

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FOR_DEVELOPERS = {"test", "fuzz", "clients", "launchers", "wasm"}  # extras that the package itself never imports
# Modules that are only used if they are there, and that no message asks for.
NEVER_ASKED_FOR = {"compression", "ipywidgets", "llama_cpp", "pip"}
# Modules that come with one of the dependencies or with the package of another module.
COMES_WITH = {"click": "typer", "jinja2": "torch", "triton": "torch"}
# Where a package's name is not its module's.
MODULE_OF = {"huggingface-hub": "huggingface_hub", "prometheus-client": "prometheus_client"}


def module_of(requirement: str) -> str:
    name = re.match(r"[\w.-]+", requirement)
    assert name is not None
    return MODULE_OF.get(name[0], name[0])


EXTRAS = {
    extra: {module_of(requirement): requirement.partition(";")[0] for requirement in requirements}
    for extra, requirements in PROJECT["optional-dependencies"].items()
    if extra not in FOR_DEVELOPERS
}
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
    assert others <= {module.partition(".")[0] for module in REQUIREMENTS}
    assert {"gguf", "matplotlib", "pyarrow", "wandb"} <= others


def test_every_command_asks_for_the_versions_of_an_extra() -> None:
    offered = {module: requirement for extra in EXTRAS.values() for module, requirement in extra.items()}
    assert offered == REQUIREMENTS
    for extra in EXTRAS.values():
        assert shlex.split(install_command(*extra))[-len(extra) :] == list(extra.values())


def test_the_extras_of_two_features_ask_for_one_version_of_a_package() -> None:
    everything = [pair for extra in EXTRAS.values() for pair in extra.items()]
    assert len(set(everything)) == len(dict(everything))


def test_no_other_file_writes_an_install_command() -> None:
    found = [path.stem for path, source in sources() if re.search(r"pip install|\bminigpt(-lm)?\[", source)]
    assert found == ["optional_packages"]


def test_the_distribution_does_not_have_the_name_of_another_project() -> None:
    assert PROJECT["name"] == "minigpt-lm"
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert [page.name for page in pages if re.search(r"\bminigpt\[", page.read_text(encoding="utf-8"))] == []


# The interpreter


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A virtual environment in which this test seems to run, with pip; it is not active. Its folder of programs."""
    programs = tmp_path / "an environment" / "bin"
    programs.mkdir(parents=True)
    for name in ("python", "python3"):
        (programs / name).touch(mode=0o755)
    monkeypatch.setattr(sys, "prefix", str(programs.parent))
    monkeypatch.setattr(sys, "executable", str(programs / "python3"))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(optional_packages.PathFinder, "find_spec", lambda name: name == "pip" or None)
    return programs


posix = pytest.mark.skipif(os.name == "nt", reason="Windows quotes and finds programs in another way")


@posix
def test_the_command_names_an_interpreter_that_is_not_active(environment: Path) -> None:
    assert shlex.split(install_command("gguf")) == [
        str(environment / "python3"), "-m", "pip", "install", REQUIREMENTS["gguf"],
    ]  # fmt: skip


@posix
def test_the_command_is_short_in_an_active_environment(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(environment))
    assert install_command("gguf", "wandb") == "python -m pip install 'gguf>=0.17.1' 'wandb>=0.16'"


@posix
def test_another_environments_python_is_not_taken_for_the_active_one(
    environment: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In every environment `python` may be a link to one and the same file."""
    other = tmp_path / "other" / "bin"
    other.mkdir(parents=True)
    (other / "python").symlink_to(environment / "python")
    monkeypatch.setenv("PATH", str(other))
    assert install_command("gguf").startswith(shlex.quote(str(environment / "python3")))


@posix
def test_outside_an_environment_the_interpreter_is_named(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    monkeypatch.setenv("PATH", str(environment))
    assert install_command("gguf").startswith(shlex.quote(str(environment / "python3")))


@posix
def test_an_environment_without_pip_is_filled_by_uv_if_there_is_one(
    environment: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(optional_packages.PathFinder, "find_spec", lambda name: None)
    assert " -m pip install " in install_command("gguf")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "uv").touch(mode=0o755)
    uv = ["uv", "pip", "install"]
    requirement = REQUIREMENTS["gguf"]
    assert shlex.split(install_command("gguf")) == [*uv, "--python", str(environment / "python3"), requirement]
    monkeypatch.setenv("PATH", os.pathsep.join([str(environment), str(tmp_path / "empty")]))
    assert shlex.split(install_command("gguf")) == [*uv, requirement]


def test_on_windows_the_signs_of_a_bound_are_not_read_as_redirections(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "IS_CMD", True)
    assert install_command("gguf").endswith('" -m pip install "gguf>=0.17.1"')  # its folder's name has a space


# Modules that are missing or damaged


def test_only_the_missing_modules_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setattr(optional_packages, "_installer", lambda: ["pip", "install"])
    sentence = "export to onnx needs onnxruntime, which is not installed; run: pip install 'onnxruntime>=1.18'"
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
    sentence = r"^reading x needs pyarrow, which is not installed; pass y, or run: .* 'pyarrow>=15'$"
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
        pytest.raises(MissingPackageError, match=rf"needs gguf, which is not usable \({reason}\); run: .*'gguf>="),
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
