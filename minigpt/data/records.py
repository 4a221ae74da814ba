"""Reads records with a text: the lines of a `.jsonl`, and what the formats and conversations of edges have."""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

from minigpt.bounded_reading import bounded_lines, parse_json
from minigpt.data.source_files import ByteStream, SourceFile, open_source, skip_bom, undecodable
from minigpt.edges import provided
from minigpt.errors import DataError
from minigpt.tokenizer.vocabulary import replace_surrogates


class Record(NamedTuple):
    """The text of one record, and whether it is the transcript of a conversation."""

    text: str
    is_conversation: bool


class JsonValue(NamedTuple):
    """A JSON value in a file: its line, or its number in an array, counted from 1; its first byte, counted from 0; the
    bytes that were read for it; and where it is, as errors say it."""

    number: int
    start: int
    size: int
    value: object
    location: str


class RecordFields(NamedTuple):
    """The fields of a text or a conversation; whether it is a pair, of which both are read although the first is a
    text; and the fields that say whether it is learned."""

    names: Sequence[str]
    is_pair: bool = False
    marks: Sequence[str] = ()


class Speakers(NamedTuple):
    """Who speaks in a part of a transcript: from byte `offsets[i]` on it is the speaker `numbers[i]`.

    The first offset is 0. The number 0 is nobody.
    """

    offsets: list[int]
    numbers: list[int]


class SpeakerTracker(Protocol):
    """Finds out who speaks in a transcript that is read in order, part by part."""

    def read(self, text: bytes) -> Speakers:
        """Who speaks in the next part of the transcript, in UTF-8."""


class Conversations(Protocol):
    """Reads records that are conversations as transcripts; an edge provides it at the seam "conversations".

    A transcript may have marks, which are removed before it is tokenized.
    """

    @property
    def chat_template(self) -> str:
        """The Jinja template by which Hugging Face's libraries write conversations as transcripts."""

    def fields(self, keys: Collection[str], key: str) -> RecordFields:
        """The fields that are read of records with these keys, if the user named `key`."""

    def read(self, row: object, key: str, location: str) -> Record | None:
        """The record in a JSON value; None if it is no object with a text or a conversation.

        Raises: DataError, which begins with `location`.
        """

    def notes(self, files: Sequence[SourceFile], key: str) -> list[str]:
        """What the user should know of the records and conversations in these files."""

    def check(self, n_unlearned: int, *, knows_speakers: bool) -> None:
        """Raises DataError for messages that are marked not to be learned where their speakers are not known."""

    def unmarked(self, text: str) -> str:
        """A transcript as a model reads it, without marks."""

    def count_unlearned(self, text: str) -> int:
        """The number of messages in a transcript that are not learned."""

    def tracker(self) -> SpeakerTracker: ...


def conversations() -> Conversations | None:
    """What reads conversations, if it is installed."""
    return next(iter(provided("conversations")), None)


_MESSAGE_KEYS = {"role", "from", "content", "value"}  # an object with one of them is a part of a conversation
_ARRAY_START = re.compile(r"\s*\[(\s*[\[{])?$|\s*\[.*,$")  # of one that goes on on the next line
_FORMS = {True: "a conversation", False: "a text"}


def records_of(file: SourceFile, key: str) -> Iterator[Record] | None:
    """The records in a file; None for a plain text.

    The text is under `key`.
    Raises: DataError for a file that cannot be read as records.
    """
    if (reader := file.reader) is not None:
        return None if reader.records is None else reader.records(file, key)
    return _line_records(file, key) if file.is_json else None


def _line_records(file: SourceFile, key: str) -> Iterator[Record]:
    with open_source(file) as stream:
        values = json_lines(file.name, stream, file.decoding.errors)
        yield from read_records(values, key, file.decoding.errors)


def fields_of(keys: Collection[str], key: str) -> RecordFields:
    """The fields that are read of records with these keys; none if they have no text."""
    reader = conversations()
    return RecordFields([key] if key in keys else []) if reader is None else reader.fields(keys, key)


