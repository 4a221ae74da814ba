"""Removes the folder of a run, whole or not at all, and only if it is one."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from minigpt.errors import CheckpointError
from minigpt.storage.files import exists
from minigpt.storage.folder import Folder, wrap_write_errors
from minigpt.storage.model_list import disk_bytes
from minigpt.storage.names import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    CARD,
    CONFIG,
    GENERATION_CONFIG,
    LAST,
    TEACHER,
    TRAINING,
    WEIGHTS,
)
from minigpt.storage.run_lock import RunLock
from minigpt.tokenizer.files import tokenizer_files

_OWN = {  # what minigpt writes into the folder of a run
    *(
        CONFIG,
        WEIGHTS,
        ADAPTER_CONFIG,
        ADAPTER_WEIGHTS,
        GENERATION_CONFIG,
        TRAINING,
        LAST,
        TEACHER,
        CARD,
        "log.jsonl",
        "report.html",
        "loss.png",
    ),
    *(".lock", ".lock.json", ".lock.owner", "tensorboard", "wandb"),
}


@dataclass(frozen=True)
class RemovableRun:
    """A run's folder that may be removed: its size in bytes, and the names in it that minigpt does not write."""

    directory: Path
    disk_bytes: int
    others: tuple[str, ...]


def find_removable(name: str, checkpoints: Path) -> RemovableRun:
    """The run of that name in `checkpoints`.

    Raises: CheckpointError if there is none, or its folder is a link or holds no run.
    """
    directory = checkpoints / name
    if not name or Path(name).name != name or name in (".", ".."):
        raise CheckpointError(f"{name!r} is not the name of a run in {checkpoints}; minigpt list shows the names")
    try:
        found = directory.lstat()
    except (OSError, ValueError) as error:  # a ValueError for a name with a null byte
        raise CheckpointError(f"there is no run {name!r} in {checkpoints}; minigpt list shows the names") from error
    if stat.S_ISLNK(found.st_mode):
        raise CheckpointError(f"{directory} is a link, and what it leads to is not removed; remove the link itself")
    if not exists(directory / TRAINING):
        raise CheckpointError(f"{directory} holds no training run (no {TRAINING}), so it is not removed")
    own = {*_OWN, *tokenizer_files()}
    others = sorted(path.name for path in directory.iterdir() if path.name not in own)
    return RemovableRun(directory, disk_bytes(directory), tuple(others))


def remove_run(run: RemovableRun) -> None:
    """Removes a run's folder with everything in it; links in it are removed, and what they lead to stays.

    Raises: CheckpointError if a process trains there, or the folder cannot be removed.
    """
    lock = RunLock(run.directory)
    lock.acquire()
    try:
        if os.name == "nt":  # Windows renames no folder in which a file is open
            lock.release()
        with wrap_write_errors(run.directory):
            Folder(run.directory.parent).remove_folder(run.directory.name)
    finally:
        lock.release()
