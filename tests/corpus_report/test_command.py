"""`minigpt corpus` on the command line, and the baselines that a training run is compared with."""

import gzip
import json
import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import new_model

from minigpt import optional_packages
from minigpt.baselines.baselines import recorded_baselines
from minigpt.corpus_report import languages
from minigpt.foreign_tokenizers.ids_only import IdsOnly
from minigpt.storage.checkpoint import save_checkpoint
from minigpt.storage.run import Run as RunFolder
from minigpt.tokenizer.tokenizer import Tokenizer

WORDS = ["whale", "ship", "sea", "captain", "harpoon", "deck", "storm", "sailor", "wind", "oil", "boat", "line"]


def figures(run: RunFolder) -> dict[str, float]:
    """The baselines that a run recorded, in bits per byte."""
    return {baseline.name: baseline.bits_per_byte for baseline in recorded_baselines(run.record)}


def book(paragraphs: int = 60) -> str:
    choose = random.Random(0)
    return "\n\n".join(" ".join(choose.choices(WORDS, k=40)) for _ in range(paragraphs)) + "\n"


@pytest.fixture
def sea(here: Path) -> Path:
    """A text without issues."""
    path = here / "sea.txt"
    path.write_text(book())
    return path


def test_the_report_on_a_clean_text_ends_with_nothing_serious_to_fix(run: Any, sea: Path) -> None:
    before = sea.read_bytes()
    result = run("corpus", "sea.txt")
    assert result.exit_code == 0, result.stderr
    expected = ["in 1 document", "Latin 100.0%", "the end of each document", "issues: none", "none of 60 paragraphs"]
    for text in [*expected, "bytes per token", "gpt2", "50,257", "5-gram", "xz", "what it uses"]:
        assert text in result.stdout
    assert result.stdout.splitlines()[-1] == "nothing serious to fix"
    assert sea.read_bytes() == before


