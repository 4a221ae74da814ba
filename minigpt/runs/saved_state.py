"""What a run has saved: its weights, its last state, and where it continues."""

import re
from pathlib import Path
from typing import Any

from minigpt.errors import CheckpointError, quoted
from minigpt.model.gpt import GPT
from minigpt.storage.checkpoint import load_checkpoint, read_config
from minigpt.storage.files import exists
from minigpt.storage.huggingface import check_size
from minigpt.storage.run import Run
from minigpt.storage.tensors import TensorFile
from minigpt.tokenizer.tokenizer import Tokenizer
from minigpt.training.budget import Budget
from minigpt.training.progress import Progress


def weights_without_state(run: Run) -> int | None:
    """The step of the weights of a run that never saved a state, perhaps for lack of space.

    None if it has a state, or has only its initial weights.
    """
    if exists(run.last_path):
        return None
    path = run.weights_path
    with TensorFile(path) as file:
        step = file.metadata.get("step", "0")
    if not re.fullmatch(r"\d{1,18}", step, re.ASCII):
        raise CheckpointError(f"{path} is damaged: its step is {quoted(step)}, not a whole number; copy it again")
    return int(step) or None


def last_state(run: Run) -> Progress | None:
    """The progress of the run's last saved state, if it has one."""
    return _progress(run.last_path, run.last_progress())


def resume_point(run: Run, budget: Budget) -> Progress | None:
    """The progress of the saved state from which the run continues with this budget, if it has one."""
    last = last_state(run)
    if last is None:
        return None
    before = _progress(run.before_cooldown_path, run.before_cooldown_progress())
    return budget.continues_from(last, before)


def load_weights(run: Run) -> tuple[GPT, Tokenizer]:
    """The run's model and tokenizer. Damaged best weights do not matter if there is a state, which has its own."""
    try:
        checkpoint = load_checkpoint(run.directory, "cpu")
    except CheckpointError:
        if run.last_progress() is None:
            raise
        config = read_config(run.directory)
        with TensorFile(run.last_path) as state:
            check_size(config, state)
        return GPT(config), Tokenizer.load(run.directory)
    return checkpoint.model, checkpoint.tokenizer


def _progress(path: Path, entries: dict[str, Any] | None) -> Progress | None:
    return None if entries is None else Progress.from_dict(entries, f"{path} is damaged: its progress")
