"""The slots of the C code give each slot the same bits whatever the others read."""

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from minigpt.config import GPTConfig
from minigpt.errors import ConfigError
from minigpt.model.gpt import GPT
from minigpt.native import compiled
from minigpt.native.slots import NativeSlots
from minigpt.slots.resolve_slots import resolve_slots
from minigpt.slots.slots import Chunk, Slots

needs_native = pytest.mark.skipif(compiled.library() is None, reason="the C code is not compiled")
SETS = compiled.instruction_sets(loaded) if (loaded := compiled.library()) else []
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


@needs_native
@pytest.mark.parametrize("instructions", SETS)
@pytest.mark.parametrize("form", ["rows", "columns", "int8"])
def test_the_bits_of_a_row_do_not_depend_on_the_other_rows(
    use: Callable[[str], None], instructions: str, form: str
) -> None:
    use(instructions)
    model, quantization = some_model(form == "columns"), "int8" if form == "int8" else "none"
    engine = NativeSlots(model, 16, quantization)
    ids = [some_ids(6, seed) for seed in range(16)]
    expected = [read_alone(engine, slot, each, 1) for slot, each in enumerate(ids)]
    for count in range(2, 17):
        engine = NativeSlots(model, 16, quantization)
        slots = random.Random(count).sample(range(16), count)
        for at in range(6):
            found = engine.read([Chunk(slot, at, ids[slot][at : at + 1]) for slot in slots])
            for slot, logits in zip(slots, found, strict=True):
                assert torch.equal(logits[0], expected[slot][at])


@needs_native
@pytest.mark.parametrize("form", ["rows", "columns", "int8"])
@pytest.mark.parametrize("size", [2, 5, 7, 33])
def test_the_bits_of_a_row_do_not_depend_on_how_it_is_divided(form: str, size: int) -> None:
    engine = NativeSlots(some_model(form == "columns"), 2, "int8" if form == "int8" else "none")
    ids = some_ids(33, 1)
    assert torch.equal(read_alone(engine, 0, ids, 1), read_alone(engine, 1, ids, size))


def test_the_engine_fits_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_library", lambda: "no compiler")
    assert type(resolve_slots(some_model(), 2, "auto")) is Slots
    with pytest.raises(ConfigError, match="no compiler"):
        resolve_slots(some_model(), 2, "int8")
