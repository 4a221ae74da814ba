"""Opens a corpus that was built before, in one piece or in shards."""

from contextlib import suppress
from pathlib import Path

from minigpt.bounded_reading import read_json_value
from minigpt.data.corpus import Corpus
from minigpt.data.sharded.sharded_corpus import READABLE, ShardedCorpus
from minigpt.errors import DataError


def open_corpus(path: str | Path) -> Corpus:
    """The corpus in this folder.

    Raises: DataError if there is none, or it is damaged.
    """
    is_sharded = False
    with suppress(OSError, ValueError, AttributeError):  # Corpus.load says what is wrong
        is_sharded = read_json_value(Path(path) / "corpus.json").get("format") in READABLE
    return ShardedCorpus.open(Path(path)) if is_sharded else Corpus.load(path)


def open_split(path: str | None, fingerprint: str, source_hash: str) -> Corpus | None:
    """The corpus of a text in this folder, split as it was when its fingerprint was recorded; None if it is not there.

    Earlier versions held out other documents of the same text.
    """
    try:
        corpus = open_corpus(path or "")
    except DataError:
        return None
    return corpus if (corpus.fingerprint, corpus.source_hash) == (fingerprint, source_hash) else None
