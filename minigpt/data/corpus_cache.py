"""The cache of tokenized texts: tokenizers and tokens, each in a folder named by the hash of what it was made of."""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from filelock import FileLock

from minigpt.data.sources import Scan
from minigpt.data.split import ValidationSplit
from minigpt.data.token_writer import (
    WRITTEN,
    ByteProgress,
    array_hash,
    chunks,
    speakers_path,
    token_type,
    tokens_path,
    write_tokens,
)
from minigpt.errors import DataError, MinigptError, TokenizerError, reason_of
from minigpt.tokenizer.tokenizer import Tokenizer
from minigpt.tokenizer.vocabulary import END_OF_TEXT

FORMAT = 2  # of the cached files; increase it when they or the validation split change, to rebuild every cache
TRAINING_SAMPLE = 50_000_000  # bytes of text that a tokenizer is trained on
_TRAINING_CHUNK = 2**16  # characters; Hugging Face's trainer uses a hundred times the memory of each text


class ProgressCounter:
    """Sums the bytes done and passes them to a progress callback."""

    def __init__(self, progress: ByteProgress | None, total: int) -> None:
        self.progress, self.done, self.total = progress, 0, total

    def advance(self, text_bytes: int) -> None:
        self.done += text_bytes
        if self.progress:
            self.progress(self.done, self.total)


def cache_root(cache: str | Path | None) -> Path:
    """The folder of the cache: the one given, `$MINIGPT_CACHE`, or the user's cache folder.

    Raises: DataError if it begins with `~` for a home folder that the system does not know.
    """
    users = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "minigpt")
    folder = Path(cache or os.environ.get("MINIGPT_CACHE") or users)
    try:
        return folder.expanduser()
    except RuntimeError as error:
        raise DataError(
            f"the folder of the cache ({folder}) begins with ~, and that home folder is unknown; "
            "set MINIGPT_CACHE to a path without ~"
        ) from error


