"""Reads GGUF files: the metadata at once, each tensor when it is requested.

gguf's own GGUFReader is not used. It trusts every length in the header: a file of 113 bytes that claims 2**40 array
elements keeps it in an endless loop. It maps the file, so a truncated one kills the process. For GPT-2's header it
needs 3 s and 140 MB instead of 0.1 s. The gguf package only dequantizes here.
Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

import math
from array import array
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from minigpt.errors import CheckpointError
from minigpt.optional_packages import optional_import
from minigpt.storage.byte_file import ByteFile

_VERSIONS = (2, 3)  # version 1 had 32-bit lengths; no files of it are left
_MAX_HEADER = 64 << 20  # bytes; GPT-2's has 2 MB, nearly all of it tokens and merges
_MAX_TENSORS = 1 << 16
_MAX_STRINGS = 1 << 20  # in all arrays; each may take 60 bytes of memory more than in the file
_MAX_DIMENSIONS = 4
# The type codes of the array module for GGUF's scalar types.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "b", 10: "Q", 11: "q", 12: "d"}
_BOOL = 7
_STRING, _ARRAY = 8, 9
_PLAIN = {
    0: ("F32", torch.float32),
    1: ("F16", torch.float16),
    28: ("F64", torch.float64),
    30: ("BF16", torch.bfloat16),
}
_ROWS_PER_READ = 1024


class GgufTensor(NamedTuple):
    """A tensor as the header describes it: ggml's type number, the shape in torch's order, and the byte range."""

    type: int
    shape: tuple[int, ...]
    start: int
    size: int


class GgufFile:
    """An open GGUF file with its `metadata` and `tensors`.

    Raises: CheckpointError if the file is missing, unreadable, truncated, damaged or has an unsupported tensor type.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = ByteFile(path)
        header = _Header(self._file)
        self.metadata: dict[str, Any] = header.metadata
        self.tensors: dict[str, GgufTensor] = {}
        for name, (type_, shape, start) in header.tensors.items():
            self.tensors[name] = GgufTensor(type_, shape, start, self._size(name, type_, shape))
        self._check_ranges()

    def type_name(self, name: str) -> str:
        """A tensor's type by ggml's name, such as `Q8_0`."""
        number = self.tensors[name].type
        return _PLAIN[number][0] if number in _PLAIN else _import_gguf(self.path).GGMLQuantizationType(number).name

    def read(self, name: str, reuse_buffer: bool = False) -> Tensor:
        """One tensor, dequantized to float32 if necessary; with `reuse_buffer` the next such read may overwrite it.

        Raises: CheckpointError if the file was truncated or cannot be read; KeyError for an unknown name.
        """
        tensor = self.tensors[name]
        if tensor.type not in _PLAIN:
            return self._dequantize(tensor)
        content = self._file.read(tensor.start, tensor.size, reuse_buffer=reuse_buffer)
        return content.view(_PLAIN[tensor.type][1]).reshape(tensor.shape)

    def _dequantize(self, tensor: GgufTensor) -> Tensor:
        """A quantized tensor in float32, some rows at a time: the package needs several times their memory."""
        gguf = _import_gguf(self.path)
        type_ = gguf.GGMLQuantizationType(tensor.type)
        result = torch.empty(tensor.shape, dtype=torch.float32)
        rows = result.view(-1, tensor.shape[-1])
        row_size = tensor.size // len(rows)
        for first in range(0, len(rows), _ROWS_PER_READ):
            part = rows[first : first + _ROWS_PER_READ]
            content = self._file.read(tensor.start + first * row_size, len(part) * row_size, reuse_buffer=True)
            with np.errstate(all="ignore"):  # a damaged scale may give NaN or infinity, as in any other format
                part.copy_(torch.from_numpy(gguf.dequantize(content.view(-1, row_size).numpy(), type_)))
        return result

    def _size(self, name: str, type_: int, shape: tuple[int, ...]) -> int:
        """How many bytes a tensor of this type and shape has."""
        if type_ in _PLAIN:
            return math.prod(shape) * _PLAIN[type_][1].itemsize
        gguf = _import_gguf(self.path)
        try:
            block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(type_)]
            gguf.dequantize(np.zeros((1, size), np.uint8), gguf.GGMLQuantizationType(type_))
        except (ValueError, KeyError, NotImplementedError) as error:  # an unknown type, or one that cannot be read
            raise CheckpointError(
                f"{name!r} in {self.path} has ggml type {type_}, which cannot be dequantized;"
                " convert the file to F16 or Q8_0 with llama-quantize"
            ) from error
        if not shape or 0 in shape or shape[-1] % block:
            raise CheckpointError(
                f"{name!r} in {self.path} has shape {shape}, but its rows must consist of blocks of {block} values"
            )
        return math.prod(shape) // block * size

    def _check_ranges(self) -> None:
        """Checks that the tensors' bytes are in the file and do not overlap."""
        end = 0
        for name, tensor in sorted(self.tensors.items(), key=lambda item: item[1].start):
            if tensor.start < end:
                raise CheckpointError(f"{name!r} in {self.path} overlaps another tensor; copy or download it again")
            end = tensor.start + tensor.size
            self._file.check_range(tensor.start, tensor.size)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class _Header:
    """Parses the start of a GGUF file: `metadata`, and the type, shape and start of each of `tensors`."""

    def __init__(self, file: ByteFile) -> None:
        self._file = file
        self._taken = 0
        self._strings = 0
        if (magic := self._take(4)) != b"GGUF":
            raise self._damage(f"it starts with {magic!r}, not with b'GGUF'")
        version = self._number(4)
        if version not in _VERSIONS:
            order = "; it is for big-endian machines" if version & 0xFFFF == 0 else ""
            raise CheckpointError(f"{file.path} has GGUF version {version}, expected 2 or 3{order}")
        n_tensors, n_values = self._number(8), self._number(8)
        if n_tensors > _MAX_TENSORS or n_values > _MAX_TENSORS:
            raise self._damage(f"it claims {n_tensors} tensors and {n_values} values")
        self.metadata = {self._text(): self._value(self._number(4)) for _ in range(n_values)}
        found = [(self._text(), self._tensor()) for _ in range(n_tensors)]
        alignment = self.metadata.get("general.alignment", 32)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise self._damage(f"its alignment is {alignment!r}, which must be a power of two")
        data = -(-self._taken // alignment) * alignment
        self.tensors = {name: (type_, shape, data + offset) for name, (type_, shape, offset) in found}
        if len(self.tensors) < n_tensors:
            raise self._damage("it names a tensor twice")

    def _take(self, count: int) -> bytes:
        self._taken += count
        if self._taken > _MAX_HEADER:
            raise self._damage(f"its header has more than {_MAX_HEADER} bytes")
        content = self._file.take(count)
        if len(content) < count:
            raise self._damage("it ends inside its header")
        return content

    def _number(self, size: int) -> int:
        return int.from_bytes(self._take(size), "little")

    def _text(self) -> str:
        return self._take(self._number(8)).decode(errors="replace")

    def _value(self, type_: int) -> Any:
        """A scalar, a string, a list of strings, or an array of scalars."""
        if type_ == _STRING:
            return self._text()
        if type_ == _ARRAY:
            type_, count = self._number(4), self._number(8)
            if type_ == _STRING:
                self._strings += count
                if self._strings > _MAX_STRINGS:
                    raise self._damage(f"it claims {self._strings:,} strings")
                return [self._text() for _ in range(count)]
            return self._scalars(type_, count)
        values = self._scalars(type_, 1)
        if type_ == _BOOL:
            return values[0] != 0
        # A float32 becomes the shortest decimal that rounds to it: 1e-05, not 9.999999747378752e-06.
        return float(str(np.float32(values[0]))) if values.typecode == "f" else values[0]

    def _scalars(self, type_: int, count: int) -> "array[Any]":
        if type_ not in _SCALARS:
            raise self._damage(f"it has a value of unknown type {type_}")
        values = array(_SCALARS[type_])
        values.frombytes(self._take(count * values.itemsize))
        return values

    def _tensor(self) -> tuple[int, tuple[int, ...], int]:
        """A tensor's type, its shape in torch's order, and its offset in the data."""
        n_dimensions = self._number(4)
        if n_dimensions > _MAX_DIMENSIONS:
            raise self._damage(f"a tensor in it has {n_dimensions} dimensions")
        shape = tuple(self._number(8) for _ in range(n_dimensions))[::-1]
        return self._number(4), shape, self._number(8)

    def _damage(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self._file.path} is damaged or not a GGUF file ({what}); copy or download it again")


def _import_gguf(path: Path) -> Any:
    """The gguf package, which quantized tensors need."""
    with optional_import(f"reading the quantized weights of {path}", "gguf"):
        import gguf
    return gguf
