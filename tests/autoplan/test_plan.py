"""The settings that a plan chooses, on invented machines and texts."""

import itertools
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minigpt.autoplan import plan_settings as planning
from minigpt.autoplan.corpus_stats import CorpusStats
from minigpt.autoplan.defaults import eval_tokens
from minigpt.autoplan.expectation import expected_range
from minigpt.autoplan.memory_estimates import state_bytes
from minigpt.autoplan.plan_settings import plan_preset, plan_settings
from minigpt.autoplan.planned_settings import PlannedSettings
from minigpt.autoplan.throughput import StepTimer
from minigpt.config import PRESETS, GPTConfig, TrainConfig, preset_config
from minigpt.data.corpus import Corpus
from minigpt.distributed.settings import DistributedSettings
from minigpt.errors import ConfigError, TrainingError
from minigpt.lora.settings import LoraSettings
from minigpt.run_options import RunOptions
from minigpt.tricks.settings import TrickSettings

BOOK = CorpusStats(n_tokens=400_000, n_bytes=1_200_000, vocab_size=2048, entropy=2.3)


def machine(flops: float, *dtypes: str, gain: float = 1.0) -> StepTimer:
    """A machine with `flops` floating-point operations per second, and `gain` times as many in bfloat16; `dtypes` are
    the candidates."""

    def seconds_per_step(model: GPTConfig, config: TrainConfig) -> float:
        assert config.context_length is not None
        rate = flops * (gain if config.dtype == "bfloat16" else 1.0)
        return 6 * model.n_parameters * config.sequences_per_step * config.context_length / rate

    return StepTimer(seconds_per_step, dtypes)


def planned(
    stats: CorpusStats = BOOK, free_memory: int = sys.maxsize, flops: float = 1e11, **given: Any
) -> PlannedSettings:
    device_type, processes = given.pop("device_type", "cpu"), given.pop("processes", 1)
    preset, base = given.pop("preset", "nano"), given.pop("base", None)
    timer = given.pop("timer", None) or machine(flops)
    return plan_settings(
        stats, RunOptions.of(given), device_type=device_type, free_memory=free_memory, preset=preset, base=base,
        timer=timer, processes=processes,
    )  # fmt: skip


def chosen_preset(stats: CorpusStats = BOOK, free_memory: int = sys.maxsize, *, timer: StepTimer, **given: Any) -> str:
    return plan_preset(stats, "cpu", free_memory, RunOptions.of(given), timer)


@pytest.mark.parametrize(
    ("given", "chosen"), [({"minutes": 1.0}, "nano"), ({"minutes": 3.0}, "micro"), ({"epochs": 9}, "gpt2-medium")]
)
def test_measuring_takes_at_most_a_tenth_of_the_minutes(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], chosen: str
) -> None:
    seconds = itertools.count(step=10)  # at each call
    monkeypatch.setattr(planning, "time", SimpleNamespace(perf_counter=lambda: next(seconds)))
    library = replace(BOOK, n_tokens=10**9, n_bytes=3 * 10**9)
    assert chosen_preset(library, timer=machine(1e17), **given) == chosen


def test_a_faster_machine_or_more_time_gets_a_larger_model() -> None:
    def chosen(flops: float, minutes: float) -> int:
        return PRESETS[chosen_preset(library, minutes=minutes, timer=machine(flops))].n_parameters

    library = replace(BOOK, n_tokens=4_000_000, n_bytes=12_000_000)

    assert chosen(1e10, 1) == PRESETS["nano"].n_parameters
    assert chosen(1e13, 1) > chosen(1e10, 1)
    assert chosen(1e11, 600) > chosen(1e11, 1)


def test_a_short_text_or_few_steps_get_a_small_model_on_any_machine() -> None:
    tiny = CorpusStats(n_tokens=2000, n_bytes=5000, vocab_size=257, entropy=3.0)
    assert chosen_preset(tiny, timer=machine(1e15)) == "nano"
    assert chosen_preset(minutes=600, timer=machine(1e15)) == "nano"
    two_books = replace(BOOK, n_tokens=800_000, n_bytes=2_400_000)
    assert chosen_preset(two_books, minutes=600, timer=machine(1e15)) == "micro"
    assert chosen_preset(steps=100_000, timer=machine(1e10)) == "nano"