@contextlib.contextmanager
def writing_tokens(root: Path) -> Iterator[None]:
    """Turns an OSError while the cache is written into a DataError that says what to do."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"the tokens cannot be written to {root} ({reason_of(error)}); "
            "free some space there or set MINIGPT_CACHE to another folder"
        ) from error


def cache_key(*parts: object) -> str:
    """The hash under which what was made of these parts is cached."""
    return hashlib.sha256(json.dumps([FORMAT, *parts]).encode()).hexdigest()


def map_array(path: Path, dtype: np.dtype[Any], count: int, expected_hash: str) -> npt.NDArray[Any]:
    """A memory-mapped array of the cache, (N,); ValueError if it is not the one that was written."""
    if path.stat().st_size != count * dtype.itemsize:
        raise ValueError(f"{path} is damaged")
    # An empty file cannot be mapped.
    array: npt.NDArray[Any] = np.memmap(path, dtype=dtype, mode="r") if count else np.empty(0, dtype)
    if count and array_hash(array) != expected_hash:
        raise ValueError(f"{path} is damaged")
    return array


def resolve_tokenizer(
    spec: str, texts: Sequence[tuple[Scan, ValidationSplit]], weights: Sequence[float], root: Path,
    counter: ProgressCounter,
) -> Tokenizer:  # fmt: skip
    """The tokenizer with this name; `chars` and `bpe:N` are trained on the training parts and cached.

    Of several texts, each gives a part of the sample in proportion to its weight.
    """
    if spec in ("gpt2", "bytes"):
        return Tokenizer.named(spec)
    own = [part for scanned, split in texts for part in (scanned.kept_hash, *split.key)]
    of_mix = weights if len(texts) > 1 else ()
    folder = root / "tokenizers" / cache_key(spec, *own, *of_mix)[:32]
    try:
        return Tokenizer.load(folder)
    except TokenizerError:
        sample = chain.from_iterable(
            _training_texts(spec, scanned, split, weight / sum(weights), counter)
            for (scanned, split), weight in zip(texts, weights, strict=True)
        )
        tokenizer = Tokenizer.train(sample, spec)
        with publish(folder, Tokenizer.load) as temporary:
            tokenizer.save(temporary)
        return tokenizer


def _training_texts(
    spec: str, scanned: Scan, split: ValidationSplit, of_sample: float, counter: ProgressCounter
) -> Iterator[str]:
    """The text to train a tokenizer on: the training part for `chars`, else this part of an evenly spread sample of at
    most about TRAINING_SAMPLE bytes.
    """
    counter.total += scanned.text_bytes
    share = 1.0 if spec == "chars" else min(1.0, of_sample * TRAINING_SAMPLE / scanned.text_bytes)
    taken = 0.0
    for part, text in chunks(split.apply(scanned.pieces()), _TRAINING_CHUNK):
        documents = text.split(END_OF_TEXT)
        if part == "train":
            taken += share
            if taken >= 1:
                taken -= 1
                yield from documents
        counter.advance(sum(len(document.encode()) for document in documents))


def write_corpus(
    folder: Path,
    scanned: Scan,
    tokenizer: Tokenizer,
    split: ValidationSplit,
    fingerprint: str,
    counter: ProgressCounter,
    load: Callable[[Path], object],
) -> None:
    """Tokenizes the text into a folder, which exists only when it is complete and `load` can read it.

    After a kill or Ctrl-C, the next call continues with what is missing. One process at a time writes; the others wait.
    Raises: DataError if the text has changed since it was scanned; OSError.
    """
    with _continuing(folder, load) as partial:
        if partial is None:
            return
        pieces = split.apply(scanned.pieces(marked=True))
        parts = write_tokens(pieces, tokenizer, partial, counter.advance, has_speakers=scanned.has_speakers)
        train, validation = parts["train"], parts["validation"]
        record = {
            "format": FORMAT,
            "train_tokens": train.tokens,
            "validation_tokens": validation.tokens,
            "train_bytes": train.text_bytes,
            "validation_bytes": validation.text_bytes,
            "n_documents": scanned.n_documents,
            "held_out": split.description if validation.tokens else "nothing",
            "validation_fraction": split.fraction,
            "sources": [file.name for file in scanned.files],
            "skipped": scanned.skipped,
            "source_hash": scanned.kept_hash,
            "fingerprint": fingerprint,
            "token_hashes": {
                part: _file_hash(tokens_path(partial, part), token_type(tokenizer.vocab_size)) for part in parts
            },
        }
        if scanned.has_speakers:
            record["speaker_hashes"] = {
                part: _file_hash(speakers_path(partial, part), np.dtype(np.uint8)) for part in parts
            }
        tokenizer.save(partial)
        (partial / "corpus.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _file_hash(path: Path, dtype: np.dtype[Any]) -> str:
    return array_hash(np.memmap(path, dtype=dtype, mode="r") if path.stat().st_size else np.empty(0, dtype))


@contextlib.contextmanager
def _continuing(folder: Path, load: Callable[[Path], object]) -> Iterator[Path | None]:
    """The folder in which a corpus is written, which becomes `folder` at the end; None if `load` can read that.

    It is deleted on an error. If the process is killed or interrupted, what is recorded stays, to continue from.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial, damaged = (folder.with_name(f".{folder.name}.{kind}") for kind in ("partial", "damaged"))
    locks = folder.parent.with_name("locks")
    locks.mkdir(exist_ok=True)
    with FileLock(locks / f"{folder.name}.lock"):
        if _can_load(load, folder):
            yield None
            return
        partial.mkdir(exist_ok=True)
        try:
            yield partial
        except BaseException as error:
            if isinstance(error, Exception) or not (partial / WRITTEN).exists():
                shutil.rmtree(partial, ignore_errors=True)
            raise
        (partial / WRITTEN).unlink(missing_ok=True)
        shutil.rmtree(damaged, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            folder.rename(damaged)
        partial.rename(folder)
        shutil.rmtree(damaged, ignore_errors=True)


@contextlib.contextmanager
def publish(folder: Path, load: Callable[[Path], object]) -> Iterator[Path]:
    """A temporary folder that is renamed to `folder` on success and deleted on an error.

    A `folder` that `load` can read is kept: another process wrote the same content in the meantime.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=folder.parent, ignore_cleanup_errors=True) as scratch:
        new = Path(scratch, "new")
        new.mkdir()
        yield new
        if _can_load(load, folder):
            return
        with contextlib.suppress(FileNotFoundError):
            folder.rename(Path(scratch, "damaged"))
        try:
            new.rename(folder)
        except OSError:
            if not folder.exists():
                raise


def _can_load(load: Callable[[Path], object], folder: Path) -> bool:
    """Whether `load` can read a folder.

    An error ends here, with the files that its traceback keeps mapped: Windows does not rename their folder.
    """
    try:
        load(folder)
    except MinigptError:
        return False
    return True
