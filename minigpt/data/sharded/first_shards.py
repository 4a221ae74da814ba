"""What is decided from the first shards of a text: its size, what is held out, and the tokens of its vocabulary."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from decimal import ROUND_DOWN, Context
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from minigpt.data.corpus_cache import TRAINING_SAMPLE, cache_key, trained_tokenizer
from minigpt.data.records import json_form
from minigpt.data.sharded.mixture import Mixture
from minigpt.data.sharded.segments import cut, documents, identity
from minigpt.data.sharded.store import FORMAT, SHARD_BYTES, Shard, Store
from minigpt.data.sharded.tokenize import document_ends
from minigpt.data.sharded.workers import FIRST
from minigpt.data.shards import token_type
from minigpt.data.source_files import SourceFile
from minigpt.data.split import DEFAULT_FRACTION, ENOUGH_BYTES
from minigpt.errors import ConfigError, DataError
from minigpt.seeds import mix_seed
from minigpt.tokenizer.tokenizer import Tokenizer

_MOST_HELD_OUT = 0.5  # of the shards of a text that are read


def totals(mixture: Mixture, tokenizer: Tokenizer) -> tuple[int, int, int]:
    """About how many tokens, bytes and documents there are without duplicates, from the complete shards; exact if all
    are complete.

    Raises: DataError if there is no text.
    """
    counts = np.zeros(3)
    for number, store in enumerate(mixture.stores):
        known = [each for each in mixture.shards(number) if each is not None]
        if not known:
            names = ", ".join(file.name for file in store.files[:3])
            contain = "contains" if len(store.files) == 1 else "contain"
            raise DataError(f"{names} {contain} no text; give a file with text")
        sizes = [(shard, np.array(_kept_size(store, shard, mask, tokenizer))) for shard, mask in known]
        own = sum(size for _, size in sizes)
        done = [index for index in range(len(store.segments)) if store.count_of(index) is not None]
        if len(done) == len(store.segments):
            counts += own
            continue
        complete = [(shard, size) for shard, size in sizes if shard.segment in done]
        if complete:
            of_done = sum(store.segments[index].size for index in {shard.segment for shard, _ in complete})
            counts += sum(size for _, size in complete) * sum(each.size for each in store.segments) / of_done
        else:
            counts += own * max(1.0, store.text_bytes / sum(shard.text_bytes for shard, _ in known))
    tokens, text_bytes, n_documents = counts.tolist()
    return int(tokens), int(text_bytes), int(n_documents)


def _kept_size(store: Store, shard: Shard, mask: npt.NDArray[np.bool_], tokenizer: Tokenizer) -> tuple[int, int, int]:
    """The tokens, bytes and number of the documents of a shard that are kept."""
    if mask.all():
        return shard.tokens, shard.text_bytes, shard.documents
    tokens = store.read_tokens(shard, tokenizer.vocab_size)
    lengths = np.diff(document_ends(tokens, tokenizer.end_of_text), prepend=0)  # (documents,)
    kept = tokens[np.repeat(mask, lengths)]
    return len(kept), int(tokenizer.token_lengths[kept].sum()), int(mask.sum())


class HeldOut(NamedTuple):
    """The documents held out of each text's shards by name, their tokens, and those of others of the same shards."""

    held_out_documents: list[dict[str, list[int]]]
    validation: npt.NDArray[Any]
    train: npt.NDArray[Any]


class _Read(NamedTuple):
    """A shard that was read: its tokens, (N,), and for each document whether it is kept and its length in tokens."""

    shard: Shard
    tokens: npt.NDArray[Any]
    mask: npt.NDArray[np.bool_]
    lengths: npt.NDArray[np.int64]


