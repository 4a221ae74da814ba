"""TensorFlow's checkpoints (`NAME.index`, `NAME.data-00000-of-00001`), read without TensorFlow; it knows no models.

The index is a table as LevelDB writes them: blocks of sorted keys, each key without what it shares with the one
before, and last a block that says where the others are. A tensor's value there is a protocol buffer with its dtype,
its shape, and where its bytes are in which data file.

Source: tensorflow/core/util/tensor_bundle/tensor_bundle.cc and core/protobuf/tensor_bundle.proto; LevelDB's
doc/table_format.md; protobuf.dev/programming-guides/encoding.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from minigpt.errors import CheckpointError
from minigpt.importers.byte_file import ByteFile
from minigpt.importers.crc32c import crc32c, unmask

_MAGIC = 0xDB4775248B80FB57.to_bytes(8, "little")
_FOOTER = 48  # two handles of up to 20 bytes each, then the magic number
_MOST_INDEX = 4 << 20  # that of GPT-2 XL has 20 kB, with an optimizer's state three times as much
_LONGEST_NAME = 256
_MOST_DIMENSIONS = 8  # a weight has three
_MOST_SHARDS = 99_999  # their names have five digits
_DTYPES = {1: torch.float32, 2: torch.float64, 14: torch.bfloat16, 19: torch.float16}


class Entry(NamedTuple):
    """A tensor as the index describes it: TensorFlow's number of its dtype, its shape, and where its bytes are."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    start: int
    size: int
    checksum: int
    sliced: bool


class TensorBundle:
    """The tensors of one checkpoint, read one by one and held against their checksums.

    Raises: CheckpointError where a file is missing, or the index is damaged or too large to be that of a model.
    """

    def __init__(self, prefix: Path) -> None:
        self.path = prefix.with_name(f"{prefix.name}.index")
        self._prefix = prefix
        self._shards: dict[int, ByteFile] = {}
        self._n_shards, self.entries = _read_index(self.path)

    def check(self, names: Collection[str]) -> None:
        """Makes sure, before any is read, that each of these tensors can be.

        Raises: CheckpointError for a dtype that is none of a model's, a tensor in slices, or a place that cannot be.
        """
        ends: dict[int, int] = {}
        for name in sorted(names, key=lambda name: self.entries[name].start):
            entry = self.entries[name]
            if entry.sliced:
                raise CheckpointError(f"{name!r} in {self.path} is saved in slices, which must be whole")
            if entry.dtype not in _DTYPES:
                raise CheckpointError(
                    f"{name!r} in {self.path} is of TensorFlow's dtype {entry.dtype}, which must be one of"
                    f" {', '.join(f'{number} ({str(dtype)[6:]})' for number, dtype in _DTYPES.items())}"
                )
            size = math.prod(entry.shape) * _DTYPES[entry.dtype].itemsize
            if entry.size != size or entry.start < ends.get(entry.shard, 0):
                raise CheckpointError(
                    f"{name!r} in {self.path} has {entry.size} bytes from byte {entry.start} on, expected {size}"
                    " that no other tensor has; copy or download it again"
                )
            ends[entry.shard] = entry.start + size
        for shard, end in ends.items():
            self._shard(shard).check(0, end)

    def read(self, name: str) -> Tensor:
        """One tensor, in memory of its own.

        Raises: CheckpointError where the file has shrunk or the checksum is another; KeyError for an unknown name.
        """
        entry = self.entries[name]
        return self._checked(name, self._shard(entry.shard).read(entry.start, entry.size))

    def borrow(self, name: str) -> Tensor:
        """One tensor, in memory that the next borrowing may overwrite.

        Raises: as `read`.
        """
        entry = self.entries[name]
        return self._checked(name, self._shard(entry.shard).borrow(entry.start, entry.size))

    def _checked(self, name: str, content: Tensor) -> Tensor:
        entry = self.entries[name]
        if crc32c(content.numpy()) != unmask(entry.checksum):
            raise CheckpointError(
                f"{name!r} in {self._shard(entry.shard).path} is damaged: its checksum is another;"
                " copy or download it again"
            )
        return content.view(_DTYPES[entry.dtype]).reshape(entry.shape)

    def _shard(self, shard: int) -> ByteFile:
        if not 0 <= shard < self._n_shards <= _MOST_SHARDS:
            raise CheckpointError(f"{self.path} names data file {shard} of {self._n_shards}, which cannot be")
        if shard not in self._shards:
            name = f"{self._prefix.name}.data-{shard:05d}-of-{self._n_shards:05d}"
            self._shards[shard] = ByteFile(self._prefix.with_name(name))
        return self._shards[shard]

    def close(self) -> None:
        """Lets go of the files."""
        for shard in self._shards.values():
            shard.close()


class _DamageError(Exception):
    """Some bytes are not what an index is made of; it leaves this module as a CheckpointError only."""


