"""Training speed and memory of minigpt beside nanoGPT, a plain transformers loop and Hugging Face's Trainer.

    python benchmarks/training.py --nanogpt PATH/TO/nanoGPT --json training.json --plot training.svg

Needs a checkout of nanoGPT and, for the other peers, `pip install transformers accelerate`; a peer that is missing is
named and left out. On a CPU `nanogpt-compiled` also needs a C++ compiler.

Every measurement is a process of its own, and rounds go over the engines in turn, so that a machine whose speed drifts
slows all of them alike: what counts is the ratio within a round. Everyone has the same shape, batch and threads, and
random tokens; arithmetic is float32 on a CPU but for the engines in `bf16`, which are what `minigpt train` chooses on a
CPU that multiplies bfloat16 faster, and bfloat16 for all on CUDA. minigpt is its own loop, `minigpt.train`, at its
defaults and without a run's folder, so that nothing is evaluated, sampled, logged or saved. nanoGPT keeps what favours
it: no biases, no wait for the loss but every tenth step. Memory is the peak of the resident set on a CPU, of torch's
allocations on CUDA; "above imports" leaves out what stood before the model was built.

"Outside" is the share of minigpt's step that is not forward, backward, clipping and update: steps of its loop and of a
bare loop over the same model, loss and optimizer on one fixed batch alternate within one process. MFU (on CUDA) is
6 N + 12 L C T floating-point operations per token over what a large bfloat16 product reaches in the same round.
"""

import argparse
import array
import functools
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from measuring import (
    Shape,
    Stopwatch,
    WorkerError,
    add_options,
    describe,
    draw,
    figure,
    keep,
    machine,
    median,
    present,
    run_job,
    say,
    spread,
    table,
)

SHAPES = {
    "chars-nano": Shape(4, 4, 128, context=64, batch=12, vocabulary=65),
    "chars-mini": Shape(6, 6, 384, context=256, batch=16, vocabulary=65),
    "bpe-mini": Shape(6, 6, 384, context=256, batch=16, vocabulary=50257),
    "gpt2": Shape(12, 12, 768, context=512, batch=1, vocabulary=50257),
    "gpt2-planned": Shape(12, 12, 768, context=512, batch=6, vocabulary=50257),  # as minigpt plans a step on a CPU
    "gpt2-1024": Shape(12, 12, 768, context=1024, batch=32, vocabulary=50257, cuda_only=True),
}
ENGINES = (
    "minigpt",
    "minigpt-adamw",
    "minigpt-bf16",
    "minigpt-adamw-bf16",
    "nanogpt",
    "nanogpt-compiled",
    "transformers",
    "trainer",
)
OUTSIDE, CEILING = "outside", "ceiling"  # measured beside the engines


# The worker's side: one engine in one process.


def measure_ceiling() -> dict[str, float]:
    """Floating-point operations per second of a large bfloat16 product on the GPU."""
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


def work(job: dict[str, Any]) -> dict[str, Any]:
    """One measurement, in the process that is there for it."""
    engine, shape, data = job["engine"], Shape(**job["shape"]), Path(job["data"])
    import torch

    from minigpt.device import peak_memory, resolve_device

    device = resolve_device(job["device"])
    if engine == "device":
        return {"device": device.type}
    torch.set_num_threads(job["threads"])
    torch.manual_seed(1)
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    timing = {"warmup": job["warmup"], "seconds": job["seconds"]}
    if engine == CEILING:
        return measure_ceiling()
    # Everyone's imports come before memory is read, and only its own; torch's optimizers import dynamo in any case.
    import torch._dynamo

    if engine.startswith("minigpt") or engine == OUTSIDE:
        import own_loop
    elif engine == "transformers":
        from transformers import GPT2LMHeadModel
    elif engine == "trainer":
        from transformers import GPT2LMHeadModel, Trainer  # noqa: F401
    import peers

    before = peak_memory(device)
    watch = functools.partial(Stopwatch, steps=job["steps"], synchronize=synchronize, **timing)
    if engine == OUTSIDE:
        return own_loop.measure_outside(shape, data, device, synchronize=synchronize, **timing)
    if engine.startswith("minigpt"):
        options = ({"optimizer": "adamw"} if "adamw" in engine else {}) | (
            {"dtype": "bfloat16"} if "bf16" in engine else {}
        )
        clock = own_loop.measure_minigpt(shape, data, device, watch, **options)
    elif engine.startswith("nanogpt"):
        compiled = engine == "nanogpt-compiled"
        clock = peers.measure_nanogpt(Path(job["nanogpt"]), shape, data, device, watch, compiled)
    else:
        measure = {"transformers": peers.measure_transformers, "trainer": peers.measure_trainer}[engine]
        clock = measure(shape, data, device, watch)
    peak = peak_memory(device)
    return {
        "tokens_per_second": clock.measured * shape.tokens / clock.elapsed,
        "steps": clock.measured,
        "first_step_seconds": clock.first_step,
        "peak_bytes": peak,
        "peak_bytes_above_imports": peak - before,
    }


# The reader's side.


def figures_of(results: list[dict[str, Any]], shape: str, engine: str, key: str) -> list[Any]:
    """One figure of an engine on a shape, over the rounds."""
    return [result[key] for result in results if (result["shape"], result["engine"]) == (shape, engine)]


