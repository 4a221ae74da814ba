"""The number of threads of a decode step, quiet and beside other programs."""

import itertools

import pytest
import torch
from builders import random_model

from minigpt.generation.engines import native
from minigpt.generation.engines.native import NativeEngine
from minigpt.generation.engines.threads import ThreadCount


def chosen(seconds: dict[int, float], displacements: int, steps: int = 400) -> list[int]:
    """The numbers of threads of these steps, if a step with that many takes that long and is displaced that often."""
    counter = itertools.count(0, displacements)
    threads = ThreadCount(lambda: next(counter))
    numbers = []
    for _ in range(steps):
        numbers.append(threads.choose(2))
        threads.record(seconds[numbers[-1]])
    return numbers


def test_a_quiet_machine_always_has_all_threads() -> None:
    assert set(chosen({1: 1.0, 2: 2.0}, displacements=0)) == {2}


def test_one_thread_is_kept_while_it_is_faster_on_a_busy_machine() -> None:
    numbers = chosen({1: 1.0, 2: 2.0}, displacements=5)
    assert numbers[:8] == [2] * 8
    assert numbers[8:64] == [1] * 56
    assert numbers.count(2) < 60  # all threads are tried again now and then


def test_all_threads_return_if_one_is_slower_on_a_busy_machine() -> None:
    numbers = chosen({1: 2.0, 2: 1.0}, displacements=5)
    assert numbers[8:16] == [1] * 8
    assert numbers[16:64] == [2] * 48
    assert numbers.count(1) < 60


@pytest.mark.skipif(native.library() is None, reason="decode.c is not compiled")
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_logits_do_not_depend_on_the_number_of_threads(quantization: str) -> None:
    model, before = random_model(n_embd=64, n_head=4, vocab_size=300), torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3, 5):
            torch.set_num_threads(threads)
            engine = NativeEngine(model, quantization)
            engine.start([[1, 2, 3], [4]])
            results.append([engine.read(torch.tensor([[step], [7]])) for step in range(6)])
    finally:
        torch.set_num_threads(before)
    for result in results[1:]:
        assert all(torch.equal(one, other) for one, other in zip(result, results[0], strict=True))
