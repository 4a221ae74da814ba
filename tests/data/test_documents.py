"""Documents: the text of EPUB, HTML, Word, PDF and subtitles; damaged and hostile ones end in one sentence."""

import io
import random
import zipfile
from pathlib import Path

import docx
import pytest
from docx.oxml import parse_xml
from docx.oxml.ns import nsdecls

from minigpt import optional_packages
from minigpt.data.documents import limits, read
from minigpt.data.documents.read import read_document
from minigpt.data.sources import scan
from minigpt.errors import DataError, MissingPackageError

HTML = """<!DOCTYPE html><html><head><title>No</title><style>p {}</style></head><body>
<nav>Menu</nav><h1>Title</h1><p>One <b>bold</b>
word&nbsp;&amp; more.<br>Next</p><script>x < 1</script><ul><li>a</li><li>b</li></ul>
<table><tr><td>1</td><td>2</td></tr><tr><td>3</td><td>4</td></tr></table><pre>  kept
   as is</pre><!-- no --><div>Café</div></body></html>"""
HTML_TEXT = "Title\n\nOne bold word\xa0& more.\nNext\n\na\nb\n\n1 2\n3 4\n\n  kept\n   as is\n\nCafé"
SRT = "1\r\n00:00:01,000 --> 00:00:02,000\r\n<i>I think\r\nwe should go.</i>\r\n\r\n" + (
    "2\r\n00:00:03,000 --> 00:00:04,000\r\n{\\an8}- No.\r\n- Why?\r\n\r\n"
)
CONTAINER = '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>{}</rootfiles></container>'
PACKAGE = """<?xml version="1.0"?><package xmlns="http://www.idpf.org/2007/opf"><manifest>
<item id="b" href="text/two%20b.xhtml" media-type="application/xhtml+xml"/>
<item id="a" href="text/one.xhtml" media-type="application/xhtml+xml"/>
<item id="n" href="nav.xhtml" properties="nav" media-type="application/xhtml+xml"/></manifest>
<spine><itemref idref="n"/><itemref idref="a"/><itemref idref="b"/></spine></package>"""


def page(body: str) -> str:
    return (
        '<?xml version="1.0" encoding="utf-8"?><html xmlns="http://www.w3.org/1999/xhtml"><head><title/></head>'
        f"<body>{body}</body></html>"
    )


def archive(members: dict[str, str | bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as file:
        for name, text in members.items():
            file.writestr(name, text)
    return content.getvalue()


def epub(**more: str) -> bytes:
    return archive(
        {
            "mimetype": "application/epub+zip",
            "META-INF/container.xml": CONTAINER.format('<rootfile full-path="OEBPS/book.opf"/>'),
            "OEBPS/book.opf": PACKAGE,
            "OEBPS/nav.xhtml": page("<p>Contents</p>"),
            "OEBPS/text/one.xhtml": page("<h2>I</h2><p>It was — cold.</p>"),
            "OEBPS/text/two b.xhtml": page("<p>The end.</p>"),
            **{name.replace("__", "/").replace("_", "."): text for name, text in more.items()},
        }
    )


def word() -> bytes:
    document = docx.Document()
    document.add_heading("Title")
    document.add_paragraph("One Ä.")
    table = document.add_table(rows=2, cols=2)
    for index, cell in enumerate(cell for row in table.rows for cell in row.cells):
        cell.text = f"c{index}"
    document.add_paragraph("After.")
    content = io.BytesIO()
    document.save(content)
    return content.getvalue()


def pdf(text: str = "Hello, PDF", pages: int = 2) -> bytes:
    """A PDF of Helvetica text, written by hand."""
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(pages))
    objects = ["<</Type/Catalog/Pages 2 0 R>>", f"<</Type/Pages/Kids[{kids}]/Count {pages}>>"]
    objects.append("<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>")
    for number in range(pages):
        stream = f"BT /F1 12 Tf 72 700 Td ({text} {number + 1}) Tj ET" if text else ""
        font = "<</Font<</F1 3 0 R>>>>"
        objects.append(f"<</Type/Page/Parent 2 0 R/Resources{font}/Contents {5 + 2 * number} 0 R>>")
        objects.append(f"<</Length {len(stream)}>>\nstream\n{stream}\nendstream")
    content, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(content))
        content += f"{number} 0 obj\n{body}\nendobj\n".encode()
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    start = len(content)
    content += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}".encode()
    return content + f"trailer<</Size {len(objects) + 1}/Root 1 0 R>>\nstartxref\n{start}\n%%EOF".encode()


