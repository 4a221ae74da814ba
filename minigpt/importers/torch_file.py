"""Opens files of torch.save, in its zip format and its old one, without torch.load and without running any code.

torch.load(weights_only=True) runs no code either, but a file of 244 bytes makes it allocate gigabytes, and one of 1 kB
keeps it busy forever.
Source: torch/serialization.py, `_save`, `_legacy_save`, `_legacy_load`.
"""

import math
import zipfile
from collections.abc import Iterable, Mapping
from functools import cache, partial
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from minigpt.bounded_reading import open_regular
from minigpt.errors import CheckpointError
from minigpt.importers.plain_pickle import (
    MAX_OPCODES,
    MAX_PICKLE,
    Functions,
    WouldRunError,
    call,
    is_plain,
    pickle_errors,
    read_pickle,
)
from minigpt.storage.byte_file import ByteFile
from minigpt.storage.files import lfs_pointer_error
from minigpt.storage.tensors import LazyTensor, TensorSource

_MAX_DIMENSIONS = 16


class Storage(NamedTuple):
    """The values that several tensors may share: their type, their key in the file, and their number."""

    dtype: torch.dtype
    key: str
    size: int


class View(NamedTuple):
    """A tensor before the places of the storages are known; `storage` is None for one that cannot be read here."""

    storage: Storage | None
    dtype: torch.dtype | None
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def storage_of(identity: Any) -> Storage:
    """The storage with a pickle's persistent id: ("storage", type, key, device, number of values)."""
    if not isinstance(identity, tuple) or len(identity) not in (5, 6) or identity[0] != "storage":
        raise ValueError("it refers to something that is not a storage")
    _, dtype, key, _, count, *view = identity
    if (
        not isinstance(dtype, torch.dtype)
        or not isinstance(key, str)
        or not _is_count(count)
        or view not in ([], [None])
    ):
        raise ValueError("it describes a storage in an unknown way")
    return Storage(dtype, key, count)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**62


def _rebuild(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any, dtype: Any = None) -> View:
    sizes = (shape, strides)
    if not (isinstance(storage, Storage) and _is_count(offset) and all(isinstance(each, tuple) for each in sizes)):
        raise ValueError("it describes a tensor in an unknown way")
    if len(shape) != len(strides) or len(shape) > _MAX_DIMENSIONS or not all(map(_is_count, shape + strides)):
        raise ValueError("a tensor's shape and strides are not sizes")
    return View(storage, dtype, offset, shape, strides)


def _rebuild_with_dtype(
    storage: Any, offset: Any, shape: Any, strides: Any, _requires_grad: Any, _hooks: Any, dtype: Any, *_: Any
) -> View:
    if not isinstance(dtype, torch.dtype):
        raise ValueError("a tensor's dtype is not a dtype")
    return _rebuild(storage, offset, shape, strides, dtype=dtype)


def _unreadable(*_: Any) -> View:
    """A sparse or quantized tensor, which is refused if it is one of the model's."""
    return View(None, None, 0, (), ())


class _Dictionaries:
    """Makes the OrderedDicts of one pickle, which may give a list of items again and again."""

    def __init__(self) -> None:
        self._items = 0

    def __call__(self, pairs: Any = ()) -> dict[Any, Any]:
        """An OrderedDict; Python 2 lists its items."""
        self._items += len(pairs)
        if self._items > MAX_OPCODES:
            raise ValueError(f"its dictionaries have more than {MAX_OPCODES:,} items")
        if not all(isinstance(pair, list | tuple) and len(pair) == 2 and is_plain(pair[0]) for pair in pairs):
            raise ValueError("a dictionary has items that are not a key and a value")
        return dict(pairs)


def _first(value: Any, *_: Any) -> Any:
    return value


def _all(*values: Any) -> Any:
    return values


def _of_type(function: Any, _: Any, arguments: Any, *__: Any) -> Any:
    if function is _of_type:  # nested in itself thousands of times, it would end in a RecursionError
        raise ValueError("it describes a tensor of a type in another such tensor")
    return call(function, arguments)


_STORAGES = {
    "Double": torch.float64, "Float": torch.float32, "Half": torch.float16, "BFloat16": torch.bfloat16,
    "Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8,
    "Bool": torch.bool, "Untyped": torch.uint8, "ComplexFloat": torch.complex64, "ComplexDouble": torch.complex128,
}  # fmt: skip
_FUNCTIONS: Functions = {
    **{f"torch.{name}Storage": dtype for name, dtype in _STORAGES.items()},
    **{str(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)},
    "torch.storage.UntypedStorage": torch.uint8,
    "torch._utils._rebuild_tensor": _rebuild,
    "torch._utils._rebuild_tensor_v2": _rebuild,
    "torch._utils._rebuild_tensor_v3": _rebuild_with_dtype,
    "torch._utils._rebuild_parameter": _first,
    "torch._utils._rebuild_parameter_with_state": _first,
    "torch._tensor._rebuild_from_type_v2": _of_type,
    "torch._utils._rebuild_sparse_tensor": _unreadable,
    "torch._utils._rebuild_sparse_csr_tensor": _unreadable,
    "torch._utils._rebuild_qtensor": _unreadable,
    "torch.serialization._get_layout": _first,
    "torch.per_tensor_affine": None,
    "torch.per_channel_affine": None,
    "torch.nn.parameter.Parameter": _first,
    "torch.Tensor": _first,
    "torch.Size": _first,
    "torch.device": _all,
    "collections.Counter": _first,
    "builtins.set": _first,
    "__builtin__.set": _first,
    "builtins.complex": _all,
}


