"""Files of tokens that other programs wrote, read where they are.

| program | file | content |
|---|---|---|
| nanoGPT | `.bin` | ids, uint16 |
| llm.c, modded-nanogpt | `.bin` | 256 int32 (magic 20240520, version 1, number of tokens), then ids, uint16 |
| datatrove | `.ds` | ids, uint16 or uint32 |
| | `.ds.index` | the end of each document, in tokens, uint64 |
| | `.ds.metadata` | text: `TOKENIZER|BYTES_OF_A_TOKEN`, and on the second line the number of tokens |

All numbers are little-endian.
Sources: karpathy/nanoGPT, data/openwebtext/prepare.py; karpathy/llm.c, dev/data/data_common.py; KellerJordan/
modded-nanogpt, data/fineweb.py; huggingface/datatrove, src/datatrove/pipeline/tokens/tokenizer.py.
"""

import glob
import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minigpt.bounded_reading import read_regular
from minigpt.data.folders import is_file
from minigpt.data.formats import HEAD_BYTES, looks_like_text
from minigpt.data.source_files import reading
from minigpt.data.split import DEFAULT_FRACTION, ENOUGH_BYTES
from minigpt.data.token_writer import token_type
from minigpt.errors import ConfigError, DataError, MissingTextError
from minigpt.large_corpora.joined import JoinedArrays
from minigpt.tokenizer.tokenizer import Tokenizer

_COMPANIONS = (".ds.index", ".ds.metadata", ".ds.loss", "meta.pkl", "tokenizer.json")
_HEADER, _MAGIC, _VERSION = 256, 20240520, 1  # int32 numbers of llm.c's header, and the first two
_IS_VALIDATION = re.compile(r"(?<![a-z])val(id|idation)?(?![a-z])")
_MOST_VALIDATION = 10_485_760  # tokens of the files for validation, which modded-nanogpt evaluates too
_SEARCHED = 2**22  # tokens in which the end of a document is looked for
_SAMPLED, _BLOCK = 2**26, 2**16  # tokens of all files that are read to check, count and hash them; read at once
_METADATA_SIZE = 2**16  # bytes


@dataclass(frozen=True, eq=False)
class TokenFile:
    """A file of tokens: its ids, (N,), memory-mapped; the tokenizer that it names, if it does; whether it is a shard of
    llm.c or modded-nanogpt, whose tokenizer is GPT-2's."""

    path: Path
    name: str
    ids: npt.NDArray[Any]
    tokenizer: str | None = None
    is_shard: bool = False

    @property
    def is_validation(self) -> bool:
        """Whether the file is for validation, by its name."""
        return bool(_IS_VALIDATION.search(self.path.name.lower()))


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


def has_tokens(source: str) -> bool:
    """Whether a source names files of tokens, not a text."""
    return source.lower().endswith((".bin", ".ds"))


def find_token_files(sources: Sequence[str]) -> list[TokenFile]:
    """Opens the sources if they are files of tokens; nothing if they are texts. Of datatrove's tasks without documents,
    the empty files are skipped.

    Raises: DataError for a file that is missing, damaged, empty or in another format, and for texts beside such files.
    """
    sources = [source for source in sources if not source.endswith(_COMPANIONS)]
    found = list(filter(has_tokens, sources))
    if not found:
        return []
    if others := [source for source in sources if source not in found]:
        raise DataError(f"{found[0]} has tokens and {others[0]} is a text; train on files of one kind")
    paths: dict[str, Path] = {}
    for source in found:
        matches = [source] if os.path.exists(source) else sorted(glob.glob(source, recursive=True))  # noqa: PTH110, PTH207
        if not matches:
            problem = "matches no file" if glob.has_magic(source) else "does not exist"
            raise MissingTextError(f"{source} {problem}; give files of tokens, or a text")
        paths |= {os.path.realpath(path): Path(path) for path in matches}
    opened = [path for path in paths.values() if not _is_without_documents(path)]
    return [open_token_file(path) for path in opened or paths.values()]


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
    if len(header) == _HEADER and header[0] and (header[0] == _MAGIC or not header[4:].any()):
        magic, version, count = header[:3].tolist()
        if (magic, version) != (_MAGIC, _VERSION):
            raise DataError(
                f"{name} has the magic number {magic} and version {version}; of llm.c's files, those with {_MAGIC} and "
                f"{_VERSION} are read"
            )
        if size != header.nbytes + 2 * count or not count:
            raise DataError(f"{name} is truncated: its header says {count:,} tokens, and it has {size:,} bytes")
        return TokenFile(path, name, np.memmap(path, "<u2", "r", header.nbytes), is_shard=True)
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


def _is_without_documents(path: Path) -> bool:
    """Whether a file is that of a task of datatrove that had no documents."""
    files = (path, path.with_name(f"{path.name}.index"))
    return path.suffix.lower() == ".ds" and all(is_file(each) and not each.stat().st_size for each in files)


