"""Compiles the C code of minigpt/native if there is a C compiler; without one, minigpt installs and uses PyTorch.

The result is a library that minigpt/native/compiled.py loads with ctypes. It is not a Python module and
includes no header of Python, so one wheel per platform serves every Python. A record beside it says how it was
compiled, or why it was not.
"""

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
FOLDER = "minigpt/native"
UNITS, HEADERS = (
    sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / FOLDER).glob(pattern)) for pattern in ("*.c", "*.h")
)
RECORD = "_native_build.json"


class Flags(NamedTuple):
    """The arguments of the C compiler when it compiles and when it links."""

    compile: Sequence[str]
    link: Sequence[str]


def find_compiler(platform: str = sys.platform) -> list[str]:
    """The command of the C compiler: CC, else that of Python's own build, else the first one found.

    On Windows it is gcc (MinGW-w64), because MSVC has no vector types.
    """
    if chosen := os.environ.get("CC"):
        return shlex.split(chosen, posix=os.name != "nt")
    names = ["gcc"] if platform == "win32" else [sysconfig.get_config_var("CC") or "cc", "cc", "gcc", "clang"]
    commands = [shlex.split(name) for name in names]
    return next((command for command in commands if shutil.which(command[0])), commands[-1])


def flags_of(platform: str = sys.platform, *, openmp: bool) -> Flags:
    """The flags for a platform, a value of `sys.platform`.

    On Linux and macOS the library uses the OpenMP that PyTorch has loaded, so that they share their threads: it is
    compiled for OpenMP but not linked with one. Windows resolves every name at link time, so it has OpenMP inside.
    """
    # Without contraction int8 gives the same bits on every processor, and in a browser, see kernels.h.
    optimized = ["-O3", "-fno-math-errno", "-ffp-contract=off", "-Wno-psabi"]
    if platform == "win32":
        # gcc aligns the stack to 16 bytes, but moves vectors as if to 64: https://gcc.gnu.org/bugzilla/show_bug.cgi?id=54412
        wanted = ["-fopenmp"] if openmp else []
        return Flags([*optimized, "-Wa,-muse-unaligned-vector-move", *wanted], ["-shared", "-static", *wanted])
    if platform == "darwin":  # Apple's clang compiles OpenMP if asked in this way; the header is that of libomp
        wanted = ["-Xpreprocessor", "-fopenmp"] if openmp else []
        return Flags([*optimized, "-fPIC", *wanted], ["-shared", "-undefined", "dynamic_lookup"])
    return Flags([*optimized, "-fPIC", *(["-fopenmp"] if openmp else [])], ["-shared"])


def compile_library(target: Path, work: Path, platform: str = sys.platform) -> dict[str, str]:
    """Compiles the C code to `target`, with OpenMP if possible; `work` is a folder for the object files.

    Returns: two reasons, empty on success: `error`, why there is no library; `openmp_error`, why it uses one core.
    """
    target.unlink(missing_ok=True)
    errors = []
    for openmp in (True, False):
        error = _compile(target, work, find_compiler(platform), flags_of(platform, openmp=openmp))
        errors.append(error)
        if not error:
            return {"error": "", "openmp_error": errors[0]}
    return {"error": errors[-1], "openmp_error": ""}


def _compile(target: Path, work: Path, compiler: list[str], flags: Flags) -> str:
    """Why the C code could not be compiled with these flags; empty if it was."""
    # compiled.py compares it with the sources beside the library, so that it never loads an outdated one.
    contents = ((ROOT / source).read_bytes() for source in sorted([*UNITS, *HEADERS]))
    fingerprint = hashlib.sha256(b"".join(contents)).hexdigest()
    linked = work / f"linked{target.suffix}"
    machine = _words("ARCHFLAGS")
    defined = [*_words("CPPFLAGS"), f'-DSOURCES="{fingerprint}"']
    compiling = [*compiler, *flags.compile, *machine, *_words("CFLAGS"), *defined, "-c"]
    objects = {unit: str(work / Path(unit).with_suffix(".o").name) for unit in UNITS}
    errors = (_run([*compiling, unit, "-o", target]) for unit, target in objects.items())
    linking = [*compiler, *objects.values(), *flags.link, *machine, *_words("LDFLAGS"), "-o", str(linked)]
    error = next(filter(None, errors), "") or _run(linking)
    if not error:
        linked.replace(target)
    return error


def _words(variable: str) -> list[str]:
    return shlex.split(os.environ.get(variable, ""), posix=os.name != "nt")  # backslashes separate folders there


def _run(command: list[str]) -> str:
    """Runs a command and shows its errors; returns the first of them, or an empty string."""
    try:
        done = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, errors="replace", check=False)
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    sys.stderr.write(done.stderr)
    if done.returncode == 0:
        return ""
    reasons = [line for line in done.stderr.splitlines() if "error" in line.lower()]
    return f"{command[0]}: {reasons[0].strip()[:200] if reasons else f'exit status {done.returncode}'}"


class BuildNative(build_ext):
    """Compiles the C code and writes the record of it; a failure does not end the installation."""

    def build_extension(self, ext: Extension) -> None:
        target, work = Path(self.get_ext_fullpath(ext.name)).absolute(), Path(self.build_temp).absolute()
        for folder in (target.parent, work):
            folder.mkdir(parents=True, exist_ok=True)
        record = compile_library(target, work)
        (target.parent / RECORD).write_text(json.dumps(record) + "\n", encoding="utf-8")

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + (".dll" if sys.platform == "win32" else ".so")

    def copy_extensions_to_source(self) -> None:
        """For an editable installation: removes earlier libraries, and brings the record."""
        for ext in self.extensions:
            built = Path(self.build_lib, self.get_ext_filename(ext.name))
            target = Path(self.get_ext_fullpath(ext.name))
            for earlier in target.parent.glob(f"{target.stem}*{target.suffix}"):
                earlier.unlink()
            shutil.copyfile(built.parent / RECORD, target.parent / RECORD)
        super().copy_extensions_to_source()


class PlatformWheel(bdist_wheel):
    """A wheel for one platform and every Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


if __name__ == "__main__":
    setup(
        ext_modules=[Extension("minigpt.native._native", UNITS, depends=HEADERS, optional=True)],
        cmdclass={"build_ext": BuildNative, "bdist_wheel": PlatformWheel},
    )
