"""The arithmetic of the benchmarks, and their use of minigpt; no peer is needed."""

import importlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pretended_cuda import pretended_cuda, reason_to_skip

from minigpt import GPT, GPTConfig, evaluate

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
NAMES = [path.stem for path in BENCHMARKS.glob("*.py")]


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


def test_the_flops_of_gpt2_are_those_of_its_parameters_and_attention(load: Any) -> None:
    shape = load("training").SHAPES["gpt2-1024"]
    parameters = GPTConfig().n_parameters - 1024 * 768  # without the position embedding
    assert shape.flops_per_token == 6 * parameters + 12 * 12 * 768 * 1024


# The benchmark for a GPU.


# Packages of the extra `test` that a machine with a GPU may not have.
ABSENT = [
    "google_crc32c", "gguf", "hypothesis", "lxml", "matplotlib", "onnx", "onnxruntime", "prometheus_client",
    "py3langid", "pyarrow", "pydivsufsort", "pypdf", "docx", "sentencepiece", "starlette", "uvicorn", "xdist",
]  # fmt: skip


def dry_results(load: Any, name: str) -> list[dict[str, Any]]:
    on_gpu = load("on_gpu")
    job = on_gpu.PARTS[name].job | {"device": "cuda", "dry_run": True, "part": name, "threads": 1}
    return [{"part": name, **result} for result in on_gpu.work(job)]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # used by torch.compile itself
