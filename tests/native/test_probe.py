"""A library that would crash, hang, or use instructions that the processor lacks is not loaded; the reason is given."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from minigpt.native import compiled

WORKS = {
    "minigpt_lacking": "const char *minigpt_lacking(void) { return 0; }",
    "minigpt_use": 'const char *minigpt_use(const char *name) { return "plain"; }',
    "minigpt_training_use": "void minigpt_training_use(const char *name) {}",
    "minigpt_gelu": "void minigpt_gelu(int dtype, void *y, const void *x, long n, int threads) {}",
}
ADVICE = "; reinstall minigpt here, without -march and -mcpu in CC and CFLAGS"
posix = pytest.mark.skipif(sys.platform == "win32", reason="a crash is a signal in this test")


def library(folder: Path, monkeypatch: pytest.MonkeyPatch, **changed: str) -> None:
    """Puts a library in place of the compiled C code, which this process must not load."""
    compiler = shutil.which("gcc") or shutil.which("clang") or pytest.skip("there is no C compiler")
    (folder / "library.c").write_text("\n".join((WORKS | changed).values()))
    command = [compiler, "-shared", "-fPIC", "-o", folder / compiled._LIBRARY, folder / "library.c"]
    subprocess.run(command, check=True)
    monkeypatch.setattr(compiled, "__file__", str(folder / "compiled.py"))
    monkeypatch.setattr(compiled, "_library", compiled._library.__wrapped__)
    monkeypatch.setattr(compiled, "_load", lambda path: "this process has loaded it")


@posix
@pytest.mark.parametrize("function", [*WORKS, "at load"])
def test_an_illegal_instruction_is_found_by_another_process(
    function: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    constructor = "__attribute__((constructor)) static void load(void) {"
    code = WORKS.get(function, f"{constructor} }}").replace("{", "{ __builtin_trap();")
    library(tmp_path, monkeypatch, **{function: code})
    crash = (
        r"crashes on this processor \((Illegal instruction.*|Trace/BPT trap.*|Trace/breakpoint trap)\)"  # x86, others
    )
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    reason = compiled.why_unavailable()
    assert re.fullmatch(f"{compiled._LIBRARY} {crash}{ADVICE}", reason), reason
    assert set(tmp_path.iterdir()) == before  # no core dump


def test_an_instruction_set_that_the_processor_lacks_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library(tmp_path, monkeypatch, minigpt_lacking='const char *minigpt_lacking(void) { return "avx9"; }')
    expected = f"{compiled._LIBRARY} is compiled for a processor that has avx9, which this one lacks{ADVICE}"
    assert compiled.why_unavailable() == expected


@posix
def test_a_library_that_hangs_is_not_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library(tmp_path, monkeypatch, minigpt_lacking="const char *minigpt_lacking(void) { for (;;); }")
    monkeypatch.setattr(compiled, "_PATIENCE", 1)
    assert compiled.why_unavailable() == f"{compiled._LIBRARY} hangs: it did nothing within 1 s{ADVICE}"


@pytest.mark.parametrize("changed", [{}, {"minigpt_lacking": ""}], ids=["works", "outdated"])
def test_a_library_that_does_not_crash_is_loaded(
    changed: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library(tmp_path, monkeypatch, **changed)
    assert "this process has loaded it" in compiled.why_unavailable()


@pytest.mark.parametrize("arguments", [[], ["--help"], ["train", "--help"]], ids=" ".join)
def test_neither_the_import_nor_help_starts_a_process(arguments: list[str]) -> None:
    start = "from minigpt.cli.start import main; main()" if arguments else "import minigpt, minigpt.native.compiled"
    hook = "sys.addaudithook(lambda event, args: event == 'subprocess.Popen' and sys.exit('starts a process'))"
    command = [sys.executable, "-c", f"import sys; {hook}; {start}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
