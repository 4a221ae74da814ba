"""What a run is said to beat, and to copy, from made-up logs."""

from typing import Any

from minigpt.cli.standing import challenge, copied, standing, to_beat
from minigpt.evaluation.baselines import Baseline
from minigpt.training.events import Finished


def baseline(name: str, bits: float, train: int = 0) -> Baseline:
    return Baseline(name, bits, train, 50, 1000, 50)


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


def test_the_end_is_judged_by_its_own_figure_and_the_log_says_since_when() -> None:
    descent = log(5.0, 4.0, 2.9, 2.6)
    assert standing(descent, BASELINES, finished(2.49, 30)) == "bytes since step 10, gzip since step 20, xz in the end"
    assert (
        standing(descent, BASELINES, finished(2.55, 30))
        == "bytes since step 10, gzip since step 20, not than xz (2.50)"
    )
    assert standing(log(5.0, 2.4), BASELINES, finished(2.55, 10)) == (
        "bytes since step 10, gzip since step 10, not than xz (2.50)"
    )


def test_the_best_weights_are_judged_not_what_was_unlearnt_after_them() -> None:
    risen = log(5.0, 4.0, 2.4, 3.5)
    assert standing(risen, BASELINES, finished(2.4, 20)) == "bytes since step 10, gzip since step 20, xz since step 20"


def test_what_the_untrained_model_is_below_is_no_achievement() -> None:
    assert standing(log(3.4, 2.9), BASELINES, finished(2.9, 10)) == "gzip since step 10, not than xz (2.50)"
    assert standing(log(2.0, 1.9), BASELINES, finished(1.9, 10)) is None


def test_nothing_is_said_where_nothing_was_measured() -> None:
    assert standing([], BASELINES, finished(None, 0)) is None
    assert standing(log(5.0), [], finished(2.0, 0)) is None


def test_what_saw_a_part_of_the_text_is_named_so_and_never_beaten() -> None:
    assert [one.name for one in to_beat(BASELINES, [])] == ["bytes", "gzip", "xz"]
    text = challenge(to_beat(BASELINES, log(3.4)), BASELINES)
    assert text == (
        "to beat, in bits per byte of the held-out text: gzip 3.00, xz 2.50\n"
        "of a part of the text, too little to compare with: 5-gram of 66 B 2.20"
    )
    assert "5-gram" not in str(standing(log(5.0, 1.0), BASELINES, finished(1.0, 10)))
    assert challenge([], BASELINES[:3]) is None


def test_the_last_three_samples_of_a_log_are_told_of() -> None:
    lines = [
        {"step": step, "sample": "…", "copied_share": share, "longest_copied_words": words, "copied_at_least": 8}
        for step, share, words in [(1, 1.0, 90), (2, 0.0, 3), (3, 0.5, 12), (4, 0.25, 9)]
    ]
    assert copied(lines) == "25% of the last 3 samples, in runs of 8 words or more; longest 12 words"
    assert copied(lines[1:2]) == "0% of the last sample, in runs of 8 words or more; longest 3 words"
    assert copied([{"step": 0, "sample": "of an earlier version"}]) is None
