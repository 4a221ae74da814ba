"""`minigpt train` with --mix, --deduplicate and --prepare, and their wrong use."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from minigpt.storage.run import Run


@pytest.fixture
def texts(here: Path) -> Path:
    """Two texts of 300 documents, of which the second has each twice."""
    (here / "web.jsonl").write_text("\n".join(json.dumps({"text": f"the web has page {n}"}) for n in range(300)))
    (here / "books.jsonl").write_text("\n".join(json.dumps({"text": f"once upon a time {n // 2}"}) for n in range(300)))
    return here


def test_a_mix_names_its_texts_with_their_weights_and_resumes(texts: Path, run: Any, tiny: list[str]) -> None:
    command = ["train", "--mix", "web.jsonl=3", "books.jsonl=1", *tiny, "--name", "mixed"]
    result = run(*command)
    assert result.exit_code == 0, result.output
    record = Run.open(texts / "checkpoints/mixed").record
    assert [Path(source).name for source in record.sources] == ["web.jsonl=3", "books.jsonl=1"]
    assert run("train", "--resume", "--name", "mixed", "--steps", "8").exit_code == 0
    assert run("evaluate", "mixed", "--held-out").exit_code == 0


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("books", ["books.jsonl", "--deduplicate"]), ("mixed", ["--mix", "web.jsonl=3", "books.jsonl=1"])],
)
def test_the_training_text_is_recognized_without_its_cache(
    texts: Path, run: Any, tiny: list[str], name: str, arguments: list[str]
) -> None:
    assert run("train", *arguments, *tiny, "--name", name, "--no-report").exit_code == 0
    given = [each for each in arguments if ".jsonl" in each]
    copies = [each.replace(".jsonl", "-copy.jsonl") for each in given]
    for path in given:
        source = path.partition("=")[0]
        shutil.copy(source, source.replace(".jsonl", "-copy.jsonl"))
    expected = json.loads(run("evaluate", name, "--held-out", "--json").stdout)["loss"]
    for again in ([], given, copies):
        assert json.loads(run("evaluate", name, *again, "--held-out", "--json").stdout)["loss"] == expected
        shutil.rmtree(texts / "cache")
    copy = copies[0].partition("=")[0]
    assert f"note: {copy} is in the text that {name} was trained on" in run("evaluate", name, copy).stderr
    with Path(given[0].partition("=")[0]).open("a") as file:
        file.write('\n{"text": "more"}')
    changed = run("evaluate", name, "--held-out")
    assert changed.exit_code == 1
    assert "has changed since; give that text" in changed.stderr
    other = run("evaluate", name, *given, "--held-out")
    assert other.exit_code == 1
    assert f"is not the text that checkpoints/{name} was trained on, as its hash shows" in other.stderr


def test_prepared_tokens_are_those_that_training_reads(texts: Path, run: Any, tiny: list[str]) -> None:
    prepared = run("train", "web.jsonl", "--prepare", "--tokenizer", "bytes")
    assert prepared.exit_code == 0, prepared.output
    assert not (texts / "checkpoints").exists()
    before = tokens(texts)
    assert before
    assert run("train", "web.jsonl", *tiny).exit_code == 0
    assert tokens(texts) == before


def tokens(folder: Path) -> dict[Path, int]:
    """The tokens in the cache, and when each file was written."""
    return {path: path.stat().st_mtime_ns for path in (folder / "cache" / "corpora").glob("*/*.bin")}


def test_equal_documents_are_dropped_on_request_and_counted(texts: Path, run: Any, tiny: list[str]) -> None:
    sizes = {}
    for name, more in (("all", []), ("once", ["--deduplicate"])):
        trained = run("train", "books.jsonl", *more, *tiny, "--name", name)
        assert trained.exit_code == 0
        assert ("dropped 150 documents equal to an earlier one" in trained.stderr) == bool(more)
        corpus = Run.open(texts / "checkpoints" / name).record.corpus
        assert corpus is not None
        sizes[name] = corpus.train_tokens
    assert sizes["once"] < 0.7 * sizes["all"]
