"""Imports GPT-2 from TensorFlow checkpoints, as OpenAI published it and as TensorFlow code fine-tunes it."""

import re
from pathlib import Path

from minigpt.config import GPTConfig
from minigpt.errors import CheckpointError
from minigpt.importers.tensor_bundle import TensorBundle
from minigpt.importers.tensor_names import find_tensors
from minigpt.pretrained.imported_model import ImportedModel, check_vocabulary, lazy_tensors
from minigpt.storage.byte_file import ByteFile
from minigpt.storage.files import read_json
from minigpt.storage.huggingface import config_from_huggingface, infer_config
from minigpt.storage.tensors import TensorSource
from minigpt.tokenizer.tokenizer import Tokenizer

HPARAMS = "hparams.json"  # OpenAI's checkpoints have it, fine-tuned ones do not always
LATEST = "checkpoint"  # names the latest checkpoint
INDEX = ".index"
_VOCABULARY = ("encoder.json", "vocab.bpe")
_SETTINGS = {
    "n_vocab": "vocab_size",
    "n_ctx": "n_positions",
    "n_embd": "n_embd",
    "n_head": "n_head",
    "n_layer": "n_layer",
}

_HUGGING_FACE = re.compile(r"^h(\d{1,6})/")


def open_tensorflow(path: Path) -> ImportedModel:
    """Opens the GPT-2 in a folder of OpenAI's layout, or the checkpoint with this `.index` file; reads no tensors yet.

    Raises: CheckpointError if a file is missing or damaged, or the model is not a GPT-2; TokenizerError.
    """
    folder = path if path.is_dir() else path.parent
    bundle = TensorBundle(path.with_suffix("") if path.suffix == INDEX else _find_checkpoint(folder))
    config, assumed = _read_config(folder, bundle)
    names = _find_tensors(bundle, config)
    tokenizer, notes = _read_tokenizer(folder, config)
    if skipped := sorted(bundle.entries.keys() - set(names.values())):
        shown = ", ".join(map(repr, skipped[:3])) + (", …" if len(skipped) > 3 else "")
        notes.append(f"training variables are skipped: {len(skipped)} ({shown})")
    tensors = TensorSource(bundle.path, lazy_tensors(config, names, bundle.read), bundle.close)
    return ImportedModel(config, tensors, tokenizer, (*assumed, *notes))


def _read_config(folder: Path, bundle: TensorBundle) -> tuple[GPTConfig, list[str]]:
    """The config, from hparams.json or else from the tensors' shapes, and notes on what was assumed."""
    path = folder / HPARAMS
    if path.exists():
        hparams = read_json(path)
        missing = [name for name in _SETTINGS if name not in hparams]
        if missing:
            raise CheckpointError(f"{path} has no {missing[0]}, which OpenAI's files always have")
        settings = {ours: hparams[name] for name, ours in _SETTINGS.items()}
        return config_from_huggingface({"model_type": "gpt2", **settings}, path), []
    named = {name.removeprefix("model/"): entry.shape for name, entry in bundle.entries.items()}
    shapes = {_HUGGING_FACE.sub(r"h.\1.", name): shape for name, shape in named.items()}
    try:
        config = infer_config(bundle.path, shapes | {f"{name}.weight": shapes.get(name, ()) for name in ("wte", "wpe")})
    except CheckpointError as error:
        raise CheckpointError(
            f"{folder} must hold {HPARAMS}: {bundle.path.name} alone does not determine the model's shape"
        ) from error
    assumed = f"{config.n_head} heads of 64 are assumed, as in every GPT-2"
    return config, [f"no {HPARAMS} next to {bundle.path.name}: {assumed}"]


def _read_tokenizer(folder: Path, config: GPTConfig) -> tuple[Tokenizer, list[str]]:
    """The tokenizer next to the checkpoint, or GPT-2's for a model of its vocabulary size, and notes on it."""
    missing = [name for name in _VOCABULARY if not (folder / name).exists()]
    if not missing:
        tokenizer = Tokenizer.load(folder)
        return tokenizer, check_vocabulary(tokenizer, config, folder)
    gpt2 = Tokenizer.named("gpt2")
    if len(missing) == 1 or config.vocab_size != gpt2.vocab_size:
        raise CheckpointError(f"{folder} must hold {' and '.join(missing)}, with its {config.vocab_size} tokens")
    return gpt2, [f"no {' and '.join(missing)} next to it: GPT-2's vocabulary is assumed"]


def _find_tensors(bundle: TensorBundle, config: GPTConfig) -> dict[str, str]:
    """The names of the model's tensors in the checkpoint, by Hugging Face's; the orientation is the same."""
    shapes = {name: entry.shape for name, entry in bundle.entries.items()}
    names = find_tensors(bundle.path, config, shapes, lambda stored: _tensorflow_name(stored.stored_name))
    weights = set(names.values())
    bundle.check(weights)
    for name in sorted(bundle.entries.keys() - weights):
        # An optimizer's state for model/wte is model/wte/Adam. Any other tensor may change what the model computes.
        if name.startswith("model/") and name.rpartition("/")[0] not in weights:
            raise CheckpointError(
                f"{bundle.path} has an unexpected tensor {name!r} for a GPT-2 of {config.n_layer} blocks"
            )
    return names


def _tensorflow_name(name: str) -> str:
    """OpenAI's name for one of Hugging Face's: `model/h0/attn/c_attn/w` for `h.0.attn.c_attn.weight`."""
    module, _, kind = name.rpartition(".")
    path = f"model/{module.replace('h.', 'h', 1).replace('.', '/')}"
    if module in ("wte", "wpe"):
        return path
    return f"{path}/{'b' if kind == 'bias' else 'g' if module.rpartition('.')[2].startswith('ln_') else 'w'}"


def _find_checkpoint(folder: Path) -> Path:
    """The path, without suffix, of the checkpoint that the file `checkpoint` names, else of the only one."""
    found = sorted(path.with_suffix("") for path in folder.glob(f"*{INDEX}"))
    record = folder / LATEST
    if record.is_file():
        with ByteFile(record) as file:
            latest = re.search(rb'^model_checkpoint_path:\s*"(.+)"', file.take(1 << 16), re.MULTILINE)
        # The path is that of the folder it was trained in; only the last part is still right.
        name = re.split(r"[/\\]", latest[1].decode(errors="replace"))[-1] if latest else ""
        if folder / name in found:
            return folder / name
    if not found:
        raise CheckpointError(f"{folder} has no checkpoint, expected model.ckpt.index next to {HPARAMS}")
    if len(found) > 1:
        raise CheckpointError(
            f"{folder} has {len(found)} checkpoints ({', '.join(path.name for path in found[:4])}),"
            " and its file 'checkpoint' must name the one to read"
        )
    return found[0]
