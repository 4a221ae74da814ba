"""Writing safetensors files with a checksum of each tensor, and reading or memory-mapping their tensors one by one."""

import json
import os
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from minigpt.errors import CheckpointError
from minigpt.storage.byte_file import ByteFile
from minigpt.storage.files import atomic_write, lfs_pointer_error, read_error
from minigpt.storage.folder import Content

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_GROUP = 64 << 20  # bytes; a tensor with more is a group
_MAX_HEADER = 16 << 20  # bytes; that of GPT-2 XL with its optimizer's state has 200 kB
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_CHECKSUMS = "crc32"  # key in the metadata: the CRC-32 of each tensor and of the rest of the header, as JSON
_HEADER = "__header__"  # its key in the checksums
_COPY_AGAIN = "copy or download it again"
_MAPS_FILES = os.name != "nt"  # Windows does not replace a mapped file: a run could not save over its open model


def whole(tensor: Tensor) -> Tensor:
    """A tensor that needs no gathering."""
    return tensor


def in_file_order(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors in the order in which `tensor_content` writes them: the largest numbers first, so all are aligned."""
    return dict(sorted(tensors.items(), key=lambda item: -item[1].element_size()))


def tensor_content(
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str] | None = None,
    read: Callable[[Tensor], Tensor] = whole,
) -> Content:
    """The content of a safetensors file, with checksums. Views are copied one at a time, GPU tensors in groups.

    `read` returns the full tensor of one that is sharded; it is called for each, `in_file_order`. The checksums are
    known only when all tensors are written, so the header is written again then.
    Source: https://huggingface.co/docs/safetensors, the format: the header's length, a JSON header, the bytes.
    """
    ordered = in_file_order(tensors)
    entries: dict[str, Any] = {}
    end = 0
    for name, tensor in ordered.items():
        start, end = end, end + tensor.nbytes
        entries[name] = {
            "dtype": _DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    checksums = {_HEADER: _header_checksum(metadata or {}, entries), **dict.fromkeys(ordered, _checksum(b""))}

    def header() -> bytes:
        text = json.dumps({"__metadata__": {**(metadata or {}), _CHECKSUMS: json.dumps(checksums)}, **entries}).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text

    def write(file: BinaryIO) -> None:
        file.write(header())
        for name, tensor in zip(ordered, _on_cpu(ordered.values(), read), strict=True):
            content = tensor.contiguous().flatten().view(torch.uint8).numpy().data
            checksums[name] = _checksum(content)
            file.write(content)
        file.seek(0)
        file.write(header())  # as long as before: every checksum has eight digits

    return write


def _on_cpu(tensors: Iterable[Tensor], read: Callable[[Tensor], Tensor]) -> Iterator[Tensor]:
    """What `read` makes of each tensor, on the CPU; about `_GROUP` bytes are copied with one wait for the GPU."""
    left = deque(tensors)
    while left:
        copies, gpus, size = list[Tensor](), set[torch.device](), 0
        while left and size < _GROUP:
            tensor = read(left.popleft()).detach()
            copies.append(tensor.to("cpu", non_blocking=tensor.is_cuda))
            gpus |= {tensor.device} if tensor.is_cuda else set()
            size += tensor.nbytes
        for gpu in gpus:
            torch.cuda.synchronize(gpu)
        yield from copies


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Writes a safetensors file.

    Raises: CheckpointError, as `atomic_write`.
    """
    atomic_write(path, tensor_content(tensors, metadata))


def _checksum(content: bytes | memoryview) -> str:
    return f"{zlib.crc32(content):08x}"


def _header_checksum(metadata: Mapping[str, str], entries: Mapping[str, Any]) -> str:
    return _checksum(json.dumps([dict(metadata), dict(entries)], sort_keys=True).encode())


class LazyTensor(NamedTuple):
    """A tensor that is read when it is requested: its shape, and how it is read and memory-mapped.

    `read` takes whether it may lie in memory that the next such read overwrites; `map` gives None if the file does not
    hold exactly this tensor in the dtype.
    """

    shape: tuple[int, ...]
    read: Callable[[bool], Tensor]
    map: Callable[[torch.dtype], Tensor | None] = lambda _: None

    @classmethod
    def of(cls, tensor: Tensor) -> Self:
        """A tensor in memory; every read gives a copy."""
        return cls(tuple(tensor.shape), lambda _: tensor.clone(memory_format=torch.contiguous_format))

    @classmethod
    def shaped(cls, read: Callable[[bool], Tensor], shape: tuple[int, ...], *, transposed: bool = False) -> Self:
        """What `read` gives in this shape, or the transpose of that."""

        def reshaped(reuse_buffer: bool) -> Tensor:
            tensor = read(reuse_buffer).reshape(shape)
            return tensor.t() if transposed else tensor

        return cls(shape[::-1] if transposed else shape, reshaped)

    def changed(self, change: Callable[[Tensor], Tensor]) -> "LazyTensor":
        """What `change` makes of this tensor, in the same shape."""
        return LazyTensor(self.shape, lambda reuse_buffer: change(self.read(reuse_buffer)))


class TensorSource:
    """Named tensors that are read one by one: from one file, from several, or converted from another format.

    `path` names the source in errors, `metadata` are the texts that a safetensors file has beside its tensors.
    """

    def __init__(
        self, path: Path, tensors: Mapping[str, LazyTensor], close: Callable[[], None], metadata: Mapping[str, str] = {}
    ) -> None:
        self.path, self.tensors, self.close, self.metadata = path, tensors, close, metadata

    def replace(self, tensors: Mapping[str, LazyTensor]) -> "TensorSource":
        """The same source with other tensors."""
        return TensorSource(self.path, tensors, self.close, self.metadata)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor's name and shape."""
        return {name: tensor.shape for name, tensor in self.tensors.items()}

    def read(self, name: str, *, reuse_buffer: bool = False) -> Tensor:
        """One tensor on the CPU; with `reuse_buffer` in memory that the next such read may overwrite.

        Raises: CheckpointError if it is damaged or cannot be read; KeyError for an unknown name.
        """
        return self.tensors[name].read(reuse_buffer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Entry(NamedTuple):
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int

    def read(self, file: ByteFile, reuse_buffer: bool) -> Tensor:
        content = file.read(self.start, self.end - self.start, reuse_buffer=reuse_buffer)
        return content.view(self.dtype).reshape(self.shape)

    def map(self, file: ByteFile, dtype: torch.dtype) -> Tensor | None:
        """The tensor as a memory map; None on Windows, or if it has another dtype, or is unaligned or empty."""
        if not _MAPS_FILES or self.dtype != dtype or self.start % dtype.itemsize or self.start == self.end:
            return None
        count = (self.end - self.start) // dtype.itemsize
        return torch.frombuffer(file.map(), dtype=dtype, count=count, offset=self.start).reshape(self.shape)


class TensorFile(TensorSource, Mapping[str, Tensor]):
    """An open safetensors file: the header is read at once, each tensor when it is requested; as an item also checked.

    If another file replaces it on disk, this object and its mapped tensors still see the file that was opened.
    `remedy` is what an error about a wrong checksum advises.
    Raises: CheckpointError if the file is missing, unreadable, truncated, or not safetensors, or if the checksum of its
    header is wrong.
    """

    def __init__(self, path: Path, remedy: str = _COPY_AGAIN) -> None:
        self.path, self.remedy = path, remedy
        self._file = ByteFile(path)
        self._read_header()
        tensors = {
            name: LazyTensor(entry.shape, partial(entry.read, self._file), partial(entry.map, self._file))
            for name, entry in self._entries.items()
        }
        super().__init__(path, tensors, self._file.close, self.metadata)

    def _read_header(self) -> None:
        start = self._file.take(8)
        if not start:
            raise CheckpointError(f"{self.path} is empty; copy or download it again")
        if start == b"version ":  # as a safetensors file, its header would have 2 exabytes
            raise lfs_pointer_error(self.path)
        length = int.from_bytes(start, "little")
        if length > _MAX_HEADER:
            raise CheckpointError(
                f"{self.path} is truncated, corrupted or not safetensors (its header would have {length:,} bytes);"
                " copy or download it again"
            )
        try:
            with safe_open(self.path, "numpy"):  # the library checks the header: sizes, offsets, overlaps, dtypes
                pass
        except SafetensorError as error:
            reason = str(error).removeprefix("Error while deserializing header: ")
            raise CheckpointError(
                f"{self.path} is truncated, corrupted or not safetensors ({reason}); copy or download it again"
            ) from error
        except OSError as error:
            raise read_error(self.path, error) from error
        header = json.loads(self._file.take(length))
        self.metadata: dict[str, str] = header.pop("__metadata__", None) or {}
        self._checksums = self._read_checksums(self.metadata.pop(_CHECKSUMS, None), header)
        self._entries = {name: self._entry(name, 8 + length, fields) for name, fields in header.items()}

    def _read_checksums(self, text: str | None, entries: Mapping[str, Any]) -> dict[str, Any]:
        """The checksums of the file; empty if it has none, as one of another program."""
        if text is None:
            return {}
        try:
            checksums = dict(json.loads(text))
        except (ValueError, TypeError, RecursionError) as error:
            raise self._damaged("checksums of it") from error
        if (
            checksums.pop(_HEADER, None) != _header_checksum(self.metadata, entries)
            or checksums.keys() - entries.keys()
        ):
            raise self._damaged("header")
        return checksums

    def _damaged(self, part: str) -> CheckpointError:
        return CheckpointError(
            f"{self.path} is damaged: its {part} changed after it was saved, perhaps by another program; {self.remedy}"
        )

    def _entry(self, name: str, data_start: int, fields: Mapping[str, Any]) -> _Entry:
        if fields["dtype"] not in _DTYPES:
            raise CheckpointError(
                f"the dtype of {name!r} in {self.path} ({fields['dtype']}) must be one of {', '.join(_DTYPES)}"
            )
        start, end = fields["data_offsets"]
        return _Entry(_DTYPES[fields["dtype"]], tuple(fields["shape"]), data_start + start, data_start + end)

    @property
    def specs(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Every tensor's name, dtype and shape."""
        return {name: (entry.dtype, entry.shape) for name, entry in self._entries.items()}

    def __getitem__(self, name: str) -> Tensor:
        tensor = self.read(name)
        self.check(name, tensor)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def check(self, name: str, tensor: Tensor) -> None:
        """Raises CheckpointError if a tensor that was read is not the one that was saved, as its checksum says."""
        if (
            name in self._checksums
            and _checksum(tensor.flatten().view(torch.uint8).numpy().data) != self._checksums[name]
        ):
            raise self._damaged(f"tensor {name!r}")

    def verify(self) -> int:
        """Checks every tensor, and returns how many have a checksum.

        Raises: CheckpointError for the first that is damaged.
        """
        for name in self._checksums:
            self.check(name, self.read(name, reuse_buffer=True))
        return len(self._checksums)


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Every tensor of a safetensors file, and its metadata.

    Raises: CheckpointError, as `TensorFile`.
    """
    with TensorFile(path) as file:
        return dict(file), dict(file.metadata)
