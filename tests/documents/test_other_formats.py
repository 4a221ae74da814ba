"""What is said of formats that are not read, by the packages that read others."""

import gzip
import io
import zipfile
from pathlib import Path

import pytest

from minigpt.data.sources import scan
from minigpt.errors import DataError


def zipped(name: str = "a.txt", content: str = "text") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, content)
    return file.getvalue()


OTHER_FORMATS = {
    "a.csv": (b"id,text\n1,one\n", "is a table; write its column of texts to a .jsonl"),
    "a.tsv": (b"id\ttext\n1\tone\n", "is a table"),
    "a.xlsx": (zipped(), "is a table"),
    "captions": (b"\xef\xbb\xbfWEBVTT\n\n00:01.000 --> 00:02.000\nhi\n", "has WebVTT subtitles; rename it to .vtt"),
    "a.ass": (b"[Script Info]\n", "has subtitles"),
    "a.rtf": (rb"{\rtf1 text}", "is a document that is read only as .docx; save it as that or as plain text"),
    "a.odt": (zipped("mimetype"), "is a document that"),
    "a.doc": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "is a document that"),
    "a.azw3": (b"book" + bytes(600), "is a book that is read only as .epub"),
    "report": (b"%PDF-1.4\n", "is a PDF; rename it to .pdf"),
    "a.xls": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", r"is a table; write its column of texts to .*on each line$"),
    "b.ods": (zipped(), r"is a table; write its column of texts to .*on each line$"),
    "a.pptx": (zipped(), "is a presentation, which is not read; save it as .pdf or plain text"),
    "a.docm": (zipped(), "is a document that is read only as .docx"),
    "a.xml": (b"<a>text</a>", "is markup; save its text as plain text, or rename it to .txt to read it unchanged"),
    "a.ttml": (b"<tt/>", "has subtitles, which are read only as .srt and .vtt"),
    "a.sub": (b"{0}{25}Hello", "has subtitles"),
    "a.sbv": (b"0:00:01.000,0:00:02.000\nHello", "has subtitles"),
    "a.eml": (b"From: a@b\n\ntext", "is e-mail; save its text"),
    "a.ipynb": (b'{"cells": []}', "is a notebook; convert it, for example with jupyter nbconvert --to markdown"),
    "report.gz": (gzip.compress(b"%PDF-1.4\n"), "is a PDF; decompress and rename it to .pdf"),
    "page.html.gz": (gzip.compress(b"<p>text"), "is a compressed document; decompress it with gunzip"),
    "z.SRT.GZ": (gzip.compress(b"1\n"), "is a compressed document; decompress it with gunzip"),
    "y.epub.gz": (gzip.compress(zipped()), "is a compressed document; decompress it with gunzip"),
    "t.pdf.zst": (b"\x28\xb5\x2f\xfd", "is a compressed document; decompress it with unzstd"),
    "a.html": (gzip.compress(b"<p>text"), "is compressed; add .gz to its name and decompress it with gunzip"),
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
    what = "document" if name == "a.html" else "file"
    assert found.notes == (f"skipped a {what}: {alone.value}",)
