"""Reads prompts from the command line, a file or standard input, and says what of them the model cannot read."""

import json
import re
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from minigpt.bounded_reading import MAX_TEXT_FILE, is_of_kernel, parse_json
from minigpt.cli.render.terminal import note
from minigpt.config import ReadingConfig
from minigpt.data.encodings import encoding_name, likely_encoding
from minigpt.data.source_files import Decoding, decode
from minigpt.errors import ConfigError, DataError
from minigpt.settings import check_utf8

if TYPE_CHECKING:
    from minigpt.model.gpt import GPT
    from minigpt.tokenizer.tokenizer import Tokenizer

# str.splitlines() would also split at characters that a prompt may contain, such as a form feed or U+2028.
_LINE_END = re.compile(r"\r\n|\r|\n")

PIPE = "-"  # the name of standard input
_PATIENCE = 3.0  # seconds without a note

READING = ("encoding", "encoding_errors")  # the settings with which a file of prompts is read

PromptFormat = Literal["auto", "lines", "jsonl", "whole"]


def read_prompts(
    prompt: str | None, file: Path | None, form: PromptFormat, reading: ReadingConfig, *, option: str = "--prompt-file"
) -> list[str | list[int]]:
    """The prompt given, or the prompts in a file; the prompt - is what standard input holds.

    The file holds one prompt per line (`lines`), one JSON value per line (`jsonl`: a string, a list of token ids, or an
    object with one of them as "prompt"), or a single prompt (`whole`). `auto` goes by the name: jsonl for .jsonl, whole
    for standard input (-), else lines.

    A file is read in UTF-8 or else as `reading` says. `option` names the file on the command line.
    """
    if prompt is not None and file is not None:
        raise ConfigError("a prompt cannot be combined with --prompt-file; give one of the two")
    is_piped = prompt == PIPE
    file = Path(PIPE) if is_piped else file
    if file is None:
        if form != "auto":
            raise ConfigError(f"--prompt-format {form} describes a file; give it with --prompt-file")
        likely, prompt = None, prompt or ""
        with suppress(UnicodeEncodeError):  # half of a surrogate pair, which no byte became
            likely = likely_encoding(prompt.encode(errors="surrogateescape"))
        check_utf8("the prompt", prompt, f"put it into a file and give {option} FILE --encoding {likely or 'ENCODING'}")
        return [prompt]
    text = _text(file, Decoding(reading.encoding, reading.encoding_errors))
    if form == "auto":
        form = "whole" if str(file) == PIPE else "jsonl" if file.suffix == ".jsonl" else "lines"
    if form == "whole":
        return [re.sub(r"\r?\n\Z", "", text) if is_piped else text]  # without what echo adds
    lines = [(number, line) for number, line in enumerate(_LINE_END.split(text), 1) if line.strip()]
    if not lines:
        raise DataError(f"{file} holds no prompt; give one per line")
    return [line if form == "lines" else _of_json(line, f"{file} line {number}") for number, line in lines]


def prompt_or_pipe(prompt: str | None, file: Path | None, others: Mapping[str, Sequence[str]]) -> str | None:
    """The prompt given; without one and without a file, - for what is piped, unless another option reads that."""
    piped = [option for option, names in others.items() if PIPE in names]
    if piped and PIPE in (prompt, str(file)):
        raise ConfigError(f"standard input is read once, for {piped[0]} or for the prompt; give one of them a file")
    is_free = prompt is None and file is None and not piped
    return PIPE if is_free and sys.stdin is not None and not sys.stdin.isatty() else prompt


def _read_input() -> bytes:
    """Standard input to its end; a note says so if that takes long, as the input of a parent program may never end."""
    said = 'waiting for the end of standard input; with a prompt as argument, which may be empty (""), it is not read'
    waiting = threading.Timer(_PATIENCE, note, [said])
    waiting.daemon = True
    waiting.start()
    try:
        return sys.stdin.buffer.read(MAX_TEXT_FILE + 1)
    finally:
        waiting.cancel()


def refuse_reading(given: Mapping[str, Any], what: str) -> None:
    """Raises ConfigError for settings of reading a file where there is none; `what` are the files that they are for."""
    for name, value in given.items():
        raise ConfigError(f"--{name.replace('_', '-')} {value} is for {what}; name one")


def _text(file: Path, decoding: Decoding) -> str:
    is_pipe = str(file) == PIPE
    name = "standard input" if is_pipe else str(file)
    if is_of_kernel(file):
        raise DataError(f"{name} is a file of the kernel, not a text; copy what it says into a file")
    try:
        if is_pipe:
            raw = _read_input()
        else:
            with file.open("rb") as stream:
                raw = stream.read(MAX_TEXT_FILE + 1)
    except OSError as error:
        raise DataError(
            f"{name} cannot be read ({error.strerror}); give a text file, or - for standard input"
        ) from error
    if len(raw) > MAX_TEXT_FILE:
        raise DataError(f"{name} has more than {MAX_TEXT_FILE:,} bytes; give shorter prompts")
    text, evident = decode(raw, name, decoding)
    if evident is not None:
        note(f"read {name} as {encoding_name(evident)}, which it is, not as {decoding.encoding}")
    return text


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
    from minigpt.pretrained.unread_characters import unread_characters

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
