"""The clipping of gradients."""

import pytest
import torch
from builders import random_model

from minigpt.training.gradients import clip_gradients


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4, float("nan")])
@pytest.mark.parametrize("grad_clip", [0.0, 0.7])
def test_gradients_are_clipped_as_torch_clips_them(scale: float, grad_clip: float) -> None:
    model = random_model()
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter) * scale
    expected = [torch.nn.Parameter(torch.empty_like(parameter)) for parameter in model.parameters()]
    for own, other in zip(model.parameters(), expected, strict=True):
        other.grad = own.grad.clone()
    norm = torch.nn.utils.clip_grad_norm_(expected, grad_clip or float("inf"))
    torch.testing.assert_close(
        clip_gradients(list(model.parameters()), grad_clip, is_sharded=False), norm, rtol=0, atol=0, equal_nan=True
    )
    for own, other in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(own.grad, other.grad, rtol=0, atol=0, equal_nan=True)
