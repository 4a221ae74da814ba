"""Exports of WhatsApp, Telegram and ChatGPT: recognizes them, and reads them as the conversations of a chat log."""

import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path, PurePath
from typing import NamedTuple

from minigpt.chat_logs.chatgpt import is_chatgpt, read_chatgpt
from minigpt.chat_logs.exported_chat import PAUSE_HOURS, ExportedChat
from minigpt.chat_logs.settings import ExportSettings
from minigpt.chat_logs.telegram import is_telegram, read_telegram
from minigpt.chat_logs.transcript import transcript
from minigpt.chat_logs.whatsapp import is_whatsapp, read_whatsapp
from minigpt.data.find_files import shown
from minigpt.data.formats import HEAD_BYTES, TextReader
from minigpt.data.records import Record
from minigpt.data.source_files import SourceFile, open_source, skip_bom, undecodable
from minigpt.errors import ConfigError, DataError, reason_of
from minigpt.units import count

_COPY = ".export"  # ends the name of the temporary file with the text of a zip file
SUFFIXES = (".txt", _COPY)  # and .json, whose reader asks here first
_BEGINS = re.compile(r"[\s\ufeff\u200e\u200f\u202a-\u202e]*[\d\[{]")  # how an export may begin
_FIRST_BYTES = 512
_LARGEST = 2**30  # bytes of an export
_SHOWN = 5  # senders in an error


class _App(NamedTuple):
    """An app, the suffix of its exports, whether a text is one by its beginning, and what reads the chats of a text."""

    name: str
    suffix: str
    recognizes: Callable[[str, Callable[[], str]], bool]
    read: Callable[[str, str], Iterator[ExportedChat]]


_APPS = (
    _App("WhatsApp", ".txt", is_whatsapp, read_whatsapp),
    _App("Telegram", ".json", is_telegram, read_telegram),
    _App("ChatGPT", ".json", is_chatgpt, read_chatgpt),
)


def export_app(file: SourceFile) -> _App | None:
    """The app that a file is an export of; None for another file."""
    if not file.plain_name.endswith((*SUFFIXES, ".json")):
        return None
    status = file.stat()
    return _app_of(file, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=10_000)  # every pass over a text asks again
def _app_of(file: SourceFile, _modified: int, _size: int) -> _App | None:
    if not _BEGINS.match(_text_of(file, _FIRST_BYTES, "replace")):  # most files
        return None
    head = _text_of(file, HEAD_BYTES, "replace")
    return _find_app(file.plain_name, head, lambda: _text_of(file, _LARGEST, "replace"))


def _find_app(name: str, head: str, whole: Callable[[], str]) -> _App | None:
    return next((app for app in _APPS if name.endswith((app.suffix, _COPY)) and app.recognizes(head, whole)), None)


def _text_of(file: SourceFile, limit: int, errors: str) -> str:
    """The text of a file, of which `limit` bytes are read."""
    with open_source(file) as stream:
        start, content = skip_bom(file.name, stream), stream.read(limit)
        if limit == _LARGEST and stream.read(1):
            raise DataError(f"{file.name} has more than {_LARGEST:,} bytes; export fewer chats at a time")
    try:
        return content.decode(errors=errors)
    except UnicodeDecodeError as error:
        raise undecodable(file.name, start, error) from error


def export_records(file: SourceFile, app: _App) -> Iterator[Record]:
    """The conversations of an export, without the chats in which not both sides wrote."""
    for chat in _chats(file, app):
        assistant = chat.assistant(_names(file))
        if chat.has_both(assistant):
            for messages in chat.conversations(assistant):
                yield Record(transcript(messages), is_conversation=True)


def _chats(file: SourceFile, app: _App) -> Iterator[ExportedChat]:
    """The chats of an export.

    Raises: DataError if it is damaged.
    """
    text = _text_of(file, _LARGEST, file.decoding.errors)
    try:
        yield from app.read(text, file.name)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise DataError(f"{file.name} is a damaged export of {app.name} ({error}); export it again") from error


def _names(file: SourceFile) -> Sequence[str]:
    return ExportSettings.of(file.reading).me


def export_notes(files: Sequence[SourceFile]) -> list[str]:
    """A sentence for each app on what is read of its exports, and as whose messages.

    Raises: ConfigError if it is unknown who the assistant is, or has no messages.
    """
    exports: dict[_App, list[SourceFile]] = {}
    for file in files:
        if (app := export_app(file)) is not None:
            exports.setdefault(app, []).append(file)
    names = _names(files[0]) if files else ()
    read = [_ReadExports.of(app, found, names) for app, found in exports.items()]
    senders = Counter[str]()
    for each in read:
        senders += each.senders
    if names and senders and not any(each.assistants for each in read):
        raise ConfigError(f"me ({', '.join(names)}) is nobody's name in these exports; give {_either(senders)}")
    notes = [each.note(is_chosen=bool(names)) for each in read]
    if names and not senders:
        notes.append(f"no file is an export of WhatsApp or Telegram, so --me {names[0]} is not used")
    return notes


