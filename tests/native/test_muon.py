"""Muon's steps in C."""

import pytest
import torch

from minigpt.native import operations, weight_updates
from minigpt.training.muon import Muon


@pytest.mark.parametrize("bfloat16", [False, True])
def test_c_and_pytorch_take_the_same_steps(bfloat16: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not operations.fits(torch.zeros(1)):
        pytest.skip("the C code is not compiled, or this processor lacks AVX2")
    results = []
    for in_c in (True, False):
        if not in_c:
            monkeypatch.setattr(weight_updates, "update_fits", lambda weight: False)
        generator = torch.Generator().manual_seed(2)
        matrices = [torch.randn(9, 6, generator=generator).requires_grad_() for _ in range(3)]
        optimizer = Muon([{"params": matrices, "parts": 3}], 0.1, momentum=0.9, weight_decay=0.5, bfloat16=bfloat16)
        for _ in range(3):
            for matrix in matrices:
                matrix.grad = torch.randn(9, 6, generator=generator)
            optimizer.step()
        momenta = [optimizer.state[matrix]["momentum"] for matrix in matrices]
        results.append([*(matrix.detach() for matrix in matrices), *momenta])
    # In C, float32 updates have other roundings, which the polynomials amplify up to 134-fold.
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=2e-2 if bfloat16 else 2e-5)
