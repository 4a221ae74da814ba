"""nanoGPT's ckpt.pt: its names, the orientation of its matrices, its missing biases and its characters.

Source: karpathy/nanoGPT, model.py and train.py; data/shakespeare_char/prepare.py for meta.pkl.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minigpt.config import GPTConfig
from minigpt.errors import CheckpointError, ConfigError
from minigpt.importers.character_vocabulary import with_bytes
from minigpt.importers.imported_model import ImportedModel
from minigpt.importers.plain_pickle import read_plain_pickle
from minigpt.importers.renamed_tensors import Place, RenamedTensors
from minigpt.importers.torch_file import TorchTensors
from minigpt.importers.vocabulary_check import fit, may_use_gpt2_vocabulary
from minigpt.storage.files import unreadable
from minigpt.storage.huggingface import TensorSource, plain_name, stored_tensors
from minigpt.tokenizer.tokenizer import Tokenizer

CHECKPOINT = "ckpt.pt"
_META = "meta.pkl"
_META_SIZE = 1 << 20  # bytes; thirty thousand characters take less
_SETTINGS = {
    "vocab_size": "vocab_size",
    "block_size": "n_positions",
    "n_embd": "n_embd",
    "n_layer": "n_layer",
    "n_head": "n_head",
}


def is_nanogpt(content: object) -> bool:
    """Whether what torch.save wrote is one of nanoGPT's checkpoints."""
    return isinstance(content, dict) and isinstance(content.get("model_args"), dict) and "model" in content


def open_nanogpt(path: Path, content: Mapping[str, Any]) -> ImportedModel:
    """The model in a checkpoint of nanoGPT's, whose `content` is open.

    Its words are those of the meta.pkl beside it or in the data folder that it was trained on, else GPT-2's.
    Raises: CheckpointError where it is damaged, its words cannot be known, or they cannot be expressed.
    """
    config, biased = _config_of(path, content["model_args"])
    if not isinstance(content["model"], dict):
        raise CheckpointError(f"{path} must hold its weights under 'model', a dictionary of tensors")
    tensors = NanoTensors(TorchTensors(path, content["model"]), config, biased=biased)
    try:
        return _with_words(path, content, config, tensors)
    except BaseException:
        tensors.close()
        raise


def _config_of(path: Path, arguments: Mapping[str, Any]) -> tuple[GPTConfig, bool]:
    """The shape, and whether the model has biases."""
    missing = [name for name in _SETTINGS if name not in arguments]
    if missing:
        raise CheckpointError(f"model_args in {path} have no {missing[0]}, which nanoGPT's have")
    settings = {ours: arguments[theirs] for theirs, ours in _SETTINGS.items()}
    try:
        config = GPTConfig(**settings, dropout=arguments.get("dropout", 0.0), activation_function="gelu")
    except ConfigError as error:
        raise CheckpointError(f"model_args in {path}: {error}") from error
    return config, bool(arguments.get("bias", True))


def _with_words(path: Path, content: Mapping[str, Any], config: GPTConfig, tensors: TensorSource) -> ImportedModel:
    notes = ["nanoGPT's exact GELU is kept (activation_function gelu)"]
    if not content["model_args"].get("bias", True):
        notes.append("it has no biases: they are zeros here, which is the same model")
    settings = content.get("config")
    dataset = settings.get("dataset") if isinstance(settings, dict) else None
    meta = _find_meta(path, dataset)
    if meta is None and not may_use_gpt2_vocabulary(config):
        where = f", which nanoGPT has in data/{dataset}," if isinstance(dataset, str) else ""
        raise CheckpointError(
            f"{path} has a model of {config.vocab_size} words, and what they are is not said; put the {_META} of its"
            f" data{where} beside it"
        )
    if meta is None or not (characters := _characters_of(meta)):
        words = Tokenizer.named("gpt2")
        return ImportedModel(config, tensors, words, (*notes, "its words are GPT-2's", *fit(words, config, path)))
    enlarged, source, tokenizer = with_bytes(tensors, config, characters)
    where = f"{_META} beside it" if meta.parent == path.parent else f"data/{dataset}/{_META}"
    notes.append(f"its {len(characters)} characters are those of the {where}")
    notes.append("the bytes that minigpt has beside them are never predicted, and nothing it was trained on")
    return ImportedModel(enlarged, source, tokenizer, tuple(notes))


def _find_meta(path: Path, dataset: object) -> Path | None:
    """The meta.pkl beside a checkpoint, else in the data folder beside the checkpoint's own, as nanoGPT has them."""
    places = [path.parent]
    if isinstance(dataset, str) and dataset == Path(dataset).name and dataset not in ("", ".", ".."):
        places.append(path.absolute().parent.parent / "data" / dataset)
    return next((place / _META for place in places if (place / _META).is_file()), None)


def _characters_of(meta: Path) -> list[str]:
    """The characters in the order of their ids."""
    try:
        with meta.open("rb") as file:
            data = file.read(_META_SIZE + 1)
    except OSError as error:
        raise unreadable(meta, error) from error
    if len(data) > _META_SIZE:
        raise CheckpointError(f"{meta} is larger than {_META_SIZE:,} bytes, which no list of characters is")
    value = read_plain_pickle(data, meta)
    words = value.get("itos") if isinstance(value, dict) else None
    if not isinstance(words, dict) or set(words) != set(range(len(words))) or not words:
        raise CheckpointError(f"{meta} must have 'itos', a dictionary of the ids from 0 on to their characters")
    characters = [words[id] for id in range(len(words))]
    if any(not isinstance(character, str) or len(character) != 1 for character in characters):
        raise CheckpointError(f"{meta} has words of several characters, and how texts are split into them is not said")
    return characters


class NanoTensors(RenamedTensors):
    """nanoGPT's weights by Hugging Face's names, without prefix, and in its orientation; zeros for biases it lacks."""

    def __init__(self, tensors: TorchTensors, config: GPTConfig, *, biased: bool) -> None:
        turned = {stored.theirs for stored in stored_tensors(config) if stored.transposed}
        names = {plain_name(name): (name, shape) for name, shape in tensors.shapes.items()}
        super().__init__(tensors, {plain: Place(*names[plain], plain in turned) for plain in names})
        self._zeros: dict[str, tuple[int, ...]] = {}
        if not biased:
            self._zeros = {
                stored.theirs: stored.shape
                for stored in stored_tensors(config)
                if stored.theirs.endswith(".bias") and stored.theirs not in names
            }

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor's name and shape."""
        return self._zeros | super().shapes

    def read(self, name: str) -> Tensor:
        """One tensor, in memory of its own.

        Raises: CheckpointError where it cannot be read; KeyError for an unknown name.
        """
        return torch.zeros(self._zeros[name]) if name in self._zeros else super().read(name)

    def borrow(self, name: str) -> Tensor:
        """One tensor, in memory that the next borrowing may overwrite.

        Raises: as `read`.
        """
        return torch.zeros(self._zeros[name]) if name in self._zeros else super().borrow(name)
