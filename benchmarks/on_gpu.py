"""What a CUDA GPU does with minigpt, in one command of under ten minutes; the headline figures come within three.

    PYTHONPATH=. python benchmarks/on_gpu.py --json on_gpu.json

Without `--json`, the environment variable OUT may name the folder for on_gpu.json. Every part runs in a separate
process with a limit in seconds; the seconds that it leaves go to the next parts. What fails or reaches its limit is
reported in its row, the rest goes on, and the exit code is 1. The results are written after each part, and the log,
on_gpu.log beside them, line by line. If the command itself is cut off, on_gpu.json has the results of the parts before,
and on_gpu.partial.jsonl those of the last one. The parts, the most valuable first:

- `limits`: the throughput of a large bfloat16 matrix product, and the bandwidth of reading and copying large tensors.
- `tests`: the tests with the pytest marker `gpu`; those that also have the marker `compiles` come last.
- `training`: `minigpt.train` on random tokens at GPT-2 124M's shape. MFU is 6 N + 12 L C T operations per token, as a
  share of the data sheet's bfloat16 peak or, for an unknown GPU, of the measured one.
- `decoding`: one sequence, greedy, bfloat16, random weights, after a prompt. The shares of the bandwidth count the
  weights and the cached keys and values that one token needs. "generate()" includes everything that a user waits for.
- `learning`: `minigpt.fit()` on the documentation that ships with Python, and a text from the trained model.

The tables name what others have reached: llm.c trained GPT-2 124M at 475,000 tokens/s per H100, on eight of them, 41 %
of their peak (KellerJordan/modded-nanogpt, record of 2024-10-13). gpt-fast decoded a model of 7 billion parameters at
82 % of the bandwidth of an A100 (its README).

`--dry-run` runs every part with tiny shapes, also on a CPU; its figures say nothing about speed.
"""

import argparse
import contextlib
import functools
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measuring import Shape, Stopwatch, WorkerError, cores, describe, machine, print_progress, run_worker, table
from measuring import write_results as write_json

from minigpt.device import resolve_device
from minigpt.errors import DeviceError

ROOT = Path(__file__).parents[1]
SEED = 1
GOALS = (
    "450,000 tokens/s in training 124M; 70 % of the memory's bandwidth in decoding 124M and 80 % in decoding XL, on "
    "one H100 or H200"
)
LLM_C = 475_000  # tokens/s per H100, on eight of them
GPT_FAST = 82  # % of the bandwidth of an A100
WARM_UP = 0.3  # seconds before a limit is measured: two operations are too few for a GPU that was idle
OUTPUT_KEPT = 20_000  # characters of a failed test run, in the raw results

# GB/s from the data sheets. The first of these names that torch's name of a device contains applies.
BANDWIDTHS = {
    "H200": 4800, "H100 PCIe": 2000, "H100 NVL": 3900, "H100": 3350, "B200": 8000, "A100-SXM4-80GB": 2039,
    "A100": 1555, "L40S": 864, "L4": 300, "RTX 5090": 1792, "RTX 4090": 1008, "RTX 3090": 936,
}  # fmt: skip


@dataclass(frozen=True)
class Part:
    """A part of the benchmark: the function that measures its cases one by one, its table, and its seconds."""

    measure: Callable[[dict[str, Any], "Sizes"], Iterator[dict[str, Any]]]
    table: str
    seconds: float
    job: dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """The shapes of a full run or of a dry run."""

    training: Shape
    micro_batches: tuple[int, ...]  # the best one first: what is measured last may not be reached
    large_batch: int
    seconds: float
    decoding: dict[str, Shape]
    prompt: int
    new_tokens: int
    learning: dict[str, Any]
    matrix: int
    memory: int  # bytes to read


