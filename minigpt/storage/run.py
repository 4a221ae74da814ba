"""The folder of a training run: its record, its log, its best weights and the states that it resumes from.

    checkpoints/NAME/
        config.json, model.safetensors, ...   the best weights so far, a Hugging Face GPT-2 directory
        adapter_config.json, adapter_model.safetensors   instead of model.safetensors: an adapter, a directory of peft
        README.md                             the model card, written from the record
        training.json                         the record: settings, text, versions, result
        log.jsonl                             one object per step or evaluation
        last/state.safetensors                weights, optimizer and progress of the last save, in one file
        last/before_cooldown.safetensors      the same, from the start of the cool-down
        teacher/                              the run of the teacher, the same files; without last/ once it is trained
        .lock, .lock.json, .lock.owner        the lock of the process that trains here, and its id

A state is one file because one rename replaces a whole file: whenever a run is killed, the file is either the old state
or the new one.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import Tensor

from minigpt.errors import CheckpointError
from minigpt.model.gpt import GPT
from minigpt.storage.adapters import adapter_of, is_adapter
from minigpt.storage.checkpoint import (
    CONFIG,
    TRAINING,
    WEIGHTS,
    config_files,
    free_name,
    load_checkpoint,
    model_card,
    save_checkpoint,
    weights_file,
)
from minigpt.storage.files import exists, json_bytes, read_json
from minigpt.storage.folder import Content, Folder, wrap_write_errors
from minigpt.storage.json_record import is_integer, is_number
from minigpt.storage.last_state import LastState, load_progress, load_state
from minigpt.storage.names import ADAPTER_WEIGHTS, CARD, LAST, TEACHER
from minigpt.storage.run_lock import RunLock
from minigpt.storage.run_log import RunLog
from minigpt.storage.run_record import FORMAT, RunRecord
from minigpt.storage.tensors import TensorFile, whole
from minigpt.tokenizer.tokenizer import Tokenizer

_REPLACED = {  # the files that a run replaces
    *(WEIGHTS, ADAPTER_WEIGHTS, "state.safetensors", "before_cooldown.safetensors", CONFIG, TRAINING, "log.jsonl"),
    *(".lock.json", CARD, "loss.png", "report.html"),
}


class Run:
    """The folder of one run, created by `create` and opened by `open`; every write replaces whole files.

    While it is locked it stays the same folder: if another takes its path, nothing is read from or written to that.
    `relocations` is how often `relocate` has moved the run.
    """

    def __init__(self, directory: Path, record: RunRecord) -> None:
        self.directory = directory
        self.record = record
        self.relocations = 0
        self._described: tuple[str, ...] = ()  # the files that `restore_files` looks for, once it has listed them
        self._log = RunLog(self.log_path, self._open_folder)
        self._lock = RunLock(directory)

    @classmethod
    def create(
        cls, directory: Path, model: GPT, tokenizer: Tokenizer, record: RunRecord | Mapping[str, Any] | None = None
    ) -> "Run":
        """Creates a new folder with the untrained (or imported) model and the run's record.

        Raises: FolderTakenError if the folder exists; CheckpointError if it cannot be written, or for a record that
        has an entry of the wrong type.
        """
        if not isinstance(record, RunRecord):
            record = RunRecord.from_dict({"format": FORMAT, **(record or {})}, directory / TRAINING)
        save_checkpoint(directory, model, tokenizer, record, new=True)
        return cls(directory, record)

    @classmethod
    def open(cls, directory: Path) -> "Run":
        """The run in this folder.

        Raises: CheckpointError if there is none, its record is damaged, or it has another format.
        """
        if not exists(directory / TRAINING):
            raise CheckpointError(f"{directory} holds no training run (no {TRAINING}), so there is nothing to resume")
        record = read_record(directory)
        if record.format != FORMAT:
            raise CheckpointError(
                f"{directory} was trained by another version of minigpt (format {record.format}, here {FORMAT});"
                " it can be fine-tuned with --from, not resumed"
            )
        return cls(directory, record)

    @property
    def log_path(self) -> Path:
        return self.directory / "log.jsonl"

    @property
    def weights_path(self) -> Path:
        """The file of the best weights: those of the whole model, or of its adapter."""
        return self.directory / (ADAPTER_WEIGHTS if is_adapter(self.directory) else WEIGHTS)

    @property
    def last_path(self) -> Path:
        return self.directory / LAST / "state.safetensors"

    @property
    def before_cooldown_path(self) -> Path:
        return self.directory / LAST / "before_cooldown.safetensors"

    @property
    def teacher_path(self) -> Path:
        """The folder of the teacher's run, if this run is distilled."""
        return self.directory / TEACHER

    def lock(self) -> None:
        """Prevents other processes from training here until `unlock`, or until this process ends, even by a kill.

        Raises: CheckpointError if another process trains here, or the folder cannot be written.
        """
        if self._lock.is_held:
            return
        self._lock.acquire()
        try:
            self._remove_temporary_files()
        except BaseException:
            self._lock.release()
            raise
        self.record = read_record(self.directory)  # the process that held the lock until now may have written it

    def _remove_temporary_files(self) -> None:
        folder = self._open_folder()
        folder.remove_temporary_files(_REPLACED)
        if folder.has(self.last_path.parent.name):
            folder.subfolder(self.last_path.parent.name).remove_temporary_files(_REPLACED)

    @property
    def is_in_place(self) -> bool:
        """Whether the folder is the one that was locked: False if it was deleted, moved or replaced since then."""
        return self._lock.folder is None or self._lock.folder.is_in_place()

    def relocate(self, model: GPT, tokenizer: Tokenizer, step: int, read: Callable[[Tensor], Tensor] = whole) -> None:
        """Continues this run in a new folder with these weights, after its own was deleted, moved or replaced.

        Raises: CheckpointError if the new folder cannot be created; the run then stays where it is.
        """
        checkpoints = self.directory.parent
        directory = checkpoints / free_name(self.directory.name, checkpoints)
        save_checkpoint(directory, model, tokenizer, self.record, metadata={"step": str(step)}, new=True, read=read)
        lock = RunLock(directory)
        lock.acquire()
        self._lock.release()
        self.directory, self._lock = directory, lock
        self.relocations += 1
        self._log.move(self.log_path)

    @property
    def has_state(self) -> bool:
        """Whether there is a state to resume from."""
        return self._has(self.last_path)

    def has_weights(self, model: GPT) -> bool:
        """Whether the best weights of this model, or of its adapter, are there."""
        return exists(self.directory / (WEIGHTS if adapter_of(model) is None else ADAPTER_WEIGHTS))

    def restore_files(self, model: GPT, tokenizer: Tokenizer) -> list[str]:
        """Writes the record, the configs and the tokenizer's files again where they were deleted; returns their names.

        Raises: CheckpointError if one cannot be written.
        """
        if self._lock.is_held and not exists(self._lock.path):  # or another process could train here, too
            self._lock.release()
            self._lock.acquire()
        if all(exists(self.directory / name) for name in self._described) and self._described:
            return []
        content = config_files(model, tokenizer, self.record)
        with wrap_write_errors(self.directory), TemporaryDirectory() as temporary:
            tokenizer.save(Path(temporary))
            content |= {path.name: path.read_bytes() for path in Path(temporary).iterdir()}
        self._described = (*sorted(content), TRAINING)
        missing = [name for name in self._described if not exists(self.directory / name)]
        for name in missing:
            if name == TRAINING:
                self.update()
            else:
                self._write_file(self.directory / name, content[name])
        return missing

    def subfolder(self, name: str) -> Path:
        """The path of a folder for another program's files, which is created if it is missing.

        Raises: CheckpointError if it is a link or cannot be created.
        """
        with wrap_write_errors(self.directory / name):
            return self._open_folder().subfolder(name).path

    def _open_folder(self) -> Folder:
        return self._lock.folder or Folder(self.directory)

    def _write_file(self, path: Path, content: Content) -> Path:
        """Replaces a file in the run's folder or in a folder in it; returns its path."""
        with wrap_write_errors(path):
            folder = self._open_folder()
            if path.parent != self.directory:
                folder = folder.subfolder(path.parent.name)
            folder.write(path.name, content)
        return path

    def unlock(self) -> None:
        """Lets other processes train here."""
        self._lock.release()

    def revise(self, **parts: Any) -> None:
        """Replaces parts of the record in memory; the next `update` writes them."""
        self.record = self.record.replace(**parts)

    def update(self, **parts: Any) -> None:
        """Replaces parts of the record in training.json, and rewrites the model card unless someone has edited it.

        Raises: CheckpointError if one of the two cannot be written.
        """
        self.revise(**parts)
        try:  # the card first: if the process ends between the two writes, the next update rewrites the card
            card = model_card(self.directory, None, self.record)
            if card is not None:
                self._write_file(self.directory / CARD, card)
        finally:
            self._write_file(self.directory / TRAINING, json_bytes(self.record.to_dict()))

    def log(self, record: Mapping[str, Any]) -> None:
        """Appends one line to log.jsonl; if it cannot be written, it waits for the next line or `flush_log`."""
        self._log.append(record)

    @property
    def unwritten(self) -> int:
        """The number of lines that wait to be written."""
        return self._log.unwritten

    def flush_log(self) -> None:
        """Writes the waiting lines, and syncs the log so that it survives a power cut.

        Raises: CheckpointError if they cannot be written; they keep waiting.
        """
        self._log.flush()

    def read_log(self, problems: list[str] | None = None) -> Iterator[dict[str, Any]]:
        """The lines of the log in order, without a last line that a kill cut short.

        With a list of `problems`, damaged lines are skipped, and the list gets a sentence on each.
        Raises: CheckpointError without such a list, for the first damaged line.
        """
        return self._log.read(problems)

    def truncate_log(self, step: int, done: frozenset[str]) -> None:
        """Drops the lines that a run resumed after `step` will write again: all later ones, and those of that step
        without any of the keys in `done` (`loss`, `validation_loss`, `sample`)."""
        self._log.filter(lambda line: line["step"] < step or (line["step"] == step and not done.isdisjoint(line)))

    def save_best(
        self, model: GPT, step: int, validation_loss: float | None, read: Callable[[Tensor], Tensor] = whole
    ) -> Path:
        """Replaces the weights at the top of the folder; for `read` see `tensor_content`."""
        metadata = {"step": str(step)} | ({} if validation_loss is None else {"validation_loss": str(validation_loss)})
        name, content = weights_file(model, self.record, metadata, read=read)
        return self._write_file(self.directory / name, content)

    def best_figures(self) -> tuple[int, float] | None:
        """The step of the weights at the top of the folder and their validation loss; None if none was measured.

        Raises: CheckpointError if the weights cannot be read, or if a checksum is wrong.
        """
        path = self.weights_path
        with TensorFile(path) as file:
            file.verify()
            loss, step = file.metadata.get("validation_loss"), file.metadata.get("step")
        if loss is None:
            return None
        try:
            figures = int(step or ""), float(loss)
        except ValueError as error:
            raise CheckpointError(f"{path} is damaged: its step or loss is not a number; copy it again") from error
        if not (is_integer(figures[0]) and is_number(figures[1])):
            raise CheckpointError(f"{path} is damaged: its step or loss is out of range; copy it again")
        return figures

    def load_best(self, model: GPT) -> dict[str, Tensor]:
        """The weights at the top of the folder, under the names of `trained_state`; `model` has their shape.

        Raises: CheckpointError if they cannot be read, or the folder was deleted, moved or replaced.
        """
        if not self.is_in_place:
            raise CheckpointError(f"{self.directory} was deleted, moved or replaced, and its best weights with it")
        if (adapter := adapter_of(model)) is not None:
            return adapter.read_weights(self.directory, model)
        return load_checkpoint(self.directory, "cpu", mapped=True).model.state_dict()

    def save_last(self, state: LastState, read: Callable[[Tensor], Tensor] = whole) -> Path:
        """Replaces the state that `--resume` starts from; for `read` see `tensor_content`."""
        return self._write_file(self.last_path, state.content(read))

    def load_last(self) -> LastState | None:
        """The last saved state, or None if the run ended before its first save."""
        return load_state(self.last_path) if self._has(self.last_path) else None

    def last_progress(self) -> dict[str, Any] | None:
        """The progress of the last saved state, without its tensors."""
        return load_progress(self.last_path) if self._has(self.last_path) else None

    def save_before_cooldown(self, state: LastState, read: Callable[[Tensor], Tensor] = whole) -> Path:
        """Replaces the state that `--resume` with a longer budget starts from."""
        return self._write_file(self.before_cooldown_path, state.content(read))

    def load_before_cooldown(self) -> LastState | None:
        """The state at the start of the cool-down, or None before it."""
        return load_state(self.before_cooldown_path) if self._has(self.before_cooldown_path) else None

    def before_cooldown_progress(self) -> dict[str, Any] | None:
        """The progress of the state at the start of the cool-down, without its tensors."""
        return load_progress(self.before_cooldown_path) if self._has(self.before_cooldown_path) else None

    def remove_states(self) -> None:
        """Removes the states of a run that will not be resumed; its weights, its record and its log stay.

        Raises: CheckpointError if they cannot be removed.
        """
        with wrap_write_errors(self.last_path.parent):
            folder = self._open_folder()
            if folder.has(LAST):
                states = folder.subfolder(LAST)
                for path in (self.last_path, self.before_cooldown_path):
                    states.remove(path.name)

    def _has(self, path: Path) -> bool:
        return self.is_in_place and exists(path)


def read_record(directory: Path, problems: list[str] | None = None) -> RunRecord:
    """The record of the run in a folder, whatever its format; for `problems` see `RunRecord.from_dict`.

    Raises: CheckpointError if it is missing or damaged.
    """
    path = directory / TRAINING
    return RunRecord.from_dict(read_json(path), path, problems)
