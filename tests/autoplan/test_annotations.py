"""Which baselines a run beats, and how much its samples copy, from made-up logs."""

from typing import Any

from minigpt.autoplan.annotations import result_text, targets_text, unbeaten_baselines
from minigpt.baselines.baselines import Baseline
from minigpt.memorization.drawing import samples_text
from minigpt.training.events import Finished


def baseline(name: str, bits: float, train: int = 0) -> Baseline:
    return Baseline(
        name=name,
        bits_per_byte=bits,
        train_bytes=train,
        validation_bytes=50,
        whole_train_bytes=1000,
        whole_validation_bytes=50,
    )


BASELINES = [
    baseline("bytes", 4.5, 1000), baseline("gzip", 3.0), baseline("xz", 2.5, 1000), baseline("5-gram", 2.2, 66)
]  # fmt: skip


def log(*bits: float) -> list[dict[str, Any]]:
    """Evaluations at every tenth step, and the steps between."""
    found: list[dict[str, Any]] = []
    for number, figure in enumerate(bits):
        found += [{"step": 10 * number, "bits_per_byte": figure}, {"step": 10 * number + 1, "loss": 2.0}]
    return found


def finished(bits: float | None, best_step: int) -> Finished:
    return Finished(30, "length", best_step, bits, bits, 50, 1.0)


def test_the_result_is_judged_by_the_final_evaluation_and_the_log_gives_the_step() -> None:
    descent = log(5.0, 4.0, 2.9, 2.6)
    assert result_text(descent, BASELINES, finished(2.49, 30)) == (
        "beats bytes (since step 10), gzip (since step 20) and xz (at the end)"
    )
    assert (
        result_text(descent, BASELINES, finished(2.55, 30))
        == "beats bytes (since step 10) and gzip (since step 20); not yet xz (2.5000)"
    )
    assert result_text(log(5.0, 2.4), BASELINES, finished(2.55, 10)) == (
        "beats bytes (since step 10) and gzip (since step 10); not yet xz (2.5000)"
    )


def test_the_best_weights_are_judged_not_the_last_ones() -> None:
    risen = log(5.0, 4.0, 2.4, 3.5)
    assert result_text(risen, BASELINES, finished(2.4, 20)) == (
        "beats bytes (since step 10), gzip (since step 20) and xz (since step 20)"
    )


def test_a_baseline_that_the_untrained_model_beats_is_not_named() -> None:
    assert result_text(log(3.4, 2.9), BASELINES, finished(2.9, 10)) == "beats gzip (since step 10); not yet xz (2.5000)"
    assert result_text(log(2.0, 1.9), BASELINES, finished(1.9, 10)) is None


def test_without_a_measurement_there_is_no_result() -> None:
    assert result_text([], BASELINES, finished(None, 0)) is None
    assert result_text(log(5.0), [], finished(2.0, 0)) is None


def test_a_baseline_that_saw_part_of_the_text_is_named_so_and_never_beaten() -> None:
    assert [one.name for one in unbeaten_baselines(BASELINES, [])] == ["bytes", "gzip", "xz"]
    text = targets_text(unbeaten_baselines(BASELINES, log(3.4)), BASELINES)
    assert text == (
        "baselines to beat, in bits per byte of the held-out text: gzip 3.0000, xz 2.5000\n"
        "not comparable, because they saw only part of the text: 5-gram (trained on 66 B) 2.2000"
    )
    assert "5-gram" not in str(result_text(log(5.0, 1.0), BASELINES, finished(1.0, 10)))
    assert targets_text([], BASELINES[:3]) is None


def test_the_last_three_samples_of_a_log_are_summarized() -> None:
    lines = [
        {"step": step, "sample": "…", "copied_share": share, "longest_copied_words": words, "copied_at_least": 8}
        for step, share, words in [(1, 1.0, 90), (2, 0.0, 3), (3, 0.5, 12), (4, 0.25, 9)]
    ]
    assert samples_text(lines) == "25% of the last 3 samples, in runs of 8 words or more; longest run 12 words"
    assert samples_text(lines[1:2]) == "0% of the last sample, in runs of 8 words or more; longest run 3 words"
    unspaced = [line | {"longest_copied_words": 0, "longest_copied_unspaced": 23} for line in lines]
    assert (
        samples_text(unspaced[1:2])
        == "0% of the last sample, in runs of 20 characters or more; longest run 23 characters"
    )
    both = "in runs of 8 words or 20 characters or more; longest run 12 words"
    assert samples_text([*lines[:2], unspaced[0] | {"longest_copied_unspaced": 3}, lines[2]]).endswith(both)
    assert samples_text([{"step": 0, "sample": "not compared with the text"}]) is None
