"""A run's folder with full and broken disks, kills and several processes; and its states."""

import errno
import io
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import new_model, new_run

from minigpt.errors import CheckpointError
from minigpt.storage.checkpoint import find_checkpoint, load_checkpoint
from minigpt.storage.last_state import LastState
from minigpt.storage.run import Run
from minigpt.storage.run_log import RunLog
from minigpt.storage.run_record import Result
from minigpt.storage.runs import newest_run, next_number, runs_in

Patch = pytest.MonkeyPatch


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return new_run(tmp_path / "checkpoints" / "fox", new_model(n_layer=1))


def line(step: int) -> dict[str, Any]:
    return {"step": step, "loss": 1 / step}


def steps(run: Run) -> list[int]:
    """The steps in the file, which must be whole lines."""
    text = run.log_path.read_text()
    assert text == "" or text.endswith("\n")
    return [json.loads(written)["step"] for written in text.splitlines()]


def failing(number: int) -> Callable[..., Any]:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


# The log


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_lines_that_cannot_be_written_wait_and_are_written_in_order(run: Run, monkeypatch: Patch, number: int) -> None:
    run.log(line(1))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", failing(number))
        run.log(line(2))
        run.log(line(3))
        assert run.unwritten == 2
        assert steps(run) == [1]
        with pytest.raises(CheckpointError, match=r"log\.jsonl could not be written"):
            run.flush_log()
    run.log(line(4))
    assert run.unwritten == 0
    assert steps(run) == [1, 2, 3, 4]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows limits no file sizes")
def test_a_partly_written_line_is_truncated(run: Run) -> None:
    import resource

    run.log(line(1))
    size = run.log_path.stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 5, before[1]))  # a longer write is cut off after 5 bytes
    try:
        run.log(line(2))
        assert run.unwritten == 1
        assert run.log_path.stat().st_size == size
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    run.log(line(3))
    assert steps(run) == [1, 2, 3]


def test_a_partial_line_that_could_not_be_truncated_is_truncated_before_the_next(run: Run, monkeypatch: Patch) -> None:
    run.log(line(1))
    really_write = os.write
    with monkeypatch.context() as patch:
        written = []

        def half(descriptor: int, content: bytes) -> int:
            if written:
                raise OSError(errno.EIO, "Input/output error")
            written.append(content)
            return really_write(descriptor, bytes(content)[:-3])

        patch.setattr(os, "write", half)
        patch.setattr(os, "ftruncate", failing(errno.EIO))
        run.log(line(2))
    assert not run.log_path.read_bytes().endswith(b"\n")
    assert [record["step"] for record in run.read_log()] == [1, 2]
    run.log(line(3))
    assert steps(run) == [1, 2, 3]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no named pipes in folders")
@pytest.mark.parametrize(
    ("plant", "message"),
    [
        (
            lambda path: path.symlink_to(path.parent / "training.json"),
            "log.jsonl is a symbolic link, and minigpt writes",
        ),
        (lambda path: os.mkfifo(path), r"log\.jsonl could not be written \(no such device or address\)"),
    ],
    ids=["link", "named pipe"],
)
def test_lines_wait_while_the_log_is_no_regular_file(run: Run, plant: Callable[[Path], None], message: str) -> None:
    before = (run.directory / "training.json").read_bytes()
    plant(run.log_path)
    run.log(line(1))
    with pytest.raises(CheckpointError, match=message):
        run.flush_log()
    assert (run.directory / "training.json").read_bytes() == before
    run.log_path.unlink()
    run.flush_log()
    assert steps(run) == [1]


def test_an_error_on_close_keeps_the_line_waiting(run: Run, monkeypatch: Patch) -> None:
    really_close = os.close
    run.log(line(1))
    with monkeypatch.context() as patch:

        def close(descriptor: int) -> None:
            really_close(descriptor)
            raise OSError(errno.EDQUOT, "Disk quota exceeded")

        patch.setattr(os, "close", close)
        run.log(line(2))
        assert run.unwritten == 1
    assert [record["step"] for record in run.read_log()] == [1, 2]
    run.log(line(3))
    assert steps(run) == [1, 2, 3]


def test_a_flushed_log_is_synced(run: Run, monkeypatch: Patch) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    run.flush_log()
    assert synced == []  # there is no log yet
    run.log(line(1))
    run.flush_log()
    assert synced == [run.log_path.stat().st_ino, run.directory.stat().st_ino]  # and the name of the new file
    run.flush_log()
    assert synced[2:] == [run.log_path.stat().st_ino]


def test_truncating_the_log_drops_waiting_and_written_lines(run: Run, monkeypatch: Patch) -> None:
    run.log(line(1))
    run.log(line(2))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", failing(errno.ENOSPC))
        run.log({"step": 2, "validation_loss": 1.0})
        run.log(line(3))
    run.truncate_log(2, frozenset({"validation_loss"}))
    assert run.unwritten == 0
    assert list(run.read_log()) == [line(1), {"step": 2, "validation_loss": 1.0}]
    assert steps(run) == [1, 2]


# The lock


def test_a_folder_is_locked_by_one_run_at_a_time(run: Run) -> None:
    run.lock()
    run.lock()
    other = Run.open(run.directory)
    with pytest.raises(CheckpointError, match="is being trained"):
        other.lock()
    run.update(result=Result(step=7))
    run.unlock()
    other.lock()
    assert other.record.result == Result(step=7)  # written after it was opened
    run.unlock()  # no longer its own lock
    with pytest.raises(CheckpointError, match="is being trained"):
        run.lock()


