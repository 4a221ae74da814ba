"""Which documents and windows of a mixture each training sequence reads: a pure function of the seed and its number.

A text's shards are in groups of eight. In the first epoch they are in the order in which they are tokenized, which
depends only on the files; later epochs shuffle them. Within a group, the documents are in random order, and windows of
this stream are visited in random order. So the first sequences need the first group only, and nothing depends on how
fast the rest is tokenized. No token is copied or moved.
"""

import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from minigpt.data.sharded.mixture import Mask, Mixture
from minigpt.data.sharded.store import Shard
from minigpt.data.sharded.tokenize import document_ends
from minigpt.data.sharded.workers import FIRST, heartbeat
from minigpt.errors import ConfigError, DataError
from minigpt.seeds import mix_seed

GROUP = FIRST
BLOCK = 10_000  # sequences in which each text has exactly its share
_POLL = 0.1  # seconds
_SILENCE = 60.0  # seconds without a sign of a process that tokenizes, after which there is none

Ids = npt.NDArray[np.int64]


class Group:
    """Some shards as one stream of documents in random order."""

    def __init__(self, shards: Sequence[npt.NDArray[Any]], masks: Sequence[Mask], end_of_text: int, seed: int) -> None:
        """`masks` say which documents of each shard belong to the stream."""
        self._shards = shards
        self._offsets = np.cumsum([0, *map(len, shards)])
        starts, lengths = [], []
        for offset, tokens, mask in zip(self._offsets, shards, masks, strict=False):
            ends = document_ends(tokens, end_of_text)
            if len(ends) != len(mask):
                raise DataError("the shards of the text do not have the documents that were counted; delete them")
            before = np.concatenate([[0], ends[:-1]])
            starts.append((offset + before)[mask])
            lengths.append((ends - before)[mask])
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(sum(map(len, starts)), generator=generator).numpy()
        self._starts = np.concatenate(starts)[order]
        self._ends = np.cumsum(np.concatenate(lengths)[order])
        self.size = int(self._ends[-1]) if len(self._ends) else 0

    def read(self, positions: Ids) -> Ids:
        """The tokens at positions of the stream, which is a ring. Shapes: any, the same."""
        positions = positions % self.size
        documents = np.searchsorted(self._ends, positions, side="right")
        before = np.where(documents > 0, self._ends[documents - 1], 0)
        places = self._starts[documents] + positions - before
        of_shard = np.searchsorted(self._offsets, places, side="right") - 1
        tokens = np.empty(places.shape, np.int64)
        for number in np.unique(of_shard):
            chosen = of_shard == number
            tokens[chosen] = self._shards[number][places[chosen] - self._offsets[number]]
        return tokens


