"""The names of documents are those of the files that have them."""

from pathlib import Path

from minigpt.data.sources import scan
from minigpt.evaluation.documents import document_labels


def test_a_file_without_text_gives_no_document_its_name(tmp_path: Path) -> None:
    blank, book = tmp_path / "a.txt", tmp_path / "b.txt"
    blank.write_text("\n")
    book.write_text("a text\n")
    assert document_labels(scan([blank, book])) == [str(book)]
    assert document_labels(scan(book)) == [str(book)]
