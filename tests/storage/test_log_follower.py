"""A log is followed while it is written: added lines, lines in the making, logs that are cut back or moved."""

import json
from pathlib import Path

from minigpt.storage.log_follower import LogFollower
from minigpt.storage.run_log import RunLog


def add(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_only_the_lines_since_the_last_reading_are_returned(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    follower = LogFollower(lambda: path)
    assert follower.read() == ([], False)  # before the log exists
    add(path, '{"step": 1}\n{"step": 2}\n')
    assert follower.read() == ([{"step": 1}, {"step": 2}], False)
    assert follower.read() == ([], False)
    add(path, '{"step": 3}\n')
    assert follower.read() == ([{"step": 3}], False)


def test_a_line_that_is_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    follower = LogFollower(lambda: path)
    add(path, '{"step": 1}\n{"st')
    assert follower.read() == ([{"step": 1}], False)
    add(path, 'ep": 2}\n')
    assert follower.read() == ([{"step": 2}], False)


def test_a_log_that_is_cut_back_begins_again(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "log.jsonl")
    for step in range(1, 5):
        log.append({"step": step})
    follower = LogFollower(lambda: log.path)
    follower.read()
    log.filter(lambda line: line["step"] <= 2)
    log.append({"step": 3, "loss": 1.0})
    log.append({"step": 4, "loss": 1.0})
    log.append({"step": 5, "loss": 1.0})  # longer than before
    lines, restarted = follower.read()
    assert restarted
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]


def test_a_log_that_becomes_shorter_begins_again(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n')
    follower = LogFollower(lambda: path)
    follower.read()
    path.write_text('{"step": 9}\n')  # the same file
    assert follower.read() == ([{"step": 9}], True)


def test_a_log_that_moves_to_another_folder_begins_again(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"{number}.jsonl").write_text(json.dumps({"step": number}) + "\n")
    paths = iter([tmp_path / "1.jsonl", tmp_path / "2.jsonl"])
    follower = LogFollower(lambda: next(paths))
    assert follower.read() == ([{"step": 1}], False)
    assert follower.read() == ([{"step": 2}], True)


def test_damaged_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"step": 1}\nnonsense\n\xff\n{"step": 2, "loss": "low"}\n{"step": 3}\n')
    assert LogFollower(lambda: path).read() == ([{"step": 1}, {"step": 3}], False)
