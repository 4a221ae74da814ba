"""The clipping of gradients, whole and sparse ones."""

import pytest
import torch
from builders import random_model

from minigpt.training.gradients import clip_gradients, local_gradients


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


def test_a_sparse_gradient_is_clipped_and_cleared_in_its_own_memory() -> None:
    weight = torch.nn.Parameter(torch.zeros(5, 3))
    weight.grad = torch.sparse_coo_tensor(torch.tensor([[1, 4, 1]]), torch.ones(3, 3), (5, 3), check_invariants=True)
    norm = clip_gradients([weight], 0.5, is_sharded=False)
    torch.testing.assert_close(norm, torch.tensor(15.0).sqrt())  # row 1 twice
    torch.testing.assert_close(weight.grad.to_dense().norm(), torch.tensor(0.5))
    for gradient in local_gradients([weight]):
        gradient.masked_fill_(torch.tensor(True), 0)
    assert not weight.grad.to_dense().any()
