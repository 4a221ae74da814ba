"""Muon against torch's implementation, its defining properties, and its place among a model's optimizers."""

import pytest
import torch
from builders import new_train_step

from minigpt.config import GPTConfig, TrainConfig
from minigpt.model.gpt import GPT
from minigpt.training.muon import Muon, orthogonalize
from minigpt.training.optimizers import build_optimizers


class NoBatches:
    """A corpus that is never read."""

    def scores_all(self, _: str) -> bool:
        return True

    def batch(self, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
        raise AssertionError


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 24, 8), (2, 8, 32), (1, 1, 5)])
def test_orthogonalizing_equalizes_singular_values_and_keeps_the_directions(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(1)
    matrices = torch.randn(shape, generator=generator) * 7
    for matrix, even in zip(matrices, orthogonalize(matrices), strict=True):
        wide, even = (part.mT if shape[1] > shape[2] else part for part in (matrix, even))
        u, singular_values, v = torch.linalg.svd(
            wide / (wide @ wide.mT).abs().sum(1, keepdim=True).sqrt(), full_matrices=False
        )
        assert singular_values.max() <= 1 + 1e-5  # the range of the polynomials
        singular_values = torch.linalg.svdvals(even)
        assert singular_values.min() > 0.15
        assert singular_values.max() < 1.9
        # It is diagonal in the directions of the matrix with equalized rows: no direction has changed.
        inside = u.mT @ even @ v.mT
        assert (inside - inside.diag().diag()).abs().max() < 1e-4


@pytest.mark.parametrize("bfloat16", [False, True])
@pytest.mark.parametrize("size", [96, 128, 192])
def test_a_single_direction_is_no_stronger_than_several(size: int, bfloat16: bool) -> None:
    generator = torch.Generator().manual_seed(6)
    alone = torch.ones(1, size, size)
    nearly = torch.randn(4, size, 1, generator=generator) @ torch.randn(4, 1, size, generator=generator)
    nearly += 0.1 * torch.randn(4, size, size, generator=generator)
    for matrix in orthogonalize(torch.cat([alone, nearly]), bfloat16=bfloat16):
        assert 0.4 < torch.linalg.svdvals(matrix).max() < 2.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_transposed_weights_and_weights_in_bfloat16_take_the_steps_of_others(dtype: torch.dtype) -> None:
    """Weights that are read from a file are the transposes of its matrices."""
    results = []
    for transposed in (False, True):
        generator = torch.Generator().manual_seed(2)
        matrix = torch.randn(9, 6, generator=generator)
        matrix = (matrix.t().contiguous().t() if transposed else matrix.to(dtype)).requires_grad_()
        optimizer = Muon([matrix], 0.1, momentum=0.9, weight_decay=0.5)
        for _ in range(2):
            gradient = torch.randn(9, 6, generator=generator)
            matrix.grad = torch.empty_like(matrix).copy_(gradient)
            optimizer.step()
        results.append((matrix.detach().float(), optimizer.state[matrix]["momentum"].float()))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=5e-2 if dtype == torch.bfloat16 else 2e-5)


def test_zero_matrices_and_zero_rows_stay_zero() -> None:
    matrices = torch.randn(2, 6, 9, generator=torch.Generator().manual_seed(8))
    matrices[0] = 0
    matrices[1, 2] = 0
    even = orthogonalize(matrices)
    assert even[0].eq(0).all()
    assert even[1, 2].eq(0).all()
    assert even[1].isfinite().all()
    assert even[1].norm() > 1


@pytest.mark.parametrize("size", [1e-12, 1e12])
def test_the_scale_of_a_matrix_makes_no_difference(size: float) -> None:
    matrices = torch.randn(2, 6, 9, generator=torch.Generator().manual_seed(9))
    torch.testing.assert_close(orthogonalize(matrices * size), orthogonalize(matrices), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(3, 32, 128), (3, 128, 32)])
def test_rounding_errors_stay_small_where_singular_values_differ_by_five_orders(shape: tuple[int, ...]) -> None:
    """In float32 through X X^T, where there is C code; in float64 one polynomial after the other."""
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    u, _, v = torch.linalg.svd(noise, full_matrices=False)
    matrices = u @ torch.diag(torch.logspace(0, -5, 32).double()) @ v
    exact, found = orthogonalize(matrices), orthogonalize(matrices.float())
    assert (found - exact).norm() / exact.norm() < 1e-4


def test_bfloat16_gives_almost_the_same_matrices() -> None:
    matrices = torch.randn(3, 128, 96, generator=torch.Generator().manual_seed(5))
    exact, rounded = orthogonalize(matrices), orthogonalize(matrices, bfloat16=True)
    assert rounded.dtype == torch.float32
    assert not torch.equal(rounded, exact)
    assert (rounded - exact).norm() / exact.norm() < 0.1


