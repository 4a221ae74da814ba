"""Text and tokens with visible control characters, safe to show on a terminal or a page."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minigpt.tokenizer.tokenizer import Tokenizer

# Characters that change the direction of the text after them, and those that some programs treat as a line's end.
_DIRECTIONS = frozenset(
    map(chr, (0x061C, *range(0x200E, 0x2010), *range(0x2028, 0x202F), *range(0x2066, 0x206A), 0xFEFF))
)

LAYOUT = "\n\t" + "".join(_DIRECTIONS)  # characters that lay out a text: lines, tabs and directions


def visible(text: str, keep: str = "") -> str:
    """The text with control characters as visible symbols, except for those in `keep`."""
    return "".join(character if character in keep else _symbol(character) for character in text)


def _symbol(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if 0x7F <= code < 0xA0:
        return "␡"
    return f"⟨{code:04X}⟩" if character in _DIRECTIONS else character


def token_label(tokenizer: "Tokenizer", token: int) -> str:
    """A token on one line: its text with ␣ for spaces and ↵ for newlines, or its bytes if they are not valid UTF-8."""
    if token >= tokenizer.vocab_size:  # a model's vocabulary may be padded to more ids than its tokenizer has
        return f"⟨id {token}⟩"
    raw = tokenizer.token_bytes(token)
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return f"⟨{raw.hex(' ')}⟩"
    return visible(text.replace("\n", "↵").replace(" ", "␣"))
