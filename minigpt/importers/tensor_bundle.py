"""Reads TensorFlow's checkpoints (`NAME.index`, `NAME.data-00000-of-00001`) without TensorFlow.

The index is a LevelDB table: blocks of sorted keys, each key without the prefix that it shares with the one before,
and a last block that lists the others. The value of a tensor's key is a protocol buffer: dtype, shape, data file and
byte range.

Source: tensorflow/core/util/tensor_bundle/tensor_bundle.cc and core/protobuf/tensor_bundle.proto; LevelDB's
doc/table_format.md; core/lib/hash/crc32c.h.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from minigpt.errors import CheckpointError
from minigpt.optional_packages import optional_import
from minigpt.protobuf.messages import protobuf_fields, read_varint
from minigpt.storage.byte_file import ByteFile

_MAGIC = 0xDB4775248B80FB57.to_bytes(8, "little")
_FOOTER = 48  # two handles of up to 20 bytes each, then the magic number
_MAX_INDEX = 4 << 20  # bytes; GPT-2 XL's has 20 kB, three times as much with optimizer state
_MAX_NAME = 256  # bytes
_MAX_ENTRIES = 1 << 14  # tensors; GPT-2 XL has 580, with optimizer state 1,740
_MAX_DIMENSIONS = 8  # a weight has three
_MAX_SHARDS = 99_999  # their names have five digits
_MASK_DELTA = 0xA282EAD8  # of a stored checksum
_DTYPES = {1: torch.float32, 2: torch.float64, 14: torch.bfloat16, 19: torch.float16}


class Entry(NamedTuple):
    """A tensor as the index describes it: TensorFlow's dtype number, the shape, and the byte range in a data file."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    start: int
    size: int
    checksum: int
    sliced: bool


class TensorBundle:
    """The tensors of one checkpoint, read one by one; their checksums are verified.

    Raises: CheckpointError if a file is missing, or the index is damaged or too large for a model.
    """

    def __init__(self, prefix: Path) -> None:
        self.path = prefix.with_name(f"{prefix.name}.index")
        self._prefix = prefix
        self._shards: dict[int, ByteFile] = {}
        self._n_shards, self.entries = _read_index(self.path)

    def check(self, names: Collection[str]) -> None:
        """Checks that these tensors can be read, without reading them.

        Raises: CheckpointError for an unsupported dtype, a sliced tensor, or a wrong byte range.
        """
        ends: dict[int, int] = {}
        for name in sorted(names, key=lambda name: self.entries[name].start):
            entry = self.entries[name]
            if entry.sliced:
                raise CheckpointError(f"{name!r} in {self.path} is saved in slices, which is not supported")
            if entry.dtype not in _DTYPES:
                raise CheckpointError(
                    f"the TensorFlow dtype of {name!r} in {self.path} ({entry.dtype}) must be one of"
                    f" {', '.join(f'{number} ({str(dtype)[6:]})' for number, dtype in _DTYPES.items())}"
                )
            size = math.prod(entry.shape) * _DTYPES[entry.dtype].itemsize
            if entry.size != size or entry.start < ends.get(entry.shard, 0):
                raise CheckpointError(
                    f"{name!r} in {self.path} has {entry.size} bytes from byte {entry.start} on, expected {size} bytes"
                    " that no other tensor uses; copy or download it again"
                )
            ends[entry.shard] = entry.start + size
        for shard, end in ends.items():
            self._shard(shard).check_range(0, end)

    def read(self, name: str, reuse_buffer: bool = False) -> Tensor:
        """One tensor; with `reuse_buffer` in memory that the next such read may overwrite.

        Raises: CheckpointError if the file was truncated or the checksum is wrong; KeyError for an unknown name.
        """
        entry = self.entries[name]
        shard = self._shard(entry.shard)
        content = shard.read(entry.start, entry.size, reuse_buffer=reuse_buffer)
        if not has_checksum(content.numpy(), entry.checksum):
            raise CheckpointError(
                f"{name!r} in {shard.path} is damaged: its checksum is wrong; copy or download it again"
            )
        return content.view(_DTYPES[entry.dtype]).reshape(entry.shape)

    def _shard(self, shard: int) -> ByteFile:
        if not 0 <= shard < self._n_shards <= _MAX_SHARDS:
            raise CheckpointError(
                f"{self.path} names data file {shard} of {self._n_shards}, which cannot exist; copy or download it"
                " again"
            )
        if shard not in self._shards:
            name = f"{self._prefix.name}.data-{shard:05d}-of-{self._n_shards:05d}"
            self._shards[shard] = ByteFile(self._prefix.with_name(name))
        return self._shards[shard]

    def close(self) -> None:
        """Closes the files."""
        for shard in self._shards.values():
            shard.close()


