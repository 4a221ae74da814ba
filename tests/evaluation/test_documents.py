"""The source files of training documents."""

import json
from pathlib import Path

from minigpt.data.corpus import Corpus
from minigpt.data.sources import scan
from minigpt.evaluation.documents import Origin, document_origins
from minigpt.memorization.index import MemorizationIndex
from minigpt.tokenizer.tokenizer import Tokenizer


def sentence(start: int, length: int) -> str:
    """Words that each occur once: w17 w18 w19."""
    return " ".join(f"w{number}" for number in range(start, start + length))


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


def test_validation_documents_have_no_origin(tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps({"text": sentence(100 * row, 5)}) + "\n" for row in range(40)))
    corpus = Corpus.build(source, Tokenizer.named("bytes"), cache=tmp_path / "cache", validation_fraction=0.25)
    origins = document_origins(scan(source), corpus.validation_fraction)
    held_out = set(range(1, 41)) - {origin.document for origin in origins}
    assert sorted((number - 1) // 4 for number in held_out) == list(range(10))
    index = MemorizationIndex.build(corpus)
    for row in range(40):
        run = index.measure(sentence(100 * row, 5)).longest
        assert (run is None) == (row + 1 in held_out)
        assert run is None or origins[index.locate(run.position).document - 1].document == row + 1