def test_without_the_extra_one_line_says_what_is_not_measured(
    run: Any, sea: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("py3langid", "py3langid.langid", "pydivsufsort"):
        monkeypatch.setitem(sys.modules, name, None)
    found = optional_packages.find_spec
    monkeypatch.setattr(
        optional_packages, "find_spec", lambda name: None if name in ("py3langid", "pydivsufsort") else found(name)
    )
    languages._identifier.cache_clear()
    lines = run("corpus", "sea.txt").stdout.splitlines()
    languages._identifier.cache_clear()
    (line,) = (line for line in lines if "pydivsufsort" in line)
    assert line.startswith("  measuring languages, repeated passages and leakage needs py3langid and pydivsufsort, ")
    assert any(re.search(r"languages +not measured", line) for line in lines)
    assert lines[-1] == "nothing serious to fix"


def test_a_tiny_text_is_a_finding(run: Any, here: Path) -> None:
    (here / "tiny.txt").write_text("The cat sat on the mat. " * 5 + "And so did the dog...")
    lines = run("corpus", "tiny.txt").stdout.splitlines()
    assert lines[-1].startswith("fix first: the text has only 141 bytes; half a megabyte is a good start")


def test_issues_are_shown_with_locations_and_the_most_serious_is_to_be_fixed_first(run: Any, here: Path) -> None:
    (here / "bad.txt").write_bytes(book().encode() + "It wasnâ€™t\n".encode() + b"caf\xe9\n" + b"<p>end</p>\n")
    result = run("corpus", "bad.txt")
    assert result.exit_code == 0, result.stderr
    assert "mojibake: 1, at bad.txt:120 (byte " in result.stdout
    assert "It wasnâ€™t (for ’)" in result.stdout
    assert "HTML remains: 2, first at bad.txt:122 (byte " in result.stdout
    last = result.stdout.splitlines()[-1]
    assert last.startswith("fix first: invalid bytes, 1 from bad.txt:121 (byte ")
    assert last.endswith("(2 more above)")


def test_json_has_the_report_and_the_former_names_of_its_keys(run: Any, here: Path) -> None:
    parts = book().strip().split("\n\n")
    rows = [json.dumps({"body": part}) + "\n" for part in [*parts, *parts[1:], parts[0]]]
    (here / "rows.jsonl.gz").write_bytes(gzip.compress("".join(rows).encode()))
    result = run("corpus", "rows.jsonl.gz", "--text-key", "body", "--json")
    assert result.exit_code == 0, result.stderr
    record = json.loads(result.stdout)
    assert (record["documents"], record["held_out"]) == (120, "one document of every 10, at random")
    documents = next(entry for entry in record["duplicates"] if entry["kind"] == "documents")
    assert (documents["units"], documents["duplicates"]) == (120, 60)
    assert record["overlap"]["share"] == 1.0
    assert record["near_duplicates"]["sampled_fraction"] == 1.0
    assert record["verdict"].startswith("fix first: 100.0% of the held-out text also occurs in the training text")
    assert {entry["name"] for entry in record["baselines"]} == {
        "bytes", "words", "gzip", "xz", "xz alone", "5-gram", "7-gram",
    }  # fmt: skip
    assert all(entry["meaning"] for entry in record["baselines"])


def test_a_model_that_has_not_seen_the_text_is_measured_like_a_baseline(run: Any, sea: Path) -> None:
    save_checkpoint("checkpoints/stranger", new_model(), Tokenizer.named("bytes"))
    result = run("corpus", "sea.txt", "--model", "stranger", "--device", "cpu", "--json")
    assert result.exit_code == 0, result.stderr
    measured = {entry["name"]: entry for entry in json.loads(result.stdout)["baselines"]}
    assert measured["stranger"]["bits_per_byte"] == pytest.approx(8, abs=0.2)
    assert measured["stranger"]["train_bytes"] == 0


def test_a_model_that_cannot_be_measured_is_refused_before_the_text_is_read(
    run: Any, sea: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = Tokenizer(IdsOnly(size=257, end_id=256))
    save_checkpoint(here / "checkpoints" / "bare", new_model(vocab_size=257), bare)
    monkeypatch.setattr("minigpt.data.sources.scan", lambda *_, **__: pytest.fail("read"))
    refused = run("corpus", "sea.txt", "--model", "bare")
    assert refused.exit_code == 1
    assert len(refused.stderr.splitlines()) == 1


def test_a_model_for_which_memory_runs_out_is_one_line(run: Any, sea: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def runs_out(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr("minigpt.corpus_report.build_report.build_report", runs_out)
    assert run("corpus", "sea.txt").stderr.endswith("out of memory; close other programs, or omit --model\n")


def test_training_prints_and_records_the_baselines_and_says_which_it_beats(
    run: Any, sea: Path, tiny: list[str]
) -> None:
    steps = tiny.index("--steps")
    result = run("train", "sea.txt", *tiny[:steps], "--steps", "60", *tiny[steps + 2 :], "--eval-every", "20")
    assert result.exit_code == 0, result.stderr
    assert "to beat, in bits per byte of the held-out text: " in result.stderr
    folder = RunFolder.open(sea.parent / "checkpoints/sea")
    assert set(figures(folder)) == {"bytes", "5-gram", "gzip", "xz"}
    assert 0.4 < figures(folder)["5-gram"] < figures(folder)["bytes"] < 5
    assert "baselines" in result.stdout
    assert re.search(r"not yet .*5-gram \(", " ".join(result.stdout.split()))
    evaluations = [line for line in folder.read_log() if "bits_per_byte" in line]
    below = next(line["step"] for line in evaluations if line["bits_per_byte"] < figures(folder)["bytes"])
    assert f"bytes (since step {below})" in " ".join(result.stdout.split())
    expected = [line for line in result.stderr.splitlines() if "now beats" in line]
    assert any("bytes" in line for line in expected)


def test_baselines_survive_a_resume_but_not_a_changed_text(run: Any, sea: Path, tiny: list[str]) -> None:
    assert run("train", "sea.txt", *tiny).exit_code == 0
    measured = figures(RunFolder.open(sea.parent / "checkpoints/sea"))
    assert run("train", "--resume", "--steps", "8", "--name", "sea").exit_code == 0
    assert figures(RunFolder.open(sea.parent / "checkpoints/sea")) == measured
    changed = run("train", "fox.txt", "--resume", "--steps", "10", "--name", "sea", "--allow-change")
    assert changed.exit_code == 0, changed.stderr
    assert figures(RunFolder.open(sea.parent / "checkpoints/sea")) == {}


def test_control_characters_in_a_text_or_its_name_do_not_reach_the_terminal(run: Any, here: Path) -> None:
    parts = book(30).strip().split("\n\n")
    evil = f"\x1b[2J\x1b]0;owned\x07 {parts[3]}\x9b31m"
    parts[5] = parts[9] = evil
    parts[20] = evil.replace("\x07", " almost")
    parts[29] = evil
    (here / "bad\x1b[31m.txt").write_text("\n\n".join(parts) + "\n<p>\x1b[5m\n", encoding="utf-8")
    (here / "other\x1b.bin").write_bytes(b"\0")
    result = run("corpus", ".")
    assert result.exit_code == 0, result.stderr
    assert "\u241b[2J\u241b]0;owned" in result.stdout
    assert "bad\u241b[31m.txt:11 (byte " in result.stdout
    shown = result.stdout.replace("\n", "")
    assert [character for character in shown if ord(character) < 32 or 127 <= ord(character) < 160] == []


def test_near_duplicates_are_shown_with_the_words_that_differ(run: Any, here: Path) -> None:
    parts = book().strip().split("\n\n")
    words = random.Random(9).choices(WORDS, k=200)
    parts[7], parts[33] = " ".join(words), " ".join([*words[:99], "elsewhere", *words[100:]])
    (here / "near.txt").write_text("\n\n".join(parts) + "\n")
    lines = run("corpus", "near.txt").stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if "their first difference:" in line)
    assert "elsewhere" not in lines[at + 1]
    assert "elsewhere" in lines[at + 2]
    assert [line.count("near.txt:") for line in lines[at + 1 : at + 3]] == [1, 1]
    assert "near.txt:15 (byte" in lines[at + 1]
    assert "near.txt:67 (byte" in lines[at + 2]


def test_in_a_narrow_terminal_no_number_is_cut(run: Any, sea: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    result = run("corpus", "sea.txt")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    table = lines[next(number for number, line in enumerate(lines) if line.startswith("tokenizers")) : -2]
    assert max(map(len, table)) <= 60
    figures = table[next(number for number, line in enumerate(table) if line.startswith("baselines")) :]
    for name in ("bytes", "words", "gzip", "xz", "xz alone", "5-gram", "7-gram"):
        row = next(line for line in figures if line.split("  ")[0].strip() == name)
        assert re.search(r"\d\.\d{4} ", row)
