"""The wheel and the source distribution: what they contain, and that they install with and without a C compiler."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable
from email.parser import Parser
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name == "nt", reason="the compilers in this test are shell scripts"),
]

ROOT = Path(__file__).parents[2]
CHECK = Path(__file__).with_name("check_installed.py")
LEFT_BY_BUILDS = shutil.ignore_patterns("__pycache__", "*.so", "*_build.json", ".git*", ".venv", "build", "*.egg-info")


def run(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in a folder that is not the checkout; the compiler is that of `environment`, if any."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "CC", "CFLAGS")}
    return subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        check=False,
        env=inherited | environment,
        cwd="/",
    )


def pip(*arguments: object, **environment: str) -> None:
    """Runs pip without a network: it builds with this environment's setuptools."""
    offline = ["--disable-pip-version-check", "--no-index", "--no-cache-dir"]
    done = run(sys.executable, "-m", "pip", *arguments, *offline, **environment)
    assert done.returncode == 0, done.stdout + done.stderr


def copy_checkout(folder: Path) -> Path:
    shutil.copytree(ROOT, folder, ignore=LEFT_BY_BUILDS, symlinks=True)
    return folder


def build_wheel(source: Path, folder: Path, **environment: str) -> Path:
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source, **environment)
    [wheel] = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module", autouse=True)
def new_setuptools() -> None:
    pytest.importorskip("setuptools", minversion="77")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    return build_wheel(copy_checkout(folder / "checkout"), folder)


Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """Installs minigpt in a new environment that finds its dependencies in this one; returns its interpreter."""

    def install(source: Path, **environment: str) -> Path:
        home = tmp_path / "environment"
        venv.create(home, symlinks=True)
        python = home / "bin" / "python"
        [packages] = home.glob("lib/python*/site-packages")
        (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
        pip("--python", python, "install", "--no-deps", "--no-build-isolation", source, **environment)
        return python

    return install


def test_the_wheel_contains_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        [metadata] = [name for name in names if name.endswith(".dist-info/METADATA")]
        facts = Parser().parsestr(archive.read(metadata).decode())
    sources = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "minigpt").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.endswith((".so", "_build.json"))
    }
    information = f"minigpt_lm-{facts['Version']}.dist-info"
    folder = "minigpt/native"
    assert {name for name in names if not name.startswith(f"{information}/")} == {
        *sources, f"{folder}/_native.so", f"{folder}/_native_build.json",
    }  # fmt: skip
    assert {f"{information}/licenses/LICENSE", f"{information}/entry_points.txt"} <= names
    assert (facts["Name"], facts["License-Expression"], facts["Requires-Python"]) == ("minigpt-lm", "MIT", ">=3.11")
    assert wheel.name.startswith(f"minigpt_lm-{facts['Version']}-py3-none-{sysconfig.get_platform()[:5]}")


def test_the_source_distribution_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    checkout = copy_checkout(tmp_path / "checkout")
    backend = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", backend, tmp_path], cwd=checkout, check=True, capture_output=True)
    [archive] = tmp_path.glob("*.tar.gz")
    shutil.unpack_archive(archive, tmp_path / "unpacked", filter="data")
    [unpacked] = (tmp_path / "unpacked").iterdir()
    assert not {"tests", "docs", "demo", "benchmarks", ".ci"} & {path.name for path in unpacked.iterdir()}
    again = build_wheel(archive, tmp_path)
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(again) as second:
        assert {entry.filename: entry.CRC for entry in first.infolist()} == {
            entry.filename: entry.CRC for entry in second.infolist()
        }


def test_the_installed_wheel_generates_with_compiled_code(wheel: Path, install: Install) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    done = run(install(wheel), CHECK)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "compiled for" in done.stderr
    assert "on one core" not in done.stderr


@pytest.mark.parametrize("kind", ["absent", "fails", "refuses the code"])
def test_without_a_working_compiler_minigpt_installs_and_says_why_it_is_slower(
    kind: str, tmp_path: Path, install: Install
) -> None:
    checkout, environment = copy_checkout(tmp_path / "checkout"), {}
    if kind == "absent":
        environment, reason = {"CC": "/nowhere/gcc"}, "/nowhere/gcc: No such file or directory"
    elif kind == "fails":
        environment, reason = {"CC": "/bin/false"}, "/bin/false: exit status 1"
    else:
        if shutil.which("cc") is None:
            pytest.skip("no C compiler")
        with (checkout / "minigpt" / "native" / "decode.c").open("a") as source:
            source.write("not C\n")
        reason = "decode.c:"
    done = run(install(checkout, **environment), CHECK)
    assert done.returncode == 1
    failed = "the C compiler failed when minigpt was installed ("
    [line] = [line for line in done.stderr.splitlines() if line.startswith("PyTorch generates the text")]
    assert line.startswith(f"PyTorch generates the text, several times slower than compiled code: {failed}")
    assert reason in line
    assert line.endswith("); install gcc or clang, then reinstall minigpt")


def test_a_compiler_without_openmp_gives_compiled_code_for_one_core(tmp_path: Path, install: Install) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    compiler = tmp_path / "clang"
    compiler.write_text(
        "#!/bin/sh\n"
        'case "$*" in *-fopenmp*) echo "fatal error: omp.h not found" >&2; exit 1;; esac\n'
        f'exec {shutil.which("cc")} "$@"\n'
    )
    compiler.chmod(0o755)
    done = run(install(copy_checkout(tmp_path / "checkout"), CC=str(compiler)), CHECK)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "on one core" in done.stderr
    assert f"its compiler has no OpenMP ({compiler}: fatal error: omp.h not found)" in done.stderr
