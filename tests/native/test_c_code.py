"""The C code compiles without a warning, keeps to its memory, and computes correctly on every instruction set.

The programs decode_shapes.c, decode_kernels.c, training_kernels.c and sampling_draws.c include it. They run on this
processor and on an emulated 64-bit ARM processor.
"""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from minigpt.native import compiled, engine

HERE = Path(__file__).parent
SOURCES = Path(compiled.__file__).parent
ARM_COMPILER = "aarch64-linux-gnu-gcc"
WARNINGS = ["-Wall", "-Wextra", "-Wno-psabi", "-Werror"]
OPTIMIZED = ["-O3", "-fno-math-errno", "-ffp-contract=off"]  # as in setup.py
SANITIZED = ["-g", "-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all"]
# What compilers say without their libraries.
NOT_INSTALLED = ("cannot find", "No such file or directory", "'omp.h' file not found")

# On emulated processors: the instruction sets that each program finds. The first processor has no dot product.
ON_ARM = [
    ("cortex-a53", "decode_shapes", {"plain"}),
    ("cortex-a76", "decode_kernels", {"plain", "neon-dotprod"}),
    ("cortex-a76", "training_kernels", {"plain"}),  # training.c has only plain C there
]

Build = Callable[..., Path]


def need(*programs: str) -> str:
    """The first of these programs that is installed; skips the test if none is."""
    found = next(filter(None, map(shutil.which, programs)), None)
    return found or pytest.skip(f"{programs[0]} is not installed")


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Compiles a program in this folder, once for each combination of arguments."""

    @cache
    def compile_program(compiler: str, program: str, *flags: str) -> Path:
        binary = tmp_path_factory.mktemp("programs") / program
        command = [need(compiler), "-fopenmp", *WARNINGS, *flags, f"-I{SOURCES}", HERE / f"{program}.c", "-o", binary]
        built = subprocess.run([*command, "-lm"], capture_output=True, text=True, check=False)
        if any(text in built.stderr for text in NOT_INSTALLED):
            pytest.skip(f"{compiler}'s libraries are not installed: {built.stderr.splitlines()[0]}")
        assert built.returncode == 0, built.stderr
        return binary

    return compile_program


def run(*command: str | Path) -> list[str]:
    settings = {"ASAN_OPTIONS": "detect_leaks=0", "OMP_NUM_THREADS": "3", "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def instruction_sets() -> set[str]:
    """Those of this processor, as the compiled engine finds them."""
    library = compiled.library()
    return {"plain", *(compiled.instruction_sets(library) if library else [])}


def sets_in(lines: list[str]) -> set[str]:
    return {line.split()[0] for line in lines}


@pytest.mark.parametrize("program", ["decode_shapes", "training_kernels"])
def test_the_sanitizers_find_no_error_at_difficult_shapes_on_any_instruction_set(build: Build, program: str) -> None:
    assert sets_in(run(build("gcc", program, "-O0", *SANITIZED))) >= instruction_sets()


@pytest.mark.parametrize("program", ["decode_kernels", "training_kernels"])
def test_every_kernel_of_every_instruction_set_has_only_rounding_errors(build: Build, program: str) -> None:
    assert sets_in(run(build("gcc", program, *OPTIMIZED))) >= instruction_sets()


@pytest.mark.parametrize(("processor", "program", "expected"), ON_ARM)
def test_the_kernels_compute_the_same_on_64_bit_arm(
    build: Build, processor: str, program: str, expected: set[str]
) -> None:
    emulator = need("qemu-aarch64-static", "qemu-aarch64")
    binary = build(ARM_COMPILER, program, *OPTIMIZED, "-static")
    assert sets_in(run(emulator, "-cpu", processor, binary)) == expected


def test_draws_of_difficult_sizes_stay_inside_their_memory_and_are_the_same_without_optimization(build: Build) -> None:
    expected = run(build("gcc", "sampling_draws", "-O0", *SANITIZED))
    assert run(build("gcc", "sampling_draws", *OPTIMIZED)) == expected


def test_draws_are_the_same_on_64_bit_arm(build: Build) -> None:
    emulator = need("qemu-aarch64-static", "qemu-aarch64")
    binary = build(ARM_COMPILER, "sampling_draws", *OPTIMIZED, "-static")
    assert run(emulator, binary) == run(build("gcc", "sampling_draws", *OPTIMIZED))


def test_the_structures_have_the_same_layout_in_python_and_c(build: Build) -> None:
    expected = []
    for kind in (engine._Matrix, engine._Layer, engine._Model, engine._RowsToRead):
        name = kind.__name__.removeprefix("_").removesuffix("ToRead")
        expected.append(f"{name} {ctypes.sizeof(kind)}")
        fields = [(field[0], getattr(kind, field[0])) for field in kind._fields_]
        expected += [f"{name}.{member} {field.offset} {field.size}" for member, field in fields]
    assert run(build("gcc", "decode_shapes", "-O0", *SANITIZED), "structures") == expected


@pytest.mark.parametrize(
    ("compiler", "flags"),
    [
        ("gcc", ("-fsyntax-only", "-Wno-unknown-pragmas")),  # without OpenMP: with it, the programs are compiled
        (ARM_COMPILER, ("-fsyntax-only", "-Wno-unknown-pragmas")),
        ("clang", ("-fsyntax-only", "-Wno-unknown-pragmas")),
        ("clang", ("-O1", "-fopenmp")),
    ],
)
@pytest.mark.parametrize("unit", ["decode.c", "sampling.c", "training.c"])
def test_the_source_compiles_without_a_warning(
    compiler: str, flags: tuple[str, ...], unit: str, tmp_path: Path
) -> None:
    command = [need(compiler), "-std=c11", "-D_DEFAULT_SOURCE", *WARNINGS, *flags, "-fPIC", "-c"]
    done = subprocess.run(
        [*command, SOURCES / unit, "-o", tmp_path / "unit.o"], capture_output=True, text=True, check=False
    )
    if any(text in done.stderr for text in NOT_INSTALLED):  # clang may lack OpenMP
        pytest.skip(f"{compiler}'s libraries are not installed: {done.stderr.splitlines()[0]}")
    assert done.returncode == 0, done.stderr


def test_what_was_compiled_is_used() -> None:
    """Otherwise the tests that need the C code are skipped."""
    if compiled._build_record().get("error") == "":
        assert compiled.why_unavailable() == ""
