"""The tokenizer: GPT-2's byte-level BPE, BPE trained on a corpus, characters or bytes; or another program's.

A vocabulary made here contains the 256 bytes, so that every text can be encoded. Imported tokenizers of other kinds
(WordPiece, SentencePiece) may lose something of a text.
"""

import codecs
import copy
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import tiktoken

from minigpt.errors import TokenizerError
from minigpt.tokenizer import files
from minigpt.tokenizer.bpe_training import requested_vocab_size, train_merges
from minigpt.tokenizer.config_files import read_config
from minigpt.tokenizer.other_vocabulary import Coder
from minigpt.tokenizer.utf8 import Transitions, token_transitions
from minigpt.tokenizer.vocabulary import (
    END_OF_TEXT,
    GPT2_BYTES,
    Vocabulary,
    bytes_to_unicode,
    replace_surrogates,
)

_GPT2_FINGERPRINT = "e86ab48b58bc9bb314277f28b8d8311c22dd445e1425f59072f7c6a3d520b0c7"


class Tokenizer:
    """Encodes text as token ids and decodes ids to text.

    Tokenizers made by minigpt have the ids 0..255 for the bytes, then the other tokens, then end-of-text. Imported ones
    keep their ids, which may have gaps; `vocab_size` is the largest id + 1.

    The name of a special token, such as "<|endoftext|>", is encoded as ordinary text, so that no text can end a
    document by accident; transformers encodes it as the token, as `encode` does with `special_tokens`. All other text
    gets the same ids as in transformers with `add_special_tokens=False`, except white space of more than 50,000
    characters.

    In documents it is text as well, unless the tokenizer `reads_names`.

    `prefix_ids` are the special tokens that an imported tokenizer puts before each text, as transformers does. They
    begin prompts; `encode` does not add them.

    `end_of_text` separates documents. A generated text ends at any of `end_ids`: end-of-text, and the other ids that an
    imported model lists as its `eos_token_id`.
    """

    def __init__(self, vocabulary: files.AnyVocabulary, chat_template: str | None = None) -> None:
        """`chat_template` is the Jinja template by which Hugging Face's libraries write conversations, if any."""
        self.vocabulary = vocabulary
        self.chat_template = chat_template
        self.reads_names = False
        self.merges = vocabulary.merges if isinstance(vocabulary, Vocabulary) else ()
        self.special = vocabulary.special
        self.end_of_text = vocabulary.special[vocabulary.end_of_text]
        self.end_ids: tuple[int, ...] = (self.end_of_text,)
        self.suppressed_ids: tuple[int, ...] = ()
        self.prefix_ids: tuple[int, ...] = tuple(vocabulary.prefix)
        self._coder: Coder = ByteLevelCoder(vocabulary) if isinstance(vocabulary, Vocabulary) else vocabulary.coder
        self._token_bytes = self._coder.tokens
        self.vocab_size = len(self._token_bytes)

    @classmethod
    def named(cls, name: str) -> Self:
        """The tokenizer with this name that needs no training: `gpt2` or `bytes`.

        Raises: TokenizerError for any other name.
        """
        if name == "bytes":
            return cls(Vocabulary.in_order(bytes(range(256))))
        if name == "gpt2":
            return cls(files.gpt2())
        raise TokenizerError(f"tokenizer ({name!r}) must be gpt2 or bytes; chars and bpe:N are trained on a text")

    @classmethod
    def train(cls, texts: str | Iterable[str], spec: str) -> Self:
        """Trains a tokenizer on one text or several, in one pass: `chars`, or `bpe:N` with at most N tokens.

        N includes the 256 bytes and end-of-text. Pairs that occur only once are not merged, so that a small text gives
        fewer than N tokens; the tokenizer's `name` has the actual number.

        Raises: TokenizerError for any other specification.
        """
        texts = [texts] if isinstance(texts, str) else texts
        size = requested_vocab_size(spec)
        if size is not None:
            return cls(Vocabulary.in_order(GPT2_BYTES, train_merges(texts, size - 257)))
        if spec != "chars":
            raise TokenizerError(f"tokenizer ({spec!r}) must be chars or bpe:N to be trained")
        seen: set[str] = set()
        for text in texts:
            seen.update(text)
        # ASCII characters are among the bytes already; a lone surrogate cannot occur in UTF-8 text.
        characters = sorted(c for c in seen if not (c.isascii() or "\ud800" <= c <= "\udfff"))
        return cls(Vocabulary.in_order(bytes(range(256)), characters=characters))

    @classmethod
    def from_vocabulary(cls, vocab: Mapping[str, int], merges: Sequence[str | Sequence[str]], **parts: Any) -> Self:
        """The tokenizer with the vocabulary that `files.build_vocabulary` makes of these parts.

        Raises: TokenizerError if the ids would differ from those of transformers.
        """
        return cls(files.build_vocabulary(vocab, merges, **parts))

    @classmethod
    def load(cls, directory: str | Path, *, end_of_text: str | None = None) -> Self:
        """The tokenizer saved in a directory by `save`, by Hugging Face's libraries, or by OpenAI for GPT-2.

        `end_of_text` is the name of the end-of-text token; by default the files name it.
        Raises: TokenizerError if the directory has no tokenizer, or a damaged one, or one whose ids would differ here.
        """
        directory = Path(directory)
        config = read_config(directory)
        tokenizer = cls(files.read(directory, config, end_of_text), config.chat_template)
        if config.options.get(files.READS_NAMES) is True:
            tokenizer = tokenizer.with_names()
        return tokenizer.with_end_ids(config.stop_ids).with_suppressed_ids(config.suppressed_ids)

    def save(self, directory: str | Path) -> None:
        """Writes the files that Hugging Face's AutoTokenizer and older programs read.

        `end_ids` and `suppressed_ids` are not in them, but in generation_config.json: eos_token_id and suppress_tokens.
        """
        files.write(Path(directory), self.vocabulary, self.chat_template, reads_names=self.reads_names)

    def with_chat_template(self, chat_template: str | None) -> Self:
        """A copy with this chat template; the ids of every text are the same."""
        return self._changed(chat_template=chat_template)

    def with_names(self) -> Self:
        """A copy that `reads_names`: in documents, the names of special tokens are these tokens."""
        return self._changed(reads_names=True)

    def with_end_ids(self, ids: Iterable[int]) -> Self:
        """A copy by which a generated text ends at any of these ids that it has, and at end-of-text."""
        known = (id for id in ids if 0 <= id < self.vocab_size)
        return self._changed(end_ids=tuple(dict.fromkeys((self.end_of_text, *known))))

    def with_suppressed_ids(self, ids: Iterable[int] | npt.NDArray[np.int64]) -> Self:
        """A copy by which these ids are never drawn, as its model has not learned them."""
        return self._changed(suppressed_ids=tuple(id for id in map(int, ids) if 0 <= id < self.vocab_size))

    def _changed(self, **attributes: Any) -> Self:
        other = copy.copy(self)
        other.__dict__ |= attributes
        other.__dict__.pop("fingerprint", None)
        return other

    @property
    def is_lossless(self) -> bool:
        """Whether decoding the ids of a text gives the text back."""
        return self._coder.is_lossless

    @property
    def start_of_text(self) -> int:
        """The id that an empty prompt becomes, and that texts are evaluated after.

        It is end-of-text, which separates the texts that a byte-level model is trained on here, or the token that
        begins the texts of an imported tokenizer. Other programs read `special_id("bos_token")` in files.
        """
        return self.prefix_ids[-1] if self.prefix_ids else self.special[self.vocabulary.start_of_text]

    @property
    def class_name(self) -> str:
        """The class in transformers that gives these ids."""
        config = {} if isinstance(self.vocabulary, Vocabulary) else self.vocabulary.config
        return str(config.get("tokenizer_class", "GPT2Tokenizer"))

    @property
    def program(self) -> str:
        """What runs the tokenizer; empty for minigpt itself."""
        return "" if isinstance(self.vocabulary, Vocabulary) else self.vocabulary.program

    @property
    def unknown(self) -> str | None:
        """The token that stands for characters without a token; None if every text has tokens."""
        return self.vocabulary.unknown

    def losses(self) -> list[str]:
        """What of a text is not in its ids: sentences for the user, none for a lossless tokenizer."""
        return self._coder.losses()

    def byte_level(self, purpose: str) -> Vocabulary:
        """The vocabulary of a byte-level tokenizer.

        Raises: TokenizerError for other kinds, which the `purpose` cannot use.
        """
        if isinstance(self.vocabulary, Vocabulary):
            return self.vocabulary
        difference = f": {self.vocabulary.difference}" if self.vocabulary.difference else ""
        raise TokenizerError(
            f"{purpose} needs a byte-level tokenizer like GPT-2's, but this model's is {self.name}{difference}"
        )

    @cached_property
    def name(self) -> str:
        """`gpt2`, `bytes`, `chars` or `bpe:N`, where N is the actual vocabulary size, not the requested one; for other
        kinds `wordpiece:N`, `unigram:N`, `wordlevel:N`, or `none:N` for a model without a tokenizer.
        """
        if not isinstance(self.vocabulary, Vocabulary):
            return f"{self.vocabulary.kind}:{self.vocab_size}"
        if self.vocabulary.by_character:
            return "chars"
        if self.vocabulary.is_in_order and not self.merges and next(iter(self.vocabulary.tokens)) == b"\0":
            return "bytes"
        return "gpt2" if self.fingerprint == _GPT2_FINGERPRINT else f"bpe:{self.vocab_size}"

    @cached_property
    def fingerprint(self) -> str:
        """A hexadecimal hash that two tokenizers share only if they give the same ids for every text."""
        own = self._text_fingerprint
        if not self.reads_names and self.start_of_text == self.special[self.vocabulary.start_of_text]:
            return own
        return hashlib.sha256(f"{own} {self.reads_names} {self.start_of_text}".encode()).hexdigest()

    @cached_property
    def _text_fingerprint(self) -> str:
        parts = self.vocabulary
        if not isinstance(parts, Vocabulary):
            return parts.fingerprint
        # The literals are part of cache keys on disk.
        digest = hashlib.sha256(b"characters" if parts.by_character else b"words")
        for token in self._token_bytes:
            digest.update(len(token or b"").to_bytes(4, "little") + (token or b""))
        if not (parts.is_in_order and len(parts.reachable_tokens) == len(parts.tokens)):
            named = sorted(parts.special.items()), sorted(parts.added.items())
            digest.update(ascii((parts.merges, *named, parts.end_of_text, self.unused_ids)).encode())
        return digest.hexdigest()

    def special_id(self, role: str) -> int:
        """The id of the special token with this role, such as `pad_token`; by default that of end-of-text."""
        return self.special[self.vocabulary.roles.get(role, self.vocabulary.end_of_text)]

    @property
    def characters(self) -> list[str] | None:
        """The characters beyond ASCII that have a token, or None for a tokenizer that does not split by character."""
        if not isinstance(self.vocabulary, Vocabulary) or not self.vocabulary.by_character:
            return None
        return [token.decode() for token in self.vocabulary.tokens if len(token) > 1]

    @cached_property
    def unused_ids(self) -> tuple[int, ...]:
        """The ids below `vocab_size` that have no token."""
        return tuple(id for id, token in enumerate(self._token_bytes) if token is None)

    @cached_property
    def token_strings(self) -> list[str]:
        """Every token as files write it, by id: ordinary tokens in GPT-2's byte alphabet, special and added tokens
        literally, "" for unused ids. The tokens of other kinds of tokenizers are those of their tokenizer.json.
        """
        if not isinstance(self.vocabulary, Vocabulary):
            written = {id: token for token, id in (*self.vocabulary.ids.items(), *self.special.items())}
            return [written.get(id, "") for id in range(self.vocab_size)]
        names = {id: name for name, id in (*self.special.items(), *self.vocabulary.added.items())}
        return [
            names[id] if id in names else bytes_to_unicode(token or b"") for id, token in enumerate(self._token_bytes)
        ]

    @cached_property
    def merge_strings(self) -> list[str]:
        """The merges as files write them, in order: "left right" in GPT-2's byte alphabet."""
        return [f"{bytes_to_unicode(left)} {bytes_to_unicode(right)}" for left, right in self.merges]

    @cached_property
    def token_lengths(self) -> npt.NDArray[np.int64]:
        """The length of each token in bytes of text, 0 for special tokens. Shapes: (V,)."""
        lengths = np.array([len(token or b"") for token in self._token_bytes], dtype=np.int64)
        lengths[list(self.special.values())] = 0
        lengths.setflags(write=False)
        return lengths

    @cached_property
    def utf8_transitions(self) -> Transitions:
        """The state of a UTF-8 decoder after each token in each state (see `utf8.py`). Shapes: (N_STATES, V)."""
        transitions = token_transitions([token or b"" for token in self._token_bytes], tuple(self.special.values()))
        transitions.setflags(write=False)
        return transitions

    def ids_along(self, beginning: bytes) -> list[int]:
        """The tokens that a text with this beginning can begin with: those that begin with it, and its own beginnings.

        Special tokens are no text.
        """
        special = set(self.special.values())
        return [
            id
            for id, token in enumerate(self._token_bytes)
            if token and (token.startswith(beginning) or beginning.startswith(token)) and id not in special
        ]

    def encode(self, text: str, *, special_tokens: bool = False) -> list[int]:
        """The ids of a text; with `special_tokens`, the names of special tokens in it are these tokens, else text.

        Raises: TokenizerError if an imported tokenizer cannot encode it.
        """
        if not special_tokens or not self.named_in(text):
            return self._coder.encode(text)
        if (whole := self._coder.encode_named(text)) is not None:
            return whole
        ids: list[int] = []
        for index, part in enumerate(self._special_names.split(text)):
            ids += [self.special[part]] if index % 2 else self._coder.encode(part)
        return ids

    def named_in(self, text: str) -> list[str]:
        """The special tokens whose names are in a text, in its order, each once."""
        return list(dict.fromkeys(self._special_names.findall(text)))

    @cached_property
    def _special_names(self) -> re.Pattern[str]:
        """Finds the names of special tokens, the longest of several that begin at the same character."""
        return re.compile(f"({'|'.join(map(re.escape, sorted(self.special, key=len, reverse=True)))})")

    def encode_array(self, text: str, *, documents: bool = False) -> npt.NDArray[np.uint32]:
        """The ids of a text as an array; with `documents`, a literal "<|endoftext|>" is the end-of-text token,
        whatever its name in this vocabulary, before the token that begins a text if that is another. In documents,
        the names of special tokens are text unless the tokenizer `reads_names`.

        Threads encode in parallel, except with an imported tokenizer of other rules than byte-level BPE: Python's
        global interpreter lock is released.
        Raises: as `encode`.
        """
        if not documents:
            return self._coder.encode_array(text)
        if self.reads_names and {*self.named_in(text)} - {END_OF_TEXT}:
            first, *others = (self.encode(part, special_tokens=True) for part in text.split(END_OF_TEXT))
            ids = np.array([*first, *(id for part in others for id in (self.end_of_text, *part))], dtype=np.uint32)
        else:
            ids = self._coder.encode_array(text, documents=True)
        if self.start_of_text == self.end_of_text:
            return ids
        return np.insert(ids, np.flatnonzero(ids == self.end_of_text) + 1, self.start_of_text)

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token in the middle of a text: the name of a special token, nothing for an unused id.

        Raises: TokenizerError for an id outside the vocabulary.
        """
        if not 0 <= token < self.vocab_size:
            raise TokenizerError(f"token id ({token}) must be from 0 to {self.vocab_size - 1} for {self.name}")
        return self._token_bytes[token] or b""

    def decode_bytes(self, tokens: Iterable[int]) -> bytes:
        """The bytes of several tokens, which may end within a character."""
        joined = b"".join(map(self.token_bytes, tokens))
        return joined.removeprefix(b" ") if self._coder.drops_first_space else joined

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of several tokens; invalid UTF-8 becomes U+FFFD, and special tokens become their names."""
        return self.decode_bytes(tokens).decode(errors="replace")

    def document_bytes(self, tokens: npt.ArrayLike) -> Iterator[bytes]:
        """The bytes of each document in a stream of tokens: of the tokens between two ends of a text, without the
        token that begins a text. The first and the last may be parts of a document; the last is empty after an end.
        """
        stream = np.asarray(tokens)
        for part in np.split(stream, np.flatnonzero(stream == self.end_of_text)):
            ids = part[part != self.end_of_text].tolist()
            yield self.decode_bytes(ids[1:] if ids[:1] == [self.start_of_text] else ids)

    def decoder(self, *, continues: bool = False) -> "StreamDecoder":
        """A decoder for one stream of tokens that arrive one by one; with `continues`, after other text."""
        return StreamDecoder(self.token_bytes, drops_first_space=self._coder.drops_first_space and not continues)


