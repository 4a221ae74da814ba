"""The errors a user can mend; each says what is wrong, the value, and what would be right, in one sentence.

Every child also inherits the builtin that a library caller would expect. `minigpt.cli.app` turns them into one
line on stderr; anything else that is raised is a bug and keeps its traceback.
"""


class MinigptError(Exception):
    """The parent of every error that the user, not the code, can mend."""


class ConfigError(MinigptError, ValueError):
    """A setting is out of its bounds, or two settings contradict one another."""


class DataError(MinigptError, ValueError):
    """A corpus cannot be read or is unfit to train on."""


class TokenizerError(MinigptError, ValueError):
    """A tokenizer is unknown, cannot be trained or cannot be read."""


class CheckpointError(MinigptError, OSError):
    """A checkpoint is missing, damaged, not a GPT-2, or cannot be written."""


class FolderTakenError(CheckpointError):
    """A folder that was to be new is there already: somebody else has just made it."""


class DeviceError(MinigptError, RuntimeError):
    """A device or a dtype is not to be had on this machine."""


class TrainingError(MinigptError, RuntimeError):
    """Training cannot go on: the loss is no longer finite, or the run cannot be resumed as asked."""


class GenerationError(MinigptError, RuntimeError):
    """Generation cannot go on: what the model says is no longer a distribution."""
