"""Pickles of plain values (dictionaries, texts, whole numbers), read opcode by opcode: nothing in them can run."""

import pickletools
from typing import Any

from minigpt.errors import CheckpointError

_VALUES = {
    "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE", "BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1",
}  # fmt: skip
_STORES = {"PUT", "BINPUT", "LONG_BINPUT"}
_FETCHES = {"GET", "BINGET", "LONG_BINGET"}


def read_plain_pickle(data: bytes, source: object) -> Any:
    """The value in a pickle of dictionaries, texts and whole numbers; `source` names it in errors.

    Raises: CheckpointError where it is damaged or holds anything else.
    """
    try:
        return _run(data)
    except CheckpointError as error:
        raise CheckpointError(f"{source} {error}, expected dictionaries of texts and numbers alone") from error
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError) as error:
        raise CheckpointError(f"{source} is damaged or no pickle ({error}); copy it again") from error


def _run(data: bytes) -> Any:
    stack: list[Any] = []  # since the last mark
    below: list[list[Any]] = []  # what was put on it before each of the marks
    memo: dict[int, Any] = {}  # a dictionary: an opcode that stores under a huge number makes no huge list
    for opcode, argument, _ in pickletools.genops(data):
        name = opcode.name
        if name in _VALUES:
            stack.append(argument)
        elif name == "EMPTY_DICT":
            stack.append({})
        elif name == "MARK":
            below.append(stack)
            stack = []
        elif name == "DICT":
            items, stack = stack, below.pop()
            stack.append(_pairs(items))
        elif name == "SETITEMS":
            items, stack = stack, below.pop()
            stack[-1].update(_pairs(items))
        elif name == "SETITEM":
            value, key = stack.pop(), stack.pop()
            stack[-1].update({key: value})
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in _STORES:
            memo[int(argument or 0)] = stack[-1]
        elif name in _FETCHES:
            stack.append(memo[int(argument or 0)])
        elif name == "STOP":
            return stack.pop()
        elif name not in ("PROTO", "FRAME"):
            asked = f"asks for {argument!r} to be run" if name == "GLOBAL" else f"holds more than data ({name})"
            raise CheckpointError(asked)
    raise ValueError("it has no end")


def _pairs(items: list[Any]) -> dict[Any, Any]:
    return dict(zip(items[::2], items[1::2], strict=True))
