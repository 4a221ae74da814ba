"""Training speed and memory of minigpt, nanoGPT, a plain transformers loop and Hugging Face's Trainer.

    python benchmarks/training.py --nanogpt PATH/TO/nanoGPT --json training.json --plot training.svg

Needs a checkout of nanoGPT and, for the other peers, `pip install transformers accelerate`; a missing peer is
reported and skipped. On a CPU `nanogpt-compiled` also needs a C++ compiler.

Every measurement runs in a separate process, and each round measures all engines in turn. If the speed of the machine
drifts, it affects all engines, so compare ratios within a round. All engines use the same shape, batch, threads and
random tokens. On a CPU they compute in float32, except the `bf16` engines: `minigpt train` chooses bfloat16 on a CPU
if it is faster. `minigpt-bf16-pytorch` is minigpt without its C code. On CUDA all use bfloat16. minigpt runs
`minigpt.train` with its defaults and without a run folder, so it does not evaluate, sample, log or save. nanoGPT
keeps its advantages: no biases, and it reads the loss only every tenth step. Memory is the peak resident set size on
a CPU and torch's peak allocation on CUDA; "above imports" excludes the memory in use before the model is built.

"Outside" is the fraction of minigpt's step that is not forward, backward, clipping or update. It is measured in one
process, which alternates steps of minigpt's loop with steps of a bare loop over the same model, loss and optimizer on
one fixed batch. MFU (on CUDA) is 6 N + 12 L C T floating-point operations per token, divided by the throughput of a
large bfloat16 matrix product in the same round.
"""

import argparse
import array
import functools
import importlib
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measuring import (
    Shape,
    Stopwatch,
    WorkerError,
    add_options,
    available_engines,
    describe,
    draw,
    figure,
    machine,
    median,
    print_progress,
    run_job,
    spread,
    table,
    write_results,
)

SHAPES = {
    "chars-nano": Shape(4, 4, 128, context=64, batch=12, vocabulary=65),
    "bpe-nano": Shape(4, 4, 128, context=128, batch=8, vocabulary=4096),  # what minigpt plans for a small text
    "chars-mini": Shape(6, 6, 384, context=256, batch=16, vocabulary=65),
    "bpe-mini": Shape(6, 6, 384, context=256, batch=16, vocabulary=50257),
    "gpt2": Shape(12, 12, 768, context=512, batch=1, vocabulary=50257),
    "gpt2-planned": Shape(12, 12, 768, context=512, batch=6, vocabulary=50257),  # the step that minigpt plans on a CPU
    "gpt2-1024": Shape(12, 12, 768, context=1024, batch=32, vocabulary=50257, cuda_only=True),
}
ENGINES = (
    "minigpt",
    "minigpt-adamw",
    "minigpt-bf16",
    "minigpt-adamw-bf16",
    "minigpt-bf16-pytorch",
    "nanogpt",
    "nanogpt-compiled",
    "transformers",
    "trainer",
)
OUTSIDE, CEILING = "outside", "ceiling"  # additional measurements


# The worker: one engine in one process.


