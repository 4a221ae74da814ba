"""The model that a command is given by name or by path, whatever its format; what was made of it is said on stderr."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from minigpt.storage.checkpoint import Checkpoint


def open_model(
    name: str | None,
    checkpoints: Path,
    device: str = "auto",
    *,
    dtype: "torch.dtype | None" = None,
    mapped: bool = True,
) -> "Checkpoint":
    """The model of that name, or at that path, on the device; in float32 unless told otherwise.

    `mapped` weights are read where they lie, as `from_huggingface` has it; a model that is trained needs its own.

    Raises: MinigptError.
    """
    import torch

    from minigpt.interop.opening import find_model, load_model

    path = find_model(name, checkpoints)
    checkpoint, notes = load_model(path, device, dtype=dtype or torch.float32, mapped=mapped)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    return checkpoint
