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
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
FOLDER = "minigpt/native"
UNITS, HEADERS = (
    sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / FOLDER).glob(pattern)) for pattern in ("*.c", "*.h")
)
RECORD = "_native_build.json"
TIME_LIMIT = 1800  # seconds for one command; a compiler on an emulated processor takes minutes


class BuildError(Exception):
    """Why the C code could not be compiled."""


class Flags(NamedTuple):
    """The arguments of the C compiler when it compiles and when it links."""

    compile: Sequence[str]
    link: Sequence[str]


def find_compiler(platform: str = sys.platform) -> list[str]:
    """The command of the C compiler: CC, else that of Python's own build, else the first one found.

    On Windows it is gcc (MinGW-w64), because MSVC has no vector types.
    """
    if chosen := _words("CC"):
        return chosen
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
    errors = []
    for openmp in (True, False):
        try:
            target.unlink(missing_ok=True)
            _compile(target, work, find_compiler(platform), flags_of(platform, openmp=openmp))
            return {"error": "", "openmp_error": "".join(errors)}
        except TimeoutError as error:
            return {"error": str(error), "openmp_error": ""}
        except (OSError, BuildError) as error:
            errors.append(str(error))
    return {"error": errors[-1], "openmp_error": ""}


def _compile(target: Path, work: Path, compiler: list[str], flags: Flags) -> None:
    # compiled.py compares it with the sources beside the library, so that it never loads an outdated one.
    contents = ((ROOT / source).read_bytes() for source in sorted([*UNITS, *HEADERS]))
    fingerprint = hashlib.sha256(b"".join(contents)).hexdigest()
    linked = work / f"linked{target.suffix}"
    machine = _words("ARCHFLAGS")
    defined = [*_words("CPPFLAGS"), f'-DSOURCES="{fingerprint}"']
    compiling = [*compiler, *flags.compile, *machine, *_words("CFLAGS"), *defined, "-c"]
    objects = {unit: work / Path(unit).with_suffix(".o").name for unit in UNITS}
    for unit, output in objects.items():
        _run([*compiling, unit], output)
    _run([*compiler, *map(str, objects.values()), *flags.link, *machine, *_words("LDFLAGS")], linked)
    if fingerprint.encode() not in linked.read_bytes():
        raise BuildError(f"{compiler[0]}: wrote a file that is not the library")
    linked.replace(target)


def _words(variable: str) -> list[str]:
    """The arguments in an environment variable."""
    value = os.environ.get(variable, "")
    try:
        return shlex.split(value, posix=os.name != "nt")  # backslashes separate folders there
    except ValueError as error:
        raise BuildError(f"{variable} is {value!r}: {str(error).lower()}") from None


def _run(command: list[str], output: Path) -> None:
    """Runs a command that writes `output`, and shows its errors.

    Raises: BuildError with the first of them, or if it wrote nothing; TimeoutError.
    """
    output.unlink(missing_ok=True)
    with tempfile.TemporaryFile() as file:  # no pipe: what the compiler has started may hold it open
        status = _wait([*command, "-o", str(output)], file)
        file.seek(0)
        errors = file.read().decode(errors="replace")
    sys.stderr.write(errors)
    reasons = [line.strip()[:200] for line in errors.splitlines() if "error" in line.lower()]
    if status < 0:
        reasons.insert(0, f"ended by signal {-status} ({signal.strsignal(-status)})")
    if status != 0:
        raise BuildError(f"{command[0]}: {[*reasons, f'exit status {status}'][0]}")
    if not output.is_file():
        raise BuildError(f"{command[0]}: wrote no file")


def _wait(command: list[str], errors: IO[bytes]) -> int:
    """The exit status of a command that asks nothing; ends it and what it has started after TIME_LIMIT."""
    own_group = os.name != "nt"
    try:
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stderr=errors, start_new_session=own_group
        )
    except OSError as error:
        raise BuildError(f"{command[0]}: {error.strerror}") from None
    try:
        return process.wait(TIME_LIMIT)
    except BaseException as error:
        if own_group:
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.wait()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise  # Ctrl-C
        raise TimeoutError(f"{command[0]}: did not end within {TIME_LIMIT} s") from None


class BuildNative(build_ext):
    """Compiles the C code and writes the record of it; a failure does not end the installation."""

    def run(self) -> None:
        """Without the compiler of setuptools, which raises ValueError for quotes that are not closed."""
        in_place, self.inplace = self.inplace, False
        for ext in self.extensions:
            self.build_extension(ext)
        self.inplace = in_place
        if in_place:
            self.copy_extensions_to_source()

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
