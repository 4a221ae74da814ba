"""Reads pickles by interpreting their opcodes itself: values are built, and functions only from a given list.

The standard library's unpickler is not used, even with a `find_class` that refuses: in 500 kB, tuples can be nested so
deeply that hashing them overflows the C stack, shared so often that hashing them takes years, and one opcode with a
large memo index makes CPython allocate gigabytes. Here a key is a plain value, and nothing is hashed but keys.
"""

import contextlib
import pickletools
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from typing import Any

from minigpt.errors import CheckpointError

MAX_PICKLE = 16 << 20  # bytes; that of GPT-2 XL with its optimizer's state has 1 MB
MAX_OPCODES = 1 << 18  # GPT-2 XL with its optimizer's state needs a third of them
_MAX_ARGUMENTS = 16  # of a function, which may copy them; those of torch have at most 8

Functions = Mapping[str, Any]
"""What a pickle may name, as `module.name`: values, or functions that are called with its arguments."""

_VALUES = {
    "BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
    "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "STRING", "SHORT_BINSTRING", "BINSTRING",
    "SHORT_BINBYTES", "BINBYTES", "BINBYTES8",
}  # fmt: skip
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_DAMAGE = (ArithmeticError, AttributeError, EOFError, LookupError, TypeError, ValueError, struct.error)


class WouldRunError(Exception):
    """A pickle names something that is not on the list; the message is its name."""


class OtherObjectError(Exception):
    """A pickle holds an object that cannot be built here; the message is the name of the opcode."""


@contextlib.contextmanager
def pickle_errors(source: object, expected: str, advice: str) -> Iterator[None]:
    """Turns the errors of `read_pickle` into a CheckpointError that names the source and ends with the advice."""
    try:
        yield
    except CheckpointError:  # is an OSError too, and already says what to do
        raise
    except WouldRunError as error:
        raise CheckpointError(
            f"{source} would run {error} when opened, which {expected} do not need and an attack may, so it was not"
            f" opened; {advice}"
        ) from error
    except OtherObjectError as error:
        raise CheckpointError(f"{source} holds objects that are not {expected} ({error}); {advice}") from error
    except (*_DAMAGE, zipfile.BadZipFile, NotImplementedError, OSError) as error:
        reason = " ".join((str(error) or type(error).__name__)[:160].split())
        raise CheckpointError(
            f"{source} is truncated, damaged or not a file of {expected} ({reason}); copy or download it again"
        ) from error


def is_plain(value: object) -> bool:
    """Whether a value may be a key: a string, bytes, None, or a number; integers of 64 bits cannot share a hash."""
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    return value is None or isinstance(value, str | float | bytes)


def read_pickle(stream: BytesIO, functions: Functions, persistent: Callable[[Any], Any] | None = None) -> Any:
    """The value of the pickle at the position of a stream, which is then at the end of the pickle.

    `persistent` gives the object for a persistent id.
    Raises: the errors that `pickle_errors` turns into one that names the file.
    """
    return _Machine(functions, persistent).run(stream)


class _Machine:
    """The stack and the memo of one pickle."""

    def __init__(self, functions: Functions, persistent: Callable[[Any], Any] | None) -> None:
        self._functions = functions
        self._persistent = persistent
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def run(self, stream: BytesIO) -> Any:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
            if count > MAX_OPCODES:
                raise ValueError(f"it has more than {MAX_OPCODES:,} opcodes")
            if opcode.name == "STOP":
                break
            self._step(opcode.name, argument)
        return self._stack.pop()

    def _step(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in _VALUES:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in _TUPLES:
            stack.append(tuple(self._take(len(stack) - _TUPLES[name])))
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(self._memo[int(argument)])
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            self._memo[int(argument)] = stack[-1]
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif name == "MARK":
            self._marks.append(len(stack))
        elif name not in ("PROTO", "FRAME"):
            self._build(name, argument)

    def _build(self, name: str, argument: Any) -> None:
        """The opcodes that combine values, or name something outside of the pickle."""
        stack = self._stack
        match name:
            case "TUPLE":
                stack.append(tuple(self._take(self._marks.pop())))
            case "LIST":
                stack.append(self._take(self._marks.pop()))
            case "DICT":
                stack.append(_to_dict(self._take(self._marks.pop())))
            case "APPEND" | "APPENDS":
                items = self._take(self._marks.pop() if name == "APPENDS" else len(stack) - 1)
                if not isinstance(stack[-1], list):
                    raise ValueError("it appends to something that is not a list")
                stack[-1].extend(items)
            case "SETITEM" | "SETITEMS":
                items = self._take(self._marks.pop() if name == "SETITEMS" else len(stack) - 2)
                if not isinstance(stack[-1], dict):
                    raise ValueError("it sets items of something that is not a dictionary")
                stack[-1].update(_to_dict(items))
            case "GLOBAL":
                stack.append(self._function(argument.replace(" ", ".", 1)))
            case "INST":
                raise WouldRunError(argument.replace(" ", ".", 1))
            case "STACK_GLOBAL":
                module, name = self._take(len(stack) - 2)
                if not (isinstance(module, str) and isinstance(name, str)):  # texts of nested values can be huge
                    raise ValueError("a function is named by something else than texts")
                stack.append(self._function(f"{module}.{name}"))
            case "REDUCE" | "NEWOBJ":
                function, arguments = self._take(len(stack) - 2)
                stack.append(call(function, arguments))
            case "BUILD":  # attributes of the object, which none of those here has
                self._take(len(stack) - 1)
            case "BINPERSID" if self._persistent is not None:
                stack.append(self._persistent(stack.pop()))
            case _:
                raise OtherObjectError(name)

    def _take(self, start: int) -> list[Any]:
        """Removes and returns the values from this index on."""
        if not 0 <= start <= len(self._stack):
            raise ValueError("it takes more values than it made")
        values = self._stack[start:]
        del self._stack[start:]
        return values

    def _function(self, name: str) -> Any:
        if name not in self._functions:
            raise WouldRunError(name)
        return self._functions[name]


def call(function: Any, arguments: Any) -> Any:
    """The result of a function of the list with a pickle's arguments.

    Raises: ValueError if it is not a function, or the arguments are not a tuple, or too many.
    """
    if not callable(function) or not isinstance(arguments, tuple):
        raise ValueError("it calls something that is not a function")
    if len(arguments) > _MAX_ARGUMENTS:
        raise ValueError(f"it calls a function with {len(arguments):,} arguments; the maximum is {_MAX_ARGUMENTS}")
    return function(*arguments)


def _to_dict(items: list[Any]) -> dict[Any, Any]:
    """The dictionary with these keys and values, in turn."""
    keys = items[::2]
    if not all(map(is_plain, keys)):
        raise ValueError("a key of a dictionary is not a plain value")
    return dict(zip(keys, items[1::2], strict=True))


def read_plain_pickle(data: bytes, source: object) -> Any:
    """The value in a pickle of dictionaries, lists, strings and numbers; `source` names it in errors.

    Raises: CheckpointError if it is damaged or holds anything else.
    """
    with pickle_errors(source, "plain values", "expected only dictionaries, lists, strings and numbers"):
        return read_pickle(BytesIO(data), {})
