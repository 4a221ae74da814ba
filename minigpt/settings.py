"""How settings are declared, checked and copied; it knows none of them, neither torch nor the command line."""

import dataclasses
import math
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, Union, get_args, get_origin, get_type_hints

from minigpt.errors import ConfigError


def setting(
    default: Any,
    help: str,
    *,
    min: float | None = None,
    max: float | None = None,
    above: float | None = None,
    below: float | None = None,
    group: str = "Options",
) -> Any:
    """A dataclass field that carries its help text, its bounds (`min`, `max` inclusive; `above`, `below` not) and the
    heading that the help shows it under."""
    bounds = {"min": min, "max": max, "above": above, "below": below}
    return dataclasses.field(default=default, metadata={"help": help, "bounds": bounds, "group": group})


def value_types(annotation: Any) -> tuple[Any, ...]:
    """The alternatives of an annotation without None: `int | None` -> (int,), `Literal["a"]` -> (Literal["a"],)."""
    # `Literal[...] | None` makes a typing.Union, `int | None` a types.UnionType.
    alternatives = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    return tuple(kind for kind in alternatives if kind is not types.NoneType)


def _misfit(annotation: Any, value: object) -> str | None:
    """What a value of this annotation should have been, or None where `value` is one."""
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


_ANNOTATIONS: dict[type, dict[str, Any]] = {}


def annotations_of(settings: type) -> dict[str, Any]:
    """What the fields of a group of settings may hold, by their names; worked out once, for that takes a while."""
    if settings not in _ANNOTATIONS:
        _ANNOTATIONS[settings] = get_type_hints(settings)
    return _ANNOTATIONS[settings]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A frozen group of settings whose values are checked against their bounds when it is made.

    Raises: ConfigError, naming the setting, its value and the bound.
    """

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            self.check(field.name, getattr(self, field.name))

    @classmethod
    def check(cls, name: str, value: object) -> None:
        """Raises ConfigError where the setting of that name cannot have this value, whatever the others have."""
        wanted = _misfit(annotations_of(cls)[name], value)
        if wanted:
            raise ConfigError(f"{name} ({value!r}) must be {wanted}")
        if isinstance(value, int | float):
            cls._check_bounds(name, value, cls.__dataclass_fields__[name].metadata["bounds"])

    @staticmethod
    def _check_bounds(name: str, value: float, bounds: Mapping[str, float | None]) -> None:
        low, high, above, below = (bounds[key] for key in ("min", "max", "above", "below"))
        if not math.isfinite(value):
            raise ConfigError(f"{name} ({value}) must be a finite number")
        if low is not None and value < low:
            raise ConfigError(f"{name} ({value}) must be at least {low}")
        if high is not None and value > high:
            raise ConfigError(f"{name} ({value}) must be at most {high}")
        if above is not None and value <= above:
            raise ConfigError(f"{name} ({value}) must be above {above}")
        if below is not None and value >= below:
            raise ConfigError(f"{name} ({value}) must be below {below}")

    def replace(self, **changes: Any) -> Self:
        """A copy with some settings changed, checked again."""
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain values, ready for JSON."""
        return dataclasses.asdict(self)