def test_a_preset_too_large_for_the_memory_is_neither_measured_nor_chosen() -> None:
    large = replace(BOOK, n_bytes=10**9, n_tokens=300_000_000)
    measured: set[int] = set()

    def seconds_per_step(model: GPTConfig, config: TrainConfig) -> float:
        measured.add(model.n_embd)
        return machine(1e15).measure(model, config)

    assert chosen_preset(large, minutes=600, timer=StepTimer(seconds_per_step)) == "gpt2-medium"
    assert measured == {128, 192, 384, 512, 768, 1024}
    measured.clear()
    assert chosen_preset(large, free_memory=10**9, minutes=600, timer=StepTimer(seconds_per_step)) == "small"
    assert measured == {128, 192, 384, 512}


def test_a_preset_that_runs_out_of_memory_while_measured_is_not_chosen() -> None:
    def seconds_per_step(model: GPTConfig, config: TrainConfig) -> float:
        if model.n_embd > least:
            raise TrainingError("more than the memory holds")
        return machine(1e15).measure(model, config)

    least = 128
    assert chosen_preset(minutes=600, timer=StepTimer(seconds_per_step)) == "nano"
    least = 0  # planning the run then raises the reason
    assert chosen_preset(minutes=600, timer=StepTimer(seconds_per_step)) == "nano"
    with pytest.raises(TrainingError, match="more than the memory holds"):
        planned(minutes=600, timer=StepTimer(seconds_per_step))


@pytest.mark.parametrize(
    ("preset", "tokens"), [("nano", 1024), ("micro", 1024), ("mini", 1536), ("small", 2048), ("gpt2", 3072)]
)
def test_a_muon_step_on_a_cpu_has_at_least_four_tokens_per_feature(preset: str, tokens: int) -> None:
    assert planned(preset=preset).tokens_per_step == tokens
    assert planned(preset=preset, optimizer="adamw").tokens_per_step == 1024
    assert planned(preset=preset, device_type="cuda").tokens_per_step == 16_384


@pytest.mark.parametrize(
    ("vocab_size", "given", "sampled"),
    [
        (2048, {}, 0),
        (4096, {}, 2048),
        (16_384, {}, 2048),
        (32_768, {}, 2048),
        (50_257, {}, 6282),
        (16_384, {"sampled_softmax": 0}, 0),
        (16_384, {"sampled_softmax": 500}, 500),
        (16_384, {"device_type": "cuda"}, 0),
        (16_384, {"base": PRESETS["nano"]}, 0),
        (16_384, {"minutes": 60}, 2048),
        (16_384, {"minutes": 60, "sampled_softmax": 500}, 500),
    ],
)
def test_a_new_model_with_a_large_vocabulary_samples_it_on_a_cpu(
    vocab_size: int, given: dict[str, Any], sampled: int
) -> None:
    made = planned(replace(BOOK, vocab_size=vocab_size), **({"minutes": 1} | given))
    assert TrickSettings.of(made.training).sampled_softmax == sampled
    assert made.is_usual == (not {"sampled_softmax", "base"} & given.keys())


def test_the_sample_is_a_part_of_the_arithmetic_of_training_and_of_no_evaluation() -> None:
    shape = PRESETS["nano"].replace(vocab_size=16_384)
    exact, sampled = (TrainConfig(context_length=64, sampled_softmax=size) for size in (0, 2048))
    assert exact.flops_per_token(shape) == shape.flops_per_token(64)
    assert sampled.flops_per_token(shape) == shape.replace(vocab_size=2048).flops_per_token(64)
    assert TrainConfig(sampled_softmax=20_000).flops_per_token(shape) == shape.flops_per_token(128)
    assert eval_tokens(4e6, shape, sampled) < 0.5 * eval_tokens(4e6, shape, exact)


@pytest.mark.parametrize(
    ("seen", "tokens"),
    [(1e4, 1024), (2e5, 2250), (3e5, 3375), (5e5, 4096), (9e5, 4096), (4e6, 18_000), (1e9, 200_000)],
)
def test_a_short_run_has_fewer_evaluations_of_at_least_1024_tokens(seen: float, tokens: int) -> None:
    """A long one has twenty, of 0.0045 tokens for each that it trains on."""
    assert eval_tokens(seen, PRESETS["nano"].replace(vocab_size=512), TrainConfig(context_length=64)) == tokens


