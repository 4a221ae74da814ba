"""The clipping and zeroing of gradients, whole and sparse ones."""

import pytest
import torch
from builders import random_model

from minigpt.training.step import clip_gradients, local_gradients, zero_if


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
    zero_if(torch.tensor(True), local_gradients([weight]))
    assert not weight.grad.to_dense().any()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_nan_and_infinite_gradients_are_zeroed_and_others_keep_every_bit(dtype: torch.dtype, device: str) -> None:
    values = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1.5, -torch.finfo(dtype).tiny / 2], dtype=dtype)
    values = values.to(device)
    gradients = [values.clone(), values.repeat(2, 2).t(), values.float()]
    zero_if(torch.tensor(False, device=device), gradients)
    assert all(each.flatten()[0].isnan() for each in gradients)
    bits = torch.int32 if dtype == torch.float32 else torch.int16
    assert torch.equal(gradients[0].view(bits), values.view(bits))
    zero_if(torch.tensor(True, device=device), gradients)
    assert not any(each.any() for each in gradients)
