"""Texts as files, and whether they are tokenized in shards."""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from minigpt.config import ReadingConfig
from minigpt.data.documents.read import is_document
from minigpt.data.folders import expand, is_file, walk
from minigpt.data.pipes import is_pipe
from minigpt.data.sharded.segments import COMPRESSION
from minigpt.data.source_files import Decoding, SourceFile, find_files
from minigpt.data.sources import notes_on_records
from minigpt.errors import ConfigError, DataError

IN_SHARDS = 512_000_000  # bytes of text from which on `shards auto` means on


@dataclass(frozen=True)
class Texts:
    """The files of each text, and its weight."""

    files: tuple[tuple[SourceFile, ...], ...]
    weights: tuple[float, ...]
    skipped: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def size(self) -> int:
        """About how many bytes of text they have."""
        return sum(text_size(file) for files in self.files for file in files)


def weighted(sources: Sequence[str], *, mix: bool) -> list[tuple[str, float]]:
    """The texts and their weights: with `mix`, each source ends in one, as in web/=3.

    Raises: ConfigError for a source without a weight, and for a weight that is not a number above 0.
    """
    if not mix:
        return [(source, 1.0) for source in sources]
    found = []
    for source in sources:
        text, sign, given = source.rpartition("=")
        if not sign or not text:
            raise ConfigError(f"mix needs a weight for each text, as in {source.rstrip('=')}=3; {source} has none")
        try:
            weight = float(given)
        except ValueError:
            weight = math.nan
        if not (math.isfinite(weight) and weight > 0):
            raise ConfigError(f"mix: the weight of {text} is {given!r}; it must be a number above 0, as in {text}=3")
        found.append((text, weight))
    return found


def read_in_shards(sources: Sequence[str], reading: ReadingConfig) -> bool:
    """Whether these texts are tokenized in shards: if the settings say so, or by their size without reading them."""
    if reading.shards != "auto":
        return reading.shards == "on"
    if reading.mix or reading.deduplicate:
        return True
    return not any(map(is_pipe, sources)) and sum(map(_size_in_shards, sources)) >= IN_SHARDS


def find_texts(sources: Sequence[str], reading: ReadingConfig) -> Texts:
    """The files of the texts, for shards.

    Raises: DataError for a text that is missing, or cannot be read from the middle of the job: a pipe or a document;
    ConfigError for a mix in which two texts have the same file, unless duplicates are dropped.
    """
    decoding = Decoding(reading.encoding, reading.encoding_errors)
    pairs = weighted(sources, mix=reading.mix)
    for source, _ in pairs:
        if is_pipe(source):
            raise DataError(f"{source} is a pipe, which cannot be read in shards; write the text to a file")
        if document := next(filter(is_document, _files_of(source)), None):
            raise DataError(
                f"{document} is a document, which cannot be read in shards; save it as plain text, or give --shards "
                "off without --mix and --deduplicate"
            )
    texts = [[source] for source, _ in pairs] if reading.mix else [[source for source, _ in pairs]]
    weights = [weight for _, weight in pairs] if reading.mix else [1.0]
    files, skipped, notes = [], [], []
    for text in texts:
        found = find_files(text, decoding)
        files.append(tuple(found.files))
        skipped += found.skipped
        notes += [*found.notes, *notes_on_records(found.files, reading.text_key)]
    if not reading.deduplicate:
        _check_separate(files)
    return Texts(tuple(files), tuple(weights), tuple(skipped), tuple(notes))


def _check_separate(texts: Sequence[Sequence[SourceFile]]) -> None:
    """Raises ConfigError for a file in two texts: documents that are held out of one would be trained on in another."""
    known: set[str] = set()
    for files in texts:
        paths = [os.path.realpath(file.path) for file in files]
        for file, path in zip(files, paths, strict=True):
            if path in known:
                raise ConfigError(
                    f"mix: {file.name} is in two texts, so its held-out documents would be trained on; remove it from "
                    "one of them, or add --deduplicate"
                )
        known.update(paths)


def text_size(file: SourceFile) -> int:
    """About how many bytes of text a file has."""
    return file.stat().st_size * (COMPRESSION if file.is_parquet or file.is_compressed() else 1)


def _size_in_shards(source: str) -> int:
    """The bytes of the files of a source that can be read in shards."""
    return sum(path.stat().st_size for path in _files_of(source) if not is_document(path))


def _files_of(source: str) -> Iterator[Path]:
    """The files of a source, as far as they can be found without opening them."""
    if os.path.isfile(source):  # noqa: PTH113
        yield Path(source)
    elif os.path.exists(source):  # noqa: PTH110
        yield from filter(is_file, walk(source))
    else:
        for path in expand(source):
            if os.path.exists(path):  # noqa: PTH110
                yield from _files_of(str(path))