def test_given_settings_are_kept() -> None:
    given = {
        "n_embd": 64,
        "n_head": 2,
        "dropout": 0.3,
        "batch_size": 3,
        "learning_rate": 0.5,
        "steps": 7,
        "patience": 9,
    }
    made = planned(**given)
    assert {name: getattr(made.model, name, None) or getattr(made.training, name, None) for name in given} == given
    assert made.training.minutes is None


def test_the_faster_dtype_is_chosen_and_explained() -> None:
    exact = planned(minutes=3)
    timer = machine(1e11, "float32", "bfloat16", gain=1.5)
    made = planned(minutes=3, timer=timer)
    assert made.training.dtype == "bfloat16"
    assert made.seconds_per_step == pytest.approx(exact.seconds_per_step / 1.5)
    assert made.why_dtype == "1.5 times as fast here as float32"
    assert made.expected is not None
    assert exact.expected is not None
    assert made.expected.low < exact.expected.low  # it takes more steps in the same time
    short = planned(minutes=0.5, timer=timer)  # planned twice, for the shorter context
    assert (short.training.dtype, short.training.context_length) == ("bfloat16", 64)
    for given in ("float32", "bfloat16"):
        made = planned(minutes=3, dtype=given, timer=machine(1e11, "float32", "bfloat16", gain=1.5))
        assert (made.training.dtype, made.why_dtype) == (given, "")


def test_expected_bits_per_byte_fall_with_time_and_rise_with_entropy() -> None:
    expected = [planned(minutes=minutes).expected for minutes in (0.5, 1, 3)]
    assert all(expected)
    assert expected == sorted(expected, key=lambda each: -each.low if each else 0)
    harder = planned(replace(BOOK, entropy=2.8), minutes=3).expected
    assert harder is not None
    assert expected[-1] is not None
    assert harder.low > expected[-1].low
    assert harder.high > expected[-1].high


def test_a_run_with_a_sampled_softmax_is_expected_to_end_six_percent_lower() -> None:
    large = replace(BOOK, vocab_size=8192)
    made = planned(large, minutes=1, timer=machine(1e11))
    assert TrickSettings.of(made.training).sampled_softmax == 2048
    assert made.expected is not None
    exact = expected_range(made.model, made.tokens_seen, large)
    assert exact is not None
    assert (made.expected.low, made.expected.high) == pytest.approx((0.943 * exact.low, 0.943 * exact.high))


@pytest.mark.parametrize(
    ("stats", "given"),
    [
        (CorpusStats(n_tokens=2700, n_bytes=2700, vocab_size=257, entropy=3.0), {}),  # a tiny text
        (replace(BOOK, entropy=None), {}),  # nothing held out
        (replace(BOOK, entropy=6.0), {}),  # noise
        (BOOK, {"steps": 3}),
        (BOOK, {"n_layer": 3}),
        (BOOK, {"tokenizer": "bpe:2048"}),
        (BOOK, {"learning_rate": 0.1}),
        (BOOK, {"preset": "gpt2"}),
        (BOOK, {"base": PRESETS["nano"]}),
    ],
)
def test_nothing_is_expected_outside_the_range_of_the_experiments(stats: CorpusStats, given: dict[str, Any]) -> None:
    assert planned(minutes=1).expected is not None
    assert planned(stats, **({"minutes": 1} if "steps" not in given else {}) | given).expected is None


@pytest.mark.parametrize("given", [{"context_length": 64}, {"seed": 3}, {"preset": "micro"}, {"eval_every": 7}])
def test_settings_that_the_model_does_not_learn_from_leave_the_expectation(given: dict[str, Any]) -> None:
    assert (planned(minutes=1, **given).expected is None) == ("context_length" in given)


def test_a_text_of_a_few_tokens_gets_steps_and_a_context_that_fits() -> None:
    made = planned(CorpusStats(n_tokens=50, n_bytes=50, vocab_size=257, entropy=8.0))
    assert made.training.steps == 300
    assert made.model.n_positions == made.training.context_length == 49
    assert "only 50 tokens" in made.notes[0]


