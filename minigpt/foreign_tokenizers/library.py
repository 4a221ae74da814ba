"""Tokenizers whose rules are not GPT-2's, run by Hugging Face's `tokenizers`: WordPiece, SentencePiece, other BPE."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minigpt.errors import TokenizerError
from minigpt.foreign_tokenizers.library_checks import check_rules
from minigpt.tokenizer.config_files import CONFIG, TOKENIZER, write_json
from minigpt.tokenizer.huggingface_json import added_token, flat_steps
from minigpt.tokenizer.vocabulary import END_OF_TEXT, replace_surrogates, unicode_to_bytes

_NAMES = {"WordPiece": "wordpiece", "Unigram": "unigram", "BPE": "bpe", "WordLevel": "wordlevel"}
_AROUND = ("truncation", "padding", "post_processor")  # what the library does to a whole text
_NO_TEXT = "\ufdd0\ufdd1"  # two codes that Unicode gives no character, ever
_RARE = "\u16a0\u2c00\U00010380"  # letters of runes, Glagolitic and Ugaritic, which hardly a vocabulary has


@dataclass(frozen=True)
class LibraryVocabulary:
    """A tokenizer that the `tokenizers` library runs.

    Attributes:
        content: the content of its tokenizer.json.
        special, added, prefix, roles: as those of `Vocabulary`.
        end_of_text: the special token that ends a document.
        start_of_text: the special token that an empty prompt becomes: the one that texts begin with, if there is one.
        config: the entries of tokenizer_config.json that say how transformers opens it.
        files: other files that it was made from, such as vocab.txt, by name.
        difference: the rule by which it is not a byte-level tokenizer like GPT-2's.
    """

    content: Mapping[str, Any]
    special: Mapping[str, int]
    end_of_text: str
    start_of_text: str
    added: Mapping[str, int] = field(default_factory=dict)
    prefix: Sequence[int] = ()
    roles: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    difference: str = ""

    program = "the tokenizers library"

    @property
    def kind(self) -> str:
        """The kind of its model: `wordpiece`, `unigram`, `bpe` or `wordlevel`."""
        return _NAMES[self.content["model"]["type"]]

    @property
    def unknown(self) -> str | None:
        """The token that stands for characters without a token; None if these are dropped."""
        return unknown_token(self.content["model"])

    @property
    def ids(self) -> dict[str, int]:
        """Every token as it stands in tokenizer.json, with its id."""
        return model_ids(self.content["model"]) | {each["content"]: each["id"] for each in self.content["added_tokens"]}

    @cached_property
    def fingerprint(self) -> str:
        """A hash that two of these share only if they give the same ids for every text."""
        rules = {key: self.content.get(key) for key in ("added_tokens", "normalizer", "pre_tokenizer", "model")}
        named = [sorted(self.special.items()), sorted(self.added.items()), self.end_of_text, self.start_of_text]
        return hashlib.sha256(json.dumps(["library", rules, named], sort_keys=True).encode()).hexdigest()

    @cached_property
    def coder(self) -> "LibraryCoder":
        """What encodes text by these rules."""
        return LibraryCoder(self)

    def write(self, directory: Path, options: Mapping[str, Any]) -> None:
        """Writes tokenizer.json and tokenizer_config.json with these further options, and the files that the tokenizer
        was made from.
        """
        config = {
            **self.config,
            "bos_token": self.start_of_text,
            "eos_token": self.end_of_text,
            **self.roles,
            "model_input_names": ["input_ids", "attention_mask"],  # without token_type_ids, which GPT-2 models reject
            "clean_up_tokenization_spaces": False,
            **options,
        }
        write_json(directory / TOKENIZER, self.content)
        write_json(directory / CONFIG, config, indent=2)
        for name, content in self.files.items():
            (directory / name).write_bytes(content)


def unknown_token(model: Mapping[str, Any]) -> str | None:
    """The unknown token of a model in a tokenizer.json."""
    if model["type"] == "Unigram":
        return None if model.get("unk_id") is None else str(model["vocab"][model["unk_id"]][0])
    return model.get("unk_token")


def model_ids(model: Mapping[str, Any]) -> dict[str, int]:
    """The tokens of a model in a tokenizer.json, with their ids."""
    if model["type"] == "Unigram":
        return {entry[0]: id for id, entry in enumerate(model["vocab"])}
    return dict(model["vocab"])


class LibraryCoder:
    """Encodes text with the `tokenizers` library. `tokens` has the bytes of every token by id, as they stand in the
    middle of a text; None for an unused id.
    """

    is_lossless = False

    def __init__(self, vocabulary: LibraryVocabulary) -> None:
        """Raises: TokenizerError if the library cannot use the rules, or could hang or crash on them."""
        content = vocabulary.content
        text = TokenText(content.get("decoder"))
        self._rules = build_rules(content, vocabulary.special)
        ids = vocabulary.ids
        self.drops_first_space = text.drops_first_space
        self.tokens: list[bytes | None] = [None] * (max(ids.values()) + 1)
        for token, id in ids.items():
            self.tokens[id] = text.bytes_of(token)
        for token, id in vocabulary.special.items():
            self.tokens[id] = token.encode()
        self._end = vocabulary.special[vocabulary.end_of_text]
        self._unknown = None if vocabulary.unknown is None else ids[vocabulary.unknown]
        self._unknown_name = vocabulary.unknown
        self._vocabulary = vocabulary

    def encode(self, text: str) -> list[int]:
        """The ids of a text.

        Raises: TokenizerError if the library fails.
        """
        return self._encode(text, self._rules)

    def encode_named(self, text: str) -> list[int]:
        """The ids of a text in which the names of special tokens are these tokens.

        Raises: TokenizerError if the library fails.
        """
        return self._encode(text, self._rules_with_names)

    @staticmethod
    def _encode(text: str, rules: Any) -> list[int]:
        if not text.isascii():  # the library refuses lone surrogates
            text = replace_surrogates(text)
        with library_errors("it cannot encode this text"):
            ids: list[int] = rules.encode(text, add_special_tokens=False).ids
        return ids

    @cached_property
    def _rules_with_names(self) -> Any:
        return build_rules(self._vocabulary.content, self._vocabulary.special, finds_special=True)

    def encode_array(self, text: str, *, documents: bool = False) -> npt.NDArray[np.uint32]:
        """The ids of a text; with `documents`, a literal "<|endoftext|>" is the end-of-text token."""
        ids: list[int] = []
        for index, part in enumerate(text.split(END_OF_TEXT) if documents else [text]):
            if index:
                ids.append(self._end)
            if part:
                ids += self.encode(part)
        return np.array(ids, dtype=np.uint32)

    def losses(self) -> list[str]:
        """What of a text is not in its ids."""

        def prepared(text: str) -> str:
            normal = self._rules.normalizer.normalize_str(text) if self._rules.normalizer else text
            pieces = self._rules.pre_tokenizer.pre_tokenize_str(normal) if self._rules.pre_tokenizer else [(normal,)]
            return "".join(piece[0] for piece in pieces)

        lost = []
        with library_errors("it cannot prepare a text"):
            if "A" not in prepared("A"):
                lost.append("upper case becomes lower case")
            if not {"é", "Ã©"} & {*(prepared("é"), prepared("é").strip("▁Ġ"))}:
                lost.append("accents are lost")
            if "\n\n" not in prepared("a\n\nb") and "ĊĊ" not in prepared("a\n\nb"):
                lost.append("line breaks and runs of spaces are lost")
        with library_errors("it cannot encode a text"):
            found = [self._rules.encode(letter, add_special_tokens=False).ids for letter in _RARE]
        if [] in found:
            lost.append("a character without a token is dropped")
        elif any(self._unknown in ids for ids in found):
            lost.append(f"a character without a token becomes {self._unknown_name}")
        return lost


def build_rules(content: Mapping[str, Any], special: Mapping[str, int], *, finds_special: bool = False) -> Any:
    """The library's tokenizer with the rules of a tokenizer.json: without truncation, padding, and tokens around a
    text. It finds `special` tokens in a text only with `finds_special`.

    Raises: TokenizerError as `LibraryCoder`.
    """
    import tokenizers

    check_rules(content)
    model = dict(content["model"])
    # The library does not find special tokens as such, but may find their names among the tokens of the model.
    hidden = {name: f"{name}{_NO_TEXT}" for name in special if len(name) > 1 and name != model.get("unk_token")}
    all_added = list(content["added_tokens"])
    if finds_special:
        hidden = {}
        known = {token["content"] for token in all_added}
        all_added += [added_token(name, id, {"special": True}) for name, id in special.items() if name not in known]
    if model["type"] == "Unigram":
        model["vocab"] = [[hidden.get(token, token), score] for token, score in model["vocab"]]
    else:
        model["vocab"] = {hidden.get(token, token): id for token, id in model["vocab"].items()}
    added = [{**token, "content": hidden.get(token["content"], token["content"])} for token in all_added]
    plain = {**content, "model": model, "added_tokens": added} | dict.fromkeys(_AROUND)
    with library_errors("the tokenizers library refuses it"):
        rules = tokenizers.Tokenizer.from_str(json.dumps(plain, ensure_ascii=False, allow_nan=False))
    for token in added:
        if rules.token_to_id(token["content"]) != token["id"]:
            raise TokenizerError(f"its added token {token['content']!r} cannot have the id {token['id']}")
    rules.encode_special_tokens = not finds_special
    return rules


@contextmanager
def library_errors(problem: str) -> Iterator[None]:
    """Turns every error of the library into a TokenizerError of one line."""
    try:
        yield
    except MemoryError:
        raise
    except BaseException as error:
        # The library raises bare Exceptions; a panic of its Rust code is no Exception at all.
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            reason = " ".join(str(error).split())[:200]
            raise TokenizerError(f"{problem} ({reason})") from error
        raise


_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# Chinese and Japanese are written without spaces; BERT's tokenizers split a text around every such character.
_UNSPACED = re.compile("[\u3000-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0002fa1f]")
# What the library's cleanup of English does, in its order.
# Source: huggingface/tokenizers, decoders/wordpiece.rs.
_CLEANUP = (
    *((f" {mark}", mark) for mark in ".?!,"),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" do not", " don't"),
    *((f" {end}", end) for end in ("'s", "'ve", "'re")),
)


class TokenText:
    """The bytes of tokens by the rules of a decoder; `drops_first_space` if a text's first token has no space.

    Raises: TokenizerError for a decoder of another kind.
    """

    def __init__(self, decoder: Mapping[str, Any] | None) -> None:
        self.drops_first_space = decoder is None
        self._steps: list[Callable[[str], str]] = [] if decoder else [lambda token: f" {token}"]
        self._in_byte_alphabet = self._has_bytes = False
        is_joined = False
        for step in flat_steps(decoder, "decoders") if decoder else ():
            kind = step["type"]
            if kind == "WordPiece":
                self.drops_first_space = True
                self._steps.append(_word_piece(step["prefix"], step.get("cleanup", True)))
            elif kind == "Metaspace":
                self.drops_first_space |= step.get("prepend_scheme", "always") != "never"
                self._steps.append(_replace(step["replacement"], " "))
            elif kind == "Replace" and "String" in step["pattern"]:
                self._steps.append(_replace(step["pattern"]["String"], step["content"]))
            elif kind == "Strip" and is_joined and (step["content"], step["stop"]) == (" ", 0) and step["start"] < 2:
                self.drops_first_space |= step["start"] == 1
            elif kind == "ByteLevel":
                self._in_byte_alphabet = True
            elif kind == "ByteFallback":
                self._has_bytes = True
            elif kind == "Fuse":
                is_joined = True
            else:
                raise TokenizerError(f"its decoder ({kind}) must be WordPiece, Metaspace, ByteLevel or ByteFallback")

    def bytes_of(self, token: str) -> bytes:
        """The bytes of a token in the middle of a text."""
        if self._has_bytes and (byte := _BYTE.fullmatch(token)):
            return bytes([int(byte[1], 16)])
        for step in self._steps:
            token = step(token)
        if self._in_byte_alphabet:
            try:
                return unicode_to_bytes(token)
            except TokenizerError:  # an added token, written literally
                pass
        return token.encode(errors="replace")


def _word_piece(prefix: str, cleanup: bool) -> Callable[[str], str]:
    def text_of(token: str) -> str:
        if prefix and token.startswith(prefix):
            text = token.removeprefix(prefix)
        else:
            text = token if _UNSPACED.match(token) else f" {token}"
        for found, replacement in _CLEANUP if cleanup else ():
            text = text.replace(found, replacement)
        return text

    return text_of


def _replace(found: str, replacement: str) -> Callable[[str], str]:
    return lambda token: token.replace(found, replacement) if found else token
