"""How the files of GGUF, torch.save and TensorFlow are recognized and opened."""

from pathlib import Path

from minigpt.errors import CheckpointError
from minigpt.importers.nanogpt import CHECKPOINT, is_nanogpt, open_nanogpt
from minigpt.importers.tensorflow import HPARAMS, INDEX, LATEST, open_tensorflow
from minigpt.importers.torch_file import is_torch_file, open_torch, torch_tensors
from minigpt.pretrained.huggingface import SHARDS, open_huggingface, open_sharded
from minigpt.pretrained.imported_model import ImportedModel, WeightReader
from minigpt.storage.files import exists, read_json
from minigpt.storage.tensors import TensorFile, TensorSource


def _read_gguf(path: Path, _ids_only: bool) -> ImportedModel:
    from minigpt.importers.gguf import open_gguf

    return open_gguf(path)


def _matches_torch(path: Path, start: bytes) -> bool:
    return is_torch_file(path, start) or (path.name.endswith(SHARDS) and _has_torch_shards(path))


def _has_torch_shards(index: Path) -> bool:
    file_of = read_json(index).get("weight_map")
    names = file_of.values() if isinstance(file_of, dict) else ()
    return any(isinstance(name, str) and Path(name).suffix != ".safetensors" for name in names)


def _read_torch(path: Path, ids_only: bool) -> ImportedModel:
    if path.name.endswith(SHARDS):
        return open_huggingface(path, open_sharded(path, _open_shard), ids_only=ids_only)
    content = open_torch(path)
    if is_nanogpt(content):
        return open_nanogpt(path, content)
    return open_huggingface(path, _torch_weights(path, content), ids_only=ids_only)


def _open_shard(path: Path) -> TensorSource:
    return TensorFile(path) if path.suffix == ".safetensors" else _torch_weights(path, open_torch(path))


def _torch_weights(path: Path, content: object) -> TensorSource:
    """The weights in an object from torch.save: the object itself, or the entry that trainers use for them."""
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a {type(content).__name__}, expected a dictionary of tensors")
    entries = (content.get(key) for key in ("state_dict", "model", "model_state_dict"))
    return torch_tensors(path, next((entry for entry in entries if isinstance(entry, dict)), content))


def _find_nanogpt(folder: Path) -> Path | None:
    path = folder / CHECKPOINT
    return path if exists(path) and not exists(folder / HPARAMS) else None


def _matches_tensorflow(path: Path, _start: bytes) -> bool:
    return path.name in (HPARAMS, LATEST) or path.suffix == INDEX or (path.is_dir() and _find_tensorflow(path) == path)


def _read_tensorflow(path: Path, _ids_only: bool) -> ImportedModel:
    return open_tensorflow(path.parent if path.name in (HPARAMS, LATEST) else path)


def _find_tensorflow(folder: Path) -> Path | None:
    """The folder itself, because which of its checkpoints is opened depends on its other files."""
    return folder if exists(folder / HPARAMS) or any(folder.glob(f"*{INDEX}")) else None


READERS = (
    WeightReader(
        matches=lambda _, start: start.startswith(b"GGUF"),
        read=_read_gguf,
        single_files=("*.gguf",),
    ),
    WeightReader(
        matches=_matches_torch,
        read=_read_torch,
        hub_files=("pytorch_model.bin", "pytorch_model.bin.index.json"),
        find=_find_nanogpt,
        single_files=("*.bin", "*.pt", "*.pth"),
        folders=("nanoGPT's",),
        files=("pytorch_model.bin", "ckpt.pt", ".gguf"),  # all that are read here, in the order of an error
    ),
    WeightReader(
        matches=_matches_tensorflow,
        read=_read_tensorflow,
        find=_find_tensorflow,
        folders=("OpenAI's",),
    ),
)
