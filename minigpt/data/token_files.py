"""Files of tokens that other programs wrote, read where they are.

| program | file | content |
|---|---|---|
| nanoGPT | `.bin` | ids, uint16 |
| llm.c, modded-nanogpt | `.bin` | 256 int32 (magic 20240520, version 1, number of tokens), then ids, uint16 |
| llm.c, Llama 3 | `.bin` | the same with magic 20240801 and version 7, then ids, uint32 |
| datatrove | `.ds` | ids, uint16 or uint32 |
| | `.ds.index` | the end of each document, in tokens, uint64 |
| | `.ds.metadata` | text: `TOKENIZER|BYTES_OF_A_TOKEN`, and on the second line the number of tokens |

All numbers are little-endian.
Sources: karpathy/nanoGPT, data/openwebtext/prepare.py; karpathy/llm.c, dev/data/data_common.py; KellerJordan/
modded-nanogpt, data/fineweb.py; huggingface/datatrove, src/datatrove/pipeline/tokens/tokenizer.py.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from minigpt.bounded_reading import read_regular
from minigpt.data.folders import expand, is_file
from minigpt.data.formats import HEAD_BYTES, looks_like_text
from minigpt.data.joined import JoinedArrays
from minigpt.data.source_files import reading
from minigpt.data.split import DEFAULT_FRACTION, ENOUGH_BYTES
from minigpt.data.token_writer import token_type
from minigpt.errors import ConfigError, DataError, MissingTextError
from minigpt.tokenizer.tokenizer import Tokenizer

_SUFFIXES = (".bin", ".ds")
_COMPANIONS = (".ds.index", ".ds.metadata", ".ds.loss", "meta.pkl", "tokenizer.json")
_HEADER = 256  # int32 numbers
_MAGICS = {20240520: (1, "<u2"), 20240801: (7, "<u4")}
_IS_VALIDATION = re.compile(r"(?<![a-z])val(id|idation)?(?![a-z])")
_MOST_VALIDATION = 10_485_760  # tokens of the files for validation, which modded-nanogpt evaluates too
_PLACES = 16  # of a text, at which documents are held out
_SEARCHED = 2**22  # tokens in which the end of a document is looked for
_SAMPLED, _BLOCK = 2**26, 2**16  # tokens of all files that are read to check, count and hash them; read at once
_METADATA_SIZE = 2**16  # bytes


@dataclass(frozen=True, eq=False)
class TokenFile:
    """A file of tokens: its ids, (N,), memory-mapped, and the ends of its documents, (D,), if it says them.

    `tokenizer` is the name that the file gives, if it does; `has_header` says that the file has llm.c's for GPT-2.
    """

    path: Path
    name: str
    ids: npt.NDArray[Any]
    tokenizer: str | None = None
    ends: npt.NDArray[np.uint64] | None = None
    has_header: bool = False

    @property
    def is_validation(self) -> bool:
        """Whether the file is for validation, by its name."""
        return bool(_IS_VALIDATION.search(self.path.name.lower()))

    def notes(self, end_of_text: int) -> Iterator[str]:
        """What of a file of datatrove is not learned from."""
        if is_file(self.path.with_name(self.path.name + ".loss")):
            yield f"{self.name}.loss is not read: every token of {self.name} is scored"
        if self.ends is not None and (self.ids[self.ends[:_BLOCK].astype(np.int64) - 1] != end_of_text).any():
            yield f"documents of {self.name} do not end with an end-of-text (datatrove's eos_token), so none is learned"


class TokenArray:
    """Ids of a file, (N,), as those of a tokenizer, (N,): `table` has the tokenizer's id for each of the file's."""

    def __init__(self, ids: npt.NDArray[Any], table: npt.NDArray[Any], name: str) -> None:
        self.ids, self.table, self.name, self.dtype = ids, table, name, table.dtype

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, key: slice | npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Raises: DataError for an id that the tokenizer does not have."""
        ids = self.ids[key]
        if ids.size and (largest := int(ids.max())) >= len(self.table):
            raise DataError(
                f"{self.name} has the token {largest:,}, and its tokenizer has only {len(self.table):,}; give the "
                "tokenizer that wrote it, or copy the file again if it is damaged"
            )
        found: npt.NDArray[Any] = self.table[ids]
        return found


