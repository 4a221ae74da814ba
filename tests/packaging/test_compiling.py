"""setup.py: the compiler and its flags on each platform, and what is recorded when it fails."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from scripts import ROOT, load_script

from minigpt.native import compiled

posix = pytest.mark.skipif(os.name == "nt", reason="the compilers in this test are shell scripts")


setup = load_script("setup.py")


@pytest.fixture(autouse=True)
def no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CC", "CFLAGS", "CPPFLAGS", "LDFLAGS", "ARCHFLAGS"):
        monkeypatch.delenv(name, raising=False)


def need(name: str) -> str:
    """A program that is installed; skips the test if it is not."""
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/lib/wine")  # where Debian has wine64
    return found or pytest.skip(f"{name} is not installed")


def program(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


# Flags


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32", "freebsd14"])
def test_without_openmp_no_flag_names_it(platform: str) -> None:
    flags = setup.flags_of(platform, openmp=False)
    assert "-O3" in flags.compile
    assert not [flag for flag in [*flags.compile, *flags.link] if "openmp" in flag]


def test_on_linux_openmp_is_compiled_but_not_linked() -> None:
    flags = setup.flags_of("linux", openmp=True)
    assert "-fopenmp" in flags.compile
    assert "-fPIC" in flags.compile
    assert flags.link == ["-shared"]


def test_on_macos_the_preprocessor_is_asked_for_openmp_and_its_names_stay_open() -> None:
    flags = setup.flags_of("darwin", openmp=True)
    assert flags.compile[-2:] == ["-Xpreprocessor", "-fopenmp"]
    assert flags.link == ["-shared", "-undefined", "dynamic_lookup"]


def test_on_windows_openmp_is_inside_and_moves_of_vectors_need_no_aligned_stack() -> None:
    flags = setup.flags_of("win32", openmp=True)
    assert {"-fopenmp", "-Wa,-muse-unaligned-vector-move"} <= set(flags.compile)
    assert "-fPIC" not in flags.compile
    assert flags.link == ["-shared", "-static", "-fopenmp"]


def test_every_file_of_c_code_is_compiled_and_compared_with() -> None:
    names = {Path(source).name for source in (*setup.UNITS, *setup.HEADERS)}
    assert names > {"decode.c", "training.c", "kernels.h", "vectors.h"}
    assert names == {path.name for path in (ROOT / setup.FOLDER).glob("*.[ch]")}


# The compiler


def test_cc_is_the_compiler_with_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "ccache gcc-13 -m64")
    for platform in ("linux", "win32"):
        assert setup.find_compiler(platform) == ["ccache", "gcc-13", "-m64"]


def test_on_windows_a_backslash_in_the_flags_separates_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "os", SimpleNamespace(name="nt", environ={"CPPFLAGS": r"-IC:\omp\include -DX"}))
    assert setup._words("CPPFLAGS") == [r"-IC:\omp\include", "-DX"]


@posix
def test_without_pythons_own_compiler_another_one_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(setup.sysconfig, "get_config_var", lambda name: "pythons-own-cc -pthread")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert setup.find_compiler("linux") == ["clang"]  # none of them exists; the last one is named in the message
    program(tmp_path / "gcc", "")
    assert setup.find_compiler("linux") == ["gcc"]
    program(tmp_path / "pythons-own-cc", "")
    assert setup.find_compiler("linux") == ["pythons-own-cc", "-pthread"]
    assert setup.find_compiler("win32") == ["gcc"]


# Compiling

# A library contains the hash of the sources, which is among the arguments of the compiler but not of the linker.
WRITES_OUTPUT = 'for last; do :; done; echo "$@" >> "$0.log"; cp "$0.log" "$last"'


@posix
def test_the_users_flags_are_added(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = program(tmp_path / "cc", WRITES_OUTPUT)
    monkeypatch.setenv("CC", str(compiler))
    for name in ("CFLAGS", "CPPFLAGS", "LDFLAGS", "ARCHFLAGS"):
        monkeypatch.setenv(name, f"-{name} '-two words'")
    assert setup.compile_library(tmp_path / "x.so", tmp_path, "linux") == {"error": "", "openmp_error": ""}
    assert (tmp_path / "x.so").read_text() == Path(f"{compiler}.log").read_text()
    *compiling, linking = Path(f"{compiler}.log").read_text().splitlines()
    assert len(compiling) == len(setup.UNITS)
    names = ("-CFLAGS", "-CPPFLAGS", "-ARCHFLAGS -two words", "-LDFLAGS")
    for line in compiling:
        assert [name in line for name in names] == [1, 1, 1, 0]
    assert [name in linking for name in names] == [0, 0, 1, 1]


@posix
@pytest.mark.parametrize(
    ("script", "record"),
    [
        ("exit 3", {"error": "{cc}: exit status 3", "openmp_error": ""}),
        ("echo note >&2; echo 'a.c:1: Error: no' >&2; exit 1", {"error": "{cc}: a.c:1: Error: no", "openmp_error": ""}),
        (
            f'case "$*" in *openmp*) echo "error: no \'omp.h\'" >&2; exit 1;; esac; {WRITES_OUTPUT}',
            {"error": "", "openmp_error": "{cc}: error: no 'omp.h'"},
        ),
        (f'case "$*" in *" -c "*) ;; *) exit 4;; esac; {WRITES_OUTPUT}', {"error": "{cc}: exit status 4"}),
        ("kill -SEGV $$", {"error": "{cc}: ended by signal 11 (Segmentation fault)"}),
        ("exit 0", {"error": "{cc}: wrote no file"}),
        (f'case "$*" in *" -c "*) {WRITES_OUTPUT};; esac', {"error": "{cc}: wrote no file"}),
        ('for last; do :; done; echo garbage > "$last"', {"error": "{cc}: wrote a file that is not the library"}),
    ],
)
def test_why_a_compiler_fails_is_recorded_and_no_earlier_library_stays(
    script: str, record: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = program(tmp_path / "cc", script)
    monkeypatch.setenv("CC", str(compiler))
    library = tmp_path / "x.so"
    library.write_text("of an earlier installation")
    found = setup.compile_library(library, tmp_path, "linux")
    assert found == {"openmp_error": ""} | {key: reason.format(cc=compiler) for key, reason in record.items()}
    assert library.exists() == (not record["error"])


@posix
def test_a_compiler_that_hangs_is_ended_with_what_it_has_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = program(tmp_path / "cc", f'sleep 600 & echo $! >> "{tmp_path}/started"; read answer; wait')
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setattr(setup, "TIME_LIMIT", 1)
    found = setup.compile_library(tmp_path / "x.so", tmp_path, "linux")
    assert found == {"error": f"{compiler}: did not end within 1 s", "openmp_error": ""}
    [started] = (tmp_path / "started").read_text().split()  # it was not tried again without OpenMP
    state = subprocess.run(["ps", "-o", "stat=", "-p", started], capture_output=True, text=True, check=False).stdout
    assert state.strip()[:1] in ("", "Z")


@posix
@pytest.mark.parametrize("variable", ["CC", "LDFLAGS"])
@pytest.mark.parametrize(("value", "fault"), [('gcc "-O2', "no closing quotation"), ("gcc \\", "no escaped character")])
def test_why_installed_without_c_code_after_unbalanced_quotes(
    variable: str, value: str, fault: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CC", str(program(tmp_path / "cc", WRITES_OUTPUT)))
    monkeypatch.setenv(variable, value)
    library = tmp_path / "x.so"
    library.write_text("of an earlier installation")
    found = setup.compile_library(library, tmp_path, "linux")
    assert found == {"error": f"{variable} is {value!r}: {fault}", "openmp_error": ""}
    assert not library.exists()
    (tmp_path / setup.RECORD).write_text(json.dumps(found))
    monkeypatch.setattr(compiled, "__file__", str(tmp_path / "compiled.py"))
    monkeypatch.setattr(compiled, "_library", compiled._library.__wrapped__)
    expected = (
        f"the C compiler failed when minigpt was installed ({found['error']}); install gcc or clang, then reinstall"
    )
    assert compiled.why_unavailable() == f"{expected} minigpt"


@posix
def test_an_empty_cc_chooses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = setup.find_compiler("linux")
    monkeypatch.setenv("CC", " ")
    assert setup.find_compiler("linux") == expected


@posix
def test_a_missing_compiler_is_recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", str(tmp_path / "gcc"))
    found = setup.compile_library(tmp_path / "x.so", tmp_path)
    assert found == {"error": f"{tmp_path / 'gcc'}: No such file or directory", "openmp_error": ""}


@posix
def test_a_library_for_a_better_processor_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No processor since 2017 has FMA4."""
    processor = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    if " avx " not in processor or " fma4 " in processor:
        pytest.skip("needs a processor with AVX and without FMA4")
    monkeypatch.setenv("CC", need("gcc"))
    for flags, lacking in (
        ("-O0 -mavx", ""),
        ("-O0 -mfma4", "is compiled for a processor that has fma4, which this one lacks"),
    ):
        monkeypatch.setenv("CFLAGS", flags)
        assert setup.compile_library(tmp_path / "x.so", tmp_path)["error"] == ""
        assert compiled._why_unsafe(tmp_path / "x.so") == lacking


