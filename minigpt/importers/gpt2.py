"""Importing GPT-2, from the hub or from files of any format, and checking it against published outputs.

Which formats there are, it does not know; it never replaces what stands under a name.
"""

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from minigpt.config import PRESETS
from minigpt.device import resolve_device
from minigpt.errors import CheckpointError, MinigptError
from minigpt.importers.hub import (
    GPT2_NAMES,
    UnreachableError,
    download,
    identity,
    is_hub_name,
    is_openai,
    reason_of,
    repository_of,
)
from minigpt.importers.huggingface import GPT2_WORDS_ASSUMED
from minigpt.importers.open_model import open_imported
from minigpt.model.gpt import GPT
from minigpt.storage.checkpoint import TRAINING, WEIGHTS, Checkpoint, load_checkpoint, save_checkpoint
from minigpt.storage.files import exists
from minigpt.storage.huggingface import from_huggingface
from minigpt.storage.tensors import TensorFile
from minigpt.tokenizer.tokenizer import Tokenizer

# Files that say nothing of their model: it is called after their folder.
_NAMELESS = {"model", "pytorch_model", "ckpt", "hparams", "checkpoint"}
_SOURCE = "source"  # in the metadata of imported weights: which of the hub's they are


@dataclass(frozen=True)
class Verification:
    """Whether a model gives the outputs that were published of OpenAI's, with one line per output compared.

    `unknown` is a model of a shape of which no outputs are known.
    """

    status: Literal["verified", "differs", "unknown"]
    details: tuple[str, ...]


@dataclass(frozen=True)
class Import:
    """What an import brought: the saved checkpoint, where it came from, what was assumed, and how it checked out.

    On a CPU the checkpoint's weights are mapped from the source where that holds them in float32: for running, not for
    training.
    """

    checkpoint: Checkpoint
    source: str
    notes: tuple[str, ...]
    verification: Verification


def load_gpt2(
    model: str | Path | None = None,
    *,
    source: str | Path | None = None,
    revision: str | None = None,
    name: str | None = None,
    checkpoints: str | Path = "checkpoints",
    device: str = "auto",
) -> Checkpoint:
    """The GPT-2 of that name, imported into `checkpoints`: `import_gpt2` without its report, and in memory of its own.

    Raises: CheckpointError, TokenizerError, DeviceError.
    """
    made = import_gpt2(model, source=source, revision=revision, name=name, checkpoints=checkpoints, device=device)
    return load_checkpoint(made.checkpoint.directory, device)


def import_gpt2(
    model: str | Path | None = None,
    *,
    source: str | Path | None = None,
    revision: str | None = None,
    name: str | None = None,
    checkpoints: str | Path = "checkpoints",
    device: str = "auto",
) -> Import:
    """Imports a GPT-2 into `checkpoints/name`, checks it against published outputs, and reports.

    `model` is one of GPT2_NAMES or another name on the hub, downloaded from there at `revision` unless `source`, a
    path of any format or another name on the hub, holds it; or it is such a path itself. It is gpt2 by default, or the
    source's name. `name` is by default the model's, or the path's. An identical import that stands under that name
    already stays as it is; where the hub cannot be asked whether it is identical, its cache is.
    Raises: CheckpointError where the model cannot be had, is not a GPT-2, or something else has the name;
    TokenizerError; DeviceError.
    """
    if "" in (model, source):
        raise CheckpointError(f"model ('') must be {', '.join(GPT2_NAMES)}, the hub's name of another, or a path")
    is_path = model is not None and (isinstance(model, Path) or (model not in GPT2_NAMES and exists(Path(model))))
    if is_path and source is not None:
        raise CheckpointError(f"{model} and {source} are two models, of which one is imported; --name says its name")
    if model is None:
        model = "gpt2" if source is None else source
    if is_path:
        source = model
    wanted = str(model)
    if isinstance(source, str) and is_hub_name(source) and not exists(Path(source)):
        wanted, source = source, None
    if name is not None and (name in ("", ".", "..") or Path(name).name != name):
        raise CheckpointError(f"name ({name!r}) must be a folder's name, without a path; --checkpoints says where")
    target = Path(checkpoints) / (name or _name_of(model))
    if exists(target / TRAINING):
        raise CheckpointError(f"{target} holds a training run, which is never overwritten; choose another --name")
    resolve_device(device)
    if source is not None:
        if revision is not None:
            raise CheckpointError(f"revision ({revision!r}) is of a model on the hub, and {source} is a path")
        origin = Path(source).resolve().name  # the rest of a path may be private, and the card is for publishing
        made = _import(Path(source), origin, target, device, {})
        return replace(made, source=str(source))
    repository = repository_of(wanted)
    try:
        genuine = identity(repository, revision) if exists(target) else None
    except UnreachableError as error:
        return _compare_with_cache(repository, revision, target, device, error)
    if genuine is not None and _stored_source(target) == genuine:
        stands = load_checkpoint(target, device, mapped=True)
        return Import(stands, repository, ("it stands already, as the hub has it",), verify_gpt2(stands.model))
    return _import_downloaded(download(repository, revision), repository, target, device)


