"""The record of a training run, which training.json holds: one typed description for every module that reads it.

`RunRecord.from_dict` also reads the records of earlier versions and of runs that `train()` began in Python, which lack
some parts; settings that are newer than a record have their defaults. A record that is damaged raises CheckpointError.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar, get_type_hints

from minigpt.config import GPTConfig, ReadingConfig, TrainConfig
from minigpt.errors import CheckpointError, ConfigError
from minigpt.run_options import OPTION_NAMES, RunOptions

FORMAT = 2  # of training.json and of the saved states

SettingsType = TypeVar("SettingsType", GPTConfig, ReadingConfig, TrainConfig)


class _Part:
    """A part of the record: a dataclass whose field names are the keys in training.json."""

    @classmethod
    def from_dict(cls, entries: object, location: str) -> Self:
        """The part with these entries; unknown ones are ignored.

        Raises: CheckpointError, which begins with `location`, for an entry that is missing or has the wrong type.
        """
        given = _mapping(entries, location)
        hints, values = get_type_hints(cls), {}
        for each in dataclasses.fields(cls):  # type: ignore[arg-type]
            key = each.metadata.get("key", each.name)
            if key in given or each.default is dataclasses.MISSING:
                values[each.name] = given.get(key)
                if not _fits(given.get(key), hints[each.name]):
                    raise CheckpointError(
                        f"{location}: {key} is {given.get(key)!r}, not {_type_name(hints[each.name])}; copy it again"
                    )
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """The part as plain values for JSON."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return {each.metadata.get("key", each.name): getattr(self, each.name) for each in fields}


@dataclass(frozen=True, kw_only=True)
class Environment(_Part):
    """The machine that a run began on. A resumed run may have another, so nothing is compared with it."""

    python: str | None = None
    system: str | None = None
    cpu: str | None = None
    gpu: str | None = None
    cores: int | None = None
    threads: int | None = None
    processes: int | None = None


@dataclass(frozen=True, kw_only=True)
class CorpusRecord(_Part):
    """The text as tokens: its hash, its size, and the file that holds the tokens."""

    fingerprint: str
    path: str | None = None
    train_bytes: int
    validation_bytes: int | None = None
    train_tokens: int
    validation_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class BaselineRecord(_Part):
    """The result of one simple method: the fields of `minigpt.evaluation.baselines.Baseline`."""

    name: str
    bits_per_byte: float
    train_bytes: int
    validation_bytes: int
    whole_train_bytes: int | None = None
    whole_validation_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class BaselinesRecord:
    """The simple methods that a run is compared with, as measured on the text with that fingerprint."""

    fingerprint: str
    measured: tuple[BaselineRecord, ...] = ()

    @classmethod
    def from_dict(cls, entries: object, location: str) -> "BaselinesRecord":
        given = _mapping(entries, location)
        fingerprint, measured = given.get("fingerprint"), given.get("measured")
        if not isinstance(fingerprint, str):
            raise CheckpointError(f"{location}: fingerprint is {fingerprint!r}, not a string; copy it again")
        if not isinstance(measured, list):
            raise CheckpointError(f"{location}: measured is {measured!r}, not a list; copy it again")
        return cls(
            fingerprint=fingerprint,
            measured=tuple(BaselineRecord.from_dict(each, f"{location}: a baseline") for each in measured),
        )

    def to_dict(self) -> dict[str, Any]:
        return {"fingerprint": self.fingerprint, "measured": [each.to_dict() for each in self.measured]}


@dataclass(frozen=True, kw_only=True)
class Change(_Part):
    """A setting that `--allow-change` changed; the new value holds after `step`."""

    step: int
    option: str
    before: object = field(default=None, metadata={"key": "from"})
    after: object = field(default=None, metadata={"key": "to"})


