"""Every engine gives the same logits however a text is divided into calls and whatever the other rows are."""

from collections.abc import Iterator, Sequence

import pytest
import torch
from builders import by_columns, random_model
from engines import build_engine, of_kinds, short_spans
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minigpt.errors import ConfigError
from minigpt.generation.engine import Engine
from minigpt.model.gpt import GPT

every_engine = pytest.mark.parametrize("kind", of_kinds("torch", "graph", "native", "int8"))
some = settings(deadline=None, max_examples=15)


def small_model(n_positions: int = 12, seed: int = 0) -> GPT:
    return random_model(vocab_size=37, n_positions=n_positions, n_embd=18, n_head=3, seed=seed)


def build(kind: str, model: GPT) -> Engine:
    """An engine for a model; PyTorch's run in float64, where the order of operations makes no visible difference."""
    return build_engine(kind, model.double() if kind in ("torch", "graph") else by_columns(model))


def assert_same(kind: str, found: Tensor, expected: Tensor) -> None:
    """Equal to the last bit for decode.c; nearly equal for PyTorch, whose results depend on the batch's shape."""
    if kind in ("torch", "graph"):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    else:
        assert torch.equal(found, expected)


def one_by_one(engine: Engine, ids: Sequence[int]) -> Tensor:
    """The logits after each of one text's ids: (T, V)."""
    first = engine.start([ids[:1]])
    return torch.cat([first, *(engine.read(torch.tensor([[id]]))[0] for id in ids[1:])])


def read_rows(engine: Engine, ids: Sequence[Sequence[int]]) -> Tensor:
    """The next token's logits of every row after it has read its T ids: (B, V)."""
    return engine.read(torch.tensor(ids))[:, -1]


def alone(engine: Engine, *ids: int) -> Tensor:
    return one_by_one(engine, ids)[-1]


@pytest.fixture(autouse=True, scope="module")
def _short_spans() -> Iterator[None]:
    with short_spans():
        yield


@every_engine
@some
@given(parts=st.lists(st.integers(1, 7), min_size=1, max_size=6), seed=st.integers(0, 2**31))
def test_a_text_gives_the_same_logits_however_it_is_divided_into_calls(kind: str, parts: list[int], seed: int) -> None:
    model = small_model(n_positions=42, seed=seed)
    ids = torch.randint(37, (sum(parts),), generator=torch.Generator().manual_seed(seed))
    engine = build(kind, model)
    every = one_by_one(engine, ids.tolist())
    pieces = ids.split(parts)
    first = engine.start([pieces[0].tolist()])
    found = torch.cat([first, *(engine.read(piece[None])[0] for piece in pieces[1:])])
    assert_same(kind, found, every[parts[0] - 1 :])
    assert engine.length == len(ids)
    if kind != "int8":
        with torch.no_grad():
            whole = model.double()(ids[None])[0]
        torch.testing.assert_close(every.double(), whole, rtol=1e-5, atol=1e-5 * float(whole.abs().max()))


@every_engine
@some
@given(lengths=st.lists(st.integers(1, 10), min_size=1, max_size=5), seed=st.integers(0, 2**31))
def test_rows_of_any_lengths_give_the_logits_of_each_row_alone(kind: str, lengths: list[int], seed: int) -> None:
    engine = build(kind, small_model(seed=seed))
    generator = torch.Generator().manual_seed(seed)
    texts = [torch.randint(37, (length + 2,), generator=generator).tolist() for length in lengths]
    started = engine.start([text[:-2] for text in texts])
    read = engine.read(torch.tensor([text[-2:] for text in texts]))
    assert engine.length == max(lengths) + 2
    for row, text in enumerate(texts):
        every = one_by_one(engine, text)
        assert_same(kind, started[row], every[-3])
        assert_same(kind, read[row], every[-2:])


@every_engine
@pytest.mark.parametrize("order", [[2, 1, 0], [1], [0, 0, 2, 1, 1], [1, 1, 1], [0, 2], [0, 1, 2]], ids=str)
def test_kept_rows_continue_their_own_texts(kind: str, order: list[int]) -> None:
    texts = [[5, 6, 7, 8], [9], [3, 2]]
    engine = build(kind, small_model())
    engine.start(texts)
    engine.keep(order)
    found = read_rows(engine, [[row + 20] for row in range(len(order))])
    again = read_rows(engine, [[30, row] for row in range(len(order))])
    for index, row in enumerate(order):
        assert_same(kind, found[index], alone(engine, *texts[row], index + 20))
        assert_same(kind, again[index], alone(engine, *texts[row], index + 20, 30, index))


@every_engine
def test_nan_in_the_keys_and_values_of_an_earlier_text_does_not_reach_the_next_one(kind: str) -> None:
    model = small_model()
    model.position_embedding.weight.data[7] = torch.nan
    engine = build(kind, model)
    engine.start([[1] * 10])
    found = one_by_one(engine, range(5))  # the last step of recorded ones covers 8 positions
    assert_same(kind, found, one_by_one(build(kind, small_model()), range(5)))


@every_engine
def test_the_padding_of_earlier_texts_does_not_reach_the_next_ones(kind: str) -> None:
    engine = build(kind, small_model())
    engine.start([[1, 2, 3], [4]])
    found = engine.start([[5, 6], [7, 8]])
    assert_same(kind, found[0], alone(engine, 5, 6))
    assert_same(kind, found[1], alone(engine, 7, 8))


@every_engine
def test_rewinding_undoes_reading(kind: str) -> None:
    engine = build(kind, small_model())
    engine.start([[1, 2, 3], [4]])
    engine.read(torch.tensor([[9, 9, 9], [8, 8, 8]]))
    engine.rewind(2)
    assert engine.length == 4
    found = read_rows(engine, [[5], [6]])
    assert_same(kind, found[0], alone(engine, 1, 2, 3, 9, 5))
    assert_same(kind, found[1], alone(engine, 4, 8, 6))


@every_engine
def test_a_short_row_can_use_the_whole_context_after_longer_rows_are_dropped(kind: str) -> None:
    engine = build(kind, small_model(n_positions=12))
    engine.start([[1] * 10, [2, 3], [4]])
    engine.keep([1, 2])
    assert engine.length == 2
    ids = list(range(10, 20))
    found = read_rows(engine, [ids, ids])
    with pytest.raises(ConfigError, match=r"13 positions are more than the model's context length \(12\)"):
        engine.read(torch.tensor([[1], [1]]))
    assert_same(kind, found[0], alone(engine, 2, 3, *ids))
    assert_same(kind, found[1], alone(engine, 4, *ids))


@every_engine
@pytest.mark.parametrize("id", [-1, 37, 2**40])
def test_an_id_outside_the_vocabulary_is_an_error(kind: str, id: int) -> None:
    engine = build(kind, small_model())
    with pytest.raises(IndexError):
        engine.start([[1, id, 2]])
    engine.start([[1]])
    with pytest.raises(IndexError):
        engine.read(torch.tensor([[2, id]]))


@every_engine
def test_a_context_of_one_position_works(kind: str) -> None:
    model = small_model(n_positions=1)
    found = build(kind, model).start([[3], [4]])
    with torch.no_grad():
        expected = model.double()(torch.tensor([[3], [4]]))[:, -1]
    tolerance = 0.1 if kind == "int8" else 1e-5
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=tolerance * float(expected.abs().max()))


# Recorded steps, which a CPU runs again at every call.


# The choice of an engine.
