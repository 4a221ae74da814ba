"""A training run as a user asks for it: its texts, its name, and the options that were given."""

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minigpt.config import GPTConfig, ReadingConfig, TrainConfig, preset_config
from minigpt.errors import ConfigError, quoted
from minigpt.settings import plain_number
from minigpt.tokenizer.display import plain_name

_LONGEST_NAME = 200  # bytes; file systems allow 255, and temporary folders add to it


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options that a user gave for a training run. `given` names them; every other field has its default.

    `base` is the option `from`: the model to fine-tune. `shape` holds the model's settings that were given.
    """

    preset: str | None = None
    tokenizer: str | None = None
    base: str | None = None
    shape: Mapping[str, Any] = field(default_factory=dict)
    training: TrainConfig = field(default_factory=TrainConfig)
    reading: ReadingConfig = field(default_factory=ReadingConfig)
    given: frozenset[str] = frozenset()

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "RunOptions":
        """The options by their names: `preset`, `tokenizer`, `from`, or a setting. None means that one was not given.
        `from` may be a path.

        Raises: ConfigError for an unknown name, a value out of bounds, and values that cannot be combined.
        """
        given = {name: plain_number(value) for name, value in options.items() if value is not None}
        for name in given.keys() - OPTION_NAMES:
            close = difflib.get_close_matches(name, OPTION_NAMES, n=1, cutoff=0.7)
            hint = f"did you mean {close[0]!r}?" if close else "see minigpt train --help-all for the settings"
            raise ConfigError(f"unknown setting {name!r}; {hint}")
        if isinstance(given.get("from"), os.PathLike):
            given["from"] = os.fspath(given["from"])
        for name in ("from", "preset", "tokenizer"):
            if not isinstance(given.get(name, ""), str):
                form = {"from": "a string or a path", "tokenizer": "a string, as in 'bpe:4096'"}.get(name, "a string")
                raise ConfigError(f"{name} ({quoted(given[name])}) must be {form}")
            if given.get(name) == "":
                raise ConfigError(f"{name} ('') must be a name; omit it to have it chosen")
        TrainConfig.check_given(given)
        shape = {name: given[name] for name in _SHAPE_NAMES if name in given}
        for name, value in shape.items():
            GPTConfig.check(name, value)
        if {"n_embd", "n_head"} <= shape.keys():
            GPTConfig(**shape)
        fixed = [f"{name} ({value})" for name, value in shape.items() if name != "dropout"]
        fixed += [f"preset ({given['preset']})"] if "preset" in given else []
        if "from" in given and fixed:
            raise ConfigError(
                f"{', '.join(fixed)} cannot be chosen when fine-tuning: the model given by --from has its own shape"
            )
        if "preset" in given:
            preset_config(given["preset"]).replace(**shape)
        return cls(
            preset=given.get("preset"),
            tokenizer=given.get("tokenizer"),
            base=given.get("from"),
            shape=shape,
            training=TrainConfig(**{name: value for name, value in given.items() if name in _TRAINING}),
            reading=ReadingConfig(**{name: value for name, value in given.items() if name in _READING}),
            given=frozenset(given),
        )

    def to_dict(self) -> dict[str, Any]:
        """The options that were given, by their names; the inverse of `of`."""
        values = {"preset": self.preset, "tokenizer": self.tokenizer, "from": self.base, **self.shape}
        values |= self.reading.to_dict() | self.training.to_dict()
        return {name: value for name, value in values.items() if name in self.given}


_SHAPE_NAMES = ("n_layer", "n_head", "n_embd", "dropout")
_TRAINING, _READING = TrainConfig.__dataclass_fields__, ReadingConfig.__dataclass_fields__
OPTION_NAMES = frozenset({"preset", "tokenizer", "from", *_SHAPE_NAMES, *_TRAINING, *_READING})


@dataclass(frozen=True, kw_only=True)
class Request:
    """The texts, the name and the options of a run; the same options mean the same when the run is resumed.

    Raises: ConfigError for a name that is not a plain folder name.
    """

    sources: tuple[str, ...] = ()
    name: str | None = None
    checkpoints: Path = Path("checkpoints")
    options: RunOptions = field(default_factory=RunOptions)
    allow_change: bool = False

    def __post_init__(self) -> None:
        if self.name is None:
            return
        if not isinstance(self.name, str):
            raise ConfigError(f"name ({quoted(self.name)}) must be a string")
        if (length := len(self.name.encode(errors="surrogatepass"))) > _LONGEST_NAME:
            raise ConfigError(f"name ({self.name[:20]!r} …) has {length} bytes; it must have at most {_LONGEST_NAME}")
        if Path(self.name).name != self.name or self.name[:1] in ("", ".") or plain_name(self.name) != self.name:
            raise ConfigError(
                f"name ({self.name!r}) must be a plain folder name in {self.checkpoints}: without slashes, newlines "
                "and control characters, and not beginning with a dot"
            )