@posix
def test_building_in_place_replaces_the_library_and_the_record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An editable installation builds so."""
    pytest.importorskip("setuptools", minversion="77")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    folder = tmp_path / "minigpt" / "native"
    folder.mkdir(parents=True)
    for source in (*setup.UNITS, *setup.HEADERS):
        shutil.copy(ROOT / source, folder)
    shutil.copy(ROOT / "minigpt" / "__init__.py", tmp_path / "minigpt")
    works, fails = program(tmp_path / "works", WRITES_OUTPUT), program(tmp_path / "fails", "exit 1")
    library, record = folder / f"_native{'.dll' if os.name == 'nt' else '.so'}", folder / "_native_build.json"
    for compiler in (works, fails, works):
        earlier = folder / f"_native.cpython-311{library.suffix}"
        earlier.touch()
        monkeypatch.setenv("CC", str(compiler))
        command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
        assert library.exists() == (compiler == works)
        assert not earlier.exists()
        assert json.loads(record.read_text())["error"] == ("" if compiler == works else f"{fails}: exit status 1")
    for variable in ("CC", "CFLAGS", "LDFLAGS", "LDSHARED", "AR"):  # setuptools reads them too
        monkeypatch.setenv(variable, '"')
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert json.loads(record.read_text())["error"] == "CC is '\"': no closing quotation"
    assert not library.exists()


# Windows, from Linux


@posix
@pytest.mark.slow
def test_the_library_for_windows_needs_only_the_systems_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", need("x86_64-w64-mingw32-gcc"))
    library = tmp_path / "_native.dll"
    assert setup.compile_library(library, tmp_path, "win32") == {"error": "", "openmp_error": ""}
    table = subprocess.run(
        [need("x86_64-w64-mingw32-objdump"), "--private-headers", library], capture_output=True, text=True, check=True
    ).stdout
    assert set(re.findall(r"DLL Name: (.*)", table)) == {"KERNEL32.dll", "msvcrt.dll"}
    for function in ("minigpt_sources", *compiled.FUNCTIONS):
        assert re.search(rf"\b{function}$", table, re.MULTILINE)


@posix
@pytest.mark.slow
@pytest.mark.parametrize("program", ["decode_kernels", "decode_shapes", "training_kernels"])
def test_the_code_for_windows_computes_correctly(program: str, tmp_path: Path) -> None:
    """Run by wine, on the instruction sets of this processor."""
    flags, binary = setup.flags_of("win32", openmp=True), tmp_path / f"{program}.exe"
    source = ROOT / "tests" / "native" / f"{program}.c"
    folder = ROOT / "minigpt" / "native"
    command = [need("x86_64-w64-mingw32-gcc"), *flags.compile, f"-I{folder}", source, "-static", "-o", binary]
    subprocess.run(command, check=True, capture_output=True)
    environment = {**os.environ, "WINEPREFIX": str(tmp_path / "wine"), "WINEDEBUG": "-all", "DISPLAY": ""}
    done = subprocess.run([need("wine64"), binary], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    library = compiled.library()
    expected = {"plain", *(compiled.instruction_sets(library) if library else [])} - {"avx512-amx"}  # only on Linux
    assert {line.split()[0] for line in done.stdout.splitlines()} >= expected