def test_a_short_run_gets_a_short_context_unless_one_is_given() -> None:
    assert planned(minutes=0.5).training.context_length == 64
    assert planned(minutes=50).training.context_length == 128
    assert planned(minutes=0.5, context_length=128).training.context_length == 128


@pytest.mark.parametrize(
    ("conversation", "minutes", "context"),
    [(20, 50, 128), (128, 50, 128), (129, 50, 256), (300, 50, 512), (9000, 50, 512), (300, 0.5, 128), (300, 1.2, 256)],
)
def test_the_context_holds_the_conversations_of_a_chat_log_if_a_run_reads_enough_sequences(
    conversation: int, minutes: float, context: int
) -> None:
    log = replace(BOOK, conversation=conversation)
    made = planned(log, minutes=minutes)
    assert made.training.context_length == made.model.n_positions == context
    gpt2 = preset_config("gpt2").replace(vocab_size=log.vocab_size)
    assert planned(log, minutes=minutes, base=gpt2).training.context_length == (512 if conversation > 256 else 256)


def test_the_length_of_conversations_is_that_of_a_long_one_of_a_chat_log_only(tmp_path: Path) -> None:
    lines = [[{"role": "user", "content": "a" * (10 + 10 * number)}] for number in range(20)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "book.txt").write_text("a word, " * 100)
    log, book = (Corpus.build(tmp_path / name, "bytes", cache=tmp_path) for name in ("log.jsonl", "book.txt"))
    lengths = sorted(len(text) for text in log.tokenizer.decode(log.train.tolist()).split("<|endoftext|>")[:-1])
    assert CorpusStats.of(log, []).conversation in range(lengths[-3], lengths[-1] + 2)
    assert CorpusStats.of(book, []).conversation == 0


def test_a_text_seen_many_times_gets_bpe_dropout_and_then_dropout() -> None:
    once, often = planned(minutes=0.1), planned(minutes=100)
    tricks = TrickSettings.of(once.training)
    assert once.model.dropout == tricks.bpe_dropout == tricks.token_noise == 0
    assert often.model.dropout > 0
    assert TrickSettings.of(often.training).bpe_dropout == 0.05
    assert TrickSettings.of(often.training).token_noise == 0
    without = planned(minutes=100, bpe_dropout=0.0)
    assert TrickSettings.of(without.training).token_noise == 0  # not replaced by another kind of noise


@pytest.mark.parametrize(("epochs", "rate"), [(1.9, 0.0), (2, 0.02), (8.9, 0.02), (9, 0.03), (12.9, 0.03), (13, 0.05)])
def test_bpe_dropout_grows_with_the_passes_over_the_text(epochs: float, rate: float) -> None:
    assert TrickSettings.of(planned(epochs=epochs).training).bpe_dropout == rate


@pytest.mark.parametrize(
    ("new_words", "epochs", "rate"),
    [(0.1, 0.4, 0.0), (0.1, 0.5, 0.02), (0.5, 1.9, 0.02), (0.5, 9, 0.03), (0.09, 1.9, 0.0), (None, 1.9, 0.0)],
)
def test_a_text_with_many_new_words_gets_bpe_dropout_in_few_passes(
    new_words: float | None, epochs: float, rate: float
) -> None:
    assert TrickSettings.of(planned(replace(BOOK, new_words=new_words), epochs=epochs).training).bpe_dropout == rate


@pytest.mark.parametrize(
    ("given", "decay"),
    [
        ({"epochs": 0.5}, 0.1),
        ({"epochs": 4.04}, 0.4),
        ({"epochs": 9.5}, 0.95),
        ({"epochs": 30}, 1.0),
        ({"epochs": 30, "weight_decay": 0.2}, None),
        ({"epochs": 30, "embedding_weight_decay": 0.3}, 0.3),
        ({"epochs": 30, "base": PRESETS["nano"]}, None),
    ],
)
def test_the_embeddings_decay_more_the_more_often_the_text_is_read(given: dict[str, Any], decay: float | None) -> None:
    assert planned(**given).training.embedding_weight_decay == decay