def read_records(values: Iterable[JsonValue], key: str, errors: str) -> Iterator[Record]:
    """The records in the values of a file, which have one form.

    Raises: DataError, with the location of the value, for a value without a text and for another form.
    """
    first = None
    for _, _, _, value, location in values:
        record = read_record(value, key, location)
        first = first or (location.rpartition(", ")[2], record)
        if record.is_conversation != first[1].is_conversation:
            here, there = (_FORMS[each.is_conversation] for each in (record, first[1]))
            raise DataError(
                f"{location} is {here}, but {first[0]} is {there}; a file must have one form, so make two files"
            )
        yield record._replace(text=_without_surrogates(location, record.text, errors))


def read_record(row: object, key: str, location: str) -> Record:
    """The record in a JSON value.

    Raises: DataError, which begins with `location`, if it is neither a text nor a conversation.
    """
    reader = conversations()
    if reader is not None and (record := reader.read(row, key, location)) is not None:
        return record
    if not isinstance(row, dict):
        raise DataError(f'{location} must be a JSON object such as {{"{key}": "..."}}, or a list of messages')
    if key not in row:
        also = "" if reader else ", because what reads conversations is not installed"
        raise DataError(
            f"{location} has no key {key!r}; its keys: {shown_keys(row)}; name the key of the text with --text-key"
            f"{also}"
        )
    if not isinstance(row[key], str):
        raise DataError(f"{location}: the value of {key!r} must be a string, not {json.dumps(row[key])[:40]}")
    return Record(row[key], is_conversation=False)


def shown_keys(row: Mapping[str, object]) -> str:
    """The first keys of an object, as errors say them."""
    return ", ".join(repr(found)[:40] for found in islice(row, 10)) or "none"


def json_lines(name: str, stream: ByteStream, errors: str) -> Iterator[JsonValue]:
    """The values on the lines of a file; lines of white space only are skipped.

    Raises: DataError for one that cannot be decoded with `errors`, or is not JSON.
    """
    start, text = skip_bom(name, stream), ""
    for number, line in enumerate(_bounded_lines(name, stream), 1):
        is_first = not text
        try:
            text = line.decode(errors=errors).rstrip()
            value = parse_json(text) if text else None
        except UnicodeDecodeError as error:
            raise undecodable(name, start, error) from error
        except ValueError as error:
            if is_first and _ARRAY_START.match(text):
                raise _array(name) from error
            reason = str(error).replace("line 1 ", "")
            raise DataError(
                f"{name}, line {number} is not JSON ({reason}); each line must be a JSON object with a text or messages"
            ) from error
        if is_first and _is_array_of_records(value):
            raise _array(name)
        if text:
            yield JsonValue(number, start, len(line), value, f"{name}, line {number}")
        start += len(line)


def _is_array_of_records(value: object) -> bool:
    """Whether the first line of a file is an array of texts or conversations, and not one conversation."""
    first = value[0] if isinstance(value, list) and value else None
    return not _MESSAGE_KEYS & first.keys() if isinstance(first, dict) else isinstance(first, list)


def _array(name: str) -> DataError:
    return DataError(f"{name} is one JSON array, not a JSON value on each line; rename it to .json")


def _bounded_lines(name: str, stream: ByteStream) -> Iterator[bytes]:
    try:
        yield from bounded_lines(stream)
    except ValueError as error:
        raise DataError(f"{name}: {error}; cut the text into several lines") from error


def _without_surrogates(location: str, text: str, errors: str) -> str:
    """The text with lone surrogates replaced by U+FFFD: JSON can escape one, but UTF-8 cannot encode it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        if errors == "strict":
            surrogate = f"{ord(text[error.start]):04x}"
            raise DataError(
                f"{location}: \\u{surrogate} is half of a surrogate pair; correct it, or use --encoding-errors replace"
            ) from error
        return replace_surrogates(text)
    return text
