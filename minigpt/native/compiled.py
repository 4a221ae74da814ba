"""Finds and loads the compiled C code of this folder, and chooses its instruction set."""

import ctypes
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from minigpt.errors import ConfigError

_LIBRARY = "_native.dll" if sys.platform == "win32" else "_native.so"
_RECORD = "_native_build.json"
_PROBE = Path(__file__).with_name("probe.py")
_INSTRUCTION_SETS = ("avx512-amx", "avx512-vnni", "avx2", "neon-dotprod", "plain")
_PATIENCE = 60  # seconds for a process that loads the library, which takes some 20 ms
_INSTRUCTIONS = "MINIGPT_CPU_ISA"  # environment variable: the instruction set to use instead of the processor's best

_ADDRESS, _COUNT, _FLOAT, _DOUBLE = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_double
_THREADS = _CHOICE = ctypes.c_int


class Adam(ctypes.Structure):
    """The coefficients of an update of Adam, as in training.c."""

    _fields_ = [(name, _FLOAT) for name in ("beta1", "beta2", "rate", "correction", "epsilon")]


class Gradient(ctypes.Structure):
    """The gradient of a token embedding, as in training.c."""

    _fields_ = [("rows", _ADDRESS), ("positions", _ADDRESS), ("width", _COUNT)]


class Truncation(ctypes.Structure):
    """Which tokens may be drawn, as in sampling.c."""

    _fields_ = [("temperature", _DOUBLE), ("top_p", _DOUBLE), ("min_p", _DOUBLE), ("top_k", _COUNT)]


_ADAM, _GRADIENT, _TRUNCATION = map(ctypes.POINTER, (Adam, Gradient, Truncation))
FUNCTIONS: Mapping[str, tuple[Any, Sequence[Any]]] = {  # result and arguments, as in the C code
    "minigpt_use": (ctypes.c_char_p, [ctypes.c_char_p]),
    "minigpt_selected": (ctypes.c_char_p, []),
    "minigpt_is_amd": (ctypes.c_int, []),
    "minigpt_lacking": (ctypes.c_char_p, []),
    "minigpt_pack": (None, [_ADDRESS, _ADDRESS, _ADDRESS, _THREADS]),
    "minigpt_step": (ctypes.c_int, [_ADDRESS, _ADDRESS, _ADDRESS, _THREADS]),
    "minigpt_draw": (None, [*[_ADDRESS] * 3, *[_COUNT] * 2, _TRUNCATION, _THREADS]),
    "minigpt_training_use": (None, [ctypes.c_char_p]),
    "minigpt_has_openmp": (ctypes.c_int, []),
    "minigpt_layer_norm": (None, [_CHOICE, *[_ADDRESS] * 5, *[_COUNT] * 2, _FLOAT, _THREADS]),
    "minigpt_layer_norm_gradient": (None, [_CHOICE, *[_ADDRESS] * 6, *[_COUNT] * 2, _ADDRESS, _THREADS]),
    "minigpt_gelu": (None, [_CHOICE, _ADDRESS, _ADDRESS, _COUNT, _THREADS]),
    "minigpt_gelu_gradient": (None, [_CHOICE, _ADDRESS, _ADDRESS, _ADDRESS, _COUNT, _THREADS]),
    "minigpt_causal_softmax": (None, [_ADDRESS, _COUNT, _COUNT, _FLOAT, _ADDRESS, _THREADS]),
    "minigpt_causal_softmax_gradient": (None, [_ADDRESS, _ADDRESS, _ADDRESS, _COUNT, _COUNT, _FLOAT, _THREADS]),
    "minigpt_cross_entropy": (
        ctypes.c_int,
        [_CHOICE, *[_ADDRESS] * 3, *[_COUNT] * 3, _FLOAT, *[_ADDRESS] * 3, _THREADS],
    ),
    "minigpt_attention_buffer": (_COUNT, [_COUNT, _COUNT, _CHOICE]),
    "minigpt_attention": (None, [_CHOICE, *[_ADDRESS] * 3, *[_COUNT] * 4, _ADDRESS, _THREADS]),
    "minigpt_attention_gradient": (None, [_CHOICE, *[_ADDRESS] * 4, *[_COUNT] * 4, _ADDRESS, _THREADS]),
    "minigpt_adam_of_features": (
        None,
        [*[_ADDRESS] * 3, _GRADIENT, *[_ADDRESS] * 2, _COUNT, _ADAM, _ADDRESS, _THREADS],
    ),
    "minigpt_adam_of_tokens": (
        None,
        [*[_ADDRESS] * 3, _GRADIENT, *[_ADDRESS] * 3, _COUNT, _FLOAT, _ADAM, _ADDRESS, _THREADS],
    ),
    "minigpt_momentum": (None, [_CHOICE, *[_ADDRESS] * 3, _COUNT, _FLOAT, _THREADS]),
    "minigpt_move": (None, [_CHOICE, *[_ADDRESS] * 2, _COUNT, *[_FLOAT] * 2, _THREADS]),
    "minigpt_add": (None, [_CHOICE, *[_ADDRESS] * 3, _COUNT, _THREADS]),
    "minigpt_orthogonalization_buffer": (_COUNT, [_CHOICE, _COUNT, _COUNT]),
    "minigpt_orthogonalize": (
        None,
        [_CHOICE, *[_ADDRESS] * 2, *[_COUNT] * 3, _ADDRESS, _COUNT, _FLOAT, _ADDRESS, _THREADS],
    ),
}
TILE_FUNCTIONS: Mapping[str, tuple[Any, Sequence[Any]]] = {  # only if the compiler knows AMX
    "minigpt_linear_buffer": (_COUNT, [*[_COUNT] * 3, _THREADS]),
    "minigpt_linear": (None, [*[_ADDRESS] * 4, *[_COUNT] * 3, _ADDRESS, _THREADS]),
    "minigpt_linear_gradients": (None, [*[_ADDRESS] * 6, *[_COUNT] * 3, _ADDRESS, _THREADS]),
}


