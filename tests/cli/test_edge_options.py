"""The options that edges add to `generate` and `evaluate`, and the commands without them."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from minigpt.cli.evaluate_settings import EvaluateSettings
from minigpt.cli.generate_settings import GenerateSettings
from minigpt.cli.render.continuations import Continuation, Output
from minigpt.config import ReadingConfig, SamplingConfig
from minigpt.errors import ConfigError
from minigpt.settings import combined, setting


class Shout(Output):
    def record(self, continuation: Continuation) -> dict[str, Any]:
        return {"shouted": continuation.text.upper()}


@dataclass(frozen=True, kw_only=True)
class ShoutSettings(GenerateSettings):
    shout: bool = setting(False, "print in capitals")

    @property
    def forms(self) -> list[str]:
        return [*super().forms, *(["--shout"] if self.shout else [])]

    def output(self, checkpoint: Any, reading: ReadingConfig) -> Output | None:
        return Shout() if self.shout else super().output(checkpoint, reading)


@dataclass(frozen=True, kw_only=True)
class WhisperSettings(GenerateSettings):
    whisper: bool = setting(False, "print in small letters")

    @property
    def forms(self) -> list[str]:
        return [*super().forms, *(["--whisper"] if self.whisper else [])]


def test_groups_of_several_edges_are_one_and_choose_one_output() -> None:
    together: Any = combined("Both", "Both.", (GenerateSettings, ShoutSettings, WhisperSettings))
    assert together(shout=True).output(None, ReadingConfig()).__class__ is Shout
    assert together(whisper=True).output(None, ReadingConfig()) is None
    with pytest.raises(ConfigError, match=r"^--shout cannot be combined with --whisper$"):
        together(shout=True, whisper=True).check_together(SamplingConfig(), as_json=False)


def test_without_edges_the_commands_have_their_own_settings_only() -> None:
    own = {field.name for field in fields(GenerateSettings)}
    assert own == {"prompt_format", "strict", "alternatives"}
    settings = GenerateSettings(alternatives=3)
    assert (settings.quantize, settings.compile) == ("auto", False)
    with pytest.raises(ConfigError, match=r"^--alternatives 3 needs --json, which shows them$"):
        settings.check_together(SamplingConfig(), as_json=False)
    assert {field.name for field in fields(EvaluateSettings)} == {
        "stride", "context_length", "batch_size", "limit", "by_position", "markdown",
    }  # fmt: skip
    assert EvaluateSettings().names_in(["lambada"]) == []
    assert (EvaluateSettings().loss_on, EvaluateSettings().held_out) == (None, False)


def test_a_number_out_of_bounds_is_an_error_of_the_option(run: Any, here: Path) -> None:
    for command, option, number, bound in (
        ("generate", "--copied-words", 0, 1), ("generate", "--alternatives", -1, 0), ("evaluate", "--stride", 0, 1),
        ("generate", "--max-new-tokens", 0, 1),
    ):  # fmt: skip
        refused = run(command, "x", option, number)
        assert (refused.exit_code, refused.stderr) == (1, f"minigpt: {option} ({number}) must be at least {bound}\n")
