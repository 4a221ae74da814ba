"""The parts of a byte-level BPE tokenizer, and the check of which tokens its merges can produce.

GPT-2's mapping from bytes to printable characters is here too, because every tokenizer file uses it.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from minigpt.errors import TokenizerError

END_OF_TEXT = "<|endoftext|>"
Merge = tuple[bytes, bytes]


class OtherRulesError(TokenizerError):
    """A tokenizer is not a byte-level BPE whose ids are the same here; the `tokenizers` library may know its rules."""


# GPT-2 writes bytes as printable characters: the printable characters of Latin-1 represent themselves, the other bytes
# are mapped to U+0100 and above. GPT-2's vocabulary begins with the 256 bytes in the order of those characters.
_PRINTABLE = bytes([*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)])
GPT2_BYTES = _PRINTABLE + bytes(byte for byte in range(256) if byte not in _PRINTABLE)
_BYTE_TO_CHARACTER = {
    byte: chr(byte if index < len(_PRINTABLE) else 0x100 + index - len(_PRINTABLE))
    for index, byte in enumerate(GPT2_BYTES)
}
# A character that represents no byte maps to one that Latin-1 cannot encode.
_CHARACTER_TO_BYTE = dict.fromkeys(range(256), 0xFFFD) | {ord(char): byte for byte, char in _BYTE_TO_CHARACTER.items()}

# SHA-256 of GPT-2's merges, all of which `mergeable_ranks` finds to be reachable.
_GPT2_MERGES = "0fc0dacd05ea164e1cf4983f9e42cc328cc66c8a56f717377dd95a4783a413b3"

_MAX_ADDED_LENGTH = 256  # characters
_MAX_ADDED_CHARACTERS = 2**17  # of all added tokens; the largest vocabularies have 10,000 of them with 20 each
MAX_IDS = 2**20  # far more than any vocabulary has: a damaged file must not allocate unbounded memory


def replace_surrogates(text: str) -> str:
    """The text with each half of a surrogate pair, which UTF-8 cannot encode, as U+FFFD, and whole pairs joined."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def bytes_to_unicode(token: bytes) -> str:
    """A token in GPT-2's byte alphabet, as tokenizer files write it: b" the" -> "Ġthe"."""
    return token.decode("latin-1").translate(_BYTE_TO_CHARACTER)


def unicode_to_bytes(text: str) -> bytes:
    """The inverse of `bytes_to_unicode`.

    Raises: TokenizerError for characters that are not in GPT-2's byte alphabet.
    """
    try:
        return text.translate(_CHARACTER_TO_BYTE).encode("latin-1")
    except ValueError as error:
        raise OtherRulesError(f"its token {text!r} must be written in GPT-2's byte alphabet") from error


def decode_merges(merges: Sequence[str | Sequence[str]], known: Mapping[str, bytes]) -> list[Merge]:
    """Merges written as "left right" or as pairs; `known` holds tokens that are decoded already, for speed.

    Raises: TokenizerError for a merge that is not two tokens.
    """
    result = []
    for merge in merges:
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if len(parts) != 2:
            raise TokenizerError(f"its merge {merge!r} must be two tokens")
        left, right = parts
        result.append((known.get(left) or unicode_to_bytes(left), known.get(right) or unicode_to_bytes(right)))
    return result


