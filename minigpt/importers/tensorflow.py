"""GPT-2 as OpenAI published it, and as those who trained it with TensorFlow left it: hparams.json beside a checkpoint.

It reads what `tensor_bundle` finds there under Hugging Face's names; training state is left where it is.
"""

import re
from pathlib import Path

from minigpt.config import GPTConfig
from minigpt.errors import CheckpointError
from minigpt.importers.imported_model import ImportedModel
from minigpt.importers.renamed_tensors import Place, RenamedTensors, expect_shape
from minigpt.importers.tensor_bundle import TensorBundle
from minigpt.importers.vocabulary_check import fit
from minigpt.storage.files import read_json
from minigpt.storage.huggingface import config_from_huggingface, stored_tensors
from minigpt.tokenizer.tokenizer import Tokenizer

HPARAMS = "hparams.json"  # beside OpenAI's own checkpoints, not beside all that were trained from them
LATEST = "checkpoint"  # which of several checkpoints is meant
INDEX = ".index"
_VOCABULARY = ("encoder.json", "vocab.bpe")
_SETTINGS = {
    "n_vocab": "vocab_size",
    "n_ctx": "n_positions",
    "n_embd": "n_embd",
    "n_head": "n_head",
    "n_layer": "n_layer",
}

_EMBEDDINGS = ("model/wte", "model/wpe")
_HEAD_WIDTH = 64


def open_tensorflow(path: Path) -> ImportedModel:
    """The GPT-2 in a folder of OpenAI's layout, or of the one checkpoint there whose `.index` this is, not yet read.

    Raises: CheckpointError where a file is missing or damaged, or the model is no GPT-2; TokenizerError.
    """
    folder = path if path.is_dir() else path.parent
    bundle = TensorBundle(path.with_suffix("") if path.suffix == INDEX else _find_checkpoint(folder))
    try:
        config, assumed = _config_of(folder, bundle)
        places = _places_of(bundle, config)
        tokenizer, notes = _tokenizer_of(folder, config)
        if left_out := sorted(bundle.entries.keys() - {place.theirs for place in places.values()}):
            some = ", ".join(map(repr, left_out[:3])) + (", …" if len(left_out) > 3 else "")
            notes.append(f"variables of the training are left out: {len(left_out)} ({some})")
    except BaseException:
        bundle.close()
        raise
    return ImportedModel(config, RenamedTensors(bundle, places), tokenizer, (*assumed, *notes))


def _config_of(folder: Path, bundle: TensorBundle) -> tuple[GPTConfig, list[str]]:
    """The shape, from hparams.json or else from the tensors, and what was assumed.

    Raises: CheckpointError where they do not tell.
    """
    path = folder / HPARAMS
    if path.exists():
        hparams = read_json(path)
        missing = [name for name in _SETTINGS if name not in hparams]
        if missing:
            raise CheckpointError(f"{path} has no {missing[0]}, which OpenAI's always have")
        settings = {ours: hparams[theirs] for theirs, ours in _SETTINGS.items()}
        return config_from_huggingface({"model_type": "gpt2", **settings}, path), []
    entries = bundle.entries
    blocks = [int(match[1]) for name in entries if (match := re.match(r"model/h(\d{1,6})/", name))]
    shapes = [entries[name].shape if name in entries else () for name in _EMBEDDINGS]
    if not blocks or [len(shape) for shape in shapes] != [2, 2] or shapes[0][1] % _HEAD_WIDTH or not shapes[0][1]:
        raise CheckpointError(f"{folder} must hold {HPARAMS}: {bundle.path.name} alone does not tell the model's shape")
    (words, width), (positions, _) = shapes
    heads = width // _HEAD_WIDTH
    settings = {"vocab_size": words, "n_positions": positions, "n_embd": width, "n_head": heads}
    config = config_from_huggingface({"model_type": "gpt2", "n_layer": max(blocks) + 1, **settings}, bundle.path)
    assumed = f"{heads} heads of {_HEAD_WIDTH} are assumed, as in every GPT-2"
    return config, [f"no {HPARAMS} beside {bundle.path.name}: {assumed}"]


