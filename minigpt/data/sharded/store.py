"""The token shards of one text on disk: which there will be, in which order, and which are there.

`store.jsonl` names the files of the text and their segments. A segment gives one shard, or several if it has a file
that can only be read from its beginning. A shard is complete when its `.json` is there, a segment when its `.done` is
there; both are written by renaming. So whatever ends a process, the next one continues with what is missing.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from minigpt.bounded_reading import bounded_lines, open_regular, parse_json, read_json_value
from minigpt.data.corpus_cache import cache_key
from minigpt.data.records import json_form
from minigpt.data.sharded.segments import KINDS, Segment, cut, identity
from minigpt.data.shards import token_type
from minigpt.data.source_files import Decoding, SourceFile, absolute_path
from minigpt.errors import DataError, reason_of
from minigpt.tokenizer.tokenizer import Tokenizer

SHARD_BYTES = 2**24  # of text in a shard, about
_MOST_SHARDS = 4096  # of a text; beyond that they become larger
FORMAT = 4  # of the shards; increase it when they or the cut change
_LARGEST_SHARD = 2**28
_MOST_FILES = 2**22  # of a text, about half a kilobyte of memory each
_DESCRIPTION = "store.jsonl"
_LONGEST_LINE = 2**16  # bytes of the description; the longest paths have 4,096, each of which may be six in JSON


@dataclass(frozen=True)
class Shard:
    """A complete shard: its number among those of its segment, and its counts. `token_hash` is the SHA-256 of its
    tokens."""

    segment: int
    number: int
    tokens: int
    documents: int
    text_bytes: int
    token_hash: str

    @property
    def name(self) -> str:
        """The name of its files without their endings."""
        return shard_name(self.segment, self.number)


def shard_name(segment: int, number: int) -> str:
    """The name of a shard's files without their endings."""
    return f"{segment:06d}-{number:05d}"


