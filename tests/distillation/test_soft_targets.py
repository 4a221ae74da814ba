"""The loss of soft targets, and its gradient."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.distillation.step_parts import TeacherTargets
from minigpt.training import loss as loss_module
from minigpt.training.loss import (
    HeadPlan,
    LogitsGradient,
    fused_gradient,
    next_token_loss,
    overwrite_with_gradient,
)

aot_compiled = torch.compile(fused_gradient, backend="aot_eager")  # traces like the default, and needs no compiler


def soft_targets(n: int, v: int, c: int, weight: float, dtype: torch.dtype = torch.float32) -> TeacherTargets:
    generator = torch.Generator().manual_seed(9)
    features = torch.randn(n, c, generator=generator, dtype=dtype)
    return TeacherTargets(features, torch.randn(v, c, generator=generator, dtype=dtype), weight)


@settings(deadline=None, max_examples=25)
@given(
    n=st.integers(1, 20),
    v=st.integers(2, 40),
    width=st.integers(1, 8),
    rows=st.integers(1, 30),
    weight=st.floats(0.0625, 1),
)
def test_soft_targets_give_the_gradient_of_cross_entropy_and_kl_divergence_in_double_precision(
    n: int, v: int, width: int, rows: int, weight: float
) -> None:
    torch.manual_seed(n * 100 + v)
    features = torch.randn(1, n, 4, dtype=torch.float64, requires_grad=True)
    head = torch.randn(v, 4, dtype=torch.float64, requires_grad=True)
    targets, soft = torch.randint(v, (1, n)), soft_targets(n, v, width, weight, torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loss_module, "HEAD_ROWS", rows)
        patch.setattr(loss_module, "_CACHED_LOGITS", 3 * v)  # several slices
        fused = next_token_loss(features, head, targets, soft=soft)
        gradients = torch.autograd.grad(fused, (features, head))
    predicted = (features[0] @ head.t()).log_softmax(1)
    taught = (soft.features @ soft.head.t()).log_softmax(1)
    divergence = F.kl_div(predicted, taught, log_target=True, reduction="batchmean")
    entropy = -(taught.exp() * taught).sum(1).mean()
    plain = (1 - weight) * F.nll_loss(predicted, targets[0]) + weight * divergence
    torch.testing.assert_close(fused.double(), plain + weight * entropy, rtol=1e-5, atol=1e-6)
    # The product of the logits is summed in float32.
    for ours, theirs in zip(gradients, torch.autograd.grad(plain, (features, head)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("v", [1, 5, 128, 130])
@pytest.mark.parametrize("gradient", [overwrite_with_gradient, fused_gradient, aot_compiled])
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # used by torch.compile itself
def test_soft_targets_are_the_same_with_a_padded_vocabulary(gradient: LogitsGradient, v: int) -> None:
    torch.manual_seed(v)
    features, head = torch.randn(2, 7, 8, requires_grad=True), (3 * torch.randn(v, 8)).requires_grad_()
    targets, soft = torch.randint(v, (2, 7)), soft_targets(14, v, 6, 0.3)

    def results(plan: HeadPlan) -> list[torch.Tensor]:
        loss = next_token_loss(features, head, targets, plan=plan, soft=soft)
        return [loss.detach(), *torch.autograd.grad(loss, (features, head))]

    plain = results(HeadPlan(14, 14, pads_vocabulary=False, gradient=overwrite_with_gradient))
    padded = results(HeadPlan(5, 4, pads_vocabulary=True, gradient=gradient))
    for ours, theirs in zip(padded, plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
