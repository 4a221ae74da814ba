"""Reads the text of a job as a corpus of tokens."""

from collections.abc import Callable, Generator, Sequence

from minigpt.config import ReadingConfig
from minigpt.data.corpus import Corpus
from minigpt.data.sources import scan
from minigpt.jobs.events import Activity, Event
from minigpt.planning.plan import plan_tokenizer
from minigpt.storage.run_record import CorpusRecord
from minigpt.tokenizer.tokenizer import Tokenizer, requested_vocab_size
from minigpt.training.events import Notice
from minigpt.units import count

ByteProgress = Callable[[int, int], None]
"""Called with the bytes done and their total."""

_SHOWN = 3  # files without text that a notice names


def read_corpus(
    sources: Sequence[str], tokenizer: Tokenizer | str | None, reading: ReadingConfig, progress: ByteProgress | None
) -> Generator[Event, None, Corpus]:
    """The corpus, from the cache if it is there; the size of the text chooses the tokenizer if it is None.

    Raises: DataError, TokenizerError.
    """
    wanted = requested_vocab_size(tokenizer) if isinstance(tokenizer, str) else None
    yield Activity("reading the text")
    found = scan(
        list(sources),
        text_key=reading.text_key,
        encoding=reading.encoding,
        encoding_errors=reading.encoding_errors,
    )
    yield Activity("tokenizing", in_bytes=True)
    corpus = Corpus.build(
        found,
        tokenizer or plan_tokenizer(found.text_bytes),
        validation_fraction=reading.validation_fraction,
        progress=progress,
    )
    yield Activity("")
    for note in found.notes:
        yield Notice(0, note)
    if corpus.damaged_cache is not None:
        yield Notice(0, f"the cached tokens in {corpus.damaged_cache} were damaged, so the text was tokenized again")
    if corpus.skipped:
        shown = ", ".join(corpus.skipped[:_SHOWN]) + (" …" if len(corpus.skipped) > _SHOWN else "")
        yield Notice(0, f"skipped {count(len(corpus.skipped), 'file')} without text: {shown}")
    if wanted and wanted > corpus.tokenizer.vocab_size:
        yield Notice(0, f"the text is enough for {corpus.tokenizer.vocab_size:,} tokens, not for {wanted:,}")
    return corpus


def corpus_record(corpus: Corpus) -> CorpusRecord:
    """The entry for the text in training.json."""
    return CorpusRecord(
        fingerprint=corpus.fingerprint,
        path=str(corpus.path),
        train_bytes=corpus.train_bytes,
        validation_bytes=corpus.validation_bytes,
        train_tokens=len(corpus.train),
        validation_tokens=len(corpus.validation),
    )
