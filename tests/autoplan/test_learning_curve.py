"""Whether a run was still improving, and what a longer one is expected to bring."""

import itertools
import json
from pathlib import Path

import pytest

from minigpt.autoplan import expectation
from minigpt.autoplan.corpus_stats import CorpusStats
from minigpt.autoplan.expectation import continued_range
from minigpt.autoplan.next_steps import Trend, trend
from minigpt.config import GPTConfig

EXPERIMENTS = Path(expectation.__file__).with_name("scaling.jsonl")


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        ([4.0, 3.0, 2.6, 2.4, 2.2], Trend("falling", 30, 2.4, 2.2)),
        ([4.0, 3.0, 2.5, 2.401, 2.4], Trend("flat", 30, 2.401, 2.4)),
        ([4.0, 3.0, 2.4, 2.41, 2.42], Trend("flat", 30, 2.41, 2.42)),
        ([4.0, 3.0, 2.4, 2.45, 2.5], Trend("rising", 20, 2.4, 2.5)),
        ([4.0, 3.0, 2.0], None),
    ],
)
def test_the_trend_is_that_of_the_last_quarter_or_the_rise_since_the_best(
    bits: list[float], expected: Trend | None
) -> None:
    assert trend([(10 * number, each) for number, each in enumerate(bits)]) == expected


def test_four_of_five_experiments_that_differ_in_their_length_end_in_the_range_expected_of_the_longer() -> None:
    rows = [json.loads(line) for line in EXPERIMENTS.read_text().splitlines()]
    within = []
    for short, long in itertools.permutations(rows, 2):
        same = all(short[name] == long[name] for name in ("text", "tokenizer", "shape", "dropout"))
        if not same or not short["tokens"] < long["tokens"] <= 4 * short["tokens"]:
            continue
        n_tokens = round(short["train_bytes"] / short["bytes_per_token"])
        stats = CorpusStats(n_tokens, short["train_bytes"], short["vocabulary"], short["entropy"])
        model = GPTConfig(n_layer=short["layers"], n_embd=short["width"], n_head=1)
        expected = continued_range(short["bits_per_byte"], model, short["tokens"], long["tokens"], stats)
        assert expected is not None
        within.append(expected.low <= long["bits_per_byte"] <= expected.high)
    assert len(within) >= 15
    assert sum(within) >= 0.8 * len(within)


def test_nothing_is_expected_of_a_much_longer_run_or_of_a_text_unlike_the_experiments() -> None:
    model = GPTConfig(n_layer=4, n_embd=128, n_head=4)
    stats = CorpusStats(n_tokens=150_000, n_bytes=500_000, vocab_size=2048, entropy=1.9)
    noise = CorpusStats(n_tokens=150_000, n_bytes=500_000, vocab_size=2048, entropy=7.9)
    unmeasured = CorpusStats(n_tokens=150_000, n_bytes=500_000, vocab_size=2048, entropy=None)
    assert continued_range(1.9, model, 400_000, 1_600_000, stats) is not None
    assert continued_range(1.9, model, 400_000, 1_700_000, stats) is None
    assert continued_range(1.9, model, 400_000, 400_000, stats) is None
    assert continued_range(7.9, model, 400_000, 1_600_000, noise) is None
    assert continued_range(1.9, model, 400_000, 1_600_000, unmeasured) is None
