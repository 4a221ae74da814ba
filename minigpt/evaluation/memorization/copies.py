"""How much of a text is copied from a corpus's training part, word for word, and from where; it knows no model.

Words are what stands between white space, punctuation and case included, so that a copy with other line breaks is one
and a copy with another comma is not; of the scripts that put no spaces between words, every character is a word. A
copied run is a stretch of whole words that stand side by side, in this order, in one document of the training part.
"""

import contextlib
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from minigpt.data.corpus import Corpus
from minigpt.errors import CheckpointError
from minigpt.evaluation.memorization.suffix_array import Ids, find_longest, sort_suffixes
from minigpt.storage.tensors import load_tensors, save_tensors
from minigpt.tokenizer.vocabulary import END_OF_TEXT

LONG_RUN = 8  # words: shorter runs are mostly the language's own phrases
MOST_BYTES = 100_000_000  # of training text indexed; ten times that takes minutes and gigabytes

_FORMAT = "1"  # of the index on disk; a change of it, or of what a word is, makes those that stand stale
_FILE = "copies.safetensors"
_BLOCK = 2**14  # tokens decoded at once
_UNKNOWN = -1  # no word of the corpus

_SPACELESS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u3001-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Chinese, Japanese
)
_WORD = re.compile(rf"[{_SPACELESS}]|[^\s{_SPACELESS}]+")
_ANY_SPACELESS = re.compile(f"[{_SPACELESS}]")


@dataclass(frozen=True)
class CopiedRun:
    """A stretch of a text that stands in the corpus: characters `start` to `end` of the text, so many whole words.

    `place` is the word of the index at which it stands first, `times` how often it stands in what is indexed.
    """

    start: int
    end: int
    words: int
    place: int
    times: int


@dataclass(frozen=True)
class Copying:
    """How much of a text of so many `words` is copied.

    `runs` are all that no longer one contains, in order; they may overlap. `copied_words` are those in runs of at least
    `at_least` words, each counted once, and `spans` where these stand in the text, in characters.
    """

    words: int
    runs: tuple[CopiedRun, ...]
    at_least: int
    copied_words: int
    spans: tuple[tuple[int, int], ...]

    @property
    def longest(self) -> CopiedRun | None:
        """The first of the runs with the most words; None where no word stands in the corpus."""
        return max(self.runs, key=lambda run: run.words, default=None)

    @property
    def longest_words(self) -> int:
        """How many words the longest run has, 0 where there is none."""
        return self.longest.words if self.longest else 0

    @property
    def share(self) -> float:
        """The share of the text's words that are in long runs."""
        return self.copied_words / self.words if self.words else 0.0

    @property
    def long_runs(self) -> list[CopiedRun]:
        """The runs of at least `at_least` words, in order."""
        return [run for run in self.runs if run.words >= self.at_least]

    def figures(self) -> dict[str, Any]:
        """The figures by names that a log can hold."""
        longest = self.longest
        return {
            "longest_copied_words": self.longest_words,
            "longest_copied_characters": longest.end - longest.start if longest else 0,
            "copied_share": self.share,
            "copied_at_least": self.at_least,
            "copied_spans": [list(span) for span in self.spans],
        }


@dataclass(frozen=True)
class Passage:
    """A place in the training part: its document, counted from 1 there, and the line in that, counted from 1."""

    document: int
    line: int


