"""The text of a Word document: its paragraphs and tables, in order."""

import io
import zipfile

from minigpt.data.documents.limits import TagCounter, check_archive, read_member


def docx_text(content: bytes) -> str:
    """The paragraphs, a line each, and the rows of tables, their cells separated by tabs.

    Raises: DocumentError for a document that is too large.
    """
    import docx
    from docx.table import Table

    tags = TagCounter()
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        check_archive(archive)
        for name in archive.namelist():
            if name.endswith((".xml", ".rels")):  # python-docx parses all of them
                tags.check(read_member(archive, name))
    lines: list[str] = []
    for block in docx.Document(io.BytesIO(content)).iter_inner_content():
        if isinstance(block, Table):
            lines += ["\t".join(cell.text.replace("\n", " ") for cell in row.cells) for row in block.rows]
        else:
            lines.append(block.text)
    return "\n".join(lines)