def _read_index(path: Path) -> tuple[int, dict[str, Entry]]:
    """How many data files a checkpoint has, and every tensor's entry by its name."""
    with ByteFile(path) as file:
        if file.size > _MOST_INDEX:
            raise CheckpointError(f"{path} has {file.size} bytes, which an index of at most {_MOST_INDEX} must not")
        content = file.take(file.size)
    try:
        table = _table(content)
        key, header = next(table, (b"", b""))
        fields = _fields(header)
        if key or _integer(fields, 2):  # the header's key is empty, and 2 is the byte order
            raise _DamageError("its header must be that of a little-endian checkpoint")
        return _integer(fields, 1), {name.decode(errors="backslashreplace"): _entry(value) for name, value in table}
    except _DamageError as error:
        raise CheckpointError(
            f"{path} is damaged, or no index of TensorFlow's ({error}); copy or download it again"
        ) from error


def _table(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of a table, in their order."""
    footer = content[-_FOOTER:]
    if not footer.endswith(_MAGIC):
        raise _DamageError("it does not end as a table does")
    _, _, place = _handle(footer, 0)  # of a block of other blocks, which TensorFlow leaves empty
    start, size, _ = _handle(footer, place)
    read = 0
    for _, value in _block(content, start, size):
        start, size, _ = _handle(value, 0)
        if start < read:  # else a small file could be read forever
            raise _DamageError("its blocks do not follow one another")
        read = start + size
        yield from _block(content, start, size)


def _block(content: bytes, start: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of one block: entries, where to enter them, one byte of its compression, its checksum."""
    end = start + size
    if end + 5 > len(content):
        raise _DamageError("a block lies outside of it")
    if crc32c(content[start : end + 1]) != unmask(int.from_bytes(content[end + 1 : end + 5], "little")):
        raise _DamageError("a block's checksum is another")
    if content[end]:
        raise _DamageError(f"a block is compressed ({content[end]}), which TensorFlow leaves be")
    last = size - 4 - 4 * int.from_bytes(content[max(start, end - 4) : end], "little")
    block, key, place = content[start:end], b"", 0
    while place < last:
        shared, place = _varint(block, place)
        own, place = _varint(block, place)
        length, place = _varint(block, place)
        if shared > len(key) or shared + own > _LONGEST_NAME or place + own + length > last:
            raise _DamageError("an entry lies outside of its block")
        key = key[:shared] + block[place : place + own]
        yield key, block[place + own : place + own + length]
        place += own + length


def _handle(content: bytes, place: int) -> tuple[int, int, int]:
    """Where a block starts, its size, and where the next bytes are."""
    start, place = _varint(content, place)
    size, place = _varint(content, place)
    return start, size, place


def _varint(content: bytes, place: int) -> tuple[int, int]:
    """A number in groups of seven bits, the lowest first, and where the next bytes are."""
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(content):
            break
        byte = content[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise _DamageError("a number does not end")


def _fields(message: bytes) -> dict[int, list[int | bytes]]:
    """The values of a protocol buffer by the numbers of their fields."""
    fields: dict[int, list[int | bytes]] = defaultdict(list)
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        kind = tag & 7
        if kind == 0:
            value, place = _varint(message, place)
            fields[tag >> 3].append(value)
            continue
        sizes = {1: 8, 5: 4}
        if kind == 2:
            size, place = _varint(message, place)
        elif kind in sizes:
            size = sizes[kind]
        else:
            raise _DamageError(f"a value is of kind {kind}")
        if place + size > len(message):
            raise _DamageError("a value lies outside of its message")
        content = message[place : place + size]
        fields[tag >> 3].append(content if kind == 2 else int.from_bytes(content, "little"))
        place += size
    return fields


def _integer(fields: dict[int, list[int | bytes]], number: int) -> int:
    """The integer of that field, by default 0, as protocol buffers have it."""
    value = fields[number][-1] if number in fields else 0
    if isinstance(value, bytes):
        raise _DamageError(f"field {number} is no integer")
    return value


def _messages(fields: dict[int, list[int | bytes]], number: int) -> list[bytes]:
    """The messages that repeat under that field."""
    values = [value for value in fields.get(number, []) if isinstance(value, bytes)]
    if len(values) != len(fields.get(number, [])):
        raise _DamageError(f"field {number} is no message")
    return values


def _entry(message: bytes) -> Entry:
    fields = _fields(message)
    shape = tuple(
        _integer(_fields(dimension), 1) for part in _messages(fields, 2) for dimension in _messages(_fields(part), 2)
    )
    if len(shape) > _MOST_DIMENSIONS:
        raise _DamageError(f"a tensor has {len(shape)} dimensions")
    dtype, shard, start, size, checksum = (_integer(fields, number) for number in (1, 3, 4, 5, 6))
    return Entry(dtype, shape, shard, start, size, checksum, sliced=7 in fields)