class StreamDecoder:
    """Decodes a stream of tokens into whole characters; the pieces join to the decoded text of all tokens."""

    def __init__(self, token_bytes: Callable[[int], bytes], *, drops_first_space: bool = False) -> None:
        """`token_bytes` gives the bytes of a token id, as `Tokenizer.token_bytes` does."""
        self._token_bytes = token_bytes
        self._drops_space = drops_first_space
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token: int) -> str:
        """The characters that this token completes, often none."""
        token_bytes = self._token_bytes(token)
        if self._drops_space and token_bytes:
            token_bytes, self._drops_space = token_bytes.removeprefix(b" "), False
        return self._utf8.decode(token_bytes)

    def flush(self) -> str:
        """The rest at the end of the stream: U+FFFD if the last character is incomplete."""
        return self._utf8.decode(b"", final=True)


# GPT-2's split into pre-tokens, which no merge crosses: contractions, letters, numbers, other characters, white space.
# The last white-space character before a pre-token belongs to it. This gives the same split as GPT-2's pattern, except
# in white space of more than 50,000 characters. It has possessive quantifiers ("++"), and a bound on runs of white
# space, because `\s+(?!\S)` overflows the regex engine's stack on long ones.
# Source: openai/gpt-2, src/encoder.py; the possessive form is tiktoken's.
_GPT2_SPLIT = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s{0,50000}\s(?=\s)|\s"
_CHARACTERS = r"[\s\S]"