@pytest.mark.parametrize(
    ("stats", "given", "features"),
    [
        (BOOK, {}, True),
        (BOOK, {"spelling_features": False}, False),
        (BOOK, {"device_type": "cuda"}, None),
        (BOOK, {"device_type": "cuda", "spelling_features": True}, True),
        (BOOK, {"base": PRESETS["nano"]}, None),
        (BOOK, {"sharding": "on", "processes": 2}, None),
        (replace(BOOK, has_merges=False), {}, False),
        (replace(BOOK, n_tokens=10**8, n_bytes=4 * 10**8), {}, False),
    ],
)
def test_a_new_model_of_a_small_text_shares_updates_by_spelling_on_a_cpu(
    stats: CorpusStats, given: dict[str, Any], features: bool | None
) -> None:
    assert TrickSettings.of(planned(stats, **given).training).spelling_features == features


def test_weights_that_are_sharded_for_lack_of_memory_do_without_spelling_features() -> None:
    options: dict[str, Any] = {"preset": "gpt2-medium", "processes": 4, "minutes": 10}
    whole = planned(**options)
    sharded = planned(**options, free_memory=whole.memory * 2 // 3)
    assert DistributedSettings.of(sharded.training).sharding == "on"
    assert not TrickSettings.of(sharded.training).spelling_features
    assert "spelling features need whole weights, so they are not used" in sharded.notes


def test_a_tokenizer_without_merges_gets_token_noise_and_refuses_bpe_dropout() -> None:
    bytes_only = replace(BOOK, has_merges=False)
    often = planned(bytes_only, minutes=100)
    assert TrickSettings.of(often.training).bpe_dropout == 0
    assert TrickSettings.of(often.training).token_noise == 0.1
    assert often.training.embedding_weight_decay is None
    with pytest.raises(ConfigError, match=r"bpe_dropout \(0\.1\) needs a tokenizer that merges bytes, bpe:N or gpt2"):
        planned(bytes_only, bpe_dropout=0.1)


def test_a_batch_larger_than_the_text_is_refused_with_what_fits() -> None:
    with pytest.raises(ConfigError, match=r"larger than the training text \(400000 tokens\); .* at most 3125"):
        planned(batch_size=4000)
    with pytest.raises(ConfigError, match=r"larger than the training text .*; give a --batch-tokens of at most 400000"):
        planned(batch_tokens=600_000)


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ({"batch_size": 31}, None),  # the run is short, so the context length is 64
        ({"batch_size": 32}, "--batch-size of at most 31"),
        ({"batch_tokens": 32 * 64}, "--batch-tokens of at most 1984"),
        ({"batch_size": 20, "minutes": 60}, "--batch-size of at most 15"),  # 128
        ({"batch_size": 20, "context_length": 128}, "--batch-size of at most 15"),
        ({"batch_size": 20, "base": PRESETS["nano"]}, "--batch-size of at most 15"),
    ],
)
def test_a_batch_is_compared_with_the_text_at_the_context_length_that_is_planned(
    given: dict[str, Any], advice: str | None
) -> None:
    short = CorpusStats(n_tokens=2000, n_bytes=5000, vocab_size=257, entropy=3.0)
    if advice is None:
        assert planned(short, **given).training.context_length == 64
        return
    with pytest.raises(ConfigError, match=f"is larger than the training text .*; give a {advice}$"):
        planned(short, **given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batch_size": 2}, r"batch_size \(2\) must be at least the number of processes \(4\)"),
        ({"batch_tokens": 192}, r"batch_tokens \(192\) must be at least 256 for 4 processes: .* of 64 tokens of"),
        ({"batch_tokens": 256, "minutes": 60}, r"batch_tokens \(256\) must be at least 512 for 4 processes"),
        ({"batch_tokens": 256, "minutes": 0.1}, None),  # so short a run has a context length of 64
        ({"batch_size": 4}, None),
        ({}, None),
    ],
)
def test_a_batch_has_a_sequence_for_each_process(given: dict[str, Any], message: str | None) -> None:
    if message is None:
        assert planned(processes=4, **given).training.sequences_per_step >= 4
        return
    with pytest.raises(ConfigError, match=message):
        planned(processes=4, **given)


