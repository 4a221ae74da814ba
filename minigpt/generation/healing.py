"""Token healing: takes back the end of a prompt whose tokens would be others if the text went on.

BPE never merges across pre-tokens, and a space belongs to the word after it. So a text contains " foo" as one token,
and the lone space at the end of the prompt "def " is a token that hardly ever comes before a word. Such an end is taken
back: the prompt's tokens stop before it, and the first new tokens must spell it again (`constraint.py`).

Source: the idea is that of guidance's "token healing" (Lundberg 2023).
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from minigpt.errors import ConfigError
from minigpt.tokenizer.tokenizer import Tokenizer

# What may follow a prompt that ends in white space, and one that ends in an apostrophe. Only the letters of the
# contractions join an apostrophe.
_NEXT = {True: ("a", " ", "\n"), False: ("s", "t", "ll", "ve", "re", "d", "m")}


class Prompt(NamedTuple):
    """The token ids of a prompt, and the end of its text that they do not contain: the continuation begins with it."""

    ids: list[int]
    end: str = ""


def encode_prompt(
    tokenizer: Tokenizer, text: str | Sequence[int], *, token_healing: bool = True, special_tokens: bool = False,
    prefix: bool = True,
) -> Prompt:  # fmt: skip
    """The tokens of a prompt: with `prefix` those that the tokenizer puts before each, then those of the text.

    A prompt of token ids is these ids. An empty prompt becomes the token that starts a document. With
    `special_tokens`, the names of special tokens in the text are these tokens.

    With `token_healing`, and a tokenizer with merges, they stop where a letter, a space or a line break after the
    text would change them. Only a prompt that ends in white space or an apostrophe is changed: a word
    at the end counts as complete, though letters may follow. Nothing is taken back that an end token could spell.

    Raises: ConfigError for an id that the tokenizer does not have; TokenizerError.
    """
    if not isinstance(text, str):
        for id in text:
            if type(id) is not int or not 0 <= id < tokenizer.vocab_size:
                raise ConfigError(f"the prompt's id {id!r} must be a token id from 0 to {tokenizer.vocab_size - 1}")
        return Prompt(list(text) or [tokenizer.start_of_text])

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, special_tokens=special_tokens)

    ids, before = encode(text), list(tokenizer.prefix_ids if prefix else ())
    if not ids:
        return Prompt(before or [tokenizer.start_of_text])
    if not token_healing or not tokenizer.merges or not (text[-1].isspace() or text[-1] == "'"):
        return Prompt(before + ids)
    kept = min(common_length(ids, encode(text + more)) for more in _NEXT[text[-1].isspace()])
    while (end := _text(tokenizer, ids[kept:])) is None or (not end and text[-1].isspace()):
        kept -= 1  # to the beginning of a character, and before the last one if that is white space
    if any(text in end for text in _end_texts(tokenizer)):  # to spell it again could end the text
        return Prompt(before + ids)
    return Prompt(before + ids[:kept] or [tokenizer.start_of_text], end)


def _end_texts(tokenizer: Tokenizer) -> list[str]:
    """The texts of those ordinary tokens that end a generated text, such as a line break."""
    special = tokenizer.special.values()
    texts = [_text(tokenizer, [id]) for id in tokenizer.end_ids if id not in special]
    return [text for text in texts if text]


def common_length(ids: Sequence[int], others: Sequence[int]) -> int:
    """How many ids at the beginning are the same."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ids, others, strict=False)))


def _text(tokenizer: Tokenizer, ids: list[int]) -> str | None:
    """The text of tokens; None if it begins within a character."""
    try:
        return tokenizer.decode_bytes(ids).decode()
    except UnicodeDecodeError:
        return None