class ByteLevelCoder:
    """Encodes text with tiktoken. `tokens` has the bytes of every token by id, None for an unused id."""

    is_lossless = True
    drops_first_space = False

    def __init__(self, vocabulary: Vocabulary) -> None:
        named = {**vocabulary.special, **vocabulary.added}
        size = max(*vocabulary.tokens.values(), *named.values()) + 1
        self.tokens: list[bytes | None] = [None] * size
        for token, id in vocabulary.tokens.items():
            self.tokens[id] = token
        for name, id in named.items():
            self.tokens[id] = name.encode()
        self._added = frozenset(vocabulary.added)
        markers = {END_OF_TEXT: vocabulary.special[vocabulary.end_of_text], **vocabulary.added}
        ids = vocabulary.reachable_tokens
        # tiktoken's ids are also the ranks of the merges. Ids that are not in this order are mapped after encoding.
        in_order = bool((np.diff(np.fromiter(ids.values(), np.int64)[256:]) > 0).all())
        self._ids = None if in_order else np.array([*ids.values(), *markers.values()], dtype=np.uint32)
        try:
            self._encoding = tiktoken.Encoding(
                "minigpt",
                pat_str=_CHARACTERS if vocabulary.by_character else _GPT2_SPLIT,
                mergeable_ranks=ids if in_order else {token: rank for rank, token in enumerate(ids)},
                special_tokens=markers if in_order else {name: len(ids) + index for index, name in enumerate(markers)},
            )
        except ValueError as error:  # the pattern of all added tokens is larger than the regular expressions may be
            size = sum(len(name.encode()) for name in vocabulary.added)
            raise TokenizerError(f"its {len(self._added):,} added tokens are too long: {size:,} bytes") from error

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        if self._ids is not None:
            return self.encode_array(text).tolist()
        return self._encoding.encode(text, allowed_special=self._added, disallowed_special=())

    def encode_named(self, text: str) -> None:
        """Nothing: the parts of a text between the names of special tokens are encoded one by one."""

    def encode_array(self, text: str, *, documents: bool = False) -> npt.NDArray[np.uint32]:
        """The ids of a text; with `documents`, a literal "<|endoftext|>" is the end-of-text token."""
        special = {END_OF_TEXT, *self._added} if documents else self._added
        try:
            ids = self._encoding.encode_to_numpy(text, allowed_special=special, disallowed_special=())
        except UnicodeEncodeError:
            return self.encode_array(replace_surrogates(text), documents=documents)
        return ids if self._ids is None else self._ids[ids]

    def losses(self) -> list[str]:
        """What of a text is not in its ids: nothing."""
        return []
