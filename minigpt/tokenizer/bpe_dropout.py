"""BPE-dropout: words cut into other tokens each time they are read; it knows neither texts nor batches.

A tokenizer cuts a word in one way only, so a model that reads a small text many times learns its tokens by heart, and
never sees that " walked" has to do with " walk". Here every merge that would make a word of its bytes is left out with
some probability each time it could be made, so that now and then the word comes in smaller or other parts.
"""

import unicodedata

import numpy as np
import numpy.typing as npt

from minigpt.errors import TokenizerError
from minigpt.seeds import mixed
from minigpt.tokenizer.tokenizer import Tokenizer

Ids = npt.NDArray[np.int64]

_NEVER = np.iinfo(np.int64).max  # the rank of a pair that no merge joins
_LONGEST = 32  # bytes of a word that is cut anew; in longer ones, rows of signs mostly, every merge costs a turn
_CONTRACTIONS = frozenset((b"'s", b"'d", b"'m", b"'t", b"'ll", b"'ve", b"'re"))
_WHOLE, _CONTRACTION, _LETTERS, _NUMBERS, _SIGNS = range(5)  # what a token is made of; whole ones are never cut
_CATEGORIES = {"L": _LETTERS, "N": _NUMBERS}  # of characters, by the first letter of Unicode's category