FULL = Sizes(
    training=Shape(12, 12, 768, context=1024, batch=64, vocabulary=50257),
    micro_batches=(64, 32, 16),
    large_batch=512,
    seconds=3.0,
    decoding={
        "124M": Shape(12, 12, 768, context=1024, batch=1, vocabulary=50257),
        "XL": Shape(48, 25, 1600, context=1024, batch=1, vocabulary=50257),
    },
    prompt=128,
    new_tokens=127,  # the last position is 255: a single recorded step, which covers 256 positions, reads all of them
    learning={"preset": "mini", "steps": 300, "dtype": "auto"},
    matrix=8192,
    memory=4 * 2**30,
)
_TINY = Shape(2, 2, 32, context=32, batch=4, vocabulary=257)
DRY = Sizes(
    training=_TINY,
    micro_batches=(4, 2),
    large_batch=8,
    seconds=0.0,
    decoding={"124M": _TINY, "XL": _TINY},
    prompt=4,
    new_tokens=8,
    learning={"n_layer": 1, "n_head": 2, "n_embd": 32, "context_length": 32, "batch_size": 8, "steps": 30},
    matrix=64,
    memory=2**16,
)


# The worker: one part in one process. Every function yields one result per case.


def measure_limits(job: dict[str, Any], sizes: Sizes) -> Iterator[dict[str, Any]]:
    """The throughput of a matrix product and the bandwidth of a read."""
    import torch

    from minigpt.autoplan.throughput import peak

    device = torch.device(job["device"])
    # In a dry run, a CPU that only emulates bfloat16 would take most of the part's seconds.
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    a, b = (torch.randn(sizes.matrix, sizes.matrix, dtype=dtype, device=device) for _ in range(2))
    flops = 2 * sizes.matrix**3 / seconds_of(lambda: a @ b, device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"
    yield {
        "case": "matrix product",
        "name": name,
        "flops": flops,
        "peak_flops": peak(device, dtype).flops,
        "peak_source": peak(device, dtype).source,
    }
    data = torch.ones(sizes.memory // 4, dtype=torch.float32, device=device)
    copy = torch.empty_like(data)
    read = sizes.memory / seconds_of(data.sum, device)
    copied = 2 * sizes.memory / seconds_of(lambda: copy.copy_(data), device)
    result = {"case": "memory", "name": name, "read": read, "copy": copied, "bandwidth": max(read, copied)}
    data_sheet = next((value for known, value in BANDWIDTHS.items() if known in name), None)
    yield result | ({"data_sheet": 1e9 * data_sheet} if data_sheet else {})


def measure_tests(job: dict[str, Any], sizes: Sizes) -> Iterator[dict[str, Any]]:  # noqa: ARG001
    """The tests that need a GPU, either those that use torch.compile or the others. A dry run only collects them."""
    tests = sorted((ROOT / "tests").rglob("test_*.py"))
    marked = [path for path in tests if "pytest.mark.gpu" in path.read_text("utf-8")]
    marker = "gpu and compiles" if job["compiled"] else "gpu and not compiles"
    # A warning of the GPU's own must not end the run: `-W default` comes after the project's "error".
    options = ["-m", marker, "-v", "-rfE", "-W", "default", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    options += ["--collect-only"] if job["dry_run"] else []
    result: dict[str, Any] = {"case": f"pytest -m '{marker}'"}
    try:
        limit = max(1.0, job["ends"] - time.time() - 5)  # so that the tests that have passed are reported too
        printed = run_worker([sys.executable, "-m", "pytest", *options, *map(str, marked)], job["threads"], limit)
    except WorkerError as error:
        printed, result["error"] = error.stdout, str(error)
        result["output"] = printed[-OUTPUT_KEPT:]
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    result["summary"] = lines[-1].strip("= ") if lines else ""
    result["passed"] = sum(" PASSED" in line for line in lines)
    result["failures"] = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
    yield result


def measure_learning(job: dict[str, Any], sizes: Sizes) -> Iterator[dict[str, Any]]:
    """A run as a user starts it, on real text, and a text from its model."""
    import minigpt

    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "python.txt"
        source = [sys.executable, str(Path(__file__).with_name("python_corpus.py")), str(text)]
        subprocess.run(source, check=True, capture_output=True)
        if job["dry_run"]:
            text.write_text(text.read_text("utf-8")[:20_000], encoding="utf-8")
        settings = sizes.learning | {"seed": SEED, "device": job["device"], "tokenizer": "bytes"}
        events = list(minigpt.fit(str(text), name="run", checkpoints=folder, report=False, **settings))
        losses = [event.validation_loss for event in events if isinstance(event, minigpt.Evaluation)]
        steps = [event for event in events if isinstance(event, minigpt.Step)]
        notices = [event.text for event in events if isinstance(event, minigpt.Notice) and folder not in event.text]
        yield {
            "case": "minigpt.fit()",
            "steps": steps[-1].step,
            "first_loss": losses[0],
            "last_loss": losses[-1],
            "seconds": steps[-1].seconds,
            "tokens_per_second": sorted(step.tokens_per_second for step in steps)[len(steps) // 2],
            "notices": notices,
        } | ({} if losses[-1] < 0.9 * losses[0] else {"error": "the loss did not fall by a tenth"})
        model = minigpt.load("run", checkpoints=folder, device=job["device"])
        sample = model.generate("The ", max_new_tokens=40, seed=SEED, temperature=0.8)
        yield {"case": "generate()", "engine": model.engine.description, "sample": sample}


def training_cases(job: dict[str, Any], sizes: Sizes) -> Iterator[dict[str, Any]]:
    """The settings that one worker measures: all of them with torch.compile or all without it, the best first."""
    best, *smaller = sizes.micro_batches
    batches = (sizes.large_batch, sizes.training.batch) if job["compiled"] else (sizes.training.batch,)
    for batch in batches:  # all with the micro-batch that is compiled first
        yield {"optimizer": job["optimizer"], "batch": batch, "micro_batch": best}
    if job["optimizer"] == "adamw":
        yield {"optimizer": "adamw", "batch": batches[0], "micro_batch": best, "residual": "bfloat16"}
    if job["compiled"] and job["optimizer"] == "adamw":
        yield {"optimizer": "adamw", "batch": sizes.large_batch, "micro_batch": best, "attention": "flash"}
        for micro_batch in smaller:
            yield {"optimizer": "adamw", "batch": sizes.large_batch, "micro_batch": micro_batch}


def measure_training(job: dict[str, Any], sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Tokens per second of `minigpt.train` at one shape, with batches and optimizers of several kinds."""
    import torch
    from training import random_tokens

    device = torch.device(job["device"])
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "tokens.bin"
        random_tokens(data, sizes.training.vocabulary)
        compiled_for = None
        for case in training_cases(job, sizes):
            if compiled_for != (compiled_for := (case["micro_batch"], case.get("attention"), case.get("residual"))):
                torch._dynamo.reset()  # or the second micro-batch would be compiled for any number of sequences
            kernels, stream = attention(case.get("attention"), device), residual_stream(case.get("residual"))
            with reported(case | {"compiled": job["compiled"]}) as result, kernels, stream:
                train_one(result, sizes, data, device)
            yield result


def train_one(result: dict[str, Any], sizes: Sizes, data: Path, device: Any) -> None:
    """Measures one case of `measure_training`; adds its figures to `result`."""
    import own_loop
    import torch

    from minigpt.autoplan.throughput import peak
    from minigpt.device import resolve_dtype
    from minigpt.terminal.panel import peak_memory

    shape = Shape(**vars(sizes.training) | {"batch": result["batch"]})
    notices: list[str] = []
    if device.type == "cuda":
        torch.cuda.init()  # or the next call fails for a device with a number
        torch.cuda.reset_peak_memory_stats(device)
    stopwatch = functools.partial(
        Stopwatch, warmup=2, seconds=sizes.seconds, steps=None, synchronize=synchronizer(device)
    )
    options = {"optimizer": result["optimizer"], "micro_batch_size": result["micro_batch"]}
    options["compile"] = "on" if result["compiled"] else "off"
    clock = own_loop.measure_minigpt(shape, data, device, stopwatch, notices.append, **options)
    speed = shape.tokens * clock.measured / clock.elapsed
    ceiling = peak(device, resolve_dtype("auto", device))
    result |= {
        "tokens_per_second": speed,
        "mfu": speed * shape.flops_per_token / ceiling.flops,
        "peak_bytes": peak_memory(device),
        "first_step_seconds": clock.first_step,
        "notices": notices,
    }
    if any("torch.compile failed" in notice for notice in notices):
        result["error"] = notices[0]


def measure_decoding(job: dict[str, Any], sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Tokens per second of one model with the engines of the job."""
    import torch

    from minigpt import GPT
    from minigpt.cuda.graphs import GraphEngine
    from minigpt.device import avoid_cudnn_attention
    from minigpt.generation.engine import Engine

    device, config = torch.device(job["device"]), sizes.decoding[job["model"]].config
    avoid_cudnn_attention()
    torch.manual_seed(SEED)
    with torch.device(device):
        model = GPT(config).bfloat16().eval()
    # One token reads all weights except the position embeddings, and half of the new keys and values on average.
    weights = config.n_parameters - config.n_positions * config.n_embd
    cached = 2 * config.n_layer * config.n_embd * (sizes.prompt + sizes.new_tokens // 2)
    engines = {
        "no CUDA graphs": lambda: Engine(model),
        "CUDA graphs": lambda: GraphEngine(model),
        "CUDA graphs, generate()": lambda: GraphEngine(model),
        "CUDA graphs, compiled": lambda: GraphEngine(model, compiled=True),
        "CUDA graphs, compiled, generate()": lambda: GraphEngine(model, compiled=True),
    }
    for name in job["engines"]:
        torch._dynamo.reset()
        with reported({"model": job["model"], "engine": name}) as result:
            engine = engines[name]()
            decode = decode_generated if "generate()" in name else decode_greedily
            began = time.perf_counter()
            decode(engine, sizes.prompt, sizes.new_tokens, device)  # records, compiles
            result["first_seconds"] = time.perf_counter() - began
            seconds = min(decode(engine, sizes.prompt, sizes.new_tokens, device) for _ in range(3))
            result["tokens_per_second"] = sizes.new_tokens / seconds
            result["bytes_per_second"] = 2 * (weights + cached) * sizes.new_tokens / seconds
        yield result


def decode_greedily(engine: Any, n_prompt: int, n_new: int, device: Any) -> float:
    """Seconds of decoding with an engine, without reading the prompt; the ids stay on the device."""
    synchronize = synchronizer(device)
    ids = engine.start([list(range(n_prompt))]).argmax(-1, keepdim=True)  # (1, 1)
    synchronize()
    began = time.perf_counter()
    for _ in range(n_new):
        ids = engine.read(ids)[:, -1].argmax(-1, keepdim=True)
    synchronize()
    return time.perf_counter() - began


def decode_generated(engine: Any, n_prompt: int, n_new: int, device: Any) -> float:
    """Seconds of `minigpt.generate()` after its first token."""
    import torch

    from minigpt import SamplingConfig, generate

    tokens = generate(engine, torch.arange(n_prompt)[None], SamplingConfig(max_new_tokens=n_new + 1, temperature=0))
    next(tokens)
    synchronizer(device)()
    began = time.perf_counter()
    for _ in tokens:
        pass
    return time.perf_counter() - began


@contextlib.contextmanager
def attention(kernels: str | None, device: Any) -> Iterator[None]:
    """A context in which scaled_dot_product_attention uses only FlashAttention's kernels on CUDA, if "flash" is given.

    Without it, torch chooses cuDNN's on an H100 or H200.
    """
    from torch._functorch import config
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if kernels != "flash" or device.type != "cuda":
        yield
        return
    # The keys of this cache do not contain which kernels are allowed: it would return the graph with torch's choice.
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), config.patch(enable_autograd_cache=False):
        yield


@contextlib.contextmanager
def residual_stream(dtype: str | None) -> Iterator[None]:
    """A context in which the residual stream of every model is in the dtype of its products, if bfloat16 is given.

    The sums of a block keep the dtype of the embeddings. Autocast leaves these in float32.
    """
    from minigpt import GPT
    from minigpt.device import product_dtype

    embed = GPT.embed

    def narrow(*arguments: Any) -> Any:
        x = embed(*arguments)
        return x.to(product_dtype(x))

    if dtype == "bfloat16":
        GPT.embed = narrow  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        GPT.embed = embed  # type: ignore[method-assign]


@contextlib.contextmanager
def reported(case: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A context for one case: an error becomes part of its result, and memory is free again afterwards."""
    import torch

    result = dict(case)
    try:
        yield result
    except Exception as error:  # any: the other cases and parts are still measured
        result["error"] = (str(error).strip().splitlines() or [""])[0] or type(error).__name__
        result["traceback"] = traceback.format_exc()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def synchronizer(device: Any) -> Callable[[], object]:
    """A function that waits for the device."""
    import torch

    return functools.partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None


def seconds_of(operation: Callable[[], object], device: Any, rounds: int = 10) -> float:
    """The mean duration of an operation, after a warm-up that is not measured."""
    synchronize = synchronizer(device)
    warm = time.perf_counter() + WARM_UP
    while time.perf_counter() < warm:
        operation()
        synchronize()
    began = time.perf_counter()
    for _ in range(rounds):
        operation()
    synchronize()
    return (time.perf_counter() - began) / rounds


_UNCOMPILED = ["CUDA graphs", "CUDA graphs, generate()", "no CUDA graphs"]
_COMPILED = ["CUDA graphs, compiled", "CUDA graphs, compiled, generate()"]
PARTS = {
    "limits": Part(measure_limits, "limits", 20, {}),
    "tests": Part(measure_tests, "tests", 50, {"compiled": False}),
    "training": Part(measure_training, "training", 25, {"compiled": False, "optimizer": "adamw"}),
    "decoding-124M": Part(measure_decoding, "decoding", 25, {"model": "124M", "engines": _UNCOMPILED}),
    "decoding-XL": Part(measure_decoding, "decoding", 35, {"model": "XL", "engines": _UNCOMPILED}),
    "training-compiled": Part(measure_training, "training", 110, {"compiled": True, "optimizer": "adamw"}),
    "learning": Part(measure_learning, "learning", 60, {}),
    "training-muon": Part(measure_training, "training", 20, {"compiled": False, "optimizer": "muon"}),
    "training-muon-compiled": Part(measure_training, "training", 55, {"compiled": True, "optimizer": "muon"}),
    "decoding-124M-compiled": Part(measure_decoding, "decoding", 60, {"model": "124M", "engines": _COMPILED}),
    "decoding-XL-compiled": Part(measure_decoding, "decoding", 70, {"model": "XL", "engines": _COMPILED}),
    "tests-compiled": Part(measure_tests, "tests", 40, {"compiled": True}),
}
LIMIT = sum(part.seconds for part in PARTS.values())  # 570 of the 600 seconds


def compile_without_code(*, dry_run: bool) -> None:
    """In a dry run, makes torch.compile trace everything but generate no code, which needs a compiler and minutes."""
    if dry_run:
        import torch

        compiled = torch.compile
        torch.compile = lambda function, *, options=None, **rest: compiled(function, backend="aot_eager", **rest)  # type: ignore[assignment]  # noqa: ARG005


def work(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The results of one part, in this process."""
    compile_without_code(dry_run=job["dry_run"])
    yield from PARTS[job["part"]].measure(job, DRY if job["dry_run"] else FULL)


def print_results(job: dict[str, Any]) -> None:
    """Runs one part in this process; prints each result at once and appends it to the file `partial`, if given."""
    for result in work(job):
        print(json.dumps(result), flush=True)
        if job["partial"]:
            with Path(job["partial"]).open("a", encoding="utf-8") as file:
                file.write(json.dumps({"part": job["part"], **result}) + "\n")


# The parent process.


def run_part(name: str, job: dict[str, Any], limit: float, threads: int) -> list[dict[str, Any]]:
    """The results of a part, which is stopped after `limit` seconds; a failure is the last of them."""
    job = PARTS[name].job | job | {"part": name, "ends": time.time() + limit, "threads": threads}
    command = [sys.executable, __file__, "--worker", json.dumps(job)]
    failure: list[dict[str, Any]] = []
    try:
        printed = run_worker(command, threads, limit)
    except WorkerError as error:
        printed, failure = error.stdout, [{"case": "what is missing above", "error": str(error)}]
    results = []
    for line in printed.splitlines():
        with contextlib.suppress(json.JSONDecodeError):  # other lines: a library prints, or the limit cut one off
            result = json.loads(line)
            if isinstance(result, dict):
                results.append(result)
    return [{"part": name, **result} for result in (*results, *failure)]


def limits_of(names: list[str], total: float) -> Iterator[tuple[str, Callable[[], float]]]:
    """The parts, each with a function that returns its limit now: its own seconds and all that earlier parts left."""
    deadline = time.perf_counter() + total
    for number, name in enumerate(names):
        later = sum(PARTS[other].seconds for other in names[number + 1 :])
        yield name, lambda later=later: max(1.0, deadline - later - time.perf_counter())  # type: ignore[misc]


class Log:
    """Progress on stderr and, if a path is given, also in a new file there, with the seconds since the start."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.began = path, time.perf_counter()
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("", encoding="utf-8")

    def write(self, text: str, *, to_stderr: bool = True) -> None:
        """Writes some lines, which are in the file when this returns."""
        line = f"{time.perf_counter() - self.began:5.0f} s  {text}"
        if to_stderr:
            print_progress(line)
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")


def summary(result: dict[str, Any]) -> str:
    """A result in one line of JSON, without what only explains a failure; rounded to four digits."""
    shown = {key: value for key, value in result.items() if key not in ("part", "output", "traceback")}
    return json.dumps(
        {key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in shown.items()}
    )


def report(results: list[dict[str, Any]]) -> str:
    """All results as Markdown tables; a failed case has its error in its row."""
    memory: dict[str, float] = next((result for result in results if "bandwidth" in result), {})
    rows: dict[str, list[list[str]]] = {part.table: [] for part in PARTS.values()}
    for result in results:
        name = PARTS[result["part"]].table
        row = ROWS[name](result, memory)
        if "error" in result:
            row[-1] = f"**failed**: {result['error']}" + (f"; {row[-1]}" if row[-1] else "")
        rows[name].append([cell.replace("|", "/") for cell in row])
    parts = [f"### {name}\n\n{table(HEADERS[name], rows[name])}" for name in rows if rows[name]]
    others = f"Others: llm.c {LLM_C:,} tokens/s of 124M per H100; gpt-fast {GPT_FAST} % of the bandwidth of an A100."
    return "\n\n".join([*parts, f"Goals: {GOALS}. {others}"])


def cell(result: dict[str, Any], key: str, form: str = ",.0f", scale: float = 1.0) -> str:
    """A figure of a result; a dash if it has none."""
    return format(scale * result[key], form) if key in result else "–"


def limits_row(result: dict[str, Any], _: dict[str, float]) -> list[str]:
    return [
        result["case"],
        cell(result, "flops", scale=1e-12),
        result.get("peak_source", "–"),
        cell(result, "read", scale=1e-9),
        cell(result, "copy", scale=1e-9),
        cell(result, "data_sheet", scale=1e-9),
        result.get("name", ""),
    ]


def tests_row(result: dict[str, Any], _: dict[str, float]) -> list[str]:
    return [result["case"], result.get("summary", "–"), "; ".join(result.get("failures", []))]


def learning_row(result: dict[str, Any], _: dict[str, float]) -> list[str]:
    return [
        result["case"],
        cell(result, "steps"),
        f"{cell(result, 'first_loss', '.3f')} → {cell(result, 'last_loss', '.3f')}",
        cell(result, "seconds", ".1f"),
        cell(result, "tokens_per_second"),
        result.get("engine", "–"),
        "; ".join(result.get("notices", [])),
    ]


def training_row(result: dict[str, Any], _: dict[str, float]) -> list[str]:
    return [
        "–" if "compiled" not in result else "on" if result["compiled"] else "off",
        result.get("optimizer", result.get("case", "–")),
        cell(result, "batch"),
        cell(result, "micro_batch"),
        result.get("attention", "torch's choice"),
        result.get("residual", "float32"),
        cell(result, "tokens_per_second"),
        cell(result, "mfu", ".1%"),
        cell(result, "tokens_per_second", ".0f", 100 / LLM_C) if result.get("optimizer") == "adamw" else "–",
        cell(result, "peak_bytes", ".1f", 1e-9),
        cell(result, "first_step_seconds", ".1f"),
        "; ".join(result.get("notices", [])),
    ]


def decoding_row(result: dict[str, Any], memory: dict[str, float]) -> list[str]:
    shares = [
        cell(result, "bytes_per_second", ".1f", 100 / memory[which]) if which in memory else "–"
        for which in ("bandwidth", "data_sheet")
    ]
    return [
        result.get("model", "–"),
        result.get("engine", result.get("case", "–")),
        cell(result, "tokens_per_second", ",.1f"),
        *shares,
        cell(result, "first_seconds", ".1f"),
        "",
    ]


ROWS: dict[str, Callable[[dict[str, Any], dict[str, float]], list[str]]] = {
    "limits": limits_row,
    "tests": tests_row,
    "learning": learning_row,
    "training": training_row,
    "decoding": decoding_row,
}
HEADERS = {
    "limits": ["limit", "TFLOP/s, bfloat16", "peak", "read, GB/s", "copy, GB/s", "data sheet, GB/s", "notes"],
    "tests": ["command", "result", "notes"],
    "learning": ["run", "steps", "validation loss, nats per byte", "s", "tokens/s", "engine of the text", "notes"],
    "training": [
        "torch.compile", "optimizer", "sequences per step", "micro-batch", "attention", "residual stream", "tokens/s",
        "MFU", "% of llm.c", "memory, GB", "first step, s", "notes",
    ],
    "decoding": [
        "model", "engine", "tokens/s", "% of the measured bandwidth", "% of the data sheet's", "first run, s", "notes",
    ],
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or, for a dry run, cpu [cuda]")
    parser.add_argument("--dry-run", action="store_true", help="run every part with tiny shapes")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="[all]")
    parser.add_argument("--threads", type=int, default=cores(), help="number of threads [all cores]")
    default = Path(os.environ["OUT"], "on_gpu.json") if os.environ.get("OUT") else None
    to = "write the raw numbers to this file, and a log beside it [$OUT/on_gpu.json]"
    parser.add_argument("--json", type=Path, default=default, help=to)
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        print_results(given.worker)
        return 0
    if given.device == "cpu" and not given.dry_run:
        parser.error("--device cpu needs --dry-run: the full sizes take hours on a CPU")
    try:
        resolve_device(given.device)
    except DeviceError as error:
        parser.error(str(error))
    here, results = machine(given.threads), []
    log = Log(given.json and given.json.with_suffix(".log"))
    partial = given.json and given.json.with_suffix(".partial.jsonl")
    if partial:
        partial.unlink(missing_ok=True)  # of an earlier run
    for name, limit in limits_of(given.parts, LIMIT):
        job = {"device": given.device, "dry_run": given.dry_run, "partial": partial and str(partial)}
        results += run_part(name, job, limit(), given.threads)
        log.write("\n".join(f"{name}: {summary(r)}" for r in results if r["part"] == name))
        write_json(given.json, here, results)
        if partial:
            partial.unlink(missing_ok=True)
    kind = "**Dry run**: tiny shapes; no figure says anything about speed.\n\n" if given.dry_run else ""
    command = f"Command: `python benchmarks/on_gpu.py {' '.join(sys.argv[1:])}`; seed {SEED}."
    text = f"{kind}{describe(here)}\n{command}\n\n{report(results)}"
    print(text)
    log.write(text, to_stderr=False)
    return int(any("error" in result for result in results))


if __name__ == "__main__":
    sys.exit(main())