@dataclass(frozen=True, eq=False)
class TokenText:
    """The two parts of some files of tokens, and `key`, what they are by content.

    Byte counts and the number of documents are those of a sample, scaled, if the files are long.
    """

    train: JoinedArrays
    validation: npt.NDArray[Any]
    train_bytes: int
    validation_bytes: int
    n_documents: int
    held_out: str
    key: list[Any]


class _Measured(NamedTuple):
    """The hash of some of the tokens of a file; the bytes and the documents of all."""

    digest: str
    n_bytes: int
    n_documents: int


def find_token_files(sources: Sequence[str]) -> list[TokenFile]:
    """Opens the sources if they are files of tokens; nothing if they are texts.

    Raises: DataError for a file that is missing, damaged, empty or in another format, and for texts beside such files.
    """
    sources = [source for source in sources if not source.endswith(_COMPANIONS)] or sources
    others = [source for source in sources if not source.lower().endswith(_SUFFIXES)]
    if len(others) == len(sources):
        return []
    if others:
        first = next(source for source in sources if source not in others)
        raise DataError(f"{first} has tokens and {others[0]} is a text; train on files of one kind")
    files: dict[str, TokenFile] = {}
    for source in sources:
        paths = [Path(source)] if os.path.exists(source) else list(expand(source))  # noqa: PTH110
        if not paths:
            raise MissingTextError(f"{source} does not exist, or matches no file; give a file of tokens or a text")
        for path in paths:
            original = os.path.realpath(path)
            if original not in files:
                files[original] = open_token_file(path)
    return list(files.values())


def open_token_file(path: Path) -> TokenFile:
    """Opens a file of tokens without reading more than its beginning.

    Raises: DataError if it is missing, damaged, empty or in another format.
    """
    name = str(path)
    with reading(name):
        if not (is_file(path) and path.stat().st_size):
            raise DataError(f"{name} {'is empty' if is_file(path) else 'is not a file'}; give a file of tokens")
        return _open_datatrove(path, name) if path.suffix.lower() == ".ds" else _open_bin(path, name)


