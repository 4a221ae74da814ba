"""The state that a run resumes from, in one safetensors file: its tensors, and its progress as JSON in the metadata."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from minigpt.bounded_reading import parse_json
from minigpt.errors import CheckpointError
from minigpt.storage.folder import Content
from minigpt.storage.json_record import check_entry, mapping
from minigpt.storage.tensors import TensorFile, tensor_content, whole


@dataclass(frozen=True)
class LastState:
    """What resuming needs: named tensors, and the progress as plain values for JSON.

    `file` is where it was read from; errors name it. Its tensors are then read one by one, when they are requested.
    """

    tensors: Mapping[str, Tensor]
    progress: dict[str, Any]
    file: Path | None = None

    @property
    def damaged(self) -> str:
        """The start of an error about it."""
        return f"{self.file or 'the saved state'} is damaged"

    def content(self, read: Callable[[Tensor], Tensor] = whole) -> Content:
        """The content of its file; for `read` see `tensor_content`."""
        return tensor_content(self.tensors, {"progress": json.dumps(self.progress)}, read)


def load_state(path: Path) -> LastState:
    """The state in a file, whose tensors are read one by one when they are requested.

    Raises: CheckpointError if the file is missing or damaged.
    """
    tensors = TensorFile(path, _remedy(path))
    return LastState(tensors, _progress_in(tensors.metadata, path), path)


def load_progress(path: Path) -> dict[str, Any]:
    """The progress of the state in a file, without its tensors.

    Raises: CheckpointError if the file is missing or damaged.
    """
    with TensorFile(path, _remedy(path)) as file:
        return _progress_in(file.metadata, path)


def _remedy(path: Path) -> str:
    """What to do about a damaged state of a run; `path` is in a folder of the run's."""
    return f"copy it again, or start a new run from the best weights with --from {path.parent.parent.name}"


def _progress_in(metadata: Mapping[str, str], path: Path) -> dict[str, Any]:
    """The progress of a state, which has at least a step."""
    try:
        progress = parse_json(metadata.get("progress", "null"))
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: its progress is not JSON ({error}); copy it again") from error
    entries = dict(mapping(progress, f"{path} is damaged: its progress"))
    check_entry(entries.get("step"), int, f"{path} is damaged: its progress", "step")
    return entries
