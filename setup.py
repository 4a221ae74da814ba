"""Builds decode.c where a C compiler is at hand; without one, minigpt installs all the same and uses PyTorch."""

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


class BuildDecode(build_ext):
    """Compiles with OpenMP where the compiler has it. The library is not linked: torch brings its own along."""

    def build_extension(self, ext: Extension) -> None:
        flags = ["-O3", "-fno-math-errno", "-Wno-psabi"]
        attempts = [[*flags, "-fopenmp"], flags] if self.compiler.compiler_type == "unix" else [[]]
        for last, arguments in ((index == len(attempts) - 1, found) for index, found in enumerate(attempts)):
            ext.extra_compile_args = arguments
            try:
                return super().build_extension(ext)
            except Exception:
                if last:
                    raise
        return None

    def get_export_symbols(self, _ext: Extension) -> list[str]:
        """It is no Python module: ctypes looks its functions up."""
        return ["minigpt_use", "minigpt_pack", "minigpt_step"]


setup(
    ext_modules=[
        Extension(
            "minigpt.generation._decode",
            ["minigpt/generation/decode.c"],
            depends=["minigpt/generation/kernels.h"],
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildDecode},
)
