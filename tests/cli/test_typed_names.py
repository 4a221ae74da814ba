"""Errors name options as they are typed, and a wrong command or option gets the likely one."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from minigpt.cli import evaluate, generate
from minigpt.cli.app import app
from minigpt.cli.models import ENGINE_SETTINGS
from minigpt.config import GPTConfig, ReadingConfig, SamplingConfig, TrainConfig
from minigpt.errors import ConfigError
from minigpt.settings import Settings

ROOT: Any = typer.main.get_command(app)
SETTINGS: dict[str, list[type[Settings]]] = {
    "train": [GPTConfig, TrainConfig, ReadingConfig],
    "generate": [SamplingConfig, generate._SETTINGS],
    "play": [SamplingConfig, ENGINE_SETTINGS],
    "chat": [SamplingConfig, ENGINE_SETTINGS],
    "evaluate": [evaluate._SETTINGS],
    "corpus": [ReadingConfig],
}
ARGUMENTS = {"train": ["text.txt"], "corpus": ["text.txt"], "evaluate": ["model", "text.txt"]}
NAMED = sorted(
    name
    for name, command in ROOT.commands.items()
    if command.params and command.params[0].metavar in ("MODEL", "RUN") and name != "load-gpt2"
)


def beyond(bounds: Mapping[str, float | None]) -> Iterator[float]:
    """A number beyond each bound."""
    for key, step in (("min", -1), ("max", 1), ("above", 0), ("below", 0)):
        if (bound := bounds[key]) is not None:
            yield bound + step


def out_of_bounds() -> Iterator[tuple[str, str, float]]:
    """Commands with an option of a setting, of the spine and of edges, and a number beyond its bounds."""
    for name, groups in SETTINGS.items():
        for each in ROOT.commands[name].params:
            for fields in (group.__dataclass_fields__ for group in groups):
                for number in beyond(fields[each.name].metadata["bounds"]) if each.name in fields else ():
                    yield name, each.opts[0], number


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments, prog_name="minigpt")
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    return result.exit_code, result.stderr


@pytest.mark.parametrize(("command", "option", "number"), list(out_of_bounds()))
def test_an_error_begins_with_the_option_that_was_typed(command: str, option: str, number: float) -> None:
    code, said = run(command, *ARGUMENTS.get(command, []), f"{option}={number}")
    assert code == 1
    assert said.startswith(f"minigpt: {option} (")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("generate --top-p 2", "--top-p (2.0) must be at most 1"),
        ("generate --min-new-tokens 9 --max-new-tokens 3", "--min-new-tokens (9) must be at most --max-new-tokens (3)"),
        ("generate --best-of 2 --samples 3", "--samples (3) must be at most --best-of (2)"),
        ("train t --steps 3 --epochs 2", "--steps (3) and --epochs (2) cannot be combined; give one of them"),
        ("train t --preset nano --n-layer 2 --from m", "--n-layer (2), --preset (nano) cannot be chosen when"),
        ("train t --n-embd 30 --n-head 4", "--n-embd (30) must be divisible by --n-head (4)"),
        ("train t --from m --lora-rank 3", "--lora-rank (3) needs --lora"),
        ("train text_key --from m --lora-rank 3", "--lora-rank (3) needs --lora"),
        ("train no/text_key", "no/text_key does not exist"),
        ("info seed", "no model 'seed'"),
    ],
)
def test_errors_name_options_and_nothing_else_as_options(typed: str, said: str) -> None:
    code, error = run(*typed.split())
    assert (code, error.startswith(f"minigpt: {said}")) == (1, True), error


def test_python_keeps_the_names_of_python() -> None:
    with pytest.raises(ConfigError, match=r"^top_p \(2.0\) must be at most 1$"):
        SamplingConfig(top_p=2.0)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("trian x.txt", "no such command 'trian'; did you mean 'train'?"),
        ("load-gtp2", "no such command 'load-gtp2'; did you mean 'load-gpt2'?"),
        ("qqq", "no such command 'qqq'; see minigpt --help"),
        ("train x.txt --stpes 3", "no such option: --stpes; did you mean '--steps'?"),
        ("generate x --top_p=2", "no such option: --top_p; did you mean '--top-p'?"),
        ("generate x --qqq", "no such option: --qqq; see minigpt generate --help"),
        ("list --device cpu", "no such option: --device; see minigpt list --help"),
        ("corpus", "missing argument 'TEXT'; see minigpt corpus --help"),
        ("info a b", "got unexpected extra argument(s) (b); see minigpt info --help"),
        ("info a -m b", "got unexpected extra argument(s) (a); see minigpt info --help"),
        ("generate --temperature", "option '--temperature' requires an argument"),
    ],
)
def test_what_typer_finds_wrong_is_one_sentence(typed: str, said: str) -> None:
    code, error = run(*typed.split())
    punctuation = re.compile(r"[':]|\(s\)")  # which other versions of typer set differently
    assert (code, punctuation.sub("", error)) == (2, punctuation.sub("", f"minigpt: {said}\n"))


@pytest.mark.parametrize("typed", [["info", "a", "\x1b[31m"], ["\x1b[31m"], ["train", "--\x1b[31m"]])
def test_control_characters_of_what_was_typed_are_visible(typed: list[str]) -> None:
    code, said = run(*typed)
    assert (code, "\x1b" in said, "[31m" in said) == (2, False, True)


@pytest.mark.parametrize("command", NAMED)
def test_a_model_is_named_by_position_and_by_option(command: str, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    after = {"evaluate": ["x.txt"], "inspect": ["a text"]}.get(command, [])
    expected = run(command, "nobody", *after)
    assert "nobody" in expected[1]
    for given in (["-m", "nobody"], ["--model", "nobody"], ["--model=nobody"], ["-mnobody"]):
        assert run(command, *given, *after) == expected
        assert run(command, *after, *given) == expected


@pytest.mark.parametrize("command", ["serve", "report", "rm"])
def test_several_models_are_named_by_options(command: str, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(command, "-m", "one", "-m", "two") == run(command, "one", "two")


def test_every_command_that_reads_a_model_has_the_option() -> None:
    without = {name for name, command in ROOT.commands.items() if not any("-m" in each.opts for each in command.params)}
    assert without == {"train", "list"}
