"""Measures how much of a text is copied word for word from a corpus's training part, and locates the originals.

A copy with other line breaks is still a copy; a copy with another comma is not. A copied run is a stretch of whole
words that occurs, in this order, in one document of the training part. In scripts without spaces between words it
consists of characters (see `words.py`).
"""

import contextlib
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from minigpt.data.corpus import Corpus
from minigpt.errors import CheckpointError
from minigpt.memorization.suffix_array import Ids, Match, build_suffix_array, find_longest_prefix
from minigpt.memorization.words import LONG_RUN, UNIT, Extent, extents, split
from minigpt.storage.tensors import load_tensors, save_tensors
from minigpt.tokenizer.vocabulary import END_OF_TEXT

MOST_BYTES = 100_000_000  # of training text indexed; ten times that takes minutes and gigabytes

_FORMAT = "3"  # of the index on disk; change it when the format or the definition of a word changes
_FILE = "copies.safetensors"
_BLOCK = 2**14  # tokens decoded together
_COUNTED = 2**24  # tokens in which ends of documents are counted at a time
_SEARCHED = 4096  # tokens in which a place to cut is looked for at a time
_UNKNOWN = -1  # a word that does not occur in the training part


@dataclass(frozen=True)
class CopiedRun:
    """A stretch of a text that occurs in the training part.

    Units: `start` and `end` are characters of the text; `extent` counts words, and characters of scripts without
    spaces. `position` is the unit of the index at which it occurs first; `occurrences` counts how often it occurs in
    the indexed text.
    """

    start: int
    end: int
    extent: Extent
    position: int
    occurrences: int


@dataclass(frozen=True)
class Memorization:
    """How much of a text is copied from the training part.

    `extent` is the size of the text. `runs` are the copied runs that no longer run contains, in order; they may
    overlap. `copied` is the size of the runs that are at least as long as `min_words` words, each unit counted once;
    `spans` are the characters (start, end) of the text that these runs cover.
    """

    extent: Extent
    runs: tuple[CopiedRun, ...] = field(repr=False)  # one for nearly every word
    min_words: int
    copied: Extent
    spans: tuple[tuple[int, int], ...]

    @property
    def longest(self) -> CopiedRun | None:
        """The first of the longest runs; None if no word occurs in the training part."""
        return max(self.runs, key=lambda run: run.extent.length, default=None)

    @property
    def longest_extent(self) -> Extent:
        """The size of the longest run; nothing if there is none."""
        return self.longest.extent if self.longest else Extent()

    @property
    def share(self) -> float:
        """The fraction of the text that is in long runs."""
        return self.copied.length / self.extent.length if self.extent.length else 0.0

    def is_long(self, run: CopiedRun) -> bool:
        """Whether a run has at least the length of `min_words` words."""
        return run.extent.length >= self.min_words

    @property
    def long_runs(self) -> list[CopiedRun]:
        """The long runs, in order."""
        return list(filter(self.is_long, self.runs))

    def figures(self) -> dict[str, Any]:
        """The figures under the keys of log.jsonl."""
        longest = self.longest
        return {
            "longest_copied_words": self.longest_extent.words,
            "longest_copied_unspaced": self.longest_extent.characters,
            "longest_copied_characters": longest.end - longest.start if longest else 0,
            "copied_share": self.share,
            "copied_at_least": self.min_words,
            "copied_spans": [list(span) for span in self.spans],
        }


@dataclass(frozen=True)
class TrainingLocation:
    """A location in the training part: the document, and the line in it, both counted from 1."""

    document: int
    line: int


