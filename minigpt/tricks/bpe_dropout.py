"""BPE-dropout: encodes the pre-tokens of a text as other tokens in each epoch.

A tokenizer encodes a pre-token in one way only. A model that reads a small text many times therefore memorizes its
tokens, and does not learn that " walked" is related to " walk". BPE-dropout drops each merge with some probability
every time it could be applied, so that a pre-token sometimes becomes smaller or different tokens.
"""

import unicodedata
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from minigpt.errors import TokenizerError
from minigpt.seeds import splitmix64
from minigpt.tokenizer.tokenizer import Tokenizer

Ids = npt.NDArray[np.int64]

_NO_MERGE = np.iinfo(np.int64).max  # the rank of a pair that no merge joins
_LONGEST = 32  # bytes; longer pre-tokens, mostly rows of dashes, stay unchanged: every merge costs one iteration
_CONTRACTIONS = frozenset((b"'s", b"'d", b"'m", b"'t", b"'ll", b"'ve", b"'re"))
_FIXED, _CONTRACTION, _LETTERS, _NUMBERS, _OTHER = range(5)  # kinds of tokens; fixed ones are never split
_CATEGORIES = {"L": _LETTERS, "N": _NUMBERS}  # by the first letter of a character's Unicode category


class BPEDropout:
    """Re-tokenizes sequences of a tokenizer's ids with dropped merges.

    Source: Provilkov et al. 2020, "BPE-Dropout: Simple and effective subword regularization", algorithm 1.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises: TokenizerError for a tokenizer without merges."""
        if not tokenizer.merges:
            raise self._refusal(tokenizer)
        vocabulary = tokenizer.byte_level("bpe_dropout")
        vocab = vocabulary.tokens
        merges = [(vocab[left], vocab[right], vocab[left + right]) for left, right in tokenizer.merges
                  if left in vocab and right in vocab and left + right in vocab]  # fmt: skip
        if vocabulary.by_character or not merges:
            raise self._refusal(tokenizer)
        self._size = tokenizer.vocab_size
        left, right, self._merged = np.array(merges, dtype=np.int64).T
        pairs = left * self._size + right
        self._ranks = np.argsort(pairs, kind="stable")
        self._pairs = pairs[self._ranks]
        tokens = [tokenizer.token_bytes(id) for id in range(self._size)]
        named = {*tokenizer.special.values(), *vocabulary.added.values()}
        kinds = [_FIXED if id in named else _kind(token) for id, token in enumerate(tokens)]
        self._kinds = np.array(kinds, dtype=np.int8)
        self._leads = np.array([token.startswith(b" ") for token in tokens])
        # The bytes of every token as ids, then every token itself: one array to index for either.
        self._lengths = np.array([len(token) for token in tokens], dtype=np.int64)
        byte_ids = np.array([vocab[bytes([byte])] for byte in range(256)], dtype=np.int64)
        spelled = byte_ids[np.frombuffer(b"".join(tokens), dtype=np.uint8)]
        self._spellings = np.concatenate([spelled, np.arange(self._size)])
        self._spelled_at = self._lengths.cumsum() - self._lengths
        self._itself_at = len(spelled) + np.arange(self._size)

    @classmethod
    @lru_cache(maxsize=2)  # a plan builds several models with the same tokenizer
    def of(cls, tokenizer: Tokenizer) -> "BPEDropout":
        """The BPE-dropout of a tokenizer."""
        return cls(tokenizer)

    @staticmethod
    def _refusal(tokenizer: Tokenizer) -> TokenizerError:
        return TokenizerError(
            f"bpe_dropout needs a tokenizer with merges (gpt2 or bpe:N); {tokenizer.name} has none, so it must be 0"
        )

    def __call__(self, sequences: Ids, seeds: npt.NDArray[np.uint64], dropout: float, length: int) -> Ids:
        """The first `length` tokens of every sequence after encoding it again with BPE-dropout.

        `dropout` > 0 is the probability to drop a merge. A sequence depends only on its own seed and tokens. One that
        would become shorter than `length`, which is rare, stays unchanged.
        Shapes: (B, N), (B,) -> (B, length), N at least length.
        """
        rows, n = sequences.shape
        ids = sequences.ravel()
        kinds = self._kinds[ids]
        starts = self._leads[ids] | (kinds <= _CONTRACTION)  # where a pre-token starts
        starts[1:] |= kinds[1:] != kinds[:-1]
        starts[::n] = True
        pretoken = starts.cumsum() - 1  # of each token
        size = np.bincount(pretoken, weights=self._lengths[ids]).astype(np.int64)  # bytes of each pre-token
        at = np.flatnonzero(starts)
        draws = splitmix64(splitmix64(seeds)[at // n] + (at % n).astype(np.uint64))
        # The iteration of the first dropped merge is drawn once per pre-token. For most pre-tokens it is after their
        # last merge, so that only the others are encoded again.
        uniform = (draws >> np.uint64(11)).astype(np.float64) * 2.0**-53 + 2.0**-54
        first_drop = np.log(uniform) / np.log1p(-dropout)
        split = ((kinds[at] != _FIXED) & (size <= _LONGEST) & (first_drop < size - np.bincount(pretoken)))[pretoken]
        draws, first_drop = draws[pretoken], first_drop[pretoken]
        starts |= ~split  # the other pre-tokens keep their tokens

        count = np.where(split, self._lengths[ids], 1)
        first = count.cumsum() - count
        source = np.where(split, self._spelled_at[ids], self._itself_at[ids]) - first
        symbols = self._spellings[np.repeat(source, count) + np.arange(count.sum())]
        pretoken = np.repeat(starts.cumsum() - 1, count)
        symbols, pretoken = self._merge(symbols, pretoken, draws[starts], np.floor(first_drop[starts]), dropout)

        lengths = np.bincount((np.flatnonzero(starts) // n)[pretoken], minlength=rows)
        begins = lengths.cumsum() - lengths
        merged = symbols[np.minimum(begins[:, None] + np.arange(length), len(symbols) - 1)]
        return np.where((lengths >= length)[:, None], merged, sequences[:, :length])

    def labels(self, before: Ids, after: Ids, labels: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The labels of re-tokenized sequences: that of the token of `before` in which a token of `after` begins.

        Shapes: before (B, N), after (B, L), labels of `before` (B, N) -> (B, L).
        """
        lengths = self._lengths[before]
        ends = lengths.cumsum(axis=1)
        row_starts = (ends[:, -1].cumsum() - ends[:, -1])[:, None]  # all rows on one axis of bytes
        after_lengths = self._lengths[after]
        starts = row_starts + after_lengths.cumsum(axis=1) - after_lengths
        found = np.searchsorted((row_starts + ends).ravel(), starts.ravel(), side="right")
        return labels.ravel()[found].reshape(after.shape)

    def _merge(
        self,
        symbols: Ids,
        pretoken: Ids,
        draws: npt.NDArray[np.uint64],
        first_drop: npt.NDArray[np.float64],
        dropout: float,
    ) -> tuple[Ids, Ids]:
        """Byte-pair encoding of many pre-tokens in parallel.

        Each iteration applies to every pre-token its merge of lowest rank, of those not dropped in this iteration. No
        merge is dropped before iteration `first_drop`; in that iteration the merge of lowest rank is. A pre-token is
        complete when no merge is left.
        Shapes: symbols (S,), pretoken (S,) of each symbol, draws and first_drop (P,) -> symbols (S',), pretoken (S',).
        """
        result = symbols.copy()  # by the position at which a symbol begins; -1 if it was joined to the one before
        position, pretoken_at = np.arange(len(symbols)), pretoken
        offset = position - np.flatnonzero(np.diff(pretoken, prepend=-1))[pretoken]  # in the pre-token
        draws = draws[pretoken] + offset.astype(np.uint64)
        ranks = np.full(len(symbols), _NO_MERGE)  # of the pair that a symbol begins
        inside = np.flatnonzero(pretoken[1:] == pretoken[:-1])
        ranks[inside] = self._rank(symbols[inside], symbols[inside + 1])
        threshold = np.uint64(min(int(dropout * 2**64), 2**64 - 1))
        active = np.empty(len(first_drop), dtype=bool)
        for iteration in range(_LONGEST):
            candidates = np.flatnonzero(ranks != _NO_MERGE)
            kept = splitmix64(draws[position[candidates]] + np.uint64(iteration << 32)) >= threshold
            kept |= iteration < first_drop[pretoken[candidates]]
            firsts = _first_merges(pretoken[candidates], ranks[candidates])
            kept[firsts] &= iteration != first_drop[pretoken[candidates[firsts]]]
            candidates = candidates[kept]
            if not len(candidates):
                break
            hits = candidates[_first_merges(pretoken[candidates], ranks[candidates])]
            symbols[hits] = result[position[hits]] = self._merged[ranks[hits]]
            result[position[hits + 1]] = -1
            active[:] = False
            active[pretoken[hits]] = True  # the other pre-tokens are complete
            stay = active[pretoken]
            stay[hits + 1] = False
            moved = stay.cumsum()[hits] - 1
            symbols, pretoken, position, ranks = symbols[stay], pretoken[stay], position[stay], ranks[stay]
            near = np.concatenate([moved, np.maximum(moved - 1, 0)])
            after = np.minimum(near + 1, len(symbols) - 1)
            joined = (near < after) & (pretoken[near] == pretoken[after])
            ranks[near] = np.where(joined, self._rank(symbols[near], symbols[after]), _NO_MERGE)
        left = result >= 0
        return result[left], pretoken_at[left]

    def _rank(self, left: Ids, right: Ids) -> Ids:
        """The rank of the merge that joins each pair, _NO_MERGE if none does: (S,), (S,) -> (S,)."""
        pairs = left * self._size + right
        found = np.minimum(np.searchsorted(self._pairs, pairs), len(self._pairs) - 1)
        return np.where(self._pairs[found] == pairs, self._ranks[found], _NO_MERGE)


def _first_merges(pretoken: Ids, ranks: Ids) -> Ids:
    """The index of the lowest rank in each pre-token, the leftmost of equals: (S,), (S,) -> (P,)."""
    begins = np.flatnonzero(np.diff(pretoken, prepend=-1))
    if not len(begins):
        return begins
    lowest = np.repeat(np.minimum.reduceat(ranks, begins), np.diff(begins, append=len(pretoken)))
    equals = np.flatnonzero(ranks == lowest)
    return equals[np.diff(pretoken[equals], prepend=-1) != 0]


def _kind(token: bytes) -> int:
    """The kind of a token's characters after one space; a pre-token of GPT-2 has one kind, or is a contraction."""
    try:
        text = token.decode().removeprefix(" ")
    except UnicodeDecodeError:
        return _FIXED
    if token in _CONTRACTIONS:
        return _CONTRACTION
    kinds = {
        _FIXED if character.isspace() else _CATEGORIES.get(unicodedata.category(character)[0], _OTHER)
        for character in text
    }
    return kinds.pop() if len(kinds) == 1 else _FIXED
