"""GPT-2's attention: equal results by the formula, by the fused kernel and with a cache, and a causal mask."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minigpt.config import GPTConfig
from minigpt.model.attention import CausalSelfAttention

CONFIG = GPTConfig(n_positions=9, n_embd=12, n_layer=2, n_head=3)
some_shapes = settings(deadline=None, max_examples=25)


def new_attention(config: GPTConfig = CONFIG, seed: int = 0) -> CausalSelfAttention:
    torch.manual_seed(seed)
    return CausalSelfAttention(config).double()


def random_input(b: int, t: int, config: GPTConfig = CONFIG, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(b, t, config.n_embd, dtype=torch.float64, generator=generator)


@some_shapes
@given(b=st.integers(1, 3), t=st.integers(1, 9), h=st.integers(1, 4), d=st.integers(1, 5), seed=st.integers(0, 2**32))
def test_the_fused_kernel_and_the_formula_give_equal_outputs_and_gradients(
    b: int, t: int, h: int, d: int, seed: int
) -> None:
    config = GPTConfig(n_positions=9, n_embd=h * d, n_layer=1, n_head=h)
    fused, explicit = new_attention(config, seed), new_attention(config, seed)
    x, y = (random_input(b, t, config, seed).requires_grad_() for _ in range(2))
    by_kernel, (by_formula, _) = fused(x), explicit.forward_with_weights(y)
    torch.testing.assert_close(by_kernel, by_formula, rtol=1e-10, atol=1e-12)

    weights = random_input(b, t, config, seed=2)
    (by_kernel * weights).sum().backward()
    (by_formula * weights).sum().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-9, atol=1e-11)
    for p, q in zip(fused.parameters(), explicit.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-9, atol=1e-11)


def test_dropout_applies_to_the_weights_by_kernel_and_by_formula_and_only_in_training() -> None:
    attention = new_attention(CONFIG.replace(dropout=0.5))
    attention.residual_dropout = torch.nn.Identity()  # so that only the weights have dropout
    x = random_input(2, 8)
    assert not torch.equal(attention(x), attention(x))
    assert not torch.equal(attention.forward_with_weights(x)[0], attention.forward_with_weights(x)[0])

    _, dropped = attention.forward_with_weights(x)
    _, complete = attention.eval().forward_with_weights(x)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], 2 * complete[kept])
    fraction = kept.sum() / (complete != 0).sum()
    assert 0.3 < fraction < 0.7
    assert torch.equal(attention(x), attention(x))
