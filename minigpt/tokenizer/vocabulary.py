"""What a byte-level tokenizer consists of, and the proof of which words its merges make; it reads no files.

GPT-2's way of writing bytes as printable characters is here too, since every file of such a tokenizer uses it.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from minigpt.errors import TokenizerError

END_OF_TEXT = "<|endoftext|>"
Merge = tuple[bytes, bytes]

# GPT-2 writes bytes as printable characters: those that Latin-1 prints stand for themselves, the others follow from
# U+0100 on. Its words begin with the 256 bytes in the order of those characters.
_PRINTABLE = bytes([*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)])
GPT2_BYTES = _PRINTABLE + bytes(byte for byte in range(256) if byte not in _PRINTABLE)
_TO_WRITTEN = {
    byte: chr(byte if place < len(_PRINTABLE) else 0x100 + place - len(_PRINTABLE))
    for place, byte in enumerate(GPT2_BYTES)
}
# A character of no byte turns into one that Latin-1 cannot encode.
_FROM_WRITTEN = dict.fromkeys(range(256), 0xFFFD) | {ord(written): byte for byte, written in _TO_WRITTEN.items()}

_GPT2_MERGES = "0fc0dacd05ea164e1cf4983f9e42cc328cc66c8a56f717377dd95a4783a413b3"  # of which `words_made` finds all

_LONGEST_ADDED = 256  # characters; how added tokens overlap takes the square of their lengths to see
_MOST_IDS = 2**22  # far more than any vocabulary has; a damaged file must not ask for memory without bound


def written(word: bytes) -> str:
    """A word in GPT-2's alphabet of bytes."""
    return word.decode("latin-1").translate(_TO_WRITTEN)


def read_word(text: str) -> bytes:
    """The word that is written so.

    Raises: TokenizerError where it is not written in GPT-2's alphabet of bytes.
    """
    try:
        return text.translate(_FROM_WRITTEN).encode("latin-1")
    except ValueError as error:
        raise TokenizerError(f"its word {text!r} must be written in GPT-2's alphabet of bytes") from error


def read_merges(merges: Sequence[str | Sequence[str]], known: Mapping[str, bytes]) -> list[Merge]:
    """Merges that are written as "left right" or as pairs; `known` words are read already, as most stand in several.

    Raises: TokenizerError where one is not two words.
    """
    result = []
    for merge in merges:
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if len(parts) != 2:
            raise TokenizerError(f"its merge {merge!r} must be two words")
        left, right = parts
        result.append((known.get(left) or read_word(left), known.get(right) or read_word(right)))
    return result


def parse_merges(text: str) -> list[Merge]:
    """The merges of a `vocab.bpe` or `merges.txt`: one line each, below a line with the version.

    Raises: TokenizerError where a line is not two words.
    """
    # One translation of the whole text is ten times faster than one per word; what separates must not turn into bytes.
    lines = text.translate(_FROM_WRITTEN | {ord(" "): "\u0100", ord("\n"): "\u0101"}).split("\u0101")
    if lines[0].startswith("#version"):
        del lines[0]
    try:
        return [
            (left.encode("latin-1"), right.encode("latin-1"))
            for left, right in (line.split("\u0100") for line in lines if line)
        ]
    except ValueError as error:
        raise TokenizerError("the merges must be two words in GPT-2's alphabet on each line") from error


