"""The training step's operations in C: PyTorch's results and gradients in float64, on every instruction set."""

import copy
import math
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt import GPT, GPTConfig
from minigpt.model import attention
from minigpt.model.attention import causal_mask
from minigpt.model.kv_cache import KVCache
from minigpt.native import accelerate as native
from minigpt.native import compiled, operations, weight_updates
from minigpt.native.accelerate import GELU, LayerNorm, Linear, accelerate, add, causal_attention, causal_softmax
from minigpt.training.loss import LossModel, SoftTargets, head_plan, next_token_loss, overwrite_with_gradient
from minigpt.training.muon import orthogonalize
from minigpt.training.sampled_softmax import EXCLUDED

pytestmark = pytest.mark.skipif(compiled.library() is None, reason="the C code is not compiled")

SETS = compiled.instruction_sets(loaded) if (loaded := compiled.library()) else []
DTYPES = (torch.bfloat16, torch.float32)
ROUNDING = {  # of a result that is rounded once; the terms here are about 1
    torch.bfloat16: {"rtol": 2**-7, "atol": 1e-5},
    torch.float32: {"rtol": 1e-5, "atol": 1e-5},
}


@pytest.fixture(autouse=True)
def uninitialized_memory_is_nan() -> Iterator[None]:
    """So that a number that is read before it was written shows in the results."""
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills what `torch.empty` returns
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(params=SETS, autouse=True)
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    library = compiled.library()
    assert library is not None
    compiled.use(library, request.param)
    yield request.param
    compiled.use(library)


@pytest.fixture
def float32_in_c(instruction_set: str) -> None:
    if instruction_set not in ("avx2", "avx512-vnni", "avx512-amx"):
        pytest.skip(f"with {instruction_set}, PyTorch computes in float32")


@pytest.fixture(params=DTYPES)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    if request.param == torch.float32:
        request.getfixturevalue("float32_in_c")
    return request.param


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def formula(qkv: Tensor, n_head: int) -> Tensor:
    """Causal attention of all heads, (B, T, 3C) -> (B, T, C)."""
    q, k, v = (part.unflatten(2, (n_head, -1)).transpose(1, 2) for part in qkv.chunk(3, dim=2))
    return attention.attend(q, k, v, causal_mask(qkv.shape[1]))[0].transpose(1, 2).flatten(2)


