"""The commands that minigpt prints are read by the shell as they are meant."""

import subprocess

import pytest

from minigpt import shell

WORDS = ["train", "a text.txt", 'it\'s "x"', "$HOME `id` \\ !", "", "C:\\my texts\\", '\\"', "gguf>=0.17.1"]


def test_a_posix_shell_reads_the_words_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "IS_CMD", False)
    script = shell.join("printf", "%s\n", *WORDS)
    assert subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout.split("\n") == [
        *WORDS,
        "",
    ]


@pytest.mark.parametrize(
    ("word", "quoted"),
    [
        ("install", "install"),
        (r"C:\tools\python.exe", r"C:\tools\python.exe"),
        ("", '""'),
        ("a text.txt", '"a text.txt"'),
        ("gguf>=0.17.1", '"gguf>=0.17.1"'),
        ("it's", '"it\'s"'),
        ('say "x"', r'"say \"x\""'),
        (r"C:\Program Files\python.exe", r'"C:\Program Files\python.exe"'),
        ("C:\\my texts\\", r'"C:\my texts\\"'),
        ('\\"', r'"\\\""'),
    ],
)
def test_for_cmd_words_are_in_double_quotes(word: str, quoted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "IS_CMD", True)
    assert shell.join("minigpt", word) == f"minigpt {quoted}"