@dataclass(frozen=True, eq=False)
class CopyIndex:
    """The words of a corpus's training part, sorted by what follows them.

    `ids` are the words as numbers and `suffixes` their sorted places, (N,) each; `blocks` are the stretches of the text
    that they come from: first word, first token, end token, (K, 3). `indexed_bytes` of `text_bytes` are in it.
    """

    corpus: Corpus
    vocabulary: Mapping[str, int]
    ids: Ids
    suffixes: Ids
    blocks: npt.NDArray[np.int64]
    indexed_bytes: int

    @classmethod
    def build(cls, corpus: Corpus, most_bytes: int = MOST_BYTES) -> Self:
        """The index of the training part; of a larger one than `most_bytes`, of blocks spread evenly over it."""
        every = _blocks(corpus)
        count = min(len(every), max(1, len(every) * most_bytes // max(1, corpus.train_bytes)))
        chosen = every[np.arange(count) * len(every) // count] if count else every
        numbers: defaultdict[str, int] = defaultdict()
        numbers.default_factory = numbers.__len__
        found, firsts, n_words = [], [], 0
        for start, end in chosen.tolist():
            words = _split(_text(corpus, start, end))
            if count < len(every):
                words.append(END_OF_TEXT)  # what follows here does not follow in the text
            found.append(np.fromiter(map(numbers.__getitem__, words), np.int32, len(words)))
            firsts.append(n_words)
            n_words += len(words)
        ids = np.concatenate(found) if found else np.empty(0, np.int32)
        lengths = corpus.tokenizer.token_lengths
        indexed = sum(int(lengths[corpus.train[start:end]].sum()) for start, end in chosen.tolist())
        blocks = np.column_stack([np.array(firsts, np.int64), chosen])
        return cls(corpus, dict(numbers), ids, sort_suffixes(ids), blocks, indexed)

    @classmethod
    def open(cls, corpus: Corpus, most_bytes: int = MOST_BYTES) -> Self:
        """The index that stands beside the corpus's tokens, else one as `build` makes it, put there if it is whole."""
        found = cls.find(corpus)
        if found is None:
            found = cls.build(corpus, most_bytes)
            if found.is_whole:
                with contextlib.suppress(CheckpointError):  # a cache that cannot be written costs time only
                    found._save()
        return found

    @classmethod
    def find(cls, corpus: Corpus) -> Self | None:
        """The index of the whole training part that stands beside the corpus's tokens, if there is a sound one."""
        try:
            tensors, metadata = load_tensors(corpus.path / _FILE)
        except CheckpointError:
            return None
        if metadata != {"format": _FORMAT, "fingerprint": corpus.fingerprint}:
            return None
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        words = arrays["vocabulary"].tobytes().decode().split("\n")
        numbers = {word: number for number, word in enumerate(words)}
        return cls(corpus, numbers, arrays["ids"], arrays["suffixes"], arrays["blocks"], corpus.train_bytes)

    def _save(self) -> None:
        words = np.frombuffer("\n".join(self.vocabulary).encode(), np.uint8)  # in the order of their numbers
        arrays = {"ids": self.ids, "suffixes": self.suffixes, "blocks": self.blocks, "vocabulary": words.copy()}
        save_tensors(
            self.corpus.path / _FILE,
            {name: torch.from_numpy(array) for name, array in arrays.items()},
            {"format": _FORMAT, "fingerprint": self.corpus.fingerprint},
        )

    @property
    def is_whole(self) -> bool:
        """Whether all of the training part is in it."""
        return self.indexed_bytes == self.corpus.train_bytes

    def measure(self, text: str, prompt: str = "", at_least: int = LONG_RUN) -> Copying:
        """How much of a text is copied; of a `prompt` that it continues nothing counts.

        A word that the prompt begins and the text ends is a word of the text. A run counts from the text's first word
        on, however much of the prompt before it stands in the corpus too.
        """
        origin = len(prompt)
        words = [match for match in _WORD.finditer(prompt + text) if match.end() > origin]
        query = [_UNKNOWN if word[0] == END_OF_TEXT else self.vocabulary.get(word[0], _UNKNOWN) for word in words]
        runs: list[CopiedRun] = []
        spans: list[tuple[int, int]] = []
        copied = covered = first = 0  # words counted, the word up to which long runs have come, where the next begins
        while first < len(words):
            match = find_longest(self.ids, self.suffixes, query[first:])
            end = first + match.length
            if match.length:
                start, stop = max(0, words[first].start() - origin), words[end - 1].end() - origin
                runs.append(CopiedRun(start, stop, match.length, match.place, match.times))
            if match.length >= at_least:
                copied += end - max(first, covered)
                if spans and first <= covered:
                    spans[-1] = (spans[-1][0], stop)
                else:
                    spans.append((start, stop))
                covered = end
            first = self._next_run(query, first, end)
        return Copying(len(words), tuple(runs), at_least, copied, tuple(spans))

    def _next_run(self, query: list[int], first: int, end: int) -> int:
        """Where the next run begins that ends behind `end`, where that from `first` on does.

        It takes in the word at `end`, and where words up to that stand in the corpus, so do fewer of them.
        """
        if end == len(query):
            return end
        beginnings = range(first + 1, end + 1)
        return first + 1 + bisect_left(beginnings, True, key=lambda begin: self._holds(query[begin : end + 1]))

    def _holds(self, query: list[int]) -> bool:
        return find_longest(self.ids, self.suffixes, query).length == len(query)

    def locate(self, place: int) -> Passage:
        """Where the word at a place of the index stands in the training part."""
        block = int(np.searchsorted(self.blocks[:, 0], place, side="right")) - 1
        first, start, end = self.blocks[block].tolist()
        text = _text(self.corpus, start, end)
        before = text[: next(islice(_WORD.finditer(text), place - first, None)).start()]
        *earlier, line = before.split(END_OF_TEXT)
        tokens, end_of_text = self.corpus.train, self.corpus.tokenizer.end_of_text
        ends = np.flatnonzero(tokens[:start] == end_of_text)
        lines = line.count("\n")
        if not earlier:
            document_start = int(ends[-1]) + 1 if len(ends) else 0
            lines += int(_count_in_tokens(self.corpus, b"\n")[tokens[document_start:start]].sum())
        return Passage(len(ends) + len(earlier) + 1, lines + 1)


def _split(text: str) -> list[str]:
    """The words of a text, the fast way where there is one."""
    return text.split() if text.isascii() or not _ANY_SPACELESS.search(text) else _WORD.findall(text)


def _text(corpus: Corpus, start: int, end: int) -> str:
    """The training text of some tokens, each end of text a word of its own."""
    return corpus.tokenizer.decode(corpus.train[start:end].tolist()).replace(END_OF_TEXT, f" {END_OF_TEXT} ")


def _blocks(corpus: Corpus) -> npt.NDArray[np.int64]:
    """Where to cut the training part into blocks of tokens so that no word and no character is cut. Shapes: (K, 2)."""
    tokenizer, n = corpus.tokenizer, len(corpus.train)
    opens = np.array([tokenizer.token_bytes(id)[:1] in (b" ", b"\n") for id in range(tokenizer.vocab_size)])
    opens[tokenizer.end_of_text] = True
    cuts = np.flatnonzero(opens[corpus.train])
    wanted = np.arange(_BLOCK, n, _BLOCK)
    inner = cuts[np.searchsorted(cuts, wanted[wanted <= (cuts[-1] if len(cuts) else -1)])]
    edges = np.unique(np.array(list(chain([0] if n else [], inner.tolist(), [n] if n else [])), np.int64))
    return np.column_stack([edges[:-1], edges[1:]])


def _count_in_tokens(corpus: Corpus, byte: bytes) -> npt.NDArray[np.int64]:
    """How often a byte occurs in each token of the vocabulary. Shapes: (V,)."""
    tokenizer = corpus.tokenizer
    return np.array([tokenizer.token_bytes(id).count(byte) for id in range(tokenizer.vocab_size)], np.int64)