def gradients(compute: Callable[[Tensor], Tensor], x: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """The result and the gradient with respect to `x`, as float64."""
    x = x.clone().requires_grad_()
    y = compute(x)
    y.backward(gradient.to(y.dtype))
    assert x.grad is not None
    return y.detach().double(), x.grad.double()


@pytest.mark.parametrize("shape", [(1,), (3, 7, 5), (40, 1001)])
def test_gelu_and_its_gradient_are_those_of_pytorch(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, gradient = 3 * numbers(*shape, dtype=dtype), numbers(*shape, seed=1, dtype=dtype)
    found = gradients(GELU("tanh"), x, gradient)
    exact = gradients(lambda x: F.gelu(x, approximate="tanh"), x.double(), gradient)
    torch.testing.assert_close(found, exact, **ROUNDING[dtype])


def test_the_gradient_of_gelu_is_1_where_its_argument_is_huge(dtype: torch.dtype) -> None:
    huge = torch.full((40,), 1e15, dtype=dtype)
    assert (operations.gelu_gradient(torch.ones_like(huge), huge) == 1).all()


@pytest.mark.parametrize("shape", [(1, 1), (3, 7, 5), (2, 40, 192), (130, 17)])
def test_layer_norm_and_its_gradients_are_those_of_pytorch(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, width = numbers(*shape, dtype=torch.float32), shape[-1]
    weight, bias = (numbers(width, seed=seed, dtype=torch.float32) for seed in (1, 2))
    gradient = numbers(*shape, seed=3, dtype=dtype)
    y, statistics = operations.layer_norm(x, weight, bias, 1e-5, dtype)
    found = (y, *operations.layer_norm_gradient(gradient, x, weight, statistics))
    leaves = [each.double().requires_grad_() for each in (x, weight, bias)]
    exact = F.layer_norm(leaves[0], (width,), leaves[1], leaves[2], 1e-5)
    exact.backward(gradient.double())
    assert y.dtype == dtype
    torch.testing.assert_close(y.double(), exact.detach(), **ROUNDING[dtype])
    for one, leaf in zip(found[1:], leaves, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one.double(), leaf.grad, rtol=1e-5, atol=1e-4)


def test_layer_norm_under_autocast_is_pytorchs_rounded_once(dtype: torch.dtype) -> None:
    norm, x = LayerNorm(40), numbers(3, 40, dtype=torch.float32).requires_grad_()
    with torch.no_grad():
        norm.weight.copy_(numbers(40, seed=1))
        exact = F.layer_norm(x, (40,), norm.weight, norm.bias)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        found = norm(x)
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), exact, **ROUNDING[dtype])
    found.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == torch.float32


@pytest.mark.parametrize("length", [32, 160])
@pytest.mark.parametrize(("n_head", "width"), [(3, 32), (2, 64), (1, 96)])
def test_attention_with_tiles_rounds_its_weights_to_bfloat16(length: int, n_head: int, width: int) -> None:
    c = n_head * width
    qkv, gradient = numbers(2, length, 3 * c), numbers(2, length, c, seed=1)
    found = gradients(lambda x: causal_attention(x, n_head), qkv, gradient)
    exact = gradients(lambda x: formula(x, n_head), qkv.double(), gradient)
    # Each of up to `length` terms, of about 1 / length, has an error of up to 2^-9 of it; some add up.
    torch.testing.assert_close(found, exact, rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize("shape", [(7,), (3, 5, 40)])
def test_the_sum_of_float32_and_bfloat16_is_that_of_pytorch(shape: tuple[int, ...]) -> None:
    x, y = numbers(*shape, dtype=torch.float32).requires_grad_(), numbers(*shape, seed=1).requires_grad_()
    found = add(x, y)
    found.backward(gradient := numbers(*shape, seed=2, dtype=torch.float32))
    assert torch.equal(found, x + y)
    assert x.grad is not None
    assert y.grad is not None
    assert torch.equal(x.grad, gradient)
    assert torch.equal(y.grad, gradient.bfloat16())


def test_other_sums_are_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "add", None)
    x, y = numbers(3, 40, dtype=torch.float32), numbers(3, 40)
    assert torch.equal(add(y, x), y + x)
    assert torch.equal(add(x, y[:1]), x + y[:1])
    assert torch.equal(add(x.double(), y), x.double() + y)


def linear_gradients_of(layer: Linear, x: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
    """The result of a layer under autocast, and the gradients of its input, weight and bias, as float64."""
    x = x.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=x.dtype == torch.bfloat16):
        y = layer(x)
    layer.zero_grad()
    y.backward(gradient.to(y.dtype))
    grads = (x.grad, layer.weight.grad, layer.bias.grad)
    return y.detach().double(), *(grad.double() for grad in grads if grad is not None)


@pytest.mark.parametrize(("shape", "out"), [((32, 32), 32), ((4, 24, 64), 160), ((2, 512, 96), 2048)])
def test_a_linear_layer_in_bfloat16_has_the_gradients_of_float64(shape: tuple[int, ...], out: int) -> None:
    layer = Linear(shape[-1], out)
    with torch.no_grad():
        layer.weight.copy_(numbers(out, shape[-1], seed=1) / shape[-1] ** 0.5)  # as precise as bfloat16
        layer.bias.copy_(numbers(out, seed=2))
    x, gradient = numbers(*shape), numbers(*shape[:-1], out, seed=3)
    found = linear_gradients_of(layer, x, gradient)
    exact = linear_gradients_of(copy.deepcopy(layer).double(), x.double(), gradient)
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one, other, rtol=2**-7, atol=1e-3 * float(other.abs().max()))


def test_a_frozen_linear_layer_gives_only_the_gradient_of_its_input_and_does_not_keep_it() -> None:
    layer, x, kept = Linear(64, 32).requires_grad_(False), numbers(96, 64).requires_grad_(), []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.shape)
        return tensor

    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
    ):
        layer(x).sum().backward()
    assert x.shape not in kept
    assert x.grad is not None
    assert layer.weight.grad is None
    layer.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        layer(x.detach()).sum().backward()
    assert layer.weight.grad is not None
    assert layer.bias.grad is not None
    torch.testing.assert_close(layer.bias.grad, torch.full((32,), 96.0))