def _open_bin(path: Path, name: str) -> TokenFile:
    size, header = path.stat().st_size, np.fromfile(path, "<i4", _HEADER)
    magic, version, count = (int(number) for number in (*header[:3], 0, 0, 0)[:3])
    if magic in _MAGICS:
        wanted, dtype = _MAGICS[magic]
        if version != wanted:
            raise DataError(f"{name} has version {version} of llm.c's format, of which only {wanted} is read")
        if count <= 0 or size != header.nbytes + count * np.dtype(dtype).itemsize:
            raise DataError(
                f"{name} is truncated or damaged: its header says {count:,} tokens, and it has {size:,} bytes; copy it "
                "again"
            )
        return TokenFile(path, name, np.memmap(path, dtype, "r", header.nbytes), has_header=version == 1)
    if len(header) == _HEADER and magic and not header[4:].any():
        known = " and ".join(map(str, _MAGICS))
        raise DataError(f"{name} has a header with the magic number {magic}; of llm.c's files, {known} are read")
    if size % 2:
        raise DataError(f"{name} is truncated, or not an array of uint16: it has {size:,} bytes; write it again")
    ids = np.memmap(path, "<u2", "r")
    head = ids[: HEAD_BYTES // 2]
    raw = head.tobytes()
    if raw.startswith(b"PK\3\4") or (b"\0" not in raw and looks_like_text("", raw, "utf-8")):
        raise DataError(f"{name} is a text or another kind of file, not tokens; if it is a text, rename it to .txt")
    if len(head) > 32 and head[1::2].max() < 16 <= head[::2].max():
        raise DataError(f"{name} has ids of 32 or 64 bits, and nanoGPT's files have uint16; write it again as uint16")
    return TokenFile(path, name, ids)


def _open_datatrove(path: Path, name: str) -> TokenFile:
    index, metadata = (path.with_name(path.name + suffix) for suffix in (".index", ".metadata"))
    size, width, tokenizer = path.stat().st_size, 0, None
    counts, ends = [], None
    try:
        if is_file(metadata):
            first, total = read_regular(metadata, _METADATA_SIZE).decode().splitlines()[:2]
            tokenizer, width = first.rpartition("|")[0], int(first.rpartition("|")[2])
            counts.append(int(total))
        if is_file(index):
            ends = np.memmap(index, "<u8", "r")
            counts.append(int(ends[-1]))
            if (ends[1:_BLOCK] < ends[:-1][: _BLOCK - 1]).any():
                raise ValueError("not in order")
    except ValueError as error:
        raise DataError(f"{index.name} or {metadata.name} is damaged ({error}); copy both again with {name}") from error
    if not counts:
        raise DataError(f"{name} has neither {index.name} nor {metadata.name} next to it; copy them from where it was")
    width = width or size // max(1, counts[0])
    if width not in (2, 4) or any(size != width * count for count in counts):
        raise DataError(
            f"{name} is truncated, or not of its .index and .metadata: they say "
            f"{' and '.join(f'{count:,}' for count in dict.fromkeys(counts))} tokens, and it has {size:,} bytes; copy "
            "all three again"
        )
    if tokenizer is not None and tokenizer.startswith("Unknown Tokenizer"):
        tokenizer = None
    return TokenFile(path, name, np.memmap(path, f"<u{width}", "r"), tokenizer or None, ends)


def read_token_files(
    files: Sequence[TokenFile], tokenizer: Tokenizer, characters: str | None, fraction: float | None
) -> TokenText:
    """The training and the validation part of files in this order, without copying the former.

    The validation part is that of the files named so, else documents at 16 places with `fraction` of the tokens, else,
    of files without ends of documents, the end. `characters` are those of a meta.pkl in the order of their ids.
    Raises: DataError for ids that the tokenizer does not have, in a sample of each file; ConfigError for a fraction
    beside files for validation.
    """
    table = _table(tokenizer, characters)
    training = [file for file in files if not file.is_validation]
    validating = [file for file in files if file.is_validation]
    if not training:
        raise DataError(f"{files[0].name} is for validation, by its name; give files to train on too")
    arrays = {file: TokenArray(file.ids, table, file.name) for file in files}
    measured = {file: _measure(arrays[file], tokenizer, _SAMPLED // len(files)) for file in files}
    joined = JoinedArrays([arrays[file] for file in training])
    n_bytes = sum(measured[file].n_bytes for file in training)
    ranges: list[tuple[int, int]] = []
    key = [characters, [[len(file.ids), measured[file].digest, file.is_validation] for file in files]]
    if validating:
        if fraction is not None:
            raise ConfigError(f"validation_fraction ({fraction}) and {validating[0].name} exclude each other; omit one")
        whole = JoinedArrays([arrays[file] for file in validating])
        validation = whole[:_MOST_VALIDATION]
        held_out = f"{'' if len(validation) == len(whole) else 'the beginning of '}{validating[0].path.name}"
    else:
        fraction = min(DEFAULT_FRACTION, ENOUGH_BYTES / max(1, n_bytes)) if fraction is None else fraction
        ranges, held_out = _held_out(training, joined, fraction, tokenizer.end_of_text)
        validation = np.concatenate([np.empty(0, table.dtype), *(joined[start:stop] for start, stop in ranges)])
    validation_bytes = int(tokenizer.token_lengths[validation].sum())
    return TokenText(
        train=_without(joined, ranges),
        validation=validation,
        train_bytes=n_bytes if validating else max(1, n_bytes - validation_bytes),
        validation_bytes=validation_bytes,
        n_documents=max(1, sum(measured[file].n_documents for file in training)),
        held_out=held_out,
        key=[*key, ranges],
    )


def _table(tokenizer: Tokenizer, characters: str | None) -> npt.NDArray[Any]:
    """The tokenizer's id for each id of the files: that of a character, else the same. Shapes: (V,)."""
    dtype = token_type(tokenizer.vocab_size)
    if characters is None:
        return np.arange(tokenizer.vocab_size, dtype=dtype)
    ids = [tokenizer.encode(character) for character in characters]
    if tokenizer.merges or any(len(each) != 1 for each in ids):
        raise DataError(f"the files have characters (meta.pkl), and {tokenizer.name} has no token for each; give chars")
    return np.array(ids, dtype)[:, 0]


def _measure(array: TokenArray, tokenizer: Tokenizer, most: int) -> _Measured:
    """Measures about `most` evenly spaced tokens."""
    count = -(-len(array) // _BLOCK)
    chosen = min(count, max(2, most // _BLOCK))
    digest, n, n_bytes, n_ends = hashlib.sha256(), 0, 0, 0
    for number in range(chosen):
        start = _BLOCK * (number * (count - 1) // max(1, chosen - 1))
        block = array[slice(start, start + _BLOCK)]
        digest.update(block.astype("<u4").tobytes())
        n += len(block)
        n_bytes += int(tokenizer.token_lengths[block].sum())
        n_ends += int((block == tokenizer.end_of_text).sum())
    return _Measured(digest.hexdigest(), n_bytes * len(array) // n, n_ends * len(array) // n)


def _held_out(
    files: Sequence[TokenFile], joined: JoinedArrays, fraction: float, end_of_text: int
) -> tuple[list[tuple[int, int]], str]:
    """The first and the last token + 1 of each held-out range, and what they are."""
    n, size = len(joined), fraction * len(joined) / _PLACES
    ranges: list[tuple[int, int]] = []
    if not fraction or n < 2:
        return ranges, "nothing"
    for place in range(1, _PLACES + 1):
        wanted = n * place // _PLACES
        start, stop = (_document_end(files, joined, each, end_of_text) for each in (round(wanted - size), wanted))
        stop = n if place == _PLACES else stop
        if start and stop and max(start, ranges[-1][1] if ranges else 0) == start < stop:
            ranges.append((start, stop))
    if ranges and sum(stop - start for start, stop in ranges) < n:
        return ranges, f"documents at {len(ranges)} places"
    return [(n - max(1, round(fraction * n)), n)], "the end"


def _document_end(files: Sequence[TokenFile], joined: JoinedArrays, position: int, end_of_text: int) -> int | None:
    """The first end of a document from a position on; None if it is far away."""
    first = 0
    for file in files:
        if position <= first + len(file.ids) and file.ends is not None:
            following = np.searchsorted(file.ends, position - first)
            return first + min(int(file.ends[min(int(following), len(file.ends) - 1)]), len(file.ids))
        if position <= first + len(file.ids):
            break
        first += len(file.ids)
    for start in range(max(0, position - 1), min(len(joined), position + _SEARCHED), _BLOCK):
        found = np.flatnonzero(joined[start : start + _BLOCK] == end_of_text)
        if len(found):
            return start + int(found[0]) + 1
    return None


def _without(joined: JoinedArrays, ranges: Sequence[tuple[int, int]]) -> JoinedArrays:
    """The arrays without these ranges, as parts of them."""
    parts, first = [], 0
    for array in joined.arrays:
        edges = [0, *(min(max(0, edge - first), len(array)) for each in ranges for edge in each), len(array)]
        for start, stop in zip(edges[::2], edges[1::2], strict=True):
            if start < stop:
                parts.append(TokenArray(array.ids[start:stop], array.table, array.name))
        first += len(array)
    return JoinedArrays(parts)
