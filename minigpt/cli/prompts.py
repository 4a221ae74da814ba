"""Reads prompts from the command line, a file or standard input, and says what of them the model cannot read."""

import json
import re
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from minigpt.bounded_reading import MAX_TEXT_FILE, parse_json
from minigpt.cli.render.terminal import note
from minigpt.errors import ConfigError, DataError

if TYPE_CHECKING:
    from minigpt.model.gpt import GPT
    from minigpt.tokenizer.tokenizer import Tokenizer

# str.splitlines() would also split at characters that a prompt may contain, such as a form feed or U+2028.
_LINE_END = re.compile(r"\r\n|\r|\n")

PromptFormat = Literal["auto", "lines", "jsonl", "whole"]


def read_prompts(prompt: str | None, file: Path | None, form: PromptFormat) -> list[str | list[int]]:
    """The prompt given, or the prompts in a file.

    The file holds one prompt per line (`lines`), one JSON value per line (`jsonl`: a string, a list of token ids, or an
    object with one of them as "prompt"), or a single prompt (`whole`). `auto` goes by the name: jsonl for .jsonl, whole
    for standard input (-), else lines.

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


def _of_json(line: str, where: str) -> str | list[int]:
    try:
        value = parse_json(line)
    except ValueError as error:
        reason = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
        raise DataError(f"{where} is not JSON ({reason})") from error
    if isinstance(value, dict):
        value = value.get("prompt")
    if isinstance(value, str) or (isinstance(value, list) and value and all(type(id) is int for id in value)):
        return value
    raise DataError(
        f'{where} must be a JSON string, a list of token ids, or an object with one of them as "prompt", not '
        f"{line[:60]}"
    )


def note_unread_text(model: "GPT", tokenizer: "Tokenizer", texts: Sequence[str], special_tokens: bool) -> None:
    """Prints a note on the names of special tokens in the texts, which are read as text, and one on the characters
    that the model cannot tell from each other.
    """
    from minigpt.generation.unread_characters import unread_characters

    text = "\n".join(texts)
    if not special_tokens and (names := tokenizer.named_in(text)):
        note(
            f"the prompt contains {listed(names)}, which the model reads as text; to read the names of special tokens "
            "as these tokens, give --special-tokens"
        )
    if unread := unread_characters(model, tokenizer, text):
        shown = listed([repr(char) for char in unread])
        note(
            f"the model's vocabulary has no token for {shown}; it reads each of them as the same input, which means "
            "nothing to it"
        )


def listed(names: Sequence[str]) -> str:
    """The first ten of some names, and how many more there are."""
    return ", ".join(names[:10]) + (f" and {len(names) - 10:,} more" if len(names) > 10 else "")
