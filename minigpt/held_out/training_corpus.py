"""The corpus that a model was trained on: found again with its held-out part, and compared with other texts."""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from minigpt.config import ReadingConfig
from minigpt.data.corpus import Corpus
from minigpt.data.sources import Scan
from minigpt.data.texts import Texts, find_texts, has_tokens
from minigpt.data.token_writer import ByteProgress
from minigpt.errors import CheckpointError, ConfigError, DataError
from minigpt.storage.checkpoint import Checkpoint
from minigpt.storage.run import read_record
from minigpt.storage.run_record import TEXT, CorpusRecord, RunRecord
from minigpt.storage.shipped_models import path_of
from minigpt.tokenizer.tokenizer import Tokenizer

_MOST_COMPARED = 200_000_000  # bytes of training text; reading more of it again takes too long for a note
_SHOWN = 3  # files that a sentence names


def find_training_corpus(checkpoint: Checkpoint, *, fix: str) -> tuple[Corpus, Scan | None]:
    """The corpus that a run was trained on, from the cache or built again, and its text if it is one and can be read.

    `fix` ends an error: what the user can do instead.
    Raises: ConfigError if the run does not record its text, or the text cannot be found.
    """
    recorded, directory = _Recorded.of(checkpoint), checkpoint.directory
    if recorded is None or not recorded.sources:
        raise ConfigError(f"{directory} does not record what it was trained on; {fix}")
    names, texts = ", ".join(recorded.sources), recorded.texts_again()
    folder = recorded.corpus.path or "the cache"
    try:
        corpus = Corpus.load(folder)
        if corpus.fingerprint != recorded.corpus.fingerprint:
            raise DataError(f"{folder} contains another corpus")
    except DataError as error:
        if texts is None or not recorded.is_text(texts):
            raise ConfigError(
                f"the text that {directory} was trained on is no longer in {folder}, and {names} "
                f"{'cannot be read' if texts is None else 'has changed since'}; {fix}"
            ) from error
        corpus = recorded.build(texts)
    return corpus, texts.single if texts is not None else None


def given_training_corpus(
    checkpoint: Checkpoint,
    sources: Sequence[str],
    progress: ByteProgress | None = None,
    reading: Mapping[str, Any] | None = None,
) -> Corpus:
    """The corpus that a run was trained on, built from its text, which is given again and verified by its hash.

    The settings in `reading` replace the recorded ones: the text may now be in another encoding.
    Raises: ConfigError if the run does not record its text, or this is another one, or another part of it would be held
    out; DataError.
    """
    recorded, directory = _Recorded.of(checkpoint), checkpoint.directory
    if recorded is None:
        raise ConfigError(f"{directory} does not record what it was trained on, so nothing is known to be held out")
    recorded = replace(recorded, reading=recorded.reading.replace(**(reading or {})))
    texts = recorded.texts(sources)
    if not recorded.is_text(texts):
        raise ConfigError(
            f"{', '.join(sources)} is not the text that {directory} was trained on, as its hash shows; give all of its "
            "files in the same order, or omit --held-out"
        )
    return recorded.build(texts, progress)


def training_overlap(found: Scan, checkpoint: Checkpoint) -> list[str]:
    """Sentences that say that a text, or a part of it, is one that the model or its base model was trained on, and with
    which of their training texts it was not compared.

    Empty for a model whose training was not recorded. The whole text is recognized by its hash; its documents by
    theirs, as long as the training text is where it was; a file that has changed since by its path. Parts of a document
    are not recognized.
    """
    recorded = _Recorded.of(checkpoint)
    if recorded is None:
        return []
    what = ", ".join(file.name for file in found.files[:_SHOWN]) + (" …" if len(found.files) > _SHOWN else "")
    held_out = "; --held-out evaluates only the part that was held out" if recorded.corpus.validation_tokens else ""
    notes = [_overlap(found, what, recorded, checkpoint.directory.name, held_out)]
    for name, base in _bases(checkpoint):
        notes.append(_overlap(found, what, base, name, "") if base else _not_compared(what, name))
    return [*filter(None, notes), *_earlier_texts(what, checkpoint)]


def held_out_overlap(checkpoint: Checkpoint) -> list[str]:
    """Sentences on the training texts that may contain the held-out part: those of other runs, and earlier ones."""
    recorded, what = _Recorded.of(checkpoint), "the held-out part"
    notes = [
        _not_compared(what, name)
        for name, base in _bases(checkpoint)
        if recorded is None or base is None or base.corpus.fingerprint != recorded.corpus.fingerprint
    ]
    return [*notes, *_earlier_texts(what, checkpoint)]


