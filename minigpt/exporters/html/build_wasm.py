"""Compiles decode_wasm.c to the WebAssembly modules that are in this folder: `make wasm`.

The compiler is that of the extra `wasm`, pinned so that everyone's modules are the same, byte for byte. Users of
`minigpt export` need no compiler.
"""

import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

HERE = Path(__file__).parent
COMPILER = "0.15.2"  # of ziglang, whose clang targets WebAssembly; the same version is in pyproject.toml
MODULES: Mapping[str, str] = {"decode_simd.wasm": "simd128", "decode_relaxed.wasm": "simd128+relaxed_simd"}
_EXPORTS = ("minigpt_allocate", "minigpt_read", "minigpt_exponentials")


def compile_module(target: Path, features: str) -> None:
    """Compiles decode_wasm.c for these features of WebAssembly.

    Raises: CalledProcessError if the compiler fails.
    """
    command = [
        sys.executable, "-m", "ziglang", "cc", "-target", "wasm32-freestanding",
        f"-mcpu=generic+bulk_memory+{features}", "-O3", "-fno-math-errno", "-ffp-contract=off",
        "-nostdlib", "-isystem", "include", "-Wl,--no-entry", "-Wl,--strip-all", "-Wl,-z,stack-size=65536",
        *(f"-Wl,--export={name}" for name in _EXPORTS), "decode_wasm.c", "-o", str(target.absolute()),
    ]  # fmt: skip
    subprocess.run(command, cwd=HERE, check=True, stdin=subprocess.DEVNULL)
    target.chmod(0o644)


def why_no_compiler() -> str:
    """Why the pinned compiler cannot be used, and what to do; empty if it can."""
    try:
        found = version("ziglang")
    except PackageNotFoundError:
        return f"the compiler is missing; install ziglang {COMPILER}, the extra `wasm`"
    return "" if found == COMPILER else f"ziglang is {found}; the modules are compiled with {COMPILER}"


if __name__ == "__main__":
    if obstacle := why_no_compiler():
        raise RuntimeError(obstacle)
    for name, features in MODULES.items():
        compile_module(HERE / name, features)
