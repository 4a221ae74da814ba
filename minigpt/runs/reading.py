"""Reads the text of a job as a corpus of tokens."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace

from minigpt.config import ReadingConfig
from minigpt.data.corpus import Corpus
from minigpt.data.corpus_cache import cache_root
from minigpt.data.find_files import shown
from minigpt.data.sources import Scan
from minigpt.data.texts import find_texts
from minigpt.data.token_writer import ByteProgress
from minigpt.edges import provided
from minigpt.errors import ConfigError
from minigpt.runs.events import Event
from minigpt.storage.run_record import CorpusRecord
from minigpt.tokenizer.bpe_training import requested_vocab_size
from minigpt.tokenizer.tokenizer import Tokenizer
from minigpt.tokenizer.vocabulary import END_OF_TEXT
from minigpt.training.events import Activity, Notice
from minigpt.units import count

_SEARCHED = 2**22  # characters of a text in which names of special tokens are looked for


def read_corpus(
    sources: Sequence[str],
    tokenizer: Tokenizer | str | None,
    reading: ReadingConfig,
    progress: ByteProgress | None,
) -> Generator[Event, None, Corpus]:
    """The corpus, from the cache if it is there; if the tokenizer is None, one is chosen for the size of the text.

    Its tokenizer suppresses what an edge names at the seam `unseen_tokens`: a function of the corpus, and of the ids
    that the model of a given tokenizer has not seen, or None.
    Raises: ConfigError, DataError, TokenizerError.
    """
    if reading.special_tokens:
        if not isinstance(tokenizer, Tokenizer):
            raise ConfigError(
                f"special_tokens needs a model to fine-tune (--from): the only special token of a new tokenizer, "
                f"{END_OF_TEXT}, separates documents without it"
            )
        tokenizer = tokenizer.with_names()
    wanted = requested_vocab_size(tokenizer) if isinstance(tokenizer, str) else None
    yield Activity("reading the text")
    texts = find_texts(sources, reading, cache_root(None))
    if texts.scans:
        yield Activity("tokenizing", in_bytes=True)
    corpus = texts.build(tokenizer, validation_fraction=reading.validation_fraction, progress=progress)
    yield Activity("")
    for note in texts.notices(corpus):
        yield Notice(0, note)
    yield from _notices(corpus, wanted)
    if names := _unread_names(texts.scans, corpus.tokenizer):
        yield Notice(
            0,
            f"the text contains {', '.join(names)}, which the tokenizer reads as text; to read the names of special "
            "tokens as these tokens, give --special-tokens",
        )
    among = tokenizer.suppressed_ids if isinstance(tokenizer, Tokenizer) else None
    for unseen_tokens in provided("unseen_tokens"):
        known = corpus.tokenizer.with_suppressed_ids(unseen_tokens(corpus, among))
        corpus = replace(corpus, tokenizer=known)
    return corpus


def _unread_names(texts: Sequence[Scan], tokenizer: Tokenizer) -> list[str]:
    """The names of special tokens at the beginning of the first text that are read as text."""
    if not texts or tokenizer.reads_names or tokenizer.special.keys() <= {END_OF_TEXT}:
        return []
    names, left = dict[str, None](), _SEARCHED
    for piece, _ in texts[0].pieces():
        names.update(dict.fromkeys(tokenizer.named_in(piece)))
        left -= len(piece)
        if left <= 0:
            break
    return [name for name in names if name != END_OF_TEXT]


def _notices(corpus: Corpus, wanted: int | None) -> Iterator[Event]:
    """What the user should know of the text; `wanted` is the size of the vocabulary that was asked for."""
    if corpus.damaged_cache is not None:
        yield Notice(0, f"the cached tokens in {corpus.damaged_cache} were damaged, so the text was tokenized again")
    if corpus.skipped:
        yield Notice(0, f"skipped {count(len(corpus.skipped), 'file')} without text: {shown(corpus.skipped)}")
    if wanted and wanted > corpus.tokenizer.vocab_size:
        yield Notice(
            0,
            f"the text repeats too little for a vocabulary of {wanted:,} tokens; the tokenizer has "
            f"{corpus.tokenizer.vocab_size:,}",
        )


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
