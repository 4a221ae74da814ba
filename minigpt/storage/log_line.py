"""Checks that a line of a run's log has the form in which it was written."""

from collections.abc import Callable, Mapping

from minigpt.errors import CheckpointError, quoted
from minigpt.storage.json_record import is_integer, is_number

Check = Callable[[object], bool]


def check_line(line: object, location: str) -> None:
    """Raises CheckpointError, which begins with `location`, for a line that is damaged."""
    if not isinstance(line, dict) or not is_integer(line.get("step")):
        raise CheckpointError(f"{location}: not a line of a run's log, which has a step; remove the line")
    for name, is_valid in _ENTRIES.items():
        value = line.get(name)
        if value is not None and not is_valid(value):
            raise CheckpointError(f"{location}: {name} is {quoted(value)}, which is not valid; remove the line")
    if line.get("surprise") and len(line["surprise"]) + 1 != len(line.get("passage") or ()):
        raise CheckpointError(f"{location}: passage and surprise do not match in length; remove the line")


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _list_of(is_valid: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(is_valid, value))


def _is_span(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(is_integer, value)) and value[0] <= value[1]


_NUMBERS = (
    "loss",
    "learning_rate",
    "tokens_per_second",
    "seconds",
    "validation_loss",
    "bits_per_byte",
    "copied_share",
)
_ENTRIES: Mapping[str, Check] = {
    **dict.fromkeys(_NUMBERS, is_number),
    **dict.fromkeys(("prompt", "sample"), _is_text),
    **dict.fromkeys(("tokens", "longest_copied_words", "longest_copied_unspaced", "copied_at_least"), is_integer),
    "copied_spans": _list_of(_is_span),
    "passage": _list_of(is_integer),
    "surprise": _list_of(is_number),
}
