"""Names, texts and tokens with visible control characters, safe to show on a terminal or a page."""

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minigpt.tokenizer.tokenizer import Tokenizer

# Characters that reorder what is printed around them, on the whole line.
_REORDERING = "\u202a-\u202e"
# Other characters that are invisible: marks and isolates of the direction, separators, joiners, tags.
_INVISIBLE = "\u061c\u180e\u200b\u200e\u200f\u2028\u2029\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
_CONTROLS = "\\x00-\\x1f\\x7f-\\x9f\ud800-\udfff"
_IN_NAMES = re.compile(f"[{_CONTROLS}{_REORDERING}{_INVISIBLE}]")
_IN_TEXTS = re.compile(f"(?![\n\t])[{_CONTROLS}{_REORDERING}]")

_LONGEST_LINE = 2000  # characters


def visible(text: str, *, is_text: bool = False) -> str:
    """The text with visible symbols for control characters, invisible ones, and bytes that are not UTF-8.

    With `is_text`, characters that lay out a text stay: newlines, tabs, and marks of the direction of writing.
    """
    return (_IN_TEXTS if is_text else _IN_NAMES).sub(lambda match: _symbol(match[0]), text)


def plain_name(name: str) -> str:
    """The name with _ for each character that `visible` replaces."""
    return _IN_NAMES.sub("_", name)


def one_line(text: object, most: int = _LONGEST_LINE) -> str:
    """A name, a value or a message on one line of at most `most` characters: `visible`, without the middle."""
    whole = str(text)
    if len(whole) <= most:
        return visible(whole)
    omitted = f" … ({len(whole) - most:,} characters omitted) … "
    return visible(whole[: most * 3 // 4]) + omitted + visible(whole[len(whole) - most // 4 :])


def _symbol(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if 0x7F <= code < 0xA0:
        return "␡"
    if 0xDC80 <= code < 0xDD00:  # a byte of a file name that is not UTF-8
        return f"⟨{code - 0xDC00:02X}⟩"
    return f"⟨{code:04X}⟩"


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