def _compare_with_cache(
    repository: str, revision: str | None, target: Path, device: str, unreachable: UnreachableError
) -> Import:
    """What stands, where it is what the hub's cache has.

    Raises: CheckpointError where it is something else, or the cache does not have the model.
    """
    try:
        weights = download(repository, revision, cached=True)
    except UnreachableError:
        raise unreachable from None
    made = _import_downloaded(weights, repository, target, device)
    note = f"the hub cannot be reached ({reason_of(unreachable)}); it stands already, as the hub's cache has it"
    return replace(made, notes=(note, *made.notes))


def _import_downloaded(weights: Path, repository: str, target: Path, device: str) -> Import:
    """Imports the model whose weights lie in the hub's cache."""
    metadata = {_SOURCE: f"{repository}/{weights.name}@{weights.resolve().name}"}
    return _import(weights, repository, target, device, metadata)


def _import(path: Path, origin: str, target: Path, device: str, metadata: dict[str, str]) -> Import:
    """Imports the model at a path into a folder, which keeps what it holds if it holds this very model."""
    foreign = open_imported(path)
    # OpenAI's own are known to have these words: nothing is assumed, and their tokenizer is not downloaded.
    known = (GPT2_WORDS_ASSUMED,) if metadata and is_openai(origin) else ()
    notes = tuple(note for note in foreign.notes if note not in known)
    with contextlib.closing(foreign.tensors):
        model = from_huggingface(foreign.tensors, foreign.config, device=resolve_device(device), mapped=True)
    stands = exists(target)
    if not stands:
        try:
            save_checkpoint(target, model, foreign.tokenizer, metadata=metadata, origin=origin, notes=notes)
        except CheckpointError:  # unless another process has put it there just now
            stands = exists(target / WEIGHTS)
            if not stands:
                raise
    if stands and not _is_same(target, model, foreign.tokenizer):
        raise CheckpointError(f"{target} holds something else; remove it or choose another --name")
    return Import(Checkpoint(target, model, foreign.tokenizer, None), origin, notes, verify_gpt2(model))


def _name_of(model: str | Path) -> str:
    """What an import is called: as on the hub; after its folder, or after its file if that has a telling name."""
    if isinstance(model, str) and not exists(Path(model)):
        return model.rpartition("/")[2]
    path = Path(model).resolve()
    if path.is_dir():
        return path.name
    return path.parent.name if path.name.partition(".")[0] in _NAMELESS else path.stem


def _stored_source(directory: Path) -> str | None:
    """Which of the hub's weights the checkpoint in a directory was imported from, if any."""
    try:
        with TensorFile(directory / WEIGHTS) as file:
            return file.metadata.get(_SOURCE)
    except CheckpointError:
        return None


def _is_same(directory: Path, model: GPT, tokenizer: Tokenizer) -> bool:
    """Whether the checkpoint in a directory is this very one."""
    try:
        stands = load_checkpoint(directory, "cpu", mapped=True)
    except MinigptError:
        return False
    if stands.model.config != model.config or stands.tokenizer.fingerprint != tokenizer.fingerprint:
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