def ratios(results: list[dict[str, Any]], shape: str, engine: str) -> list[float]:
    """The engine's speed over the fastest peer's of the same round, over the rounds."""
    found = []
    for this in (r for r in results if (r["shape"], r["engine"]) == (shape, engine)):
        there = [r for r in results if (r["shape"], r["round"]) == (shape, this["round"])]
        peers = [r["tokens_per_second"] for r in there if r["engine"] in ENGINES and "minigpt" not in r["engine"]]
        if peers:
            found.append(this["tokens_per_second"] / max(peers))
    return found


def utilizations(results: list[dict[str, Any]], shape: str, engine: str) -> list[float]:
    """The engine's share of the ceiling of the same round, over the rounds that have one."""
    ceilings = {r["round"]: r["flops"] for r in results if (r["shape"], r["engine"]) == (shape, CEILING)}
    return [
        SHAPES[shape].flops_per_token * this["tokens_per_second"] / ceilings[this["round"]]
        for this in results
        if (this["shape"], this["engine"]) == (shape, engine) and this["round"] in ceilings
    ]


def report(results: list[dict[str, Any]], shape: str) -> str:
    """A table of one shape's engines, and what follows from it in words."""
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
    leanest = [
        median(figures_of(results, shape, engine, "peak_bytes")) for engine in engines if "minigpt" not in engine
    ]
    own = median(figures_of(results, shape, "minigpt", "peak_bytes"))
    if own and leanest:
        text += f"\nminigpt's peak memory is {own / min(leanest):.2f} × the leanest peer's."
    outside = figures_of(results, shape, OUTSIDE, "outside")
    if outside:
        text += f"\nOf minigpt's step {spread(outside, '.1%')} are outside forward, backward and update."
    if ceiling:
        text += f"\nThe ceiling is {ceiling / 1e12:,.0f} TFLOP/s, a bfloat16 product of 8192 × 8192."
    return text + "\n"


def picture(results: list[dict[str, Any]], path: Path) -> None:
    """A bar for the median of each engine on each shape, a whisker from the slowest round to the fastest."""
    shapes = list(dict.fromkeys(result["shape"] for result in results))
    drawing, panels = figure(len(shapes), height=3.2)
    for axes, shape in zip(panels, shapes, strict=True):
        engines = [engine for engine in reversed(ENGINES) if figures_of(results, shape, engine, "round")]
        speeds = [figures_of(results, shape, engine, "tokens_per_second") for engine in engines]
        middles = [statistics.median(values) for values in speeds]
        reach = [[m - min(v) for m, v in zip(middles, speeds)], [max(v) - m for m, v in zip(middles, speeds)]]  # noqa: B905
        colours = ["tab:orange" if "minigpt" in engine else "tab:blue" for engine in engines]
        axes.barh(engines, middles, xerr=reach, color=colours, error_kw={"elinewidth": 1, "capsize": 2})
        axes.set_title(shape)
        axes.set_xlabel("tokens/s")
    drawing.savefig(path, dpi=120)


def random_tokens(path: Path, vocabulary: int, count: int = 500_000) -> None:
    """A file of uint16 tokens."""
    path.write_bytes(array.array("H", random.Random(1).choices(range(vocabulary), k=count)).tobytes())


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, help="[all that the device is for]")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES), help="[all]")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each engine on each shape [3]")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of a measurement, at least 3 steps [20]")
    parser.add_argument("--steps", type=int, help="length of a measurement in steps, instead of --seconds")
    parser.add_argument("--warmup", type=int, default=3, help="steps before a measurement [3]")
    parser.add_argument("--no-outside", action="store_true", help="leave out the share outside forward and backward")
    add_options(parser)
    return parser.parse_args()


def main() -> None:
    given = options()
    if given.worker:
        print(json.dumps(work(given.worker)))
        return
    here, results = machine(given.threads), []
    engines = present(given.engines, given.nanogpt)
    job = {name: getattr(given, name) for name in ("threads", "device", "warmup", "seconds", "steps")}
    job |= {"nanogpt": str(given.nanogpt), "data": "", "shape": vars(SHAPES["chars-nano"])}
    cuda = run_job(__file__, job | {"engine": "device"}, given.threads)["device"] == "cuda"
    if not cuda:
        here["gpu"] = None
    shapes = given.shapes or [name for name, shape in SHAPES.items() if cuda or not shape.cuda_only]
    beside = [] if given.no_outside or "minigpt" not in engines else [OUTSIDE]
    print(f"{describe(here)}\n")
    with tempfile.TemporaryDirectory() as folder:
        for shape in shapes:
            data, failed = Path(folder) / f"{SHAPES[shape].vocabulary}.bin", set()
            random_tokens(data, SHAPES[shape].vocabulary)
            for turn in range(given.rounds):
                wanted = [*engines, *beside, *([CEILING] if cuda else [])]
                for engine in wanted if turn % 2 == 0 else reversed(wanted):
                    if engine in failed:
                        continue
                    this = job | {"engine": engine, "shape": vars(SHAPES[shape]), "data": str(data)}
                    try:
                        result = run_job(__file__, this, given.threads)
                    except WorkerError as error:
                        failed.add(engine)
                        say(f"{shape}: {engine} is left out, it failed: {error}")
                        continue
                    results.append({"shape": shape, "engine": engine, "round": turn, **result})
                    keep(given.json, here, results)
                    figures = ", ".join(f"{key} {value:,.4g}" for key, value in result.items())
                    say(f"{shape}, round {turn + 1} of {given.rounds}, {engine}: {figures}")
            print(report(results, shape), flush=True)
    if results:
        draw(given.plot, lambda path: picture(results, path))


if __name__ == "__main__":
    main()