class Store:
    """The folder of a text's shards."""

    def __init__(self, folder: Path) -> None:
        """Opens the folder.

        Raises: DataError if it has no complete description.
        """
        self.folder = folder
        self._found: dict[tuple[int, int], Shard] = {}  # complete shards and segments stay so
        self._counts: dict[int, int] = {}
        try:
            with open_regular(folder / _DESCRIPTION) as stream:
                self._read(parse_json(line.decode()) for line in bounded_lines(stream, _LONGEST_LINE))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{folder} is not a complete list of shards; build the corpus again from its text"
            ) from error

    def _read(self, lines: Iterator[Any]) -> None:
        """Reads the description: what all files share, then the files, then the segments.

        Raises: ValueError, KeyError, TypeError if it is not one.
        """
        record: Any = next(lines, None)
        if record["format"] != FORMAT:
            raise ValueError("another format")
        self.text_key: str = record["text_key"]
        self.shard_bytes: int = record["shard_bytes"]
        self.text_bytes: int = record["text_bytes"]
        n_files, n_segments = record["files"], record["segments"]
        if n_files > _MOST_FILES or n_segments > 2 * _MOST_FILES:  # a file has a segment, a large one more
            raise ValueError("too many files")
        decodings: dict[Decoding, Decoding] = {}  # each once in memory
        files, changed_at = [], []
        for line in islice(lines, n_files):
            path, name, encoding, errors, in_folder, changed = _checked(line, (str, str, str, str, bool, int))
            decoding = Decoding(encoding, errors)
            files.append(SourceFile(Path(path), name, decodings.setdefault(decoding, decoding), in_folder))
            changed_at.append(changed)
        self.files, self.changed_at = tuple(files), tuple(changed_at)
        types = (int, str, int, int, int)
        self.segments = tuple(Segment(*_checked(line, types)) for line in islice(lines, n_segments))
        if (len(self.files), len(self.segments)) != (n_files, n_segments) or next(lines, None) is not None:
            raise ValueError("another number of files or segments")
        if not all(each.kind in KINDS and 0 <= each.files.start < each.files.stop <= n_files for each in self.segments):
            raise ValueError("a segment of other files")

    @classmethod
    def create(cls, root: Path, files: Sequence[SourceFile], text_key: str, tokenizer: Tokenizer) -> Self:
        """The store of these files for this tokenizer: the one that there is, or a new one.

        Raises: DataError for a file that cannot be read, and for too many files; OSError.
        """
        if len(files) > _MOST_FILES:
            raise DataError(
                f"the text has {len(files):,} files, of which at most {_MOST_FILES:,} can be read in shards; join them "
                "to fewer, for example to a .jsonl with a line for each"
            )
        size, key = _size_and_key(files, text_key, tokenizer)
        folder = root / "shards" / _name(key)
        folder.mkdir(parents=True, exist_ok=True)
        segments = cut(files, text_key, size)
        record = {
            "format": FORMAT,
            "text_key": text_key,
            "shard_bytes": size,
            "text_bytes": sum(each.size for each in segments),
            "files": len(files),
            "segments": len(segments),
        }
        lines = [
            record,
            *(
                [str(absolute_path(each.path)), each.name, *each.decoding, each.is_in_folder, each.stat().st_mtime_ns]
                for each in files
            ),
            *map(astuple, sorted(segments, key=lambda each: _random_place(key, each))),
        ]
        publish_file(folder / _DESCRIPTION, "".join(f"{json.dumps(line)}\n" for line in lines).encode())
        return cls(folder)

    def check_unchanged(self, segment: Segment) -> None:
        """Raises DataError if a file of a segment has changed since the folder was created."""
        for number in segment.files:
            file = self.files[number]
            if file.stat().st_mtime_ns != self.changed_at[number]:
                raise DataError(f"{file.name} changed while it was tokenized; run the command again")

    # Files.

    def tokens_path(self, name: str) -> Path:
        """The file of a shard's tokens, a raw array."""
        return self.folder / f"{name}.bin"

    def hashes_path(self, name: str) -> Path:
        """The file of the hashes of a shard's documents, 64 bits each."""
        return self.folder / f"{name}.hashes"

    def lock_path(self, segment: int) -> Path:
        """The file that the process which tokenizes a segment locks."""
        return self.folder / f"{segment:06d}.lock"

    def find(self, segment: int, number: int) -> Shard | None:
        """A shard if it is complete."""
        if (segment, number) in self._found:
            return self._found[segment, number]
        name = shard_name(segment, number)
        path = self.folder / f"{name}.json"
        if not path.exists():
            return None
        try:
            shard = Shard(segment, number, **read_json_value(path))
            if self.tokens_path(name).stat().st_size and self.hashes_path(name).stat().st_size == 8 * shard.documents:
                self._found[segment, number] = shard
                return shard
        except (OSError, ValueError, TypeError):
            pass
        return None

    def record(self, shard: Shard) -> None:
        """Marks a shard as complete; its files must be on disk."""
        values = asdict(shard)
        write_json(self.folder / f"{shard.name}.json", {name: values[name] for name in values if name not in _IN_NAME})

    def count_of(self, segment: int) -> int | None:
        """The number of shards of a segment that is complete."""
        path = self.folder / f"{segment:06d}.done"
        if segment not in self._counts and path.exists():
            with suppress(ValueError):
                self._counts[segment] = int(path.read_text())
        return self._counts.get(segment)

    def finish(self, segment: int, count: int) -> None:
        """Marks a segment as complete."""
        publish_file(self.folder / f"{segment:06d}.done", f"{count}\n".encode())

    def is_done(self, segment: int) -> bool:
        """Whether a segment is complete, with all of its shards."""
        count = self.count_of(segment)
        return count is not None and all(self.find(segment, number) for number in range(count))

    def shards(self) -> Iterator[Shard | None]:
        """The shards in their order as far as they are known; then None if others follow."""
        for segment in range(len(self.segments)):
            count, number = self.count_of(segment), 0
            while count is None or number < count:
                shard = self.find(segment, number)
                yield shard
                if shard is None:
                    return
                number += 1

    def read_tokens(self, shard: Shard, vocab_size: int) -> npt.NDArray[Any]:
        """The memory-mapped tokens of a shard.

        Raises: DataError if they are not those that were written, or cannot be read.
        """
        path, dtype = self.tokens_path(shard.name), token_type(vocab_size)
        try:
            if path.stat().st_size != shard.tokens * dtype.itemsize:
                raise ValueError("another size")
            tokens: npt.NDArray[Any] = np.memmap(path, dtype=dtype, mode="r")
            if hashlib.sha256(tokens.data).hexdigest() != shard.token_hash:
                raise ValueError("another hash")
        except FileNotFoundError as error:
            raise DataError(f"{path}, the tokens of a part of the text, is missing; run the command again") from error
        except OSError as error:  # too many open files, say: the tokens may be intact
            raise DataError(f"{path} cannot be read ({reason_of(error)})") from error
        except ValueError as error:
            raise DataError(
                f"the tokens in {path} are damaged; delete {shard.name}.json beside it and run the command again"
            ) from error
        return tokens


_IN_NAME = ("segment", "number")


def _checked(values: Any, types: Sequence[type]) -> Any:
    """These values of a line of the description.

    Raises: ValueError if they have other types.
    """
    if [*map(type, values)] != [*types]:
        raise ValueError("values of other types")
    return values


def store_name(files: Sequence[SourceFile], text_key: str, tokenizer: Tokenizer) -> str:
    """The name of the folder that `Store.create` makes for these files, without making it.

    Raises: DataError for a file that cannot be read; OSError.
    """
    return _name(_size_and_key(files, text_key, tokenizer)[1])


def _size_and_key(files: Sequence[SourceFile], text_key: str, tokenizer: Tokenizer) -> tuple[int, str]:
    """The bytes of text in a shard, and a hash of all that the shards depend on."""
    size = max(SHARD_BYTES, sum(file.stat().st_size for file in files) // _MOST_SHARDS)
    size = min(size, _LARGEST_SHARD)
    content = [
        [*identity(file), json_form(file, text_key) is not None, file.is_parquet, *file.decoding] for file in files
    ]
    return size, cache_key(FORMAT, size, text_key, content, tokenizer.fingerprint)


def _name(key: str) -> str:
    return key[:32]


def _random_place(key: str, segment: Segment) -> bytes:
    """A place of a segment in the order, which depends only on the files and how they are read."""
    return hashlib.sha256(f"{key} {segment.file} {segment.start}".encode()).digest()


def write_json(path: Path, value: object) -> None:
    """Writes a JSON file by renaming, so that it is there as a whole or not at all."""
    publish_file(path, (json.dumps(value) + "\n").encode())


def publish_file(path: Path, content: bytes) -> None:
    """Writes a file by renaming one that only this process writes, so that it is there as a whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
