"""Merges an adapter into its base model and saves the result as a whole model, which every export reads."""

from pathlib import Path

from minigpt.errors import CheckpointError, FolderTakenError
from minigpt.importers.open_model import LoadedModel, find_model, load_model
from minigpt.storage.adapter import is_adapter
from minigpt.storage.checkpoint import Checkpoint, save_checkpoint


def merge_adapter(
    name: str | Path | None,
    *,
    into: str | None = None,
    base: Path | None = None,
    checkpoints: str | Path = "checkpoints",
) -> LoadedModel:
    """Saves an adapter and its base model as one model in `checkpoints`, by default called NAME-merged.

    `base` is the path of the base model, by default the one that the adapter names. The notes say how it was found.
    Raises: CheckpointError if the model is no adapter, its base is missing or has changed, or the name is taken.
    """
    checkpoints = Path(checkpoints)
    path = find_model(name, checkpoints)
    if not is_adapter(path):
        raise CheckpointError(f"{path} is a whole model, so there is no adapter to merge")
    target = f"{path.resolve().name}-merged" if into is None else into
    if target in ("", ".", "..") or Path(target).name != target:
        raise CheckpointError(f"name ({target!r}) must be the name of a folder in {checkpoints}")
    merged, notes = load_model(path, "cpu", checkpoints=checkpoints, base=base)
    directory = checkpoints / target
    try:
        save_checkpoint(
            directory,
            merged.model,
            merged.tokenizer,
            origin=path.resolve().name,
            notes=["the adapter is merged into the weights of its base model", *notes],
            new=True,
        )
    except FolderTakenError as error:
        raise CheckpointError(
            f"{directory} already exists, so {path} may be merged already; choose another --name"
        ) from error
    return LoadedModel(Checkpoint(directory, merged.model, merged.tokenizer), notes)
