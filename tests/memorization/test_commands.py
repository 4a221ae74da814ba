"""The memorization meter as a user sees it: `generate --memorization`, and the samples of a training run."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from minigpt.data.corpus import Corpus
from minigpt.memorization.command import MemorizationMeter
from minigpt.memorization.drawing import highlighted
from minigpt.memorization.index import MemorizationIndex
from minigpt.storage.run_log import RunLog

GREEDY = ["--temperature", "0", "--max-new-tokens", "12", "--device", "cpu"]


def sentence(start: int, length: int) -> str:
    return " ".join(f"w{number}" for number in range(start, start + length))


@pytest.fixture
def trained(run: Any, here: Path, tiny: list[str]) -> Path:
    """A run on fox.txt."""
    assert run("train", "fox.txt", *tiny).exit_code == 0
    return here / "checkpoints/fox"


@pytest.fixture
def generates(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replaces the generation of every model by a given text."""

    def plant(text: str) -> None:
        from minigpt.generation.decoding import GeneratedToken
        from minigpt.generation.streaming import Piece

        def pieces(_engine: Any, _tokenizer: Any, prompts: list[str], config: Any, **_rest: Any) -> Any:
            for row in range(len(prompts) * config.samples):
                yield Piece(row, text, GeneratedToken(65), "length")

        monkeypatch.setattr("minigpt.generation.streaming.generate_pieces", pieces)

    return plant


def test_copied_runs_are_highlighted_with_their_location(run: Any, trained: Path, generates: Any) -> None:
    generates("fox jumps over the lazy dog; the quick red fox")
    result = run("generate", "the quick brown ", "--memorization", "--copied-words", "4", *GREEDY)
    assert result.exit_code == 0, result.stderr
    assert "the quick brown ⟦fox jumps over the lazy dog; the quick⟧¹ red fox\n" in result.stdout
    assert "\ncopied from the training text: 80% of 10 words, in runs of 4 words or more; " in result.stdout
    assert "; longest run 8 words (38 characters)\n" in result.stdout
    assert "¹ 8 words “fox jumps over the lazy dog; the quick”: " in result.stdout
    assert "”: fox.txt, line 1 (first of " in result.stdout


def test_without_the_option_copies_are_not_reported(run: Any, trained: Path) -> None:
    result = run("generate", "the quick", *GREEDY)
    assert "copied" not in result.stdout + result.stderr
    assert "⟦" not in result.stdout


def test_short_runs_are_not_highlighted_and_the_longest_is_named(run: Any, trained: Path, generates: Any) -> None:
    generates(" lazy dog; and cat")
    result = run("generate", "the", "--memorization", *GREEDY)
    assert "⟦" not in result.stdout
    assert "0% of 4 words, in runs of 8 words or more; longest run 2 words (9 characters)" in result.stdout
    assert "\n  2 words “lazy dog;”: " in result.stdout
    generates("nothing at all")
    assert "copied from the training text: none of 3 words" in run("generate", "x ", "--memorization").stdout


def test_json_has_the_figures_and_the_locations(run: Any, trained: Path, generates: Any, here: Path) -> None:
    generates(" jumps over the lazy dog; and")
    result = run("generate", "fox", "--memorization", "--json", "--copied-words", "3", "--samples", "2", *GREEDY,
                 "--temperature", "1")  # fmt: skip
    records = [json.loads(line)["memorization"] for line in result.stdout.splitlines()]
    assert len(records) == 2
    found = records[0]
    assert (found["longest_copied_words"], found["longest_copied_characters"]) == (5, 24)
    assert found["copied_share"] == pytest.approx(5 / 6)
    assert found["indexed_bytes"] == found["training_bytes"] > 0
    (copied,) = found["runs"]
    assert (copied["start"], copied["end"], copied["text"]) == (1, 25, "jumps over the lazy dog;")
    assert (copied["line"], copied["document"]) == (1, None)
    assert Path(copied["file"]).resolve() == (here / "fox.txt").resolve()


def test_after_the_file_changed_or_was_removed_the_cached_training_text_is_searched(
    run: Any, trained: Path, generates: Any, here: Path
) -> None:
    generates("fox jumps over the lazy dog; the quick red fox")
    (here / "fox.txt").write_text("something else now\n" * 40)
    changed = run("generate", "", "--memorization", *GREEDY)
    assert "has changed since training; locations refer to the text used in training" in changed.stderr
    assert "the training text, document 1, line 1" in changed.stdout
    (here / "fox.txt").unlink()
    removed = run("generate", "", "--memorization", *GREEDY)
    assert "can no longer be read; locations refer" in removed.stderr
    assert removed.stdout == changed.stdout


