"""The training step's operations in C: PyTorch's results and gradients in float64, on every instruction set."""

import math
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt import GPT, GPTConfig
from minigpt.distillation.step_parts import Teacher
from minigpt.model.attention import causal_mask
from minigpt.native import compiled, operations, weight_updates
from minigpt.native.accelerate import LayerNorm, Linear, accelerate
from minigpt.native.step_parts import compiled_head_plan, orthogonalize
from minigpt.training.loss import LossModel, overwrite_with_gradient
from minigpt.tricks.sampled_softmax import EXCLUDED

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


def gradients(compute: Callable[[Tensor], Tensor], x: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """The result and the gradient with respect to `x`, as float64."""
    x = x.clone().requires_grad_()
    y = compute(x)
    y.backward(gradient.to(y.dtype))
    assert x.grad is not None
    return y.detach().double(), x.grad.double()


def test_the_gradient_of_gelu_is_1_where_its_argument_is_huge(dtype: torch.dtype) -> None:
    huge = torch.full((40,), 1e15, dtype=dtype)
    assert (operations.gelu_gradient(torch.ones_like(huge), huge) == 1).all()


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


@pytest.mark.parametrize("shape", [(2, 96, 64), (3, 32, 192), (1, 64, 64)])
def test_orthogonalization_in_bfloat16_has_the_errors_of_its_rounding(shape: tuple[int, int, int]) -> None:
    matrices = numbers(*shape, dtype=torch.float32)
    matrices[0, 0] *= 1e-4
    found, exact = orthogonalize(matrices, bfloat16=True), orthogonalize(matrices.double())
    for one, other in zip(found.double(), exact, strict=True):
        assert (one - other).norm() < 0.15 * other.norm()


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


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("with_teacher", [False, True])
@pytest.mark.parametrize("size", [(24, 96), (32, 128)], ids=["odd", "whole-tiles"])
def test_a_model_has_the_gradients_that_it_has_without_the_c_code(
    dropout: float, with_teacher: bool, size: tuple[int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    student = model(*size, dropout=dropout)
    module = LossModel(student)
    module.plan = compiled_head_plan
    if with_teacher:
        module.soft_targets = Teacher(model(*size), 0.5)
    module.train()
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