def parse_merges(text: str) -> list[Merge]:
    """The merges in the text of a `vocab.bpe` or `merges.txt`: one per line, after a line with the version.

    Raises: TokenizerError for a line that is not two tokens.
    """
    # One translation of the whole text is ten times faster than one per token; separators must not map to bytes.
    table = _CHARACTER_TO_BYTE | {ord(" "): "\u0100", ord("\n"): "\u0101"}
    lines = text.translate(table).split("\u0101")
    if lines[0].startswith("#version"):
        del lines[0]
    try:
        return [
            (left.encode("latin-1"), right.encode("latin-1"))
            for left, right in (line.split("\u0100") for line in lines if line)
        ]
    except ValueError as error:
        raise TokenizerError("each line of the merges must be two tokens in GPT-2's byte alphabet") from error


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a tokenizer with their ids, and the rules by which a text becomes tokens.

    Attributes:
        tokens: ordinary tokens and their ids, which may have gaps.
        merges: pairs of tokens that are joined, in order of priority.
        special: special tokens and their ids, never found in a text; one of them is `end_of_text`.
        added: tokens that are found in a text before it is split into pre-tokens, and their ids.
        by_character: whether a text is split into characters; no merge produces their tokens.
        roles: the special token of each role, such as `pad_token`.
        prefix: the ids of the special tokens that begin every prompt.

    Raises: TokenizerError if these contradict each other, or a byte has no token.
    """

    tokens: Mapping[bytes, int]
    merges: Sequence[Merge]
    special: Mapping[str, int]
    end_of_text: str = END_OF_TEXT
    added: Mapping[str, int] = field(default_factory=dict)
    by_character: bool = False
    roles: Mapping[str, str] = field(default_factory=dict)
    prefix: Sequence[int] = ()

    unknown = None  # every text has tokens

    @property
    def start_of_text(self) -> str:
        """The special token that an empty prompt becomes."""
        return self.end_of_text

    @classmethod
    def in_order(
        cls, alphabet: bytes, merges: Sequence[Merge] = (), characters: Sequence[str] | None = None
    ) -> "Vocabulary":
        """The vocabulary with GPT-2's order of ids: bytes, then merged tokens (or characters), then end-of-text."""
        tokens = [bytes([byte]) for byte in alphabet]
        tokens += [left + right for left, right in merges]
        tokens += [character.encode() for character in characters or ()]
        ids = {token: id for id, token in enumerate(tokens)}
        return cls(ids, merges, {END_OF_TEXT: len(tokens)}, by_character=characters is not None)

    def __post_init__(self) -> None:
        if self.end_of_text not in self.special:
            raise TokenizerError(f"its end-of-text token ({self.end_of_text!r}) must be one of its special tokens")
        for name in self.special:
            if len(name) < 2:
                raise OtherRulesError(f"its special token {name!r} must have at least 2 characters")
        for byte in range(256):
            if bytes([byte]) not in self.tokens:
                raise OtherRulesError(f"it must have a token for each of the 256 bytes, but {byte:#04x} has none")
        self._check_ids()
        check_prefix(self.prefix, self.special)
        if self.added:
            check_added_size([*self.added])
            _check_no_overlap([*self.added, END_OF_TEXT])

    def _check_ids(self) -> None:
        ids = [*self.tokens.values(), *self.special.values(), *self.added.values()]
        if set(map(type, ids)) == {int} and min(ids) == 0 and max(ids) == len(ids) - 1 and len(set(ids)) == len(ids):
            return  # the usual case, which is quick to check
        owners: dict[int, bytes] = {}
        named = [(name.encode(), id) for name, id in (*self.special.items(), *self.added.items())]
        for token, id in (*self.tokens.items(), *named):
            if type(id) is not int or not 0 <= id < MAX_IDS:
                raise TokenizerError(f"the id of {token!r} ({id!r}) must be an integer from 0 to {MAX_IDS - 1}")
            if owners.setdefault(id, token) != token:
                raise TokenizerError(f"its id {id} must belong to one token, not to {owners[id]!r} and {token!r}")

    @cached_property
    def reachable_tokens(self) -> dict[bytes, int]:
        """The tokens that encoding a text can produce, with their ids: bytes first, then in the order of the merges.

        Raises: TokenizerError as `mergeable_ranks`, and for a merge whose result is not in the vocabulary.
        """
        digest = hashlib.sha256(b"\n".join(map(b" ".join, self.merges))).hexdigest()
        if self.by_character or (self.is_in_order and digest == _GPT2_MERGES):
            return dict(self.tokens)
        result = {token: self.tokens[token] for token in (bytes([byte]) for byte in range(256))}
        for token in mergeable_ranks(self.merges):
            if token not in self.tokens:
                raise OtherRulesError(
                    f"its merges produce {bytes_to_unicode(token)!r}, which must be an ordinary token"
                )
            result[token] = self.tokens[token]
        return result

    @cached_property
    def is_in_order(self) -> bool:
        """Whether its ids are in the order of `in_order`."""
        tokens = list(self.tokens)
        merged = tokens[256:] if self.by_character else [left + right for left, right in self.merges]
        return (
            list(self.tokens.values()) == list(range(len(tokens)))
            and self.special == {END_OF_TEXT: len(tokens)}
            and not self.added
            and all(len(token) == 1 for token in tokens[:256])
            and tokens[256:] == merged
        )


