"""Breaks prose at words in a terminal, also while it arrives in pieces."""

import os
import re
from collections.abc import Callable, Iterator
from typing import TextIO

from rich.cells import cell_len

_PARTS = re.compile(r"\n|\t|[ ]+|[^ \n\t]+")
_TAB = 8


def wrapper(stream: TextIO, indent: int = 0) -> Callable[[str], str]:
    """A function that turns each piece of a text into what a stream is to print: unchanged unless it is a terminal.

    Lines that it adds begin with `indent` spaces. It follows the size of the terminal. One that cannot go back
    (TERM=dumb) breaks lines where it does.
    """
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        return str
    return Wrapper(lambda: _columns(stream), indent).add


class Wrapper:
    """Breaks a text that arrives in pieces at words.

    The beginning of a word is printed at once. If the rest does not fit into the line, the beginning is erased, and the
    word is printed on the next line. A line break replaces the spaces before a word that does not fit. Between wide
    characters, as in Chinese, a line may break anywhere. The terminal breaks a word that is longer than a line.
    """

    def __init__(self, columns: Callable[[], int], indent: int = 0) -> None:
        self._columns, self._indent = columns, indent
        self._column = 0  # where the next character is printed
        self._word = ""  # the beginning of the last word, which the next piece may continue

    def add(self, piece: str) -> str:
        """What to print for the next piece."""
        width = self._columns() - 1  # in the last column, a terminal's cursor is not where it seems to be
        return "".join(self._part(part, width) for part in _PARTS.findall(piece))

    def _part(self, part: str, width: int) -> str:
        if part == "\n":
            self._column, self._word = 0, ""
            return part
        if part[0] in " \t":
            self._word = ""
            end = self._column + len(part) if part[0] == " " else (self._column // _TAB + 1) * _TAB
            if end > width:
                return self._new_line()
            self._column = end
            return part
        return "".join(self._of_word(word, width) for word in _words(part))

    def _of_word(self, text: str, width: int) -> str:
        """What to print of a word, or of the rest of one, without spaces."""
        if _is_wide(text[0]) or (self._word and _is_wide(self._word[-1])):
            self._word = ""
        printed, word = cell_len(self._word), self._word + text
        start, size, self._word = self._column - printed, cell_len(word), word
        if start + size <= width or start <= self._indent:
            self._column = start + size
            return text
        erased = "\b" * printed + " " * printed + "\b" * printed
        line = self._new_line()
        self._column += size
        return erased + line + word

    def _new_line(self) -> str:
        self._column = self._indent
        return "\n" + " " * self._indent


def _columns(stream: TextIO) -> int:
    """The width of a terminal: COLUMNS if that is set, as everywhere, or 80 if it has none."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given):
        return int(given)
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def _words(text: str) -> Iterator[str]:
    """The parts of a text without spaces between which a line may break."""
    word = ""
    for character in text:
        if word and (_is_wide(character) or _is_wide(word[-1])):
            yield word
            word = ""
        word += character
    yield word


def _is_wide(character: str) -> bool:
    return cell_len(character) > 1
