"""Packages that only some features need: what to say, and which command installs them, when one is missing.

pyproject.toml offers them as extras. A message names the package itself, not the extra, so that its command is right
for a checkout too, and for a project that depends on minigpt.
"""

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

from minigpt.errors import MissingPackageError
from minigpt.shell import join

# What `pip install` is given for each module that only some features import, as in the extras of pyproject.toml.
REQUIREMENTS = {
    "backports.zstd": "backports.zstd>=1.0",
    "ctranslate2": "ctranslate2>=4.4",
    "gguf": "gguf>=0.17.1",
    "jinja2": "jinja2>=3.1.6",
    "lxml": "lxml>=5.3",
    "matplotlib": "matplotlib>=3.8",
    "onnx": "onnx>=1.16",
    "onnxruntime": "onnxruntime>=1.18",
    "prometheus_client": "prometheus-client>=0.20",
    "py3langid": "py3langid>=0.4",
    "pyarrow": "pyarrow>=15",
    "pydantic": "pydantic>=2.10",
    "pydivsufsort": "pydivsufsort>=0.0.20",
    "pypdf": "pypdf>=5",
    "starlette": "starlette>=0.46",
    "tensorboard": "tensorboard>=2.14",
    "transformers": "transformers>=4.51",
    "uvicorn": "uvicorn>=0.34",
    "wandb": "wandb>=0.16",
}


def check_installed(feature: str, *modules: str, instead: str = "") -> None:
    """Checks that the modules of REQUIREMENTS that a `feature` needs exist, without importing them.

    `instead` is what the user can do without them.
    Raises: MissingPackageError with the command that installs those missing.
    """
    if missing := [module for module in modules if not _exists(module)]:
        raise MissingPackageError(_sentence(feature, missing, "not installed", instead))


@contextmanager
def optional_import(feature: str, *modules: str, instead: str = "") -> Iterator[None]:
    """A block that imports the modules of REQUIREMENTS that a `feature` needs.

    `instead` is what the user can do without them.
    Raises: MissingPackageError with the command that installs those missing, or upgrades those that cannot be imported.
    """
    try:
        yield
    except ImportError as error:
        missing = [module for module in modules if not _exists(module)]
        problem = "not installed" if missing else f"not usable ({error})"
        raise MissingPackageError(_sentence(feature, missing or modules, problem, instead)) from error


def install_command(*modules: str) -> str:
    """The command that installs the packages of these modules for the Python interpreter that is running."""
    return join(*_installer(), *(REQUIREMENTS[module] for module in modules))


def _sentence(feature: str, modules: Sequence[str], problem: str, instead: str = "") -> str:
    are = "are" if len(modules) > 1 else "is"
    advice = f"{instead}, or run" if instead else "run"
    return f"{feature} needs {' and '.join(modules)}, which {are} {problem}; {advice}: {install_command(*modules)}"


def _exists(module: str) -> bool:
    try:
        spec = find_spec(module)
    except ModuleNotFoundError:  # of the package that it is in
        return False
    # A folder of that name in the working directory, such as W&B's wandb/, is a namespace package without an origin.
    return spec is not None and spec.origin is not None


def _installer() -> list[str]:
    """The program that installs packages for this interpreter: its pip, or uv, whose environments have no pip."""
    python = "python" if _is_active() else sys.executable or "python"
    has_pip = PathFinder.find_spec("pip")  # setuptools' finder would remove distutils from sys.modules
    if has_pip is None and shutil.which("uv"):
        return ["uv", "pip", "install", *([] if python == "python" else ["--python", python])]
    return [python, "-m", "pip", "install"]


def _is_active() -> bool:
    """Whether `python` in a shell is this interpreter, because its virtual environment is active."""
    found = shutil.which("python")
    # Folders, not files: python3 may have been typed; and python is a link to the same file in every environment.
    return (
        sys.prefix != sys.base_prefix
        and found is not None
        and Path(found).parent.resolve() == Path(sys.executable).parent.resolve()
    )