@pytest.mark.parametrize("width", [32, 128])
def test_inputs_of_another_width_are_an_error(width: int) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(RuntimeError):
        Linear(64, 32)(numbers(32, width))


def test_few_inputs_of_many_weights_have_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    if not operations.are_tiled():
        pytest.skip("this instruction set has no tiles")
    used = []

    def call(name: str, *arguments: Any) -> int:
        if name == "linear":
            used.append(arguments[-1])
        return 0

    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(operations, "call", call)
    for rows, out in ((32, 1024), (32, 32), (2048, 32)):
        operations.linear(numbers(rows, 64), torch.zeros(out, 64), torch.zeros(out))
    assert used == [4, 1, 4]


@pytest.mark.parametrize("shape", [(2, 96, 64), (3, 32, 192), (1, 64, 64)])
def test_orthogonalization_in_bfloat16_has_the_errors_of_its_rounding(shape: tuple[int, int, int]) -> None:
    matrices = numbers(*shape, dtype=torch.float32)
    matrices[0, 0] *= 1e-4
    found, exact = orthogonalize(matrices, bfloat16=True), orthogonalize(matrices.double())
    for one, other in zip(found.double(), exact, strict=True):
        assert (one - other).norm() < 0.15 * other.norm()


def test_only_whole_tiles_in_bfloat16_are_multiplied_in_c() -> None:
    weight, bias = torch.zeros(96, 64), torch.zeros(96)
    fits = [
        operations.linear_fits(x, weight, bias, dtype)
        for x, dtype in (
            (numbers(32, 64), torch.bfloat16), (numbers(31, 64), torch.bfloat16), (numbers(0, 64), torch.bfloat16),
            (numbers(32, 64), torch.float32), (numbers(32, 64, dtype=torch.float32), torch.bfloat16),
        )
    ]  # fmt: skip
    assert fits == [operations.are_tiled(), False, False, False, False]
    assert not operations.linear_fits(numbers(32, 64), weight, None, torch.bfloat16)
    assert not operations.linear_fits(numbers(32, 64), weight.bfloat16(), bias, torch.bfloat16)
    assert not operations.linear_fits(numbers(32, 48), torch.zeros(96, 48), bias, torch.bfloat16)


@pytest.mark.parametrize("length", [1, 5, 16, 33, 130])
@pytest.mark.parametrize(("n_head", "width"), [(1, 16), (3, 32), (2, 48), (1, 128)])
def test_attention_and_its_gradient_are_those_of_the_formula(
    length: int, n_head: int, width: int, dtype: torch.dtype
) -> None:
    c = n_head * width
    qkv, gradient = numbers(2, length, 3 * c, dtype=dtype), numbers(2, length, c, seed=1, dtype=dtype)

    found = gradients(lambda x: causal_attention(x, n_head), qkv, gradient)
    exact = gradients(lambda x: formula(x, n_head), qkv.double(), gradient)
    torch.testing.assert_close(found, exact, rtol=ROUNDING[dtype]["rtol"], atol=2e-5)


@pytest.mark.parametrize("length", [1, 5, 16, 33, 130])
def test_causal_softmax_and_its_gradient_are_those_of_the_formula(length: int) -> None:
    scores, gradient = 4 * numbers(2, 3, length, length), numbers(2, 3, length, length, seed=1)
    mask = causal_mask(length)

    def formula(scores: Tensor) -> Tensor:
        return (scores * 0.3).masked_fill(~mask, -math.inf).softmax(dim=-1)

    found = gradients(lambda x: causal_softmax(x * 1, 0.3), scores, gradient)  # `* 1`: it overwrites its argument
    exact = gradients(formula, scores.double(), gradient)
    assert not found[0][..., ~mask].any()
    assert not found[1][..., ~mask].any()
    torch.testing.assert_close(found[0], exact[0], rtol=2**-8, atol=1e-6)
    torch.testing.assert_close(found[1], exact[1], rtol=2**-7, atol=2e-3)  # the weights were rounded before


