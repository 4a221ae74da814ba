"""Checks the lines of a run's log before a page shows them."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from minigpt.errors import CheckpointError

Check = Callable[[Any], bool]


def check_log(log: Iterable[Any], path: Path) -> None:
    """Raises CheckpointError for the first line that is damaged."""
    for number, line in enumerate(log, 1):
        where = f"{path}, line {number}:"
        if not isinstance(line, dict) or not _is_integer(line.get("step")):
            raise CheckpointError(f"{where} not a line of a run's log, which has a step; remove the line")
        _check(line, where)
        if line.get("surprise") and len(line["surprise"]) + 1 != len(line.get("passage") or ()):
            raise CheckpointError(f"{where} passage and surprise do not match in length; remove the line")


def _check(line: Mapping[str, Any], where: str) -> None:
    for name, is_valid in _LINE.items():
        value = line.get(name)
        if value is not None and not is_valid(value):
            raise CheckpointError(f"{where} {name} is {value!r}, which is not valid; remove the line")


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _list_of(is_valid: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(is_valid, value))


def _is_span(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_integer, value))


_LINE: Mapping[str, Check] = {
    **dict.fromkeys(("loss", "learning_rate", "tokens_per_second", "validation_loss", "bits_per_byte"), _is_number),
    **dict.fromkeys(("prompt", "sample"), _is_text),
    **dict.fromkeys(("longest_copied_words", "copied_at_least"), _is_integer),
    "copied_share": _is_number,
    "copied_spans": _list_of(_is_span),
    "passage": _list_of(_is_integer),
    "surprise": _list_of(_is_number),
}
