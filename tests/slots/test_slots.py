"""Slot engines give each slot the same bits whatever the others read, and the logits of the model."""

import random
from collections.abc import Callable

import pytest
import torch
from builders import new_model, random_model
from torch import Tensor

from minigpt.config import GPTConfig
from minigpt.cuda.slots import CudaSlots
from minigpt.errors import ConfigError
from minigpt.model.gpt import GPT
from minigpt.native import compiled
from minigpt.native.slots import NativeSlots
from minigpt.slots import resolve_slots as resolving
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


def new_engines() -> list[Slots]:
    engines: list[Slots] = [Slots(some_model(), 3), CudaSlots(some_model(), 3)]
    return [*engines, NativeSlots(some_model(), 3)] if compiled.library() is not None else engines


@pytest.mark.parametrize("engine", new_engines(), ids=lambda engine: type(engine).__name__)
def test_logits_are_those_of_the_model(engine: Slots) -> None:
    rows = [some_ids(length, length) for length in (9, 30, 17)]
    found: list[list[Tensor]] = [[] for _ in rows]
    read = [0, 0, 0]
    while any(read[slot] < len(ids) for slot, ids in enumerate(rows)):
        size = {0: 1, 1: 4, 2: 1}  # a prompt beside rows that generate
        left = [slot for slot in range(3) if read[slot] < len(rows[slot])]
        parts = {slot: rows[slot][read[slot] : read[slot] + size[slot]] for slot in left}
        logits = engine.read([Chunk(slot, read[slot], part, len(part)) for slot, part in parts.items()])
        for (slot, part), each in zip(parts.items(), logits, strict=True):
            found[slot].append(each)
            read[slot] += len(part)
    with torch.no_grad():
        for ids, parts_found in zip(rows, found, strict=True):
            expected = engine.model(torch.tensor([ids]))[0]
            torch.testing.assert_close(torch.cat(parts_found), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("engine", new_engines(), ids=lambda engine: type(engine).__name__)
def test_saved_keys_and_values_can_be_used_in_another_slot(engine: Slots) -> None:
    ids = some_ids(20, 3)
    (expected,) = engine.read([Chunk(0, 0, ids)])
    engine.read([Chunk(1, 0, some_ids(30, 4))])
    saved = engine.save(0, 0, 19)
    engine.load(1, 0, saved[:, :, :, :10])
    engine.load(1, 10, saved[:, :, :, 10:])
    (found,) = engine.read([Chunk(1, 19, ids[19:])])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


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


@pytest.mark.usefixtures("exact_float32")
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


def test_the_engine_fits_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_library", lambda: "no compiler")
    assert type(resolve_slots(some_model(), 2, "auto")) is Slots
    with pytest.raises(ConfigError, match="no compiler"):
        resolve_slots(some_model(), 2, "int8")


class OwnSlots(Slots):
    pass


def test_the_first_edge_that_has_slots_for_a_model_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def own_slots(model: GPT, n_slots: int, _quantization: str) -> Slots | None:
        return OwnSlots(model, n_slots) if model.config.n_layer == 1 else None

    monkeypatch.setattr(resolving, "provided", lambda _: (lambda *_: None, own_slots))
    assert type(resolve_slots(new_model(n_layer=1), 2)) is OwnSlots
    assert type(resolve_slots(new_model(n_layer=2), 2)) is Slots


def test_without_edges_pytorch_runs_slots_and_quantizes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolving, "provided", lambda _: ())
    assert type(resolve_slots(new_model(), 1, "auto")) is Slots
    with pytest.raises(ConfigError, match=r"not installed"):
        resolve_slots(new_model(), 1, "int8")
