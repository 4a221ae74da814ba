"""Text and tokens made visible: nothing in them acts on a terminal or a page, and nothing is lost."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minigpt.tokenizer.tokenizer import Tokenizer

# What turns the direction of the text behind it, and what some programs take for a line's end.
_DIRECTIONS = frozenset(
    map(chr, (0x061C, *range(0x200E, 0x2010), *range(0x2028, 0x202F), *range(0x2066, 0x206A), 0xFEFF))
)

LAYOUT = "\n\t" + "".join(_DIRECTIONS)  # what a text's lines and directions are made of


def visible(text: str, keep: str = "") -> str:
    """The text with control characters as pictures, but for those to keep."""
    return "".join(character if character in keep else _picture(character) for character in text)


def _picture(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if 0x7F <= code < 0xA0:
        return "␡"
    return f"⟨{code:04X}⟩" if character in _DIRECTIONS else character


def token_label(tokenizer: "Tokenizer", token: int) -> str:
    """A token on one line: its text with spaces as ␣ and newlines as ↵, or its bytes where they are no characters."""
    if token >= tokenizer.vocab_size:  # a model's vocabulary may be padded beyond its tokenizer's
        return f"⟨id {token}⟩"
    raw = tokenizer.token_bytes(token)
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return f"⟨{raw.hex(' ')}⟩"
    return visible(text.replace("\n", "↵").replace(" ", "␣"))
