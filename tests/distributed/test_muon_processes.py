"""Muon's updates on several processes, which are threads here: each way against every process computing all of them."""

import threading

import pytest
import torch
from thread_world import Threads, ThreadWorld
from torch import Tensor

from minigpt.distributed import muon_processes
from minigpt.distributed.muon_processes import FasterWay, own_updates, rows_of_shards, sharded_updates, shared_updates
from minigpt.training.muon import orthogonalize
from minigpt.training.world import World


def matrices(count: int, rows: int, columns: int) -> list[Tensor]:
    return list(torch.randn(count, rows, columns, generator=torch.Generator().manual_seed(3)))


@pytest.mark.parametrize(("size", "count", "first"), [(2, 4, 0), (3, 5, 2), (4, 2, 3), (1, 3, 0)])
def test_shared_updates_have_the_bits_of_own_ones(size: int, count: int, first: int) -> None:
    momenta, threads = matrices(count, 6, 4), Threads(size)
    own = threads.run(lambda world: own_updates(momenta, orthogonalize, world, first))
    shared = threads.run(lambda world: shared_updates(momenta, orthogonalize, world, first))
    alone = orthogonalize(torch.stack(momenta))
    for mine, received in zip(own, shared, strict=True):
        assert torch.equal(torch.stack(mine), torch.stack(received))  # the same groups of matrices
        assert torch.allclose(torch.stack(mine), alone, atol=1e-5)  # other groups


def test_each_process_computes_only_its_matrices() -> None:
    computed: list[int] = []

    def compute(momenta: Tensor) -> Tensor:
        computed.append(len(momenta))
        return momenta

    Threads(3).run(lambda world: shared_updates(matrices(5, 4, 4), compute, world, 1))
    assert sorted(computed) == [1, 2, 2]


@pytest.mark.parametrize(("size", "count", "rows"), [(2, 4, 6), (3, 5, 7), (4, 2, 6), (4, 3, 2)])
def test_sharded_updates_are_the_rows_of_the_full_ones(size: int, count: int, rows: int) -> None:
    momenta, threads, sizes = matrices(count, rows, 4), Threads(size), rows_of_shards(rows, size)
    shards = [list(parts) for parts in zip(*(torch.split(momentum, sizes) for momentum in momenta), strict=True)]
    found = threads.run(lambda world: sharded_updates(shards[world.rank], sizes, orthogonalize, world, 1))
    full = orthogonalize(torch.stack(momenta))
    for number in range(count):
        assert torch.allclose(torch.cat([updates[number] for updates in found]), full[number], atol=1e-5)


@pytest.mark.parametrize(("rows", "size"), [(6, 2), (7, 3), (6, 4), (2, 4), (9, 4)])
def test_shards_have_the_rows_of_torch_chunk(rows: int, size: int) -> None:
    chunks = [len(chunk) for chunk in torch.arange(rows).chunk(size)]
    assert rows_of_shards(rows, size) == chunks + [0] * (size - len(chunks))


@pytest.mark.parametrize("network", [0.1, 10.0])
def test_all_processes_choose_the_way_that_was_faster_on_the_slowest(
    monkeypatch: pytest.MonkeyPatch, network: float
) -> None:
    clock = threading.local()
    monkeypatch.setattr(muon_processes, "_now", lambda _: clock.seconds)

    def choose(world: World) -> tuple[bool, list[bool]]:
        clock.seconds, way, tried = 0.0, FasterWay(world), []
        while not way.is_chosen:
            with way.timed(torch.device("cpu")):
                tried.append(way.shares)
                clock.seconds += (network if world.rank == 1 else 0.1) if way.shares else 1.0
        with way.timed(torch.device("cpu")):
            return way.shares, tried

    assert Threads(2).run(choose) == [(network < 1, [True, False] * 3)] * 2


def test_one_process_and_sharded_weights_time_nothing() -> None:
    way = FasterWay(World())
    assert way.is_chosen
    assert not way.shares
    sharded = ThreadWorld(Threads(2), 0)
    sharded.is_sharded = True
    assert FasterWay(sharded).is_chosen
