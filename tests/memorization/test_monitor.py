"""The notices about memorization, from made-up figures and a small text."""

from pathlib import Path

import pytest
from builders import new_model

from minigpt.data.corpus import Corpus
from minigpt.memorization import monitor as memorization
from minigpt.memorization.index import MemorizationIndex, TrainingLocation
from minigpt.memorization.monitor import MemorizationMonitor

MODEL = new_model()  # which is not measured
TEXT = " ".join(f"w{number}" for number in range(3000))


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    """A text of 3000 different words."""
    (tmp_path / "text.txt").write_text(TEXT)
    return Corpus.build(tmp_path / "text.txt", "bytes", cache=tmp_path / "cache", validation_fraction=0)


def copied(words: int) -> str:
    """A sample with so many copied words in a row."""
    return "new " + " ".join(f"w{number}" for number in range(100, 100 + words)) + " new"


def steps_of_notices(corpus: Corpus, losses: list[float], longest: dict[int, int]) -> list[int]:
    """The steps of the samples with a notice; every tenth step has an evaluation."""
    monitor, steps = MemorizationMonitor(corpus), []
    for number, loss in enumerate(losses):
        monitor.on_evaluation(MODEL, 10 * number, loss)
        if 10 * number in longest:
            monitor.measure(10 * number, copied(longest[10 * number]), "", 60)
            steps += [10 * number] if monitor.take_notices() else []
    return steps


FALLING = [5, 4, 3, 2.5, 2, 1.8, 1.6, 1.5, 1.4, 1.3]
RISING = [5, 4, 3, 2.5, 2.5, 2.6, 2.8, 3, 3.2, 3.4]
FLAT = [5, 4, 3, 2.5, 2.499, 2.498, 2.497, 2.496, 2.495, 2.494]
GROWING = {0: 0, 30: 2, 60: 9, 90: 20}


def test_rising_or_flat_validation_while_samples_copy_more_is_reported_once(corpus: Corpus) -> None:
    assert steps_of_notices(corpus, RISING, GROWING) == [60]
    assert steps_of_notices(corpus, FLAT, GROWING) == [60]


def test_nothing_is_reported_while_validation_improves_or_samples_do_not_copy_more(corpus: Corpus) -> None:
    assert steps_of_notices(corpus, FALLING, GROWING) == []
    assert steps_of_notices(corpus, RISING, {0: 9, 30: 9, 60: 9, 90: 9}) == []
    ordinary_phrases = {0: 0, 30: 2, 60: 5, 90: 7}  # words in a row that any text may share
    assert steps_of_notices(corpus, RISING, ordinary_phrases) == []
    assert steps_of_notices(corpus, RISING[:3], {0: 0, 20: 20}) == []


def test_the_notice_names_the_steps_and_the_number_of_words(corpus: Corpus) -> None:
    monitor = MemorizationMonitor(corpus)
    for number, loss in enumerate(RISING[:7]):
        monitor.on_evaluation(MODEL, 10 * number, loss)
        if number in (0, 6):
            monitor.measure(10 * number, copied(15 if number else 1), "", 60)
    (notice,) = monitor.take_notices()
    assert notice.startswith("step 60: validation has not improved since step 30")
    assert "15 words" in notice


def test_a_resumed_run_reads_its_log(corpus: Corpus) -> None:
    log = [{"step": 10 * number, "validation_loss": loss} for number, loss in enumerate(RISING[:6])]
    log += [{"step": 30, "sample": "…", "longest_copied_words": 2}, {"step": 31, "loss": 1.0}]
    monitor = MemorizationMonitor(corpus)
    monitor.load_log(log, log[:6])
    monitor.on_evaluation(MODEL, 60, RISING[6])
    monitor.measure(60, copied(12), "", 60)
    assert len(monitor.take_notices()) == 1
    fresh = MemorizationMonitor(corpus)
    fresh.on_evaluation(MODEL, 60, RISING[6])
    fresh.measure(60, copied(12), "", 60)
    assert fresh.take_notices() == []
    of_another_text = MemorizationMonitor(corpus)
    of_another_text.load_log(log, [])
    of_another_text.on_evaluation(MODEL, 60, RISING[6])
    of_another_text.measure(60, copied(12), "", 60)
    assert of_another_text.take_notices() == []


def test_a_run_that_is_rolled_back_drops_later_figures(corpus: Corpus) -> None:
    monitor = MemorizationMonitor(corpus)
    for step in (0, 10, 20, 30):
        monitor.on_evaluation(MODEL, step, 1.0)
        if step == 0:
            monitor.measure(0, copied(1), "", 60)
    monitor.measure(30, copied(3), "", 60)
    monitor.on_evaluation(MODEL, 12, 1.0)  # the run was rolled back to step 10
    monitor.measure(12, copied(20), "", 60)
    assert monitor.take_notices() == []


def test_the_index_is_limited_by_the_duration_of_the_run_and_that_is_reported(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def open_index(corpus: Corpus, most_bytes: int) -> MemorizationIndex:
        asked.append(most_bytes)
        return MemorizationIndex.build(corpus, most_bytes)

    monkeypatch.setattr("minigpt.memorization.index._BLOCK", 64)
    monkeypatch.setattr(memorization, "_MIN_BYTES", 1000)
    monkeypatch.setattr(MemorizationIndex, "open", open_index)
    short = MemorizationMonitor(corpus)
    short.measure(1, copied(5), "", run_seconds=0.1)
    (notice,) = short.take_notices()
    assert "spread evenly: more would take over 1 % of the run" in notice
    long = MemorizationMonitor(corpus)
    long.measure(1, copied(5), "", run_seconds=1e6)
    assert long.take_notices() == []
    assert asked[0] < len(TEXT) == asked[1]


def test_the_text_is_indexed_once(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = MemorizationMonitor(corpus)
    first = monitor.measure(1, copied(5), "", 60)
    monkeypatch.delattr(MemorizationIndex, "open")
    assert monitor.measure(2, copied(5), "", 60) == first


def test_the_longest_copied_run_is_located_if_it_is_long(corpus: Corpus, tmp_path: Path) -> None:
    monitor = MemorizationMonitor(corpus)
    assert monitor.locate(monitor.measure(1, copied(5), "", 60)) is None
    assert monitor.locate(monitor.measure(2, copied(8), "", 60)) == TrainingLocation(document=1, line=1)
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(TEXT.split()))
    monitor = MemorizationMonitor(Corpus.build(lines, "bytes", cache=tmp_path / "cache", validation_fraction=0))
    assert monitor.locate(monitor.measure(1, copied(8), "", 60)) == TrainingLocation(document=1, line=101)