def functions() -> Functions:
    """What one pickle may name.

    torch.load(weights_only=True) allows the same, and also what takes more memory than it has bytes in the file.
    """
    return {**_FUNCTIONS, "collections.OrderedDict": _Dictionaries()}


_ZIP = b"PK\x03\x04"
_PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_OLDEST_PICKLES = (b"c", b"(")  # of protocols 0 and 1; the first opcode is a global or a mark
_SUFFIXES = (".bin", ".pt", ".pth")
_MAGIC_NUMBER = 0x1950A86A20F9469CFC6C  # the first pickle of the old format
_ENCRYPTED = 1  # the bit of a member's flags
_LOCAL_HEADER = 30  # bytes of a member's header in a zip, before its name and its extra field


class TensorPlace(NamedTuple):
    """A tensor as a file describes it: where its values are, and how they are laid out.

    `start` counts bytes from the start of the file, `strides` values; `dtype` is None for one that is sparse or
    quantized, `start` is None for one without values.
    """

    dtype: torch.dtype | None
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int | None

    def read(self, file: ByteFile, reuse_buffer: bool) -> Tensor:
        """The tensor, one that `torch_tensors` accepts."""
        assert self.dtype is not None
        assert self.start is not None
        last = sum((length - 1) * step for length, step in zip(self.shape, self.strides, strict=True))
        size = (last + 1) * self.dtype.itemsize if math.prod(self.shape) else 0
        content = file.read(self.start, size, reuse_buffer=reuse_buffer)
        return content.view(self.dtype).as_strided(self.shape, self.strides)


def is_torch_file(path: Path, start: bytes) -> bool:
    """Whether a file that starts with these bytes may be from torch.save."""
    return start.startswith((_ZIP, *_PICKLES)) or (path.suffix in _SUFFIXES and start.startswith(_OLDEST_PICKLES))


def open_torch(path: Path) -> Any:
    """The object that torch.save wrote: plain values, and a TensorPlace for each tensor.

    Raises: CheckpointError if the file is missing, damaged, compressed, or would run code.
    """
    with ByteFile(path) as file:
        start = file.take(8)
        if start.startswith(b"version "):
            raise lfs_pointer_error(path)
        if not is_torch_file(path, start):
            raise CheckpointError(f"{path} is not a file of torch.save; copy or download it again")
        with pickle_errors(path, "weights", "get the model as safetensors"):
            return _open_zip(file) if start.startswith(_ZIP) else _open_old(file, start)


def _open_zip(file: ByteFile) -> Any:
    """The object in the zip format: a pickle in the member data.pkl, and a member for each storage."""
    with open_regular(file.path) as stream, zipfile.ZipFile(stream) as archive:
        members = {member.filename: member for member in archive.infolist()}
        _check_members(file, members.values())
        found = [name for name in members if name.rpartition("/")[2] == "data.pkl"]
        if len(found) != 1:
            raise ValueError("it has no data.pkl, or several")
        prefix = found[0].removesuffix("data.pkl")
        if f"{prefix}constants.pkl" in members:
            raise WouldRunError("TorchScript")
        if members[found[0]].file_size > MAX_PICKLE:
            raise ValueError(f"its data.pkl has {members[found[0]].file_size:,} bytes")
        byteorder = members.get(f"{prefix}byteorder")
        if byteorder and archive.open(byteorder).read(6) != b"little":
            raise ValueError("it is for big-endian machines")
        content = read_pickle(BytesIO(archive.read(found[0])), functions(), storage_of)
    return _place(content, lambda storage: _start_of(file, members.get(f"{prefix}data/{storage.key}"), storage))


def _check_members(file: ByteFile, members: Iterable[zipfile.ZipInfo]) -> None:
    """Checks that a zip is neither encrypted nor compressed and claims no more bytes than the file has."""
    if encrypted := next((member for member in members if member.flag_bits & _ENCRYPTED), None):
        raise CheckpointError(
            f"{file.path} is an encrypted zip ({encrypted.filename!r} needs a password), which torch.save never "
            "writes; give the file without encryption"
        )
    compressed = next((member for member in members if member.compress_type != zipfile.ZIP_STORED), None)
    if compressed:
        raise CheckpointError(
            f"{file.path} is a compressed zip ({compressed.filename!r} would unpack to {compressed.file_size:,} bytes),"
            " which torch.save never writes; load and save it with torch, or unpack it if it is an archive of a model's"
            " files"
        )
    if (claimed := sum(member.file_size for member in members)) > file.size:
        raise CheckpointError(
            f"{file.path} claims to hold {claimed:,} bytes but has {file.size:,}; copy or download it again"
        )