@pytest.mark.skipif(reason_to_skip() is not None, reason=reason_to_skip() or "")
@pytest.mark.parametrize("name", ["limits", "training", "decoding-124M"])
def test_a_part_of_the_gpu_benchmark_runs_on_a_pretended_gpu(
    load: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", torch.compile)  # which a dry run replaces
    with pretended_cuda():
        results = dry_results(load, name)
    assert not [result for result in results if "error" in result]
    on_gpu = load("on_gpu")
    rows = [line for line in on_gpu.report(results).splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + len(results)
    assert len({row.count("|") for row in rows}) == 1
    if name == "training":
        assert [result.get("residual") for result in results] == [None, "bfloat16"]
        assert all(result["tokens_per_second"] > 0 and result["mfu"] > 0 for result in results)
    elif name.startswith("decoding"):
        assert [result["engine"] for result in results] == on_gpu.PARTS[name].job["engines"]


def test_the_residual_stream_is_in_bfloat16_only_where_it_is_measured(load: Any) -> None:
    on_gpu, model, ids = (
        load("on_gpu"),
        GPT(GPTConfig(n_layer=1, n_head=1, n_embd=8, n_positions=4)),
        torch.zeros(1, 4).long(),
    )
    with on_gpu.residual_stream("bfloat16"), torch.autocast("cpu", torch.bfloat16):
        assert model.blocks[0](model.embed(ids)).dtype == torch.bfloat16
    with on_gpu.residual_stream(None), torch.autocast("cpu", torch.bfloat16):
        assert model.blocks[0](model.embed(ids)).dtype == torch.float32


def test_the_tests_for_a_gpu_need_no_package_of_other_tests() -> None:
    program = f"import sys, pytest; sys.modules |= dict.fromkeys({ABSENT}); sys.exit(pytest.main(sys.argv[1:]))"
    marked = [path for path in BENCHMARKS.with_name("tests").rglob("test_*.py") if "mark.gpu" in path.read_text()]
    command = [sys.executable, "-c", program, "-m", "gpu", "-q", "--collect-only", "-p", "no:cacheprovider"]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run([*command, *map(str, marked)], capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


@pytest.mark.slow
def test_a_dry_run_of_the_gpu_benchmark_runs_every_part(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "on_gpu.py"), "--device", "cpu", "--dry-run", "--threads", "1"]
    paths = os.pathsep.join([str(BENCHMARKS.parent), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths}
    done = subprocess.run(
        [*command, "--json", str(tmp_path / "raw.json")], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("**Dry run**: tiny shapes; no figure says anything about speed.")
    record = json.loads((tmp_path / "raw.json").read_text())
    parts = [result["part"] for result in record["results"]]
    assert not (tmp_path / "raw.partial.jsonl").exists()
    counts = {"limits": 2, "tests": 1, "learning": 2, "training-compiled": 6, "training-muon": 1, "decoding-XL": 3}
    for name, count in counts.items():
        assert parts.count(name) == count
    assert "failed" not in done.stdout


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


# The benchmark beside other programs.


def test_the_share_of_the_quiet_speed_is_that_of_the_same_round(load: Any) -> None:
    busy = load("busy")
    speeds = {0: (100.0, 300.0), 2: (50.0, 60.0)}
    results = [
        {"case": "recipe", "engine": "minigpt", "load": spinning, "round": turn, "tokens_per_second": speed}
        | {"other_cores": 0.1}
        for spinning, both in speeds.items()
        for turn, speed in enumerate(both)
    ]
    failed = {"case": "recipe", "engine": "nanogpt", "load": 0, "round": 0, "error": "no memory"}
    report = busy.report([*results, failed], [0, 2])
    assert "| engine | quiet, tokens/s | beside two, tokens/s | % of quiet |" in report
    assert "| minigpt | 200 (100–300) | 55.0 (50.0–60.0) | 35 (20–50) |" in report
    assert "| nanogpt | – | – | – |" in report
    assert "other programs used during a measurement: 0.10 (0.10–0.10)." in report
    assert "Failed: recipe, nanogpt, quiet: no memory." in report


def test_the_seconds_of_a_training_curve_exclude_evaluations(load: Any) -> None:
    log = [{"step": 0, "validation_loss": 4.0, "seconds": 5.0}]
    log += [{"step": 1, "loss": 4.0, "seconds": 7.0}, {"step": 2, "loss": 3.0, "seconds": 8.0}]
    log += [{"step": 2, "validation_loss": 3.0, "seconds": 50.0}, {"step": 3, "loss": 3.0, "seconds": 52.0}]
    log += [{"step": 4, "loss": 3.0, "seconds": 53.0}, {"step": 4, "validation_loss": 2.0, "seconds": 90.0}]
    bench = load("time_to_quality")
    assert bench.training_curve(log, 10) == [(0, 0.0, 40.0), (2, 2.0, 30.0), (4, 4.0, 20.0)]
    before = sum(bench.seconds_of_steps(log))  # of a teacher
    assert [seconds for _, seconds, _ in bench.training_curve(log, 10, before)] == [before, before + 2, before + 4]


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


def test_a_simulated_step_is_its_computation_and_what_no_computation_hides(load: Any) -> None:
    simulation = load("simulate_scaling")
    model = simulation.PRESETS["gpt2"]
    size = 4 * model.n_parameters
    training = simulation.Training(model, 524288, 1024, 8, "adamw")
    slow, fast = (simulation.replace(simulation.H100, gpus=64, between=speed) for speed in (1e6, 1e15))
    assert simulation.step_time(training, fast).exposed < 0.1 * simulation.step_time(training, fast).compute
    time = simulation.step_time(training, slow)
    assert time.compute == simulation.step_time(training, fast).compute
    sent = 2 * size / 8 * 7 / 8 / 1e6  # each GPU sends its eighth to the other machines, and receives one
    assert time.exposed == pytest.approx(sent, rel=0.01)
    one = simulation.step_time(training, simulation.replace(simulation.H100, gpus=1))
    assert one.exposed == 0
    assert one.compute == pytest.approx(64 * time.compute)


def test_simulated_muon_is_divided_unless_the_network_is_slow(load: Any) -> None:
    simulation = load("simulate_scaling")
    model = simulation.PRESETS["gpt2-xl"]
    assert simulation.muon_flops(model) == pytest.approx(25e12, rel=0.02)
    adamw, muon = (simulation.Training(model, 524288, 1024, 8, name) for name in ("adamw", "muon"))

    def extra(between: float) -> float:
        cluster = simulation.replace(simulation.H100, gpus=64, between=between)
        return simulation.step_time(muon, cluster).update - simulation.step_time(adamw, cluster).update

    alone = simulation.muon_flops(model) / simulation.H100.flops
    assert extra(1e6) == pytest.approx(alone, rel=0.1)
    assert extra(1e12) < alone / 2


def test_the_median_of_an_even_number_of_times_is_between_the_middle_two(load: Any) -> None:
    quantile = load("serving").quantile
    assert quantile([0.02, 0.01], 0.5) == pytest.approx(15)
    assert quantile([0.03, 0.01, 0.02], 0.5) == pytest.approx(20)
    assert quantile([0.01], 0.95) == pytest.approx(10)
    assert quantile([], 0.5) == 0
