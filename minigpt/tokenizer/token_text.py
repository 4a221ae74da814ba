"""The text of single tokens, by the decoder of a tokenizer.json.

A decoder of Hugging Face's library joins the tokens of a whole text. Here each token has its bytes by itself, as they
stand in the middle of a text, so that tokens can be decoded as they come. Only the first token of a text differs: its
leading space is dropped.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from minigpt.errors import TokenizerError
from minigpt.tokenizer.huggingface_json import flat_steps
from minigpt.tokenizer.vocabulary import unicode_to_bytes

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