def test_a_run_in_bfloat16_orthogonalizes_in_bfloat16_and_one_in_float32_does_not() -> None:
    start = GPT(GPTConfig(vocab_size=20, n_positions=8, n_embd=16, n_layer=1, n_head=2)).state_dict()
    updated = {}
    for dtype in (torch.float32, torch.bfloat16):
        model = GPT(GPTConfig(vocab_size=20, n_positions=8, n_embd=16, n_layer=1, n_head=2))
        model.load_state_dict(start)
        for number, parameter in enumerate(model.parameters()):
            parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
        for optimizer in build_optimizers(model, TrainConfig(steps=1, optimizer="muon", learning_rate=1.0), dtype):
            optimizer.step()
        updated[dtype] = model.get_parameter("blocks.0.mlp.up_proj.weight").detach()
    exact, rounded = updated[torch.float32], updated[torch.bfloat16]
    assert not torch.equal(exact, rounded)
    assert (
        rounded - exact
    ).norm() < 0.2 * exact.norm()  # rounding errors of a few per mille, amplified by steep polynomials


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_dtype_of_a_run_reaches_muon(dtype: torch.dtype) -> None:
    model = GPT(GPTConfig(vocab_size=20, n_positions=8, n_embd=16, n_layer=1, n_head=2))
    config = TrainConfig(steps=1, optimizer="muon", context_length=8)
    _, muon = new_train_step(model, NoBatches(), config, dtype=dtype).optimizers
    assert isinstance(muon, Muon)
    assert muon.bfloat16 is (dtype == torch.bfloat16)


def test_an_update_is_close_to_that_of_torchs_muon() -> None:
    torch_muon = pytest.importorskip("torch.optim").__dict__.get("Muon")
    if torch_muon is None:
        pytest.skip("this torch has no Muon")
    shapes = [(48, 48), (48, 48), (192, 48), (48, 192)]
    generator = torch.Generator().manual_seed(2)
    ours = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    theirs = [torch.nn.Parameter(matrix.detach().clone()) for matrix in ours]
    starts = [matrix.detach().clone() for matrix in ours]
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
    for a, b, start in zip(ours, theirs, starts, strict=True):
        moved, expected = (matrix.detach() - start * (1 - 0.02 * 0.1) ** 3 for matrix in (a, b))
        assert torch.nn.functional.cosine_similarity(moved.flatten(), expected.flatten(), dim=0) > 0.9
        assert moved.norm().item() == pytest.approx(expected.norm().item(), rel=0.15)


def test_parts_are_orthogonalized_separately() -> None:
    generator = torch.Generator().manual_seed(3)
    whole = torch.nn.Parameter(torch.randn((24, 8), generator=generator))
    parts = [torch.nn.Parameter(part.clone()) for part in whole.detach().chunk(3)]
    whole.grad = torch.randn((24, 8), generator=generator)
    for part, gradient in zip(parts, whole.grad.chunk(3), strict=True):
        part.grad = gradient.clone()
    Muon([{"params": [whole], "parts": 3}], 0.1, momentum=0.9).step()
    Muon(parts, 0.1, momentum=0.9).step()
    torch.testing.assert_close(whole.detach(), torch.cat([part.detach() for part in parts]), rtol=0, atol=1e-6)


def test_an_update_is_as_large_as_adamws_for_every_shape() -> None:
    generator = torch.Generator().manual_seed(4)
    for rows, columns, parts in [(32, 32, 1), (128, 32, 1), (32, 128, 1), (96, 32, 3), (96, 32, 12)]:
        shape = (rows, columns)
        matrix = torch.nn.Parameter(torch.zeros(shape))
        matrix.grad = torch.randn(shape, generator=generator)
        Muon([{"params": [matrix], "parts": parts}], 0.01, momentum=0.9).step()
        assert matrix.detach().square().mean().sqrt().item() == pytest.approx(0.2 * 0.01, rel=0.2)


def test_muon_updates_the_matrices_of_the_blocks_and_adamw_the_rest() -> None:
    model = GPT(GPTConfig(vocab_size=20, n_positions=8, n_embd=8, n_layer=2, n_head=2))
    names = {parameter: name for name, parameter in model.named_parameters()}
    adamw, muon = build_optimizers(model, TrainConfig(steps=1, optimizer="muon"))
    has = [[names[p] for group in o.param_groups for p in group["params"]] for o in (adamw, muon)]
    assert sorted(has[0] + has[1]) == sorted(names.values())  # each in one optimizer
    assert {name.split(".", 2)[2] for name in has[1]} == {
        "attention.qkv_proj.weight", "attention.out_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"
    }  # fmt: skip
    parts = {names[p].split(".")[-2]: group["parts"] for group in muon.param_groups for p in group["params"]}
    assert parts == {"qkv_proj": 6, "out_proj": 1, "up_proj": 1, "down_proj": 1}  # two heads
    (only,) = build_optimizers(model, TrainConfig(steps=1, optimizer="adamw"))
    assert isinstance(only, torch.optim.AdamW)
