"""Checks that a run's log holds what training writes, before a page shows it."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from minigpt.errors import CheckpointError

Check = Callable[[Any], bool]


def check_log(log: Iterable[Any], path: Path) -> None:
    """Raises CheckpointError for the first line that is not one of a run's."""
    for number, line in enumerate(log, 1):
        where = f"{path}, line {number}:"
        if not isinstance(line, dict) or not _whole(line.get("step")):
            raise CheckpointError(f"{where} this is no line of a run's log, which has a step; remove it")
        _check(line, where)
        if line.get("surprise") and len(line["surprise"]) + 1 != len(line.get("passage") or ()):
            raise CheckpointError(f"{where} passage and surprise are not of one length; remove the line")


def _check(line: Mapping[str, Any], where: str) -> None:
    for name, holds in _LINE.items():
        value = line.get(name)
        if value is not None and not holds(value):
            raise CheckpointError(f"{where} {name} is {value!r}, which it cannot be; remove the line")


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: object) -> bool:
    return isinstance(value, str)


def _list_of(holds: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(holds, value))


def _span(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_whole, value))


_LINE: Mapping[str, Check] = {
    **dict.fromkeys(("loss", "learning_rate", "tokens_per_second", "validation_loss", "bits_per_byte"), _number),
    **dict.fromkeys(("prompt", "sample"), _text),
    **dict.fromkeys(("longest_copied_words", "copied_at_least"), _whole),
    "copied_share": _number,
    "copied_spans": _list_of(_span),
    "passage": _list_of(_whole),
    "surprise": _list_of(_number),
}