def _read_index(path: Path) -> tuple[int, dict[str, Entry]]:
    """The number of data files, and every tensor's entry by name."""
    with ByteFile(path) as file:
        if file.size > _MAX_INDEX:
            raise CheckpointError(f"{path} has {file.size} bytes, but an index must have at most {_MAX_INDEX}")
        content = file.take(file.size)
    try:
        table = _table(content)
        key, header = next(table, (b"", b""))
        fields = _fields(header)
        if key or _integer(fields, 2):  # the header's key is empty, and field 2 is the byte order
            raise ValueError("its header must be that of a little-endian checkpoint")
        entries = {name.decode(errors="backslashreplace"): _entry(value) for name, value in islice(table, _MAX_ENTRIES)}
        if next(table, None) is not None:
            raise ValueError(f"it has more than {_MAX_ENTRIES} tensors")
        return _integer(fields, 1), entries
    except ValueError as error:
        raise CheckpointError(
            f"{path} is damaged or not a TensorFlow index ({error}); copy or download it again"
        ) from error


def _table(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of a table, in order."""
    footer = content[-_FOOTER:]
    if not footer.endswith(_MAGIC):
        raise ValueError("it does not end as a table does")
    _, _, position = _handle(footer, 0)  # of the meta-index block, which TensorFlow leaves empty
    start, size, _ = _handle(footer, position)
    end = 0
    for _, value in _block(content, start, size):
        start, size, _ = _handle(value, 0)
        if start < end:  # otherwise a small file could be read forever
            raise ValueError("its blocks overlap")
        end = start + size
        yield from _block(content, start, size)


def _block(content: bytes, start: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of one block: entries, restart points, one byte for its compression, its checksum."""
    end = start + size
    if end + 5 > len(content):
        raise ValueError("a block lies outside of the file")
    if not has_checksum(content[start : end + 1], int.from_bytes(content[end + 1 : end + 5], "little")):
        raise ValueError("a block's checksum is wrong")
    if content[end]:
        raise ValueError(f"a block is compressed ({content[end]}), which TensorFlow never does")
    last = size - 4 - 4 * int.from_bytes(content[max(start, end - 4) : end], "little")
    block, key, position = content[start:end], b"", 0
    while position < last:
        shared, position = read_varint(block, position)
        unshared, position = read_varint(block, position)
        length, position = read_varint(block, position)
        if shared > len(key) or shared + unshared > _MAX_NAME or position + unshared + length > last:
            raise ValueError("an entry lies outside of its block")
        key = key[:shared] + block[position : position + unshared]
        yield key, block[position + unshared : position + unshared + length]
        position += unshared + length


def has_checksum(data: bytes | npt.NDArray[np.uint8], stored: int) -> bool:
    """Whether data have this checksum: CRC-32C, rotated so that checked data may contain checksums.

    Raises: MissingPackageError.
    """
    with optional_import("reading a TensorFlow checkpoint", "google_crc32c"):
        import google_crc32c
    crc = google_crc32c.extend(0, data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF == stored


def _handle(content: bytes, position: int) -> tuple[int, int, int]:
    """A block's start and size, and the position after the handle."""
    start, position = read_varint(content, position)
    size, position = read_varint(content, position)
    return start, size, position


def _fields(message: bytes) -> dict[int, list[int | bytes]]:
    """The values of a protocol buffer by field number."""
    fields: dict[int, list[int | bytes]] = defaultdict(list)
    for number, value in protobuf_fields(message):
        fields[number].append(value)
    return fields


def _integer(fields: dict[int, list[int | bytes]], number: int) -> int:
    """The integer in a field; 0, protocol buffers' default, if the field is missing."""
    value = fields[number][-1] if number in fields else 0
    if isinstance(value, bytes):
        raise ValueError(f"field {number} is not an integer")
    return value


def _messages(fields: dict[int, list[int | bytes]], number: int) -> list[bytes]:
    """The messages in a repeated field."""
    values = [value for value in fields.get(number, []) if isinstance(value, bytes)]
    if len(values) != len(fields.get(number, [])):
        raise ValueError(f"field {number} is not a message")
    return values


def _entry(message: bytes) -> Entry:
    fields = _fields(message)
    shape = tuple(
        _integer(_fields(dimension), 1) for part in _messages(fields, 2) for dimension in _messages(_fields(part), 2)
    )
    if len(shape) > _MAX_DIMENSIONS:
        raise ValueError(f"a tensor has {len(shape)} dimensions")
    dtype, shard, start, size = (_integer(fields, number) for number in (1, 3, 4, 5))
    checksum = b"".join(_messages(fields, 6))
    return Entry(dtype, shape, shard, start, size, int.from_bytes(checksum, "little"), sliced=7 in fields)
