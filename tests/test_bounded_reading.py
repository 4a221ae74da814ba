"""Reading files that a stranger may have written."""

import io
import json
import os
from pathlib import Path

import pytest

from minigpt import bounded_reading
from minigpt.bounded_reading import (
    MAX_DEPTH,
    bounded_lines,
    open_regular,
    parse_json,
    read_json_unicode,
    read_json_value,
    read_regular,
)
from minigpt.cli.prompts import read_prompts
from minigpt.config import ReadingConfig
from minigpt.data.sources import scan
from minigpt.errors import DataError


@pytest.mark.parametrize(
    "value",
    [{"a": [1, 2.5, None, "ß\n"]}, "[" * 100, {"[{": '"]\\'}, ['\\"[[[[' * 20_000], [[0]] * 50_000],
    ids=["plain", "brackets in a string", "brackets in a key", "escaped quotes in a long text", "many lists"],
)  # fmt: skip
def test_json_is_read_as_by_the_standard_library(value: object) -> None:
    assert parse_json(json.dumps(value)) == value


def test_nesting_is_limited() -> None:
    assert parse_json("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    for deep in ("[" * (MAX_DEPTH + 1), '{"a":' * 200_000, "[" * 200_000):
        with pytest.raises(ValueError, match="nested more than 64 levels deep"):
            parse_json(deep)


@pytest.mark.parametrize("text", ['["' + '[[\\"' * 500, '["' + "[" * 100 + "\\"], ids=["quotes", "backslash"])
def test_a_string_without_an_end_is_one_string_whatever_it_contains(text: str) -> None:
    assert bounded_reading._STRINGS.sub("", text) == "["
    with pytest.raises(ValueError, match="Unterminated string"):
        parse_json(text)


def test_the_number_of_values_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_reading, "MAX_VALUES", 1000)
    monkeypatch.setattr(bounded_reading, "_SMALL", 10)
    assert parse_json(json.dumps(["," * 5000])) == ["," * 5000]
    with pytest.raises(ValueError, match="it has 1,002 values; the maximum is 1,000"):
        parse_json(json.dumps([0] * 1001))


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_regular(path, 5) == b"12345"
    with pytest.raises(OSError, match="it has 5 bytes, and must have at most 4"):
        read_regular(path, 4)


def test_a_byte_order_mark_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text("[1]", encoding="utf-8-sig")
    assert read_json_value(path) == [1]


@pytest.mark.parametrize("text", [r'["\ud83d\ude00"]', r'["\\ud800"]', '["😀", "ß"]'])
def test_whole_characters_are_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "file.json").write_text(text, encoding="utf-8")
    assert read_json_unicode(tmp_path / "file.json") == json.loads(text)


@pytest.mark.parametrize("text", [r'["\ud800"]', r'{"\uDFff": 1}', r'["\ud83d\ude00", ["a\uDBFFb"]]'])
def test_half_of_a_character_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "file.json").write_text(text)
    with pytest.raises(ValueError, match=r"it has half of a surrogate pair \(\\ud[0-9a-f]{3}\), which is not a"):
        read_json_unicode(tmp_path / "file.json")
    assert read_json_value(tmp_path / "file.json") == json.loads(text)  # the name of a file that is not UTF-8


def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(OSError, match="it is a pipe or a device, not a regular file"):
            open_regular(path)
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)


def test_a_long_line_is_refused_with_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_reading, "MAX_LINE", 4)
    assert list(bounded_lines(io.BytesIO(b"abc\nabcd"))) == [b"abc\n", b"abcd"]
    with pytest.raises(ValueError, match="line 2 has more than 4 bytes"):
        list(bounded_lines(io.BytesIO(b"abc\nabcd\n")))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="there is no /proc")
def test_a_file_of_the_kernel_is_refused(tmp_path: Path) -> None:
    """A read of /proc/kmsg never ends, and takes away what others should read."""
    link = tmp_path / "link.txt"
    link.symlink_to("/proc/self/status")
    for path in (Path("/proc/self/status"), link):
        with pytest.raises(OSError, match="not a regular file"):
            open_regular(path)
        with pytest.raises(DataError, match="is a file of the kernel, not a text"):
            scan(path)
        with pytest.raises(DataError, match="is a file of the kernel, not a text"):
            read_prompts(None, path, "whole", ReadingConfig())
    (tmp_path / "a.txt").write_text("text")
    assert [file.path.name for file in scan(tmp_path).files] == ["a.txt"]
