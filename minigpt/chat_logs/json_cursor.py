"""Reads a JSON text value by value, so that a large one is never in memory as Python's objects."""

import json
import re
from collections.abc import Iterator
from typing import Any

_SPACE = re.compile(r"\s*")
_decode = json.JSONDecoder().raw_decode


class JsonCursor:
    """A position in a JSON text. Each method moves it to the end of what it reads.

    All methods raise ValueError for a text that is not JSON, or has another value there.
    """

    def __init__(self, text: str, start: int = 0) -> None:
        self._text, self._at = text, start

    def at_end(self) -> bool:
        """Whether nothing but white space follows."""
        self._skip_space()
        return self._at == len(self._text)

    def object_keys(self) -> Iterator[str]:
        """The keys of the object that begins here; the caller reads the value of each before it asks for the next."""
        for _ in self._items("{", "}"):
            key = self.value()
            if not isinstance(key, str):
                raise ValueError(f"a key at character {self._at:,} is not a string")
            self._expect(":")
            yield key

    def elements(self) -> Iterator[None]:
        """The elements of the array that begins here; the caller reads each before it asks for the next."""
        return self._items("[", "]")

    def value(self) -> Any:
        """The value that begins here."""
        self._skip_space()
        try:
            value, self._at = _decode(self._text, self._at)
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error
        return value

    def _items(self, start: str, end: str) -> Iterator[None]:
        self._expect(start)
        if self._next_is(end):
            return
        yield
        while not self._next_is(end):
            self._expect(",")
            yield

    def _expect(self, character: str) -> None:
        if not self._next_is(character):
            raise ValueError(f"expected {character!r} at character {self._at:,}")

    def _next_is(self, character: str) -> bool:
        self._skip_space()
        found = self._text.startswith(character, self._at)
        self._at += found
        return found

    def _skip_space(self) -> None:
        found = _SPACE.match(self._text, self._at)
        self._at = found.end() if found else self._at
