"""The record of a training run, which training.json holds: one typed description for every module that reads it.

The record of a run that `train()` began in Python lacks some parts. A record that is damaged raises CheckpointError, or
is read without its damaged parts by those who only show it.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from minigpt.config import GPTConfig, ReadingConfig, TrainConfig
from minigpt.errors import CheckpointError, ConfigError, quoted
from minigpt.run_options import OPTION_NAMES, RunOptions
from minigpt.storage.json_record import JsonRecord, check_entry, is_number, is_text, mapping

FORMAT = 1  # of training.json and of the saved states
TEXT = "text"  # the "option" of a change of the text
_MEASURED_BY = (TEXT, "loss_on", "context_length", "eval_tokens")  # options that decide what an evaluation measures

SettingsType = TypeVar("SettingsType", GPTConfig, ReadingConfig, TrainConfig)


@dataclass(frozen=True, kw_only=True)
class Environment(JsonRecord):
    """The machine that a run began on. A resumed run may have another, so nothing is compared with it."""

    python: str | None = None
    system: str | None = None
    cpu: str | None = None
    gpu: str | None = None
    cores: int | None = None
    threads: int | None = None
    processes: int | None = None


@dataclass(frozen=True, kw_only=True)
class AdapterBase(JsonRecord):
    """The base model of an adapter: the name or path that its adapter_config.json has, and the hash of its weights."""

    name: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class CorpusRecord(JsonRecord):
    """The text as tokens: its hash, its size, and the file that holds the tokens."""

    fingerprint: str
    path: str | None = None
    train_bytes: int
    validation_bytes: int | None = None
    train_tokens: int
    validation_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class BaselineRecord(JsonRecord):
    """The result of one simple method: the fields of `minigpt.baselines.baselines.Baseline`."""

    name: str
    bits_per_byte: float
    train_bytes: int
    validation_bytes: int
    whole_train_bytes: int = 0
    whole_validation_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class BaselinesRecord:
    """The simple methods that a run is compared with, as measured on the text with that fingerprint."""

    fingerprint: str
    measured: tuple[BaselineRecord, ...] = ()

    @classmethod
    def from_dict(cls, entries: object, location: str) -> "BaselinesRecord":
        given = mapping(entries, location)
        fingerprint, measured = given.get("fingerprint"), given.get("measured")
        check_entry(fingerprint, str, location, "fingerprint")
        check_entry(measured, list, location, "measured")
        return cls(
            fingerprint=cast(str, fingerprint),
            measured=tuple(
                BaselineRecord.from_dict(each, f"{location}: a baseline") for each in cast(list[Any], measured)
            ),
        )

    def to_dict(self) -> dict[str, Any]:
        return {"fingerprint": self.fingerprint, "measured": [each.to_dict() for each in self.measured]}


@dataclass(frozen=True, kw_only=True)
class Change(JsonRecord):
    """A setting that `--allow-change` changed; the new value holds after `step`."""

    step: int
    option: str
    before: object = field(default=None, metadata={"key": "from"})
    after: object = field(default=None, metadata={"key": "to"})


@dataclass(frozen=True, kw_only=True)
class Result(JsonRecord):
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


# Takes a value, the start of an error, which says that a file is damaged, and the value's key in that file.
_Reader = Callable[[Any, str, str], Any]


def _object(build: Callable[[Mapping[str, Any], str], Any]) -> _Reader:
    """Reads an object; None if it is missing or empty."""

    def read(value: Any, damaged: str, key: str) -> Any:
        if value is None:
            return None
        if not isinstance(value, dict):
            raise CheckpointError(f"{damaged}: its {key!r} is {quoted(value)}, not an object; copy it again")
        return build(value, f"{damaged}: in its {key!r}") if value else None

    return read


def _list(build: Callable[[Any, str], Any]) -> _Reader:
    """Reads a list; an empty one if it is missing."""

    def read(value: Any, damaged: str, key: str) -> Any:
        if not isinstance(value, list | None):
            raise CheckpointError(f"{damaged}: its {key!r} is {quoted(value)}, not a list; copy it again")
        return tuple(build(each, f"{damaged}: in its {key!r}") for each in value or ())

    return read


def _settings(kind: type[SettingsType]) -> _Reader:
    """Reads settings as they were recorded; those that this version does not have are ignored."""

    def build(entries: Mapping[str, Any], location: str) -> SettingsType:
        try:
            return kind(**{name: value for name, value in entries.items() if name in kind.__dataclass_fields__})
        except ConfigError as error:
            raise CheckpointError(f"{location}: {error}; copy it again") from error

    return _object(build)


def _asked(value: Any, damaged: str, key: str) -> RunOptions | None:
    """Reads the options that were given; those that this version does not have are ignored."""
    if value is None:
        return None
    given = _object(lambda entries, _location: entries)(value, damaged, key) or {}
    try:
        return RunOptions.of({name: each for name, each in given.items() if name in OPTION_NAMES})
    except ConfigError as error:
        raise CheckpointError(f"{damaged}: in its {key!r}: {error}; copy it again") from error


def _expected(value: Any, damaged: str, key: str) -> tuple[float, float] | None:
    """Reads the lowest and the highest figure that a plan expected."""
    if value is None:
        return None
    if not (isinstance(value, list) and len(value) == 2 and all(map(is_number, value))):
        raise CheckpointError(f"{damaged}: {key} is {quoted(value)}, not two numbers; copy it again")
    return value[0], value[1]


def _plain(kind: Any, value: Any, damaged: str, key: str) -> Any:
    """Reads a value of this type."""
    check_entry(value, kind, damaged, key)
    return value


def _string(value: Any, location: str) -> Any:
    if not is_text(value):
        raise CheckpointError(f"{location}: {quoted(value)} is not a string; copy it again")
    return value


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The content of training.json; a part is None if it was not recorded.

    `base` is the model that was fine-tuned, `adapter_base` the same of a run that trains an adapter. `sources` are the
    texts by absolute path (`-` is a pipe), `asked` are the options that a resumed run is compared with, `chat_template`
    is the Jinja template of a chat log's conversations, `model` and `training` are the settings that the run has,
    `expected` are the lowest and the highest bits per byte that its plan expected. `number` counts the starts and
    resumes of all runs in the same folder up to the last one of this run. `other` holds entries that edges use, or
    no part of this version, `unread` the options of `asked` that nothing installed has.
    """

    format: int | None = FORMAT
    minigpt: str | None = None
    torch: str | None = None
    started: str | None = None
    number: int | None = None
    device: str | None = None
    environment: Environment | None = field(default=None, metadata={"read": _object(Environment.from_dict)})
    sources: tuple[str, ...] = field(default=(), metadata={"read": _list(_string)})
    asked: RunOptions | None = field(default=None, metadata={"read": _asked})
    reading: ReadingConfig | None = field(default=None, metadata={"read": _settings(ReadingConfig)})
    base: str | None = field(default=None, metadata={"key": "from"})
    adapter_base: AdapterBase | None = field(default=None, metadata={"read": _object(AdapterBase.from_dict)})
    preset: str | None = None
    tokenizer: str | None = None
    chat_template: str | None = None
    corpus: CorpusRecord | None = field(default=None, metadata={"read": _object(CorpusRecord.from_dict)})
    baselines: BaselinesRecord | None = field(default=None, metadata={"read": _object(BaselinesRecord.from_dict)})
    model: GPTConfig | None = field(default=None, metadata={"read": _settings(GPTConfig)})
    training: TrainConfig | None = field(default=None, metadata={"read": _settings(TrainConfig)})
    expected: tuple[float, float] | None = field(default=None, metadata={"read": _expected, "key": "forecast"})
    changes: tuple[Change, ...] = field(default=(), metadata={"read": _list(Change.from_dict)})
    result: Result | None = field(default=None, metadata={"read": _object(Result.from_dict)})
    other: Mapping[str, Any] = field(default_factory=dict)
    unread: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(
        cls,
        entries: Mapping[str, Any],
        path: str | Path = "training.json",
        problems: list[str] | None = None,
    ) -> "RunRecord":
        """The record with these entries, as JSON has them; `path` is the file that an error names.

        With a list of `problems`, a damaged part is not recorded, and the list gets a sentence on it.
        Raises: CheckpointError without such a list, for a part that lacks what it must have or has a value that is not
        valid.
        """
        parts, other = dict[str, Any](), dict(entries)
        for each in _recorded():
            key = _key(each)
            other.pop(key, None)
            if key not in entries and each.name != "format":
                continue
            try:
                read: _Reader = each.metadata.get("read") or partial(_plain, each.type)
                parts[each.name] = read(entries.get(key), f"{path} is damaged", key)
            except CheckpointError as error:
                if problems is None:
                    raise
                problems.append(str(error))
        asked = entries.get("asked") if parts.get("asked") is not None else None
        unread = {name: value for name, value in (asked or {}).items() if name not in OPTION_NAMES}
        return cls(**parts, other=other, unread=unread)

    def to_dict(self) -> dict[str, Any]:
        """The record as plain values, in the order of training.json."""
        values = {_key(each): getattr(self, each.name) for each in _recorded()}
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

    @property
    def seconds(self) -> float:
        """The seconds that the run had taken when it ended; 0 without a result."""
        return (self.result and self.result.seconds) or 0.0

    @property
    def measured_since(self) -> int:
        """The step at which the run last changed what an evaluation measures, and evaluates again; -1 without one."""
        return max((each.step for each in self.changes if each.option in _MEASURED_BY), default=-1)

    def comparable_evaluations(self, log: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The evaluations in a log that measured the same targets in the same windows as the last of them did.

        That is all of them, unless a resumed run was given another text, role, context or number of tokens: then the
        earlier ones measured something else.
        """
        since = self.measured_since
        return [line for line in log if line.get("validation_loss") is not None and line["step"] >= since]

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


def _recorded() -> "list[dataclasses.Field[Any]]":
    """The fields of a RunRecord that have a key of their own in training.json."""
    return [each for each in dataclasses.fields(RunRecord) if each.name not in ("other", "unread")]


def _key(each: "dataclasses.Field[Any]") -> str:
    return str(each.metadata.get("key", each.name))
