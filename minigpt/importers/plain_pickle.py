"""Reads pickles of dictionaries, strings and integers, and refuses all others."""

import io
import pickle
import pickletools
from typing import Any

from minigpt.errors import CheckpointError

_ALLOWED = {
    "PROTO", "FRAME", "MARK", "STOP",
    "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS",
    "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE", "BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1",
    "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GET", "BINGET", "LONG_BINGET",
}  # fmt: skip


class _DataUnpickler(pickle.Unpickler):
    """Refuses every class, function and persistent object."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it refers to {module}.{name}")


def read_plain_pickle(data: bytes, source: object) -> Any:
    """The value in a pickle of dictionaries, strings and integers; `source` names it in errors.

    Raises: CheckpointError if it is damaged or holds anything else.
    """
    try:
        _check_opcodes(data, source)
        return _DataUnpickler(io.BytesIO(data)).load()
    except CheckpointError:
        raise
    except Exception as error:  # pickle documents no complete list for damaged data
        raise CheckpointError(f"{source} is damaged or not a pickle ({error}); copy it again") from error


def _check_opcodes(data: bytes, source: object) -> None:
    """Checks that a pickle only builds dictionaries, strings and integers.

    Refusing classes is not enough: in 500 kB, tuples can be nested so deeply that hashing them overflows the C stack
    and kills the process, and one opcode with a large memo index makes CPython allocate gigabytes.
    Raises: CheckpointError if there is any other opcode; ValueError if the pickle is damaged.
    """
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name not in _ALLOWED:
            what = f"would run {argument!r}" if opcode.name == "GLOBAL" else f"holds other objects ({opcode.name})"
            raise CheckpointError(f"{source} {what}, expected only dictionaries, strings and integers")
        if opcode.name in ("PUT", "LONG_BINPUT") and int(argument or 0) > len(data):
            raise ValueError(f"memo index {argument}")
