"""The tokenizer that is chosen for a new model, on invented machines."""

import math
from typing import Any

import pytest

from minigpt.config import GPTConfig, TrainConfig
from minigpt.planning.vocabulary import choose_tokenizer, expected_passes, plan_tokenizer
from minigpt.run_options import RunOptions


def tokens_per_second(speed: float, measured: list[TrainConfig] | None = None) -> Any:
    """A machine that trains on so many tokens per second; adds the settings that are measured to the list."""

    def seconds_per_step(_model: GPTConfig, config: TrainConfig) -> float:
        if measured is not None:
            measured.append(config)
        return config.sequences_per_step * (config.context_length or 0) / speed

    return seconds_per_step


def chosen(text_bytes: int, speed: float, **options: Any) -> str:
    return choose_tokenizer(text_bytes, RunOptions.of(options), "cpu", "float32", tokens_per_second(speed))


def test_the_vocabulary_size_grows_with_the_text() -> None:
    sizes = (1000, 40_000, 300_000, 1_115_394, 3_262_608, 10**8, 10**9)
    assert [plan_tokenizer(size) for size in sizes] == [
        "bytes", "bpe:512", "bpe:1024", "bpe:4096", "bpe:8192", "bpe:16384", "gpt2"
    ]  # fmt: skip


def test_a_text_that_is_read_seldom_gets_twice_the_vocabulary() -> None:
    sizes = (1000, 40_000, 300_000, 1_115_394, 3_262_608, 10**8, 10**9)
    assert [plan_tokenizer(size, passes=3) for size in sizes] == [
        "bytes", "bpe:512", "bpe:2048", "bpe:8192", "bpe:16384", "bpe:16384", "gpt2"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("speed", "options", "tokenizer"),
    [
        (1_000, {"minutes": 1}, "bpe:8192"),
        (100_000, {"minutes": 1}, "bpe:4096"),
        (10_000, {"minutes": 1}, "bpe:8192"),
        (10_000, {"minutes": 30}, "bpe:4096"),
        (1e9, {"epochs": 2}, "bpe:8192"),
        (1, {"epochs": 20}, "bpe:4096"),
        (1e9, {"steps": 100}, "bpe:8192"),
        (1, {"steps": 100_000}, "bpe:4096"),
    ],
)
def test_more_time_or_a_faster_machine_reads_the_text_more_often(
    speed: float, options: dict[str, Any], tokenizer: str
) -> None:
    assert chosen(1_115_394, speed, **options) == tokenizer


def test_without_a_length_the_usual_five_minutes_count() -> None:
    given = (RunOptions.of(options) for options in ({}, {"minutes": 5.0}))
    usual, five = (expected_passes(10**6, each, "cpu", "float32", tokens_per_second(5_000)) for each in given)
    assert usual == five == pytest.approx(5_000 * 300 * 0.85 * 4 / 10**6, rel=0.01)


def test_the_machine_is_measured_once_and_only_if_the_choice_depends_on_it() -> None:
    measured: list[TrainConfig] = []
    for text_bytes in (1000, 40_000, 10**8, 10**9):
        choose_tokenizer(text_bytes, RunOptions.of({}), "cpu", "bfloat16", tokens_per_second(1e4, measured))
    assert measured == []
    choose_tokenizer(10**6, RunOptions.of({"distill": "on"}), "cpu", "bfloat16", tokens_per_second(1e4, measured))
    assert [(config.dtype, config.distill) for config in measured] == [("bfloat16", "off")]


def test_options_that_cannot_be_combined_are_left_to_the_plan_of_the_run() -> None:
    given = RunOptions.of({"batch_size": 10_000, "context_length": 1000, "minutes": 1})
    assert expected_passes(10**6, given, "cpu", "float32", tokens_per_second(1e4)) == math.inf


def test_a_given_preset_is_the_one_that_is_measured() -> None:
    widths: list[int] = []

    def seconds_per_step(model: GPTConfig, _config: TrainConfig) -> float:
        widths.append(model.n_embd)
        return 1.0

    choose_tokenizer(10**6, RunOptions.of({"preset": "mini", "n_embd": 96}), "cpu", "float32", seconds_per_step)
    assert widths == [96]
