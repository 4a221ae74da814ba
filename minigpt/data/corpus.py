"""The corpus: a text as memory-mapped training and validation tokens, cached by its content."""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from torch import Tensor

from minigpt.bounded_reading import read_json_value
from minigpt.data import batches
from minigpt.data.shards import Progress, chunks, shard_path, token_type, write_shards
from minigpt.data.sources import Scan, scan
from minigpt.data.split import Part, ValidationSplit
from minigpt.errors import DataError, MinigptError, TokenizerError
from minigpt.seeds import mix_seed
from minigpt.tokenizer.bpe_dropout import BPEDropout
from minigpt.tokenizer.tokenizer import Tokenizer, requested_vocab_size
from minigpt.tokenizer.vocabulary import END_OF_TEXT

_FORMAT = 1  # of the cached files; increase it when they or the validation split change, to rebuild every cache
_SPARE = 8  # tokens read after a window for BPE-dropout, which may give fewer tokens
_VERIFIED_AT_ONCE = 2**21  # tokens
_TRAINING_SAMPLE = 50_000_000  # bytes of text that a tokenizer is trained on
_TRAINING_CHUNK = 2**16  # characters; Hugging Face's trainer uses a hundred times the memory of each text


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """A tokenized text, in which every document and every part of one ends with an end-of-text token.

    `train` and `validation` are memory-mapped arrays of ids, (N,) each; `validation` may be empty. Two corpora have the
    same `fingerprint` exactly if they have the same arrays. Byte counts are those of the text in UTF-8. `damaged_cache`
    is the folder whose tokens were damaged, so that the text was tokenized again; None otherwise.
    """

    path: Path
    tokenizer: Tokenizer
    train: npt.NDArray[Any]
    validation: npt.NDArray[Any]
    train_bytes: int
    validation_bytes: int
    n_documents: int
    held_out: str  # what the validation part is, as printed: "the end of each document"
    validation_fraction: float
    sources: tuple[str, ...]
    skipped: tuple[str, ...]
    source_hash: str
    fingerprint: str
    damaged_cache: Path | None = None

    @classmethod
    def build(
        cls,
        sources: str | Path | Sequence[str | Path] | Scan,
        tokenizer: Tokenizer | str,
        *,
        cache: str | Path | None = None,
        text_key: str = "text",
        encoding_errors: str = "strict",
        validation_fraction: float | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Tokenizes these sources, or opens the cached corpus if the same text was tokenized in the same way before.

        A tokenizer given as `chars` or `bpe:N` is trained on the training part. A Scan has its own `text_key` and
        `encoding_errors`, which replace the arguments. `progress` is called with the bytes done and the bytes in total.
        The cache is in `$MINIGPT_CACHE`, by default in the user's cache folder.

        Raises: DataError for sources as `scan` does, and for a cache that cannot be written; TokenizerError for an
        unknown tokenizer; ConfigError for settings out of bounds.
        """
        if isinstance(tokenizer, str):
            requested_vocab_size(tokenizer)  # reports a wrong name before a long scan
        if not isinstance(sources, Scan):
            sources = scan(sources, text_key=text_key, encoding_errors=encoding_errors)
        split = ValidationSplit.plan(sources, validation_fraction)
        root = _cache_root(cache)
        counter = _ProgressCounter(progress, sources.text_bytes)
        try:
            if isinstance(tokenizer, str):
                tokenizer = _resolve_tokenizer(tokenizer, sources, split, root, counter)
            fingerprint = _hash(sources.content_hash, tokenizer.fingerprint, split.fraction, split.every)
            folder = root / "corpora" / fingerprint[:32]
            damaged = None
            try:
                corpus = cls.load(folder)
            except DataError:
                damaged = folder if folder.exists() else None
                _write(folder, sources, tokenizer, split, fingerprint, counter)
                corpus = cls._open(folder, tokenizer)
        except OSError as error:
            raise DataError(
                f"the tokens cannot be written to {root} ({(error.strerror or str(error)).lower()}); "
                "free some space there or set MINIGPT_CACHE to another folder"
            ) from error
        # The cached text may have come from other files.
        names = tuple(file.name for file in sources.files)
        return replace(corpus, sources=names, skipped=sources.skipped, damaged_cache=damaged)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Opens the corpus that `build` wrote to this `path`.

        The tokens are compared with their recorded hash, at about a gigabyte a second.

        Raises: DataError if there is none, or it is damaged.
        """
        return cls._open(Path(path), None)

    @classmethod
    def _open(cls, folder: Path, tokenizer: Tokenizer | None) -> Self:
        """Like `load`; `tokenizer` is the one in the folder, if it is loaded already."""
        try:
            record = read_json_value(folder / "corpus.json")
            if record.pop("format") != _FORMAT:
                raise ValueError("another format")
            tokenizer = tokenizer or Tokenizer.load(folder)
            hashes = record.pop("token_hashes", {})  # which earlier versions did not write
            return cls(
                path=folder,
                tokenizer=tokenizer,
                train=_map_tokens(folder, "train", tokenizer, record.pop("train_tokens"), hashes),
                validation=_map_tokens(folder, "validation", tokenizer, record.pop("validation_tokens"), hashes),
                sources=tuple(record.pop("sources")),
                skipped=tuple(record.pop("skipped")),
                **record,
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{folder} is not a complete corpus; build it again from its text") from error

    def batch(
        self,
        step: int,
        size: int,
        length: int,
        seed: int,
        rows: slice | range | None = None,
        noise: float = 0.0,
        bpe_dropout: float = 0.0,
    ) -> tuple[Tensor, Tensor]:
        """One step's inputs and targets from the training part, as from `minigpt.data.batches.batch`.

        `bpe_dropout` is the probability to drop a merge; a window may then end before its last tokens, which other
        epochs include. `noise` is the probability that an input token, but not its target, is replaced by a random one.
        Both are pure functions of the seed, the step and the row.
        Shapes: (B, T) int64 each.
        Raises: TokenizerError for `bpe_dropout` with a tokenizer without merges.
        """
        if bpe_dropout:
            spare = _SPARE + length // 8  # it is rare that a pre-token has fewer tokens than before
            sequences = batches.windows(self.train, step, size, length, seed, rows, lookahead=1 + spare)
            first = np.uint64(mix_seed(seed, step))
            seeds = first + np.array(batches.select_rows(size, rows), dtype=np.uint64)
            sequences = self.bpe_dropout(sequences, seeds, bpe_dropout, length + 1)
        else:
            sequences = batches.windows(self.train, step, size, length, seed, rows)
        inputs, targets = batches.inputs_and_targets(sequences)
        if noise:
            inputs = batches.add_noise(inputs, noise, self.tokenizer.vocab_size, step, size, seed, rows)
        return inputs, targets

    @cached_property
    def bpe_dropout(self) -> BPEDropout:
        """BPE-dropout for this corpus's tokenizer.

        Raises: TokenizerError for a tokenizer without merges.
        """
        return BPEDropout(self.tokenizer)


class _ProgressCounter:
    """Sums the bytes done and passes them to a progress callback."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.progress, self.done, self.total = progress, 0, total

    def advance(self, text_bytes: int) -> None:
        self.done += text_bytes
        if self.progress:
            self.progress(self.done, self.total)


def _cache_root(cache: str | Path | None) -> Path:
    if cache or os.environ.get("MINIGPT_CACHE"):
        return Path(cache or os.environ["MINIGPT_CACHE"]).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "minigpt"


def _hash(*parts: object) -> str:
    return hashlib.sha256(json.dumps([_FORMAT, *parts]).encode()).hexdigest()


def _map_tokens(
    folder: Path, part: Part, tokenizer: Tokenizer, count: int, hashes: Mapping[str, str]
) -> npt.NDArray[Any]:
    """The memory-mapped tokens of one part; ValueError if they are not those that were written."""
    path, dtype = shard_path(folder, part), token_type(tokenizer.vocab_size)
    if path.stat().st_size != count * dtype.itemsize:
        raise ValueError(f"{path} is damaged")
    if not count:  # an empty file cannot be mapped
        return np.empty(0, dtype)
    tokens: npt.NDArray[Any] = np.memmap(path, dtype=dtype, mode="r")
    token_hash = hashlib.sha256()
    for start in range(0, count, _VERIFIED_AT_ONCE):
        block = tokens[start : start + _VERIFIED_AT_ONCE]
        if block.max() >= tokenizer.vocab_size:
            raise ValueError(f"{path} is damaged")
        token_hash.update(block.data)
    if hashes.get(part, token_hash.hexdigest()) != token_hash.hexdigest():
        raise ValueError(f"{path} is damaged")
    return tokens


def _resolve_tokenizer(
    spec: str, scanned: Scan, split: ValidationSplit, root: Path, counter: _ProgressCounter
) -> Tokenizer:
    """The tokenizer with this name; `chars` and `bpe:N` are trained on the training part and cached."""
    if spec in ("gpt2", "bytes"):
        return Tokenizer.named(spec)
    folder = root / "tokenizers" / _hash(scanned.content_hash, spec, split.fraction, split.every)[:32]
    try:
        return Tokenizer.load(folder)
    except TokenizerError:
        counter.total += scanned.text_bytes
        tokenizer = Tokenizer.train(_training_texts(spec, scanned, split, counter), spec)
        with _publish(folder, Tokenizer.load) as temporary:
            tokenizer.save(temporary)
        return tokenizer


def _training_texts(spec: str, scanned: Scan, split: ValidationSplit, counter: _ProgressCounter) -> Iterator[str]:
    """The text to train a tokenizer on: the training part for `chars`, else an evenly spread sample of at most about
    _TRAINING_SAMPLE bytes.
    """
    share = 1.0 if spec == "chars" else min(1.0, _TRAINING_SAMPLE / scanned.text_bytes)
    taken = 0.0
    for part, text in chunks(split.apply(scanned.pieces()), _TRAINING_CHUNK):
        documents = text.split(END_OF_TEXT)
        if part == "train":
            taken += share
            if taken >= 1:
                taken -= 1
                yield from documents
        counter.advance(sum(len(document.encode()) for document in documents))


def _write(
    folder: Path,
    scanned: Scan,
    tokenizer: Tokenizer,
    split: ValidationSplit,
    fingerprint: str,
    counter: _ProgressCounter,
) -> None:
    """Tokenizes the text into a folder, which exists only when it is complete."""
    with _publish(folder, Corpus.load) as temporary:
        shards = write_shards(split.apply(scanned.pieces()), tokenizer, temporary, counter.advance)
        train, validation = shards["train"], shards["validation"]
        if train.text_bytes + validation.text_bytes != scanned.text_bytes:
            raise DataError(f"{scanned.files[0].name} or another file changed while it was read; run the command again")
        record = {
            "format": _FORMAT,
            "train_tokens": train.tokens,
            "validation_tokens": validation.tokens,
            "train_bytes": train.text_bytes,
            "validation_bytes": validation.text_bytes,
            "n_documents": scanned.n_documents,
            "held_out": split.description if validation.tokens else "nothing",
            "validation_fraction": split.fraction,
            "sources": [file.name for file in scanned.files],
            "skipped": scanned.skipped,
            "source_hash": scanned.content_hash,
            "fingerprint": fingerprint,
            "token_hashes": {part: shard.token_hash for part, shard in shards.items()},
        }
        tokenizer.save(temporary)
        (temporary / "corpus.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


@contextlib.contextmanager
def _publish(folder: Path, load: Callable[[Path], object]) -> Iterator[Path]:
    """A temporary folder that is renamed to `folder` on success and deleted on an error.

    A `folder` that `load` can read is kept: another process wrote the same content in the meantime.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=folder.parent, ignore_cleanup_errors=True) as scratch:
        new = Path(scratch, "new")
        new.mkdir()
        yield new
        try:
            load(folder)
        except MinigptError:
            with contextlib.suppress(FileNotFoundError):
                folder.rename(Path(scratch, "damaged"))
            try:
                new.rename(folder)
            except OSError:
                if not folder.exists():
                    raise
