"""A GGUF file: its metadata at once, a tensor's numbers when they are asked for; it knows no models.

The header is read here, not with the gguf package, whose reader trusts every size and makes an array of each word;
the package turns quantized blocks into numbers, of which it knows some thirty kinds.
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
from minigpt.importers.byte_file import ByteFile

_VERSIONS = (2, 3)  # the first had shorter lengths, and is extinct
_MOST_HEADER = 64 << 20  # bytes; that of GPT-2 has 2 MB, nearly all of them words and merges
_MOST_TENSORS = 1 << 16
_MOST_DIMENSIONS = 4
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "b", 10: "Q", 11: "q", 12: "d"}  # as array's
_BOOL = 7
_STRING, _ARRAY = 8, 9
_PLAIN = {
    0: ("F32", torch.float32),
    1: ("F16", torch.float16),
    28: ("F64", torch.float64),
    30: ("BF16", torch.bfloat16),
}
_ROWS_AT_ONCE = 1024


class GgufTensor(NamedTuple):
    """A tensor as the header describes it: ggml's number of its type, its shape as torch has it, and its bytes."""

    kind: int
    shape: tuple[int, ...]
    start: int
    size: int


class GgufFile:
    """A GGUF file held open, with its `metadata` and `tensors`.

    Raises: CheckpointError where the file is missing, unreadable, truncated, damaged or of a type unknown here.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = ByteFile(path)
        try:
            header = _Header(self._file)
            self.metadata: dict[str, Any] = header.metadata
            self.tensors: dict[str, GgufTensor] = {}
            for name, (kind, shape, start) in header.tensors.items():
                self.tensors[name] = GgufTensor(kind, shape, start, self._size(name, kind, shape))
            self._check_places()
        except BaseException:
            self._file.close()
            raise

    def kind(self, name: str) -> str:
        """The type of a tensor's numbers by ggml's own name, such as `Q8_0`."""
        number = self.tensors[name].kind
        return _PLAIN[number][0] if number in _PLAIN else _package(self.path).GGMLQuantizationType(number).name

    def read(self, name: str) -> Tensor:
        """One tensor, in memory of its own; quantized ones as float32.

        Raises: CheckpointError where the file has shrunk or cannot be read; KeyError for an unknown name.
        """
        tensor = self.tensors[name]
        if tensor.kind not in _PLAIN:
            return self._dequantized(tensor)
        return self._file.read(tensor.start, tensor.size).view(_PLAIN[tensor.kind][1]).reshape(tensor.shape)

    def borrow(self, name: str) -> Tensor:
        """One tensor, in memory that the next borrowing may overwrite.

        Raises: as `read`.
        """
        tensor = self.tensors[name]
        if tensor.kind not in _PLAIN:
            return self._dequantized(tensor)
        return self._file.borrow(tensor.start, tensor.size).view(_PLAIN[tensor.kind][1]).reshape(tensor.shape)

    def _dequantized(self, tensor: GgufTensor) -> Tensor:
        """A quantized tensor's numbers, made some rows at a time: the package needs several times their memory."""
        gguf = _package(self.path)
        kind = gguf.GGMLQuantizationType(tensor.kind)
        numbers = torch.empty(tensor.shape, dtype=torch.float32)
        rows = numbers.view(-1, tensor.shape[-1])
        row = tensor.size // len(rows)
        for first in range(0, len(rows), _ROWS_AT_ONCE):
            part = rows[first : first + _ROWS_AT_ONCE]
            blocks = self._file.borrow(tensor.start + first * row, len(part) * row).view(-1, row)
            with np.errstate(all="ignore"):  # a damaged scale makes numbers that are none, as in any other format
                part.copy_(torch.from_numpy(gguf.dequantize(blocks.numpy(), kind)))
        return numbers

    def _size(self, name: str, kind: int, shape: tuple[int, ...]) -> int:
        """The bytes of a tensor of that type and shape."""
        if kind in _PLAIN:
            return math.prod(shape) * _PLAIN[kind][1].itemsize
        gguf = _package(self.path)
        try:
            block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
            gguf.dequantize(np.zeros((1, size), np.uint8), gguf.GGMLQuantizationType(kind))
        except (ValueError, KeyError, NotImplementedError) as error:  # no such type; one that nothing reads
            raise CheckpointError(
                f"{name!r} in {self.path} is of ggml's type {kind}, which cannot be read here;"
                " convert the file with llama-quantize to F16 or Q8_0"
            ) from error
        if not shape or 0 in shape or shape[-1] % block:
            raise CheckpointError(
                f"{name!r} in {self.path} is of shape {shape}, which cannot be cut into blocks of {block} numbers"
            )
        return math.prod(shape) // block * size

    def _check_places(self) -> None:
        """Makes sure that the tensors' bytes are in the file, each only once."""
        end = 0
        for name, tensor in sorted(self.tensors.items(), key=lambda item: item[1].start):
            if tensor.start < end:
                raise CheckpointError(f"{name!r} in {self.path} overlaps another tensor; copy or download it again")
            end = tensor.start + tensor.size
            self._file.check(tensor.start, tensor.size)

    def close(self) -> None:
        """Lets go of the file."""
        self._file.close()