def measure_ceiling() -> dict[str, float]:
    """Floating-point operations per second of a large bfloat16 matrix product on the GPU."""
    import torch

    size, times = 8192, 50
    a, b = (torch.randn(size, size, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    for _ in range(10):
        a @ b
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(times):
        a @ b
    torch.cuda.synchronize()
    return {"flops": 2 * size**3 * times / (time.perf_counter() - began)}


def import_modules(engine: str) -> None:
    """Imports what the engine needs; torch's optimizers import dynamo in any case."""
    names = {"transformers": ["peers", "transformers.models.gpt2.modeling_gpt2"], "nanogpt": ["peers"]}
    names["trainer"] = [*names["transformers"], "transformers.trainer"]
    for name in ("torch._dynamo", *names.get(engine.partition("-")[0], ["own_loop"])):
        importlib.import_module(name)


def measure_engine(
    engine: str, shape: Shape, data: Path, device: Any, stopwatch: Callable[[], Stopwatch], nanogpt: str
) -> Stopwatch:
    """Trains the engine's model until the stopwatch, which starts after the model is built, ends the measurement."""
    if engine.startswith("minigpt"):
        import own_loop

        if "pytorch" in engine:
            from minigpt.native import compiled

            vars(compiled)["library"] = lambda: None
        options: dict[str, Any] = {
            part: value
            for mark, part, value in (
                ("adamw", "optimizer", "adamw"),
                ("bf16", "dtype", "bfloat16"),
                ("minutes", "minutes", 600.0),
            )
            if mark in engine
        }
        return own_loop.measure_minigpt(shape, data, device, stopwatch, **options)
    import peers

    if engine.startswith("nanogpt"):
        return peers.measure_nanogpt(Path(nanogpt), shape, data, device, stopwatch, engine == "nanogpt-compiled")
    measure = {"transformers": peers.measure_transformers, "trainer": peers.measure_trainer}[engine]
    return measure(shape, data, device, stopwatch)


def work(job: dict[str, Any]) -> dict[str, Any]:
    """Runs one measurement in this process."""
    engine, shape, data = job["engine"], Shape(**job["shape"]), Path(job["data"])
    import torch

    from minigpt.device import resolve_device
    from minigpt.terminal.panel import peak_memory

    device = resolve_device(job["device"])
    if engine == "device":
        return {"device": device.type}
    torch.set_num_threads(job["threads"])
    torch.manual_seed(1)
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    timing = {"warmup": job["warmup"], "seconds": job["seconds"]}
    if engine == CEILING:
        return measure_ceiling()
    import_modules(engine)  # before memory is read
    before = peak_memory(device)
    stopwatch = functools.partial(Stopwatch, steps=job["steps"], synchronize=synchronize, **timing)
    if engine == OUTSIDE:
        import own_loop

        return own_loop.measure_outside(shape, data, device, synchronize=synchronize, **timing)
    clock = measure_engine(engine, shape, data, device, stopwatch, job["nanogpt"])
    peak = peak_memory(device)
    return {
        "tokens_per_second": clock.measured * shape.tokens / clock.elapsed,
        "steps": clock.measured,
        "first_step_seconds": clock.first_step,
        "peak_bytes": peak,
        "peak_bytes_above_imports": peak - before,
    }


# The report.


def figures_of(results: list[dict[str, Any]], shape: str, engine: str, key: str) -> list[Any]:
    """One figure of an engine on a shape, for every round."""
    return [result[key] for result in results if (result["shape"], result["engine"]) == (shape, engine)]


def ratios(results: list[dict[str, Any]], shape: str, engine: str) -> list[float]:
    """The engine's speed divided by the fastest peer's in the same round, for every round."""
    found = []
    for this in (r for r in results if (r["shape"], r["engine"]) == (shape, engine)):
        there = [r for r in results if (r["shape"], r["round"]) == (shape, this["round"])]
        peers = [r["tokens_per_second"] for r in there if r["engine"] in ENGINES and "minigpt" not in r["engine"]]
        if peers:
            found.append(this["tokens_per_second"] / max(peers))
    return found


def utilizations(results: list[dict[str, Any]], shape: str, engine: str) -> list[float]:
    """The engine's fraction of the measured ceiling in the same round, for every round that has one."""
    ceilings = {r["round"]: r["flops"] for r in results if (r["shape"], r["engine"]) == (shape, CEILING)}
    return [
        SHAPES[shape].flops_per_token * this["tokens_per_second"] / ceilings[this["round"]]
        for this in results
        if (this["shape"], this["engine"]) == (shape, engine) and this["round"] in ceilings
    ]


def report(results: list[dict[str, Any]], shape: str) -> str:
    """A table of the engines on one shape, and a short summary."""
    s, rows = SHAPES[shape], []
    ceiling = median(figures_of(results, shape, CEILING, "flops"))
    engines = [engine for engine in ENGINES if figures_of(results, shape, engine, "round")]
    for engine in engines:
        speeds, peaks, above, first = (
            figures_of(results, shape, engine, key)
            for key in ("tokens_per_second", "peak_bytes", "peak_bytes_above_imports", "first_step_seconds")
        )
        mfu = [spread(utilizations(results, shape, engine), ".1%")] if ceiling else []
        memory = [f"{statistics.median(values) / 1e6:,.0f}" for values in (peaks, above)]
        shares = ratios(results, shape, engine) if "minigpt" in engine else []
        rows.append([engine, spread(speeds), spread(shares, ".2f"), *memory, f"{statistics.median(first):.1f}", *mfu])
    header = ["engine", "tokens/s", "× the best peer", "peak memory, MB", "above imports, MB", "first step, s"]
    size = f"{s.n_layer} layers × {s.n_head} heads × {s.n_embd}, context {s.context}, batch {s.batch}"
    text = f"### {shape}: {size}, vocabulary {s.vocabulary:,}\n\n"
    text += table(header + (["MFU"] if ceiling else []), rows) + "\n"
    peer_peaks = [
        statistics.median(figures_of(results, shape, engine, "peak_bytes"))
        for engine in engines
        if "minigpt" not in engine
    ]
    own = median(figures_of(results, shape, "minigpt", "peak_bytes"))
    if own and peer_peaks:
        text += f"\nminigpt's peak memory is {own / min(peer_peaks):.2f} × that of the best peer."
    outside = figures_of(results, shape, OUTSIDE, "outside")
    if outside:
        text += f"\n{spread(outside, '.1%')} of minigpt's step is outside forward, backward and update."
    if ceiling:
        text += f"\nThe ceiling is {ceiling / 1e12:,.0f} TFLOP/s, an 8192 × 8192 bfloat16 matrix product."
    return text + "\n"


def picture(results: list[dict[str, Any]], path: Path) -> None:
    """Bars for the median of each engine on each shape, with whiskers from the slowest to the fastest round."""
    shapes = list(dict.fromkeys(result["shape"] for result in results))
    drawing, panels = figure(len(shapes), height=3.2)
    for axes, shape in zip(panels, shapes, strict=True):
        engines = [engine for engine in reversed(ENGINES) if figures_of(results, shape, engine, "round")]
        speeds = [figures_of(results, shape, engine, "tokens_per_second") for engine in engines]
        middles = [statistics.median(values) for values in speeds]
        reach = [[m - min(v) for m, v in zip(middles, speeds)], [max(v) - m for m, v in zip(middles, speeds)]]  # noqa: B905
        colors = ["tab:orange" if "minigpt" in engine else "tab:blue" for engine in engines]
        axes.barh(engines, middles, xerr=reach, color=colors, error_kw={"elinewidth": 1, "capsize": 2})
        axes.set_title(shape)
        axes.set_xlabel("tokens/s")
    drawing.savefig(path, dpi=120)


def random_tokens(path: Path, vocabulary: int, count: int = 500_000) -> None:
    """A file of uint16 tokens."""
    path.write_bytes(array.array("H", random.Random(1).choices(range(vocabulary), k=count)).tobytes())


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, help="[all that suit the device]")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES), help="[all]")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each engine on each shape [3]")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="length of a measurement in seconds, at least 3 steps [20]"
    )
    parser.add_argument("--steps", type=int, help="length of a measurement in steps, instead of --seconds")
    parser.add_argument("--warmup", type=int, default=3, help="unmeasured steps before a measurement [3]")
    parser.add_argument(
        "--no-outside", action="store_true", help="skip the measurement of time outside forward and backward"
    )
    add_options(parser)
    return parser.parse_args()


