"""Finds the runs in a folder, and the one that was started or resumed last."""

from collections.abc import Iterable
from pathlib import Path

from minigpt.errors import CheckpointError
from minigpt.storage.checkpoint import TRAINING
from minigpt.storage.files import modified
from minigpt.storage.names import LAST
from minigpt.storage.run import read_record


def runs_in(checkpoints: Path) -> list[Path]:
    """The folders of all runs, without those that were killed while their folder was created."""
    folders = (path.parent for path in checkpoints.glob(f"*/{TRAINING}"))
    return sorted(folder for folder in folders if not folder.name.startswith("."))


def newest_run(runs: Iterable[Path]) -> Path | None:
    """The folder of the run that was started or resumed last; None if there is no run.

    The records count starts and resumes, because the wall clock may jump. The times of the files decide about a run
    whose record has no such number: one that Python's train() began, or whose record is damaged.
    """
    numbers = {folder: _number(folder) for folder in runs}
    numbered = [folder for folder, number in numbers.items() if number]
    best = max(numbered, key=lambda folder: (numbers[folder], _touched(folder)), default=None)
    others = [folder for folder, number in numbers.items() if not number]
    return max([*others, *([best] if best else [])], key=_touched, default=None)


def next_number(checkpoints: Path) -> int:
    """The number of the next start or resume of a run in this folder."""
    return 1 + max(map(_number, runs_in(checkpoints)), default=0)


def _number(folder: Path) -> int:
    try:
        return read_record(folder, []).number or 0
    except CheckpointError:
        return 0


def _touched(folder: Path) -> float:
    return max(modified(folder / name) for name in (TRAINING, LAST))
