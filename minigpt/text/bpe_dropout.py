"""BPE-dropout: words cut into other tokens each time they are read; it knows neither texts nor batches.

A tokenizer cuts a word in one way only, so a model that reads a small text many times learns its tokens by heart, and
never sees that " walked" has to do with " walk". Here every merge that would make a word of its bytes is left out with
some probability each time it could be made, so that now and then the word comes in smaller or other parts.
"""

import unicodedata

import numpy as np
import numpy.typing as npt

from minigpt.errors import TokenizerError
from minigpt.text.tokenizer import Tokenizer

Ids = npt.NDArray[np.int64]

_NEVER = np.iinfo(np.int64).max  # the rank of a pair that no merge joins
_LONGEST = 32  # bytes of a word that is cut anew; in longer ones, rows of signs mostly, every merge costs a turn
_CONTRACTIONS = frozenset((b"'s", b"'d", b"'m", b"'t", b"'ll", b"'ve", b"'re"))
_WHOLE, _LETTERS, _NUMBERS, _SIGNS = range(4)  # what a token is made of; whole ones are never cut


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
        """The first `length` tokens of every sequence, its words cut anew with `share` of the merges left out.

        A sequence depends on its own seed and tokens alone. One that comes out shorter than `length`, as other cuts
        seldom do, stays as it was.
        Shapes: (B, N), (B,) -> (B, length), N at least length.
        """
        rows, n = sequences.shape
        ids = sequences.ravel()
        kinds = self._kinds[ids]
        starts = self._leads[ids] | (kinds == _WHOLE)
        starts[1:] |= kinds[1:] != kinds[:-1]
        starts[::n] = True
        word = starts.cumsum() - 1  # of each token
        size = np.bincount(word, weights=self._lengths[ids])[word]  # bytes of each token's word
        cut = (kinds != _WHOLE) & (size <= _LONGEST)
        starts |= ~cut  # what is not cut stays in the tokens it is in
        word = starts.cumsum() - 1

        count = np.where(cut, self._lengths[ids], 1)
        first = count.cumsum() - count
        source = np.where(cut, self._spelled_at[ids], self._itself_at[ids]) - first
        symbols = self._spellings[np.repeat(source, count) + np.arange(count.sum())]
        row = np.repeat(np.arange(rows), n)[starts]  # of each word
        at = np.flatnonzero(starts) % n  # of each word in its row: with the row's seed, what it draws by
        draws = _mixed(_mixed(seeds)[row] + at.astype(np.uint64))
        symbols, word = self._merge(symbols, np.repeat(word, count), draws, share)

        lengths = np.bincount(row[word], minlength=rows)
        begins = lengths.cumsum() - lengths
        made = symbols[np.minimum(begins[:, None] + np.arange(length), len(symbols) - 1)]
        return np.where((lengths >= length)[:, None], made, sequences[:, :length])

    def _merge(self, symbols: Ids, word: Ids, draws: npt.NDArray[np.uint64], share: float) -> tuple[Ids, Ids]:
        """Byte-pair encoding of many words at once, turn by turn: in each word the first of the merges that can be
        made and are not left out this time. A word is done when none is left.

        Shapes: symbols (S,) and the word of each (S,), draws (W,) -> symbols (S',), words (S',).
        """
        done = symbols.copy()  # by where a symbol begins; -1 where it has become part of the one before
        place, every_word = np.arange(len(symbols)), word
        in_word = place - np.flatnonzero(np.diff(word, prepend=-1))[word]
        draws = draws[word] + in_word.astype(np.uint64)
        ranks = np.append(self._rank(symbols[:-1], symbols[1:]), _NEVER)  # of the pair that a symbol begins
        ranks[:-1][word[1:] != word[:-1]] = _NEVER
        n_words = int(word[-1]) + 1
        least = np.uint64(min(int(share * 2**64), 2**64 - 1))
        for turn in range(_LONGEST):
            can = np.flatnonzero(ranks != _NEVER)
            words = word[can]
            kept = _mixed(draws[place[can]] + np.uint64(turn << 32)) >= least
            can, words = can[kept], words[kept]
            if not len(can):
                break
            runs = np.flatnonzero(np.diff(words, prepend=-1))  # where in `can` a word begins
            best = np.minimum.reduceat(ranks[can], runs)
            equals = np.flatnonzero(ranks[can] == np.repeat(best, np.diff(runs, append=len(can))))
            hits = can[equals[np.diff(words[equals], prepend=-1) != 0]]  # one in each word: the leftmost of equals
            symbols[hits] = done[place[hits]] = self._merged[best]
            done[place[hits + 1]] = -1
            going = np.zeros(n_words, dtype=bool)
            going[words] = True  # in the other words nothing could be merged: they are done
            stay = going[word]
            stay[hits + 1] = False
            moved = stay.cumsum()[hits] - 1
            symbols, word, place, ranks = symbols[stay], word[stay], place[stay], ranks[stay]
            near = np.concatenate([moved, np.maximum(moved - 1, 0)])
            after = np.minimum(near + 1, len(symbols) - 1)
            inside = (near < after) & (word[near] == word[after])
            ranks[near] = np.where(inside, self._rank(symbols[near], symbols[after]), _NEVER)
        left = done >= 0
        return done[left], every_word[left]

    def _rank(self, left: Ids, right: Ids) -> Ids:
        """The rank of the merge that joins each pair, _NEVER where none does: (S,), (S,) -> (S,)."""
        pairs = left * self._size + right
        found = np.minimum(np.searchsorted(self._pairs, pairs), len(self._pairs) - 1)
        return np.where(self._pairs[found] == pairs, self._ranks[found], _NEVER)


def _kind(token: bytes) -> int:
    """What a token is made of, behind one space; GPT-2's words are of one kind each, and contractions apart."""
    try:
        text = token.decode().removeprefix(" ")
    except UnicodeDecodeError:
        return _WHOLE
    kinds = {unicodedata.category(character)[0] for character in text}
    if len(kinds & {"L", "N"}) == 1 and len(kinds) == 1:
        return _LETTERS if "L" in kinds else _NUMBERS
    if not kinds or kinds & {"L", "N"} or token in _CONTRACTIONS or any(map(str.isspace, text)):
        return _WHOLE
    return _SIGNS


def _mixed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Numbers as good as random, each from one number alone (splitmix64, Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        z = numbers * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
