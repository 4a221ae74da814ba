"""`minigpt evaluate` on the text that a model was trained on: the note that says so, and the part that was held out."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from minigpt.evaluation.perplexity import EvaluationResult
from minigpt.held_out.evaluate_settings import recorded_text
from minigpt.storage.checkpoint import load_checkpoint
from minigpt.storage.run_record import Result

TUNING = ["--steps", "2", "--batch-size", "4", "--device", "cpu", "--no-report"]


@pytest.fixture
def trained(run: Any, tiny: list[str]) -> Path:
    """A run of fox.txt, called fox."""
    result = run("train", "fox.txt", *tiny, "--no-report")
    assert result.exit_code == 0, result.stderr
    return Path("checkpoints/fox")


def test_held_out_gives_the_figures_of_the_runs_last_evaluation(run: Any, trained: Path) -> None:
    record = load_checkpoint(trained).record
    assert record is not None
    assert record.result is not None
    for text in ([], ["fox.txt"]):
        figures = json.loads(run("evaluate", "fox", *text, "--held-out", "--json").stdout)
        assert figures["loss"] == pytest.approx(record.result.validation_loss, rel=1e-5)
        assert figures["bits_per_byte"] == pytest.approx(record.result.bits_per_byte, rel=1e-5)
        assert figures["tokens"] == record.result.validation_tokens
        assert figures["held_out"] is True
    shown = " ".join(run("evaluate", "fox", "--held-out").stdout.split())
    assert "the part of the training text of fox that was held out" in shown
    assert f"at the end of training: loss {record.result.validation_loss:.4f}" in shown
    assert "on the same tokens" in shown
    assert "without overlap" not in shown
    overlapping = " ".join(run("evaluate", "fox", "--held-out", "--stride", "8").stdout.split())
    assert "on the same tokens, in windows of 16 without overlap" in overlapping


def test_a_text_that_has_moved_is_found_in_the_cache_or_given_again(
    run: Any, trained: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = json.loads(run("evaluate", "fox", "--held-out", "--json").stdout)["loss"]
    moved = Path("fox.txt").rename("moved.txt")
    assert json.loads(run("evaluate", "fox", "--held-out", "--json").stdout)["loss"] == expected
    (here / "cache").rename(here / "elsewhere")
    refused = run("evaluate", "fox", "--held-out")
    assert refused.exit_code == 1
    assert "give that text: minigpt evaluate fox TEXT --held-out" in refused.stderr
    assert json.loads(run("evaluate", "fox", str(moved), "--held-out", "--json").stdout)["loss"] == expected


def test_the_training_text_is_read_with_the_settings_that_are_given(run: Any, tiny: list[str], here: Path) -> None:
    Path("naïf.txt").write_text("le cœur naïf d'un élève; " * 99, encoding="utf-16")
    assert run("train", "naïf.txt", *tiny, "--no-report", "--encoding", "utf-16", "--name", "fr").exit_code == 0
    expected = json.loads(run("evaluate", "fr", "--held-out", "--json").stdout)
    for encoding in ("utf-8", "cp1252"):
        Path("again.txt").write_text("le cœur naïf d'un élève; " * 99, encoding=encoding)
        again = run("evaluate", "fr", "again.txt", "--held-out", "--json", "--encoding", encoding)
        assert again.exit_code == 0, again.stderr
        figures = json.loads(again.stdout)
        assert (figures["tokens"], figures["loss"]) == (expected["tokens"], pytest.approx(expected["loss"], rel=1e-5))


def test_another_text_is_refused_as_the_training_text(run: Any, trained: Path) -> None:
    Path("other.txt").write_text("the quick brown fox " * 50)
    refused = run("evaluate", "fox", "other.txt", "--held-out")
    assert refused.exit_code == 1
    assert "other.txt is not the text that checkpoints/fox was trained on" in refused.stderr


def test_a_model_without_a_record_or_a_held_out_part_is_refused(run: Any, tiny: list[str], trained: Path) -> None:
    run("train", "fox.txt", *tiny, "--no-report", "--validation-fraction", "0", "--name", "all")
    refused = run("evaluate", "all", "--held-out")
    assert refused.exit_code == 1
    assert "was trained with nothing held out" in refused.stderr
    (trained / "training.json").unlink()
    for arguments in (["fox"], ["fox", "fox.txt"]):
        refused = run("evaluate", *arguments, "--held-out")
        assert refused.exit_code == 1
        assert "does not record what it was trained on" in refused.stderr


def test_the_training_text_is_recognized_by_its_content_and_other_text_is_not(run: Any, trained: Path) -> None:
    Path("copy.txt").write_text(Path("fox.txt").read_text())
    Path("other.txt").write_text("a text that nobody has read")
    assert (
        "note: copy.txt is the text that fox was trained on, so these figures say little about other text; --held-out"
        in run("evaluate", "fox", "copy.txt").stderr
    )
    assert "note:" not in run("evaluate", "fox", "other.txt").stderr
    both = run("evaluate", "fox", "copy.txt", "other.txt")
    assert "note: 1 of the 2 documents given is in the text that fox was trained on" in both.stderr


def test_a_document_of_the_training_text_is_recognized(run: Any, tiny: list[str], here: Path) -> None:
    texts = [f"document {number} says something else. " * 8 for number in range(4)]
    Path("all.txt").write_text("<|endoftext|>".join(texts))
    run("train", "all.txt", *tiny, "--no-report")
    Path("one.txt").write_text(texts[2])
    assert "note: one.txt is in the text that all was trained on" in run("evaluate", "all", "one.txt").stderr
    Path("one.txt").write_text(texts[2] + "!")
    assert "note:" not in run("evaluate", "all", "one.txt").stderr


def test_a_training_text_that_has_changed_is_recognized_by_its_path_only(run: Any, trained: Path) -> None:
    Path("fox.txt").write_text("now it is another text, and a short one")
    Path("other.txt").write_text("now it is another text, and a short one")
    changed = run("evaluate", "fox", "fox.txt").stderr
    assert "note: fox was trained on fox.txt, or on an earlier version of it" in changed
    assert "note:" not in run("evaluate", "fox", "other.txt").stderr


@pytest.fixture
def tuned(run: Any, trained: Path) -> Path:
    """A run of other.txt, called tuned, that was fine-tuned from fox."""
    Path("other.txt").write_text("a text about a cat that sleeps; " * 60)
    result = run("train", "other.txt", "--from", "fox", "--name", "tuned", *TUNING)
    assert result.exit_code == 0, result.stderr
    return Path("checkpoints/tuned")


def test_the_training_text_of_the_base_model_is_recognized(run: Any, tuned: Path, trained: Path) -> None:
    Path("third.txt").write_text("a text that nobody has read")
    of_base = f"the base model {trained}"
    assert (
        f"note: fox.txt is the text that {of_base} was trained on, so these figures say little about other text\n"
        in run("evaluate", "tuned", "fox.txt").stderr
    )
    assert "note: other.txt is the text that tuned was trained on" in run("evaluate", "tuned", "other.txt").stderr
    assert "note:" not in run("evaluate", "tuned", "third.txt").stderr
    (trained / "training.json").unlink()
    unknown = run("evaluate", "tuned", "third.txt").stderr
    assert f"note: third.txt was not compared with the training text of {of_base}\n" in unknown


def test_a_held_out_part_that_the_base_model_may_have_read_is_noted(run: Any, tuned: Path, trained: Path) -> None:
    held_out = run("evaluate", "tuned", "--held-out")
    assert held_out.exit_code == 0, held_out.stderr
    expected = f"note: the held-out part was not compared with the training text of the base model {trained}\n"
    assert expected in held_out.stderr
    run("train", "fox.txt", "--from", "fox", "--name", "again", *TUNING)  # the same part of the same text is held out
    again = run("evaluate", "again", "--held-out")
    assert again.exit_code == 0, again.stderr
    assert "note:" not in again.stderr


def test_an_earlier_text_of_the_run_is_not_forgotten(run: Any, trained: Path) -> None:
    Path("other.txt").write_text("the lazy fox jumps; " * 60)
    changed = run("train", "other.txt", "--name", "fox", "--resume", "--steps", "9", "--allow-change", "--no-report")
    assert changed.exit_code == 0, changed.stderr
    for arguments, what in ((["fox.txt"], "fox.txt"), (["--held-out"], "the held-out part")):
        evaluated = run("evaluate", "fox", *arguments)
        assert evaluated.exit_code == 0, evaluated.stderr
        assert f"note: {what} was not compared with the text that fox was trained on up to step " in evaluated.stderr


@pytest.mark.parametrize(
    ("trained_on", "evaluated_on", "tokens", "said"),
    [
        ("all", "all", 10_000, "on the same tokens"),
        ("all", "all", 12_000, "on 10,000 of these tokens"),
        ("all", "assistant", 4_000, "on 10,000 tokens of all turns"),
        ("user", "all", 14_000, "on 10,000 tokens of the user's turns only"),
        ("user", "system", 10_000, "on 10,000 tokens of the user's turns only"),
    ],
)
def test_the_result_of_the_run_is_named_by_the_turns_it_was_measured_on(
    trained_on: str, evaluated_on: str, tokens: int, said: str
) -> None:
    result = Result(validation_loss=2.0, bits_per_byte=1.0, validation_tokens=10_000)
    measured = EvaluationResult(2.0, tokens, 40_000, 16, 16)
    note = recorded_text(result, trained_on, 16, measured, evaluated_on)
    assert note == f"at the end of training: loss 2.0000, 1.0000 bits per byte, {said}"
    for context, stride in ((16, 8), (8, 8)):
        note = recorded_text(result, trained_on, 16, replace(measured, context=context, stride=stride), evaluated_on)
        assert note.endswith(f"{said}, in windows of 16 without overlap")


def test_a_chat_log_evaluated_on_one_role_is_not_compared_with_its_tokens(
    run: Any, tiny: list[str], here: Path
) -> None:
    turns = [{"role": "user", "content": "Say it."}, {"role": "assistant", "content": "it " * 9}]
    Path("log.jsonl").write_text((json.dumps({"messages": turns}) + "\n") * 40)
    assert run("train", "log.jsonl", *tiny, "--no-report").exit_code == 0
    shown = " ".join(run("evaluate", "log", "--held-out", "--loss-on", "assistant").stdout.split())
    assert "tokens of all turns" in shown
    assert "of these tokens" not in shown
