"""A training run's folder: its record, its log, its best weights and the state it resumes from; it trains nothing.

    checkpoints/NAME/
        config.json, model.safetensors, ...   the best weights so far, a Hugging Face GPT-2 directory
        training.json                         every setting, the corpus, versions, and in the end the result
        log.jsonl                             one object per step or evaluation
        last/state.safetensors                weights, optimizer and progress of the last save, in one file

The last state is one file because one rename replaces a file as a whole: whatever instant a run is killed at, either
the old state stands or the new one.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from minigpt.errors import CheckpointError
from minigpt.model.gpt import GPT
from minigpt.storage.checkpoint import TRAINING, WEIGHTS, load_checkpoint, save_checkpoint, save_weights
from minigpt.storage.files import TensorFile, atomic_json, atomic_write, load_tensors, read_json, save_tensors
from minigpt.text.tokenizer import Tokenizer

FORMAT = 1  # of training.json and last/state.safetensors


@dataclass(frozen=True)
class LastState:
    """What resuming needs: named tensors, and the progress as plain values."""

    tensors: dict[str, Tensor]
    progress: dict[str, Any]


class Run:
    """One run's folder. `create` makes it, `open` finds it again; every write replaces whole files."""

    def __init__(self, directory: Path, record: dict[str, Any]) -> None:
        self.directory = directory
        self.record = record

    @classmethod
    def create(cls, directory: Path, model: GPT, tokenizer: Tokenizer, record: Mapping[str, Any]) -> "Run":
        """A new folder holding the untrained (or imported) model and the run's record."""
        record = {"format": FORMAT, **record}
        save_checkpoint(directory, model, tokenizer, record)
        return cls(directory, record)

    @classmethod
    def open(cls, directory: Path) -> "Run":
        """The run that stands in this folder.

        Raises: CheckpointError where there is none.
        """
        if not (directory / TRAINING).exists():
            raise CheckpointError(f"{directory} holds no training run (no {TRAINING}), so there is nothing to resume")
        record = read_json(directory / TRAINING)
        if record.get("format") != FORMAT:
            raise CheckpointError(
                f"{directory} was trained by another version of minigpt (format {record.get('format')}, here {FORMAT});"
                " it can be fine-tuned with --from, not resumed"
            )
        return cls(directory, record)

    @property
    def log_path(self) -> Path:
        return self.directory / "log.jsonl"

    @property
    def last_path(self) -> Path:
        return self.directory / "last" / "state.safetensors"

    def update(self, **entries: Any) -> None:
        """Adds to the record in training.json."""
        self.record.update(
            {name: _strict(value) if isinstance(value, Mapping) else value for name, value in entries.items()}
        )
        atomic_json(self.directory / TRAINING, self.record)

    def log(self, record: Mapping[str, Any]) -> None:
        """Appends one line to log.jsonl.

        Raises: CheckpointError where it cannot be written.
        """
        try:
            with self.log_path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(_strict(record), allow_nan=False) + "\n")
        except OSError as error:
            raise CheckpointError(f"{self.log_path} cannot be written: {error.strerror}") from error

    def read_log(self) -> Iterator[dict[str, Any]]:
        """The log's records in order; a last line cut short by a kill is left out."""
        if not self.log_path.exists():
            return
        with self.log_path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith("\n"):
                    return
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise CheckpointError(f"{self.log_path}, line {number} is not JSON ({error}); remove it") from error

    def truncate_log(self, step: int, done: frozenset[str]) -> None:
        """Drops what a run resumed after `step` will write again: all later lines, and of that step's own lines those
        whose figure (`loss`, `validation_loss`, `sample`) is not among the `done`."""

        def stays(record: dict[str, Any]) -> bool:
            return record["step"] < step or (record["step"] == step and not done.isdisjoint(record))

        kept = [json.dumps(record) + "\n" for record in self.read_log() if stays(record)]
        atomic_write(self.log_path, "".join(kept).encode())

    def save_best(self, model: GPT, step: int, validation_loss: float | None) -> Path:
        """Puts these weights at the top of the folder."""
        metadata = {"step": str(step)} | ({} if validation_loss is None else {"validation_loss": str(validation_loss)})
        save_weights(self.directory, model, metadata=metadata)
        return self.directory / WEIGHTS

    def load_best(self) -> dict[str, Tensor]:
        """The state of the model at the top of the folder."""
        return load_checkpoint(self.directory, "cpu").model.state_dict()

    def save_last(self, state: LastState) -> Path:
        """Replaces the state that `--resume` starts from."""
        self.last_path.parent.mkdir(exist_ok=True)
        save_tensors(self.last_path, state.tensors, {"progress": json.dumps(state.progress)})
        return self.last_path

    def last_progress(self) -> dict[str, Any] | None:
        """The progress of the last saved state, without its tensors."""
        if not self.last_path.exists():
            return None
        with TensorFile(self.last_path) as file:
            return json.loads(file.metadata["progress"])

    def load_last(self) -> LastState | None:
        """The last saved state, or None where the run was ended before its first save."""
        if not self.last_path.exists():
            return None
        tensors, metadata = load_tensors(self.last_path)
        return LastState(tensors, json.loads(metadata["progress"]))


def newest_run(checkpoints: Path) -> Path | None:
    """The folder of the run that was last begun, saved or ended; None where there is none."""

    def touched(folder: Path) -> float:
        return max(path.stat().st_mtime for path in (folder / TRAINING, folder / "last") if path.exists())

    return max((path.parent for path in checkpoints.glob(f"*/{TRAINING}")), key=touched, default=None)


def _strict(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with None for numbers that JSON does not have: not-a-number and the infinities."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in record.items()
    }
