"""Measures what opening a file takes, on Linux."""

import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from minigpt.errors import MinigptError

SECONDS = 2  # of computing that 1 MB of input may take
MEGABYTES = 200  # above the start that it may take
_ABOVE = 1 << 30  # bytes of address space: a child that wants more fails, instead of the machine


def _kilobytes(name: str, pid: int | str = "self") -> int:
    return int(Path(f"/proc/{pid}/status").read_text().partition(name)[2].split()[0])


def print_measured(read: Callable[[], object]) -> None:
    """Calls a function in a child process, which starts with everything imported, and prints a line about it.

    The line has the seconds of computing, the peak of the memory above the start in MB, and the answer: the text that
    the function returns or `read`, the message of a refusal, or a crash. The processes that it starts count as well.
    """
    sys.stdout.flush()
    if (child := os.fork()) == 0:
        limit = _kilobytes("VmSize:") * 1024 + _ABOVE
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts here
        start, began = _kilobytes("VmHWM:"), time.process_time()
        try:
            result = read()
            answer = result if isinstance(result, str) else "read"
        except MinigptError as error:
            answer = str(error)
        except BaseException as error:
            answer = f"crash: {type(error).__name__}: {error}"
        readers = psutil.Process().children()
        seconds = time.process_time() - began + sum(sum(reader.cpu_times()[:2]) for reader in readers)
        seconds += sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])  # of those that have ended
        taken = (_kilobytes("VmHWM:") - start + sum(_kilobytes("VmHWM:", reader.pid) for reader in readers)) // 1024
        sys.stdout.write(f"{seconds:.2f} {taken} {' '.join(answer.split())[:900]}\n")
        sys.stdout.flush()
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.stdout.write("60 60000 crash: killed\n")


def is_over(line: str) -> bool:
    """Whether a printed line is about something that took too much, or crashed."""
    seconds, taken, answer = line.split(" ", 2)
    return float(seconds) > SECONDS or int(taken) > MEGABYTES or answer.startswith("crash")
