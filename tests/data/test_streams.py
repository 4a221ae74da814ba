"""Texts as datasets on the hub have them: files compressed by zstd, and tables in Parquet's format."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from minigpt import optional_packages
from minigpt.data.sources import scan
from minigpt.errors import DataError, MissingPackageError
from minigpt.run_options import Request
from minigpt.runs.find_run import run_name

ROWS = [{"text": f"document {number} " * 3, "id": number} for number in range(700)]


def zstd() -> Any:
    if sys.version_info >= (3, 14):
        from compression import zstd

        return zstd
    return pytest.importorskip("backports.zstd")


def parquet_file(path: Path, columns: dict[str, list[Any]], **options: Any) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table(columns), path, **options)
    return path


def documents(*paths: Path, **options: str) -> list[str]:
    text = "".join(piece + "\0" * ends for piece, ends in scan(paths, **options).pieces())
    return text.split("\0")[:-1]


def json_lines(rows: list[dict[str, Any]] = ROWS) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@pytest.mark.parametrize("name", ["web.jsonl.zst", "web.txt.zst"])
def test_a_zst_file_is_read_as_if_it_was_decompressed(tmp_path: Path, name: str) -> None:
    plain = tmp_path / name.removesuffix(".zst")
    plain.write_bytes(json_lines())
    half = len(json_lines()) // 2
    frames = [json_lines()[:half], json_lines()[half:]]  # a file may have several, as pzstd and cat make them
    path = tmp_path / name
    path.write_bytes(b"".join(map(zstd().compress, frames)))
    assert documents(path) == documents(plain)
    assert scan([path]).content_hash == scan([plain]).content_hash
    assert run_name(Request(sources=(str(path),))) == "web"


@pytest.mark.parametrize("cut", [3, 5, 40, 700, -1])
def test_a_truncated_zst_file_is_an_error_and_not_a_shorter_text(tmp_path: Path, cut: int) -> None:
    numbers = random.Random(0)
    text = json_lines([{"text": str(numbers.random())} for _ in range(10_000)])
    path = tmp_path / "web.jsonl.zst"
    path.write_bytes(zstd().compress(text)[:cut])
    with pytest.raises(DataError, match=r"web\.jsonl\.zst is truncated|is not JSON|is not UTF-8"):
        scan([path])


def test_a_damaged_zst_file_is_an_error(tmp_path: Path) -> None:
    options = {zstd().CompressionParameter.checksum_flag: 1}
    whole = bytearray(zstd().compress(json_lines(), options=options))
    whole[-1] ^= 1
    path = tmp_path / "web.jsonl.zst"
    path.write_bytes(whole)
    with pytest.raises(DataError, match=r"^.*web\.jsonl\.zst cannot be decompressed by zstd \(.*[Cc]hecksum"):
        scan([path])


def test_a_zst_file_that_needs_gigabytes_of_memory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "web.jsonl.zst"
    with zstd().ZstdFile(path, "w") as file:
        file.write(json_lines())
    header = bytearray(path.read_bytes())
    assert not header[4] & 0x20  # not a single segment, so that the next byte is the size of the window
    header[5] = (31 - 10) << 3
    path.write_bytes(header)
    with pytest.raises(DataError, match=r"cannot be decompressed by zstd \(.*too much memory"):
        scan([path])


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sys.version_info >= (3, 14):
        pytest.skip("this Python decompresses zstd")
    monkeypatch.setitem(sys.modules, "backports.zstd", None)
    monkeypatch.setattr(optional_packages, "_exists", lambda module: module != "backports.zstd")
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd")
    needs = r"reading .*a\.jsonl\.zst, .*needs backports\.zstd, which is not installed"
    with pytest.raises(MissingPackageError, match=needs):
        scan([path])
    with pytest.raises(MissingPackageError, match=r"backports\.zstd"):
        scan([tmp_path])


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kB on Linux")
def test_a_file_that_decompresses_to_gigabytes_takes_little_memory(tmp_path: Path) -> None:
    """700 MB in one line, which is refused."""
    path = tmp_path / "bomb.jsonl.zst"
    with zstd().ZstdFile(path, "w", level=1) as file:
        for _ in range(700):
            file.write(b"x" * 2**20)
    program = (
        "import resource, sys\n"
        "from minigpt.data.sources import scan\n"
        "from minigpt.errors import DataError\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n    print(scan(sys.argv[1]).text_bytes)\n"
        "except DataError as error:\n    print(error)\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    answer, megabytes = done.stdout.splitlines()
    assert "line 1 has more than" in answer
    assert int(megabytes) < 200
