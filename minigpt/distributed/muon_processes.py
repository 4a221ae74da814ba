"""Muon's updates on several processes: each orthogonalizes some of the matrices, and all receive the result.

The matrices of one shape are dealt out in turn. Those that a process orthogonalizes are computed together. The groups
are the same if every process computes all of them, so both ways give the same bits.
Source: https://github.com/KellerJordan/modded-nanogpt, which shares Muon's matrices out in the same way.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from minigpt.config import TrainConfig
from minigpt.training.muon import Muon, step_length
from minigpt.training.step_parts import StepParts
from minigpt.training.world import World, to_local

if TYPE_CHECKING:
    from minigpt.distributed.process_group import ProcessGroup

Compute = Callable[[Tensor], Tensor]  # (n, rows, columns) momenta -> as many updates

_TRIALS = 3  # updates that are timed in each way; the first of each also warms up


def share_muon(parts: StepParts, config: TrainConfig, given: dict[str, Any]) -> None:  # noqa: ARG001
    """With several processes, makes them divide the matrices that Muon updates."""
    if parts.world.size > 1:
        parts.optimizers = [
            SharedMuon(optimizer, cast("ProcessGroup", parts.world)) if isinstance(optimizer, Muon) else optimizer
            for optimizer in parts.optimizers
        ]


class SharedMuon(Muon):
    """Muon on the processes of a world, which divide the matrices."""

    def __init__(self, plain: Muon, world: "ProcessGroup") -> None:
        settings = plain.defaults
        super().__init__(plain.param_groups, settings["lr"], momentum=settings["momentum"], bfloat16=plain.bfloat16)
        self.orthogonalize = plain.orthogonalize
        self.world, self.way = world, FasterWay(world)
        self._next = 0  # the process that orthogonalizes the next matrix

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Updates every matrix that has a gradient; may overwrite the gradients."""
        batches = list(self.of_one_shape(self.world.size))
        if not batches:
            return
        self._next = 0
        with self.way.timed(to_local(batches[0][0][0]).device):
            for matrices, group in batches:
                self.update(matrices, group)

    def update(self, matrices: list[Tensor], group: dict[str, Any]) -> None:
        def compute(momenta: Tensor) -> Tensor:
            return self.directions(momenta, group)

        momenta = [to_local(momentum) for momentum in self.momenta(matrices, group)]
        if self.world.is_sharded:
            rows = rows_of_shards(matrices[0].shape[0], self.world.size)
            moves = sharded_updates(momenta, rows, compute, self.world, self._next)
        else:
            moves = (shared_updates if self.way.shares else own_updates)(momenta, compute, self.world, self._next)
        self._next = (self._next + len(matrices)) % self.world.size
        torch._foreach_add_(
            [to_local(matrix) for matrix in matrices], moves, alpha=step_length(matrices[0].shape, group)
        )


def own_updates(momenta: Sequence[Tensor], compute: Compute, world: "ProcessGroup", first: int) -> list[Tensor]:
    """The updates of matrices of one shape, all computed by every process.

    `first` is the process that has the first matrix; the next has the second.
    Shapes: n x (rows, columns) -> n x (rows, columns).
    """
    owners = _owners(len(momenta), world, first)
    groups = [[m for m, owner in zip(momenta, owners, strict=True) if owner == rank] for rank in range(world.size)]
    updates = [iter(compute(torch.stack(group))) if group else iter(()) for group in groups]
    return [next(updates[owner]) for owner in owners]


def shared_updates(momenta: Sequence[Tensor], compute: Compute, world: "ProcessGroup", first: int) -> list[Tensor]:
    """The same updates, each computed by one process and sent to all."""
    owners = _owners(len(momenta), world, first)
    own = [momentum for momentum, owner in zip(momenta, owners, strict=True) if owner == world.rank]
    sent = momenta[0].new_zeros(-(-len(momenta) // world.size), *momenta[0].shape)  # as many for every process
    if own:
        sent[: len(own)] = compute(torch.stack(own))
    received: list[Iterator[Tensor]] = [iter(updates) for updates in world.all_gather(sent)]
    return [next(received[owner]) for owner in owners]


def sharded_updates(
    shards: Sequence[Tensor], rows: Sequence[int], compute: Compute, world: "ProcessGroup", first: int
) -> list[Tensor]:
    """The same updates of matrices of which each process has some rows: `rows[r]` of them are on process r.

    A matrix is sent to the process that computes its update, and each process receives its rows of that.
    Shapes: n x (own rows, columns) -> n x (own rows, columns).
    """
    owners, columns = _owners(len(shards), world, first), shards[0].shape[1]
    n_own = owners.count(world.rank)
    to_owners = [
        torch.cat([shards[0].new_empty(0), *(s.flatten() for s, o in zip(shards, owners, strict=True) if o == rank)])
        for rank in range(world.size)
    ]
    received = world.all_to_all(to_owners, [n_own * count * columns for count in rows])
    parts = [part.view(n_own, count, columns) for part, count in zip(received, rows, strict=True)]
    updates = compute(torch.cat(parts, dim=1)) if n_own else shards[0].new_empty(0, sum(rows), columns)
    own_rows = rows[world.rank]
    returned = world.all_to_all(
        [part.flatten() for part in torch.split(updates, list(rows), dim=1)],
        [owners.count(rank) * own_rows * columns for rank in range(world.size)],
    )
    results: list[Iterator[Tensor]] = [iter(part.view(-1, own_rows, columns)) for part in returned] if own_rows else []
    return [next(results[owner]) for owner in owners] if own_rows else list(shards)


def rows_of_shards(rows: int, size: int) -> list[int]:
    """How many rows of a matrix each of `size` processes has, as FSDP divides them."""
    each = -(-rows // size)
    return [max(0, min(each, rows - rank * each)) for rank in range(size)]


def _owners(count: int, world: "ProcessGroup", first: int) -> list[int]:
    """The process that computes each of `count` matrices."""
    return [(first + number) % world.size for number in range(count)]


class FasterWay:
    """Chooses between sharing the updates out and computing all of them on every process, by timing the first steps.

    Sharing pays unless the network is slow. All processes choose the same.
    """

    def __init__(self, world: World) -> None:
        self.world, self.shares = world, world.size > 1
        self.seconds: dict[bool, list[float]] = {True: [], False: []}

    @property
    def is_chosen(self) -> bool:
        """Whether the steps were timed, or there is only one way: with one process, or with sharded weights."""
        return self.world.size == 1 or self.world.is_sharded or len(self.seconds[False]) == _TRIALS

    @contextmanager
    def timed(self, device: torch.device) -> Iterator[None]:
        """A context for the updates of a step."""
        if self.is_chosen:
            yield
            return
        self.shares = len(self.seconds[True]) == len(self.seconds[False])
        started = _now(device)
        yield
        self.seconds[self.shares] += self.world.all_reduce_max([_now(device) - started])
        if self.is_chosen:
            self.shares = min(self.seconds[True]) < min(self.seconds[False])


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
