"""Importing GPT-2, from the hub or from local files, and checking it against published outputs.

It reads safetensors in Hugging Face's layout and nothing else, and it never replaces what stands under a name.
"""

import errno
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import torch

from minigpt.config import PRESETS, GPTConfig
from minigpt.device import resolve_device
from minigpt.errors import CheckpointError, MinigptError
from minigpt.model.gpt import GPT
from minigpt.storage.checkpoint import CONFIG, TRAINING, WEIGHTS, Checkpoint, load_checkpoint, save_checkpoint
from minigpt.storage.files import TensorFile, read_json
from minigpt.storage.huggingface import config_from_huggingface, from_huggingface, infer_config
from minigpt.text.tokenizer import Tokenizer

GPT2_NAMES = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
_HUB_OWNER = "openai-community"
_CONVERT = "convert it with transformers: AutoModelForCausalLM.from_pretrained(…).save_pretrained(…)"


@dataclass(frozen=True)
class Verification:
    """Whether a model gives the outputs that were published of OpenAI's, with one line per output compared.

    `unknown` is a model of a shape of which no outputs are known.
    """

    status: Literal["verified", "differs", "unknown"]
    details: tuple[str, ...]


@dataclass(frozen=True)
class Import:
    """What an import brought: the saved checkpoint, where it came from, what was assumed, and how it checked out."""

    checkpoint: Checkpoint
    source: str
    notes: tuple[str, ...]
    verification: Verification


def load_gpt2(
    model: str | Path = "gpt2",
    *,
    source: str | Path | None = None,
    name: str | None = None,
    checkpoints: str | Path = "checkpoints",
    device: str = "auto",
) -> Checkpoint:
    """The GPT-2 of that name, imported into `checkpoints`: `import_gpt2` without its report.

    Raises: CheckpointError, TokenizerError, DeviceError.
    """
    return import_gpt2(model, source=source, name=name, checkpoints=checkpoints, device=device).checkpoint


def import_gpt2(
    model: str | Path = "gpt2",
    *,
    source: str | Path | None = None,
    name: str | None = None,
    checkpoints: str | Path = "checkpoints",
    device: str = "auto",
) -> Import:
    """Imports a GPT-2 into `checkpoints/name`, checks it against published outputs, and reports.

    `model` is one of GPT2_NAMES, downloaded from the hub unless `source`, a folder or a .safetensors file, holds it;
    or it is such a path itself. `name` is by default the model's, or the path's. An identical import that stands
    under that name already stays as it is.
    Raises: CheckpointError where the model cannot be had, is not a GPT-2, or something else has the name;
    TokenizerError; DeviceError.
    """
    if str(model) not in GPT2_NAMES:
        if source is not None or not Path(model).exists():
            raise CheckpointError(f"model ({str(model)!r}) must be {', '.join(GPT2_NAMES)}, or a path that is there")
        source = model
        name = name or _name_of(Path(model))
    target = Path(checkpoints) / (name or str(model))
    if (target / TRAINING).exists():
        raise CheckpointError(f"{target} holds a training run, which is never overwritten; choose another --name")
    target_device = resolve_device(device)
    weights = _download(str(model)) if source is None else _find_weights(Path(source))
    with TensorFile(weights) as file:
        config, notes = _config_of(file)
        tokenizer = _tokenizer_of(weights.parent, config)
        gpt = from_huggingface(file, config, device=target_device)
    if not target.exists():
        save_checkpoint(target, gpt, tokenizer)
    elif not _is_same(target, gpt, tokenizer):
        raise CheckpointError(f"{target} holds something else; remove it or choose another --name")
    origin = f"{_HUB_OWNER}/{model}" if source is None else str(source)
    return Import(Checkpoint(target, gpt, tokenizer, None), origin, notes, verify_gpt2(gpt))


def _name_of(path: Path) -> str:
    """What an import from a path is called: after its folder, unless the file itself has a telling name."""
    path = path.resolve()
    return path.name if path.is_dir() else path.parent.name if path.name == WEIGHTS else path.stem


def _download(model: str) -> Path:
    """The weights' place in the hub's own cache, with config.json beside them."""
    from huggingface_hub import hf_hub_download  # slow to import, and of use here only
    from huggingface_hub.errors import HfHubHTTPError

    repository = f"{_HUB_OWNER}/{model}"
    # Among the parents is the error of whichever HTTP library huggingface_hub is built on.
    transport_errors = cast("tuple[type[Exception], ...]", (OSError, *HfHubHTTPError.__bases__))
    try:
        hf_hub_download(repository, CONFIG)
        return Path(hf_hub_download(repository, WEIGHTS))
    except transport_errors as error:
        cause = error.__cause__ or error
        sentence = str(cause).partition("\n")[0].partition(". ")[0]
        reason = re.sub(r"^\[Errno -?\d+\] ", "", sentence) or type(cause).__name__
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            mend = "free some space, or move the hub's cache with HF_HOME"
        else:
            mend = "offline, give a local copy with --from PATH; a mirror is named by HF_ENDPOINT"
        raise CheckpointError(f"{repository} could not be downloaded ({reason}); {mend}") from error