@pytest.mark.parametrize(
    ("given", "length"),
    [
        ({"flops": 1e14}, (300, None)),
        ({"flops": 1e11}, (None, 5.0)),  # 300 steps of GPT-2 would take 2,000 s or more
        ({"flops": 1e11, "steps": 300}, (300, None)),
        ({"flops": 1e11, "preset": "nano"}, (300, None)),
        ({"flops": 1e11, "base": PRESETS["gpt2"]}, (None, 5.0)),
    ],
)
def test_a_tiny_text_gets_steps_unless_they_take_longer_than_five_minutes(
    given: dict[str, Any], length: tuple[int | None, float | None]
) -> None:
    letters = CorpusStats(n_tokens=12_000, n_bytes=50_000, vocab_size=50_257, entropy=2.5)
    made = planned(letters, **{"preset": "gpt2"} | given).training
    assert (made.steps, made.minutes) == length


@pytest.mark.parametrize(("given", "longest"), [({"n_embd": 32, "n_layer": 1, "n_head": 1}, 11_585), ({}, 39_592)])
def test_a_context_too_long_for_the_saved_model_to_be_loaded_is_refused_with_the_longest(
    given: dict[str, Any], longest: int
) -> None:
    given |= {"batch_size": 1}
    assert planned(context_length=longest, **given).model.n_positions == longest
    with pytest.raises(ConfigError, match=rf"^n_positions .* at most {longest:,} .* give a shorter --context-length"):
        planned(context_length=longest + 1, **given)


def test_little_memory_halves_the_micro_batch_then_recomputes_activations_then_refuses() -> None:
    needs = planned(batch_size=64).memory
    tight = planned(batch_size=64, free_memory=needs - 1)
    assert tight.training.micro_batch_size == 32
    assert tight.memory < needs
    assert "micro-batches of 32 sequences" in tight.notes[0]
    one = planned(batch_size=64, micro_batch_size=1)
    tighter = planned(batch_size=64, free_memory=one.memory - 1)
    assert tighter.training.micro_batch_size == 1
    assert tighter.training.checkpoint_activations == "on"
    with pytest.raises(ConfigError, match=r"takes about 0\.0 GB, but 0\.0 GB are free: no preset fits"):
        planned(free_memory=1000)
    with pytest.raises(ConfigError, match=r"takes about 18\.\d GB, but 8\.0 GB are free: the largest preset that fits"):
        planned(preset="gpt2-xl", free_memory=8 * 10**9)


def test_a_model_to_fine_tune_that_does_not_fit_is_refused_with_what_helps() -> None:
    base = PRESETS["gpt2-xl"]
    with pytest.raises(ConfigError, match=r"are free: give --base-dtype int8$"):
        planned(base=base, preset="", lora=True, free_memory=5 * 10**9)
    with pytest.raises(ConfigError, match=r"are free: fine-tune a smaller model$"):
        planned(base=base, preset="", lora=True, free_memory=10**9)


def test_a_model_with_a_teacher_that_does_not_fit_is_refused_with_what_helps() -> None:
    alone = planned(batch_size=1, context_length=64, distill="off", checkpoint_activations="on")
    with pytest.raises(ConfigError, match=r"are free: give --distill off$"):
        planned(batch_size=1, context_length=64, distill="on", free_memory=alone.memory)


@pytest.mark.parametrize(
    ("given", "free", "options"),
    [
        ({"batch_size": 3000, "micro_batch_size": 3000}, 2e9, "a smaller --micro-batch-size or a shorter --context-"),
        ({"batch_size": 1, "context_length": 20_000}, 0.6e9, "a shorter --context-length"),
        (
            {"batch_size": 1, "context_length": 20_000, "checkpoint_activations": "off"},
            1e9,
            "--checkpoint-activations on or a shorter --context-length",
        ),
        ({"batch_size": 1, "context_length": 39_000}, 2e9, "a shorter --context-length"),  # its mask takes 1.5 GB
    ],
)
def test_a_model_that_fits_without_its_activations_is_refused_with_the_options_that_help(
    given: dict[str, Any], free: float, options: str
) -> None:
    with pytest.raises(ConfigError, match=rf"takes about .* GB, but .* GB are free: give {options}"):
        planned(steps=1, free_memory=int(free), **given)


