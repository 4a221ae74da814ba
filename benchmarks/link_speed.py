"""Training speed over the speed of the network between hosts, and the bytes that each host sends.

    python benchmarks/link_speed.py --json link_speed.json     as root on Linux

The hosts are network namespaces of this machine, which share its cores. Their links are slowed down by the kernel's
token bucket filter. Every measurement starts new processes, one per host, each with one thread. The loop is
`minigpt.train` with AdamW and without a run folder. A host's bytes are those of its network interface in the measured
steps, with all headers. The estimate of a step is its time over an unlimited link, plus the bytes that the arithmetic
of docs/explanation/distributed.md gives, at the speed of the link.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from measuring import Shape, describe, machine, print_progress, spread, table, write_results
from scaling_out import SHAPES

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "shared"))
from network_hosts import Hosts, joined_hosts, missing

UNLIMITED = 0.0


# One training process.


def sent_bytes() -> int:
    """The bytes that this process's host has sent over its link."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == "eth0":
            return int(counters.split()[8])
    raise SystemExit("this host has no network interface eth0")


def work(job: dict[str, Any]) -> dict[str, Any]:
    """Takes part in one measurement; returns the figures of this process."""
    import own_loop
    import torch

    from minigpt.distributed.process_group import init_world
    from minigpt.training.events import Step
    from minigpt.training.loop import train

    torch.set_num_threads(1)
    world, shape = init_world(), Shape(**job["shape"])
    model, config = own_loop.minigpt_parts(shape, "cpu", sharding=job["sharding"], optimizer="adamw")
    corpus = own_loop.random_corpus(Path(job["data"]), shape.vocabulary)
    done, began, before = 0, 0.0, 0
    for event in train(model, corpus, config, world=world):
        if not isinstance(event, Step):
            continue
        done += 1
        if done == job["warmup"]:
            began, before = time.perf_counter(), sent_bytes()
        if done == job["warmup"] + job["steps"]:
            break
    found = {
        "seconds_per_step": (time.perf_counter() - began) / job["steps"],
        "bytes_per_step": (sent_bytes() - before) / job["steps"],
        "parameters": model.config.n_parameters,
    }
    world.close()
    return found


# The parent process.


def measure(job: dict[str, Any], hosts: Hosts) -> dict[str, Any]:
    """Runs one measurement; returns the figures of the main process, with the bytes of the host that sent most."""
    shared = {"WORLD_SIZE": str(len(hosts.names)), "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0", "OMP_NUM_THREADS": "1"}
    shared |= {"MASTER_ADDR": hosts.names[0], "MASTER_PORT": "29500", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    workers = [
        subprocess.Popen(
            hosts.command(host, sys.executable, __file__, "--worker", json.dumps(job)),
            env=os.environ | shared | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, host in enumerate(hosts.names)
    ]
    answers = [worker.communicate()[0] for worker in workers]
    if any(worker.returncode for worker in workers):
        raise SystemExit("the processes could not train; the reason is printed above")
    found = [json.loads(answer.splitlines()[-1]) for answer in answers]
    return found[0] | {"bytes_per_step": max(each["bytes_per_step"] for each in found)}


def expected_bytes(parameters: int, hosts: int, sharding: str) -> float:
    """The bytes of gradients and weights that each process sends per step: docs/explanation/distributed.md."""
    return (3 if sharding == "on" else 2) * 4 * parameters * (hosts - 1) / hosts


def report(results: list[dict[str, Any]], tokens: int, title: str) -> str:
    """A table of all measurements."""
    rows = []
    cells = {(result["hosts"], result["sharding"], result["mbit"]) for result in results}
    for hosts, sharding, mbit in sorted(cells, key=lambda cell: (cell[0], cell[1], cell[2] or float("inf"))):
        own = [
            result
            for result in results
            if (result["hosts"], result["sharding"], result["mbit"]) == (hosts, sharding, mbit)
        ]
        free = [
            result["seconds_per_step"]
            for result in results
            if (result["hosts"], result["sharding"], result["mbit"]) == (hosts, sharding, UNLIMITED)
        ]
        size = expected_bytes(own[0]["parameters"], hosts, sharding)
        estimate = statistics.median(free) + (8 * size / (mbit * 1e6) if mbit else 0.0)
        rows.append(
            [
                str(hosts),
                "sharded (FSDP)" if sharding == "on" else "copies (DDP)",
                f"{mbit:,.0f} Mbit/s" if mbit else "unlimited",
                spread([tokens / result["seconds_per_step"] for result in own]),
                spread([1000 * result["seconds_per_step"] for result in own]),
                f"{1000 * estimate:,.0f}" if mbit else "–",
                spread([result["bytes_per_step"] / 1e6 for result in own], ".2f"),
                f"{size / 1e6:.2f}",
            ]
        )
    header = [
        "hosts",
        "weights",
        "link",
        "tokens/s",
        "ms per step",
        "estimate, ms",
        "MB sent per step",
        "arithmetic, MB",
    ]
    return f"### {title}\n\n" + table(header, rows) + "\n"


def main() -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="chars-nano", help="the model and the batch [chars-nano]")
    parser.add_argument("--hosts", default="2,4", help="numbers of hosts, separated by commas [2,4]")
    parser.add_argument("--sharding", default="off,on", help="off (DDP), on (FSDP) or both [off,on]")
    parser.add_argument("--mbit", default="10,100,1000,10000", help="speeds of the links in Mbit/s [10,100,1000,10000]")
    parser.add_argument("--steps", type=int, default=5, help="measured steps [5]")
    parser.add_argument("--warmup", type=int, default=2, help="unmeasured steps before them [2]")
    parser.add_argument("--rounds", type=int, default=2, help="measurements of each setting [2]")
    parser.add_argument("--json", type=Path, help="write the raw numbers to this file")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(work(json.loads(options.worker))))
        return
    if (reason := missing()) is not None:
        raise SystemExit(reason)
    from training import random_tokens

    shape, results = SHAPES[options.shape], []
    speeds = [UNLIMITED, *(float(speed) for speed in options.mbit.split(","))]
    counts = [int(count) for count in options.hosts.split(",")]
    ways = [(count, sharding, mbit) for count in counts for sharding in options.sharding.split(",") for mbit in speeds]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        random_tokens(folder / "tokens.bin", shape.vocabulary)
        job = {
            "shape": asdict(shape),
            "data": str(folder / "tokens.bin"),
            "steps": options.steps,
            "warmup": options.warmup,
        }
        for number in range(options.rounds):
            for count, sharding, mbit in ways if number % 2 == 0 else reversed(ways):
                with joined_hosts([f"node{host}" for host in range(1, count + 1)], folder) as hosts:
                    for host in hosts.names if mbit else []:
                        hosts.limit(host, mbit)
                    result = measure(job | {"sharding": sharding}, hosts)
                results.append({**result, "hosts": count, "sharding": sharding, "mbit": mbit, "round": number})
                print_progress(f"round {number + 1}, {count} hosts, sharding {sharding}, {mbit:,.0f} Mbit/s: "
                               f"{shape.tokens / result['seconds_per_step']:,.0f} tokens/s")  # fmt: skip
                write_results(options.json, machine(1), results)
    s = shape
    print(describe(machine(1)) + "\n")
    title = (
        f"{s.n_layer} layers × {s.n_embd}, vocabulary {s.vocabulary:,}, context {s.context}, batch {s.batch} for all"
    )
    print(report(results, shape.tokens, title))


if __name__ == "__main__":
    main()
