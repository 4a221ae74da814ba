"""Muon against torch's own, on the properties it is for, and inside the optimizers of a model."""

import pytest
import torch

from minigpt.config import GPTConfig, TrainConfig
from minigpt.model.gpt import GPT
from minigpt.training.distributed import World
from minigpt.training.muon import Muon, orthogonalize
from minigpt.training.optimization import build_optimizers
from minigpt.training.stepping import Stepper


class Unread:
    """A text of which no step asks for anything."""

    def batch(self, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
        raise AssertionError


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 24, 8), (2, 8, 32), (1, 1, 5)])
def test_orthogonalizing_keeps_the_directions_and_evens_the_strengths(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(1)
    matrices = torch.randn(shape, generator=generator) * 7
    for matrix, even in zip(matrices, orthogonalize(matrices), strict=True):
        u, _, v = torch.linalg.svd(matrix, full_matrices=False)
        strengths = torch.linalg.svdvals(even)
        assert strengths.min() > 0.6
        assert strengths.max() < 1.3
        # In the matrix's own directions it is diagonal: nothing was turned.
        inside = u.mT @ even @ v.mT
        assert (inside - inside.diag().diag()).abs().max() < 1e-4


def test_in_bfloat16_the_same_matrices_come_out_almost() -> None:
    matrices = torch.randn(3, 24, 16, generator=torch.Generator().manual_seed(5))
    exact, coarse = orthogonalize(matrices), orthogonalize(matrices, coarsely=True)
    assert coarse.dtype == torch.float32
    assert not torch.equal(coarse, exact)
    assert (coarse - exact).norm() / exact.norm() < 0.03


def test_a_run_in_bfloat16_orthogonalizes_in_it_and_one_in_float32_does_not() -> None:
    start = GPT(GPTConfig(vocab_size=20, n_positions=8, n_embd=16, n_layer=1, n_head=2)).state_dict()
    stepped = {}
    for dtype in (torch.float32, torch.bfloat16):
        model = GPT(GPTConfig(vocab_size=20, n_positions=8, n_embd=16, n_layer=1, n_head=2))
        model.load_state_dict(start)
        for number, parameter in enumerate(model.parameters()):
            parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
        for optimizer in build_optimizers(model, TrainConfig(steps=1, optimizer="muon", learning_rate=1.0), dtype):
            optimizer.step()
        stepped[dtype] = model.get_parameter("blocks.0.mlp.up_proj.weight").detach()
    exact, coarse = stepped[torch.float32], stepped[torch.bfloat16]
    assert not torch.equal(exact, coarse)
    torch.testing.assert_close(coarse, exact, rtol=0, atol=0.05)  # an update is about 0.2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_dtype_of_a_run_reaches_muon(dtype: torch.dtype) -> None:
    model = GPT(GPTConfig(vocab_size=20, n_positions=8, n_embd=16, n_layer=1, n_head=2))
    config = TrainConfig(steps=1, optimizer="muon", context_length=8)
    _, muon = Stepper(model, Unread(), config, torch.device("cpu"), dtype, World()).optimizers
    assert isinstance(muon, Muon)
    assert muon.coarsely is (dtype == torch.bfloat16)


def test_a_step_is_that_of_torchs_muon() -> None:
    torch_muon = pytest.importorskip("torch.optim").__dict__.get("Muon")
    if torch_muon is None:
        pytest.skip("this torch has no Muon")
    shapes = [(12, 12), (12, 12), (48, 12), (12, 48)]
    generator = torch.Generator().manual_seed(2)
    ours = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    theirs = [torch.nn.Parameter(matrix.detach().clone()) for matrix in ours]
    optimizers = [
        Muon(ours, 0.02, momentum=0.9, weight_decay=0.1),
        torch_muon(theirs, 0.02, momentum=0.9, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
    ]
    for _ in range(3):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn(a.shape, generator=generator)
            b.grad = a.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for a, b in zip(ours, theirs, strict=True):  # theirs works in bfloat16; an update is about 0.004
        torch.testing.assert_close(a, b, rtol=0, atol=1e-3)


def test_parts_are_orthogonalized_one_by_one() -> None:
    generator = torch.Generator().manual_seed(3)
    whole = torch.nn.Parameter(torch.randn((24, 8), generator=generator))
    parts = [torch.nn.Parameter(part.clone()) for part in whole.detach().chunk(3)]
    whole.grad = torch.randn((24, 8), generator=generator)
    for part, gradient in zip(parts, whole.grad.chunk(3), strict=True):
        part.grad = gradient.clone()
    Muon([{"params": [whole], "parts": 3}], 0.1).step()
    Muon(parts, 0.1).step()
    torch.testing.assert_close(whole.detach(), torch.cat([part.detach() for part in parts]), rtol=0, atol=1e-6)


def test_an_update_is_as_large_as_adamws_whatever_the_shape() -> None:
    generator = torch.Generator().manual_seed(4)
    for shape in [(32, 32), (128, 32), (32, 128)]:
        matrix = torch.nn.Parameter(torch.zeros(shape))
        matrix.grad = torch.randn(shape, generator=generator)
        Muon([matrix], 0.01).step()
        assert matrix.detach().square().mean().sqrt().item() == pytest.approx(0.2 * 0.01, rel=0.2)


def test_muon_has_the_blocks_matrices_and_adamw_the_rest() -> None:
    model = GPT(GPTConfig(vocab_size=20, n_positions=8, n_embd=8, n_layer=2, n_head=2))
    names = {parameter: name for name, parameter in model.named_parameters()}
    adamw, muon = build_optimizers(model, TrainConfig(steps=1, optimizer="muon"))
    has = [[names[p] for group in o.param_groups for p in group["params"]] for o in (adamw, muon)]
    assert sorted(has[0] + has[1]) == sorted(names.values())  # each once
    assert {name.split(".", 2)[2] for name in has[1]} == {
        "attention.qkv_proj.weight", "attention.out_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"
    }  # fmt: skip
    (only,) = build_optimizers(model, TrainConfig(steps=1, optimizer="adamw"))
    assert isinstance(only, torch.optim.AdamW)