def main() -> None:
    given = options()
    if given.worker:
        print(json.dumps(work(given.worker)))
        return
    here, results = machine(given.threads), []
    engines = available_engines(given.engines, given.nanogpt)
    job = {name: getattr(given, name) for name in ("threads", "device", "warmup", "seconds", "steps")}
    job |= {"nanogpt": str(given.nanogpt), "data": "", "shape": vars(SHAPES["chars-nano"])}
    cuda = run_job(__file__, job | {"engine": "device"}, given.threads)["device"] == "cuda"
    if not cuda:
        here["gpu"] = None
    shapes = given.shapes or [name for name, shape in SHAPES.items() if cuda or not shape.cuda_only]
    additional = [] if given.no_outside or "minigpt" not in engines else [OUTSIDE]
    print(f"{describe(here)}\n")
    with tempfile.TemporaryDirectory() as folder:
        for shape in shapes:
            data, failed = Path(folder) / f"{SHAPES[shape].vocabulary}.bin", set()
            random_tokens(data, SHAPES[shape].vocabulary)
            for turn in range(given.rounds):
                wanted = [*engines, *additional, *([CEILING] if cuda else [])]
                for engine in wanted if turn % 2 == 0 else reversed(wanted):
                    if engine in failed:
                        continue
                    this = job | {"engine": engine, "shape": vars(SHAPES[shape]), "data": str(data)}
                    try:
                        result = run_job(__file__, this, given.threads)
                    except WorkerError as error:
                        failed.add(engine)
                        print_progress(f"{shape}: {engine} failed and is skipped: {error}")
                        continue
                    results.append({"shape": shape, "engine": engine, "round": turn, **result})
                    write_results(given.json, here, results)
                    figures = ", ".join(f"{key} {value:,.4g}" for key, value in result.items())
                    print_progress(f"{shape}, round {turn + 1} of {given.rounds}, {engine}: {figures}")
            print(report(results, shape), flush=True)
    if results:
        draw(given.plot, lambda path: picture(results, path))


if __name__ == "__main__":
    main()
