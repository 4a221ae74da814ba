"""Documents: the text of EPUB, HTML, Word, PDF and subtitles; damaged and hostile ones end in one sentence."""

import io
import re
import sys
import zipfile
from pathlib import Path

import docx
import pytest
from docx.oxml import parse_xml
from docx.oxml.ns import nsdecls

from minigpt import optional_packages
from minigpt.corpus_report.issues import find_issues
from minigpt.data.sources import scan
from minigpt.documents import html, limited_reading, limits, read
from minigpt.documents import pdf as pdf_module
from minigpt.documents.read import read_document
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
VTT = (
    "\ufeffWEBVTT Kind: captions\nLanguage: en\n\nNOTE\nnot this\n00:02 --> no\n\nSTYLE\n::cue { color: red }\n\n"
    "the first\n00:01.000 --> 00:02.000 align:start\n<v Ann>I think\nwe should <c.x>go</c> &amp; see.\n\n"
    "01:00:03.000 --> 01:00:04.000\n- No.\n- Why?\n\n3\n01:00:05.000-->01:00:06.000\n<ruby>希<rt>のぞ</rt></ruby>も"
)
CONTAINER = '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>{}</rootfiles></container>'
PACKAGE = """<?xml version="1.0"?><package xmlns="http://www.idpf.org/2007/opf"><manifest>
<item id="b" href="text/two%20b.xhtml" media-type="application/xhtml+xml"/>
<item id="a" href="text/one.xhtml#start" media-type="application/xhtml+xml"/>
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


def epub(**more: str | bytes) -> bytes:
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
    "a.vtt": (VTT.encode(), "I think we should go & see.\n- No.\n- Why?\n希も"),
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


NAMESPACES = {
    "w": "http://schemas.openxmlformats.org/wordprocessingml/2006/main",
    "m": "http://schemas.openxmlformats.org/officeDocument/2006/math",
    "mc": "http://schemas.openxmlformats.org/markup-compatibility/2006",
    "v": "urn:schemas-microsoft-com:vml",
    "wps": "http://schemas.microsoft.com/office/word/2010/wordprocessingShape",
    "w16se": "http://schemas.microsoft.com/office/word/2015/wordml/symex",
}
RELATIONSHIPS = "http://schemas.openxmlformats.org/package/2006/relationships"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"


def word_file(body: str, main: str = "word/document.xml", **parts: str) -> bytes:
    """A Word document with this XML in its body, and other parts such as `styles`."""

    def relationships(targets: dict[str, str]) -> str:
        entries = "".join(f'<Relationship Type="{OFFICE}/{kind}" Target="{path}"/>' for kind, path in targets.items())
        return f'<Relationships xmlns="{RELATIONSHIPS}">{entries}</Relationships>'

    def xml(root: str, content: str) -> str:
        names = " ".join(f'xmlns:{prefix}="{uri}"' for prefix, uri in NAMESPACES.items())
        return f"<w:{root} {names}>{content}</w:{root}>"

    folder, _, name = main.rpartition("/")
    return archive(
        {
            "_rels/.rels": relationships({"officeDocument": f"/{main}"}),
            f"{folder}/_rels/{name}.rels": relationships({part: f"{part}.xml" for part in parts}),
            main: xml("document", f"<w:body>{body}</w:body>"),
            **{f"{folder}/{part}.xml": xml(part, content) for part, content in parts.items()},
        }
    )


def p(*runs: str, properties: str = "") -> str:
    return f"<w:p>{properties and f'<w:pPr>{properties}</w:pPr>'}{''.join(runs)}</w:p>"


def t(text: str) -> str:
    return f'<w:t xml:space="preserve">{text}</w:t>'


def r(*content: str, properties: str = "") -> str:
    """A run of these elements; what is no element is text."""
    inside = "".join(each if each.startswith("<") else t(each) for each in content)
    return f"<w:r>{properties and f'<w:rPr>{properties}</w:rPr>'}{inside}</w:r>"


def choice(first: str, fallback: str) -> str:
    return (
        f'<mc:AlternateContent><mc:Choice Requires="w16se">{first}</mc:Choice><mc:Fallback>{fallback}</mc:Fallback>'
        "</mc:AlternateContent>"
    )


def box(text: str) -> str:
    return f"<w:txbxContent>{p(r(text))}</w:txbxContent>"


def field(instruction: str, result: str) -> str:
    marks = {kind: f'<w:r><w:fldChar w:fldCharType="{kind}"/></w:r>' for kind in ("begin", "separate", "end")}
    return f"{marks['begin']}{instruction}{marks['separate']}{result}{marks['end']}"


def instruction(text: str) -> str:
    return f"<w:r><w:instrText>{text}</w:instrText></w:r>"


def m(name: str, *content: str) -> str:
    """An element of a formula; what is no element is its text."""
    return f"<m:{name}>{''.join(x if x.startswith('<') else f'<m:r><m:t>{x}</m:t></m:r>' for x in content)}</m:{name}>"


CASES = {
    "an emoji with an alternative": (
        p(r("Happy "), r(choice('<w16se:symEx w16se:char="1F60A"/>', t("😊"))), r(" day")),
        "Happy 😊 day",
    ),
    "runs with an alternative": (p(choice(r("new"), r("old")), r(" rest")), "new rest"),
    "paragraphs with an alternative": (choice(p(r("new")), p(r("old"))), "new"),
    "ruby": (
        p(r(f"<w:ruby><w:rt>{r('のぞ')}</w:rt><w:rubyBase>{r('希')}</w:rubyBase></w:ruby>"), r("美")),
        "希美",
    ),
    "a text box": (
        p(r(choice(f"<w:drawing><wps:txbx>{box('In')}</wps:txbx></w:drawing>", f"<w:pict>{box('In')}</w:pict>"), "a")),
        "a\nIn",
    ),
    "an old text box": (p(r(f"<w:pict><v:textbox>{box('In')}</v:textbox></w:pict>"), r("a")), "a\nIn"),
    "a formula": (
        p(
            r("So "),
            m("oMath", "E=m", m("sSup", m("e", "c"), m("sup", "2")), "+", m("f", m("num", "a+b"), m("den", "2"))),
        ),
        "So E=mc^2+(a+b)/2",
    ),
    "a formula with signs in its properties": (
        p(
            m("oMath", "f", m("d", m("e", "x"), m("e", "y")), "=", m("rad", m("e", "z")))
            + m("nary", '<m:naryPr><m:chr m:val="∑"/></m:naryPr>', m("sub", "i=1"), m("sup", "n"), m("e", "i"))
        ),
        "f(x|y)=√z∑_(i=1)^n i",
    ),
    "hidden text": (p(r("no", properties="<w:vanish/>"), r("a", properties='<w:vanish w:val="0"/>')), "a"),
    "text hidden by a style": (
        p(r("no"), r("a", properties='<w:vanish w:val="false"/>'), properties='<w:pStyle w:val="Secret"/>')
        + p(r("no", properties='<w:rStyle w:val="Hidden"/>'), r("b"))
        + p(r("c", properties='<w:rStyle w:val="Hidden"/>'), properties='<w:pStyle w:val="Secret"/>')  # both: shown
        + p(r("d"), properties='<w:pStyle w:val="Shown"/>'),
        "ab\ncd",  # the ends of the paragraphs are hidden, too
    ),
    "a paragraph whose end is hidden": (
        p(r("Run-in. "), properties="<w:rPr><w:vanish/></w:rPr>") + p(r("a")),
        "Run-in. a",
    ),
    "a deleted end of a paragraph": (p(r("a "), properties='<w:rPr><w:del w:id="1"/></w:rPr>') + p(r("b")), "a b"),
    "a large initial": (p(r("O"), properties='<w:framePr w:dropCap="drop"/>') + p(r("nce")), "Once"),
    "symbols": (
        p(
            r('<w:sym w:font="Wingdings" w:char="F0E0"/>', '<w:sym w:font="Symbol" w:char="F061"/>'),
            r('<w:sym w:font="Arial" w:char="2192"/>', '<w:sym w:font="Webdings" w:char="F021"/>'),
            r("\uf062", properties='<w:rFonts w:ascii="Symbol"/>'),
        ),
        "→α→\ufffdβ",
    ),
    "hyphens and breaks": (
        p(r("a", "<w:noBreakHyphen/>", "b", "<w:softHyphen/>", "c", '<w:br w:type="page"/>'))
        + p(r('<w:br w:type="page"/>'), r("d\xade", "<w:cr/>", "f")),
        "a-bc\nde\nf",
    ),
    "revisions": (
        p(f"<w:ins>{r('a')}</w:ins><w:del>{r('<w:delText>no</w:delText>')}</w:del><w:moveFrom>{r('no')}</w:moveFrom>")
        + p(f"<w:moveTo>{r('b', properties='<w:rPrChange><w:rPr><w:vanish/></w:rPr></w:rPrChange>')}</w:moveTo>"),
        "a\nb",
    ),
    "a deleted row and a deleted cell": (
        f"<w:tbl><w:tr><w:trPr><w:del/></w:trPr><w:tc>{p(r('no'))}</w:tc></w:tr><w:tr><w:tc>{p(r('a'))}</w:tc>"
        f"<w:tc><w:tcPr><w:cellDel/></w:tcPr>{p(r('no'))}</w:tc></w:tr></w:tbl>",
        "a",
    ),
    "a smart tag": (p(f"<w:smartTag>{r('Delaware')}</w:smartTag>", r(", USA")), "Delaware, USA"),
    "content controls": (f"<w:sdt><w:sdtContent>{p(r('a'))}</w:sdtContent></w:sdt>", "a"),
    "a field": (p(field(instruction(" PAGE "), r("12")), r(" pages")), "12 pages"),
    "a field in the instruction of another": (
        p(field(instruction(" IF ") + field(instruction(" X "), r("no")) + instruction(' "a" '), r("a"))),
        "a",
    ),
    "a field without an end": (p('<w:r><w:fldChar w:fldCharType="begin"/></w:r>', r("a")) + p(r("b")), "a\nb"),
    "notes": (
        p(r("a", '<w:footnoteReference w:id="3"/>', "b", '<w:endnoteReference w:id="1"/>', " c"))
        + p(r('<w:footnoteReference w:id="2"/>'), "<w:del>", r('<w:footnoteReference w:id="4"/>'), "</w:del>"),
        "ab c\n\nThird.\nSecond.\nEnd.",
    ),
    "a comment in a text": (p("<w:r><w:t>a<!-- no -->b</w:t></w:r>"), "ab"),
}
STYLES = "".join(
    f'<w:style w:type="{kind}" w:styleId="{name}"><w:basedOn w:val="{base}"/>{properties}</w:style>'
    for kind, name, base, properties in (
        ("character", "Hidden", "Hidden", "<w:rPr><w:vanish/></w:rPr>"),
        ("paragraph", "Base", "None", "<w:rPr><w:vanish/></w:rPr>"),
        ("paragraph", "Secret", "Base", ""),
        ("paragraph", "Shown", "Base", '<w:rPr><w:vanish w:val="0"/></w:rPr>'),
    )
)
NOTES = "".join(
    f'<w:footnote w:id="{number}">{p(r("<w:footnoteRef/>", f" {text}"))}</w:footnote>'
    for number, text in enumerate(("Separator", "No", "Second.", "Third.", "Deleted"))
)


@pytest.mark.parametrize("case", CASES)
def test_what_word_shows_is_the_text_of_a_document(tmp_path: Path, case: str) -> None:
    body, text = CASES[case]
    notes = NOTES if case == "notes" else ""
    ends = notes and f'<w:endnote w:id="1">{p(r("End."))}</w:endnote>'
    content = word_file(body, styles=STYLES, footnotes=notes, endnotes=ends)
    (tmp_path / "a.docx").write_bytes(content)
    assert read_document(tmp_path / "a.docx", "a.docx") == text


def test_a_strict_document_and_one_with_another_main_part_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.docx"
    path.write_bytes(word_file(p(r("a")), main="doc/main.bin"))
    assert read_document(path, "a.docx") == "a"
    strict = archive(
        {
            "_rels/.rels": f'<Relationships xmlns="{RELATIONSHIPS}"><Relationship Target="a/b.xml" '
            'Type="http://purl.oclc.org/ooxml/officeDocument/relationships/officeDocument"/></Relationships>',
            "a/b.xml": '<w:document xmlns:w="http://purl.oclc.org/ooxml/wordprocessingml/main"><w:body>'
            f"{p(r('no', properties='<w:vanish/>'), r('a'))}</w:body></w:document>",
        }
    )
    path.write_bytes(strict)
    assert read_document(path, "a.docx") == "a"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("<p><ruby>希<rt>のぞ</rt>美<rt>み</rt></ruby>も", "希美も"),
        ("<p><ruby>希<rp>(</rp><rt>のぞ</rt><rp>)</rp></ruby>も", "希も"),
        ("<p><ruby>漢<rt>かん<rb>字<rt>じ</ruby>も", "漢字も"),
        ("<p><ruby><rb>漢<rb>字<rt>か<rt>じ<rtc><rt>x</ruby>も", "漢字も"),
        ("<p><ruby>漢<rp>(<rt>かん<rp>)</ruby>も", "漢も"),
        ("<p>a<span hidden>no</span><i style='color:red; display : none'>no</i><b class=\"hidden\">b</b>", "ab"),
        ("<body style='display:none'><p>a", "a"),
        ("<p>So <math><mrow><mi>E</mi>\n<mo>=</mo> <mi>m</mi><msup><mi>c</mi><mn>2</mn></msup></mrow>"
         "<annotation>E=mc^2</annotation></math>, or <math><mfrac><mrow><mi>a</mi><mo>+</mo><mi>b</mi></mrow><mn>2</mn>"
         "</mfrac></math>", "So E=mc^2, or (a+b)/2"),
        ("<p>Donau&shy;dampf", "Donaudampf"),
        ("<p title='>' class=a\">1 < 2 &lt; 3 <3 <!-- > -->and <!-->so<?x no?> on</ no>.", "1 < 2 < 3 <3 and so on."),
        ("<p>a<script>'<p>no'</script>b<title>no</title>c<textarea><p>&amp;</textarea>d<style>", "abc<p>&d"),
        ("<p a=1 b>x</p", "x"),
    ],
)  # fmt: skip
def test_what_a_browser_shows_is_the_text_of_a_page(tmp_path: Path, body: str, text: str) -> None:
    (tmp_path / "a.html").write_text(body)
    assert read_document(tmp_path / "a.html", "a.html") == text
    (tmp_path / "a.epub").write_bytes(epub(OEBPS__text__one_xhtml=body))
    assert read_document(tmp_path / "a.epub", "a.epub") == f"{text}\n\nThe end."


def test_plain_text_in_xhtml_is_read(tmp_path: Path) -> None:
    for name, text in (("a.xhtml", "a <b> & c d e"), ("a.html", "a & c]]> d e")):
        (tmp_path / name).write_text("<p>a <![CDATA[<b> & c]]> d<m:math/> <svg:svg>no</svg:svg>e")
        assert read_document(tmp_path / name, name) == text


FIRST, LAST = "1\n00:00:01,000 --> 00:00:02,000\nFirst.\n\n", "3\n00:00:05,000 --> 00:00:06,000\nLast.\n\n"


@pytest.mark.parametrize(
    ("between", "text"),
    [
        ("2\n00:00:03,000 --> 00:00:04,000\nAbove\n\nbelow\n\n", "Above below\n"),
        ("2\n00:00:03,000 --> 00:00:04,000\n\n\n", ""),
        ("2\n00:00:03.000 --> 00:00:04.000 X1:100 X2:200\nDots\n\n", "Dots\n"),
        ("2\n00:00:03,000 -> 00:00:04,000\nArrow\n\n", "Arrow\n"),
        ("2\n00:00:03,000 –> 00:00:04,000\nArrow\n\n", "Arrow\n"),
        ("2\n0:3,0 --> 0:4,00\nShort\n\n", "Short\n"),
        ("00:00:03,000 --> 00:00:04,000\nUnnumbered\n\n", "Unnumbered\n"),
        ("77\n00:00:03,000 --> 00:00:04,000\n42\n\n", "42\n"),
        ("77\n00:00:03,000 --> 00:00:04,000\nIn\n\n1984\n\n", "In 1984\n"),
        ("2\n00:00:03,000 --> 00:00:04,000\nNo empty line\n", "No empty line\n"),
        ("77\n00:00:03,000 --> 00:00:04,000\nNo\n\n78\ntime\n\n", "No\ntime\n"),
        ("2\n00:00:03,000 --> 00:00:04,000\nThey met 12:30 - 13:00 --> late\n\n", "They met 12:30 - 13:00 --> late\n"),
        ("2\n00:00:03,000 --> 00:00:04,000\n10:30 --> 11:00 the train\n\n", "10:30 --> 11:00 the train\n"),
        ("2\n-1:59:59,000 --> 00:00:04,000\nBefore\n\n", "Before\n"),
        ("2\n-00:00:03,000 --> -00:00:02,000\nBefore\n\n", "Before\n"),
        ("2 00:00:03,000 --> 00:00:04,000\nOne line\n\n", "One line\n"),
        ("#2\n00:00:03,000 --> 00:00:04,000\nMarked\n\n#3\nno time\n\n", "Marked\nno time\n"),
        ("2\n0:03 --> 0:04 X1:100 X2:200\nPlaced\n\n", "Placed\n"),
    ],
)
def test_subtitles_that_are_not_quite_right_are_read(tmp_path: Path, between: str, text: str) -> None:
    path = tmp_path / "a.srt"
    for end in ("\n", "\r\n", "\r", "\r\r\n"):
        path.write_bytes((FIRST + between + LAST).replace("\n", end).encode())
        assert read_document(path, "a.srt") == f"First.\n{text}Last."


def test_webvtt_that_is_named_srt_is_read_as_webvtt(tmp_path: Path) -> None:
    (tmp_path / "a.srt").write_text(VTT)
    assert read_document(tmp_path / "a.srt", "a.srt") == DOCUMENTS["a.vtt"][1]


def test_lines_that_are_repeated_while_their_words_appear_are_there_once(tmp_path: Path) -> None:
    def shown(*subtitles: str) -> str:
        times = "00:00:01.000 --> 00:00:02.000"
        (tmp_path / "a.vtt").write_text("WEBVTT\n\n" + "\n\n".join(f"{times}\n{each}" for each in subtitles))
        return read_document(tmp_path / "a.vtt", "a.vtt")

    appearing = "one<00:00:01.500><c> two</c>"
    assert shown(appearing, "one two\n ", "one two\nthree", "three") == "one two\nthree"
    assert shown("No.", "No.") == "No.\nNo."


def test_a_folder_and_a_glob_of_documents_are_read_with_the_text_beside_them(tmp_path: Path) -> None:
    for name, (content, _) in DOCUMENTS.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "b.txt").write_text("plain")
    (tmp_path / "c.pdf").write_bytes(b"%PDF-1.4 nothing")
    found = scan([tmp_path, tmp_path / "a.epub"])
    assert found.n_documents == 7  # the EPUB once
    assert len(found.notes) == 1
    assert "skipped a document: " in found.notes[0]
    assert "c.pdf is damaged" in found.notes[0]
    assert scan(str(tmp_path / "a.*")).n_documents == 6


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("<p>Café".encode("utf-16"), "Café"),
        ("<p>Café".encode("utf-16-le"), None),
        (b"<meta charset=punycode><p>Caf-9va", "Caf-9va"),
        (b"<meta charset=utf-7><p>+AGE-", "+AGE-"),
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
    with pytest.raises(DataError, match=r"a\.html is not UTF-8; it is probably (UTF-16-LE|Latin-1): read it with"):
        read_document(path, "a.html")
    encoding = "utf-16-le" if b"\0" in content else "latin-1"
    assert "Caf" in read_document(path, "a.html", encoding).title()


def test_characters_are_replaced_in_the_encoding_that_a_page_declares(tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    path.write_bytes('<meta charset="shift_jis"><p>日本語'.encode("cp932") + b"\x81")
    assert read_document(path, "a.html", errors="replace").startswith("日本語")


def test_a_chapter_in_another_encoding_is_refused_or_its_invalid_bytes_are_counted(tmp_path: Path) -> None:
    chapter = "<html><body><p>Der Bär läuft über die Straße.</p></body></html>".encode("cp1252")
    (tmp_path / "a.epub").write_bytes(epub(OEBPS__text__one_xhtml=chapter))
    with pytest.raises(
        DataError, match=r"a\.epub is not UTF-8; it is probably Latin-1: read it with --encoding latin-1"
    ):
        scan(tmp_path / "a.epub")
    assert read_document(tmp_path / "a.epub", "a.epub", "latin-1") == "Der Bär läuft über die Straße.\n\nThe end."
    (issue,) = find_issues(scan(tmp_path, encoding_errors="replace"), lambda size: None)[0]
    assert (issue.kind, issue.count) == ("invalid bytes", 4)
    declared = b"<?xml version='1.0' encoding='windows-1252'?>" + chapter
    (tmp_path / "a.epub").write_bytes(epub(OEBPS__text__one_xhtml=declared))
    assert read_document(tmp_path / "a.epub", "a.epub") == "Der Bär läuft über die Straße.\n\nThe end."


@pytest.mark.parametrize(
    ("name", "content"), [("c.srt", FIRST + "2\n00:00:03,000 --> 00:00:04,000\n"), ("h.html", "<p>")]
)
def test_a_document_of_a_folder_in_another_encoding_is_the_error_of_the_file_itself_and_an_issue_of_the_text(
    tmp_path: Path, name: str, content: str
) -> None:
    (tmp_path / "en.txt").write_text("It was a bright cold day in April.\n" * 20)
    (tmp_path / name).write_bytes((content + "Der Bär läuft über die Straße.").encode("cp1252"))
    with pytest.raises(DataError, match=rf"{name} is not UTF-8; it is probably Latin-1: read it with") as alone:
        scan(tmp_path / name)
    for source in (tmp_path, str(tmp_path / "*")):
        with pytest.raises(DataError) as error:
            scan(source)
        assert str(error.value) == str(alone.value)
    (issue,) = find_issues(scan(tmp_path, encoding_errors="replace"), lambda size: None)[0]
    assert (issue.kind, issue.count) == ("invalid bytes", 4)
    assert issue.advice == "training stops at the first; it is probably Latin-1: read it with --encoding latin-1"
    assert "Der B\\xe4r" in issue.example
    replaced = "".join(text for text, _ in scan(tmp_path / name, encoding_errors="replace").pieces())
    assert replaced.endswith("Der B\ufffdr l\ufffduft \ufffdber die Stra\ufffde.")
    (tmp_path / "x.docx").write_bytes(b"damaged")
    assert "x.docx is damaged" in scan(tmp_path, encoding="latin-1").notes[0]


def test_without_its_package_a_document_is_one_line_and_a_folder_is_read_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.pdf").write_bytes(pdf())
    monkeypatch.setattr(optional_packages, "_exists", lambda name: False)
    with pytest.raises(
        MissingPackageError, match=r"needs pypdf, which is not installed; run: .*\[documents\]"
    ) as error:
        scan(tmp_path)
    assert "\n" not in str(error.value)
    (tmp_path / "b.txt").write_text("plain")
    found = scan(tmp_path)
    assert (found.n_documents, found.skipped) == (1, ())
    assert "a.pdf, a PDF, needs pypdf" in found.notes[0]


def test_without_its_packages_a_folder_names_all_of_them_and_the_extra_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.docx", "b.pdf", "c/d.html"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"a document")
    monkeypatch.setattr(optional_packages, "_exists", lambda name: False)
    needs = r'needs lxml and pypdf, which are not installed; run: pip install "minigpt-lm\[documents\]"$'
    with pytest.raises(MissingPackageError, match=f"^reading the documents in {re.escape(str(tmp_path))} {needs}"):
        scan(tmp_path)
    (tmp_path / "e.txt").write_text("plain")
    (note,) = scan(tmp_path).notes
    assert re.search(rf"^skipped a document \(2 other documents too: .*\): reading these {needs}", note)


def test_files_that_other_programs_leave_beside_documents_are_skipped_in_a_folder_and_a_glob(tmp_path: Path) -> None:
    (tmp_path / "letter.docx").write_bytes(word())
    for name in ("~$letter.docx", ".~lock.letter.docx#", "._letter.docx", "Thumbs.db", "Desktop.ini", ".DS_Store"):
        (tmp_path / name).write_bytes(b"\5Anna" + bytes(20))
    for source in (tmp_path, tmp_path / "*", tmp_path / "*.docx"):
        found = scan(source)
        assert [Path(file.name).name for file in found.files] == ["letter.docx"]
        assert found.notes == found.skipped == ()


def bomb(name: str) -> bytes:
    """A small zip file whose member has 100 MB."""
    members = {
        "META-INF/container.xml": CONTAINER.format('<rootfile full-path="a.opf"/>'),
        "a.opf": '<package><manifest><item id="a" href="big"/></manifest><spine><itemref idref="a"/></spine></package>',
    }
    return archive({**members, name: b" " * 100_000_000})


def stored_by(method: int) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", method) as file:
        file.writestr("META-INF/container.xml", "<a/>")
    return content.getvalue()


LAUGHS = "<!DOCTYPE a [<!ENTITY b 'ha'>" + "".join(
    f"<!ENTITY {chr(99 + i)} '{f'&{chr(98 + i)};' * 10}'>" for i in range(9)
)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.epub", b"not a zip file", "is damaged: it is not an EPUB"),
        ("a.epub", archive({"a": "b"}), "is damaged: it has no 'META-INF/container.xml'"),
        (
            "a.epub",
            bomb("big"),
            "bytes of text and markup when it is decompressed; the maximum for a file",
        ),
        ("a.epub", epub(OEBPS__book_opf="<package>"), "is damaged, or not an EPUB"),
        (
            "a.epub",
            epub(META_INF="", OEBPS__book_opf=LAUGHS + "]><package><item id='&k;'/></package>"),
            "is damaged, or not an EPUB",
        ),
        ("a.epub", stored_by(zipfile.ZIP_LZMA), "has a part compressed by method 14, not deflate; save it again"),
        ("a.docx", archive({"word/document.xml": "<a/>"}), "is damaged: its _rels/.rels names no Word document"),
        ("a.docx", b"\xd0\xcf\x11\xe0", "is encrypted, or a .doc; open it in Word and save it as .docx without"),
        ("a.docx", word_file("<a/>" * 600_000, main="word/document.bin"), "has more than 500,000 tags"),
        ("a.docx", word_file('<a a="" b="" c=""/>' * 200_000), "has more than 750,000 tags, attributes and texts"),
        ("a.docx", word_file(" " * 100_000_000), "bytes of text and markup when it is decompressed"),
        ("a.docx", word_file("<w:altChunk/>"), "has its text in a file inside it (altChunk); open it in Word and save"),
        ("a.html", b"<a>" * 600_000, "has more than 500,000 tags"),
        ("a.html", b"<p>a" * 400_000, "has more than 750,000 tags, attributes and texts between tags"),
        ("a.pdf", b"%PDF-1.7\n" + b"[" * 100_000, "is damaged, or not a PDF"),
        ("a.pdf", pdf(""), "has no text; if its pages are pictures"),
        ("a.srt", b"no subtitles at all", "has no subtitles: no line is a time such as 00:00:01,000 --> 00:00:02,000"),
        ("a.srt", b"9" * 2000, "has no subtitles"),
        ("a.vtt", b"9" * 2000, "has no subtitles"),
        (
            "a.srt",
            b"\n1\r\n00:00:0O,000 --> 00:00:04,000\nx",
            "has a damaged time in line 3, '00:00:0O,000 --> 00:00:04,",
        ),
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


def test_a_chapter_that_is_named_many_times_is_read_once(tmp_path: Path) -> None:
    references = '<spine><itemref idref="a"/>' + '<itemref idref="b"/><itemref idref="a"/>' * 400
    package = PACKAGE.replace("<spine>", references)
    (tmp_path / "a.epub").write_bytes(epub(OEBPS__book_opf=package))
    assert read_document(tmp_path / "a.epub", "a.epub") == "I\n\nIt was — cold.\n\nThe end."


def test_a_parser_gets_no_attributes_and_no_markup_that_was_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    page = b"<p " + b" ".join(b"a%d=1" % number for number in range(60_000)) + b">x</p>"
    assert html._simplified(page, xhtml=False) == b"<p>x</p>"
    monkeypatch.setattr(limits, "MAX_NODES", 4)
    assert html.html_text(page, limits.MarkupBudget(10)) == "x"
    budget = limits.MarkupBudget(10)
    with pytest.raises(limited_reading.RefusedError, match="has more than 4 tags"):
        html.html_text(page, budget) + html.html_text(page, budget)


def test_the_text_of_tables_in_tables_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = p(r("a" * 1000))
    for _ in range(20):
        body = f"<w:tbl><w:tr><w:tc>{body}</w:tc></w:tr></w:tbl>"
    (tmp_path / "a.docx").write_bytes(word_file(body))
    assert read_document(tmp_path / "a.docx", "a.docx") == "a" * 1000
    monkeypatch.setattr(limits, "LEAST_MARKUP", 1000)
    with pytest.raises(DataError, match="bytes of text and markup when it is decompressed"):
        read_document(tmp_path / "a.docx", "a.docx")


def test_a_long_text_without_tags_is_whole(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text("<p>" + "word " * 2_200_000)  # libxml2 has a limit of 10 MB
    assert len(read_document(tmp_path / "a.html", "a.html")) == 5 * 2_200_000 - 1


@pytest.mark.parametrize(
    ("tag", "between"), [("div", "\n"), ("span", ""), ("blockquote", "\n\n"), ("dl><dd", "\n\n"), ("b><li", "\n")]
)
def test_all_text_of_a_page_that_is_nested_deeply_is_read(tmp_path: Path, tag: str, between: str) -> None:
    body = "".join(f"<{tag}>Sentence {number}." for number in range(4000)) + "<div hidden>no<p>no</div><p>END</p>"
    text = between.join(f"Sentence {number}." for number in range(4000)) + "\n\nEND"
    for name in ("a.html", "a.xhtml"):
        (tmp_path / name).write_text(body)
        assert read_document(tmp_path / name, name) == text
    (tmp_path / "a.epub").write_bytes(epub(OEBPS__text__one_xhtml=body))
    assert read_document(tmp_path / "a.epub", "a.epub") == f"{text}\n\nThe end."


def test_what_is_skipped_and_the_borders_of_blocks_are_the_same_in_a_page_that_is_nested_deeply(tmp_path: Path) -> None:
    deep = "<div>" * 3000
    (tmp_path / "a.html").write_text(f"{deep}x{HTML}{'</div>' * 3000}<p>y<ruby>漢<rt>かん</ruby>")
    text = HTML_TEXT.replace("Title", "x\n\nTitle") + "\n\ny漢"
    assert read_document(tmp_path / "a.html", "a.html") == text


NESTED = {
    "a.html": ("<math>" + "<mrow>" * 1000 + "<mi>x</mi>").encode(),
    "b.html": b"<p>a" + b"<nav>" * 3000 + b"no",
    "a.docx": word_file("<w:sdt><w:sdtContent>" * 200 + p(r(t("x"))) + "</w:sdtContent></w:sdt>" * 200),
    "b.docx": word_file("<w:tbl><w:tr><w:tc>" * 100 + p(r(t("x"))) + "</w:tc></w:tr></w:tbl>" * 100),
}


@pytest.mark.parametrize("name", NESTED)
def test_a_document_that_is_nested_too_deeply_is_one_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(NESTED[name])
    with pytest.raises(DataError) as error:
        read_document(tmp_path / name, name)
    assert str(error.value) == f"{name} nests its elements too deeply to be read; save its text as a .txt"


def test_a_pdf_that_takes_too_much_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf(pages=3000))
    with monkeypatch.context() as patch:
        patch.setattr(limited_reading, "by_the_clock", lambda _: 0.01)
        with pytest.raises(DataError, match=r"a\.pdf takes more than 46 s to read; save it again, or give its text"):
            read_document(path, "a.pdf")
    if sys.platform == "linux":
        monkeypatch.setattr(pdf_module, "_MEMORY", 1)
        monkeypatch.setattr(pdf_module, "_MEMORY_PER_BYTE", 0)
        with pytest.raises(DataError, match=r"a\.pdf takes more than 0 MB of memory; save it again, or give its text"):
            read_document(path, "a.pdf")


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


def test_a_document_above_the_limit_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "MAX_FILE", 10)
    (tmp_path / "a.html").write_bytes(HTML.encode())
    with pytest.raises(DataError, match="and must have at most 10"):
        read_document(tmp_path / "a.html", "a.html")


def test_sections_that_are_plain_text_in_xhtml_only_are_read_once_in_html(tmp_path: Path) -> None:
    """The time of the search for their end would grow with the square of their number."""
    assert html._TOKEN.match(b"<![CDATA[>").end() == len(b"<![CDATA[>")  # type: ignore[union-attr]
    (tmp_path / "a.html").write_text("<p>a" + 3 * "<![CDATA[>b")
    assert read_document(tmp_path / "a.html", "a.html").strip() == "abbb"
