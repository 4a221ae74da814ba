"""Quotes the commands that minigpt prints, for a POSIX shell, or for cmd on Windows."""

import os
import re
import shlex

IS_CMD = os.name == "nt"


def join(*words: str) -> str:
    """The command of these words, quoted for the shell of this system."""
    return " ".join(map(_quote_for_cmd if IS_CMD else shlex.quote, words))


def _quote_for_cmd(word: str) -> str:
    """The word, in double quotes if a character of it has a meaning in cmd or PowerShell.

    Programs read a backslash and a quotation mark as a quotation mark, so backslashes before one are doubled.
    Source: https://learn.microsoft.com/en-us/cpp/c-language/parsing-c-command-line-arguments
    """
    if re.fullmatch(r"[\w.:/\\+-]+", word):
        return word
    escaped = re.sub(r'(\\*)"', r'\1\1\\"', word)
    return '"' + re.sub(r"(\\+)$", r"\1\1", escaped) + '"'
