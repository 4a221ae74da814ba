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
from typing import Any, Self, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from minigpt.bounded_reading import read_json_value
from minigpt.data import batches
from minigpt.data.batches import UNSCORED
from minigpt.data.shards import Progress, chunks, shard_path, speakers_path, token_type, write_shards
from minigpt.data.sources import Scan, scan
from minigpt.data.split import Part, ValidationSplit
from minigpt.data.transcript import CHAT_TEMPLATE, ROLES, speaker_number
from minigpt.errors import ConfigError, DataError, MinigptError, TokenizerError
from minigpt.seeds import mix_seed
from minigpt.tokenizer.bpe_dropout import BPEDropout
from minigpt.tokenizer.tokenizer import Tokenizer, requested_vocab_size
from minigpt.tokenizer.vocabulary import END_OF_TEXT

_PARTS: tuple[Part, ...] = get_args(Part)

_FORMAT = 1  # of the cached files; increase it when they or the validation split change, to rebuild every cache
_SPARE = 8  # tokens read after a window for BPE-dropout, which may give fewer tokens
_VERIFIED_AT_ONCE = 2**21  # tokens
_TRAINING_SAMPLE = 50_000_000  # bytes of text that a tokenizer is trained on
_TRAINING_CHUNK = 2**16  # characters; Hugging Face's trainer uses a hundred times the memory of each text


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """A tokenized text, in which every document and every part of one ends with an end-of-text token.

    `train` and `validation` are memory-mapped arrays of ids, (N,) each; `validation` may be empty. If every document is
    a conversation, `train_speakers` and `validation_speakers` are the numbers of the tokens' speakers, (N,) uint8 each
    (see `minigpt.data.transcript.Speakers`). Two corpora have the same `fingerprint` exactly if they have the same
    arrays. Byte counts are those of the text in UTF-8. `damaged_cache` is the folder whose tokens were damaged, so that
    the text was tokenized again; None otherwise.
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
    train_speakers: npt.NDArray[np.uint8] | None = None
    validation_speakers: npt.NDArray[np.uint8] | None = None
    damaged_cache: Path | None = None

    @classmethod
    def build(
        cls,
        sources: str | Path | Sequence[str | Path] | Scan,
        tokenizer: Tokenizer | str,
        *,
        cache: str | Path | None = None,
        text_key: str = "text",
        encoding: str = "utf-8",
        encoding_errors: str = "strict",
        validation_fraction: float | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Tokenizes these sources, or opens the cached corpus if the same text was tokenized in the same way before.

        A tokenizer given as `chars` or `bpe:N` is trained on the training part. A Scan has its own `text_key`,
        `encoding` and `encoding_errors`, which replace the arguments. If the text has conversations, the corpus's
        tokenizer has their chat template. `progress` is called with the bytes done and the bytes in total.
        The cache is in `$MINIGPT_CACHE`, by default in the user's cache folder.

        Raises: DataError for sources as `scan` does, and for a cache that cannot be written; TokenizerError for an
        unknown tokenizer; ConfigError for settings out of bounds.
        """
        if isinstance(tokenizer, str):
            requested_vocab_size(tokenizer)  # reports a wrong name before a long scan
        if not isinstance(sources, Scan):
            sources = scan(sources, text_key=text_key, encoding=encoding, encoding_errors=encoding_errors)
        split = ValidationSplit.plan(sources, validation_fraction)
        root = _cache_root(cache)
        counter = _ProgressCounter(progress, sources.text_bytes)
        try:
            if isinstance(tokenizer, str):
                tokenizer = _resolve_tokenizer(tokenizer, sources, split, root, counter)
            if sources.n_conversations:
                tokenizer = tokenizer.with_chat_template(CHAT_TEMPLATE)
            fingerprint = corpus_fingerprint(sources, tokenizer, validation_fraction)
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
            speaker_hashes = record.pop("speaker_hashes", None)  # only of conversations
            counts = {part: record.pop(f"{part}_tokens") for part in _PARTS}
            speakers = {
                part: None if speaker_hashes is None else _map_speakers(folder, part, counts[part], speaker_hashes)
                for part in _PARTS
            }
            return cls(
                path=folder,
                tokenizer=tokenizer,
                train=_map_tokens(folder, "train", tokenizer, counts["train"], hashes),
                validation=_map_tokens(folder, "validation", tokenizer, counts["validation"], hashes),
                train_speakers=speakers["train"],
                validation_speakers=speakers["validation"],
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
        loss_on: str = "all",
    ) -> tuple[Tensor, Tensor]:
        """One step's inputs and targets from the training part, as from `minigpt.data.batches.batch`.

        `bpe_dropout` is the probability to drop a merge; a window may then end before its last tokens, which other
        epochs include. `noise` is the probability that an input token, but not its target, is replaced by a random one.
        Both are pure functions of the seed, the step and the row. `loss_on` is the role whose turns are scored: all
        other targets are UNSCORED.
        Shapes: (B, T) int64 each.
        Raises: TokenizerError for `bpe_dropout` with a tokenizer without merges; ConfigError for `loss_on` with a text
        that is not a chat log.
        """
        if bpe_dropout:
            spare = _SPARE + length // 8  # it is rare that a pre-token has fewer tokens than before
            whole = batches.windows(self.train, step, size, length, seed, rows, lookahead=1 + spare)
            first = np.uint64(mix_seed(seed, step))
            seeds = first + np.array(batches.select_rows(size, rows), dtype=np.uint64)
            sequences = self.bpe_dropout(whole, seeds, bpe_dropout, length + 1)
        else:
            spare = 0
            whole = sequences = batches.windows(self.train, step, size, length, seed, rows)
        inputs, targets = batches.inputs_and_targets(sequences)
        if loss_on != "all":
            if self.train_speakers is None:
                raise self._not_a_chat_log(loss_on)
            speakers = batches.windows(self.train_speakers, step, size, length, seed, rows, lookahead=1 + spare)
            if bpe_dropout:
                speakers = self.bpe_dropout.labels(whole, sequences, speakers)
            others = torch.from_numpy(speakers[:, 1:] != speaker_number(loss_on))
            targets = targets.masked_fill(others, UNSCORED)  # a copy: inputs and targets may share memory
        if noise:
            inputs = batches.add_noise(inputs, noise, self.tokenizer.vocab_size, step, size, seed, rows)
        return inputs, targets

    def check_loss_on(self, role: str) -> None:
        """Checks that the loss can be measured on this role's turns, or on `all`.

        Raises: ConfigError for a text that is not a chat log, and for a role without turns in one of the parts.
        """
        if role == "all":
            return
        if self.train_speakers is None:
            raise self._not_a_chat_log(role)
        number = speaker_number(role)
        if not (self.train_speakers == number).any():
            found = [each for each in ROLES if (self.train_speakers == speaker_number(each)).any()]
            raise ConfigError(f"loss_on ({role}) is not a role in this text; give {', '.join(found)} or all")
        scored = self.scored(role)
        if scored is not None and len(scored) > 1 and not scored[1:].any():
            raise ConfigError(f"loss_on ({role}) has no turn in the held-out part; give a larger --validation-fraction")

    def _not_a_chat_log(self, role: str) -> ConfigError:
        which = self.sources[0] if len(self.sources) == 1 else f"{self.sources[0]} or another file"
        return ConfigError(
            f"loss_on ({role}) needs a text in which every document is a conversation, and {which} is not a chat log; "
            "give all"
        )

    def first_question(self, most: int) -> str:
        """The beginning of a held-out conversation up to the assistant's first turn; empty without one of at most
        `most` tokens."""
        if self.validation_speakers is None:
            return ""
        answers = np.flatnonzero(self.validation_speakers[: most + 1] == speaker_number("assistant"))
        return self.tokenizer.decode(self.validation[: answers[0]].tolist()) if len(answers) else ""

    def scored(self, role: str) -> npt.NDArray[np.bool_] | None:
        """Which validation tokens are of this role's turns, (N,); None for `all`."""
        if role == "all" or self.validation_speakers is None:
            return None
        return self.validation_speakers == speaker_number(role)

    @cached_property
    def bpe_dropout(self) -> BPEDropout:
        """BPE-dropout for this corpus's tokenizer.

        Raises: TokenizerError for a tokenizer without merges.
        """
        return BPEDropout(self.tokenizer)


