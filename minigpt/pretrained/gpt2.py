"""Imports a GPT-2 from the hub, or from files of any format, as a checkpoint."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from minigpt.config import PRESETS
from minigpt.device import resolve_device
from minigpt.errors import CheckpointError, MinigptError
from minigpt.model.gpt import GPT
from minigpt.model.nonfinite import nonfinite_parameter
from minigpt.pretrained.hub import (
    GPT2_NAMES,
    UnreachableError,
    commit_on_hub,
    download,
    failure_reason,
    is_hub_name,
    is_openai,
    repository_of,
)
from minigpt.pretrained.huggingface import GPT2_VOCABULARY_ASSUMED, SCALED_QUERIES
from minigpt.pretrained.open_model import open_model
from minigpt.storage.checkpoint import TRAINING, WEIGHTS, Checkpoint, load_checkpoint, save_checkpoint
from minigpt.storage.files import exists
from minigpt.storage.huggingface import from_huggingface
from minigpt.storage.tensors import TensorFile
from minigpt.tokenizer.files import is_ids_only
from minigpt.tokenizer.tokenizer import Tokenizer

# File names that are the same for every model: such a model is named after its folder.
_GENERIC_NAMES = {"model", "pytorch_model", "ckpt", "hparams", "checkpoint"}
_SOURCE = "source"  # key in the metadata of imported weights: the hub's repository and its commit


@dataclass(frozen=True)
class Verification:
    """Whether a model gives the published outputs of OpenAI's GPT-2, with one line per compared output.

    The status is `unknown` for a shape without published outputs.
    """

    status: Literal["verified", "differs", "unknown"]
    details: tuple[str, ...]


# Published outputs of OpenAI's 124M GPT-2 in float32: a prompt's ids and its greedy continuation.
_GREEDY = (
    # transformers, tests/models/gpt2/test_modeling_gpt2.py: "The dog" to 20 tokens in all
    ((464, 3290), (373, 1043, 287, 257, 2214, 1474, 262, 16246, 286, 2688, 290, 2688, 27262, 13, 198, 198, 464, 3290)),
    # CTranslate2, python/tests/test_transformers.py: end of text, then "\nThe first time I saw the new version of"
    ((50256,), (198, 464, 717, 640, 314, 2497, 262, 649, 2196, 286)),
)
# rust-bert, tests/gpt2.rs: the next token after "One two three four" is " five", with this logit
_COUNTING, _FIVE, _FIVE_LOGIT, _TOLERANCE = (3198, 734, 1115, 1440), 1936, -69.4948, 1e-3


@torch.no_grad()
def verify_gpt2(model: GPT) -> Verification:
    """Compares a model of the 124M shape with the published outputs of OpenAI's, in float32."""
    if model.config.replace(dropout=0.0) != PRESETS["gpt2"]:
        return Verification("unknown", ("there are no published outputs to compare with for a model of this shape",))
    logits = _logits(model, _COUNTING)[-1]  # (V,)
    token, logit = int(logits.argmax()), float(logits[_FIVE])
    same = token == _FIVE and abs(logit - _FIVE_LOGIT) <= _TOLERANCE
    details = [f"next token {token}, logit of {_FIVE} {logit:.4f} (published: {_FIVE}, {_FIVE_LOGIT})"]
    for prompt, published in _GREEDY:
        chosen = _logits(model, prompt + published)[len(prompt) - 1 : -1].argmax(-1).tolist()
        pairs = enumerate(zip(chosen, published, strict=True))
        equal = next((index for index, pair in pairs if pair[0] != pair[1]), len(published))
        same = same and equal == len(published)
        details.append(f"greedy after {list(prompt)}: the first {equal} of {len(published)} tokens as published")
    if not same:
        details.append(
            "so these are not OpenAI's float32 weights: they may be fine-tuned, or rounded to half precision"
        )
    return Verification("verified" if same else "differs", tuple(details))


def _logits(model: GPT, ids: tuple[int, ...]) -> torch.Tensor:
    """The logits after each id: (T, V)."""
    return model(torch.tensor([ids], device=model.token_embedding.weight.device))[0]


