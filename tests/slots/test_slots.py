"""Slot engines give each slot the same bits whatever the others read, and the logits of the model."""

import random

import pytest
import torch
from builders import new_model
from engines import of_kinds
from torch import Tensor

from minigpt import edges
from minigpt.config import GPTConfig
from minigpt.errors import ConfigError
from minigpt.model.gpt import GPT
from minigpt.slots import resolve_slots as resolving
from minigpt.slots.resolve_slots import resolve_slots
from minigpt.slots.slots import Chunk, Slots

# Widths and vocabularies that fill no tile of the kernels.
SHAPE = GPTConfig(vocab_size=101, n_positions=40, n_embd=66, n_layer=2, n_head=3)


def build_slots(kind: str, model: GPT, n_slots: int) -> Slots:
    """The slots of one of these kinds of engines."""
    of_kind = {"torch": "minigpt.slots.slots:Slots", "graph": "minigpt.cuda.slots:CudaSlots"}
    slots: Slots = edges.load(of_kind.get(kind, "minigpt.native.slots:NativeSlots"))(model, n_slots)
    return slots


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


@pytest.fixture(params=of_kinds("torch", "graph", "native"))
def engine(request: pytest.FixtureRequest) -> Slots:
    return build_slots(request.param, some_model(), 3)


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


def test_saved_keys_and_values_can_be_used_in_another_slot(engine: Slots) -> None:
    ids = some_ids(20, 3)
    (expected,) = engine.read([Chunk(0, 0, ids)])
    engine.read([Chunk(1, 0, some_ids(30, 4))])
    saved = engine.save(0, 0, 19)
    engine.load(1, 0, saved[:, :, :, :10])
    engine.load(1, 10, saved[:, :, :, 10:])
    (found,) = engine.read([Chunk(1, 19, ids[19:])])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


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
