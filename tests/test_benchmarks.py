"""The arithmetic of the benchmarks, and their use of minigpt; no peer is needed."""

import importlib
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from minigpt import GPT, GPTConfig, evaluate

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
NAMES = ("measuring", "peers", "own_loop", "training", "time_to_quality", "scaling")


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports a benchmark module as a script would; each test gets fresh modules."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    kept = {name: sys.modules.pop(name, None) for name in NAMES}
    yield importlib.import_module
    for name, module in kept.items():
        sys.modules.pop(name, None)
        if module is not None:
            sys.modules[name] = module


def tiny(measuring: ModuleType) -> Any:
    return measuring.Shape(n_layer=1, n_head=2, n_embd=8, context=8, batch=2, vocabulary=17)


def test_the_stopwatch_skips_the_warmup_and_stops_after_its_steps(load: Any) -> None:
    waits: list[int] = []
    stopwatch = load("measuring").Stopwatch(warmup=2, seconds=0, steps=4, synchronize=lambda: waits.append(1))
    assert [stopwatch.step() for _ in range(6)] == [False] * 5 + [True]
    assert stopwatch.measured == 4
    assert stopwatch.elapsed > 0
    assert len(waits) == 3  # after the first step, the warmup and the last


def test_a_stopwatch_with_a_time_limit_measures_at_least_three_steps(load: Any) -> None:
    stopwatch = load("measuring").Stopwatch(warmup=1, seconds=0, steps=None, synchronize=lambda: None)
    assert [stopwatch.step() for _ in range(4)] == [False, False, False, True]


def test_the_flops_of_gpt2_are_those_of_its_parameters_and_attention(load: Any) -> None:
    shape = load("training").SHAPES["gpt2-1024"]
    parameters = GPTConfig().n_parameters - 1024 * 768  # without the position embedding
    assert shape.flops_per_token == 6 * parameters + 12 * 12 * 768 * 1024


def test_a_missing_peer_is_reported_and_skipped(load: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measuring = load("measuring")
    assert measuring.available_engines(["minigpt", "nanogpt", "nanogpt-compiled"], tmp_path) == ["minigpt"]
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" is skipped: nanoGPT needs a checkout")[0] for line in lines] == [
        "nanogpt",
        "nanogpt-compiled",
    ]
    (tmp_path / "model.py").touch()
    assert measuring.available_engines(["nanogpt"], tmp_path) == ["nanogpt"]


def test_the_error_of_a_failed_worker_is_its_last_line(load: Any) -> None:
    measuring = load("measuring")
    with pytest.raises(measuring.WorkerError, match=r"^ValueError: no$"):
        measuring.run_worker([sys.executable, "-c", "raise ValueError('no')"], 1)


def test_nanogpts_learning_rate_warms_up_and_ends_at_a_tenth_of_its_peak(load: Any) -> None:
    peers = load("peers")
    rates = [peers.nanogpt_rate(step, peak=1e-3, steps=2000) for step in range(2001)]
    assert rates[0] == pytest.approx(1e-3 / 101)
    assert max(rates) == rates[100] == pytest.approx(1e-3)
    assert rates[1050] == pytest.approx(5.5e-4)  # half of the cosine
    assert rates[2000] == pytest.approx(1e-4)


def test_nanogpt_is_evaluated_on_the_same_windows_as_minigpt(load: Any) -> None:
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=17, n_positions=8, n_embd=8, n_layer=1, n_head=2))

    class LikeNanoGPT(torch.nn.Module):
        def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[None, torch.Tensor]:
            return None, F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())

    for length in (8 * 40 + 1, 8 * 40 + 6):
        tokens = np.random.default_rng(0).integers(17, size=length).astype(np.uint16)
        expected = evaluate(model, tokens)
        found = load("peers").nanogpt_nats(LikeNanoGPT(), tokens, 8, torch.device("cpu"))
        assert found == pytest.approx(expected.loss * expected.tokens, rel=1e-6)


def test_nanogpts_character_vocabulary_comes_from_the_whole_text(load: Any) -> None:
    training, validation, size, scored = load("peers").nanogpt_tokens("banana", "aéb", bpe=False)
    assert (training, validation, size) == ([1, 0, 2, 0, 2, 0], [0, 3, 1], 4)
    assert scored == len("éb".encode())
    *_, size, scored = load("peers").nanogpt_tokens("banana", "Hello there", bpe=True)
    assert (size, scored) == (50257, len(" there"))


def test_minigpts_loop_and_the_bare_loop_run_steps(load: Any, tmp_path: Path) -> None:
    measuring, own_loop = load("measuring"), load("own_loop")
    shape, data, cpu = tiny(measuring), tmp_path / "tokens.bin", torch.device("cpu")
    load("training").random_tokens(data, shape.vocabulary, 1000)

    def stopwatch() -> Any:
        return measuring.Stopwatch(warmup=1, seconds=0, steps=3, synchronize=lambda: None)

    for optimizer in ("muon", "adamw"):
        assert own_loop.measure_minigpt(shape, data, cpu, stopwatch, optimizer=optimizer).measured == 3
    found = own_loop.measure_outside(shape, data, cpu, 0.0, 1, lambda: None)
    assert found["pairs"] == 5
    assert -1 < found["outside"] < 1


