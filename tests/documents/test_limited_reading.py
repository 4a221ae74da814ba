"""What a child process that reads a file may take, and how it ends. Functions of Python stand for the readers."""

import itertools
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from minigpt.documents import limited_reading
from minigpt.documents.limited_reading import RefusedError, read_limited

UNIX_ONLY = pytest.mark.skipif(sys.platform == "win32", reason="Windows limits neither")


@pytest.fixture(autouse=True)
def _no_child_before() -> None:
    limited_reading._end_idle()


def answers(reader: Callable[..., Any], *arguments: Any, **options: Any) -> Iterator[Any]:
    given: dict[str, Any] = {"packages": (), "seconds": 1, "memory": 50 << 20, "advice": "split it"}
    return read_limited(reader, *arguments, **given | options)


def children() -> list[psutil.Process]:
    """The Python processes that this one has started; tests of pages have a browser."""
    return [child for child in psutil.Process().children() if child.name().startswith("python")]


def test_results_come_one_by_one_from_a_process_that_then_reads_the_next_file() -> None:
    assert list(answers(iter, [1, "\udc80", None, {"a": [math.inf]}])) == [1, "\udc80", None, {"a": [math.inf]}]
    before = children()
    assert list(answers(iter, content=b"\0\n")) == [0, 10]
    assert list(answers(range, 2, packages=["json.tool"])) == [0, 1]
    assert children() == before
    assert len(before) == 1


@pytest.mark.parametrize(
    ("reader", "arguments", "reason"),
    [
        (math.sqrt, [-1], "math domain error"),
        (math.sqrt, [], "math.sqrt() takes exactly one argument (0 given)"),
        (sys.exit, ["the reason"], "the reason"),
        (os._exit, [3], "its reader ended with status 3"),
        (os.abort, [], r"its reader ended with status"),
    ],
)
def test_a_reader_that_fails_in_any_way_is_a_reason(
    reader: Callable[..., Any], arguments: list[Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=r"^") as error:
        list(answers(reader, *arguments))
    assert str(error.value).startswith(reason)


def test_what_the_system_or_the_installation_lacks_is_named() -> None:
    with pytest.raises(RefusedError, match=r"^cannot be read \(no such file or directory\)$"):
        list(answers(os.listdir, "/nowhere"))
    with pytest.raises(ImportError, match="No module named 'nothing'"):
        list(answers(iter, [], packages=["nothing"]))


@UNIX_ONLY
def test_computing_is_limited_until_each_result() -> None:
    with pytest.raises(RefusedError, match=r"^takes more than 1 s to read; split it$"):
        list(answers(math.factorial, 10**7))
    results = answers(itertools.repeat, "x" * 10_000_000)
    assert next(results)
    (child,) = children()
    while sum(child.cpu_times()[:2]) < 2.1:
        assert next(results)


def test_time_is_limited_by_the_clock_and_not_while_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited_reading, "by_the_clock", lambda _: 0.3)
    with pytest.raises(RefusedError, match=r"^takes more than 1 s to read; split it$"):
        list(answers(time.sleep, 100))
    results = answers(itertools.repeat, "x" * 10_000, 100)
    assert next(results)
    time.sleep(0.5)
    assert len(list(results)) == 99


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits memory")
def test_memory_is_limited_beside_what_the_packages_take() -> None:
    with pytest.raises(RefusedError, match=r"^takes more than 50 MB of memory; split it$"):
        next(answers(bytes, 60_000_000, packages=["torch"]))
    assert len(list(answers(bytes, 1000))) == 1000


def test_a_process_whose_results_nobody_wants_ends() -> None:
    results = answers(itertools.count)
    assert next(results) == 0
    (child,) = children()
    results.close()  # type: ignore[attr-defined]  # as Ctrl-C does
    assert not child.is_running()


@UNIX_ONLY
def test_ctrl_c_ends_both_processes_and_the_child_says_nothing() -> None:
    program = (
        "import itertools\nfrom minigpt.documents.limited_reading import read_limited\n"
        "for number in read_limited(itertools.count, packages=(), seconds=9, memory=1 << 30, advice=''):\n"
        "    if number == 5: print('begun', flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        (child,) = psutil.Process(process.pid).children()
        groups = {os.getpgid(child.pid), os.getpgid(process.pid)}
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert len(groups) == 2  # so that Ctrl-C lets the child read on while training saves
    assert said.count("Traceback") == 1
    assert said.endswith("KeyboardInterrupt\n")
    child.wait(timeout=60)


@UNIX_ONLY
def test_a_child_ends_with_a_process_that_is_killed() -> None:
    program = (
        "import os\nfrom minigpt.documents.limited_reading import read_limited\n"
        "print(list(read_limited(iter, [7], packages=(), seconds=9, memory=1 << 30, advice='')), flush=True)\n"
        "import time; time.sleep(100)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "[7]\n"
        (child,) = psutil.Process(process.pid).children()
        process.kill()
    child.wait(timeout=60)
