"""Prompts from the command line, a file or standard input; it knows no model."""

import json
import sys
from pathlib import Path
from typing import Literal

from minigpt.errors import ConfigError, DataError

PromptFormat = Literal["auto", "lines", "jsonl", "whole"]


def read_prompts(prompt: str | None, file: Path | None, form: PromptFormat) -> list[str]:
    """The prompt that was given, or those of a file: one per line, one JSON string or object with "prompt" per line, or
    the whole of it as one. `auto` goes by the name: .jsonl, lines, and standard input (-) as a whole.

    Raises: ConfigError for two sources; DataError for what cannot be read, is not UTF-8, no JSON, or holds no prompt.
    """
    if prompt is not None and file is not None:
        raise ConfigError("a prompt and --prompt-file contradict one another; give one of them")
    if file is None:
        if form != "auto":
            raise ConfigError(f"--prompt-format {form} is about a file; give one with --prompt-file")
        return [prompt or ""]
    text = _text(file)
    if form == "auto":
        form = "whole" if str(file) == "-" else "jsonl" if file.suffix == ".jsonl" else "lines"
    if form == "whole":
        return [text]
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise DataError(f"{file} holds no prompt; give one per line")
    return [line if form == "lines" else _of_json(line, f"{file} line {number}") for number, line in lines]


def _text(file: Path) -> str:
    try:
        raw = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise DataError(
            f"{file} cannot be read ({error.strerror}); give a text file, or - for standard input"
        ) from error
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not UTF-8 text: byte {raw[error.start]:#04x} at offset {error.start}") from error


def _of_json(line: str, where: str) -> str:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{where} is no JSON ({error.msg} at column {error.colno})") from error
    if isinstance(value, dict):
        value = value.get("prompt")
    if not isinstance(value, str):
        raise DataError(f'{where} must be a JSON string or an object with a "prompt" that is one, not {line[:60]}')
    return value
