"""The help of every command, in terminals of 80 and 120 columns: whole names, no long lines, the common options."""

import re
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from minigpt.cli.app import app

MOST_LINES, MOST_OPTIONS = 64, 18  # of --help
ROOT: Any = typer.main.get_command(app)
COMMANDS = {"": ROOT, **ROOT.commands}
LONG = ["train", "generate", "play", "chat", "serve", "evaluate"]


def lines_of(*arguments: str, columns: int = 80) -> list[str]:
    """What is printed in a terminal of so many columns."""
    result = CliRunner().invoke(app, arguments, prog_name="minigpt", env={"COLUMNS": str(columns)})
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def options_in(lines: list[str]) -> set[str]:
    """The options that a help text lists: at the start of a line, before their type."""
    names = [re.match(r"  -[\w-]+(?:(?:,| /) -[\w-]+)*", line) for line in lines]
    return {name for found in names if found for name in re.findall(r"-[\w-]+", found[0])}


def options_of(command: str) -> set[str]:
    return {
        name
        for each in COMMANDS[command].params
        if each.param_type_name == "option"
        for name in (*each.opts, *each.secondary_opts)
    }


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("form", ["--help", "--help-all"])
@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_the_terminal_and_cuts_no_name(command: str, form: str, columns: int) -> None:
    lines = lines_of(*command.split(), form, columns=columns)
    assert max(map(len, lines)) <= columns
    assert not [line for line in lines if "…" in line or re.search(r"<(bool|list|.* range)", line)]
    assert options_in(lines) <= options_of(command) | {"-h", "--help"}
    if form == "--help-all":
        assert options_in(lines) == options_of(command) | {"-h", "--help"}
    else:
        assert len(lines) <= MOST_LINES


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_some_options_and_says_how_to_see_all(command: str) -> None:
    lines = lines_of(*command.split(), "--help")
    number = sum(each.param_type_name == "option" for each in COMMANDS[command].params)
    all_of_them = f"All {number} options: minigpt {command} --help-all, or docs/cli.md"
    if command in LONG:
        assert lines[-1] == all_of_them
        listed = [each for each in COMMANDS[command].params if options_in(lines) & set(each.opts)]
        assert len(listed) in range(8, MOST_OPTIONS + 1)
    else:
        assert options_in(lines) == options_of(command) | {"-h", "--help"}
        assert all_of_them not in lines


def test_what_people_use_is_in_help() -> None:
    used = "name from preset tokenizer steps epochs minutes context-length batch-size learning-rate seed device resume "
    used += "plan watch validation-fraction checkpoints"
    assert {f"--{name}" for name in used.split()} == options_in(lines_of("train", "--help")) - {"-h", "--help"}
    assert {"--temperature", "--top-p", "--seed", "--model", "-m", "--memorization"} <= options_in(
        lines_of("generate", "--help")
    )


def test_options_stand_below_the_headings_of_their_settings() -> None:
    lines = lines_of("train", "--help-all")
    below = lines[lines.index("Optimization:") : lines.index("Evaluation and saving:")]
    assert {"--learning-rate", "--final-learning-rate", "--spelling-features"} <= options_in(below)
    assert "--context-length" not in options_in(below)


def test_examples_stand_as_they_are_typed() -> None:
    lines = lines_of("train", "--help")
    assert "  minigpt train corpus.txt --resume" in lines
    assert not [line for line in lines if "`" in line]


def test_headings_are_bold_in_a_terminal_that_can_show_it() -> None:
    in_terminal, dumb = ({"color": True, "env": {"TERM": term}} for term in ("xterm", "dumb"))
    assert "\x1b[1mOptions\x1b[0m:" in CliRunner().invoke(app, ["list", "--help"], **in_terminal).stdout
    assert "\x1b" not in CliRunner().invoke(app, ["list", "--help"], **dumb).stdout
    assert "\x1b" not in CliRunner().invoke(app, ["list", "--help"]).stdout
