"""The sliced head and loss against plain cross entropy: value and gradients."""

import pytest
import torch
import torch.nn.functional as F
from builders import random_model
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.training import loss as loss_module
from minigpt.training.loss import (
    HeadPlan,
    LogitsGradient,
    LossModel,
    fused_gradient,
    head_plan,
    next_token_loss,
    overwrite_with_gradient,
)

aot_compiled = torch.compile(fused_gradient, backend="aot_eager")  # traces like the default, and needs no compiler


@settings(deadline=None, max_examples=25)
@given(b=st.integers(1, 3), t=st.integers(1, 9), c=st.integers(1, 8), v=st.integers(2, 40), rows=st.integers(1, 30))
def test_sliced_loss_and_gradients_equal_plain_cross_entropy(b: int, t: int, c: int, v: int, rows: int) -> None:
    generator = torch.Generator().manual_seed(b * 1000 + t * 100 + c * 10 + v)
    features = torch.randn(b, t, c, generator=generator, dtype=torch.float64, requires_grad=True)
    head = torch.randn(v, c, generator=generator, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(v, (b, t), generator=generator)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loss_module, "HEAD_ROWS", rows)
        sliced = next_token_loss(features, head, targets)
        gradients = torch.autograd.grad(sliced * 0.5, (features, head))
    plain = F.cross_entropy((features @ head.t()).flatten(0, 1), targets.flatten())
    expected = torch.autograd.grad(plain * 0.5, (features, head))
    torch.testing.assert_close(sliced.double(), plain, rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("v", [1, 5, 128, 130, 300])  # 130: most of the last 128 tokens are padding
@pytest.mark.parametrize("gradient", [overwrite_with_gradient, fused_gradient, aot_compiled])
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # used by torch.compile itself
def test_a_padded_vocabulary_changes_neither_the_loss_nor_the_gradients(gradient: LogitsGradient, v: int) -> None:
    torch.manual_seed(v)
    features, head = torch.randn(2, 7, 8, requires_grad=True), (3 * torch.randn(v, 8)).requires_grad_()
    targets = torch.randint(v, (2, 7))
    targets[0, 0] = v - 1  # beside the padding

    def results(plan: HeadPlan) -> list[torch.Tensor]:
        loss = next_token_loss(features, head, targets, plan=plan)
        return [loss.detach(), *torch.autograd.grad(loss, (features, head))]

    plain = results(HeadPlan(14, 14, pads_vocabulary=False, gradient=overwrite_with_gradient))
    padded = results(HeadPlan(5, 4, pads_vocabulary=True, gradient=gradient))  # slices of 4 and 1 rows
    assert padded[2].shape == head.shape
    for ours, theirs in zip(padded, plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_cuda_pads_the_vocabulary_and_keeps_float16_sums_short() -> None:
    bfloat16, float16 = (head_plan("cuda", dtype, 50257) for dtype in (torch.bfloat16, torch.float16))
    assert (bfloat16.rows, bfloat16.slice_rows, bfloat16.pads_vocabulary) == (4096, 1024, True)
    assert (float16.rows, float16.slice_rows, float16.pads_vocabulary) == (1024, 1024, True)
    compiled = head_plan("cuda", torch.bfloat16, 50257, fused_gradient)
    assert (compiled.slice_rows, compiled.gradient) == (4096, fused_gradient)
    assert not head_plan("cpu", torch.float32, 50257).pads_vocabulary


def test_a_compiled_loss_model_on_cuda_uses_the_fused_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    model = LossModel(random_model())
    compiled: list[object] = []
    monkeypatch.setattr(torch, "compile", lambda function: compiled.append(function) or function)
    inputs, targets = torch.randint(37, (2, 2, 8))
    plain = model(inputs, targets)
    model.compile_forward()
    assert compiled == [model.model.features]
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    model.compile_forward()
    assert compiled[1:] == [model.model.features, fused_gradient]
    monkeypatch.undo()
    torch.testing.assert_close(model(inputs, targets), plain)


@pytest.mark.parametrize("logit", [-300.0, 300.0])
def test_a_very_improbable_target_has_its_exact_loss(logit: float) -> None:
    """A probability of exp(-300) is zero in float32: the loss must not be computed from it."""
    features, head = torch.tensor([[[1.0]]], requires_grad=True), torch.tensor([[logit], [0.0]], requires_grad=True)
    target = torch.tensor([[int(logit > 0)]])  # the token of logit 0, or the one far below it
    loss = next_token_loss(features, head, target)
    assert loss.item() == pytest.approx(300)
    loss.backward()
    assert features.grad is not None
    assert features.grad.item() == pytest.approx(abs(logit))


def test_the_loss_does_not_depend_on_the_slice_size(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    features, head, targets = torch.randn(3, 7, 8), torch.randn(70, 8), torch.randint(70, (3, 7))
    losses = []
    for cached_logits in (1, 150, 2**20):
        monkeypatch.setattr(loss_module, "_CACHED_LOGITS", cached_logits)
        losses.append(next_token_loss(features, head, targets).item())
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-6)


def test_the_gradient_of_the_head_is_not_rounded_to_bfloat16() -> None:
    torch.manual_seed(2)
    features, head = torch.randn(1, 9, 4), torch.randn(5, 4, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = next_token_loss(features, head, torch.randint(5, (1, 9)))
    (gradient,) = torch.autograd.grad(loss, head)
    assert not torch.equal(gradient, gradient.bfloat16().float())


def test_bfloat16_autocast_stays_close_and_gives_float32_gradients() -> None:
    torch.manual_seed(0)
    features, head = torch.randn(2, 16, 32, requires_grad=True), torch.randn(64, 32, requires_grad=True)
    targets = torch.randint(64, (2, 16))
    exact = torch.autograd.grad(next_token_loss(features, head, targets), (features, head))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = next_token_loss(features, head, targets)
    for ours, theirs in zip(torch.autograd.grad(loss, (features, head)), exact, strict=True):
        assert ours.dtype == torch.float32
        assert (ours - theirs).norm() / theirs.norm() < 1e-2


def test_the_padding_of_the_logits_rows_is_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN's AMX kernels read past the end of a row and multiply by 0, so NaN there becomes NaN in the gradient."""
    rows_end = []
    new_empty, mm = torch.Tensor.new_empty, torch.mm

    def undefined(tensor: torch.Tensor, *shape: int) -> torch.Tensor:
        return new_empty(tensor, *shape).fill_(torch.nan)

    def spy(one: torch.Tensor, other: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        if one.stride(0) > one.shape[1]:
            rows_end.append(one.as_strided((one.shape[0], one.stride(0)), one.stride())[:, one.shape[1] :])
        return mm(one, other, out=out)

    monkeypatch.setattr(torch.Tensor, "new_empty", undefined)
    monkeypatch.setattr(torch, "mm", spy)
    features, head = torch.randn(2, 16, 16, requires_grad=True), torch.randn(257, 16, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = next_token_loss(features, head, torch.randint(257, (2, 16)))
    assert rows_end
    assert all(end.isfinite().all() for end in rows_end)
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(loss, (features, head)))


# Soft targets.
