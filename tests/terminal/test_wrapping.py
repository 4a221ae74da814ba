"""Prose in a terminal is broken at words, in whatever pieces it arrives; a pipe gets it unchanged."""

import os
import random
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.cells import cell_len

from minigpt.cli.render import terminal
from minigpt.cli.render.continuations import Continuation, PlainOutput
from minigpt.edges import provided
from minigpt.errors import ConfigError
from minigpt.terminal.wrapping import Wrapper, wrapper

TEXT = (
    "“I have been very glad to know you,” said I — don’t be discoloured, and a supercalifragilistic word。 "
    "日本語のテキストは空白なしで続くので、どこでも改行できます。 More English follows here, with ca\u0301fe.\n\n"
    "  an indented line that is long enough to be broken\n\ta tab, and then the end of it all"
)


class Screen(StringIO):
    """A terminal of some columns, with the characters where it shows them."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.columns = columns

    def isatty(self) -> bool:
        return True

    @property
    def lines(self) -> list[str]:
        rows: list[list[str]] = [[]]
        column = 0
        for character in self.getvalue():
            width = cell_len(character)
            if character == "\n":
                rows.append([])
                column = 0
            elif character == "\b":
                column = max(0, column - 1)
            elif character == "\t":
                column = (column // 8 + 1) * 8
            elif width:
                if column + width > self.columns:
                    rows.append([])
                    column = 0
                rows[-1] += [" "] * (column + width - len(rows[-1]))
                rows[-1][column : column + width] = [character, *[""] * (width - 1)]
                column += width
        return ["".join(row).rstrip() for row in rows]


def shown(text: str, columns: int, pieces: random.Random | None = None, indent: int = 0) -> list[str]:
    """The lines of a text that arrives as a whole, or in pieces of 1 to 6 characters."""
    screen, wrap, start = Screen(columns), Wrapper(lambda: columns, indent), 0
    while start < len(text):
        end = start + pieces.randint(1, 6) if pieces else len(text)
        screen.write(wrap.add(text[start:end]))
        start = end
    return screen.lines


@pytest.mark.parametrize("columns", [24, 40, 60, 80])
def test_pieces_are_broken_where_the_whole_text_is(columns: int) -> None:
    whole = shown(TEXT, columns)
    assert all(shown(TEXT, columns, random.Random(seed)) == whole for seed in range(50))
    plain = TEXT.replace("\u0301", "").replace("\t", " ")
    assert "".join(whole).replace(" ", "") == plain.replace(" ", "").replace("\n", "")
    words = {word for line in whole for word in line.split()}
    assert {"supercalifragilistic", "discoloured,", "don’t", "you,”"} <= words


def test_a_line_is_broken_at_the_last_space_that_fits() -> None:
    assert shown("one two three four", 10) == ["one two", "three", "four"]  # the last column stays free
    assert shown("one two   three", 10) == ["one two", "three"]
    assert shown("a\nb", 10) == ["a", "b"]
    assert shown("日本語日本語", 7) == ["日本語", "日本語"]
    assert shown("one two three four", 12, indent=4) == ["one two", "    three", "    four"]


def test_a_piece_is_printed_at_once() -> None:
    wrap = Wrapper(lambda: 10)
    assert [wrap.add(piece) for piece in (" one", " t", "w", "o", "o")] == [" one", " t", "w", "o", "o"]
    assert wrap.add("oo") == "\b\b\b\b    \b\b\b\b\ntwoooo"


def test_a_word_longer_than_a_line_is_left_to_the_terminal() -> None:
    assert shown("a " + "x" * 25, 10) == ["a", "x" * 10, "x" * 10, "x" * 5]
    assert shown("x" * 25 + " b", 10) == ["x" * 10, "x" * 10, "x" * 5, "b"]


def test_a_pipe_and_a_terminal_that_cannot_go_back_get_the_text_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    long = "some words " * 50
    assert wrapper(StringIO())(long) == long
    monkeypatch.setenv("COLUMNS", "20")
    assert wrapper(Screen(20))(long) != long
    monkeypatch.setenv("TERM", "dumb")
    assert wrapper(Screen(20))(long) == long


@pytest.mark.parametrize(("columns", "width"), [("31", 31), ("", 80), ("wide", 80)])
def test_the_width_is_that_of_the_terminal_or_of_columns(
    monkeypatch: pytest.MonkeyPatch, columns: str, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert wrapper(Screen(9))("x " * 100).splitlines()[0].rstrip() == "x " * ((width - 2) // 2) + "x"


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_the_width_follows_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    termios = pytest.importorskip("termios")
    monkeypatch.delenv("COLUMNS", raising=False)
    master, slave = os.openpty()
    with os.fdopen(slave, "w") as stream:
        wrap = wrapper(stream)
        for width in (30, 20):
            termios.tcsetwinsize(stream.fileno(), (24, width))
            wrap("\n")
            assert wrap("word " * 20).splitlines()[0].rstrip() == " ".join(["word"] * (width // 5))
    os.close(master)


def test_notes_and_prose_are_broken_and_commands_and_results_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    out, errors = Screen(30), Screen(30)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", errors)
    command = "minigpt train corpus.txt --minutes 30 --name library"
    terminal.note("the first four words and the others")
    terminal.note(f"/name      {command}", indent=11)
    terminal.note(command, is_command=True)
    terminal.write(command)
    continuation = Continuation("It was a bright cold day", 0)
    continuation.pieces = []
    PlainOutput().write(continuation)
    streamed = PlainOutput()
    streamed.begin("It was a bright cold day, and the\x1b[31m")
    streamed.end()
    assert [line.rstrip() for line in errors.getvalue().splitlines()] == [
        "the first four words and the", "others",
        "/name      minigpt train", "           corpus.txt", "           --minutes 30", "           --name library",
        command,
    ]  # fmt: skip
    assert [line.rstrip() for line in out.getvalue().splitlines()] == [
        command, "It was a bright cold day", "It was a bright cold day, and", "the␛[31m",
    ]  # fmt: skip


def test_an_error_is_shown_even_if_the_edges_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(seam: str) -> None:
        raise ConfigError(f"{seam} is broken in {tmp_path}")

    errors = Screen(30)
    monkeypatch.setattr(sys, "stderr", errors)
    monkeypatch.setattr(terminal, "provided", broken)
    terminal.note("an edge cannot be imported, so this is the error")
    assert errors.getvalue() == "an edge cannot be imported, so this is the error\n"
    assert provided("wrap")