def _start_of(file: ByteFile, member: zipfile.ZipInfo | None, storage: Storage) -> int:
    """The byte at which a storage in a member of the zip begins."""
    if member is None or member.file_size < storage.size * storage.dtype.itemsize:
        raise ValueError(f"it does not hold all of data/{storage.key}")
    header = bytes(file.read(member.header_offset, _LOCAL_HEADER).tolist())
    start = member.header_offset + _LOCAL_HEADER
    start += int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    file.check_range(start, member.file_size)
    return start


def _open_old(file: ByteFile, start: bytes) -> Any:
    """The object in the old format: five pickles, the last of which lists the storages that follow it in order.

    `start` is what was read of the file already.
    """
    stream = BytesIO(start + file.take(MAX_PICKLE))
    if (first := read_pickle(stream, functions())) != _MAGIC_NUMBER:
        raise ValueError(f"its first pickle is a {type(first).__name__}")
    _, system = (read_pickle(stream, {}) for _ in range(2))
    if isinstance(system, dict) and system.get("little_endian") is False:
        raise ValueError("it is for big-endian machines")
    storages: dict[str, Storage] = {}

    def remember(identity: Any) -> Storage:
        storage = storage_of(identity)
        if storages.setdefault(storage.key, storage) != storage:
            raise ValueError(f"it describes the storage {storage.key} twice")
        return storage

    content, keys = read_pickle(stream, functions(), remember), read_pickle(stream, {})
    if not isinstance(keys, list) or not all(map(is_plain, keys)) or set(keys) != storages.keys():
        raise ValueError("its list of storages is not that of its tensors")
    starts, end = {}, stream.tell()
    for key in keys:
        starts[key] = end + 8  # after the number of values
        end = starts[key] + storages[key].size * storages[key].dtype.itemsize
        file.check_range(starts[key], end - starts[key])
    return _place(content, lambda storage: starts[storage.key])


def _place(content: Any, start_of: Any) -> Any:
    """The content with each of its tensors' places in the file; lists are looked into only one level deep."""
    known: dict[str, int] = {}

    def placed(value: Any) -> Any:
        if not isinstance(value, View):
            return value
        if value.storage is None:
            return TensorPlace(None, value.shape, value.strides, None)
        if value.storage.key not in known:
            known[value.storage.key] = start_of(value.storage)
        return _checked(value, value.storage, known[value.storage.key])

    if not isinstance(content, dict):
        return placed(content)
    return {
        key: {name: placed(each) for name, each in value.items()} if isinstance(value, dict) else placed(value)
        for key, value in content.items()
    }


def _checked(view: View, storage: Storage, start: int) -> TensorPlace:
    dtype = view.dtype or storage.dtype
    last = sum((length - 1) * step for length, step in zip(view.shape, view.strides, strict=True))
    used = view.offset + last + 1 if math.prod(view.shape) else 0
    if used * dtype.itemsize > storage.size * storage.dtype.itemsize:
        raise ValueError(f"a tensor of shape {view.shape} lies outside of its storage {storage.key}")
    return TensorPlace(dtype, view.shape, view.strides, start + view.offset * dtype.itemsize)


@cache
def _is_real(dtype: torch.dtype) -> bool:
    """Whether values of this type convert to float32; quantized ones and those of less than a byte do not."""
    if dtype.is_complex:
        return False
    try:
        torch.zeros(dtype.itemsize, dtype=torch.uint8).view(dtype).float()
    except NotImplementedError:
        return False
    return True


def torch_tensors(path: Path, tensors: Mapping[str, Any]) -> TensorSource:
    """The named tensors of a file that `open_torch` opened.

    Raises: CheckpointError if one is not a dense tensor of real numbers, or they claim more than the file holds.
    """
    claimed = 0
    for name, tensor in tensors.items():
        if not isinstance(name, str) or not isinstance(tensor, TensorPlace):
            raise CheckpointError(f"{path} holds a {type(tensor).__name__} named {name!r}, expected only tensors")
        if tensor.dtype is None or not _is_real(tensor.dtype):
            raise CheckpointError(f"{name!r} in {path} is sparse, quantized or complex, expected dense real values")
        claimed += math.prod(tensor.shape) * tensor.dtype.itemsize
    file = ByteFile(path)
    if claimed > 2 * file.size:  # twice, because a tied head may share the embedding's bytes
        raise CheckpointError(
            f"{path} claims to hold {claimed:,} bytes of tensors but has {file.size:,}; copy or download it again"
        )
    found = {name: LazyTensor(tensor.shape, partial(tensor.read, file)) for name, tensor in tensors.items()}
    return TensorSource(path, found, file.close)
