"""What the pickle in a file of torch.save may name: its storages, and tensors as views of them.

Source: torch/_utils.py for the functions, torch/serialization.py for the persistent ids of storages.
"""

from typing import Any, NamedTuple

import torch

from minigpt.importers.plain_pickle import MAX_OPCODES, Functions, call, is_plain

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