def test_speed_is_compared_with_the_best_peer_of_the_same_round(load: Any) -> None:
    training = load("training")
    speeds = {"minigpt": (300, 100), "nanogpt": (100, 80), "trainer": (150, 40)}
    results = [
        {"shape": "gpt2", "engine": engine, "round": turn, "tokens_per_second": speed, "peak_bytes": 10**8}
        | {"peak_bytes_above_imports": 10**7, "first_step_seconds": 1.0}
        for engine, both in speeds.items()
        for turn, speed in enumerate(both)
    ]
    assert training.ratios(results, "gpt2", "minigpt") == [2, 1.25]
    assert "| minigpt | 200 (100–300) | 1.62 (1.25–2.00) | 100 | 10 | 1.0 |" in training.report(results, "gpt2")
    outside = {"shape": "gpt2", "engine": "outside", "round": 0, "outside": 0.012}
    per_token = training.SHAPES["gpt2"].flops_per_token
    ceilings = [
        {"shape": "gpt2", "engine": "ceiling", "round": turn, "flops": speed * per_token}
        for turn, speed in ((0, 1000), (1, 250))
    ]
    report = training.report([*results, outside, *ceilings], "gpt2")
    assert "1.2% of minigpt's step is outside" in report
    assert "| 1.0 | 35.0% (30.0%–40.0%) |" in report  # of the ceiling of the same round
    assert "| 1.0 | 30.0% |" in training.report([*results, ceilings[0]], "gpt2")


def test_a_failed_experiment_is_reported(load: Any, tmp_path: Path, monkeypatch: Any, capfd: Any) -> None:
    scaling = load("scaling")
    monkeypatch.setattr(scaling, "TABLE", tmp_path / "scaling.jsonl")
    one = dict.fromkeys(scaling.SETTINGS, 1) | {"path": str(tmp_path / "missing.txt"), "tokenizer": "bytes"}
    scaling.run([one], jobs=1)
    assert f"an experiment failed: {json.dumps(one)}" in capfd.readouterr().err
    assert not (tmp_path / "scaling.jsonl").exists()


def test_the_seconds_of_a_training_curve_exclude_evaluations(load: Any) -> None:
    log = [{"step": 0, "validation_loss": 4.0, "seconds": 5.0}]
    log += [{"step": 1, "loss": 4.0, "seconds": 7.0}, {"step": 2, "loss": 3.0, "seconds": 8.0}]
    log += [{"step": 2, "validation_loss": 3.0, "seconds": 50.0}, {"step": 3, "loss": 3.0, "seconds": 52.0}]
    log += [{"step": 4, "loss": 3.0, "seconds": 53.0}, {"step": 4, "validation_loss": 2.0, "seconds": 90.0}]
    assert load("time_to_quality").training_curve(log, 10) == [(0, 0.0, 40.0), (2, 2.0, 30.0), (4, 4.0, 20.0)]


def test_the_recipes_table_shows_when_nanogpts_final_loss_is_reached(load: Any) -> None:
    quality = load("time_to_quality")

    def result(engine: str, *curve: tuple[int, float, float]) -> dict[str, Any]:
        loss = min(nats for _, _, nats in curve)
        figures = {"nats_per_character": loss, "bits_per_byte": loss / math.log(2), "seconds": curve[-1][1]}
        return {"engine": engine, "seed": 1, "curve": list(curve), **figures}

    results = [result("nanogpt", (100, 50.0, 2.4), (200, 100.0, 2.0)), result("nanogpt-3e-3", (200, 100.0, 1.8))]
    results.append(result("minigpt", (100, 40.0, 1.9), (200, 80.0, 1.6)))
    report = quality.recipe_report(results)
    assert "| minigpt | 1.6000 | 2.3083 | 80 | 40% | 100 |" in report
    assert "gains 0.400 nats; the learning rate 3e-3 alone gains: nanogpt-3e-3 50%." in report


def test_a_budget_is_compared_with_the_best_other(load: Any) -> None:
    bits = {"nanogpt": 2.5, "nanogpt-3e-3": 2.4, "minigpt": 1.8}
    results = [
        {"text": "a.txt", "minutes": 3.0, "engine": engine, "seed": 1, "bits_per_byte": value}
        for engine, value in bits.items()
    ]
    assert "| a.txt | 3 | 2.500 | 2.400 | 1.800 | -25.0% |" in load("time_to_quality").budget_report(results)


def test_raw_numbers_are_saved_with_the_machine(load: Any, tmp_path: Path) -> None:
    measuring = load("measuring")
    measuring.write_results(None, {}, [])
    measuring.write_results(tmp_path / "raw.json", measuring.machine(1), [{"engine": "minigpt"}])
    record = json.loads((tmp_path / "raw.json").read_text())
    assert record["results"] == [{"engine": "minigpt"}]
    assert "1 threads" in measuring.describe(record["machine"])