@dataclass(frozen=True, kw_only=True)
class Result(_Part):
    """How a run ended; the losses are those of the best weights. NaN and infinite numbers become None."""

    step: int | None = None
    reason: str | None = None
    best_step: int | None = None
    validation_loss: float | None = None
    bits_per_byte: float | None = None
    validation_tokens: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, float) and not math.isfinite(value):  # JSON cannot hold it
                object.__setattr__(self, name, None)


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The content of training.json; a part is None if it was not recorded.

    `base` is the model that was fine-tuned, `sources` are the texts by absolute path (`-` is a pipe), `asked` are the
    options that a resumed run is compared with, `model` and `training` the settings that the run has, `expected` the
    lowest and the highest bits per byte that its plan expected. `other` holds entries that this version does not use.
    """

    format: int | None = FORMAT
    minigpt: str | None = None
    torch: str | None = None
    started: str | None = None
    device: str | None = None
    environment: Environment | None = None
    sources: tuple[str, ...] = ()
    asked: RunOptions | None = None
    reading: ReadingConfig | None = None
    base: str | None = None
    preset: str | None = None
    tokenizer: str | None = None
    corpus: CorpusRecord | None = None
    baselines: BaselinesRecord | None = None
    model: GPTConfig | None = None
    training: TrainConfig | None = None
    expected: tuple[float, float] | None = None
    changes: tuple[Change, ...] = ()
    result: Result | None = None
    other: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, entries: Mapping[str, Any], path: str | Path = "training.json") -> "RunRecord":
        """The record with these entries, as JSON has them; `path` is the file that an error names.

        Raises: CheckpointError for a part that lacks what it must have, or has a value of another type.
        """
        damaged = f"{path} is damaged"

        def location(key: str) -> str:
            return f"{damaged}: in its {key!r}"

        def plain(key: str, kind: Any) -> Any:
            if not _fits(value := entries.get(key), kind):
                raise CheckpointError(f"{damaged}: {key} is {value!r}, not {_type_name(kind)}; copy it again")
            return value

        def part(key: str) -> Any:
            """The object under this key; None if it is missing or empty."""
            value = entries.get(key)
            if value is not None and not isinstance(value, dict):
                raise CheckpointError(f"{damaged}: its {key!r} is {value!r}, not an object; copy it again")
            return value or None

        def parts(key: str) -> list[Any]:
            value = entries.get(key) or []
            if not isinstance(value, list):
                raise CheckpointError(f"{damaged}: its {key!r} is {value!r}, not a list; copy it again")
            return value

        def expected_range(key: str) -> tuple[float, float] | None:
            value = entries.get(key)
            if value is None:
                return None
            if _fits(value, float):  # earlier versions expected one figure
                return value, value
            if not (isinstance(value, list) and len(value) == 2 and all(_fits(each, float) for each in value)):
                raise CheckpointError(f"{damaged}: {key} is {value!r}, not two numbers; copy it again")
            return value[0], value[1]

        def settings(kind: type[SettingsType], key: str) -> SettingsType | None:
            value = part(key)
            return value and _settings(kind, value, location(key))

        asked = entries.get("asked")
        if asked is not None:
            known = {name: value for name, value in (part("asked") or {}).items() if name in OPTION_NAMES}
            try:
                asked = RunOptions.of(known)
            except ConfigError as error:
                raise CheckpointError(f"{location('asked')}: {error}; copy it again") from error
        return cls(
            format=plain("format", int | None),
            minigpt=plain("minigpt", str | None),
            torch=plain("torch", str | None),
            started=plain("started", str | None),
            device=plain("device", str | None),
            environment=part("environment") and Environment.from_dict(entries["environment"], location("environment")),
            sources=tuple(_string(each, location("sources")) for each in parts("sources")),
            asked=asked,
            reading=settings(ReadingConfig, "reading"),
            base=plain("from", str | None),
            preset=plain("preset", str | None),
            tokenizer=plain("tokenizer", str | None),
            corpus=part("corpus") and CorpusRecord.from_dict(entries["corpus"], location("corpus")),
            baselines=part("baselines") and BaselinesRecord.from_dict(entries["baselines"], location("baselines")),
            model=settings(GPTConfig, "model"),
            training=settings(TrainConfig, "training"),
            expected=expected_range("forecast"),
            changes=tuple(Change.from_dict(each, location("changes")) for each in parts("changes")),
            result=part("result") and Result.from_dict(entries["result"], location("result")),
            other={key: value for key, value in entries.items() if key not in _KEYS},
        )

    def to_dict(self) -> dict[str, Any]:
        """The record as plain values, in the order of training.json."""
        values = {_key(each): getattr(self, each.name) for each in dataclasses.fields(self) if each.name != "other"}
        plain = {key: value.to_dict() if hasattr(value, "to_dict") else value for key, value in values.items()}
        plain |= {"sources": list(self.sources), "changes": [each.to_dict() for each in self.changes]}
        plain["forecast"] = None if self.expected is None else list(self.expected)
        return plain | dict(self.other)

    def resumable(self) -> "Resumable | None":
        """The parts that resuming needs; None if one is missing, as for a run that `train()` began in Python."""
        if not (self.model and self.training and self.reading and self.asked and self.corpus and self.sources):
            return None
        return Resumable(
            sources=self.sources,
            asked=self.asked,
            reading=self.reading,
            corpus=self.corpus,
            model=self.model,
            training=self.training,
        )

    def replace(self, **parts: Any) -> "RunRecord":
        """A copy with some parts changed."""
        return dataclasses.replace(self, **parts)


@dataclass(frozen=True, kw_only=True)
class Resumable:
    """The parts of a record that resuming needs."""

    sources: tuple[str, ...]
    asked: RunOptions
    reading: ReadingConfig
    corpus: CorpusRecord
    model: GPTConfig
    training: TrainConfig


def _key(each: "dataclasses.Field[Any]") -> str:
    return {"base": "from", "expected": "forecast"}.get(each.name, each.name)


_KEYS = {_key(each) for each in dataclasses.fields(RunRecord)} - {"other"}


def _mapping(value: object, location: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise CheckpointError(f"{location} is {value!r}, not an object; copy it again")
    return value


def _settings(kind: type[SettingsType], entries: Mapping[str, Any], location: str) -> SettingsType:
    """Settings as they were recorded; those that this version does not have are ignored."""
    try:
        return kind(**{name: value for name, value in entries.items() if name in kind.__dataclass_fields__})
    except ConfigError as error:
        raise CheckpointError(f"{location}: {error}; copy it again") from error


def _string(value: object, location: str) -> str:
    if not isinstance(value, str):
        raise CheckpointError(f"{location}: {value!r} is not a string; copy it again")
    return value


def _fits(value: object, kind: Any) -> bool:
    if isinstance(value, bool):
        return kind is object
    return isinstance(value, kind | int if kind in (float, float | None) else kind)


def _type_name(kind: Any) -> str:
    names = {str: "a string", int: "a whole number", float: "a number"}
    return next((name for type_, name in names.items() if kind in (type_, type_ | None)), str(kind))
