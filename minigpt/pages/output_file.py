"""Output files that the user names: an existing file is replaced only if minigpt wrote one of the same kind there."""

from pathlib import Path

from minigpt.errors import ConfigError, reason_of

_SEARCHED = 2**16  # bytes at either end of a file, where the mark of its kind is


def check_output(path: Path, mark: str, *, force: bool) -> Path:
    """The file to write for the output `path`: the path itself, or the file that a link there leads to.

    `mark` is a text that every file of this kind contains near its start or end.
    """
    target = path.resolve()
    try:
        if not target.parent.is_dir():
            raise ConfigError(f"{path} could not be written: the folder {path.parent} does not exist; create it first")
        if not target.exists():
            return target
        if not target.is_file():
            raise ConfigError(f"{path} is not a regular file; give the name of a file to write")
        if force or _contains(target, mark.encode()):
            return target
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({reason_of(error)})") from error
    raise ConfigError(f"{path} exists and is not a file that this command wrote; give another name, or --force")


def _contains(path: Path, mark: bytes) -> bool:
    with path.open("rb") as file:
        start = file.read(_SEARCHED)
        file.seek(max(0, path.stat().st_size - _SEARCHED))
        return mark in start or mark in file.read(_SEARCHED)
