"""One tokenizer over tiktoken for GPT-2's words, bytes, characters and words trained on a corpus.

Underneath are always the 256 bytes, so no text is unencodable. It knows neither corpora nor models.
"""

import codecs
import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import tiktoken

from minigpt.errors import TokenizerError
from minigpt.text import tokenizer_files
from minigpt.text.tokenizer_files import END_OF_TEXT, GPT2_BYTES, Merge

# GPT-2's split into pieces that no word crosses: contractions, letters, numbers, signs, white space. The last white
# character before a word belongs to the word. It says what GPT-2's own pattern says, without giving characters back
# ("++"), and with a bound on a run of white space, whose `\s+(?!\S)` overflows the regex engine's stack.
# Source: openai/gpt-2, src/encoder.py; the possessive form is tiktoken's.
_WORDS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s{0,50000}\s(?=\s)|\s"
_CHARACTERS = r"[\s\S]"

_GPT2_FINGERPRINT = "e86ab48b58bc9bb314277f28b8d8311c22dd445e1425f59072f7c6a3d520b0c7"


class Tokenizer:
    """Text to ids and back; ids are 0..255 for the bytes, then the words, then the end of text.

    `merges` are the words of a byte-pair encoding, each the join of two earlier words, in the order they were learnt.
    `characters`, where given (even empty), are words of their own instead: the text is then split into characters.
    """

    def __init__(
        self, alphabet: bytes = GPT2_BYTES, merges: Sequence[Merge] = (), characters: Sequence[str] | None = None
    ) -> None:
        self.alphabet = alphabet
        self.merges = merges
        self.characters = characters
        words = [bytes([byte]) for byte in alphabet]
        words += [left + right for left, right in merges]
        words += [character.encode() for character in characters or ()]
        self.end_of_text = len(words)
        self.vocab_size = len(words) + 1
        self._encoding = tiktoken.Encoding(
            "minigpt",
            pat_str=_WORDS if characters is None else _CHARACTERS,
            mergeable_ranks={word: rank for rank, word in enumerate(words)},
            special_tokens={END_OF_TEXT: self.end_of_text},
        )
        self._words = [*words, END_OF_TEXT.encode()]

    @classmethod
    def named(cls, name: str) -> Self:
        """The tokenizer that needs no training: `gpt2` or `bytes`.

        Raises: TokenizerError for any other name.
        """
        if name == "bytes":
            return cls(alphabet=bytes(range(256)))
        if name == "gpt2":
            text = (resources.files("minigpt.text.data") / "vocab.bpe").read_text(encoding="utf-8")
            return cls(merges=tokenizer_files.parse_merges(text))
        raise TokenizerError(f"tokenizer ({name!r}) must be gpt2 or bytes; chars and bpe:N are trained on a text")

    @classmethod
    def train(cls, texts: Iterable[str], spec: str) -> Self:
        """A tokenizer learnt from texts, which are read once: `chars`, or `bpe:N` of N words at most.

        N counts the 256 bytes and the end of text. A pair of words that occurs only once earns no word, so that a small
        text gives fewer than N; the name of the tokenizer tells how many it has.

        Raises: TokenizerError for any other specification.
        """
        size = trained_size(spec)
        if size is None:
            if spec != "chars":
                raise TokenizerError(f"tokenizer ({spec!r}) is not trained on a text; chars and bpe:N are")
            seen: set[str] = set()
            for text in texts:
                seen.update(text)
            # ASCII characters are bytes already; a lone surrogate is no character of any encoded text.
            return cls(
                alphabet=bytes(range(256)),
                characters=sorted(c for c in seen if not (c.isascii() or "\ud800" <= c <= "\udfff")),
            )
        return cls(merges=tokenizer_files.train_merges(texts, size - 257))

    @classmethod
    def load(cls, directory: str | Path) -> Self:
        """The tokenizer saved in a directory by `save`, or by Hugging Face for a GPT-2.

        Raises: TokenizerError where there is none, it is damaged, or it would not give the ids it was made for.
        """
        return cls(*tokenizer_files.read(Path(directory)))

    def save(self, directory: str | Path) -> None:
        """Writes `tokenizer.json` and `tokenizer_config.json`, which Hugging Face's AutoTokenizer reads."""
        tokenizer_files.write(Path(directory), self.alphabet, self.merges, self.characters)

    @cached_property
    def name(self) -> str:
        """`gpt2`, `bytes`, `chars` or `bpe:N`, with the N it has rather than the N that was asked for."""
        if self.characters is not None:
            return "chars"
        if not self.merges and self.alphabet != GPT2_BYTES:
            return "bytes"
        return "gpt2" if self.fingerprint == _GPT2_FINGERPRINT else f"bpe:{self.vocab_size}"

    @cached_property
    def fingerprint(self) -> str:
        """A hash, in hexadecimal, that two tokenizers share only if they give the same ids for every text."""
        digest = hashlib.sha256(b"words" if self.characters is None else b"characters")
        for word in self._words:
            digest.update(len(word).to_bytes(4, "little") + word)
        return digest.hexdigest()

    @cached_property
    def token_lengths(self) -> npt.NDArray[np.int64]:
        """The bytes of text that each token stands for, 0 for the end of text. Shapes: (V,)."""
        lengths = np.array([len(word) for word in self._words], dtype=np.int64)
        lengths[self.end_of_text] = 0
        lengths.setflags(write=False)
        return lengths

    def encode(self, text: str) -> list[int]:
        """The ids of a text; a literal "<|endoftext|>" in it is text like any other."""
        return self._encoding.encode(text, disallowed_special=())

    def encode_array(self, text: str, *, documents: bool = False) -> npt.NDArray[np.uint32]:
        """The ids of a text as an array; with `documents`, a literal "<|endoftext|>" is the end of text.

        It runs without Python's global lock, so that threads encode side by side.
        """
        special = {END_OF_TEXT} if documents else set()
        return self._encoding.encode_to_numpy(text, allowed_special=special, disallowed_special=())

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token; those of the end of text are its literal form.

        Raises: TokenizerError where no token has that id.
        """
        if not 0 <= token < self.vocab_size:
            raise TokenizerError(f"token id ({token}) must be from 0 to {self.vocab_size - 1} for {self.name}")
        return self._words[token]

    def decode_bytes(self, tokens: Iterable[int]) -> bytes:
        """The bytes of several tokens, which need not be whole characters."""
        return b"".join(map(self.token_bytes, tokens))

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of several tokens; bytes that are no character become U+FFFD, the end of text "<|endoftext|>"."""
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
