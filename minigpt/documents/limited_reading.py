"""Reads files from strangers in a child process that may take only so much time and memory.

The child serves one request after another, because its start takes 0.2 s. A request is a line of JSON, and the file's
content if it is given; the answer is a line for each result of a reader, then one about how it ended.
"""

import atexit
import faulthandler
import json
import logging
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from minigpt.errors import reason_of

_OUT_OF_TIME = getattr(signal, "SIGXCPU", None)  # the signal that ends the child; Windows has none
_RESULT, _END, _REFUSED, _DAMAGED, _NO_MEMORY, _MISSING = "result", "end", "refused", "damaged", "memory", "missing"


class RefusedError(Exception):
    """A file that is not read; the message continues "NAME …"."""


_ERRORS = {_REFUSED: RefusedError, _MISSING: ImportError, _DAMAGED: ValueError}


def by_the_clock(seconds: int) -> float:
    """The seconds that may pass until a result: the only limit on time that Windows has."""
    return 20 + 4 * seconds


def read_limited(
    reader: Callable[..., Iterator[Any]],
    *arguments: object,
    content: bytes = b"",
    packages: Sequence[str],
    seconds: int,
    memory: int,
    advice: str,
) -> Iterator[Any]:
    """What the function `reader` of a module yields for the arguments, and the content if there is one.

    Arguments and results are values of JSON. `seconds` of computing may pass until each result; `memory` is in bytes,
    beside the content and the `packages` that the reader needs. `advice` says what to do about a file that takes more.
    Raises: RefusedError for such a file, for one that the system does not open, and if the reader does; ValueError,
    with the reason, if it raises anything else; ImportError for packages that cannot be imported.
    """
    request = {
        "reader": (reader.__module__, reader.__name__),
        "arguments": arguments,
        "size": len(content),
        "packages": packages,
        "limits": (seconds, by_the_clock(seconds), memory),
    }
    try:
        child = _idle.pop()
    except IndexError:
        child = _Child()
    kind = ""
    try:
        for kind, value in child.answers(request, content):
            if kind == _RESULT:
                yield value
        if kind == _NO_MEMORY:
            raise RefusedError(f"takes more than {memory >> 20:,} MB of memory; {advice}")
        if error := _ERRORS.get(kind):
            raise error(value)
        if kind != _END:
            if reason := child.reason():
                raise ValueError(reason)
            raise RefusedError(f"takes more than {seconds:,} s to read; {advice}")
    finally:
        if kind in (_END, _REFUSED, _DAMAGED) and not _idle:
            _idle.append(child)
        else:
            child.end()


class _Child:
    """A child process that reads."""

    def __init__(self) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (standard error, until the process ends)
        self._process = subprocess.Popen(
            # With -P, so that no module in the working directory is imported instead of Python's.
            [sys.executable, "-P", "-c", f"from {__name__} import serve; serve()"],
            stdin=subprocess.PIPE,  # whose end ends the process
            stdout=subprocess.PIPE,
            stderr=self._said,
            bufsize=1 << 20,
            start_new_session=True,  # Ctrl-C is for this process, which may have something to save first
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # the same on Windows
            # One arena, and no memory reserved in advance, so that the limit is on what is used.
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                "ARROW_DEFAULT_MEMORY_POOL": "system",
                "MALLOC_ARENA_MAX": "1",
            },
        )

    def answers(self, request: dict[str, object], content: bytes) -> Iterator[tuple[str, Any]]:
        """The answers to a request, until the last or the child's end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.write(content)
            self._process.stdin.flush()
        kind = _RESULT
        while kind == _RESULT and (line := self._process.stdout.readline()).endswith(b"\n"):
            kind, value = json.loads(line)
            yield kind, value

    def reason(self) -> str:
        """Why the child has ended; empty if it had no more time."""
        code = self._process.wait()
        self._said.seek(0)
        lines = self._said.read().decode("utf-8", "replace").strip().splitlines()
        if (_OUT_OF_TIME and code == -_OUT_OF_TIME) or any(line.startswith("Timeout (") for line in lines):
            return ""
        return lines[-1] if lines else f"its reader ended with status {code}"

    def end(self) -> None:
        """Ends the process."""
        self._process.kill()
        with suppress(BrokenPipeError):  # of a request that it has not read
            self._process.communicate()
        self._said.close()


_idle: list[_Child] = []  # at most one
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)


@atexit.register
def _end_idle() -> None:
    while _idle:
        _idle.pop().end()


def serve() -> None:
    """The child: answers the requests on standard input."""
    logging.disable()  # the packages' warnings about damage that they repair
    warnings.simplefilter("ignore")
    while request := sys.stdin.buffer.readline():
        _answer(**json.loads(request))


def _answer(
    reader: tuple[str, str], arguments: list[Any], size: int, packages: list[str], limits: tuple[int, float, int]
) -> None:
    seconds, clock, memory = limits
    content = (sys.stdin.buffer.read(size),) if size else ()
    try:
        _limit_memory(None)
        for package in packages:
            import_module(package)
        function = getattr(import_module(reader[0]), reader[1])
        _limit_time(seconds, clock)
        _limit_memory(memory)
        for result in function(*arguments, *content):
            faulthandler.cancel_dump_traceback_later()  # the parent takes its time
            _send(_RESULT, result)
            _limit_time(seconds, clock)
        kind, value = _END, ""
    except RefusedError as error:
        kind, value = _REFUSED, str(error)
    except MemoryError:
        kind, value = _NO_MEMORY, ""
    except ImportError as error:
        kind, value = _MISSING, str(error)
    except OSError as error:
        kind = _REFUSED if error.strerror else _DAMAGED  # the system's or a package's
        value = f"cannot be read ({reason_of(error)})" if error.strerror else _short(error)
    except Exception as error:  # a package may raise anything for a damaged file
        kind, value = _DAMAGED, _short(error)
    faulthandler.cancel_dump_traceback_later()
    _send(kind, value)


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:100] or type(error).__name__


def _send(kind: str, value: object) -> None:
    sys.stdout.buffer.write(json.dumps([kind, value], default=str).encode() + b"\n")
    sys.stdout.buffer.flush()


def _limit_time(seconds: int, clock: float) -> None:
    """Limits the time until the next call."""
    faulthandler.dump_traceback_later(clock, exit=True)
    _limit("RLIMIT_CORE", 0)
    _limit("RLIMIT_CPU", math.ceil(time.process_time()) + seconds)


def _limit_memory(more: int | None) -> None:
    """Limits the memory to some more than the process has, or not any more; on Linux only: macOS refuses it."""
    if sys.platform == "linux":
        has = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        _limit("RLIMIT_AS", None if more is None else has + more)


def _limit(name: str, most: int | None) -> None:
    """Limits a resource, or not more than the user does."""
    if sys.platform != "win32":
        import resource

        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        if most is None or (hard != resource.RLIM_INFINITY and hard < most):
            most = hard
        resource.setrlimit(kind, (most, hard))