def hold_out(mixture: Mixture, tokenizer: Tokenizer, text_bytes: int, fraction: float | None) -> HeldOut:
    """Chooses random documents of the first FIRST shards of each text, in proportion to the weights.

    A shard is a part of one file or of several that follow one another, so it may be all of one kind. Of a text's other
    documents about one full shard is kept, as much of each.

    Raises: ConfigError for a fraction that would need more than half of these shards.
    """
    shares = [weight / sum(mixture.weights) for weight in mixture.weights]
    known = [list(islice(filter(None, mixture.shards(number)), FIRST)) for number in range(len(shares))]
    if fraction is not None:
        sizes = [sum(shard.text_bytes for shard, _ in shards) for shards in known]
        most = min(_MOST_HELD_OUT * size / share / text_bytes for size, share in zip(sizes, shares, strict=True))
        if fraction > most:
            raise ConfigError(
                f"validation_fraction ({fraction:g}) is more than half of the first shards of the text; give at most "
                f"{_rounded_down(most)}, or --shards off"
            )
    wanted = min(DEFAULT_FRACTION * text_bytes, ENOUGH_BYTES) if fraction is None else fraction * text_bytes
    dtype = token_type(tokenizer.vocab_size)
    held_out_documents: list[dict[str, list[int]]] = []
    validation: list[npt.NDArray[Any]] = [np.empty(0, dtype)]
    train: list[npt.NDArray[Any]] = [np.empty(0, dtype)]
    for number, (store, shards, share) in enumerate(zip(mixture.stores, known, shares, strict=True)):
        chosen = {}
        sampled = min(1.0, store.shard_bytes / max(1, sum(shard.text_bytes for shard, _ in shards)))
        for each, is_chosen in _choose_documents(store, shards, wanted * share, tokenizer, number):
            if is_chosen.any():
                chosen[each.shard.name] = np.flatnonzero(is_chosen).tolist()
            validation.append(each.tokens[np.repeat(is_chosen, each.lengths)])
            others = each.mask & ~is_chosen
            others &= others.cumsum() <= math.ceil(sampled * others.sum())
            train.append(each.tokens[np.repeat(others, each.lengths)])
        held_out_documents.append(chosen)
    return HeldOut(held_out_documents, np.concatenate(validation), np.concatenate(train))


def _rounded_down(value: float) -> str:
    """A number to two significant digits that is not above the value, so that it is accepted as the fraction."""
    return f"{float(Context(prec=2, rounding=ROUND_DOWN).create_decimal_from_float(value)):g}"


def _choose_documents(
    store: Store, shards: Sequence[tuple[Shard, npt.NDArray[np.bool_]]], wanted: float, tokenizer: Tokenizer, seed: int
) -> Iterator[tuple[_Read, npt.NDArray[np.bool_]]]:
    """The shards, and which of their documents are chosen, of so many bytes in all."""
    read: list[_Read] = []
    for shard, kept in shards:
        tokens = store.read_tokens(shard, tokenizer.vocab_size)
        lengths = np.diff(document_ends(tokens, tokenizer.end_of_text), prepend=0)
        read.append(_Read(shard, tokens, kept, lengths))
    mask = np.concatenate([each.mask for each in read])
    sizes = np.concatenate([each.lengths * (each.shard.text_bytes / max(1, each.lengths.sum())) for each in read])
    is_chosen = _choose(mask, sizes, wanted, seed)
    return zip(read, np.split(is_chosen, np.cumsum([len(each.mask) for each in read])[:-1]), strict=True)


def _choose(
    mask: npt.NDArray[np.bool_], sizes: npt.NDArray[np.float64], wanted: float, seed: int
) -> npt.NDArray[np.bool_]:
    """Random documents of about so many bytes, at most half of all. Shapes: (documents,) each."""
    candidates = np.flatnonzero(mask)
    generator = torch.Generator().manual_seed(mix_seed(seed))
    order = candidates[torch.randperm(len(candidates), generator=generator).numpy()]
    taken = np.cumsum(sizes[order])
    wanted = min(wanted, _MOST_HELD_OUT * sizes.sum())
    count = min(int(np.searchsorted(taken, wanted)) + (wanted > 0), len(order) // 2)
    is_chosen = np.zeros(len(mask), bool)
    is_chosen[order[:count]] = True
    return is_chosen


def sample_tokenizer(
    spec: str, texts: Sequence[Sequence[SourceFile]], weights: Sequence[float], text_key: str, root: Path
) -> Tokenizer:
    """The tokenizer with this name; `chars` and `bpe:N` are trained on 50 MB of random parts of the texts, and cached.

    Raises: TokenizerError for an unknown name; DataError; OSError.
    """
    if spec in ("gpt2", "bytes"):
        return Tokenizer.named(spec)
    content = [
        [[*identity(file), json_form(file, text_key) is not None, file.is_parquet, *file.decoding] for file in files]
        for files in texts
    ]
    key = cache_key("sample", FORMAT, spec, content, list(weights), text_key)
    return trained_tokenizer(root / "tokenizers" / key[:32], spec, _sample(texts, weights, text_key, key))


def _sample(texts: Sequence[Sequence[SourceFile]], weights: Sequence[float], text_key: str, key: str) -> Iterator[str]:
    for files, weight in zip(texts, weights, strict=True):
        left = TRAINING_SAMPLE * weight / sum(weights)
        segments = cut(files, text_key, SHARD_BYTES // 4)
        for segment in sorted(segments, key=lambda each: hashlib.sha256(f"{key} {each}".encode()).digest()):
            for text, _ in documents(files, segment, text_key):
                yield text
                left -= len(text)
                if left <= 0:
                    break
            if left <= 0:
                break