@dataclass(frozen=True)
class ImportResult:
    """The saved checkpoint, its source, notes on what was assumed, and the comparison with published outputs.

    On a CPU the checkpoint's float32 weights are memory-mapped from the source, so they must not be trained.
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
    tokenizer: str | None = None,
) -> Checkpoint:
    """Imports a GPT-2 into `checkpoints`, as `import_gpt2` does, and loads it into memory.

    Raises: CheckpointError, TokenizerError, DeviceError.
    """
    result = import_gpt2(model, source=source, revision=revision, name=name, checkpoints=checkpoints, device=device,
                         tokenizer=tokenizer)  # fmt: skip
    return load_checkpoint(result.checkpoint.directory, device)


def import_gpt2(
    model: str | Path | None = None,
    *,
    source: str | Path | None = None,
    revision: str | None = None,
    name: str | None = None,
    checkpoints: str | Path = "checkpoints",
    device: str = "auto",
    tokenizer: str | None = None,
) -> ImportResult:
    """Imports a GPT-2 into `checkpoints/name` and checks it against published outputs.

    `model` is one of GPT2_NAMES, another name on the hub, or a path of any format; by default `source`, else gpt2.
    `source` is a path or another name on the hub to read the model from; by default it is downloaded at `revision`.
    `name` is by default that of the model or the path. With the `tokenizer` "none", texts are token ids, for a model
    whose tokenizer is missing or not supported. If an identical import exists under that name, it is kept. If
    the hub cannot be reached to compare them, the hub's local cache is used.
    Raises: CheckpointError if the model cannot be downloaded or read, is not a GPT-2, or the name is taken by something
    else; TokenizerError; DeviceError.
    """
    if tokenizer not in (None, "none"):
        raise CheckpointError(f"tokenizer ({tokenizer!r}) must be none: the model's own is used, or none at all")
    ids_only = tokenizer is not None
    model, path, hub_name = _resolve_source(model, source)
    name = _name_of(model) if name is None else name
    if name in ("", ".", "..") or Path(name).name != name:
        raise CheckpointError(
            f"name ({name!r}) must be the name of a folder, not a path; --checkpoints sets the folder it is in"
        )
    target = Path(checkpoints) / name
    if exists(target / TRAINING):
        raise CheckpointError(f"{target} is a training run, which is never overwritten; choose another --name")
    resolve_device(device)
    if path is not None:
        if revision is not None:
            raise CheckpointError(
                f"revision ({revision!r}) needs a model on the hub, but {path} is a path; omit the revision"
            )
        origin = path.resolve().name  # the model card is published, and the rest of the path may be private
        return replace(_import(path, origin, target, device, {}, ids_only), source=str(path))
    repository = repository_of(hub_name)
    try:
        commit = commit_on_hub(repository, revision) if exists(target) else None
    except UnreachableError as error:
        return _import_from_cache(repository, revision, target, device, error, ids_only)
    stored = _stored_source(target)
    if commit is not None and stored == _source(repository, commit) and is_ids_only(target) == ids_only:
        existing = load_checkpoint(target, device, mapped=True)
        note = "already imported; the hub has the same version"
        return ImportResult(existing, repository, (note,), verify_gpt2(existing.model))
    return _import_downloaded(download(repository, revision), repository, target, device, ids_only)


def _resolve_source(model: str | Path | None, source: str | Path | None) -> tuple[str | Path, Path | None, str]:
    """The model that names the import, the path to read it from (None for the hub), and its name on the hub."""
    if "" in (model, source):
        raise CheckpointError(f"model ('') must be {', '.join(GPT2_NAMES)}, another name on the hub, or a path")
    if model is not None and (isinstance(model, Path) or (model not in GPT2_NAMES and exists(Path(model)))):
        if source is not None:
            raise CheckpointError(
                f"{model} and {source} are two models, but only one can be imported; --name sets its name"
            )
        return model, Path(model), ""
    model = model or source or "gpt2"
    if source is None:
        return model, None, str(model)
    if isinstance(source, str) and is_hub_name(source) and not exists(Path(source)):
        return model, None, source
    return model, Path(source), ""


def _import_from_cache(
    repository: str,
    revision: str | None,
    target: Path,
    device: str,
    unreachable: UnreachableError,
    ids_only: bool,
) -> ImportResult:
    """The existing import, if the hub's local cache has the same model."""
    try:
        weights = download(repository, revision, cached=True)
    except UnreachableError:
        raise unreachable from None
    result = _import_downloaded(weights, repository, target, device, ids_only)
    reason = failure_reason(unreachable)
    note = f"the hub cannot be reached ({reason}); already imported, and the hub's cache has the same model"
    return replace(result, notes=(note, *result.notes))