def test_a_cleared_cache_is_rebuilt_from_the_same_text_or_an_error_asks_for_it(
    run: Any, trained: Path, generates: Any, here: Path
) -> None:
    generates("fox jumps over the lazy dog; the quick red fox")
    shutil.rmtree(here / "cache")
    assert "⟦fox jumps" in run("generate", "", "--memorization", *GREEDY).stdout
    shutil.rmtree(here / "cache")
    (here / "fox.txt").write_text("something else now\n" * 40)
    other = run("generate", "", "--memorization", *GREEDY)
    assert other.exit_code == 1
    assert "has changed since; name the text with --corpus" in other.stderr
    (here / "fox.txt").unlink()
    none = run("generate", "", "--memorization", *GREEDY)
    assert none.exit_code == 1
    assert "cannot be read; name the text with --corpus" in none.stderr
    assert none.stderr.count("\n") == 1


def test_another_text_can_be_searched_and_a_model_without_a_record_needs_one(
    run: Any, trained: Path, generates: Any, here: Path
) -> None:
    generates("the rain in Spain stays mainly in the plain today")
    for number, text in enumerate(["nothing", "so\n\nthe rain in Spain stays mainly in the plain"]):
        (here / f"other{number}.txt").write_text(text)
    both = ["--corpus", "other0.txt", "--corpus", "other1.txt"]
    assert "⟦the rain in Spain stays mainly in the plain⟧¹ today" in run("generate", "", "--memorization", *both).stdout
    assert "other1.txt, line 3" in run("generate", "", "--memorization", *both).stdout
    (here / "folder").mkdir()
    (here / "folder" / "a.txt").write_text("the rain in Spain stays mainly in the plain")
    (here / "folder" / "b.pdf").write_bytes(b"%PDF-1.4 damaged")
    noted = run("generate", "", "--memorization", "--corpus", "folder").stderr
    assert "b.pdf" in noted, "what was not searched"
    (trained / "training.json").unlink()
    refused = run("generate", "", "--memorization", "--model", "fox")
    assert refused.exit_code == 1
    assert "does not record what it was trained on; name the text with --corpus" in refused.stderr
    assert run("generate", "", "--memorization", "--model", "fox", *both).exit_code == 0
    alone = run("generate", "", *both)
    assert alone.exit_code == 1
    assert "--corpus other0.txt needs --memorization, which searches it" in alone.stderr


def test_a_fine_tuned_model_is_compared_with_its_fine_tuning_text_only_and_says_so(
    run: Any, trained: Path, tiny: list[str], here: Path
) -> None:
    (here / "cat.txt").write_text("a cat sat on a mat and sat " * 40)
    tuned = run("train", "cat.txt", "--from", "fox", "--steps", "2", "--device", "cpu")
    assert tuned.exit_code == 0, tuned.stderr
    result = run("generate", "a cat", "--model", "cat", "--memorization", *GREEDY)
    assert "not with the training text of checkpoints/fox" in result.stderr


@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1"}])
def test_the_marks_are_shown_without_colors_too(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text.txt").write_text(sentence(0, 40))
    index = MemorizationIndex.build(Corpus.build(tmp_path / "text.txt", "bytes", cache=tmp_path, validation_fraction=0))
    text = f"new\x1b[31m\n{sentence(4, 9)} new {sentence(20, 8)}"
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    out = Console(force_terminal=True, width=200, color_system=None if environment else "truecolor")
    with out.capture() as captured:
        out.print(highlighted(text, MemorizationMeter(index, None, 8).measure(text, "")), soft_wrap=True)
    shown = captured.get()
    assert f"⟦{sentence(4, 9)}⟧¹" in shown
    assert f"⟦{sentence(20, 8)}⟧²" in shown
    assert "new␛[31m\n" in shown  # line breaks stay, and control characters become visible


def test_training_prints_and_logs_what_its_samples_copy(run: Any, here: Path, tiny: list[str]) -> None:
    result = run("train", "fox.txt", *tiny, "--sample-every", "3")
    assert "sample at step 3" in result.stderr
    assert "copied from the training text: " in result.stderr
    assert "of the last 2 samples, in runs of 8 words or more; longest" in " ".join(result.stdout.split())
    samples = [line for line in RunLog(here / "checkpoints/fox/log.jsonl").read() if "sample" in line]
    assert [line["step"] for line in samples] == [3, 6]
    assert samples[0].keys() >= {"longest_copied_words", "longest_copied_characters", "copied_share"}


def test_samples_before_a_resume_count_among_the_last_samples(run: Any, tiny: list[str]) -> None:
    assert run("train", "fox.txt", *tiny, "--sample-every", "3").exit_code == 0
    again = run("train", "--resume", "--name", "fox", "--steps", "9")
    assert again.exit_code == 0, again.stderr
    assert "of the last 3 samples, in runs of 8 words or more; longest" in " ".join(again.stdout.split())
