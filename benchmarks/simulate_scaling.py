"""A simulation of the time of a training step on 8, 64 and 512 GPUs, from the speed of one GPU and of its links.

    python benchmarks/simulate_scaling.py
    python benchmarks/simulate_scaling.py --check link_speed.json

Nothing is measured here. A step is the forward and backward passes of each micro-batch, an all-reduce (DDP) or the
gathering and reducing of weights (FSDP) beside them, and the update. Assumptions:

- a GPU computes matrix products at a fixed part of its peak, also for small micro-batches;
- gradients are reduced in buckets of 25 MB, last block first. A bucket starts when the backward pass has computed it
  and the bucket before it has been sent. The result arrives in the last micro-batch only;
- a collective uses all links of a machine, then those between machines, one after the other: reduce-scatter within,
  all-reduce between machines of the part that each GPU has, all-gather within. It takes log2(GPUs) hops, each of a
  fixed time, as NCCL's trees do;
- FSDP sends beside the computation: only what takes longer than that costs time;
- the update reads and writes every number once; Muon's matrix products are divided over the GPUs if that is faster;
- reading the text, evaluations and saves take no time, all GPUs are equally fast, and the network has no other traffic.

Published figures stand beside simulated ones; `--check` compares with the figures of benchmarks/link_speed.py too.
"""

import argparse
import json
import math
import statistics
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

from measuring import table

from minigpt.config import PRESETS, GPTConfig

BUCKET = 25e6  # bytes, DDP's
MUON_PRODUCTS = 3  # polynomials, see minigpt.training.muon


