"""Frozen records that are read from JSON: every entry is checked for its type and its range."""

import dataclasses
import re
import types
from collections.abc import Mapping
from typing import Any, Self, Union, get_args, get_origin, get_type_hints

from minigpt.errors import CheckpointError, quoted
from minigpt.settings import LARGEST_INTEGER

LARGEST_NUMBER = 1e100  # sums and products of such numbers are finite

_NEVER_IN_NAMES = re.compile("[\0\ud800-\udc7f\udd00-\udfff]")
_HINTS: dict[type, dict[str, Any]] = {}


def number(
    default: Any = dataclasses.MISSING, *, min: float = 0, above: float | None = None, max: float | None = None
) -> Any:
    """The field of a record that holds a number of at least `min`, above `above` and at most `max`."""
    return dataclasses.field(default=default, metadata={"min": min, "above": above, "max": max})


class JsonRecord:
    """A record: a frozen dataclass whose field names are the keys in JSON, or `metadata["key"]`.

    Numbers are finite and, unless the field is a `number` with other bounds, not negative.
    """

    @classmethod
    def from_dict(cls, entries: object, location: str) -> Self:
        """The record with these entries; unknown ones are ignored.

        Raises: CheckpointError, which begins with `location`, for an entry that is missing or not valid.
        """
        given = mapping(entries, location)
        hints, values = _hints(cls), {}
        for each in dataclasses.fields(cls):  # type: ignore[arg-type]
            key = each.metadata.get("key", each.name)
            if key in given or (each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING):
                values[each.name] = value = given.get(key)
                if wrong := _wrong(value, hints[each.name], each.metadata):
                    raise CheckpointError(f"{location}: {key} is {quoted(value)}, not {wrong}; copy it again")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """The record as plain values for JSON."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return {each.metadata.get("key", each.name): getattr(self, each.name) for each in fields}


def mapping(value: object, location: str) -> Mapping[str, Any]:
    """The value, which must be a JSON object.

    Raises: CheckpointError, which begins with `location`, for any other.
    """
    if not isinstance(value, Mapping):
        raise CheckpointError(f"{location} is {quoted(value)}, not an object; copy it again")
    return value


def check_entry(value: object, kind: Any, location: str, key: str) -> None:
    """Raises CheckpointError, which begins with `location`, for a value that is not of this type."""
    if wrong := _wrong(value, kind, {}):
        raise CheckpointError(f"{location}: {key} is {quoted(value)}, not {wrong}; copy it again")


def is_integer(value: object, min: float = 0, max: float = LARGEST_INTEGER) -> bool:
    """Whether a value is a whole number between two bounds."""
    return isinstance(value, int) and not isinstance(value, bool) and min <= value <= max


def is_number(value: object, min: float = 0) -> bool:
    """Whether a value is a number of at least `min` that can be computed with."""
    if isinstance(value, float):
        return min <= value <= LARGEST_NUMBER  # false for NaN
    return is_integer(value, min)


def is_text(value: object) -> bool:
    """Whether a value is a string that a file can be named: without null characters and halves of characters."""
    return isinstance(value, str) and not _NEVER_IN_NAMES.search(value)


def _hints(record: type) -> dict[str, Any]:
    if record not in _HINTS:
        _HINTS[record] = get_type_hints(record)
    return _HINTS[record]


def _wrong(value: object, annotation: Any, bounds: Mapping[str, Any]) -> str | None:
    """What a value of this type must be; None if it is one. Names what is asked for, not the bound that it breaks."""
    union = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    if value is None and types.NoneType in union:
        return None
    kind = next(each for each in union if each is not types.NoneType)
    kind = get_origin(kind) or kind
    if kind not in (int, float):
        fits = kind is object or (is_text(value) if kind is str else isinstance(value, kind))
        return None if fits else _NAMES.get(kind, kind.__name__)
    low, above, high = bounds.get("min", 0), bounds.get("above"), bounds.get("max")
    fits = is_integer(value, low) if kind is int else is_number(value, low)
    if fits and (above is None or value > above) and (high is None or value <= high):
        return None
    limits = f" above {above}" if above is not None else f" of at least {low}"
    return _NAMES[kind] + limits + ("" if high is None else f" and at most {high}")


_NAMES: dict[type, str] = {
    str: "a string",
    list: "a list",
    bool: "true or false",
    dict: "an object",
    int: "a whole number",
    float: "a number",
}
