"""The source files of training documents."""

from pathlib import Path

from minigpt.data.sources import scan
from minigpt.evaluation.documents import Origin, document_origins


def test_every_training_document_has_its_file_as_origin(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one <|endoftext|>  <|endoftext|> two")
    (tmp_path / "b.txt").write_text("three")
    (tmp_path / "c.jsonl").write_text('{"text": "four"}\n{"text": "five"}\n')
    names = [str(tmp_path / name) for name in ("a.txt", "b.txt", "c.jsonl")]
    expected = [Origin(names[0], 1), Origin(names[0], 2), Origin(names[1], None), Origin(names[2], 1),
                Origin(names[2], 2)]  # fmt: skip
    assert document_origins(scan(names), 0) == expected
    assert (
        document_origins(scan(names), 0.1) == expected
    )  # only the ends are held out, so every document is in the training part
    assert document_origins(scan(names[1]), 0.1) == [Origin(names[1], None)]


def test_a_file_without_text_gives_no_document_its_name(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n")
    (tmp_path / "b.txt").write_text("a text\n")
    found = scan([tmp_path / "a.txt", tmp_path / "b.txt"])
    assert [origin.label for origin in document_origins(found, 0)] == [str(tmp_path / "b.txt")]