def _open_datatrove(path: Path, name: str) -> TokenFile:
    index, metadata = (path.with_name(path.name + suffix) for suffix in (".index", ".metadata"))
    size, width, tokenizer, counts = path.stat().st_size, "", "", []
    try:
        if is_file(metadata):
            first, total = read_regular(metadata, _METADATA_SIZE).decode().splitlines()[:2]
            tokenizer, _, width = first.rpartition("|")
            counts.append(int(total))
        if is_file(index):
            counts.append(int(np.memmap(index, "<u8", "r")[-1]))  # the end of the last document
    except ValueError as error:
        raise DataError(f"{index.name} or {metadata.name} is damaged ({error}); copy both again with {name}") from error
    if not counts:
        raise DataError(f"{name} has neither {index.name} nor {metadata.name} next to it; copy them from where it was")
    width = width or str(size // max(1, counts[0]))
    if width not in ("2", "4") or any(size != int(width) * count for count in counts):
        raise DataError(
            f"{name} is truncated: {' and '.join(f'{count:,}' for count in dict.fromkeys(counts))} tokens are said to "
            f"be in it, and it has {size:,} bytes; copy it again with its .index and .metadata"
        )
    is_named = tokenizer and not tokenizer.startswith("Unknown Tokenizer")
    return TokenFile(path, name, np.memmap(path, f"<u{width}", "r"), tokenizer if is_named else None)


def read_token_files(
    files: Sequence[TokenFile], tokenizer: Tokenizer, characters: str | None, fraction: float | None
) -> tuple[dict[str, Any], list[Any]]:
    """The fields of a `Corpus` that describe these files, whose training part is not copied; and what the files are.

    Files named so are for validation; else it is the last documents, `fraction` of the tokens, or just the end if there
    are no ends of documents. `characters` are those of a meta.pkl in the order of their ids. Of long files, a part is
    checked, and bytes and documents are estimated by it.
    Raises: DataError for ids that the tokenizer does not have; ConfigError for a fraction beside files for validation.
    """
    table = _table(tokenizer, characters)
    arrays = [TokenArray(file.ids, table, file.name) for file in files]
    measured = [_measure(array, tokenizer, _SAMPLED // len(files)) for array in arrays]
    training, validating = (
        [n for n, file in enumerate(files) if file.is_validation == is_it] for is_it in (False, True)
    )
    if not training:
        raise DataError(f"{files[0].name} is for validation, by its name; give files to train on too")
    train, n_bytes = JoinedArrays([arrays[n] for n in training]), sum(measured[n][1] for n in training)
    if validating:
        first = files[validating[0]]
        if fraction is not None:
            raise ConfigError(f"validation_fraction ({fraction}) and {first.name} exclude each other; omit one")
        whole = JoinedArrays([arrays[n] for n in validating])
        validation, cut = whole[:_MOST_VALIDATION], len(train)
        held_out = f"{'' if len(validation) == len(whole) else 'the beginning of '}{first.path.name}"
    else:
        fraction = min(DEFAULT_FRACTION, ENOUGH_BYTES / max(1, n_bytes)) if fraction is None else fraction
        cut, held_out = _cut(train, fraction, tokenizer.end_of_text)
        validation = train[cut:]
        train = JoinedArrays(_before(train.arrays, cut))
    validation_bytes = int(tokenizer.token_lengths[validation].sum())
    fields = {
        "train": train,
        "validation": validation,
        "train_bytes": n_bytes if validating else max(1, n_bytes - validation_bytes),
        "validation_bytes": validation_bytes,
        "n_documents": sum(measured[n][2] for n in training),
        "held_out": held_out,
        "validation_fraction": len(validation) / (len(train) + len(validation)),
        "sources": tuple(file.name for file in files),
    }
    return fields, [
        characters,
        cut,
        *((len(each), digest) for each, (digest, *_) in zip(arrays, measured, strict=True)),
    ]


def _table(tokenizer: Tokenizer, characters: str | None) -> npt.NDArray[Any]:
    """The tokenizer's id for each id of the files: that of a character, else the same. Shapes: (V,)."""
    dtype = token_type(tokenizer.vocab_size)
    if characters is None:
        return np.arange(tokenizer.vocab_size, dtype=dtype)
    ids = [tokenizer.encode(character) for character in characters]
    if tokenizer.merges or any(len(each) != 1 for each in ids):
        raise DataError(f"the files have characters (meta.pkl), and {tokenizer.name} has no token for each; give chars")
    return np.array(ids, dtype)[:, 0]


def _measure(array: TokenArray, tokenizer: Tokenizer, most: int) -> tuple[str, int, int]:
    """The hash of about `most` evenly spaced tokens; and the bytes and documents of all, estimated by those."""
    count = -(-len(array) // _BLOCK)
    chosen = min(count, max(2, most // _BLOCK))
    digest, n, n_bytes, n_ends = hashlib.sha256(), 0, 0, 0
    for number in range(chosen):
        start = _BLOCK * (number * (count - 1) // max(1, chosen - 1))
        block = array[start : start + _BLOCK]
        digest.update(block.astype("<u4").tobytes())
        n += len(block)
        n_bytes += int(tokenizer.token_lengths[block].sum())
        n_ends += int((block == tokenizer.end_of_text).sum())
    return digest.hexdigest(), n_bytes * len(array) // n, n_ends * len(array) // n


def _cut(tokens: JoinedArrays, fraction: float, end_of_text: int) -> tuple[int, str]:
    """Where the held-out part begins, after the end of a document if one is near; and what it is."""
    wanted = len(tokens) - round(fraction * len(tokens))
    for start in range(max(0, wanted - 1), min(len(tokens) - 1, wanted + _SEARCHED), _BLOCK):
        found = np.flatnonzero(tokens[start : min(start + _BLOCK, len(tokens) - 1)] == end_of_text)
        if len(found):
            return start + int(found[0]) + 1, "the last documents"
    return wanted, "the end" if wanted < len(tokens) else "nothing"


def _before(arrays: Sequence[TokenArray], cut: int) -> list[TokenArray]:
    """The first `cut` tokens of arrays that are joined."""
    parts = []
    for array in arrays:
        parts.append(TokenArray(array.ids[: max(0, cut)], array.table, array.name))
        cut -= len(array)
    return parts
