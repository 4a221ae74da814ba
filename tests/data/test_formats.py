"""Which files of a folder are text, and what is said of formats that are not read."""

import bz2
import io
import lzma
import os
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from minigpt.data.sources import scan
from minigpt.errors import DataError

GERMAN = "Die Frau für große Mühe — „gut“, sagte sie. Über Äpfel und Öl.\n" * 30


def zipped(name: str = "a.txt", content: str = "text") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, content)
    return file.getvalue()


def tarred() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("a.txt"))
    return file.getvalue()


OTHER_FORMATS = {
    "a.zip": (zipped(), "is an archive; unpack it and give the folder or its files"),
    "renamed.txt": (zipped(), "is an archive"),
    "a.tar.gz": (tarred(), "is an archive"),
    "a.txt.bz2": (bz2.compress(b"text"), "is compressed by bzip2; decompress it with bunzip2"),
    "a.txt.xz": (lzma.compress(b"text"), "is compressed by xz; decompress it with unxz"),
    "a.txt.lzma": (lzma.compress(b"text", lzma.FORMAT_ALONE), "is compressed by lzma; decompress it with unlzma"),
    "a.txt.Z": (b"\x1f\x9d\x90t", "is compressed by compress; decompress it with uncompress"),
    "a.txt.lz4": (b"\x04\x22\x4d\x18", "is compressed by lz4; decompress it with unlz4"),
    "tokens.npy": (b"\x93NUMPY\1\0", "has arrays of numbers, not text"),
}


@pytest.mark.parametrize("name", OTHER_FORMATS)
def test_a_format_that_is_not_read_is_named_with_what_to_do(tmp_path: Path, name: str) -> None:
    content, message = OTHER_FORMATS[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"{name} {message}") as alone:
        scan(tmp_path / name)
    with pytest.raises(DataError, match=rf"{name} {message}"):
        scan(str(tmp_path / "*"))
    (tmp_path / "other.txt").write_text("other")
    found = scan(tmp_path)
    assert [file.path.name for file in found.files] == ["other.txt"]
    assert found.notes == (f"skipped a file: {alone.value}",)


def test_the_other_files_that_are_skipped_are_named(tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("text")
    for name in ("a.zip", "b.zip", "d.zip"):
        (tmp_path / name).write_bytes(zipped())
    (note,) = scan(tmp_path).notes
    assert note.startswith(f"skipped a file (2 other files too: {tmp_path / 'b.zip'}, {tmp_path / 'd.zip'}): ")


DAMAGED = "läuft".encode() + b"\xe4\n" + GERMAN.encode()
NOT_UTF8 = {
    "cp1252": (GERMAN.encode("cp1252"), r"byte \d+ is 0x\w\w; it is probably Windows-1252: read it with --encoding"),
    "cp1251": ("Привет, мир\n".encode("cp1251") * 30, "name its encoding with --encoding"),
    "shift_jis": ("こんにちは\n".encode("shift_jis") * 30, "name its encoding with --encoding"),
    "damaged": (DAMAGED, "byte 6 is 0xe4"),
    "utf-16": (GERMAN.encode("utf-16"), "it is probably UTF-16: read it with --encoding utf-16"),
    "utf-16-le": (GERMAN.encode("utf-16-le"), "it is probably UTF-16-LE: read it with --encoding utf-16-le"),
}


@pytest.mark.parametrize("name", ["notes", "b.jsonl"])
@pytest.mark.parametrize("kind", NOT_UTF8)
def test_a_text_in_a_folder_that_is_not_utf8_is_the_error_of_the_file_itself(
    tmp_path: Path, name: str, kind: str
) -> None:
    content, message = NOT_UTF8[kind]
    (tmp_path / "a.txt").write_text(GERMAN, encoding="utf-8")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as alone:
        scan(tmp_path / name)
    for source in (tmp_path, str(tmp_path / "*")):
        with pytest.raises(DataError, match=rf"{name} is not UTF-8.* {message}") as error:
            scan(source)
        assert str(error.value) == str(alone.value)


def test_zero_bytes_in_a_text_of_a_folder_are_an_error_too(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(GERMAN, encoding="utf-8")
    (tmp_path / "b.md").write_bytes(GERMAN.encode() + b"\0")
    with pytest.raises(DataError, match=r"b\.md is not text: it contains zero bytes"):
        scan(tmp_path)


BINARIES = {
    "a.png": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    "tokens.bin": (b"\x07\x00\x13\x00" * 400),
    "random": os.urandom(5000),
    "random.dat": os.urandom(5000).replace(b"\0", b"\1"),
    "image": b"\xff\xd8\xff\xe0\0\x10JFIF",
}


@pytest.mark.parametrize(
    "options", [{}, {"encoding": "cp1252"}, {"encoding": "utf-16"}, {"encoding_errors": "replace"}]
)
def test_binaries_in_a_folder_are_skipped_with_a_list(tmp_path: Path, options: dict[str, Any]) -> None:
    (tmp_path / "a.txt").write_text("plain")
    for name, content in BINARIES.items():
        (tmp_path / name).write_bytes(content)
    found = scan(tmp_path, **options)
    assert [file.path.name for file in found.files] == ["a.txt"]
    assert sorted(found.skipped) == sorted(str(tmp_path / name) for name in BINARIES)