@dataclass(frozen=True, eq=False)
class MemorizationIndex:
    """A suffix array over the words of a corpus's training part.

    `vocabulary` numbers the different words. `ids` (N,) are the words as these numbers, `suffix_array` (N,) their
    suffix array. `blocks` (K, 3) are the indexed stretches of the text: first word, first token, end token.
    `indexed_bytes` is how much of the training text is indexed.
    """

    corpus: Corpus
    vocabulary: Mapping[str, int]
    ids: Ids
    suffix_array: Ids
    blocks: npt.NDArray[np.int64]
    indexed_bytes: int

    @classmethod
    def build(cls, corpus: Corpus, most_bytes: int = MOST_BYTES) -> Self:
        """Indexes the training part, or evenly spaced blocks of it if it has more than `most_bytes`."""
        n_blocks = -(-len(corpus.train) // _BLOCK)
        count = min(n_blocks, max(1, n_blocks * most_bytes // max(1, corpus.train_bytes)))
        chosen = _blocks(corpus, (np.arange(count) * n_blocks // max(1, count)).tolist())
        vocabulary: defaultdict[str, int] = defaultdict()
        vocabulary.default_factory = vocabulary.__len__
        block_ids, first_words, n_words = [], [], 0
        for start, end in chosen.tolist():
            words = split(_decode(corpus, start, end))
            if count < n_blocks:
                words.append(END_OF_TEXT)  # no run may cross from one block into the next
            block_ids.append(np.fromiter(map(vocabulary.__getitem__, words), np.int32, len(words)))
            first_words.append(n_words)
            n_words += len(words)
        ids = np.concatenate(block_ids) if block_ids else np.empty(0, np.int32)
        indexed_bytes = corpus.train_bytes
        if count < n_blocks:
            lengths = corpus.tokenizer.token_lengths
            indexed_bytes = sum(int(lengths[corpus.train[start:end]].sum()) for start, end in chosen.tolist())
        blocks = np.column_stack([np.array(first_words, np.int64), chosen])
        return cls(corpus, dict(vocabulary), ids, build_suffix_array(ids), blocks, indexed_bytes)

    @classmethod
    def open(cls, corpus: Corpus, most_bytes: int = MOST_BYTES) -> Self:
        """Loads the index from the corpus's cache, or builds it; a built one is saved there if it is complete."""
        index = cls.find(corpus)
        if index is None:
            index = cls.build(corpus, most_bytes)
            if index.is_complete:
                with contextlib.suppress(CheckpointError):  # a cache that cannot be written costs time only
                    index._save()
        return index

    @classmethod
    def find(cls, corpus: Corpus) -> Self | None:
        """Loads the complete index from the corpus's cache; None if there is none, or it is damaged or stale."""
        try:
            tensors, metadata = load_tensors(corpus.path / _FILE)
        except CheckpointError:
            return None
        if metadata != {"format": _FORMAT, "fingerprint": corpus.fingerprint}:
            return None
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        words = arrays["vocabulary"].tobytes().decode().split("\n")
        vocabulary = {word: number for number, word in enumerate(words)}
        return cls(corpus, vocabulary, arrays["ids"], arrays["suffixes"], arrays["blocks"], corpus.train_bytes)

    def _save(self) -> None:
        words = np.frombuffer("\n".join(self.vocabulary).encode(), np.uint8)  # in the order of their numbers
        arrays = {"ids": self.ids, "suffixes": self.suffix_array, "blocks": self.blocks, "vocabulary": words.copy()}
        save_tensors(
            self.corpus.path / _FILE,
            {name: torch.from_numpy(array) for name, array in arrays.items()},
            {"format": _FORMAT, "fingerprint": self.corpus.fingerprint},
        )

    @property
    def is_complete(self) -> bool:
        """Whether all of the training part is indexed."""
        return self.indexed_bytes == self.corpus.train_bytes

    def measure(self, text: str, prompt: str = "", min_words: int = LONG_RUN) -> Memorization:
        """Measures how much of `text`, the continuation of `prompt`, is copied; the prompt does not count.

        A word that the prompt begins and the text ends is a word of the text. A run never starts before the text's
        first word, even if the words of the prompt before it occur in the training part too.
        """
        origin = len(prompt)
        words = [match for match in UNIT.finditer(prompt + text) if match.end() > origin]
        sizes = list(accumulate(extents(prompt + text, words), initial=Extent()))  # of the words before each
        query = [_UNKNOWN if word[0] == END_OF_TEXT else self.vocabulary.get(word[0], _UNKNOWN) for word in words]
        runs: list[CopiedRun] = []
        spans: list[tuple[int, int]] = []
        copied = Extent()
        covered = first = 0  # the end of the last long run, and the start of the next run
        while first < len(words):
            match = self._match(query[first:])
            end = first + match.length
            if match.length:
                start, stop = max(0, words[first].start() - origin), words[end - 1].end() - origin
                runs.append(CopiedRun(start, stop, sizes[end] - sizes[first], match.position, match.occurrences))
            if (sizes[end] - sizes[first]).length >= min_words:
                copied += sizes[end] - sizes[max(first, covered)]
                if spans and first <= covered:
                    spans[-1] = (spans[-1][0], stop)
                else:
                    spans.append((start, stop))
                covered = end
            first = self._next_start(query, first, end)
        return Memorization(sizes[-1], tuple(runs), min_words, copied, tuple(spans))

    def _next_start(self, query: list[int], first: int, end: int) -> int:
        """The start of the next run that no other contains, after the run from `first` to `end`.

        That run includes the word at `end`. If the words from a start through `end` occur, so do those from any later
        start, so a binary search finds the earliest.
        """
        if end == len(query):
            return end
        starts = range(first + 1, end + 1)
        return first + 1 + bisect_left(starts, True, key=lambda start: self._occurs(query[start : end + 1]))

    def _occurs(self, query: list[int]) -> bool:
        return self._match(query).length == len(query)

    def _match(self, query: list[int]) -> Match:
        return find_longest_prefix(self.ids, self.suffix_array, query)

    def locate(self, position: int) -> TrainingLocation:
        """The document and line of a word of the index."""
        block = int(np.searchsorted(self.blocks[:, 0], position, side="right")) - 1
        first, start, end = self.blocks[block].tolist()
        text = _decode(self.corpus, start, end)
        before = text[: next(islice(UNIT.finditer(text), position - first, None)).start()]
        *earlier_documents, line = before.split(END_OF_TEXT)
        tokens, end_of_text = self.corpus.train, self.corpus.tokenizer.end_of_text
        n_ends = document_start = 0
        for at in range(0, start, _COUNTED):  # the tokens before may not fit into memory
            ends = np.flatnonzero(tokens[at : min(at + _COUNTED, start)] == end_of_text)
            n_ends += len(ends)
            document_start = at + int(ends[-1]) + 1 if len(ends) else document_start
        lines = line.count("\n")
        if not earlier_documents:
            lines += int(_byte_counts(self.corpus, b"\n")[tokens[document_start:start]].sum())
        return TrainingLocation(n_ends + len(earlier_documents) + 1, lines + 1)


def _decode(corpus: Corpus, start: int, end: int) -> str:
    """The text of the training tokens from `start` to `end`, each end-of-text as a separate word."""
    documents = corpus.tokenizer.document_bytes(corpus.train[start:end])
    return f" {END_OF_TEXT} ".encode().join(documents).decode(errors="replace")


def _blocks(corpus: Corpus, numbers: Sequence[int]) -> npt.NDArray[np.int64]:
    """The start and end tokens of these blocks of the training part; no word or character is cut. Shapes: (K, 2)."""
    tokenizer, n = corpus.tokenizer, len(corpus.train)
    starts_word = np.array([tokenizer.token_bytes(id)[:1] in (b" ", b"\n") for id in range(tokenizer.vocab_size)])
    starts_word[tokenizer.end_of_text] = True

    def next_cut(wanted: int) -> int:
        for start in range(wanted, n, _SEARCHED):
            found = np.flatnonzero(starts_word[corpus.train[start : start + _SEARCHED]])
            if len(found):
                return start + int(found[0])
        return n

    edges = [(next_cut(number * _BLOCK) if number else 0, next_cut((number + 1) * _BLOCK)) for number in numbers]
    return np.array([(start, end) for start, end in edges if start < end], np.int64).reshape(-1, 2)


def _byte_counts(corpus: Corpus, byte: bytes) -> npt.NDArray[np.int64]:
    """How often a byte occurs in each token of the vocabulary. Shapes: (V,)."""
    tokenizer = corpus.tokenizer
    return np.array([tokenizer.token_bytes(id).count(byte) for id in range(tokenizer.vocab_size)], np.int64)