def _import_downloaded(weights: Path, repository: str, target: Path, device: str, ids_only: bool) -> ImportResult:
    """Imports the model whose weights are in the hub's cache."""
    metadata = {_SOURCE: _source(repository, weights.parent.name)}
    return _import(weights, repository, target, device, metadata, ids_only)


def _source(repository: str, commit: str) -> str:
    return f"{repository}@{commit}"


def _import(
    path: Path, origin: str, target: Path, device: str, metadata: dict[str, str], ids_only: bool
) -> ImportResult:
    """Imports the model at a path into a folder, unless the folder already holds the same model."""
    imported = open_model(path, ids_only=ids_only)
    # OpenAI's models are known to have GPT-2's vocabulary, so their tokenizer is neither downloaded nor assumed.
    known = (GPT2_VOCABULARY_ASSUMED,) if metadata and is_openai(origin) else ()
    notes = tuple(note for note in imported.notes if note not in known)
    if imported.scales_queries:
        metadata = metadata | {SCALED_QUERIES: "true"}
    with imported.tensors:
        model = from_huggingface(imported.tensors, imported.config, device=resolve_device(device), mapped=True)
    if (nonfinite := nonfinite_parameter(model)) is not None:
        raise CheckpointError(f"{path} has weights that are NaN or infinite, so its training diverged: {nonfinite}")
    already_there = exists(target)
    if not already_there:
        try:
            save_checkpoint(target, model, imported.tokenizer, metadata=metadata, origin=origin, notes=notes)
        except CheckpointError:
            already_there = exists(target / WEIGHTS)  # saved by another process in the meantime
            if not already_there:
                raise
    if already_there and not _is_same(target, model, imported.tokenizer):
        raise CheckpointError(f"{target} holds something else; remove it or choose another --name")
    return ImportResult(Checkpoint(target, model, imported.tokenizer), origin, notes, verify_gpt2(model))


def _name_of(model: str | Path) -> str:
    """The name of an import: that on the hub, or of its file, or of its folder if the file's name is generic."""
    if isinstance(model, str) and not exists(Path(model)):
        return model.rpartition("/")[2]
    path = Path(model).resolve()
    if path.is_dir():
        return path.name
    is_generic = path.name.partition(".")[0] in _GENERIC_NAMES
    return (is_generic and path.parent.name) or path.stem


def _stored_source(directory: Path) -> str | None:
    """The repository on the hub and its commit that a checkpoint was imported from, if any."""
    try:
        with TensorFile(directory / WEIGHTS) as file:
            return file.metadata.get(_SOURCE)
    except CheckpointError:
        return None


def hub_name(directory: Path) -> str | None:
    """The name on the hub of the model that was imported into a folder; None for another model."""
    source = _stored_source(directory)
    return None if source is None else source.rpartition("@")[0]


def _is_same(directory: Path, model: GPT, tokenizer: Tokenizer) -> bool:
    """Whether the checkpoint in a directory has the same model and tokenizer."""
    try:
        existing = load_checkpoint(directory, "cpu", mapped=True)
    except MinigptError:
        return False
    if existing.model.config != model.config:
        return False
    theirs, ours = ((each.fingerprint, each.end_ids) for each in (existing.tokenizer, tokenizer))
    if theirs != ours:
        return False
    state = model.state_dict()
    return all(torch.equal(tensor, state[name].cpu()) for name, tensor in existing.model.state_dict().items())
