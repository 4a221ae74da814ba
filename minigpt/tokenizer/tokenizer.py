"""One tokenizer over tiktoken for GPT-2's words, bytes, characters and words trained on a corpus.

Underneath are always the 256 bytes, so no text is unencodable. It knows neither corpora nor models.
"""

import codecs
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import tiktoken

from minigpt.errors import TokenizerError
from minigpt.tokenizer import files as tokenizer_files
from minigpt.tokenizer.vocabulary import END_OF_TEXT, GPT2_BYTES, Vocabulary, written

# GPT-2's split into pieces that no word crosses: contractions, letters, numbers, signs, white space. The last white
# character before a word belongs to the word. It says what GPT-2's own pattern says, without giving characters back
# ("++"), and with a bound on a run of white space, whose `\s+(?!\S)` overflows the regex engine's stack.
# Source: openai/gpt-2, src/encoder.py; the possessive form is tiktoken's.
_WORDS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s{0,50000}\s(?=\s)|\s"
_CHARACTERS = r"[\s\S]"

_GPT2_FINGERPRINT = "e86ab48b58bc9bb314277f28b8d8311c22dd445e1425f59072f7c6a3d520b0c7"


class Tokenizer:
    """Text to ids and back.

    The ids of those that minigpt makes are 0..255 for the bytes, then the words, then the end of text; those of others
    are as they are, with gaps perhaps: `vocab_size` is one more than the largest.

    A special token's name in a text is text like any other, as no text should end where it says "<|endoftext|>";
    transformers takes it for the token. Everything else has the ids that transformers gives it.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.merges = vocabulary.merges
        self.special = vocabulary.special
        self.end_of_text = vocabulary.special[vocabulary.end_of_text]
        named = {**vocabulary.special, **vocabulary.added}
        self.vocab_size = max(*vocabulary.words.values(), *named.values()) + 1
        self._words: list[bytes | None] = [None] * self.vocab_size
        for word, id in vocabulary.words.items():
            self._words[id] = word
        for name, id in named.items():
            self._words[id] = name.encode()
        self._added = frozenset(vocabulary.added)
        marks = {END_OF_TEXT: self.end_of_text, **vocabulary.added}
        ids = vocabulary.words_of_text
        # tiktoken's ids are the order of the merges too. Where ours follow that order they serve as they are.
        in_order = bool((np.diff(np.fromiter(ids.values(), np.int64)[256:]) > 0).all())
        self._ids = None if in_order else np.array([*ids.values(), *marks.values()], dtype=np.uint32)
        self._encoding = tiktoken.Encoding(
            "minigpt",
            pat_str=_CHARACTERS if vocabulary.by_character else _WORDS,
            mergeable_ranks=ids if in_order else {word: rank for rank, word in enumerate(ids)},
            special_tokens=marks if in_order else {mark: len(ids) + place for place, mark in enumerate(marks)},
        )

    @classmethod
    def named(cls, name: str) -> Self:
        """The tokenizer that needs no training: `gpt2` or `bytes`.

        Raises: TokenizerError for any other name.
        """
        if name == "bytes":
            return cls(Vocabulary.in_order(bytes(range(256))))
        if name == "gpt2":
            return cls(tokenizer_files.gpt2())
        raise TokenizerError(f"tokenizer ({name!r}) must be gpt2 or bytes; chars and bpe:N are trained on a text")

    @classmethod
    def train(cls, texts: Iterable[str], spec: str) -> Self:
        """A tokenizer learnt from texts, which are read once: `chars`, or `bpe:N` of N words at most.

        N counts the 256 bytes and the end of text. A pair of words that occurs only once earns no word, so that a small
        text gives fewer than N; the name of the tokenizer tells how many it has.

        Raises: TokenizerError for any other specification.
        """
        size = trained_size(spec)
        if size is not None:
            return cls(Vocabulary.in_order(GPT2_BYTES, tokenizer_files.train_merges(texts, size - 257)))
        if spec != "chars":
            raise TokenizerError(f"tokenizer ({spec!r}) is not trained on a text; chars and bpe:N are")
        seen: set[str] = set()
        for text in texts:
            seen.update(text)
        # ASCII characters are bytes already; a lone surrogate is no character of any encoded text.
        characters = sorted(c for c in seen if not (c.isascii() or "\ud800" <= c <= "\udfff"))
        return cls(Vocabulary.in_order(bytes(range(256)), characters=characters))

    @classmethod
    def from_vocabulary(
        cls,
        vocab: Mapping[str, int],
        merges: Sequence[str | tuple[str, str]],
        *,
        special: Mapping[str, int],
        end_of_text: str,
        added: Mapping[str, int] | None = None,
        by_character: bool = False,
    ) -> Self:
        """The tokenizer of these words and merges, written in GPT-2's alphabet of bytes, as other programs keep them.

        `special` and `added` tokens, written as they are, may be in `vocab` as well; `added` ones are found in a text
        before it is split into words. `by_character` is a tokenizer that splits a text into characters.
        Raises: TokenizerError where the ids would not be those that transformers gives.
        """
        return cls(
            tokenizer_files.vocabulary_of(
                vocab,
                merges,
                special=special,
                end_of_text=end_of_text,
                added=added or {},
                by_character=by_character,
                ignores_merges=by_character,
                roles={},
            )
        )

    @classmethod
    def load(cls, directory: str | Path, *, end_of_text: str | None = None) -> Self:
        """The tokenizer saved in a directory by `save`, or by Hugging Face or OpenAI for a GPT-2.

        `end_of_text` names that token, where the files do not or name another.
        Raises: TokenizerError where there is none, it is damaged, or it would not give the ids it was made for.
        """
        return cls(tokenizer_files.read(Path(directory), end_of_text))

    def save(self, directory: str | Path) -> None:
        """Writes the files that Hugging Face's AutoTokenizer reads, and older programs."""
        tokenizer_files.write(Path(directory), self.vocabulary)

    @cached_property
    def name(self) -> str:
        """`gpt2`, `bytes`, `chars` or `bpe:N`, with the N it has rather than the N that was asked for."""
        if self.vocabulary.by_character:
            return "chars"
        if self.vocabulary.is_in_order and not self.merges and next(iter(self.vocabulary.words)) == b"\0":
            return "bytes"
        return "gpt2" if self.fingerprint == _GPT2_FINGERPRINT else f"bpe:{self.vocab_size}"

    @cached_property
    def fingerprint(self) -> str:
        """A hash, in hexadecimal, that two tokenizers share only if they give the same ids for every text."""
        parts = self.vocabulary
        digest = hashlib.sha256(b"characters" if parts.by_character else b"words")
        for word in self._words:
            digest.update(len(word or b"").to_bytes(4, "little") + (word or b""))
        if not (parts.is_in_order and len(parts.words_of_text) == len(parts.words)):
            named = sorted(parts.special.items()), sorted(parts.added.items())
            digest.update(ascii((parts.merges, *named, parts.end_of_text, self.unused)).encode())
        return digest.hexdigest()

    def special_id(self, role: str) -> int:
        """The id of the special token with this role (`pad_token`, say), by default the end of text."""
        return self.special[self.vocabulary.roles.get(role, self.vocabulary.end_of_text)]

    @property
    def characters(self) -> list[str] | None:
        """The words beyond the bytes of a tokenizer that splits a text into characters."""
        if not self.vocabulary.by_character:
            return None
        return [word.decode() for word in self.vocabulary.words if len(word) > 1]

    @cached_property
    def unused(self) -> tuple[int, ...]:
        """The ids below `vocab_size` that no token has."""
        return tuple(id for id, word in enumerate(self._words) if word is None)

    @cached_property
    def written_words(self) -> list[str]:
        """The token of every id as files write it: words in GPT-2's alphabet of bytes, others as they are, "" for
        `unused` ids."""
        names = {id: name for name, id in (*self.special.items(), *self.vocabulary.added.items())}
        return [names[id] if id in names else written(word or b"") for id, word in enumerate(self._words)]

    @cached_property
    def written_merges(self) -> list[str]:
        """The merges, the first of them first, as "left right" in GPT-2's alphabet of bytes."""
        return [f"{written(left)} {written(right)}" for left, right in self.merges]

    @cached_property
    def token_lengths(self) -> npt.NDArray[np.int64]:
        """The bytes of text that each token stands for, 0 for special tokens. Shapes: (V,)."""
        lengths = np.array([len(word or b"") for word in self._words], dtype=np.int64)
        lengths[list(self.special.values())] = 0
        lengths.setflags(write=False)
        return lengths

    def encode(self, text: str) -> list[int]:
        """The ids of a text; a literal "<|endoftext|>" in it is text like any other."""
        if self._ids is not None:
            return self.encode_array(text).tolist()
        return self._encoding.encode(text, allowed_special=self._added, disallowed_special=())

    def encode_array(self, text: str, *, documents: bool = False) -> npt.NDArray[np.uint32]:
        """The ids of a text as an array; with `documents`, a literal "<|endoftext|>" is the end of text, whatever
        that is called in this vocabulary.

        It runs without Python's global lock, so that threads encode side by side.
        """
        special = {END_OF_TEXT, *self._added} if documents else self._added
        ids = self._encoding.encode_to_numpy(text, allowed_special=special, disallowed_special=())
        return ids if self._ids is None else self._ids[ids]

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token; those of a special one are its name, those of an unused id none.

        Raises: TokenizerError where the vocabulary has no such id.
        """
        if not 0 <= token < self.vocab_size:
            raise TokenizerError(f"token id ({token}) must be from 0 to {self.vocab_size - 1} for {self.name}")
        return self._words[token] or b""

    def decode_bytes(self, tokens: Iterable[int]) -> bytes:
        """The bytes of several tokens, which need not be whole characters."""
        return b"".join(map(self.token_bytes, tokens))

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of several tokens; bytes that are no character become U+FFFD, special ones their names."""
        return self.decode_bytes(tokens).decode(errors="replace")

    def decoder(self) -> "StreamDecoder":
        """A decoder for one stream of tokens that arrive one by one."""
        return StreamDecoder(self)


class StreamDecoder:
    """Turns a stream of tokens into text as soon as its characters are whole; the pieces join to `decode` of all."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._characters = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token: int) -> str:
        """The characters that this token completes, often none."""
        return self._characters.decode(self._tokenizer.token_bytes(token))

    def flush(self) -> str:
        """What is left at the end of the stream: U+FFFD where a character broke off."""
        return self._characters.decode(b"", final=True)


def trained_size(spec: str) -> int | None:
    """The N of `bpe:N`, or None for `gpt2`, `bytes` and `chars`.

    Raises: TokenizerError for a specification of no tokenizer, and for an N below 257.
    """
    if spec in ("gpt2", "bytes", "chars"):
        return None
    match = re.fullmatch(r"bpe:(\d{1,9})", spec, re.ASCII)
    if not match:
        raise TokenizerError(f"tokenizer ({spec!r}) must be gpt2, bytes, chars or bpe:N, such as bpe:4096")
    size = int(match[1])
    if size < 257:
        raise TokenizerError(f"tokenizer ({spec!r}) must have at least 257 words: the 256 bytes and the end of text")
    return size
