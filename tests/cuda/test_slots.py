"""The slots of recorded steps."""

import random

import pytest
import torch
from builders import random_model
from torch import Tensor

from minigpt.config import GPTConfig
from minigpt.cuda.slots import CudaSlots
from minigpt.model.gpt import GPT
from minigpt.slots.slots import Chunk, Slots

# Widths and vocabularies that fill no tile of the kernels.
SHAPE = GPTConfig(vocab_size=101, n_positions=40, n_embd=66, n_layer=2, n_head=3)


def some_model(columns: bool = False) -> GPT:
    generator = torch.Generator().manual_seed(0)
    model = GPT(SHAPE).eval()
    for name, parameter in model.named_parameters():
        parameter.data.normal_(0, 0.2, generator=generator)
        if columns and name.endswith("proj.weight"):
            parameter.data = parameter.data.t().contiguous().t()
    return model


def some_ids(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(SHAPE.vocab_size), k=count)


def read_alone(engine: Slots, slot: int, ids: list[int], size: int) -> Tensor:
    """The logits after every id of one slot, read `size` ids at a time."""
    parts = [ids[at : at + size] for at in range(0, len(ids), size)]
    return torch.cat([engine.read([Chunk(slot, at * size, part, len(part))])[0] for at, part in enumerate(parts)])


def test_a_step_of_fixed_shape_does_not_touch_slots_that_read_nothing() -> None:
    engine = CudaSlots(some_model(), 3)
    ids = some_ids(12, 5)
    expected = read_alone(engine, 0, ids, 1)
    engine = CudaSlots(some_model(), 3)
    found = []
    for at, id in enumerate(ids):
        found += engine.read([Chunk(0, at, [id])])
        engine.read([Chunk(1, at, [1]), Chunk(2, at, [2])])
    assert torch.equal(torch.cat(found), expected)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_recorded_step_gives_a_slot_the_same_bits_beside_others_and_the_logits_of_the_model(device: str) -> None:
    model = random_model(vocab_size=257, n_positions=64, n_embd=128, n_head=2).to(device)
    rows = [some_ids(20, seed) for seed in range(3)]
    expected = [read_alone(CudaSlots(model, 3), slot, ids, 1) for slot, ids in enumerate(rows)]
    engine = CudaSlots(model, 3)
    for at in range(20):
        found = engine.read([Chunk(slot, at, ids[at : at + 1]) for slot, ids in enumerate(rows)])
        for slot, logits in enumerate(found):
            assert torch.equal(logits[0], expected[slot][at])
    with torch.no_grad():
        torch.testing.assert_close(
            torch.stack(expected), model(torch.tensor(rows, device=device)), rtol=1e-3, atol=1e-3
        )
