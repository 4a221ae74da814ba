"""The index has the documents of the training part only."""

import json
from pathlib import Path

from minigpt.data.corpus import Corpus
from minigpt.data.sources import scan
from minigpt.evaluation.documents import document_origins
from minigpt.memorization.index import MemorizationIndex
from minigpt.tokenizer.tokenizer import Tokenizer


def sentence(start: int, length: int) -> str:
    """Words that each occur once: w17 w18 w19."""
    return " ".join(f"w{number}" for number in range(start, start + length))


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
