"""Checks JSON values against the part of JSON Schema that the OpenAPI file uses."""

import difflib
import math
import re
from collections.abc import Mapping
from typing import Any

from minigpt.server.api_error import ApiError, invalid

Schema = Mapping[str, Any]

_LONGEST_SHOWN = 60  # characters of a value in a message
_SURROGATE = re.compile("[\ud800-\udfff]")
_TYPES: Mapping[str, tuple[type, str]] = {
    "string": (str, "a string"),
    "boolean": (bool, "true or false"),
    "integer": (int, "a whole number"),
    "number": (float, "a number"),
    "array": (list, "a list"),
    "object": (dict, "an object"),
    "null": (type(None), "null"),
}


def check(value: Any, schema: Schema, name: str = "") -> None:
    """Checks a value that was read from JSON.

    `name` is where it is in the request, as in `prompt[2]`. An unknown field whose value is null is ignored: OpenAI's
    clients have such fields in the messages that they send back.
    Raises: ApiError with one sentence: the field, its value, and what would be right.
    """
    if "anyOf" in schema:
        _check_any(value, schema["anyOf"], name)
        return
    kinds = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    if not any(_has_type(value, kind) for kind in kinds):
        raise _wrong(name, value, " or ".join(_TYPES[kind][1] for kind in kinds))
    if "enum" in schema and value not in schema["enum"]:
        raise _wrong(name, value, f"one of {', '.join(str(choice) for choice in schema['enum'] if choice is not None)}")
    if isinstance(value, dict):
        _check_object(value, schema, name)
    elif isinstance(value, list):
        _check_size(len(value), schema, "Items", "items", name)
        _check_items(value, schema["items"], name)
    elif isinstance(value, str):
        _check_size(len(value), schema, "Length", "characters", name)
        if _SURROGATE.search(value):
            raise invalid(f"{name or 'the text'} must be Unicode text, but it contains half of a surrogate pair", name)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        _check_bounds(value, schema, name)


def _has_type(value: Any, kind: str) -> bool:
    if kind == "number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, _TYPES[kind][0])


def _check_items(items: list[Any], schema: Schema, name: str) -> None:
    """Checks the items of a list; of whole numbers only the extremes, since there may be millions of token ids."""
    if schema.get("type") == "integer" and set(map(type, items)) == {int}:
        for extreme in (min(items), max(items)):
            check(extreme, schema, f"{name}[{items.index(extreme)}]")
        return
    for index, item in enumerate(items):
        check(item, schema, f"{name}[{index}]")


def _check_any(value: Any, alternatives: list[Schema], name: str) -> None:
    """Checks against several schemas, of which one must fit; the error is that of one that the value looks like."""
    errors: dict[bool, ApiError] = {}  # by whether the value looks like what the schema describes
    for schema in alternatives:
        try:
            check(value, schema, name)
        except ApiError as error:
            if _has_type(value, schema["type"]):
                errors.setdefault(_looks_like(value, schema), error)
        else:
            return
    if errors:
        raise errors.get(True) or errors[False]
    raise _wrong(name, value, " or ".join(dict.fromkeys(_TYPES[schema["type"]][1] for schema in alternatives)))


def _looks_like(value: Any, schema: Schema) -> bool:
    """Whether a value and the first items of its lists have the types of a schema."""
    if not _has_type(value, schema["type"]):
        return False
    return not (isinstance(value, list) and value) or _looks_like(value[0], schema["items"])


def _check_object(value: Mapping[str, Any], schema: Schema, name: str) -> None:
    known: Mapping[str, Schema] = schema.get("properties", {})
    others: Schema | bool = schema.get("additionalProperties", True)
    _check_size(len(value), schema, "Properties", "entries", name)
    for field in schema.get("required", ()):
        if field not in value:
            raise invalid(f"{_inside(name, field)} is missing", _inside(name, field))
    for field, each in value.items():
        if field in known:
            check(each, known[field], _inside(name, field))
        elif isinstance(others, Mapping):
            check(each, others, _inside(name, field))
        elif not others and each is not None:
            close = difflib.get_close_matches(field[:_LONGEST_SHOWN], known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            place = _inside(name, field[:_LONGEST_SHOWN])
            raise invalid(f"unknown field {_shown(place)}{hint}", place)


def _check_size(size: int, schema: Schema, suffix: str, unit: str, name: str) -> None:
    if size < schema.get(f"min{suffix}", 0):
        raise invalid(f"{name} must have at least {schema[f'min{suffix}']} {unit}, not {size}", name)
    if size > schema.get(f"max{suffix}", math.inf):
        raise invalid(f"{name} must have at most {schema[f'max{suffix}']} {unit}, not {size}", name)


def _check_bounds(value: float, schema: Schema, name: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise _wrong(name, value, "a finite number")
    if value < schema.get("minimum", -math.inf):
        raise _wrong(name, value, f"at least {schema['minimum']}")
    if value > schema.get("maximum", math.inf):
        raise _wrong(name, value, f"at most {schema['maximum']}")
    if value <= schema.get("exclusiveMinimum", -math.inf):
        raise _wrong(name, value, f"above {schema['exclusiveMinimum']}")


def _inside(name: str, field: str) -> str:
    return f"{name}.{field}" if name else field


def _wrong(name: str, value: Any, expected: str) -> ApiError:
    return invalid(f"{name or 'the body'} ({_shown(value)}) must be {expected}", name or None)


def _shown(value: Any) -> str:
    """A value in a message: short, with control characters escaped, without a number that takes long to print."""
    if isinstance(value, int) and abs(value) >= 10**40:
        return "a very large number"
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = ascii(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"
