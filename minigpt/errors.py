"""Errors that a user can fix; each message says what is wrong, the value, and what would be right, in one sentence.

Each class also inherits the built-in exception that a library user expects. The command line prints a MinigptError as
one line on stderr; any other exception is a bug and keeps its traceback.
"""

import reprlib
from collections.abc import Sequence

_QUOTING = reprlib.Repr()
_QUOTING.maxstring = _QUOTING.maxother = 80  # characters


def quoted(value: object) -> str:
    """A value from a file as text for a message, shortened if it is long or deep."""
    return _QUOTING.repr(value)


def reason_of(error: OSError) -> str:
    """The system's reason for an error, in lower case."""
    return (error.strerror or str(error)).lower()


def first_line_of(error: Exception) -> str:
    """The first line of another package's error, or its type if it has no message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class MinigptError(Exception):
    """The base class of all errors that the user can fix."""


class ConfigError(MinigptError, ValueError):
    """A setting is out of bounds, or two settings cannot be combined."""


class RunFinishedError(ConfigError):
    """A run that is to be resumed has ended and has nothing left to do; the message says how it can continue."""


class DataError(MinigptError, ValueError):
    """A corpus cannot be read or cannot be used for training."""


class MissingTextError(DataError):
    """A text does not exist, or its pattern matches no file."""


class UndecodableError(DataError):
    """A document has bytes that are invalid in its encoding; training on a folder stops at it too."""


class TokenizerError(MinigptError, ValueError):
    """A tokenizer is unknown, cannot be trained or cannot be read."""


class CheckpointError(MinigptError, OSError):
    """A checkpoint is missing, damaged, not a GPT-2, or cannot be written."""


class MissingPackageError(MinigptError, ImportError):
    """A feature needs a package that is not installed or cannot be imported; the names of its `modules`."""

    modules: Sequence[str] = ()


class FolderTakenError(CheckpointError):
    """A folder that must be new already exists; another process may have just created it."""


class DeviceError(MinigptError, RuntimeError):
    """A device or dtype is not available on this machine."""


class TrainingError(MinigptError, RuntimeError):
    """Training cannot continue: the loss is NaN or infinite, or the run cannot be resumed as requested."""


class GenerationError(MinigptError, RuntimeError):
    """Generation or evaluation cannot continue: the model's logits are not a distribution, or memory runs out."""
