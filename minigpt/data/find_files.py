"""Finds the files of a text: files, folders, globs, standard input and pipes; and what is said of those skipped."""

import glob
import os
import select
import stat
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from minigpt.bounded_reading import is_of_kernel, open_without_waiting
from minigpt.data.encodings import encoding_name, is_utf8
from minigpt.data.folders import expand, is_file, is_folder, walk
from minigpt.data.formats import looks_like_text, reader_of, unread_format
from minigpt.data.source_files import (
    COMPRESSED,
    MAY_HAVE_ZEROS,
    UTF8,
    Decoding,
    SourceFile,
    TemporaryCopy,
    head_of,
    not_text,
    own_encoding,
    reading,
)
from minigpt.errors import DataError, MinigptError, MissingPackageError, MissingTextError, UndecodableError, reason_of
from minigpt.optional_packages import all_missing
from minigpt.units import count

_BLOCK = 2**20  # bytes per read
_MAX_STREAM = 2**30  # bytes of a pipe, whose text is copied to the folder for temporary files, often kept in memory
_PATIENCE = 0.5  # seconds in which a program must open a pipe for writing
_SHOWN = 3  # names in a note


class FoundFiles(NamedTuple):
    """The files of a text, each once; the names of the files in folders that are not text; and sentences on documents,
    folders and models in folders that were skipped too."""

    files: list[SourceFile]
    skipped: list[str]
    notes: list[str]


class _Unread(NamedTuple):
    """A "document", a "file" or a "folder" that cannot be read, its name, and why."""

    what: str
    name: str
    error: MinigptError


@dataclass(frozen=True)
class _Skipped:
    """The names of files that are not text and of folders with models; what in a folder cannot be read."""

    files: list[str] = field(default_factory=list)
    models: dict[str, None] = field(default_factory=dict)
    unread: list[_Unread] = field(default_factory=list)

    def add_model(self, folder: Path) -> None:
        self.models[str(folder)] = None

    def add_folder(self, error: OSError) -> None:
        problem = DataError(f"{error.filename} cannot be read ({reason_of(error)})")
        self.unread.append(_Unread("folder", error.filename, problem))

    def notes(self) -> list[str]:
        """A sentence on the documents that need packages, one on the documents, one on the other files and one on the
        folders that cannot be read, and one on the models."""
        notes = []
        kinds = [("document", MissingPackageError), *((what, DataError) for what in ("document", "file", "folder"))]
        for what, kind in kinds:
            of_kind = [each for each in self.unread if each.what == what and isinstance(each.error, kind)]
            if of_kind:
                more = [each.name for each in of_kind[1:]]
                others = f" ({count(len(more), f'other {what}')} too: {shown(more)})" if more else ""
                notes.append(f"skipped a {what}{others}: " + str(_error_of(of_kind, "reading these")))
        if self.models:
            several = len(self.models) > 1
            folders = f"{len(self.models):,} folders with models" if several else "a folder with a model"
            notes.append(f"skipped {folders}: {shown([*self.models])}")
        return notes


def _error_of(unread: Sequence[_Unread], reading_them: str) -> MinigptError:
    """The error for the first of these, which names the packages that all documents need if it needs one."""
    missing = [each.error for each in unread if isinstance(each.error, MissingPackageError)]
    return all_missing(reading_them, missing) if unread[0].error in missing else unread[0].error


def shown(names: Sequence[str]) -> str:
    """The first of these names, and an ellipsis if there are more."""
    return ", ".join(names[:_SHOWN]) + (" …" if len(names) > _SHOWN else "")