def _not_compared(what: str, name: str) -> str:
    return f"{what} was not compared with the training text of {name}"


def _earlier_texts(what: str, checkpoint: Checkpoint) -> list[str]:
    """A sentence if the run was resumed with another text: the record describes only its last one."""
    record = checkpoint.record
    step = max((each.step for each in record.changes if each.option == TEXT), default=0) if record else 0
    name = checkpoint.directory.name
    return [f"{what} was not compared with the text that {name} was trained on up to step {step:,}"] if step else []


def _bases(checkpoint: Checkpoint) -> "Iterator[tuple[str, _Recorded | None]]":
    """The base model, its own base model and so on, each as a sentence names it; None if no training is recorded."""
    record, seen = checkpoint.record, set[str]()
    while record is not None and record.base is not None and record.base not in seen:
        base = record.base
        seen.add(base)
        try:
            record = read_record(path_of(base), [])
        except CheckpointError:
            record = None
        # Fine-tuning keeps the tokenizer.
        yield f"the base model {base}", _Recorded.of_run(record, checkpoint.tokenizer)


def _overlap(found: Scan, what: str, recorded: "_Recorded", name: str, held_out: str) -> str | None:
    """A sentence that says that the text `what`, or a part of it, is in the one that the model `name` was trained on.

    `held_out` ends it. None if the record shows no overlap.
    """
    if recorded.is_text(Texts([found])):
        return f"{what} is the text that {name} was trained on, so these figures say little about other text{held_out}"
    paths = [recorded.reading.parted(source)[0] for source in recorded.sources]
    if any(map(has_tokens, paths)):
        return _not_compared(what, name)
    again = recorded.texts_again() if recorded.corpus.train_bytes <= _MOST_COMPARED else None
    if again is not None and recorded.is_text(again):
        trained = {each for text in again.scans for each in _document_hashes(text)}
        given = _document_hashes(found)
        common = sum(each in trained for each in given)
        if not common:
            return None
        are = "is" if common == 1 else "are"
        which = f"{what} is" if common == len(given) else f"{common:,} of the {len(given):,} documents given {are}"
        return f"{which} in the text that {name} was trained on{held_out}"
    sources = [Path(os.path.realpath(source)) for source in paths]
    for file in found.files:
        path = Path(os.path.realpath(file.path))
        if any(source == path or source in path.parents for source in sources):
            return f"{name} was trained on {file.name}, or on an earlier version of it"
    return None


@dataclass(frozen=True)
class _Recorded:
    """What a run records of its text: its sources by absolute path, its hash, and how it was read."""

    sources: tuple[str, ...]
    corpus: CorpusRecord
    reading: ReadingConfig
    model_tokenizer: Tokenizer

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer as it read the text."""
        return self.model_tokenizer.with_names() if self.reading.special_tokens else self.model_tokenizer

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "_Recorded | None":
        """None for a model whose training was not recorded."""
        return cls.of_run(checkpoint.record, checkpoint.tokenizer)

    @classmethod
    def of_run(cls, record: RunRecord | None, tokenizer: Tokenizer) -> "_Recorded | None":
        """None if there is no record, or none of the text."""
        if record is None or record.corpus is None or record.reading is None:
            return None
        return cls(record.sources, record.corpus, record.reading, tokenizer)

    def texts(self, sources: Sequence[str]) -> Texts:
        """Reads these sources with the settings of the run."""
        return find_texts(sources, self.reading)

    def texts_again(self) -> Texts | None:
        """Reads the sources of the run; None if they cannot be read, or were standard input."""
        if not self.sources or "-" in self.sources:
            return None
        try:
            return self.texts(self.sources)
        except (ConfigError, DataError):  # the former for a weight that is not valid
            return None

    def is_text(self, texts: Texts) -> bool:
        """Whether this is the whole text that the run was trained on."""
        return texts.fingerprint(self.tokenizer, self.reading.validation_fraction) == self.corpus.fingerprint

    def build(self, texts: Texts, progress: ByteProgress | None = None) -> Corpus:
        """Tokenizes the run's text again, with the same held-out part."""
        return texts.build(self.tokenizer, validation_fraction=self.reading.validation_fraction, progress=progress)


def _document_hashes(found: Scan) -> list[bytes]:
    """The hash of each document's text."""
    hashes, digest = [], hashlib.sha256()
    for piece, ends in found.pieces():
        digest.update(piece.encode())
        if ends:
            hashes.append(digest.digest())
            digest = hashlib.sha256()
    return hashes