DOCUMENTS = {
    "a.html": (HTML.encode(), HTML_TEXT),
    "a.epub": (epub(), "I\n\nIt was — cold.\n\nThe end."),
    "a.docx": (word(), "Title\nOne Ä.\nc0\tc1\nc2\tc3\nAfter."),
    "a.pdf": (pdf(), "Hello, PDF 1\nHello, PDF 2"),
    "a.srt": (SRT.encode(), "I think we should go.\n- No.\n- Why?"),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_text_of_a_document_is_read_without_its_markup(tmp_path: Path, name: str) -> None:
    content, text = DOCUMENTS[name]
    (tmp_path / name).write_bytes(content)
    assert read_document(tmp_path / name, name) == text
    found = scan(tmp_path / name)
    assert "".join(piece for piece, _ in found.pieces()) == text
    assert found.files[0].name == str(tmp_path / name)


WORD_XML = (
    "<w:p><w:r><w:t>a</w:t></w:r><w:ins><w:r><w:t>b</w:t><w:tab/></w:r></w:ins><w:del><w:r><w:delText>no</w:delText>"
    "</w:r></w:del><w:sdt><w:sdtContent><w:r><w:t>c</w:t></w:r></w:sdtContent></w:sdt></w:p>",
    "<w:sdt><w:sdtContent><w:p><w:r><w:t>d</w:t><w:br/><w:t>e</w:t></w:r></w:p></w:sdtContent></w:sdt>",
    "<w:tbl><w:tr><w:tc><w:p><w:r><w:t>f</w:t></w:r></w:p><w:tbl><w:tr><w:tc><w:p><w:r><w:t>g</w:t></w:r></w:p></w:tc>"
    "</w:tr></w:tbl></w:tc><w:sdt><w:sdtContent><w:tc><w:p><w:r><w:t>h</w:t></w:r></w:p></w:tc></w:sdtContent></w:sdt>"
    "</w:tr></w:tbl>",
)


def test_a_word_document_has_each_of_its_texts_once(tmp_path: Path) -> None:
    document = docx.Document()
    table = document.add_table(rows=2, cols=3)
    for index, cell in enumerate(cell for row in table.rows for cell in row.cells):
        cell.text = f"c{index}"
    table.cell(0, 0).merge(table.cell(0, 1))
    table.cell(0, 2).merge(table.cell(1, 2))
    body = document.element.body
    for xml in WORD_XML:
        body.insert(len(body) - 1, parse_xml(xml.replace(">", f" {nsdecls('w')}>", 1)))  # before the page settings
    document.save(str(tmp_path / "a.docx"))
    lines = ["c0 c1\tc2 c5", "c3\tc4\t", "ab\tc", "d", "e", "f g\th"]
    assert read_document(tmp_path / "a.docx", "a.docx").split("\n") == lines


def test_a_folder_and_a_glob_of_documents_are_read_with_the_text_beside_them(tmp_path: Path) -> None:
    for name, (content, _) in DOCUMENTS.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "b.txt").write_text("plain")
    (tmp_path / "c.pdf").write_bytes(b"%PDF-1.4 nothing")
    found = scan([tmp_path, tmp_path / "a.epub"])
    assert found.n_documents == 6  # the EPUB once
    assert len(found.notes) == 1
    assert "skipped a document: " in found.notes[0]
    assert "c.pdf is damaged" in found.notes[0]
    assert scan(str(tmp_path / "a.*")).n_documents == 5


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("<p>Café".encode("utf-16"), None),
        (b'<meta charset="iso-8859-1"><p>Caf\xe9', "Café"),
        (b'<meta charset="iso-8859-1"><p>It\x92s', "It’s"),  # which browsers read as windows-1252
        ('<meta charset="gb2312"><p>镕'.encode("gbk"), "镕"),
        ("<?xml version='1.0' encoding='windows-1251'?><p>Привет".encode("cp1251"), "Привет"),
        (b"<p>A na\xefve caf\xe9", None),
        (b"", ""),
        (b"\xef\xbb\xbf<p>Hi", "Hi"),
    ],
)
def test_a_page_has_the_encoding_that_it_declares(tmp_path: Path, content: bytes, text: str | None) -> None:
    path = tmp_path / "a.html"
    path.write_bytes(content)
    if text is not None:
        assert read_document(path, "a.html") == text
        return
    with pytest.raises(DataError, match=r"a\.html is not UTF-8; it is probably (UTF-16|Latin-1): read it with --enc"):
        read_document(path, "a.html")
    encoding = "utf-16" if content[:2] == b"\xff\xfe" else "latin-1"
    assert "Caf" in read_document(path, "a.html", encoding).title()