def find_files(sources: Sequence[str | Path], decoding: Decoding) -> FoundFiles:
    """The text files of the sources, and the documents, whose text is copied to temporary files.

    Raises: DataError for a source that is missing or cannot be read, MissingPackageError for a document without the
    package that reads it; in a folder, such files are skipped, and so are models.
    """
    files: dict[str, SourceFile] = {}  # by path without links
    skipped = _Skipped()
    for source in sources:
        if str(source) == "-":
            if sys.stdin is None:
                raise DataError("standard input is closed; give a text file or pipe a text in")
            spooled = _spool(iter(lambda: sys.stdin.buffer.read(_BLOCK), b""), "standard input", decoding)
            files[str(spooled.path)] = _readable(spooled)
            continue
        paths, n_models, is_glob = [Path(source)], len(skipped.models), False
        if not os.path.exists(source):  # noqa: PTH110  (Path.exists raises for a name that is too long)
            is_glob, paths = glob.has_magic(str(source)), []
            for path in expand(str(source), skipped.add_model):
                if is_folder(path) or is_file(path):
                    paths.append(path)
                else:
                    skipped.files.append(str(path))
        if not paths and len(skipped.models) == n_models:
            problem = "matches no file" if is_glob else "does not exist"
            named = source if str(source).strip() else repr(source)
            raise MissingTextError(f"{named} {problem}; give a text file, a folder, a glob, or - for standard input")
        for path in paths:
            if is_folder(path):
                files |= _in_folder(path, decoding, skipped, files, may_be_empty=is_glob)
            elif (original := os.path.realpath(path)) not in files:
                files[original] = _readable(_plain_file(path, decoding))
    if not files:
        if skipped.unread and not skipped.models:
            raise _error_of(skipped.unread, "reading these documents")
        models = shown([*skipped.models])
        outside = f" outside its models ({models}), which are not read as text" if models else ""
        raise _without_text(", ".join(map(str, sources)), outside)
    read, notes = _decoded(files.values())
    return FoundFiles(read, skipped.files, [*skipped.notes(), *notes])


def _without_text(what: str, where: str) -> DataError:
    return DataError(f"{what} has no text file{where}; give a folder with .txt, .md, .jsonl or .parquet files")


def _decoded(files: Iterable[SourceFile]) -> tuple[list[SourceFile], list[str]]:
    """The files, of which those that are evidently in UTF-8, UTF-16 or UTF-32 are read as that although another
    encoding was given, and a sentence on those of each encoding."""
    read: list[SourceFile] = []
    names: dict[str, list[str]] = {}  # by encoding
    others: list[str] = []
    given = ""
    for file in files:
        encoding = own_encoding(file)
        if encoding != file.decoding.encoding:
            names.setdefault(encoding, []).append(file.name)
        elif file.is_recoded:
            others.append(file.name)
        given = file.decoding.encoding if file.is_recoded else given
        read.append(replace(file, decoding=file.decoding._replace(encoding=encoding)))
    notes = []
    for encoding, found in names.items():
        several = f"{len(found):,} files that are" if len(found) > 1 else "a file that is"
        notes.append(f"read {several} {encoding_name(encoding)} as that, not as {given}: {shown(found)}")
    if notes and others:
        notes[-1] += f"; read as {given}: {shown(others)}"
    return read, notes


def is_document(name: str) -> bool:
    """Whether a file of this name is a document, whose text is copied to a temporary file."""
    reader = reader_of(name)
    return reader is not None and reader.text is not None and not reader.copy_suffix


def _readable(file: SourceFile) -> SourceFile:
    """The file itself, or the text of a document as a temporary file."""
    if (reader := reader_of(file.path.name)) is not None and reader.text is not None:
        # Bytes that are invalid in it are written as they are, and met by all that reads the copy as in any text.
        text = reader.text(file.path, file.name, *file.decoding).encode(errors="surrogateescape")
        return _spool([text], file.name, suffix=reader.copy_suffix)
    if is_document(file.plain_name):
        program = "unzstd" if file.path.suffix.lower() == ".zst" else "gunzip"
        raise DataError(f"{file.name} is a compressed document; decompress it with {program}")
    if not file.is_binary and (problem := unread_format(file.plain_name, head_of(file))) is not None:
        with reading(file.name), file.path.open("rb") as stream:
            if stream.read(4).startswith(COMPRESSED):
                problem = problem.replace("; rename", "; decompress and rename")
        raise DataError(f"{file.name} {problem}")
    return file


def _plain_file(path: Path, decoding: Decoding) -> SourceFile:
    """A file, or the copy of a pipe."""
    if is_file(path):
        return SourceFile(path, str(path), decoding)
    if is_of_kernel(path):
        raise DataError(f"{path} is a file of the kernel, not a text; copy what it says into a file")
    if path.is_char_device() or path.is_block_device() or path.is_socket():
        raise DataError(f"{path} is a device, not a text; give a text file, a folder, a glob, or - for standard input")
    return _spool(_read_pipe(path), str(path), decoding)