def _find_weights(source: Path) -> Path:
    """The safetensors file that a path names, or that the folder it names holds.

    Raises: CheckpointError where there is none, saying what to do with what there is.
    """
    if source.is_file():
        if source.suffix != ".safetensors":
            raise CheckpointError(f"{source} must be a .safetensors file or a folder that holds {WEIGHTS}; {_CONVERT}")
        return source
    if not source.is_dir():
        raise CheckpointError(f"{source} is not there; give a folder or a .safetensors file")
    if (source / WEIGHTS).exists():
        if not (source / CONFIG).exists():
            raise CheckpointError(f"{source} has no {CONFIG}; put it beside {WEIGHTS}, or give that file itself")
        return source / WEIGHTS
    if (source / f"{WEIGHTS}.index.json").exists():
        raise CheckpointError(f"{source} holds weights in several parts, expected one {WEIGHTS}; {_CONVERT}")
    if (source / "pytorch_model.bin").exists():
        raise CheckpointError(f"{source} holds its weights as a pickle, expected {WEIGHTS}; {_CONVERT}")
    raise CheckpointError(f"{source} has no {WEIGHTS}; give a folder that holds one, or a .safetensors file")


def _config_of(file: TensorFile) -> tuple[GPTConfig, tuple[str, ...]]:
    """The shape, from the config.json beside the weights or from the tensors, and what was assumed."""
    path = file.path.parent / CONFIG
    if path.exists():
        return config_from_huggingface(read_json(path), path), ()
    config = infer_config(file)
    return config, (f"no {CONFIG} beside {file.path}: {config.n_head} heads of 64 are assumed, as in every GPT-2",)


def _tokenizer_of(folder: Path, config: GPTConfig) -> Tokenizer:
    """The tokenizer beside the weights; where there is none, GPT-2's own for a vocabulary of its size.

    Raises: TokenizerError where it is not one of ours; CheckpointError where it does not fit the model.
    """
    if (folder / "tokenizer.json").exists() or (folder / "merges.txt").exists():
        tokenizer = Tokenizer.load(folder)
    else:
        tokenizer = Tokenizer.named("gpt2")
    if tokenizer.vocab_size != config.vocab_size:
        raise CheckpointError(
            f"{folder} has a model of {config.vocab_size} words, and its tokenizer ({tokenizer.name}) has"
            f" {tokenizer.vocab_size}; put the tokenizer.json that belongs to the model beside it"
        )
    return tokenizer


def _is_same(directory: Path, model: GPT, tokenizer: Tokenizer) -> bool:
    """Whether the checkpoint in a directory is this very one."""
    try:
        stands = load_checkpoint(directory, "cpu")
    except MinigptError:
        return False
    if stands.model.config != model.config or stands.tokenizer.name != tokenizer.name:
        return False
    ours = model.state_dict()
    return all(torch.equal(tensor, ours[name].cpu()) for name, tensor in stands.model.state_dict().items())


# Outputs of OpenAI's 124M GPT-2 in float32 that others have published: a prompt's ids and its greedy continuation.
_GREEDY = (
    # transformers, tests/models/gpt2/test_modeling_gpt2.py: "The dog" to 20 tokens in all
    ((464, 3290), (373, 1043, 287, 257, 2214, 1474, 262, 16246, 286, 2688, 290, 2688, 27262, 13, 198, 198, 464, 3290)),
    # CTranslate2, python/tests/test_transformers.py: end of text, then "\nThe first time I saw the new version of"
    ((50256,), (198, 464, 717, 640, 314, 2497, 262, 649, 2196, 286)),
)
# rust-bert, tests/gpt2.rs: after "One two three four" comes " five", and this is its logit
_COUNTING, _FIVE, _FIVE_LOGIT, _TOLERANCE = (3198, 734, 1115, 1440), 1936, -69.4948, 1e-3


@torch.no_grad()
def verify_gpt2(model: GPT) -> Verification:
    """Compares a model of the 124M shape with the published outputs of OpenAI's, in float32."""
    if model.config.replace(dropout=0.0) != PRESETS["gpt2"]:
        return Verification("unknown", ("no published outputs are known here for a model of this shape",))
    logits = _next_logits(model, _COUNTING)
    token, logit = int(logits.argmax()), float(logits[_FIVE])
    same = token == _FIVE and abs(logit - _FIVE_LOGIT) <= _TOLERANCE
    details = [f"next token {token}, logit of {_FIVE} {logit:.4f} (published: {_FIVE}, {_FIVE_LOGIT})"]
    for prompt, published in _GREEDY:
        equal = 0
        while (
            equal < len(published) and int(_next_logits(model, prompt + published[:equal]).argmax()) == published[equal]
        ):
            equal += 1
        same = same and equal == len(published)
        details.append(f"greedy after {list(prompt)}: the first {equal} of {len(published)} tokens as published")
    if not same:
        details.append("so these are not OpenAI's float32 weights: a fine-tune, perhaps, or rounded to half precision")
    return Verification("verified" if same else "differs", tuple(details))


def _next_logits(model: GPT, ids: tuple[int, ...]) -> torch.Tensor:
    """The logits of what follows: (V,)."""
    device = model.token_embedding.weight.device
    return model.logits(model.features(torch.tensor([ids], device=device))[0, -1])