def _tokenizer_of(folder: Path, config: GPTConfig) -> tuple[Tokenizer, list[str]]:
    """The tokenizer beside the checkpoint, or GPT-2's own for a vocabulary of its size, and what was assumed.

    Raises: TokenizerError where it is damaged; CheckpointError where it does not fit the model.
    """
    missing = [name for name in _VOCABULARY if not (folder / name).exists()]
    if not missing:
        tokenizer = Tokenizer.load(folder)
        return tokenizer, fit(tokenizer, config, folder)
    gpt2 = Tokenizer.named("gpt2")
    if len(missing) == 1 or config.vocab_size != gpt2.vocab_size:
        raise CheckpointError(f"{folder} must hold {' and '.join(missing)}, with its {config.vocab_size} words")
    return gpt2, [f"no {' and '.join(missing)} beside it: GPT-2's own words are assumed"]


def _places_of(bundle: TensorBundle, config: GPTConfig) -> dict[str, Place]:
    """Where each tensor of the model is, by Hugging Face's names, whose orientation is OpenAI's.

    Raises: CheckpointError for a tensor that is missing, misshapen, unreadable, or of another model.
    """
    places = {}
    for stored in stored_tensors(config):
        place = Place(_name_in_tensorflow(stored.theirs), stored.shape)
        if place.theirs not in bundle.entries:
            raise CheckpointError(f"{bundle.path} has no tensor {place.theirs!r}, expected of shape {stored.shape}")
        expect_shape(bundle.path, place, bundle.entries[place.theirs].shape)
        places[stored.theirs] = place
    weights = {place.theirs for place in places.values()}
    bundle.check(weights)
    for name in sorted(bundle.entries.keys() - weights):
        # An optimizer keeps its state of model/wte as model/wte/Adam; any other may change what the model does.
        if name.startswith("model/") and name.rpartition("/")[0] not in weights:
            raise CheckpointError(
                f"{bundle.path} has a tensor {name!r} that a GPT-2 of {config.n_layer} blocks does not have"
            )
    return places


def _name_in_tensorflow(theirs: str) -> str:
    """`h.0.attn.c_attn.weight` is `model/h0/attn/c_attn/w` there, and a norm's weight its gain."""
    module, _, ending = theirs.rpartition(".")
    path = f"model/{module.replace('h.', 'h', 1).replace('.', '/')}"
    if module in ("wte", "wpe"):
        return path
    return f"{path}/{'b' if ending == 'bias' else 'g' if module.rpartition('.')[2].startswith('ln_') else 'w'}"


def _find_checkpoint(folder: Path) -> Path:
    """The checkpoint's path without its endings: the one that `checkpoint` calls the latest, or the only one.

    Raises: CheckpointError where there is none, or several to choose from.
    """
    found = sorted(path.with_suffix("") for path in folder.glob(f"*{INDEX}"))
    record = folder / LATEST
    if record.is_file():
        with record.open("rb") as file:
            latest = re.search(rb'^model_checkpoint_path:\s*"(.+)"', file.read(1 << 16), re.MULTILINE)
        # Whatever folder it was trained in, the files are in this one.
        name = re.split(r"[/\\]", latest[1].decode(errors="replace"))[-1] if latest else ""
        if folder / name in found:
            return folder / name
    if not found:
        raise CheckpointError(f"{folder} has no checkpoint, expected model.ckpt.index beside {HPARAMS}")
    if len(found) > 1:
        raise CheckpointError(
            f"{folder} has {len(found)} checkpoints ({', '.join(path.name for path in found[:4])}),"
            " and its file 'checkpoint' must name the one to read"
        )
    return found[0]
