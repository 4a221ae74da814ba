"""Declares, checks and copies groups of settings: frozen dataclasses with help texts and bounds."""

import dataclasses
import inspect
import math
import numbers
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import ge, gt, le, lt
from typing import Any, Literal, Self, Union, get_args, get_origin, get_type_hints

from minigpt.errors import ConfigError, quoted

LARGEST_INTEGER = 2**63 - 1  # of torch and numpy
_BOUNDS = (("min", "at least", ge), ("max", "at most", le), ("above", "above", gt), ("below", "below", lt))


def setting(
    default: Any,
    help: str,
    *,
    min: float | None = None,
    max: float | None = None,
    above: float | None = None,
    below: float | None = None,
    group: str = "Options",
    common: bool = False,
    chosen: bool = False,
    choices: Sequence[str] | Callable[..., list[str]] = (),
    escapes: bool = False,
    on_resume: Literal["free", "allowed", "never"] | None = None,
) -> Any:
    """A dataclass field with a help text and its heading, and bounds (`min`, `max` inclusive; `above`, `below` not).

    A command's --help shows it if it is `common`, else only --help-all does. With `chosen`, a run's planner chooses it
    for the text and the machine if it is not given. `choices` are what a shell completes, for a setting of texts; or a
    function that finds it, as typer calls it. With `escapes`, a text of the command line may be a backslash and n, r or
    t, which stand for these characters. `on_resume` says whether a resumed run may change it: freely, only if that is
    allowed, or never; by default its heading decides (see `minigpt.runs.changes`).
    """
    bounds = {"min": min, "max": max, "above": above, "below": below}
    shown = {"help": help, "group": group, "common": common, "chosen": chosen, "choices": choices, "escapes": escapes}
    return dataclasses.field(default=default, metadata={**shown, "bounds": bounds, "on_resume": on_resume})


def plain_number(value: Any) -> Any:
    """A number of numpy or another library as Python's own, which JSON can hold; any other value unchanged."""
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) else value


def value_types(annotation: Any) -> tuple[Any, ...]:
    """The alternatives of an annotation without None: `int | None` -> (int,), `Literal["a"]` -> (Literal["a"],)."""
    # `Literal[...] | None` makes a typing.Union, `int | None` a types.UnionType.
    alternatives = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    return tuple(kind for kind in alternatives if kind is not types.NoneType)


def _expected(annotation: Any, value: object) -> str | None:
    """What a value of this annotation must be, or None if `value` is one."""
    if value is None and types.NoneType in get_args(annotation):
        return None
    (kind,) = value_types(annotation)
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        return None if value in choices else f"one of {', '.join(choices)}"
    if get_origin(kind) is tuple:
        fits = isinstance(value, tuple) and all(isinstance(item, get_args(kind)[0]) for item in value)
        return None if fits else "a tuple of strings"
    if kind is float:
        fits = isinstance(value, int | float) and not isinstance(value, bool)
        return None if fits else "a number"
    if kind is int:
        return None if isinstance(value, int) and not isinstance(value, bool) else "a whole number"
    return None if isinstance(value, kind) else f"of type {kind.__name__}"


def check_utf8(what: str, text: str, advice: str = "give it in UTF-8") -> None:
    """Checks that a text has no byte that is not UTF-8: of the command line, Python makes one a lone surrogate.

    Raises: ConfigError with the byte.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        start, code = len(text[: error.start].encode()), ord(text[error.start])
        is_byte = 0xDC80 <= code <= 0xDCFF
        found = f"byte {start} is {code - 0xDC00:#04x}" if is_byte else f"\\u{code:04x} is half of a surrogate pair"
        raise ConfigError(f"{what} is not UTF-8: {found}; {advice}") from error


_ANNOTATIONS: dict[type, dict[str, Any]] = {}


def annotations_of(settings: type) -> dict[str, Any]:
    """The types of a group's fields by name, cached because `get_type_hints` is slow."""
    if settings not in _ANNOTATIONS:
        _ANNOTATIONS[settings] = get_type_hints(settings)
    return _ANNOTATIONS[settings]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A frozen group of settings, checked against their types and bounds at construction.

    Raises: ConfigError with the setting's name, its value and the bound.
    """

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = plain_number(getattr(self, field.name))
            if isinstance(value, list) and isinstance(field.default, tuple):  # as JSON has it
                value = tuple(value)
            object.__setattr__(self, field.name, value)
            self.check(field.name, value)

    @classmethod
    def check(cls, name: str, value: object) -> None:
        """Checks the value of one setting by itself.

        Raises: ConfigError.
        """
        expected = _expected(annotations_of(cls)[name], value)
        if expected:
            raise ConfigError(f"{name} ({quoted(value)}) must be {expected}")
        for text in value if isinstance(value, tuple) else (value,):
            if isinstance(text, str):
                check_utf8(name, text)  # without the value, which may be a key
        if isinstance(value, int | float):
            cls._check_bounds(name, value, cls.__dataclass_fields__[name].metadata["bounds"])

    @staticmethod
    def _check_bounds(name: str, value: float, bounds: Mapping[str, float | None]) -> None:
        if abs(value) > LARGEST_INTEGER and isinstance(value, int):  # converting it to a float may overflow
            digits = round(value.bit_length() * math.log10(2))
            shown = value if digits < 40 else f"a number of about {digits} digits"
            bound = f"at most {LARGEST_INTEGER}" if value > 0 else f"at least {-LARGEST_INTEGER}"
            raise ConfigError(f"{name} ({shown}) must be {bound}")
        if not math.isfinite(value):
            raise ConfigError(f"{name} ({value}) must be a finite number")
        for key, must, holds in _BOUNDS:
            if (limit := bounds[key]) is not None and not holds(value, limit):
                raise ConfigError(f"{name} ({value}) must be {must} {limit}")

    def replace(self, **changes: Any) -> Self:
        """A copy with some settings changed; it is checked again."""
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def of(cls, settings: "Settings") -> Self:
        """The same settings, seen as those of this group, which is one of their bases."""
        assert isinstance(settings, cls)
        return settings


def combined(name: str, doc: str, groups: Sequence[type[Settings]]) -> Any:
    """A class that has the settings of several groups, in their order; the first is the base of the others.

    Raises: ConfigError if two groups declare the same setting.
    """
    base, declared = set(groups[0].__dataclass_fields__), dict[str, type]()
    for group in groups[1:]:
        own = base & inspect.get_annotations(group).keys()
        declared |= dict.fromkeys(own, groups[0])
        for name_of_setting in (group.__dataclass_fields__.keys() - base) | own:
            other = declared.setdefault(name_of_setting, group)
            if other is not group:
                raise ConfigError(
                    f"{other.__module__} and {group.__module__} both declare the setting {name_of_setting}; remove one "
                    "of these packages"
                )
    attributes = {"__doc__": inspect.cleandoc(doc), "__module__": groups[0].__module__}
    made: Any = dataclass(frozen=True, kw_only=True)(type(name, tuple(reversed(groups)), attributes))
    fields = made.__dataclass_fields__
    headings = list(dict.fromkeys(each.metadata["group"] for each in fields.values()))
    in_order = sorted(fields, key=lambda each: headings.index(fields[each].metadata["group"]))
    made.__dataclass_fields__ = {each: fields[each] for each in in_order}  # those below one heading stay together
    return made