def check_prefix(prefix: Sequence[int], special: Mapping[str, int]) -> None:
    """Raises: TokenizerError if the ids that begin every prompt are not those of special tokens."""
    for id in prefix:
        if id not in special.values():
            raise TokenizerError(
                f"it puts the id {id!r} before a text (post_processor), which must be a special token's"
            )


def check_added_size(added: Sequence[str]) -> None:
    """Raises: TokenizerError if an added token is too long, or all together are."""
    longest = max(added, key=len, default="")
    if len(longest) > _MAX_ADDED_LENGTH:
        raise TokenizerError(
            f"its added token {longest[:20]!r}… has {len(longest):,} characters; the maximum is {_MAX_ADDED_LENGTH}"
        )
    if (total := sum(map(len, added))) > _MAX_ADDED_CHARACTERS:
        raise TokenizerError(
            f"its {len(added):,} added tokens have {total:,} characters; the maximum is {_MAX_ADDED_CHARACTERS:,}"
        )


def _check_no_overlap(names: Sequence[str]) -> None:
    """Raises: TokenizerError if two names overlap, so that the result would depend on which is searched for first.

    In sorted order, the names that begin with a string follow each other from where it would stand, and the only one
    that a string can begin with precedes it: of two such names one would begin with the other, which is refused first.
    """
    ordered = sorted(set(names))
    for name, following in pairwise(ordered):
        if following.startswith(name):
            raise _overlap(name, following)
    for name in ordered:
        for start in range(1, len(name)):
            rest = name[start:]
            at = bisect_left(ordered, rest)
            if at and rest.startswith(ordered[at - 1]):
                raise _overlap(name, ordered[at - 1])
            for other in ordered[at : at + 2]:  # the name itself may be the first of them
                if other != name and other.startswith(rest):
                    raise _overlap(name, other)


def _overlap(name: str, other: str) -> OtherRulesError:
    return OtherRulesError(
        f"its added tokens {name!r} and {other!r} must not overlap, because a text could then match either"
    )


def mergeable_ranks(merges: Sequence[Merge]) -> dict[bytes, int]:
    """The tokens that these merges can produce, each with the rank of the one merge that produces it.

    Byte-pair encoding repeatedly joins the neighbors whose merge has the lowest rank, the leftmost first. How a stretch
    of text becomes one token depends only on its own bytes. So a token is produced in every text exactly as from its
    bytes alone: always by the same merge, or never. It is therefore enough to look at each merge with its two parts
    alone, and to check whether a merge of lower rank would join bytes across their border first. `is_crossed` undoes
    the merges next to that border, the latest first, from the two parts back to single bytes.

    tiktoken joins neighbors that form a known token, whichever merge that is; Hugging Face's tokenizers requires the
    merge itself. Both give the same ids if tiktoken knows exactly these tokens, in the order of these ranks.

    Raises: TokenizerError for a merge that precedes a merge that produces one of its parts.
    """
    ranks = {merge: rank for rank, merge in enumerate(merges)}  # of a repeated merge the last one counts
    produced = {bytes([byte]): -1 for byte in range(256)}
    parts: dict[bytes, Merge] = {}

    def is_crossed(left: bytes, right: bytes, before: int) -> bool:
        while ranks.get((left, right), before) >= before:
            if produced[left] > produced[right]:
                before, left = produced[left], parts[left][1]
            elif produced[right] >= 0:  # of equal ranks the right one came last, and a crossing merge may precede it
                before, right = produced[right] + 1, parts[right][0]
            else:
                return False
        return True

    unusable = []  # merges of parts that no earlier merge produces
    for merge, rank in sorted(ranks.items(), key=lambda item: item[1]):
        left, right = merge
        if left not in produced or right not in produced:
            unusable.append(merge)
        elif not is_crossed(left, right, rank):
            produced[left + right], parts[left + right] = rank, merge
    for left, right in unusable:
        if left in produced and right in produced:
            raise OtherRulesError(
                f"its merge of {bytes_to_unicode(left)!r} and {bytes_to_unicode(right)!r} must come after the merges "
                "that produce them"
            )
    return {token: rank for token, rank in produced.items() if rank >= 0}