def corpus_fingerprint(scanned: Scan, tokenizer: Tokenizer, validation_fraction: float | None) -> str:
    """The `fingerprint` of the corpus that `Corpus.build` makes of this text, without building it.

    Raises: ConfigError for a fraction out of bounds.
    """
    split = ValidationSplit.plan(scanned, validation_fraction)
    return _hash(scanned.content_hash, tokenizer.fingerprint, split.fraction, split.every)


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


def _map_speakers(folder: Path, part: Part, count: int, hashes: Mapping[str, str]) -> npt.NDArray[np.uint8]:
    """The memory-mapped speakers of one part's tokens; ValueError if they are not those that were written."""
    path = speakers_path(folder, part)
    if path.stat().st_size != count:
        raise ValueError(f"{path} is damaged")
    speakers: npt.NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="r") if count else np.empty(0, np.uint8)
    if hashlib.sha256(speakers.data).hexdigest() != hashes[part]:
        raise ValueError(f"{path} is damaged")
    return speakers


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
        pieces = split.apply(scanned.pieces())
        shards = write_shards(pieces, tokenizer, temporary, counter.advance, has_speakers=scanned.has_speakers)
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
        if scanned.has_speakers:
            record["speaker_hashes"] = {part: shard.speaker_hash for part, shard in shards.items()}
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