@dataclass(frozen=True)
class Vocabulary:
    """Words and their ids, which may have gaps, and how a text becomes words.

    `merges` join two words to another, the first of them first. `special` are tokens that no text contains, the one
    named `end_of_text` among them; `added` are found in a text before it is split into words. `by_character` splits the
    text into characters, whose words no merge makes. `roles` are names for special tokens, such as `pad_token`.

    Raises: TokenizerError where these contradict one another, or a byte has no word.
    """

    words: Mapping[bytes, int]
    merges: Sequence[Merge]
    special: Mapping[str, int]
    end_of_text: str = END_OF_TEXT
    added: Mapping[str, int] = field(default_factory=dict)
    by_character: bool = False
    roles: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def in_order(
        cls, alphabet: bytes, merges: Sequence[Merge] = (), characters: Sequence[str] | None = None
    ) -> "Vocabulary":
        """The bytes, then the words in the order of their merges (or the characters), then the end of text."""
        words = [bytes([byte]) for byte in alphabet]
        words += [left + right for left, right in merges]
        words += [character.encode() for character in characters or ()]
        ids = {word: id for id, word in enumerate(words)}
        return cls(ids, merges, {END_OF_TEXT: len(words)}, by_character=characters is not None)

    def __post_init__(self) -> None:
        if self.end_of_text not in self.special:
            raise TokenizerError(f"its end of text ({self.end_of_text!r}) must be one of its special tokens")
        for name in self.special:
            if len(name) < 2:
                raise TokenizerError(f"its special token {name!r} must be no character of ordinary text")
        for byte in range(256):
            if bytes([byte]) not in self.words:
                raise TokenizerError(f"it must have a word for each of the 256 bytes, and has none for {byte:#04x}")
        self._check_ids()
        if self.added:
            longest = max(self.added, key=len)
            if len(longest) > _LONGEST_ADDED:
                raise TokenizerError(
                    f"its added token {longest[:20]!r}… of {len(longest):,} characters must have at most"
                    f" {_LONGEST_ADDED}"
                )
            _check_apart([*self.added, END_OF_TEXT])

    def _check_ids(self) -> None:
        every = [*self.words.values(), *self.special.values(), *self.added.values()]
        if sorted(set(every)) == list(range(len(every))) and set(map(type, every)) == {int}:
            return  # which is usual, and quick to see
        owners: dict[int, bytes] = {}
        named = [(name.encode(), id) for name, id in (*self.special.items(), *self.added.items())]
        for word, id in (*self.words.items(), *named):
            if type(id) is not int or not 0 <= id < _MOST_IDS:
                raise TokenizerError(f"the id of {word!r} ({id!r}) must be a whole number from 0 to {_MOST_IDS - 1}")
            if owners.setdefault(id, word) != word:
                raise TokenizerError(f"its id {id} must be of one word, and is of {owners[id]!r} and {word!r}")

    @cached_property
    def words_of_text(self) -> dict[bytes, int]:
        """The words that a text is made of, with their ids: the bytes, then the others in the order of their merges.

        Raises: TokenizerError, as `words_made`, and where a merge makes no word of the vocabulary.
        """
        if self.by_character or (self.is_in_order and _hash_of(self.merges) == _GPT2_MERGES):
            return dict(self.words)
        result = {word: self.words[word] for word in (bytes([byte]) for byte in range(256))}
        for word in words_made(self.merges):
            if word not in self.words:
                raise TokenizerError(f"its merges make {written(word)!r}, which must be an ordinary word")
            result[word] = self.words[word]
        return result

    @cached_property
    def is_in_order(self) -> bool:
        """Whether it is as `in_order` makes them."""
        words = list(self.words)
        made = words[256:] if self.by_character else [left + right for left, right in self.merges]
        return (
            list(self.words.values()) == list(range(len(words)))
            and self.special == {END_OF_TEXT: len(words)}
            and not self.added
            and all(len(word) == 1 for word in words[:256])
            and words[256:] == made
        )


def _hash_of(merges: Sequence[Merge]) -> str:
    return hashlib.sha256(b"\n".join(map(b" ".join, merges))).hexdigest()


def _check_apart(names: Sequence[str]) -> None:
    """Raises: TokenizerError where it matters in which order these are looked for in a text."""
    starts: dict[str, set[str]] = {}  # what begins so
    for name in names:
        for end in range(1, len(name) + 1):
            starts.setdefault(name[:end], set()).add(name)
    for name in names:
        for start in range(len(name)):
            others = set(starts.get(name[start:], ()))
            for end in range(start + 1, len(name)):
                if (part := name[start:end]) not in starts:  # nor is any longer one
                    break
                others.update({part} & starts[part])
            if others - {name}:
                other = min(others - {name})
                raise TokenizerError(f"its added tokens {name!r} and {other!r} must not overlap, or a text has either")


def words_made(merges: Sequence[Merge]) -> dict[bytes, int]:
    """The words that the merges make of a text, each with the rank of the one merge that makes it.

    Byte-pair encoding joins, while it can, the neighbours whose merge comes first, the leftmost of equals. What becomes
    of a stretch of text that ends up as one word depends on nothing beside it, so that a word comes about in every
    text as it does from its own bytes alone: by one merge, always the same, or never. So it is enough to look at each
    merge with its two parts alone: whether, before its turn comes, an earlier merge would join bytes across their
    border. The neighbours there are followed back in time, from the two parts to the bytes they began as.

    Therefore tiktoken, which joins neighbours that make a known word, whichever merge they are, gives the ids of
    Hugging Face's tokenizers, which asks for the merge, if it knows these words alone, in the order of these ranks.

    Raises: TokenizerError where a merge comes before one that makes its part, so that ranks tell no time.
    """
    ranks = {merge: rank for rank, merge in enumerate(merges)}  # of one that stands there twice the last counts
    born = {bytes([byte]): -1 for byte in range(256)}
    parts: dict[bytes, Merge] = {}

    def is_crossed(left: bytes, right: bytes, before: int) -> bool:
        while ranks.get((left, right), before) >= before:
            if born[left] > born[right]:
                before, left = born[left], parts[left][1]
            elif born[right] >= 0:  # of equals the right one came last, and may not come before what crosses
                before, right = born[right] + 1, parts[right][0]
            else:
                return False
        return True

    inert = []
    for merge, rank in sorted(ranks.items(), key=lambda item: item[1]):
        left, right = merge
        if left not in born or right not in born:
            inert.append(merge)
        elif not is_crossed(left, right, rank):
            born[left + right], parts[left + right] = rank, merge
    for left, right in inert:
        if left in born and right in born:
            raise TokenizerError(
                f"its merge of {written(left)!r} and {written(right)!r} must come after the merges that make these"
            )
    return {word: rank for word, rank in born.items() if rank >= 0}