@pytest.mark.parametrize("weight", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("vocab_size", [2, 65, 300])
def test_the_loss_and_its_gradient_are_those_of_pytorch(weight: float, vocab_size: int, dtype: torch.dtype) -> None:
    logits, teacher = (3 * numbers(9, vocab_size + 6, seed=seed, dtype=dtype) for seed in (0, 1))
    targets = torch.arange(9)[:, None] % vocab_size
    exact_logits, exact_teacher = logits.double(), teacher.double()
    exact = overwrite_with_gradient(exact_logits, targets, vocab_size, exact_teacher, weight)
    found = operations.cross_entropy_(logits, targets, vocab_size, teacher, weight)
    torch.testing.assert_close(found.double(), exact.double(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logits[:, :vocab_size].double(), exact_logits[:, :vocab_size], **ROUNDING[dtype])
    logits = 3 * numbers(9, vocab_size, dtype=dtype)
    exact_logits = logits.double()
    exact = overwrite_with_gradient(exact_logits, targets, vocab_size).double()
    found = operations.cross_entropy_(logits, targets, vocab_size).double()
    torch.testing.assert_close(found, exact, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logits.double(), exact_logits, **ROUNDING[dtype])


def test_the_gradient_of_tokens_outside_a_sample_is_zero(dtype: torch.dtype) -> None:
    logits = numbers(5, 300, dtype=dtype)
    logits[:, 200:] += EXCLUDED
    operations.cross_entropy_(logits, torch.arange(5)[:, None], 300)
    assert not logits[:, 200:].any()  # not 1e-39, with which some processors multiply slowly
    assert logits[:, :200].all()


@pytest.mark.parametrize("target", [-1, -100, 65])
def test_a_target_outside_the_vocabulary_is_an_error(target: int) -> None:
    with pytest.raises(IndexError, match=r"^a target is outside the vocabulary of 65 tokens$"):
        operations.cross_entropy_(numbers(2, 65), torch.tensor([[1], [target]]), 65)


def adam_of(rows: Tensor) -> tuple[Tensor, ...]:
    """A token embedding after an update of Adam and of a feature of each token, and its moments; steps of Muon."""
    gradient, adam = (
        weight_updates.RowGradient(rows, torch.arange(len(rows))),
        weight_updates.adam(0.1, 0.9, 0.99, 1e-8, 1),
    )
    ids, starts = torch.arange(len(rows)), torch.arange(len(rows) + 1)  # token i has feature i
    mean, square, feature_mean, feature_square = (torch.zeros_like(rows) for _ in range(4))
    updates = weight_updates.adam_of_features(feature_mean, feature_square, gradient, ids, starts, adam)
    weight = rows.clone()
    weight_updates.adam_of_tokens_(weight, mean, square, gradient, updates, ids, starts, 0.9, adam)
    momentum = torch.zeros_like(rows)
    nesterov = weight_updates.momenta_([momentum], [rows], 0.9, torch.bfloat16)
    weight_updates.move_([weight], nesterov, 0.9, 0.1)
    return updates, mean, square, weight, momentum, nesterov


def test_the_number_of_threads_changes_no_bit(threads: Callable[[int], None]) -> None:
    x, scores, logits = numbers(50, 1100), numbers(3, 4, 70, 70), numbers(40, 1500)
    qkv, targets = numbers(5, 60, 3 * 64, dtype=torch.float32), torch.arange(40)[:, None]
    rows, weight = numbers(200, 192, dtype=torch.float32), numbers(192, dtype=torch.float32)
    results = []
    layer = (numbers(64, 96, dtype=torch.float32), numbers(64, dtype=torch.float32))

    def with_tiles() -> list[Tensor]:
        qkv, x = numbers(3, 224, 3 * 64), numbers(512, 96)
        attended, logs = operations.attention(qkv, 2)
        y = operations.linear(x, *layer)
        of_layer = operations.linear_gradients(y, x, layer[0], of_input=True)
        attention_gradient = operations.attention_gradient(attended, qkv, logs)
        return [attended, logs, attention_gradient, y, *of_layer, orthogonalize(qkv[:, :64])]

    for count in (1, 2, 3):
        threads(count)
        gradient, (attended, logs) = logits.clone(), operations.attention(qkv, 4)
        normalized, statistics = operations.layer_norm(rows, weight, weight, 1e-5, torch.bfloat16)
        results.append(with_tiles() if operations.are_tiled() else [])
        results[-1].extend([
            attended, logs, operations.attention_gradient(attended, qkv, logs), orthogonalize(qkv),
            operations.gelu(x), operations.gelu_gradient(x, x), operations.causal_softmax_(scores.clone(), 0.5),
            operations.causal_softmax_gradient(scores, scores, 0.5),
            operations.cross_entropy_(gradient, targets, 1500), gradient, normalized, statistics,
            *operations.layer_norm_gradient(normalized, rows, weight, statistics), *adam_of(rows),
        ])  # fmt: skip
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_stays_so(value: float) -> None:
    """Training finds out that it diverged."""
    x = torch.full((1, 40), value, dtype=torch.bfloat16)
    assert not operations.gelu(x).isfinite().any()
    assert operations.causal_softmax_(x.expand(40, 40).clone(), 1.0).isnan()[causal_mask(40)].all()
    assert not operations.cross_entropy_(x.clone(), torch.tensor([[3]]), 40).isfinite()
    for column in (0, 60, 130):  # of a query, a key, a value
        for length, dtype in ((9, torch.float32), (9, torch.bfloat16), (64, torch.bfloat16)):
            qkv = numbers(1, length, 3 * 64, dtype=dtype)
            qkv[0, 4, column] = value
            assert not operations.attention(qkv, 2)[0][0, 4:].isfinite().all()
    for column in (0, 5, 17, 39):
        logits = numbers(1, 40)
        logits[0, column] = value
        assert not operations.cross_entropy_(logits, torch.tensor([[3]]), 40).isfinite()
        assert not logits.isfinite().all()


def model(context: int = 24, n_embd: int = 96, dropout: float = 0.0) -> GPT:
    torch.manual_seed(0)
    made = GPT(GPTConfig(vocab_size=70, n_positions=context, n_embd=n_embd, n_layer=2, n_head=2, dropout=dropout))
    accelerate(made)
    return made


def training_gradients(module: LossModel, dtype: torch.dtype) -> tuple[Tensor, list[Tensor]]:
    context = module.model.config.n_positions
    ids = torch.arange(3 * context).reshape(3, context) * 31 % 70
    torch.manual_seed(1)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        result = module(ids, ids.roll(-1, 1))
    module.zero_grad()
    result.backward()
    return result.detach(), [p.grad.clone() for p in module.model.parameters() if p.grad is not None]


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 20, 20), (2, 24, 96), (2, 96, 24), (5, 7, 50)])
def test_orthogonalization_is_that_of_the_polynomials_one_after_the_other(
    shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    matrices = numbers(*shape, dtype=torch.float32)
    matrices[0, 0] *= 1e-4  # a row with a small gradient
    monkeypatch.setattr(weight_updates, "orthogonalization_fits", lambda matrices: True)
    found = orthogonalize(matrices)
    monkeypatch.setattr(weight_updates, "orthogonalization_fits", lambda matrices: False)
    exact = orthogonalize(matrices.double())
    assert (found - exact).norm() <= 1e-4 * exact.norm()


@pytest.mark.usefixtures("float32_in_c")
def test_orthogonalization_of_few_matrices_with_many_threads_or_of_large_ones_is_pytorchs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In C, each matrix has one thread and its own memory."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert weight_updates.orthogonalization_fits(numbers(4, 9, 6, dtype=torch.float32))
    assert not weight_updates.orthogonalization_fits(numbers(3, 9, 6, dtype=torch.float32))
    assert weight_updates.orthogonalization_fits(torch.empty(4, 1024, 1025))
    assert not weight_updates.orthogonalization_fits(torch.empty(4, 1025, 1025))
    assert not weight_updates.orthogonalization_fits(numbers(4, 9, 6))


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("with_teacher", [False, True])
@pytest.mark.parametrize("size", [(24, 96), (32, 128)], ids=["odd", "whole-tiles"])
def test_a_model_has_the_gradients_that_it_has_without_the_c_code(
    dropout: float, with_teacher: bool, size: tuple[int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    student = model(*size, dropout=dropout)
    module = LossModel(student, model(*size) if with_teacher else None, 0.5).train()
    found, fast = training_gradients(module, dtype)
    used = []
    monkeypatch.setattr(operations, "fits", lambda x: used.append(x.shape))
    monkeypatch.setattr(compiled, "library", lambda: None)
    exact, plain = training_gradients(module, dtype)
    # In every block GELU, attention without dropout, and in bfloat16 otherwise the attention weights.
    weights = 2 if dtype == torch.bfloat16 else 0
    of_student = (2 if dropout else 4) + weights
    assert len(used) == of_student + (4 + weights if with_teacher else 0)
    tolerance = 2e-3 if dtype == torch.bfloat16 else 1e-6
    torch.testing.assert_close(found, exact, rtol=tolerance, atol=0)
    both_round = math.sqrt(2) if dtype == torch.bfloat16 else 1  # about ten times each on the way to the first layer
    for one, other in zip(fast, plain, strict=True):
        assert (one - other).norm() <= 10 * both_round * tolerance * other.norm()
    if dtype == torch.bfloat16 and not dropout:  # whose random numbers another dtype draws in another order
        _, in_float32 = training_gradients(module, torch.float32)
        for one, other, reference in zip(fast, plain, in_float32, strict=True):
            assert (one - reference).norm() <= 2 * (other - reference).norm()
    assert any(not torch.equal(one, other) for one, other in zip(fast, plain, strict=True))


def test_only_bfloat16_and_float32_on_a_cpu_use_the_c_code(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    x = numbers(2, dtype=dtype)
    assert operations.fits(x)
    assert not operations.fits(x.double())
    assert not operations.fits(x.half())
    assert not operations.fits(x.to("meta"))
    assert head_plan("cpu", dtype, 65).gradient is operations.cross_entropy_
    for device, other in (("cpu", torch.float64), ("cpu", torch.float16), ("cuda", dtype)):
        assert head_plan(device, other, 65).gradient is overwrite_with_gradient
    assert operations.fits(torch.nn.Parameter(x))
    assert not operations.fits(x.as_subclass(torch.nn.Buffer))  # as other subclasses
    library = types.SimpleNamespace(minigpt_has_openmp=lambda: 0, minigpt_selected=lambda: b"avx2")
    monkeypatch.setattr(compiled, "library", lambda: library)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert operations.fits(x)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert not operations.fits(x)
    monkeypatch.setattr(compiled, "library", lambda: None)
    assert not operations.fits(x)
    assert head_plan("cpu", dtype, 65).gradient is overwrite_with_gradient


@pytest.mark.parametrize("name", ["plain", "neon-dotprod"])
def test_without_fused_products_float32_is_left_to_pytorch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "selected", lambda library: name)
    assert not operations.fits(numbers(2, dtype=torch.float32))
    assert not weight_updates.orthogonalization_fits(numbers(2, 3, 4, dtype=torch.float32))
    assert head_plan("cpu", torch.float32, 65).gradient is overwrite_with_gradient
    assert operations.fits(numbers(2))


@pytest.mark.usefixtures("float32_in_c")
def test_attention_in_float32_fits_heads_of_a_multiple_of_16_and_up_to_1024_positions() -> None:
    assert operations.attention_fits(numbers(1, 1024, 3 * 32, dtype=torch.float32), 2)
    assert not operations.attention_fits(numbers(1, 1025, 3 * 32, dtype=torch.float32), 2)
    assert not operations.attention_fits(numbers(1, 4, 3 * 32, dtype=torch.float32), 4)


@pytest.mark.usefixtures("float32_in_c")
def test_attention_in_bfloat16_is_computed_in_c_over_up_to_128_positions_and_with_tiles_over_1024() -> None:
    assert operations.attention_fits(numbers(1, 128, 3 * 32), 2)
    assert not operations.attention_fits(numbers(1, 129, 3 * 32), 2)
    assert operations.attention_fits(numbers(1, 1024, 3 * 64), 2) == operations.are_tiled()
    assert not operations.attention_fits(numbers(1, 1040, 3 * 64), 2)
    assert not operations.attention_fits(numbers(1, 512, 3 * 48), 1)
    module, x = model().blocks[0].attention.eval().bfloat16(), numbers(2, 24, 96)
    found, exact = module(x), module.double()(x.double())
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), exact, rtol=2**-6, atol=2e-3)


def test_without_fused_products_attention_in_bfloat16_is_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "selected", lambda library: "plain")
    assert not operations.attention_fits(numbers(1, 4, 3 * 32), 2)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # PyTorch batches its own attention in a loop