class BPEDropout:
    """Cuts the words among a tokenizer's ids anew.

    Source: Provilkov et al. 2020, "BPE-Dropout: Simple and effective subword regularization", algorithm 1.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises: TokenizerError for a tokenizer that makes no word of two bytes by a merge."""
        words = tokenizer.vocabulary.words
        merges = [(words[left], words[right], words[left + right]) for left, right in tokenizer.merges
                  if left in words and right in words and left + right in words]  # fmt: skip
        if tokenizer.vocabulary.by_character or not merges:
            raise TokenizerError(
                f"bpe_dropout needs a tokenizer that merges bytes into words, which {tokenizer.name} does not; give 0"
            )
        self._size = tokenizer.vocab_size
        left, right, self._merged = np.array(merges, dtype=np.int64).T
        pairs = left * self._size + right
        self._ranks = np.argsort(pairs, kind="stable")
        self._pairs = pairs[self._ranks]
        tokens = [tokenizer.token_bytes(id) for id in range(self._size)]
        named = {*tokenizer.special.values(), *tokenizer.vocabulary.added.values()}
        kinds = [_WHOLE if id in named else _kind(token) for id, token in enumerate(tokens)]
        self._kinds = np.array(kinds, dtype=np.int8)
        self._leads = np.array([token.startswith(b" ") for token in tokens])
        # Every token spelled in bytes, then every token as itself: one array to take either from.
        self._lengths = np.array([len(token) for token in tokens], dtype=np.int64)
        byte_ids = np.array([words[bytes([byte])] for byte in range(256)], dtype=np.int64)
        spelled = byte_ids[np.frombuffer(b"".join(tokens), dtype=np.uint8)]
        self._spellings = np.concatenate([spelled, np.arange(self._size)])
        self._spelled_at = self._lengths.cumsum() - self._lengths
        self._itself_at = len(spelled) + np.arange(self._size)

    def __call__(self, sequences: Ids, seeds: npt.NDArray[np.uint64], share: float, length: int) -> Ids:
        """The first `length` tokens of every sequence, its words cut anew with a `share` > 0 of the merges left out.

        A sequence depends on its own seed and tokens alone. One that comes out shorter than `length`, as other cuts
        seldom do, stays as it was.
        Shapes: (B, N), (B,) -> (B, length), N at least length.
        """
        rows, n = sequences.shape
        ids = sequences.ravel()
        kinds = self._kinds[ids]
        starts = self._leads[ids] | (kinds <= _CONTRACTION)  # these are words by themselves
        starts[1:] |= kinds[1:] != kinds[:-1]
        starts[::n] = True
        word = starts.cumsum() - 1  # of each token
        size = np.bincount(word, weights=self._lengths[ids]).astype(np.int64)  # bytes of each word
        at = np.flatnonzero(starts)
        draws = mixed(mixed(seeds)[at // n] + (at % n).astype(np.uint64))
        # The first merge to be left out is drawn for a whole word at once; in most words it is beyond their last one,
        # and only the others are cut anew.
        chance = (draws >> np.uint64(11)).astype(np.float64) * 2.0**-53 + 2.0**-54
        regular = np.log(chance) / np.log1p(-share)  # turns in which the word comes about as ever
        cut = ((kinds[at] != _WHOLE) & (size <= _LONGEST) & (regular < size - np.bincount(word)))[word]
        draws, regular = draws[word], regular[word]
        starts |= ~cut  # what is not cut stays in the tokens it is in

        count = np.where(cut, self._lengths[ids], 1)
        first = count.cumsum() - count
        source = np.where(cut, self._spelled_at[ids], self._itself_at[ids]) - first
        symbols = self._spellings[np.repeat(source, count) + np.arange(count.sum())]
        word = np.repeat(starts.cumsum() - 1, count)
        symbols, word = self._merge(symbols, word, draws[starts], np.floor(regular[starts]), share)

        lengths = np.bincount((np.flatnonzero(starts) // n)[word], minlength=rows)
        begins = lengths.cumsum() - lengths
        made = symbols[np.minimum(begins[:, None] + np.arange(length), len(symbols) - 1)]
        return np.where((lengths >= length)[:, None], made, sequences[:, :length])

    def _merge(
        self,
        symbols: Ids,
        word: Ids,
        draws: npt.NDArray[np.uint64],
        regular: npt.NDArray[np.float64],
        share: float,
    ) -> tuple[Ids, Ids]:
        """Byte-pair encoding of many words at once, turn by turn: in each word the first of the merges that can be
        made and are not left out this time; none is left out in its first `regular` turns, and then the first one is.
        A word is done when nothing is left to be made.

        Shapes: symbols (S,) and the word of each (S,), draws and regular (W,) -> symbols (S',), words (S',).
        """
        done = symbols.copy()  # by where a symbol begins; -1 where it has become part of the one before
        place, every_word = np.arange(len(symbols)), word
        in_word = place - np.flatnonzero(np.diff(word, prepend=-1))[word]
        draws = draws[word] + in_word.astype(np.uint64)
        ranks = np.full(len(symbols), _NEVER)  # of the pair that a symbol begins
        inside = np.flatnonzero(word[1:] == word[:-1])
        ranks[inside] = self._rank(symbols[inside], symbols[inside + 1])
        least = np.uint64(min(int(share * 2**64), 2**64 - 1))
        going = np.empty(len(regular), dtype=bool)
        for turn in range(_LONGEST):
            can = np.flatnonzero(ranks != _NEVER)
            kept = mixed(draws[place[can]] + np.uint64(turn << 32)) >= least
            kept |= turn < regular[word[can]]
            firsts = _firsts(word[can], ranks[can])
            kept[firsts] &= turn != regular[word[can[firsts]]]
            can = can[kept]
            if not len(can):
                break
            hits = can[_firsts(word[can], ranks[can])]
            symbols[hits] = done[place[hits]] = self._merged[ranks[hits]]
            done[place[hits + 1]] = -1
            going[:] = False
            going[word[hits]] = True  # in the other words nothing could be merged: they are done
            stay = going[word]
            stay[hits + 1] = False
            moved = stay.cumsum()[hits] - 1
            symbols, word, place, ranks = symbols[stay], word[stay], place[stay], ranks[stay]
            near = np.concatenate([moved, np.maximum(moved - 1, 0)])
            after = np.minimum(near + 1, len(symbols) - 1)
            joined = (near < after) & (word[near] == word[after])
            ranks[near] = np.where(joined, self._rank(symbols[near], symbols[after]), _NEVER)
        left = done >= 0
        return done[left], every_word[left]

    def _rank(self, left: Ids, right: Ids) -> Ids:
        """The rank of the merge that joins each pair, _NEVER where none does: (S,), (S,) -> (S,)."""
        pairs = left * self._size + right
        found = np.minimum(np.searchsorted(self._pairs, pairs), len(self._pairs) - 1)
        return np.where(self._pairs[found] == pairs, self._ranks[found], _NEVER)


def _firsts(word: Ids, ranks: Ids) -> Ids:
    """Where in each word the lowest rank is, the leftmost of equals: (S,), (S,) -> (W,)."""
    begins = np.flatnonzero(np.diff(word, prepend=-1))
    if not len(begins):
        return begins
    lowest = np.repeat(np.minimum.reduceat(ranks, begins), np.diff(begins, append=len(word)))
    equals = np.flatnonzero(ranks == lowest)
    return equals[np.diff(word[equals], prepend=-1) != 0]


def _kind(token: bytes) -> int:
    """What a token is made of, behind one space; GPT-2's words are of one kind each, and contractions apart."""
    try:
        text = token.decode().removeprefix(" ")
    except UnicodeDecodeError:
        return _WHOLE
    if token in _CONTRACTIONS:
        return _CONTRACTION
    kinds = {
        _WHOLE if character.isspace() else _CATEGORIES.get(unicodedata.category(character)[0], _SIGNS)
        for character in text
    }
    return kinds.pop() if len(kinds) == 1 else _WHOLE