class _Header:
    """The start of a GGUF file, taken in order: `metadata`, and of each of `tensors` type, shape and place."""

    def __init__(self, file: ByteFile) -> None:
        self._file = file
        self._taken = 0
        if (magic := self._take(4)) != b"GGUF":
            raise self._damage(f"it starts with {magic!r}, not with b'GGUF'")
        version = self._number(4)
        if version not in _VERSIONS:
            order = "; it is for big-endian machines" if version & 0xFFFF == 0 else ""
            raise CheckpointError(f"{file.path} is of version {version} of GGUF, expected 2 or 3{order}")
        n_tensors, n_values = self._number(8), self._number(8)
        if n_tensors > _MOST_TENSORS or n_values > _MOST_TENSORS:
            raise self._damage(f"it claims {n_tensors} tensors and {n_values} values")
        self.metadata = {self._text(): self._value(self._number(4)) for _ in range(n_values)}
        found = [(self._text(), self._tensor()) for _ in range(n_tensors)]
        alignment = self.metadata.get("general.alignment", 32)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise self._damage(f"its alignment is {alignment!r}, which must be a power of two")
        data = -(-self._taken // alignment) * alignment
        self.tensors = {name: (kind, shape, data + offset) for name, (kind, shape, offset) in found}
        if len(self.tensors) < n_tensors:
            raise self._damage("it names a tensor twice")

    def _take(self, count: int) -> bytes:
        self._taken += count
        if self._taken > _MOST_HEADER:
            raise self._damage(f"its header has more than {_MOST_HEADER} bytes")
        content = self._file.take(count)
        if len(content) < count:
            raise self._damage("it ends within its header")
        return content

    def _number(self, size: int) -> int:
        return int.from_bytes(self._take(size), "little")

    def _text(self) -> str:
        return self._take(self._number(8)).decode(errors="replace")

    def _value(self, kind: int) -> Any:
        """A scalar, a string, a list of strings, or an array of scalars."""
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY:
            kind, count = self._number(4), self._number(8)
            if kind == _STRING:
                return [self._text() for _ in range(count)]
            return self._scalars(kind, count)
        values = self._scalars(kind, 1)
        if kind == _BOOL:
            return values[0] != 0
        # Of a float32 the shortest decimal that means it: 1e-05, not 9.999999747378752e-06.
        return float(str(np.float32(values[0]))) if values.typecode == "f" else values[0]

    def _scalars(self, kind: int, count: int) -> "array[Any]":
        if kind not in _SCALARS:
            raise self._damage(f"a value in it is of type {kind}")
        values = array(_SCALARS[kind])
        values.frombytes(self._take(count * values.itemsize))
        return values

    def _tensor(self) -> tuple[int, tuple[int, ...], int]:
        """Type, shape with the rows first, and place among the data."""
        n_dimensions = self._number(4)
        if n_dimensions > _MOST_DIMENSIONS:
            raise self._damage(f"a tensor in it has {n_dimensions} dimensions")
        shape = tuple(self._number(8) for _ in range(n_dimensions))[::-1]
        return self._number(4), shape, self._number(8)

    def _damage(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self._file.path} is damaged or no GGUF file ({what}); copy or download it again")


def _package(path: Path) -> Any:
    """The gguf package, for what is quantized.

    Raises: CheckpointError where it is not installed.
    """
    try:
        import gguf
    except ImportError as error:
        raise CheckpointError(
            f"{path} has quantized weights, which need a package that is not installed; pip install 'minigpt[gguf]'"
        ) from error
    return gguf