def test_characters_are_replaced_in_the_encoding_that_a_page_declares(tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    path.write_bytes('<meta charset="shift_jis"><p>日本語'.encode("cp932") + b"\x81")
    assert read_document(path, "a.html", errors="replace").startswith("日本語")


def test_without_its_package_a_document_is_one_line_and_a_folder_is_read_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.pdf").write_bytes(pdf())
    monkeypatch.setattr(optional_packages, "_exists", lambda name: False)
    with pytest.raises(MissingPackageError, match=r"needs pypdf, which is not installed; run: .*pypdf>=5") as error:
        scan(tmp_path)
    assert "\n" not in str(error.value)
    (tmp_path / "b.txt").write_text("plain")
    found = scan(tmp_path)
    assert (found.n_documents, found.skipped) == (1, ())
    assert "a.pdf, a PDF, needs pypdf" in found.notes[0]


def bomb(name: str) -> bytes:
    """A small zip file whose member has 100 MB."""
    members = {
        "META-INF/container.xml": CONTAINER.format('<rootfile full-path="a.opf"/>'),
        "a.opf": '<package><manifest><item id="a" href="big"/></manifest><spine><itemref idref="a"/></spine></package>',
    }
    return archive({**members, name: b" " * 100_000_000})


LAUGHS = "<!DOCTYPE a [<!ENTITY b 'ha'>" + "".join(
    f"<!ENTITY {chr(99 + i)} '{f'&{chr(98 + i)};' * 10}'>" for i in range(9)
)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.epub", b"not a zip file", "is damaged: it is not an EPUB"),
        ("a.epub", archive({"a": "b"}), "is damaged: it has no 'META-INF/container.xml'"),
        ("a.epub", bomb("big"), "has a part of 100,000,000 bytes; the maximum is 67,108,864"),
        ("a.epub", epub(OEBPS__book_opf="<package>"), "is damaged, or not an EPUB"),
        (
            "a.epub",
            epub(META_INF="", OEBPS__book_opf=LAUGHS + "]><package><item id='&k;'/></package>"),
            "is damaged, or not an EPUB",
        ),
        ("a.docx", archive({"word/document.xml": "<a/>"}), "is damaged, or not a Word document"),
        ("a.docx", archive({"word/document.xml": "<a/>" * 600_000}), "has more than 500,000 tags"),
        ("a.docx", bomb("word/document.xml"), "has a part of 100,000,000 bytes"),
        ("a.html", b"<a>" * 600_000, "has more than 500,000 tags"),
        ("a.pdf", b"%PDF-1.7\n" + b"[" * 100_000, "is damaged, or not a PDF"),
        ("a.pdf", pdf(""), "has no text; if its pages are pictures"),
        ("a.srt", b"no subtitles at all", "is damaged, or not an SRT file"),
    ],
)
def test_a_damaged_or_hostile_document_is_one_sentence(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError) as error:
        scan(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_an_encrypted_chapter_is_refused_and_an_encrypted_font_is_not(tmp_path: Path) -> None:
    def encrypted(member: str) -> Path:
        entry = f'<encryption><CipherReference xmlns="http://www.w3.org/2001/04/xmlenc#" URI="{member}"/></encryption>'
        path = tmp_path / "a.epub"
        content = archive({"META-INF/encryption.xml": entry})
        with zipfile.ZipFile(io.BytesIO(epub())) as book:
            members: dict[str, str | bytes] = {name: book.read(name) for name in book.namelist()}
        with zipfile.ZipFile(io.BytesIO(content)) as more:
            members |= {name: more.read(name) for name in more.namelist()}
        path.write_bytes(archive(members))
        return path

    assert "cold" in read_document(encrypted("OEBPS/font.otf"), "a.epub")
    with pytest.raises(DataError, match=r"a\.epub is encrypted \(digital rights management\)"):
        read_document(encrypted("OEBPS/text/one.xhtml"), "a.epub")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_randomly_damaged_document_is_read_or_is_one_sentence(tmp_path: Path, name: str) -> None:
    generator = random.Random(name)
    path = tmp_path / name
    for _ in range(40):
        content = bytearray(DOCUMENTS[name][0])
        for _ in range(generator.choice((1, 3, 30))):
            content[generator.randrange(len(content))] = generator.randrange(256)
        path.write_bytes(content[: generator.choice((len(content), generator.randrange(len(content))))])
        sentence = ""
        try:
            read_document(path, name)
        except DataError as error:
            sentence = str(error)
        assert not sentence or sentence.startswith(name)
        assert "\n" not in sentence


def test_a_document_above_the_limit_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "MAX_FILE", 10)
    (tmp_path / "a.html").write_bytes(HTML.encode())
    with pytest.raises(DataError, match="and must have at most 10"):
        read_document(tmp_path / "a.html", "a.html")
    assert limits.MAX_FILE > 10