class _ReadExports:
    """What was read of the exports of one app."""

    def __init__(self, app: _App, names: Sequence[str]) -> None:
        self.app, self.names, self.files = app, names, list[str]()
        self.n_messages = self.n_conversations = self.n_skipped = 0
        self.dropped, self.senders = Counter[str](), Counter[str]()
        self.assistants, self.users = dict[str, None](), dict[str, None]()

    @classmethod
    def of(cls, app: _App, files: Sequence[SourceFile], names: Sequence[str]) -> "_ReadExports":
        """Reads these files.

        Raises: ConfigError for a file whose owner is unknown, if no names are given.
        """
        read = cls(app, names)
        for file in files:
            senders, n_assistants = Counter[str](), len(read.assistants)
            for chat in _chats(file, app):
                senders.update(() if chat.has_roles else (each.sender for each in chat.said))
                read._add(chat)
            if senders and not names and len(read.assistants) == n_assistants:
                raise ConfigError(
                    f"{file.name} is an export of {app.name} that does not say whose messages the model is to write; "
                    f"give {_either(senders)}"
                )
            read.senders += senders
            read.files.append(file.name)
        return read

    def _add(self, chat: ExportedChat) -> None:
        assistant = chat.assistant(self.names)
        if not chat.has_both(assistant):
            self.n_skipped += 1
            return
        if not chat.has_roles:
            self.assistants[assistant] = None
            self.users |= {each.sender: None for each in chat.said if each.sender != assistant}
        self.n_messages += len(chat.said)
        self.n_conversations += sum(1 for _ in chat.conversations(assistant))
        self.dropped += chat.dropped

    def note(self, *, is_chosen: bool) -> str:
        """The sentence."""
        dropped = ", ".join(count(number, kind) for kind, number in self.dropped.items())
        clauses = [
            f"{self.app.name} export{'s' * (len(self.files) > 1)} {shown(self.files)}: "
            f"{count(self.n_messages, 'message')} in {count(self.n_conversations, 'conversation')}"
        ]
        if self.assistants:
            user = next(iter(self.users)) if len(self.users) == 1 else f"{len(self.users):,} others"
            clauses[0] += f", each after a pause of {PAUSE_HOURS} hours"
            chooses = "" if is_chosen else ", as the export says (change it with --me)"
            clauses.append(f"{' and '.join(self.assistants)} is the assistant and {user} the user{chooses}")
        if dropped:
            clauses.append(f"dropped {dropped}")
        if self.n_skipped:
            clauses.append(f"skipped {count(self.n_skipped, 'chat')} in which not both wrote")
        return "; ".join(clauses)


def _either(senders: Counter[str]) -> str:
    """What to give, with the senders who wrote most."""
    found = [f'--me "{name}" ({count(number, "message")})' for name, number in senders.most_common(_SHOWN)]
    return " or ".join(found) + (" …" if len(senders) > _SHOWN else "")


def _zip_text(path: Path, name: str, _encoding: str, _errors: str) -> str:
    """The text of the export in a zip file; a large ChatGPT export has several files, which are read as one.

    Raises: DataError for another zip file, one that is encrypted or damaged, and one with several exports.
    """
    unpack = "unpack it and give the folder or its files"
    found: list[tuple[_App, str]] = []
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                if found_app := _app_in(archive, member):
                    found.append((found_app, _member(archive, member, _LARGEST)))
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise DataError(f"{name} is an archive; {unpack}") from error
    except OSError as error:
        raise DataError(f"{name} cannot be read ({reason_of(error)})") from error
    if not found:
        raise DataError(f"{name} is an archive; {unpack}")
    if len(found) > 1 and {app.name for app, _ in found} != {"ChatGPT"}:
        raise DataError(f"{name} is an archive with {len(found)} exports; {unpack}")
    return "\n".join(text for _, text in found)


def _app_in(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> _App | None:
    path = PurePath(member.filename.lower())
    is_hidden = path.parts[:1] == ("__macosx",) or path.name.startswith(".")
    if is_hidden or path.suffix not in {app.suffix for app in _APPS} or member.file_size > _LARGEST:
        return None
    return _find_app(path.name, _member(archive, member, HEAD_BYTES), lambda: _member(archive, member, _LARGEST))


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, limit: int) -> str:
    with archive.open(member) as stream:
        return stream.read(limit).decode("utf-8-sig", "surrogateescape")


zip_reader = TextReader(suffixes=(".zip",), text=_zip_text, copy_suffix=_COPY)
