"""A text as two memory-mapped streams of tokens, one to train on and one held out, cached by what is in it."""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from torch import Tensor

from minigpt.data import batches
from minigpt.data.shards import Progress, chunks, shard_path, token_type, write_shards
from minigpt.data.sources import Scan, scan
from minigpt.data.split import Holdout
from minigpt.errors import DataError, MinigptError, TokenizerError
from minigpt.seeds import mix_seed
from minigpt.tokenizer.bpe_dropout import BPEDropout
from minigpt.tokenizer.tokenizer import Tokenizer, trained_size
from minigpt.tokenizer.vocabulary import END_OF_TEXT

_FORMAT = 1  # of the files below; a change of it, or of how text is divided, makes all that is cached stale
_SPARE = 8  # tokens read beyond a window whose words are cut anew
_TRAINING_SAMPLE = 50_000_000  # bytes of text that merges are learnt from
_TRAINING_CHUNK = 2**16  # characters; Hugging Face's trainer needs a hundred times the memory of each text


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """A tokenized text; every document, and every part of one, ends with the end of text.

    `train` and `validation` are arrays of ids on disk, (N,) each, and `validation` may be empty. `fingerprint` is the
    same for two corpora exactly when these are. Bytes are those of the text in UTF-8.
    """

    path: Path
    tokenizer: Tokenizer
    train: npt.NDArray[Any]
    validation: npt.NDArray[Any]
    train_bytes: int
    validation_bytes: int
    n_documents: int
    held_out: str  # in words: "the end of each document"
    validation_fraction: float
    sources: tuple[str, ...]
    skipped: tuple[str, ...]
    source_hash: str
    fingerprint: str

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
        """The corpus of these sources, from the cache where the same text was tokenized in the same way before.

        A tokenizer given by name is trained on the training part where it is `chars` or `bpe:N`. A Scan brings its own
        `text_key` and `encoding_errors`. `progress` hears of the bytes done, and of those to do in all. The cache is
        `$MINIGPT_CACHE`, else the user's cache folder.

        Raises: DataError for sources as `scan` does, and for a cache that cannot be written. TokenizerError for an
        unknown tokenizer. ConfigError for settings out of bounds.
        """
        if isinstance(tokenizer, str):
            trained_size(tokenizer)  # a wrong name is said before a long scan
        if not isinstance(sources, Scan):
            sources = scan(sources, text_key=text_key, encoding_errors=encoding_errors)
        holdout = Holdout.plan(sources, validation_fraction)
        root = _cache_root(cache)
        report = _Report(progress, sources.text_bytes)
        try:
            if isinstance(tokenizer, str):
                tokenizer = _resolve_tokenizer(tokenizer, sources, holdout, root, report)
            fingerprint = _hash(sources.content_hash, tokenizer.fingerprint, holdout.fraction, holdout.every)
            folder = root / "corpora" / fingerprint[:32]
            try:
                corpus = cls.load(folder)
            except DataError:
                _write(folder, sources, tokenizer, holdout, fingerprint, report)
                corpus = cls._open(folder, tokenizer)
        except OSError as error:
            raise DataError(
                f"the tokens cannot be kept in {root} ({(error.strerror or str(error)).lower()}); "
                "free some space there or set MINIGPT_CACHE to another folder"
            ) from error
        # The same text may have come from other files when it was cached.
        return replace(corpus, sources=tuple(file.name for file in sources.files), skipped=sources.skipped)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The corpus that `build` left at its `path`.

        Raises: DataError where there is none or it is damaged.
        """
        return cls._open(Path(path), None)

    @classmethod
    def _open(cls, folder: Path, tokenizer: Tokenizer | None) -> Self:
        """As `load`; a tokenizer that has just been written there need not be read again."""
        try:
            record = json.loads((folder / "corpus.json").read_text(encoding="utf-8"))
            if record.pop("format") != _FORMAT:
                raise ValueError("of another version")
            tokenizer = tokenizer or Tokenizer.load(folder)
            return cls(
                path=folder,
                tokenizer=tokenizer,
                train=_map(shard_path(folder, "train"), tokenizer, record.pop("train_tokens")),
                validation=_map(shard_path(folder, "validation"), tokenizer, record.pop("validation_tokens")),
                sources=tuple(record.pop("sources")),
                skipped=tuple(record.pop("skipped")),
                **record,
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{folder} holds no whole corpus; build it again from its text") from error

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
        """One step's inputs and targets from the training part, as `minigpt.data.batches.batch` gives them.

        With `bpe_dropout` the words are cut into other tokens, that share of the merges left out, and a window's last
        words may be left to another epoch; with `noise` a share of the inputs, but of no targets, is random. Both are
        pure functions of the seed, the step and the row.
        Shapes: (B, T) int64 each.
        Raises: TokenizerError for `bpe_dropout` with a tokenizer that merges nothing.
        """
        if bpe_dropout:
            spare = _SPARE + length // 8  # words that come in fewer tokens than before are rare
            sequences = batches.windows(self.train, step, size, length, seed, rows, ahead=1 + spare)
            first = np.uint64(mix_seed(seed, step))
            seeds = first + np.array(batches.picked_rows(size, rows), dtype=np.uint64)
            sequences = self.bpe_dropout(sequences, seeds, bpe_dropout, length + 1)
        else:
            sequences = batches.windows(self.train, step, size, length, seed, rows)
        inputs, targets = batches.inputs_and_targets(sequences)
        if noise:
            inputs = batches.noised(inputs, noise, self.tokenizer.vocab_size, step, size, seed, rows)
        return inputs, targets

    @cached_property
    def bpe_dropout(self) -> BPEDropout:
        """What cuts this corpus's words anew.

        Raises: TokenizerError for a tokenizer that merges nothing.
        """
        return BPEDropout(self.tokenizer)


class _Report:
    """Adds up the bytes done and tells them."""

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


def _map(path: Path, tokenizer: Tokenizer, count: int) -> npt.NDArray[Any]:
    """The tokens in a file, mapped; ValueError where they are not `count`."""
    dtype = token_type(tokenizer.vocab_size)
    if path.stat().st_size != count * dtype.itemsize:
        raise ValueError(f"{path} is damaged")
    return np.memmap(path, dtype=dtype, mode="r") if count else np.empty(0, dtype)  # no system maps an empty file


def _resolve_tokenizer(spec: str, found: Scan, holdout: Holdout, root: Path, report: _Report) -> Tokenizer:
    """The tokenizer of that name, trained on the training part, once, where it is one that is trained."""
    if spec in ("gpt2", "bytes"):
        return Tokenizer.named(spec)
    folder = root / "tokenizers" / _hash(found.content_hash, spec, holdout.fraction, holdout.every)[:32]
    try:
        return Tokenizer.load(folder)
    except TokenizerError:
        report.total += found.text_bytes
        tokenizer = Tokenizer.train(_training_texts(spec, found, holdout, report), spec)
        with _published(folder, Tokenizer.load) as temporary:
            tokenizer.save(temporary)
        return tokenizer


def _training_texts(spec: str, found: Scan, holdout: Holdout, report: _Report) -> Iterator[str]:
    """The training part for `chars`; for merges a sample of at most _TRAINING_SAMPLE bytes, evenly spread over it."""
    share = 1.0 if spec == "chars" else min(1.0, _TRAINING_SAMPLE / found.text_bytes)
    taken = 0.0
    for part, text in chunks(holdout.divide(found.pieces()), _TRAINING_CHUNK):
        documents = text.split(END_OF_TEXT)
        if part == "train":
            taken += share
            if taken >= 1:
                taken -= 1
                yield from documents
        report.advance(sum(len(document.encode()) for document in documents))


def _write(
    folder: Path, found: Scan, tokenizer: Tokenizer, holdout: Holdout, fingerprint: str, report: _Report
) -> None:
    """Tokenizes the text into a folder, which is there only once it is whole."""
    with _published(folder, Corpus.load) as temporary:
        shards = write_shards(holdout.divide(found.pieces()), tokenizer, temporary, report.advance)
        train, validation = shards["train"], shards["validation"]
        if train.text_bytes + validation.text_bytes != found.text_bytes:
            raise DataError(f"{found.files[0].name} or another file changed while it was read; start again")
        record = {
            "format": _FORMAT,
            "train_tokens": train.tokens,
            "validation_tokens": validation.tokens,
            "train_bytes": train.text_bytes,
            "validation_bytes": validation.text_bytes,
            "n_documents": found.n_documents,
            "held_out": holdout.kind if validation.tokens else "nothing",
            "validation_fraction": holdout.fraction,
            "sources": [file.name for file in found.files],
            "skipped": found.skipped,
            "source_hash": found.content_hash,
            "fingerprint": fingerprint,
        }
        tokenizer.save(temporary)
        (temporary / "corpus.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


@contextlib.contextmanager
def _published(folder: Path, load: Callable[[Path], object]) -> Iterator[Path]:
    """A temporary folder that becomes `folder` when all has been written, and vanishes when it has not.

    One that `load` can read is left as it is: another process was faster, and what it wrote is the same.
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
