"""safetensors files, written a tensor at a time, read or mapped one by one; it knows neither models nor checkpoints."""

import json
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from minigpt.errors import CheckpointError
from minigpt.storage.files import atomic_write, cut_short, unreadable

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
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Writes a safetensors file all at once, one tensor after the other: views and GPU tensors cost one copy at a time.

    Raises: CheckpointError, as `atomic_write`.
    Source: the format, https://huggingface.co/docs/safetensors: the header's length, a JSON header, the bytes.
    """
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())  # keeps every tensor aligned
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, tensor in ordered:
        start, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": _DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)

    def write(file: BinaryIO) -> None:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in ordered:
            file.write(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)

    atomic_write(path, write)


class _Entry(NamedTuple):
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int


class TensorFile:
    """A safetensors file held open: names, shapes and metadata at once, a tensor's bytes when they are asked for.

    Tensors are read by default, not mapped: a mapped file that is cut short kills the process. The open file stays what
    it was even while another one takes its name, and so do its mapped tensors.
    Raises: CheckpointError where the file is missing, unreadable, truncated, or not safetensors.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._scratch = torch.empty(0, dtype=torch.uint8)
        self._mapped: mmap.mmap | None = None
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise unreadable(path, error) from error
        try:
            self._read_header()
        except BaseException:
            self._file.close()
            raise

    def _read_header(self) -> None:
        start = self._file.read(8)
        if not start:
            raise CheckpointError(f"{self.path} is empty; copy or download it again")
        if start == b"version ":  # no safetensors file starts so: it would be a header of 2 exabytes
            raise CheckpointError(f"{self.path} is a Git LFS pointer, not the tensors; run `git lfs pull` beside it")
        try:
            with safe_open(self.path, "numpy"):  # the library checks the header: sizes, offsets, overlaps, dtypes
                pass
        except SafetensorError as error:
            reason = str(error).removeprefix("Error while deserializing header: ")
            raise CheckpointError(
                f"{self.path} is truncated, corrupted or not safetensors ({reason}); copy or download it again"
            ) from error
        except OSError as error:
            raise unreadable(self.path, error) from error
        length = int.from_bytes(start, "little")
        header = json.loads(self._file.read(length))
        self.metadata: dict[str, str] = header.pop("__metadata__", None) or {}
        self._entries = {name: self._entry(name, 8 + length, fields) for name, fields in header.items()}

    def _entry(self, name: str, origin: int, fields: Mapping[str, Any]) -> _Entry:
        if fields["dtype"] not in _DTYPES:
            raise CheckpointError(
                f"{name!r} in {self.path} is of dtype {fields['dtype']}, which must be one of {', '.join(_DTYPES)}"
            )
        start, end = fields["data_offsets"]
        return _Entry(_DTYPES[fields["dtype"]], tuple(fields["shape"]), origin + start, origin + end)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor's name and shape."""
        return {name: entry.shape for name, entry in self._entries.items()}

    def read(self, name: str) -> Tensor:
        """One tensor, in memory of its own on the CPU.

        Raises: CheckpointError where the file has shrunk or cannot be read; KeyError for an unknown name.
        """
        entry = self._entries[name]
        return self._read(entry, torch.empty(entry.end - entry.start, dtype=torch.uint8))

    def borrow(self, name: str) -> Tensor:
        """One tensor, in memory that the next borrowing overwrites: for those who turn it into something else at once.

        Raises: as `read`.
        """
        entry = self._entries[name]
        if len(self._scratch) < entry.end - entry.start:
            self._scratch = torch.empty(entry.end - entry.start, dtype=torch.uint8)
        return self._read(entry, self._scratch[: entry.end - entry.start])

    def map(self, name: str, dtype: torch.dtype) -> Tensor | None:
        """One tensor where it lies in the file, paged in as it is used; None where it is of another dtype or crooked.

        Writing to it changes this process's copy alone.
        Raises: CheckpointError where the file cannot be mapped; KeyError for an unknown name.
        """
        entry = self._entries[name]
        if entry.dtype != dtype or entry.start % dtype.itemsize or entry.start == entry.end:
            return None
        if self._mapped is None:
            end = max(entry.end for entry in self._entries.values())
            try:
                self._mapped = mmap.mmap(self._file.fileno(), end, access=mmap.ACCESS_COPY)
            except OSError as error:
                raise unreadable(self.path, error) from error
            except ValueError as error:  # the file is shorter
                raise cut_short(self.path) from error
        count = (entry.end - entry.start) // dtype.itemsize
        return torch.frombuffer(self._mapped, dtype=dtype, count=count, offset=entry.start).reshape(entry.shape)

    def _read(self, entry: _Entry, buffer: Tensor) -> Tensor:
        try:
            self._file.seek(entry.start)
            read = self._file.readinto(buffer.numpy().data)
        except OSError as error:
            raise unreadable(self.path, error) from error
        if read != len(buffer):
            raise cut_short(self.path)
        return buffer.view(entry.dtype).reshape(entry.shape)

    def close(self) -> None:
        """Lets go of the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Every tensor of a safetensors file, and its metadata.

    Raises: CheckpointError, as `TensorFile`.
    """
    with TensorFile(path) as file:
        return {name: file.read(name) for name in file.shapes}, file.metadata
