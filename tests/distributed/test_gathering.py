"""Gathering sharded tensors while they are written: in the order of the file, one at a time, also after a failure."""

import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch
from thread_world import Threads
from torch import Tensor

from minigpt.distributed.gathering import Gathering
from minigpt.distributed.process_group import ProcessGroup
from minigpt.errors import CheckpointError
from minigpt.storage.files import atomic_write
from minigpt.storage.tensors import TensorFile, in_file_order, save_tensors, tensor_content
from minigpt.training.world import World


class Doubling(World):
    """A world in which the full tensor is twice the shard; it records what was gathered."""

    def __init__(self) -> None:
        self.gathered: list[list[float]] = []
        self.full: list[weakref.ref[Tensor]] = []

    def gather(self, tensor: Tensor) -> Tensor:
        assert [ref for ref in self.full if ref() is not None] == []  # one full tensor at a time
        full = 2 * tensor
        self.gathered.append(tensor.tolist())
        self.full.append(weakref.ref(full))
        return full


def tensors() -> dict[str, Tensor]:
    return {"a": torch.tensor([1, 2], dtype=torch.bfloat16), "b": torch.tensor([3.0, 4.0]), "c": torch.tensor([5.0])}


IN_ORDER = [[3.0, 4.0], [5.0], [1.0, 2.0]]  # larger numbers first


def test_the_file_has_the_full_tensors_and_the_other_processes_gather_the_same_ones(tmp_path: Path) -> None:
    world, other = Doubling(), Doubling()
    gathering = Gathering(tensors(), world.gather)
    atomic_write(tmp_path / "file", tensor_content(tensors(), read=gathering.read))
    gathering.finish()
    Gathering(tensors(), other.gather).finish()
    assert world.gathered == other.gathered == IN_ORDER
    saved = TensorFile(tmp_path / "file")
    assert {name: tensor.tolist() for name, tensor in saved.items()} == {"a": [2, 4], "b": [6, 8], "c": [10]}
    assert saved.specs == {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors().items()}


@pytest.mark.parametrize("after", [0, 1, 2])
def test_after_a_failed_write_the_rest_is_gathered_too(tmp_path: Path, after: int) -> None:
    world = Doubling()
    gathering = Gathering(tensors(), world.gather)

    def full_disk(path: Path, content: Any) -> None:
        def write(file: BinaryIO) -> None:
            limit = len(world.gathered) + after

            class Limited:
                def write(self, data: Any) -> None:
                    if len(world.gathered) > limit:
                        raise CheckpointError("no space left on device")
                    file.write(data)

            content(Limited())

        atomic_write(path, write)

    with pytest.raises(CheckpointError):
        full_disk(tmp_path / "file", tensor_content(tensors(), read=gathering.read))
    gathering.finish()
    assert world.gathered == IN_ORDER
    assert not (tmp_path / "file").exists()


def test_the_tensors_of_a_file_are_read_when_requested(tmp_path: Path) -> None:
    save_tensors(tmp_path / "file", tensors(), {"step": "3"})
    saved = TensorFile(tmp_path / "file")
    save_tensors(tmp_path / "file", {name: 0 * tensor for name, tensor in tensors().items()})  # a new file
    assert saved.metadata == {"step": "3"}
    assert saved["b"].tolist() == [3, 4]
    assert list(in_file_order(saved)) == ["b", "c", "a"]


def test_processes_that_are_done_wait_for_the_others() -> None:
    def count(world: Any) -> list[int | None]:
        world.is_sharded = True
        items: Iterator[int] = iter(range(1 + 2 * world.rank))
        return list(ProcessGroup.in_step(world, items))

    assert Threads(3).run(count) == [[0, None, None, None, None], [0, 1, 2, None, None], [0, 1, 2, 3, 4]]


def test_without_shards_nobody_waits() -> None:
    assert list(World().in_step(iter([1, 2]))) == [1, 2]