class TextOrder:
    """The order of the sequences of one text, as far as its shards are known."""

    def __init__(self, mixture: Mixture, store: int, end_of_text: int, vocab_size: int) -> None:
        self._mixture, self._store, self._end_of_text, self._vocab_size = mixture, store, end_of_text, vocab_size
        self._known: list[tuple[Shard, Mask]] = []
        self._held_out: Mapping[str, list[int]] = {}
        self._sizes: list[int] = []  # tokens of each shard that are trained on
        self._starts: dict[tuple[int, int], list[int]] = {}  # first sequences of epochs, by length and seed
        self.is_complete = False
        self._is_frozen = False
        self._group = lru_cache(maxsize=2)(self._read_group)
        self._counts = lru_cache(maxsize=4)(self._count)

    def hold_out(self, documents: Mapping[str, list[int]]) -> None:
        """Excludes these documents of shards, by name."""
        self._held_out = documents
        self.refresh()

    def refresh(self) -> None:
        """Looks for shards that have been written since."""
        if self.is_complete:
            return
        for index, shard in enumerate(self._mixture.stores[self._store].shards()):
            if shard is None:
                return
            if index >= len(self._known):
                mask = self._mixture.kept(self._store, shard)
                if mask is None:
                    return
                held_out = self._held_out.get(shard.name, [])
                if held_out:
                    mask[held_out] = False
                self._known.append((shard, mask))
                self._sizes.append(self._size(shard, mask))
        self.is_complete = True

    def frozen(self) -> "TextOrder":
        """A copy with the shards known now: it ignores later ones, and repeats the first epoch of these."""
        copied = TextOrder(self._mixture, self._store, self._end_of_text, self._vocab_size)
        copied._known, copied._sizes = list(self._known), list(self._sizes)
        copied.is_complete = copied._is_frozen = True
        return copied

    def _size(self, shard: Shard, mask: Mask) -> int:
        if mask.all():
            return shard.tokens
        ends = document_ends(self._tokens(shard), self._end_of_text)
        return int(np.diff(ends, prepend=0)[mask].sum())

    def _tokens(self, shard: Shard) -> npt.NDArray[Any]:
        return self._mixture.stores[self._store].read_tokens(shard, self._vocab_size)

    @property
    def n_tokens(self) -> int:
        """The number of tokens of the known shards that are trained on."""
        return sum(self._sizes)

    def locate(self, sequence: int, length: int, seed: int) -> tuple[int, int, int] | None:
        """The epoch, group and window of a sequence; None if it is not known yet.

        Raises: DataError if the text has no tokens to train on.
        """
        epoch = 0
        if self.is_complete:
            starts = self._starts_of_epochs(0 if self._is_frozen else sequence, length, seed)
            if self._is_frozen:  # the first epoch repeats
                sequence %= starts[1]
            epoch = bisect_right(starts, sequence) - 1
            sequence -= starts[epoch]
        counts, ends = self._counts(epoch, length, seed, len(self._known), self.is_complete)
        if not len(ends) or sequence >= ends[-1]:
            return None
        group = int(np.searchsorted(ends, sequence, side="right"))
        return epoch, group, sequence - int(ends[group] - counts[group])

    def _starts_of_epochs(self, sequence: int, length: int, seed: int) -> list[int]:
        """The first sequence of each epoch, up to the one after that of `sequence`; needs all shards.

        They are kept: a text that is read a thousand times would need a thousand permutations for each sequence.
        """
        starts = self._starts.setdefault((length, seed), [0])
        while starts[-1] <= sequence:
            _, ends = self._counts(len(starts) - 1, length, seed, len(self._known), self.is_complete)
            if not len(ends) or not ends[-1]:
                raise DataError("a text has nothing to train on beside what is held out; give more text")
            starts.append(starts[-1] + int(ends[-1]))
        return starts

    def _count(self, epoch: int, length: int, seed: int, _known: int, _complete: bool) -> tuple[Ids, Ids]:
        """The windows of each group of an epoch that is there as a whole, and their sums."""
        order = self._order(epoch, seed)
        groups = [order[start : start + GROUP] for start in range(0, len(order), GROUP)]
        if not self.is_complete and groups and len(groups[-1]) < GROUP:
            groups.pop()
        sizes = [sum(self._sizes[index] for index in group) for group in groups]
        counts = np.array([max(1, size // length) if size else 0 for size in sizes], np.int64)
        return counts, np.cumsum(counts)

    def _order(self, epoch: int, seed: int) -> list[int]:
        if epoch == 0:
            return list(range(len(self._known)))
        generator = torch.Generator().manual_seed(mix_seed(seed, epoch))
        return torch.randperm(len(self._known), generator=generator).tolist()

    def _read_group(self, epoch: int, number: int, length: int, seed: int) -> tuple[Group, int, Ids]:
        indices = self._order(epoch, seed)[number * GROUP : (number + 1) * GROUP]
        shards = [self._tokens(self._known[index][0]) for index in indices]
        masks = [self._known[index][1] for index in indices]
        own_seed = mix_seed(mix_seed(seed, epoch), number + 1)
        group = Group(shards, masks, self._end_of_text, own_seed)
        generator = torch.Generator().manual_seed(mix_seed(own_seed, length))
        offset = int(torch.randint(group.size, (), generator=generator))
        return group, offset, torch.randperm(max(1, group.size // length), generator=generator).numpy()

    def window(self, place: tuple[int, int, int], length: int, lookahead: int, seed: int) -> Ids:
        """A window and the tokens after it. Shapes: (length + lookahead,)."""
        epoch, number, index = place
        group, offset, order = self._group(epoch, number, length, seed)
        return group.read(offset + int(order[index]) * length + np.arange(length + lookahead))


class MixtureOrder:
    """The order of the sequences of a mixture."""

    def __init__(
        self, mixture: Mixture, end_of_text: int, vocab_size: int, held_out: Sequence[Mapping[str, list[int]]]
    ) -> None:
        self.mixture = mixture
        self.texts = [TextOrder(mixture, store, end_of_text, vocab_size) for store in range(len(mixture.stores))]
        for text, documents in zip(self.texts, held_out, strict=True):
            text.hold_out(documents)
        self._counts = shares(mixture.weights)
        self._block = lru_cache(maxsize=2)(self._draw_block)
        self.check: Callable[[], object] = _Silence(mixture).check

    def frozen(self) -> "MixtureOrder":
        """A copy that repeats the sequences known now and never waits for others."""
        copied = copy(self)
        copied.texts = [text.frozen() for text in self.texts]
        readable = [text for text in copied.texts if text.n_tokens]
        if readable:  # the first shards of a text may have only duplicates of other texts
            copied.texts = [text if text.n_tokens else readable[0] for text in copied.texts]
        return copied

    def is_ready(self, sequences: Sequence[int], length: int, seed: int) -> bool:
        """Whether the shards that these sequences need are there.

        Raises: DataError if they never will be.
        """
        last: dict[int, int] = {}
        for sequence in sequences:
            text, number = self._text_of(sequence, seed)
            last[text] = max(number, last.get(text, 0))
        missing = [text for text, number in last.items() if self.texts[text].locate(number, length, seed) is None]
        for text in missing:
            self.texts[text].refresh()
        return all(self.texts[text].locate(last[text], length, seed) is not None for text in missing)

    def windows(self, sequences: Sequence[int], length: int, lookahead: int, seed: int) -> Ids:
        """The windows of these sequences, each with the tokens after it; waits until their shards are there.

        Shapes: (sequences, length + lookahead).
        Raises: DataError.
        """
        while not self.is_ready(sequences, length, seed):
            self.check()
            time.sleep(_POLL)
        found = []
        for sequence in sequences:
            text, number = self._text_of(sequence, seed)
            place = self.texts[text].locate(number, length, seed)
            assert place is not None
            found.append(self.texts[text].window(place, length, lookahead, seed))
        return np.stack(found)

    def _text_of(self, sequence: int, seed: int) -> tuple[int, int]:
        """The text of a sequence, and the number of the sequence among those of that text."""
        if len(self._counts) == 1:
            return 0, sequence
        block, index = divmod(sequence, BLOCK)
        texts, ranks = self._block(block, seed)
        text = int(texts[index])
        return text, block * self._counts[text] + int(ranks[index])

    def _draw_block(self, block: int, seed: int) -> tuple[Ids, Ids]:
        """The text of each sequence of a block, and its rank among those of that text in the block."""
        generator = torch.Generator().manual_seed(mix_seed(~seed, block))
        drawn = np.repeat(np.arange(len(self._counts)), self._counts)[
            torch.randperm(BLOCK, generator=generator).numpy()
        ]
        ranks = np.empty(BLOCK, np.int64)
        for text, count in enumerate(self._counts):
            ranks[drawn == text] = np.arange(count)
        return drawn, ranks


def shares(weights: Sequence[float]) -> list[int]:
    """How many sequences of each block come from each text: the largest-remainder method.

    Raises: ConfigError for a weight that is too small for one.
    """
    exact = [BLOCK * weight / sum(weights) for weight in weights]
    counts = [int(each) for each in exact]
    by_remainder = sorted(range(len(exact)), key=lambda text: (counts[text] - exact[text], text))
    for text in by_remainder[: BLOCK - sum(counts)]:
        counts[text] += 1
    if 0 in counts:
        weight = weights[counts.index(0)]
        raise ConfigError(f"mix ({weight:g}) is too small a weight: it must be at least 1/{BLOCK:,} of all together")
    return counts


class _Silence:
    """Notices that no process tokenizes the text that this one waits for."""

    def __init__(self, mixture: Mixture) -> None:
        self._mixture = mixture
        self._beat: float | None = None
        self._since = time.monotonic()
        self._last_check = 0.0

    def check(self) -> None:
        """Raises DataError if there has been no sign of one for a minute of waiting."""
        now, beat = time.monotonic(), heartbeat(self._mixture.folder)
        if beat != self._beat or now - self._last_check > _SILENCE / 2:  # the last wait was another one
            self._beat, self._since = beat, now
        self._last_check = now
        if now - self._since > _SILENCE:
            raise DataError(
                f"no process tokenizes the text in {self._mixture.folder}, which training waits for; resume the run, "
                "with MINIGPT_CACHE in a folder that all machines share"
            )
