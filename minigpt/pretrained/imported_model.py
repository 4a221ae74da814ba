"""The result of every importer, its tensors by Hugging Face's names, and checks of its tokenizer against its model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor

from minigpt.config import GPTConfig
from minigpt.errors import CheckpointError
from minigpt.storage.huggingface import StoredTensor, stored_tensors
from minigpt.storage.tensors import LazyTensor, TensorSource
from minigpt.tokenizer.display import token_label
from minigpt.tokenizer.tokenizer import Tokenizer

_GPT2_TOKENS, _GPT2_PADDED = 50257, 50304  # nanoGPT and others pad GPT-2's vocabulary to a multiple of 64


@dataclass(frozen=True)
class ImportedModel:
    """A model of another program, opened; its tensors are not read yet.

    `tensors` has Hugging Face's names and orientation, whatever the format, so that one function builds every model.
    `notes` are sentences for the user: what was assumed, skipped or converted. `scales_queries` if the scale of the
    attention is multiplied into the weights of the queries, here or when the file was imported.
    """

    config: GPTConfig
    tensors: TensorSource
    tokenizer: Tokenizer
    notes: tuple[str, ...] = ()
    scales_queries: bool = False


def _nothing(_: Path) -> Path | None:
    return None


@dataclass(frozen=True, kw_only=True)
class WeightReader:
    """Reads the models of one format, or of several (the seam `weight_reader`).

    `matches` takes a path, of a file with its first 8 bytes. `read` opens what matches; it takes whether the tokenizer
    of a Hugging Face folder is not read (`ImportedModel` then has one of ids only).

    A folder is opened by the first of these: a file of `hub_files`, by which also a model on the hub is opened; the
    path that `find` gives; the only file of a pattern of `single_files`. `folders` and `files` tell what is read.
    """

    matches: Callable[[Path, bytes], bool]
    read: Callable[[Path, bool], ImportedModel]
    hub_files: tuple[str, ...] = ()
    find: Callable[[Path], Path | None] = _nothing
    single_files: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


def lazy_tensors(
    config: GPTConfig, names: Mapping[str, str], read: Callable[[str, bool], Tensor], *, transposes: bool = False
) -> dict[str, LazyTensor]:
    """The tensors with these names in a file, which `read` reads; it also gets whether it may use a buffer again.

    `transposes` if the matrices are torch's, (out, in), not Hugging Face's, (in, out).
    """
    return {
        stored.stored_name: LazyTensor.shaped(
            partial(read, names[stored.stored_name]),
            shape_in_file(stored, transposes),
            transposed=transposes and stored.transposed,
        )
        for stored in stored_tensors(config)
    }


def shape_in_file(stored: StoredTensor, transposes: bool) -> tuple[int, ...]:
    """The shape of a tensor in a file; `transposes` as in `lazy_tensors`."""
    return stored.shape[::-1] if transposes and stored.transposed else stored.shape


def may_use_gpt2_vocabulary(config: GPTConfig) -> bool:
    """Whether a model without a tokenizer has GPT-2's vocabulary size, padded or not."""
    return _GPT2_TOKENS <= config.vocab_size <= _GPT2_PADDED


def tokenizer_notes(tokenizer: Tokenizer) -> list[str]:
    """Notes for the user if several tokens end a text, or texts do not become tokens and text again as GPT-2's do."""
    notes = []
    if len(tokenizer.end_ids) > 1:
        ends = ", ".join(f"{id} ({token_label(tokenizer, id)})" for id in tokenizer.end_ids)
        notes.append(f"a generated text ends at any of these tokens: {ends}")
    names = {id: name for name, id in tokenizer.special.items()}
    before = "".join(names[id] for id in tokenizer.prefix_ids)
    begins = f"{before} begins every prompt, as in transformers"
    if program := tokenizer.program:
        lost = "; ".join(tokenizer.losses() or ["it keeps every character"])
        start = begins if before else f"an empty prompt becomes {names[tokenizer.start_of_text]}"
        ends = f"{names[tokenizer.end_of_text]} ends a text"
        notes.append(f"the tokenizer ({tokenizer.name}) is run by {program}: {lost}; {start}, and {ends}")
    elif before:
        notes.append(f"{begins} (the tokenizer's post_processor or add_bos_token)")
    return notes


def check_vocabulary(tokenizer: Tokenizer, config: GPTConfig, source: object) -> list[str]:
    """Notes for the user if the model has more embeddings than the tokenizer has tokens; `source` is for errors.

    Raises: CheckpointError if it has fewer.
    """
    tokens, rows = tokenizer.vocab_size, config.vocab_size
    if tokens > rows:
        raise CheckpointError(
            f"{source} has a model of {rows} tokens, but its tokenizer ({tokenizer.name}) has {tokens};"
            " they do not belong together"
        )
    if tokens < rows - 1:
        return [f"ids {tokens} to {rows - 1} have no token and are never generated"]
    return [f"the id {tokens} has no token and is never generated"] if tokens < rows else []