def library() -> ctypes.CDLL | None:
    """The compiled C code; None if it cannot be used, for the reason that `why_unavailable` gives.

    Raises: ConfigError if MINIGPT_CPU_ISA names an instruction set that the processor lacks.
    """
    loaded = _library()
    return None if isinstance(loaded, str) else loaded


def why_unavailable() -> str:
    """Why the compiled C code cannot be used, and what to do; empty if it can."""
    loaded = _library()
    return loaded if isinstance(loaded, str) else ""


def uses_one_core() -> str:
    """Why the compiled C code has no OpenMP, so that it uses one core; empty if it has, or if there is none."""
    return "" if library() is None else _build_record().get("openmp_error", "")


def _build_record() -> dict[str, str]:
    """What setup.py says about its attempt to compile the C code; empty if it did not run."""
    try:
        record = json.loads((Path(__file__).parent / _RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


@cache
def _library() -> ctypes.CDLL | str:
    here = Path(__file__).parent
    path = here / _LIBRARY
    if not path.exists():
        error = _build_record().get("error")
        failed = (
            f"the C compiler failed when minigpt was installed ({error})" if error else "the C code is not compiled"
        )
        return f"{failed}; install gcc or clang, then reinstall minigpt"
    if obstacle := _why_unsafe(path):
        return f"{path.name} {obstacle}; reinstall minigpt here, without -march and -mcpu in CC and CFLAGS"
    loaded = _load(str(path))
    if isinstance(loaded, str):
        return f"{path.name} cannot be loaded ({loaded}); reinstall minigpt here, or install libgomp or libomp"
    if not _is_current(loaded, here):
        return "the C code has changed since it was compiled; reinstall minigpt"
    tile_functions = TILE_FUNCTIONS if hasattr(loaded, "minigpt_linear") else {}
    for name, (result, arguments) in {**FUNCTIONS, **tile_functions}.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    if use(loaded) is None:
        possible = ", ".join(instruction_sets(loaded))
        raise ConfigError(f"{_INSTRUCTIONS} is {os.environ[_INSTRUCTIONS]!r}; on this processor it can be: {possible}")
    return loaded


def _is_current(loaded: ctypes.CDLL, sources: Path) -> bool:
    """Whether the library was compiled from these sources, so that it has the functions that are expected."""
    try:
        compiled_from = loaded.minigpt_sources
    except AttributeError:
        return False
    compiled_from.restype = ctypes.c_char_p
    content = b"".join(path.read_bytes() for path in sorted(sources.glob("*.[ch]")))  # as setup.py hashes them
    return bool(compiled_from() == hashlib.sha256(content).hexdigest().encode())


def _why_unsafe(path: Path) -> str:
    """Why this process would crash or hang if it used the library, as another one has found; empty if it would not."""
    if not sys.executable:
        return ""
    command = [sys.executable, "-I", "-S", str(_PROBE), str(path), *_openmps()]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return f"hangs: it did nothing within {_PATIENCE} s"
    except OSError:  # no process can be started
        return ""
    if done.returncode < 0:
        return f"crashes on this processor ({signal.strsignal(-done.returncode)})"
    if done.returncode > 255:  # Windows
        return f"crashes on this processor (exit status {done.returncode:#x})"
    lacking = done.stdout.decode(errors="replace")
    return f"is compiled for a processor that has {lacking}, which this one lacks" if lacking else ""


def _openmps() -> list[str]:
    """The OpenMP libraries to try in turn: PyTorch's, which may be visible to every library already (""), others."""
    folder = Path(torch.__file__).parent / "lib"
    pytorchs = [str(path) for pattern in ("libgomp*", "libiomp*", "libomp*") for path in sorted(folder.glob(pattern))]
    return ["", *pytorchs, "libgomp.so.1", "libomp.so.5"]


def _load(path: str) -> ctypes.CDLL | str:
    """Loads the library with PyTorch's OpenMP, so that they share one thread pool, else with gcc's or clang's.

    Returns why it cannot be loaded if the system refuses it.
    """
    reasons = []
    for openmp in _openmps():
        try:
            if openmp:
                ctypes.CDLL(openmp, ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(path)
        except OSError as error:
            reasons.append(str(error))
    return reasons[0].removeprefix(f"{path}: ")  # the others may be about a missing OpenMP


def use(loaded: ctypes.CDLL, instructions: str | None = None) -> str | None:
    """Selects the named instruction set; returns its name, or None if the processor lacks it.

    The default is that in MINIGPT_CPU_ISA; without it, the processor's best.
    """
    instructions = instructions or os.environ.get(_INSTRUCTIONS) or None
    name: bytes | None = loaded.minigpt_use(None if instructions is None else os.fsencode(instructions))
    if name is None:
        return None
    loaded.minigpt_training_use(name)
    return name.decode()


def selected(loaded: ctypes.CDLL) -> str:
    """The instruction set that is in use."""
    name: bytes = loaded.minigpt_selected()
    return name.decode()


def instruction_sets(loaded: ctypes.CDLL) -> list[str]:
    """The instruction sets that the processor has, best first; selects the default one."""
    found = [name for name in _INSTRUCTION_SETS if use(loaded, name)]
    use(loaded)
    return found