def test_the_transforms_of_torch_func_leave_a_model_to_pytorch() -> None:
    """Their tensors have no memory that C code could read."""
    small, ids = model(), torch.arange(12).reshape(3, 4)
    parameters = dict(small.named_parameters())

    def loss(parameters: dict[str, Tensor], row: Tensor) -> Tensor:
        return torch.func.functional_call(small, parameters, (row[None],)).square().mean()

    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, ids)
    for number, row in enumerate(ids):
        small.zero_grad()
        loss(parameters, row).backward()
        for name, parameter in parameters.items():
            torch.testing.assert_close(found[name][number], parameter.grad, rtol=1e-3, atol=1e-6)


def test_long_sequences_and_exact_gelu_are_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    x, short, long = numbers(3, 5), numbers(1, 1, 512, 8), numbers(1, 1, 513, 8)
    calls = []
    monkeypatch.setattr(native, "causal_softmax", lambda scores, scale: calls.append(scores.shape) or scores)
    monkeypatch.setattr(operations, "gelu", pytest.fail)
    assert torch.equal(GELU()(x), F.gelu(x))
    module = model(513).blocks[0].attention
    for query in (short, long):
        module.attend(query, query, query)
    assert calls == [(1, 1, 512, 512)]


@pytest.mark.usefixtures("float32_in_c")
def test_attention_with_a_cache_or_of_the_last_position_is_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is that of few queries."""
    module = model().blocks[0].attention.eval()
    x, calls = numbers(1, 24, 96, dtype=torch.float32), []
    expected = module(x)
    monkeypatch.setattr(native, "causal_attention", lambda *given: calls.append(given) or causal_attention(*given))
    torch.testing.assert_close(module(x, last_only=True), expected[:, -1:])
    torch.testing.assert_close(module(x, KVCache(model().config, 1).layers[0]), expected)
    assert not calls
    assert torch.equal(module(x), expected)
    assert len(calls) == 1


def test_another_default_dtype_changes_nothing() -> None:
    scores, logits, targets = numbers(2, 30, 30), numbers(3, 65), torch.tensor([[1], [2], [3]])

    def results() -> tuple[Tensor, Tensor]:
        weights = operations.causal_softmax_(scores.clone(), 0.5)
        return weights, operations.cross_entropy_(logits.clone(), targets, 65)

    expected = results()
    before = torch.get_default_dtype()
    for dtype in (torch.bfloat16, torch.float64):
        torch.set_default_dtype(dtype)
        try:
            found = results()
        finally:
            torch.set_default_dtype(before)
        assert all(map(torch.equal, found, expected))


def test_soft_targets_of_a_narrower_teacher_reach_the_c_code(monkeypatch: pytest.MonkeyPatch) -> None:
    features, head = numbers(1, 6, 16).float(), numbers(65, 16, seed=1).float()
    soft = SoftTargets(numbers(6, 8, seed=2).float(), numbers(65, 8, seed=3).float(), 0.5)
    targets = torch.arange(6)[None]
    used: list[Any] = []
    cross_entropy = operations.cross_entropy_
    monkeypatch.setattr(operations, "cross_entropy_", lambda *given: used.append(given) or cross_entropy(*given))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = next_token_loss(features, head, targets, soft=soft)
    assert [given[3].shape for given in used] == [(6, 65)]
    exact = next_token_loss(features, head, targets, soft=soft)
    torch.testing.assert_close(found, exact, rtol=1e-2, atol=0)