def _in_folder(
    folder: Path, decoding: Decoding, skipped: _Skipped, known: Mapping[str, SourceFile], *, may_be_empty: bool
) -> dict[str, SourceFile]:
    """The text files and documents in a folder by their paths, sorted, without reading the `known` ones again.

    Adds files that are not text, models, and files and folders that cannot be read to `skipped`.
    """
    found: dict[str, SourceFile] = {}
    models: list[Path] = []
    n_files, n_unread = len(skipped.files), len(skipped.unread)
    for path in walk(folder, skipped.add_folder, models.append):
        file = SourceFile(path, str(path), decoding, is_in_folder=True)
        original = os.path.realpath(path)
        try:
            if original in known:
                found[original] = known[original]
            elif not (is_file(path) and _is_read(file)):
                skipped.files.append(file.name)
            else:
                found[original] = _readable(file)
        except MissingPackageError as error:
            if not is_document(path.name):  # of a text that is read with it
                raise
            skipped.unread.append(_Unread("document", file.name, error))
        except UndecodableError:
            raise
        except DataError as error:
            skipped.unread.append(_Unread("document" if is_document(path.name) else "file", file.name, error))
    for model in models:
        skipped.add_model(model)
    if not (found or may_be_empty):
        if len(skipped.unread) > n_unread:
            raise _error_of(skipped.unread[n_unread:], f"reading the documents in {folder}")
        if not models:
            others = len(skipped.files) - n_files
            raise _without_text(str(folder), f" among its {others}" if others else "")
    return found


def _is_read(file: SourceFile) -> bool:
    """Whether a file in a folder is read: all but those that are no text in any encoding.

    A text that cannot be decoded is an error, as if it was named.
    """
    if is_document(file.plain_name) or file.is_binary:
        return True
    head = head_of(file)
    is_known = unread_format(file.plain_name, head) is not None  # reading it says what to do
    return is_known or looks_like_text(file.plain_name, head, file.decoding.encoding)


def _spool(blocks: Iterable[bytes], name: str, decoding: Decoding = UTF8, suffix: str = "") -> SourceFile:
    """Copies a stream, which must be read twice, to a temporary file."""
    try:
        descriptor, path = tempfile.mkstemp(suffix, "minigpt-")
        file = SourceFile(Path(path), name, decoding, copy=TemporaryCopy(Path(path)))
        with os.fdopen(descriptor, "wb") as copy:
            for block in _blocks(blocks, name):
                may_have_zeros = copy.tell() or block.startswith(MAY_HAVE_ZEROS) or not is_utf8(decoding.encoding)
                if b"\0" in block and not may_have_zeros:
                    raise not_text(name, block)
                if copy.tell() + len(block) > _MAX_STREAM:
                    raise DataError(
                        f"{name} did not end after {_MAX_STREAM:,} bytes; write a longer text to a file and give that"
                    )
                copy.write(block)
    except OSError as error:
        folder = tempfile.tempdir or "a temporary folder"  # None if there is none
        raise DataError(
            f"{name} cannot be copied to {folder} ({reason_of(error)}); set TMPDIR to a folder with enough space"
        ) from error
    return file


def _blocks(blocks: Iterable[bytes], name: str) -> Iterator[bytes]:
    with reading(name):
        yield from blocks


def is_pipe(source: str) -> bool:
    """Whether a source can be read only once: standard input, or a named pipe as in <(…)."""
    try:
        return source == "-" or stat.S_ISFIFO(os.stat(source).st_mode)  # noqa: PTH116  (Path.is_fifo raises OSError)
    except (OSError, ValueError):  # reading it says what is wrong
        return False


def _read_pipe(path: Path) -> Iterator[bytes]:
    """The content of a named pipe, until the last program that writes to it closes it."""
    with open(path, "rb", buffering=0, opener=open_without_waiting) as pipe:
        until = time.monotonic() + _PATIENCE
        while (block := pipe.read(_BLOCK)) == b"":
            if time.monotonic() > until:
                raise DataError(
                    f"{path} is a pipe that no program writes to; start that program first, or give a text file"
                )
            time.sleep(0.01)
        while block != b"":
            if block is None:  # a program has opened the pipe, and has not written since
                select.select([pipe], [], [])
            else:
                yield block
            block = pipe.read(_BLOCK)
