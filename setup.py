"""Builds decode.c if there is a C compiler; without one, minigpt installs without it and uses PyTorch."""

import hashlib
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

SOURCES = ["minigpt/generation/engines/decode.c", "minigpt/generation/engines/kernels.h"]
FINGERPRINT = hashlib.sha256(b"".join(Path(source).read_bytes() for source in SOURCES)).hexdigest()


class BuildDecode(build_ext):
    """Compiles with OpenMP if the compiler supports it, without linking it, because PyTorch loads its own."""

    def build_extension(self, ext: Extension) -> None:
        if self.compiler.compiler_type != "unix":
            super().build_extension(ext)
            return
        flags = ["-O3", "-fno-math-errno", "-Wno-psabi"]
        try:
            ext.extra_compile_args = [*flags, "-fopenmp"]
            super().build_extension(ext)
        except CompileError:  # Apple's clang has no OpenMP
            ext.extra_compile_args = flags
            super().build_extension(ext)

    def get_export_symbols(self, _ext: Extension) -> list[str]:
        """The functions that ctypes calls; this is not a Python module."""
        return ["minigpt_sources", "minigpt_use", "minigpt_pack", "minigpt_step"]


setup(
    ext_modules=[
        Extension(
            "minigpt.generation.engines._decode",
            SOURCES[:1],
            depends=SOURCES[1:],
            # native.py compares it with the sources beside the library, so that it never loads an outdated one
            define_macros=[("SOURCES", f'"{FINGERPRINT}"')],
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildDecode},
)
