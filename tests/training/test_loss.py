"""The sliced head and loss against the plain one: value and gradients."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.training import loss as loss_module
from minigpt.training.loss import next_token_loss


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
