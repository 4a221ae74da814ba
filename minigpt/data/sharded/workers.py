"""The processes that tokenize the shards of a mixture beside another process.

`python -m minigpt.data.sharded.workers FOLDER NUMBER THREADS FIRST NICE` is one of them. They share nothing but the
folder: each locks a segment, writes its shards and takes the next. They end when the process that started them does.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
from filelock import FileLock, Timeout

from minigpt.data.corpus_cache import writing_tokens
from minigpt.data.sharded.mixture import Deduplicator, Mixture
from minigpt.data.sharded.tokenize import tokenize_segment
from minigpt.errors import DataError, MinigptError
from minigpt.tokenizer.tokenizer import Tokenizer

FIRST = 8  # shards of each text that are there before anything else begins
_MOST_WORKERS = 32  # processes, each with about 100 MB
_POLL = 0.2  # seconds
_REPORT = 1.0  # seconds between two reports of progress, which read the folder
_HEARTBEAT = "alive"  # a file that a worker touches
_BEAT = 5.0  # seconds
_NICE = 10  # the priority beside training, which goes first


def tokenize(mixture: Mixture, tokenizer: Tokenizer, number: int = 0, threads: int = 1, *, first: bool = False) -> None:
    """Tokenizes what no other process does, until all is there; with `first`, the first shards of each text.

    Worker number 0 marks the duplicates.
    Raises: DataError.
    """
    marks = Deduplicator(mixture) if mixture.deduplicate and number == 0 else None

    def more() -> bool:
        if marks is not None:
            marks.advance()
        return not (first and has_first(mixture))

    with writing_tokens(mixture.folder.parent.parent):
        while _one_pass(mixture, tokenizer, threads, more) and more():
            time.sleep(_POLL)  # another process tokenizes the rest
        while marks is not None and not marks.advance() and more():
            time.sleep(_POLL)


def _one_pass(mixture: Mixture, tokenizer: Tokenizer, threads: int, more: Callable[[], bool]) -> bool:
    """Tokenizes every segment that is missing and not locked; returns whether some are still missing."""
    missing = False
    for store, segment in mixture.work():
        files = mixture.stores[store]
        if files.is_done(segment):
            continue
        if not more():
            return True
        with contextlib.suppress(Timeout), FileLock(files.lock_path(segment), timeout=0):
            if not files.is_done(segment):
                tokenize_segment(files, segment, tokenizer, threads, more)
        missing = missing or not files.is_done(segment)
    return missing


def has_first(mixture: Mixture) -> bool:
    """Whether the first shards of each text are there, or all that it has."""
    return all(_has_first(mixture, store) for store in range(len(mixture.stores)))


def _has_first(mixture: Mixture, store: int) -> bool:
    for known, shard in enumerate(mixture.shards(store), 1):
        if shard is None or known >= FIRST:
            return shard is not None
    return True


class Workers:
    """Starts the processes, and stops them at the end of a `with` block."""

    def __init__(self, mixture: Mixture, cores: int, *, first: bool = False, nice: bool = False) -> None:
        self.mixture = mixture
        count = max(1, min(cores, _MOST_WORKERS, sum(len(store.segments) for store in mixture.stores)))
        command = [sys.executable, "-m", "minigpt.data.sharded.workers", str(mixture.folder)]
        threads = max(1, cores // count)
        self._processes = [
            subprocess.Popen(
                [*command, str(number), str(threads), str(int(first)), str(_NICE if nice else 0)],
                stdin=subprocess.PIPE,  # whose end ends the process
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,  # Ctrl-C is for the process that trains
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # the same on Windows
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
            for number in range(count)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.kill()  # what is half written is written again
        for process in self._processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def are_running(self) -> bool:
        """Whether one of them still works."""
        return any(process.poll() is None for process in self._processes)

    def check(self) -> None:
        """Raises DataError if one of them has failed, with its reason."""
        for process in self._processes:
            if process.poll() is None or process.stdout is None or process.stdout.closed:
                continue
            with process.stdout as output:
                said = output.read()
            if said or process.returncode:
                raise DataError(_reason(said, process.returncode))

    def wait(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Waits until all have ended, and reports the bytes done and the bytes in total.

        Raises: DataError, as `check`.
        """
        reported = 0.0
        while self.are_running():
            self.check()
            if progress and time.monotonic() - reported > _REPORT:
                progress(*self.mixture.done_bytes())
                reported = time.monotonic()
            time.sleep(_POLL)
        self.check()


def _reason(said: str, code: int) -> str:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(json.loads(said)["error"])
    return f"a process that tokenizes the text ended unexpectedly (exit code {code}); run the command again"


def heartbeat(folder: Path) -> float | None:
    """When a worker last wrote that it works; None if none did."""
    try:
        return (folder / _HEARTBEAT).stat().st_mtime
    except OSError:
        return None


@contextlib.contextmanager
def _beating(folder: Path) -> Iterator[None]:
    """Ends this process with its parent, and says in the meantime that it works."""

    def beat() -> None:
        while True:
            with contextlib.suppress(OSError):
                (folder / _HEARTBEAT).touch()
            time.sleep(_BEAT)

    def follow_parent() -> None:
        sys.stdin.read()
        os.kill(os.getpid(), signal.SIGTERM)  # what is half written is written again

    for target in (beat, follow_parent):
        threading.Thread(target=target, daemon=True).start()
    yield


def _main(folder: str, number: str, threads: str, first: str, nice: str) -> None:
    if hasattr(os, "nice"):
        os.nice(int(nice))
    elif int(nice):
        psutil.Process().nice(psutil.BELOW_NORMAL_PRIORITY_CLASS)
    with _beating(Path(folder)):
        try:
            mixture = Mixture.load(Path(folder))
            tokenize(mixture, Tokenizer.load(folder), int(number), int(threads), first=first == "1")
        except MinigptError as error:
            sys.stdout.write(json.dumps({"error": str(error)}))


if __name__ == "__main__":
    _main(*sys.argv[1:])