def test_a_model_too_large_for_one_device_is_sharded_over_several() -> None:
    xl: dict[str, Any] = {"preset": "gpt2-xl", "optimizer": "adamw", "free_memory": 23_500_000_000}
    for sharding in ("auto", "on"):
        for device_type in ("cuda", "cpu"):
            options = xl | {"device_type": device_type, "sharding": sharding}
            made = planned(processes=4, **options)
            assert made.memory < 23_500_000_000 < state_bytes(made.model, "adamw")
            assert DistributedSettings.of(made.training).sharding == "on"  # so that the processes follow the plan
    with pytest.raises(ConfigError, match="or shard the weights over several devices with --devices N --sharding"):
        planned(processes=4, device_type="cuda", sharding="off", **xl)
    with pytest.raises(ConfigError, match=r"on each device, .* over more devices than 4 with --devices N --sharding"):
        planned(processes=4, device_type="cuda", **xl | {"free_memory": 6 * 10**9})


def test_a_model_to_fine_tune_in_shards_that_does_not_fit_is_refused_for_that() -> None:
    xl: dict[str, Any] = {"base": PRESETS["gpt2-xl"], "preset": "", "processes": 2, "free_memory": 8 * 10**9}
    with pytest.raises(ConfigError, match=r"takes about .* GB on each device, but 8\.0 GB are free"):
        planned(sharding="on", **xl)
    assert LoraSettings.of(planned(**xl).training).lora


def test_a_model_that_fits_one_device_is_not_sharded_unless_asked() -> None:
    alone = planned(batch_size=8)
    several = planned(batch_size=16, processes=2)
    assert several.memory == alone.memory
    assert planned(batch_size=16, processes=2, sharding="on").memory != alone.memory


def test_gpt2_xl_fits_with_4_percent_more_memory_than_its_state() -> None:
    free = int(state_bytes(PRESETS["gpt2-xl"], "adamw") * 1.04)
    made = planned(base=PRESETS["gpt2-xl"], preset="", free_memory=free)
    assert made.training.optimizer == "adamw"
    assert made.training.checkpoint_activations == "on"


def test_a_model_to_fine_tune_keeps_its_shape_and_gets_a_small_learning_rate() -> None:
    made = planned(base=PRESETS["gpt2"], preset="", minutes=5)
    assert made.model.replace(dropout=0.0) == PRESETS["gpt2"]
    assert made.training.context_length == 256
    assert made.training.learning_rate == 5e-5
    with pytest.raises(ConfigError, match=r"context_length \(2048\) must be at most the model's own \(1024\)"):
        planned(base=PRESETS["gpt2"], preset="", context_length=2048)


@pytest.mark.parametrize(("width", "rate"), [(32, 1e-3), (128, 7.35e-4), (384, 1.41e-4), (768, 5e-5), (1600, 1.66e-5)])
def test_a_smaller_model_is_fine_tuned_with_a_larger_learning_rate(width: int, rate: float) -> None:
    made = planned(base=PRESETS["gpt2"].replace(n_embd=width, n_head=1), preset="", minutes=5)
    assert made.training.learning_rate == pytest.approx(rate, rel=0.01)


@pytest.mark.parametrize(
    ("width", "options", "embedding", "rate"),
    [
        (128, {}, True, 1e-3),
        (192, {}, True, 1e-3),
        (128, {"lora_embedding": False}, False, 5e-3),
        (128, {"freeze": 1}, False, 5e-3),
        (256, {}, False, 2.6e-3),
        (768, {}, False, 5e-4),
        (768, {"lora_embedding": True}, True, 1.25e-4),
        (768, {"lora_embedding": True, "learning_rate": 0.5}, True, 0.5),
    ],
)
def test_the_embedding_is_trained_with_the_adapter_of_a_narrow_model_at_a_smaller_learning_rate(
    width: int, options: dict[str, Any], embedding: bool, rate: float
) -> None:
    base = PRESETS["gpt2"].replace(n_embd=width, n_head=1)
    made = planned(base=base, preset="", minutes=5, lora=True, **options)
    assert LoraSettings.of(made.training).lora_embedding is embedding
    assert made.training.learning_rate == pytest.approx(rate, rel=0.01)