def test_a_locked_run_can_be_read(run: Run) -> None:
    run.lock()
    assert find_checkpoint(None, run.directory.parent) == run.directory
    assert load_checkpoint(run.directory, "cpu").training == run.record.to_dict()
    transformers = pytest.importorskip("transformers")
    assert transformers.GPT2LMHeadModel.from_pretrained(run.directory).config.n_layer == 1


def test_locking_removes_the_temporary_files_of_a_killed_save(run: Run) -> None:
    run.save_last(LastState({"a": torch.zeros(1)}, {"step": 1}))
    left = [run.directory / ".model.safetensors.12345.tmp", run.last_path.parent / ".state.safetensors.12345.tmp"]
    for path in left:
        path.write_bytes(b"half a sa")
    before = run.last_path.read_bytes()
    run.lock()
    assert not any(path.exists() for path in left)
    assert run.last_path.read_bytes() == before
    assert load_checkpoint(run.directory, "cpu").model is not None


def test_a_run_killed_while_its_folder_was_created_does_not_exist(run: Run) -> None:
    half_made = run.directory.with_name(".other.12345.tmp")
    half_made.mkdir()
    time.sleep(0.01)
    (half_made / "training.json").write_text("{}")
    assert newest_run(runs_in(run.directory.parent)) == run.directory


def test_the_newest_run_is_the_one_started_or_resumed_last_whatever_the_clock_says(tmp_path: Path) -> None:
    day = 24 * 60 * 60
    for name in ("first", "second"):
        new_run(tmp_path / name, new_model(n_layer=1), record={"number": next_number(tmp_path)})
    set_clock(tmp_path / "first", time.time() + day)
    assert newest_run(runs_in(tmp_path)) == tmp_path / "second"
    Run.open(tmp_path / "first").update(number=next_number(tmp_path))  # as resuming does
    set_clock(tmp_path / "first", time.time() - day)
    assert newest_run(runs_in(tmp_path)) == tmp_path / "first"


@pytest.mark.parametrize("text", ["{", '{"format": 1}', '{"format": 2, "number": -1}'])
def test_the_time_of_its_files_decides_about_a_run_without_a_number(tmp_path: Path, text: str) -> None:
    for name in ("numbered", "other"):
        new_run(tmp_path / name, new_model(n_layer=1), record={"number": next_number(tmp_path)})
    (tmp_path / "other" / "training.json").write_text(text)
    for seconds, newest in ((-60, "numbered"), (60, "other")):
        set_clock(tmp_path / "other", time.time() + seconds)
        assert newest_run(runs_in(tmp_path)) == tmp_path / newest


def set_clock(folder: Path, seconds: float) -> None:
    """Gives the files of a run this time."""
    for path in (folder / "training.json", folder):
        os.utime(path, (seconds, seconds))


# The states


def test_the_last_state_and_the_one_before_the_cooldown_are_separate(run: Run) -> None:
    assert run.load_last() is None
    assert run.last_progress() is None
    assert run.load_before_cooldown() is None
    assert run.before_cooldown_progress() is None
    run.save_last(LastState({"weight": torch.tensor([1.0, 2.0])}, {"step": 9}))
    run.save_before_cooldown(LastState({"weight": torch.tensor([3.0])}, {"step": 5, "best_loss": 0.1 + 0.2}))
    last, before = run.load_last(), run.load_before_cooldown()
    assert last is not None
    assert before is not None
    assert last.tensors["weight"].tolist() == [1.0, 2.0]
    assert last.progress == run.last_progress() == {"step": 9}
    assert before.tensors["weight"].tolist() == [3.0]
    assert before.progress == run.before_cooldown_progress() == {"step": 5, "best_loss": 0.1 + 0.2}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_kill_while_a_line_is_written_keeps_the_lines_before_it(run: Run) -> None:
    run.log(line(1))
    child = os.fork()
    if child == 0:
        really_write = os.write

        def die(descriptor: int, content: bytes) -> int:
            really_write(descriptor, bytes(content)[:5])
            os.kill(os.getpid(), signal.SIGKILL)
            return 5

        os.write = die
        run.log(line(2))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    again = Run.open(run.directory)
    assert [record["step"] for record in again.read_log()] == [1]
    again.truncate_log(1, frozenset({"loss"}))
    again.log(line(2))
    assert steps(again) == [1, 2]


def test_a_run_that_is_removed_after_it_was_listed_is_not_the_newest(run: Run) -> None:
    gone = run.directory.with_name("gone")
    assert newest_run([run.directory, gone]) == run.directory
    assert newest_run([gone, run.directory]) == run.directory


def test_a_log_line_that_is_too_long_is_a_problem_and_later_lines_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minigpt.bounded_reading.MAX_LINE", 50)
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1}\n' + " " * 60 + "\n")
    problems: list[str] = []
    assert list(RunLog(path).read(problems)) == [{"step": 1}]
    expected = f"{path} cannot be read to its end: line 2 has more than 50 bytes; remove that line"
    assert problems == [expected]
    with pytest.raises(CheckpointError, match=re.escape(expected)):
        list(RunLog(path).read())


def test_a_log_that_fails_while_it_is_read_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(io.BytesIO):
        def readline(self, *_: Any) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("minigpt.storage.run_log.open_regular", lambda _: Failing())
    problems: list[str] = []
    assert list(RunLog(tmp_path / "log.jsonl").read(problems)) == []
    assert problems == [f"{tmp_path / 'log.jsonl'} could not be read (input/output error)"]