@dataclass(frozen=True)
class Cluster:
    """GPUs and their links. `per_machine` GPUs share a machine.

    Units: `flops` operations per second that a GPU reaches; `memory`, `within` and `between` bytes per second of a GPU,
    for its memory, to the others of its machine, and to other machines; `hop` seconds.
    """

    gpus: int
    per_machine: int
    flops: float
    memory: float
    within: float
    between: float
    hop: float = 1e-5

    @property
    def machines(self) -> int:
        """How many machines there are."""
        return -(-self.gpus // self.per_machine)

    def all_reduce(self, size: float) -> float:
        """Seconds until all GPUs have the sum of `size` bytes."""
        return 2 * self.gather(size)

    def gather(self, size: float) -> float:
        """Seconds until all GPUs have all of `size` bytes, of which each has a part; as long as a reduce-scatter."""
        own = min(self.gpus, self.per_machine)
        seconds = size * (own - 1) / own / self.within + self.hop * math.ceil(math.log2(self.gpus))
        if self.machines > 1:
            seconds += size / own * (self.machines - 1) / self.machines / self.between
        return seconds


# 445 of 989 TFLOP/s in bfloat16 (45 %), 3.35 TB/s, NVLink, and a network card of 400 Gbit/s for each GPU.
H100 = Cluster(gpus=8, per_machine=8, flops=445e12, memory=3.35e12, within=450e9, between=50e9)


@dataclass(frozen=True)
class Training:
    """What is trained: `tokens` per step in sequences of `context`, at most `micro_batch` of them at a time."""

    model: GPTConfig
    tokens: int
    context: int
    micro_batch: int
    optimizer: str
    sharded: bool = False
    number_bytes: int = 4  # of the numbers that are sent


@dataclass(frozen=True)
class StepTime:
    """The parts of a step, in seconds: `exposed` is communication that no computation hides."""

    compute: float
    exposed: float
    update: float

    @property
    def total(self) -> float:
        """Seconds of the whole step."""
        return self.compute + self.exposed + self.update


def flops_per_token(model: GPTConfig, context: int) -> float:
    """Operations of the forward and the backward pass: 6 N + 12 L C T."""
    return 6 * model.n_parameters + 12 * model.n_layer * model.n_embd * context


def muon_flops(model: GPTConfig) -> float:
    """Operations of Muon's matrix products: of three polynomials, for the matrices of every block."""
    width, n_head = model.n_embd, model.n_head

    def of(rows: int, columns: int) -> int:
        return 2 * rows * rows * (2 * columns + rows)  # X X^T, B X and the square of X X^T

    of_block = 3 * n_head * of(width // n_head, width) + of(width, width) + 2 * of(width, 4 * width)
    return MUON_PRODUCTS * model.n_layer * of_block


def step_time(training: Training, cluster: Cluster) -> StepTime:
    """The simulated time of one step."""
    model = training.model
    sequences = training.tokens / training.context / cluster.gpus
    micro_batches = max(1, -(-sequences // training.micro_batch))
    compute = flops_per_token(model, training.context) * training.tokens / cluster.gpus / cluster.flops
    size = training.number_bytes * model.n_parameters
    if training.sharded:  # in every micro-batch: weights for both passes, the blocks' in bfloat16, and gradients
        weights = size - 2 * model.n_inner_parameters
        exposed = max(0.0, micro_batches * (2 * cluster.gather(weights) + cluster.gather(size)) - compute)
    else:
        backward = compute / micro_batches * 2 / 3
        exposed = _all_reduce_after(backward, size, cluster)
    return StepTime(compute, exposed, _update(training, cluster))


def _all_reduce_after(backward: float, size: float, cluster: Cluster) -> float:
    """Seconds that the all-reduce of the buckets takes after the end of the backward pass."""
    if cluster.gpus == 1:
        return 0.0
    count = max(1, round(size / BUCKET))
    finished = 0.0
    for number in range(1, count + 1):
        computed = backward * number / count
        finished = max(finished, computed) + cluster.all_reduce(size / count)
    return finished - backward


def _update(training: Training, cluster: Cluster) -> float:
    model = training.model
    own = model.n_parameters / (cluster.gpus if training.sharded else 1)
    numbers = 7 if training.optimizer == "adamw" else 5  # reads and writes of weights, gradients and state
    seconds = own * 4 * numbers / cluster.memory
    if training.optimizer == "muon":
        inner, alone = 4 * model.n_inner_parameters, muon_flops(model) / cluster.flops
        if training.sharded:  # to the process that orthogonalizes, and back
            exchange = 2 * cluster.gather(inner) / cluster.gpus
            seconds += alone / cluster.gpus + exchange
        else:
            seconds += min(alone, alone / cluster.gpus + cluster.gather(inner))
    return seconds


def report(gpus: list[int], batch: int) -> str:
    """Simulated steps for GPT-2's shapes."""
    rows = []
    for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"):
        model = PRESETS[name]
        for way in ("DDP, AdamW", "DDP, Muon", "FSDP, Muon"):
            training = Training(model, batch, 1024, 8, way.split()[1].lower(), sharded=way.startswith("FSDP"))
            row = [name, way]
            for count in gpus:
                time = step_time(training, replace(H100, gpus=count)).total
                one = step_time(replace(training, sharded=False), replace(H100, gpus=1)).total
                row.append(f"{1000 * time:,.0f} ms, {batch / time / 1e6:.2f} M, {one / time / count:.0%}")
            rows.append(row)
    header = ["model", "weights", *(f"{count} GPUs" for count in gpus)]
    return table(header, rows)


def published() -> str:
    """Published figures beside simulated ones."""
    a100 = Cluster(8, 8, 187e12, 2.0e12, 300e9, 25e9)
    gpt2, rows = PRESETS["gpt2"], []
    llmc = Training(gpt2, 524288, 1024, 64, "adamw", number_bytes=2)
    rows.append(["llm.c, 124M, 8 x A100, 60 % of the peak", "300 ms", f"{1000 * step_time(llmc, a100).total:.0f} ms"])
    h100 = replace(H100, flops=0.41 * 989e12)
    speed = 524288 / step_time(llmc, h100).total / 8
    rows.append(["llm.c, 124M, 8 x H100, 41 % of the peak", "475,000 tokens/s a GPU", f"{speed:,.0f}"])
    alone = muon_flops(gpt2) * 5 / 3 / h100.flops  # five polynomials
    saved = alone - alone / 8 - h100.gather(2 * gpt2.n_inner_parameters)
    rows.append(["modded-nanogpt, Muon divided over 8 x H100, saves", "25 ms", f"{1000 * saved:.1f} ms"])
    return table(["published", "figure", "simulated"], rows)


def check(path: Path) -> str:
    """The medians of link_speed.py beside simulated steps: the step over an unlimited link, and what the link adds."""
    measured: defaultdict[tuple[int, str, float], list[float]] = defaultdict(list)
    results = json.loads(path.read_text(encoding="utf-8"))["results"]
    for result in results:
        measured[(result["hosts"], result["sharding"], result["mbit"])].append(result["seconds_per_step"])
    rows = []
    for (hosts, sharding, mbit), seconds in sorted(measured.items()):
        if not mbit:
            continue
        free = statistics.median(measured[(hosts, sharding, 0.0)])
        step = free + exposed_over_link(free, 4 * results[0]["parameters"], hosts, mbit, sharded=sharding == "on")
        way = "FSDP" if sharding == "on" else "DDP"
        rows.append([str(hosts), way, f"{mbit:,.0f}", f"{statistics.median(seconds):.3f}", f"{step:.3f}"])
    return table(["hosts", "weights", "Mbit/s", "measured, s", "simulated, s"], rows)


def exposed_over_link(free: float, size: float, hosts: int, mbit: float, *, sharded: bool) -> float:
    """Seconds that a link adds to a step of `free` seconds, a third of which is not the backward pass."""
    cluster = Cluster(hosts, 1, flops=1.0, memory=1.0, within=1.0, between=mbit * 1e6 / 8, hop=1e-4)
    if sharded:  # gloo sends while nothing is computed
        return 3 * cluster.gather(size)
    return _all_reduce_after(free * 2 / 3, size, cluster)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", default="8,64,512", help="numbers of GPUs, separated by commas [8,64,512]")
    parser.add_argument("--batch", type=int, default=524288, help="tokens per step [524288]")
    parser.add_argument("--check", type=Path, help="results of benchmarks/link_speed.py to compare with")
    options = parser.parse_args()
    print(report([int(count) for count in options.gpus.split(",")], options.batch) + "\n")
    print(published() + "\n")
    if options.check:
        print(check(options.check))


if __name__ == "__main__":
    main()
