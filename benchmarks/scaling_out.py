"""Training speed over the number of processes: one model and one batch, trained by 1, 2, ... processes.

    python benchmarks/scaling_out.py --json scaling_out.json

Every measurement starts new processes, and each round measures all settings in turn. If the speed of the machine
drifts, it affects all settings. The batch is the same for every number of processes; with --weak it grows with them.
Each of n processes has 1/n of the threads or, on CUDA, one GPU. The loop is `minigpt.train` without a run folder, so it
does not evaluate, sample, log or save. "Exchange" is the time of one all-reduce of as many numbers as the model has
parameters. Memory is the peak of each process above its imports.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from measuring import Shape, Stopwatch, cores, describe, machine, print_progress, spread, table, write_results

SHAPES = {
    "chars-nano": Shape(4, 4, 128, context=64, batch=12, vocabulary=65),
    "mini": Shape(6, 6, 384, context=256, batch=16, vocabulary=4096),
    "gpt2": Shape(12, 12, 768, context=1024, batch=32, vocabulary=50257, cuda_only=True),
}


# One training process.


def work(job: dict[str, Any]) -> dict[str, Any]:
    """Takes part in one measurement; returns the figures of this process."""
    import own_loop
    import torch
    import torch._dynamo

    from minigpt.distributed.process_group import init_world
    from minigpt.terminal.panel import peak_memory
    from minigpt.training.events import Step
    from minigpt.training.loop import train

    world, shape = init_world(), Shape(**job["shape"])
    device = world.device(job["device"])
    torch.set_num_threads(job["threads"])
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    before = peak_memory(device)
    model, config = own_loop.minigpt_parts(shape, job["device"], sharding=job["sharding"])
    clock = Stopwatch(warmup=job["warmup"], seconds=0, steps=job["steps"], synchronize=synchronize)
    corpus = own_loop.random_corpus(Path(job["data"]), shape.vocabulary)
    for event in train(model, corpus, config, world=world):
        if isinstance(event, Step) and clock.step():
            break
    found = {
        "tokens_per_second": clock.measured * shape.tokens / clock.elapsed,
        "parameters": model.config.n_parameters,
        "exchange_seconds": exchange(world, model.config.n_parameters, device, synchronize),
        "peak_bytes": peak_memory(device) - before,
    }
    world.close()
    return found


def exchange(world: Any, count: int, device: Any, synchronize: Any) -> float:
    """Seconds of one all-reduce of `count` float32 numbers; the median of five."""
    import torch

    figures, taken = torch.zeros(count, device=device), []
    for _ in range(6):
        synchronize()
        began = time.perf_counter()
        world.all_reduce_sum(figures)
        synchronize()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:])


# The parent process.


def measure(job: dict[str, Any], processes: int) -> dict[str, Any]:
    """Runs one measurement with this number of processes; returns the figures of the main process."""
    from minigpt.distributed.launchers import environment_of

    folder, count = tempfile.TemporaryDirectory(), str(job["threads"])
    workers = [
        subprocess.Popen(
            [sys.executable, __file__, "--worker", json.dumps(job)],
            env=os.environ
            | (environment_of(rank, processes, Path(folder.name) / "store") if processes > 1 else {})
            | {"OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]
    answers = [worker.communicate()[0] for worker in workers]
    folder.cleanup()
    if any(worker.returncode for worker in workers):
        raise SystemExit(f"{processes} processes could not train; the reason is printed above")
    return json.loads(answers[0].splitlines()[-1])


def report(results: list[dict[str, Any]], title: str) -> str:
    """A table of all measurements."""
    rows = []
    ways = sorted({(result["processes"], result["sharding"]) for result in results})
    alone = {result["round"]: result["tokens_per_second"] for result in results if result["processes"] == 1}
    for processes, sharding in ways:
        own = [result for result in results if (result["processes"], result["sharding"]) == (processes, sharding)]
        speeds = [result["tokens_per_second"] for result in own]
        gains = [result["tokens_per_second"] / alone[result["round"]] for result in own if result["round"] in alone]
        n, parameters = processes, own[0]["parameters"]
        moved = 4 * parameters * (n - 1) / n * (3 if sharding == "on" else 2) / 1e6
        milliseconds = spread([1000 * result["exchange_seconds"] for result in own], ".1f") if n > 1 else "–"
        memory = statistics.median(result["peak_bytes"] for result in own) / 1e6
        way = "one copy" if n == 1 else "sharded (FSDP)" if sharding == "on" else "copies (DDP)"
        row = [str(n), way, str(own[0]["threads"]), spread(speeds), spread(gains, ".2f")]
        rows.append([*row, f"{moved:,.0f}", milliseconds, f"{memory:,.0f}"])
    header = ["processes", "weights", "threads each", "tokens/s", "× one process", "MB sent per step by each"]
    return f"### {title}\n\n" + table([*header, "exchange, ms", "memory each, MB"], rows) + "\n"


def main() -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="mini", help="the model and the batch [mini]")
    parser.add_argument("--processes", default="1,2", help="numbers of processes, separated by commas [1,2]")
    parser.add_argument("--device", default="cpu", help="cpu or cuda [cpu]")
    parser.add_argument("--threads", type=int, default=cores(), help="total threads of all processes [all cores]")
    parser.add_argument("--steps", type=int, default=20, help="measured steps [20]")
    parser.add_argument("--warmup", type=int, default=5, help="unmeasured steps before them [5]")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each setting [5]")
    parser.add_argument("--weak", action="store_true", help="let the batch grow with the processes")
    parser.add_argument("--json", type=Path, help="write the raw numbers to this file")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(work(json.loads(options.worker))))
        return
    from training import random_tokens

    shape, results = SHAPES[options.shape], []
    counts = [int(count) for count in options.processes.split(",")]
    ways = [(count, sharding) for count in counts for sharding in (("off", "on") if count > 1 else ("off",))]
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "tokens.bin"
        random_tokens(data, shape.vocabulary)
        for number in range(options.rounds):
            for processes, sharding in ways if number % 2 == 0 else reversed(ways):
                own = replace(shape, batch=shape.batch * processes) if options.weak else shape
                job = {
                    "shape": asdict(own),
                    "data": str(data),
                    "device": options.device,
                    "sharding": sharding,
                    "threads": max(1, options.threads // processes),
                    "steps": options.steps,
                    "warmup": options.warmup,
                }
                result = measure(job, processes)
                results.append({**result, **job, "processes": processes, "round": number})
                speed = result["tokens_per_second"]
                print_progress(f"round {number + 1}, {processes} processes, sharding {sharding}: {speed:,.0f} tokens/s")
                write_results(options.json, machine(options.threads), results)
    s = shape
    title = f"{s.n_layer} layers × {s.n_embd}, vocabulary {s.vocabulary:,}, context {s.context}, batch {s.batch}"
    print(describe(machine(options.threads)) + "\n")
    print(report(results, title + (" for each process" if options.weak else " for all")))


if __name__ == "__main__":
    main()
