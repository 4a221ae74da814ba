"""Reads prompts from the command line, a file or standard input."""

import json
import re
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Literal

from minigpt.bounded_reading import MAX_TEXT_FILE, parse_json
from minigpt.errors import ConfigError, DataError

# str.splitlines() would also split at characters that a prompt may contain, such as a form feed or U+2028.
_LINE_END = re.compile(r"\r\n|\r|\n")

PromptFormat = Literal["auto", "lines", "jsonl", "whole"]


def read_prompts(prompt: str | None, file: Path | None, form: PromptFormat) -> list[str]:
    """The prompt given, or the prompts in a file.

    The file holds one prompt per line (`lines`), one JSON string or object with a "prompt" per line (`jsonl`), or a
    single prompt (`whole`). `auto` goes by the name: jsonl for .jsonl, whole for standard input (-), else lines.

    Raises: ConfigError for both a prompt and a file; DataError for a file that cannot be read, is not UTF-8 or not
    JSON, or holds no prompt.
    """
    if prompt is not None and file is not None:
        raise ConfigError("a prompt cannot be combined with --prompt-file; give one of the two")
    if file is None:
        if form != "auto":
            raise ConfigError(f"--prompt-format {form} describes a file; give it with --prompt-file")
        return [prompt or ""]
    text = _text(file)
    if form == "auto":
        form = "whole" if str(file) == "-" else "jsonl" if file.suffix == ".jsonl" else "lines"
    if form == "whole":
        return [text]
    lines = [(number, line) for number, line in enumerate(_LINE_END.split(text), 1) if line.strip()]
    if not lines:
        raise DataError(f"{file} holds no prompt; give one per line")
    return [line if form == "lines" else _of_json(line, f"{file} line {number}") for number, line in lines]


def _text(file: Path) -> str:
    try:
        with nullcontext(sys.stdin.buffer) if str(file) == "-" else file.open("rb") as stream:
            raw = stream.read(MAX_TEXT_FILE + 1)
    except OSError as error:
        raise DataError(
            f"{file} cannot be read ({error.strerror}); give a text file, or - for standard input"
        ) from error
    if len(raw) > MAX_TEXT_FILE:
        raise DataError(f"{file} has more than {MAX_TEXT_FILE:,} bytes; give shorter prompts")
    try:
        return raw.decode("utf-8").removeprefix("\ufeff")  # a byte order mark
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not UTF-8 text: byte {raw[error.start]:#04x} at offset {error.start}") from error


def _of_json(line: str, where: str) -> str:
    try:
        value = parse_json(line)
    except ValueError as error:
        reason = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
        raise DataError(f"{where} is not JSON ({reason})") from error
    if isinstance(value, dict):
        value = value.get("prompt")
    if not isinstance(value, str):
        raise DataError(f'{where} must be a JSON string, or an object whose "prompt" is a string, not {line[:60]}')
    return value
