"""Packages that only some features need: a missing one is one sentence with the extra of pyproject.toml that has it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec

from minigpt.errors import MissingPackageError

# The extra for each module that only some features import.
EXTRAS = {
    "backports.zstd": "zstd",
    "ctranslate2": "ctranslate2",
    "datatrove": "datatrove",
    "gguf": "gguf",
    "google_crc32c": "tensorflow",
    "jinja2": "serve",
    "lxml": "documents",
    "matplotlib": "plot",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "prometheus_client": "serve",
    "py3langid": "corpus",
    "pyarrow": "parquet",
    "pydantic": "serve",
    "pydivsufsort": "corpus",
    "pypdf": "documents",
    "starlette": "serve",
    "tensorboard": "tensorboard",
    "transformers": "ctranslate2",
    "uvicorn": "serve",
    "wandb": "wandb",
}


def check_installed(feature: str, *modules: str, instead: str = "") -> None:
    """Checks that the modules of EXTRAS that a `feature` needs exist, without importing them.

    `instead` is what the user can do without them.
    Raises: MissingPackageError with the command that installs those missing.
    """
    if missing := [module for module in modules if not _exists(module)]:
        raise _error(feature, missing, "not installed", instead)


@contextmanager
def optional_import(feature: str, *modules: str, instead: str = "") -> Iterator[None]:
    """A block that imports the modules of EXTRAS that a `feature` needs.

    Raises: MissingPackageError as `check_installed`, also for one that cannot be imported.
    """
    try:
        yield
    except ImportError as error:
        missing = [module for module in modules if not _exists(module)]
        problem = "not installed" if missing else f"not usable ({error})"
        raise _error(feature, missing or modules, problem, instead) from error


def all_missing(feature: str, errors: Sequence[MissingPackageError]) -> MissingPackageError:
    """The first of these errors; if others are about other modules, one about all of them and this `feature`."""
    modules = list(dict.fromkeys(module for error in errors for module in error.modules))
    return errors[0] if modules == list(errors[0].modules) else _error(feature, modules, "not installed")


def install_command(*modules: str) -> str:
    """The command that installs the extras of these modules; it is the same in a checkout, once that is installed."""
    return f'pip install "minigpt-lm[{",".join(dict.fromkeys(EXTRAS[module] for module in modules))}]"'


def _error(feature: str, modules: Sequence[str], problem: str, instead: str = "") -> MissingPackageError:
    are = "are" if len(modules) > 1 else "is"
    advice = f"{instead}, or run" if instead else "run"
    needs = f"{feature} needs {' and '.join(modules)}, which {are} {problem}"
    error = MissingPackageError(f"{needs}; {advice}: {install_command(*modules)}")
    error.modules = modules
    return error


def _exists(module: str) -> bool:
    try:
        spec = find_spec(module)
    except ModuleNotFoundError:  # of the package that it is in
        return False
    # A folder of that name in the working directory, such as W&B's wandb/, is a namespace package without an origin.
    return spec is not None and spec.origin is not None
