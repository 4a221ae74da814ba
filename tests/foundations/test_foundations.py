"""The teaching forms print the articles' numbers, and each equals the next, up to GPT-2's attention."""

import math
from collections.abc import Iterable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from minigpt.config import GPTConfig
from minigpt.errors import ConfigError
from minigpt.foundations import attention as f
from minigpt.foundations.transformer import (
    DecoderBlock,
    EncoderBlock,
    FeedForward,
    Transformer,
    sinusoidal_positions,
)
from minigpt.model.attention import CausalSelfAttention, attend, causal_mask

INPUTS = torch.tensor(
    [
        [0.43, 0.15, 0.89],
        [0.55, 0.87, 0.66],
        [0.57, 0.85, 0.64],
        [0.22, 0.58, 0.33],
        [0.77, 0.25, 0.10],
        [0.05, 0.80, 0.55],
    ]
)
BATCH = torch.stack([INPUTS, INPUTS])

LAYERS = ("W_query", "W_key", "W_value")
widths = st.integers(1, 5)
lengths = st.integers(1, 6)
heads = st.integers(1, 4)
batches = st.sampled_from([(), (1,), (3,), (2, 2)])
seeds = st.integers(0, 2**32)
some_shapes = settings(deadline=None, max_examples=20)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def randomized(module: nn.Module, seed: int) -> nn.Module:
    """The module in float64 with random parameters, biases included."""
    module.double()
    for i, parameter in enumerate(module.parameters()):
        parameter.data = normal(*parameter.shape, seed=seed + i)
    return module


def input_gradient(output: Tensor, x: Tensor) -> Tensor:
    """The gradient with respect to x of a sum of the output with random weights."""
    weights = normal(*output.shape, seed=99)
    return torch.autograd.grad((output * weights).sum(), x, retain_graph=True)[0]


def weight_gradients(output: Tensor, parameters: Iterable[Tensor]) -> tuple[Tensor, ...]:
    weights = normal(*output.shape, seed=99)
    return torch.autograd.grad((output * weights).sum(), tuple(parameters), retain_graph=True)


def assert_same(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def assert_same_function(one: Tensor, other: Tensor, x: Tensor) -> None:
    """Equal outputs and equal gradients with respect to the input."""
    assert_same(one, other)
    assert_same(input_gradient(one, x), input_gradient(other, x))


def assert_printed(tensor: Tensor, printed: list[float]) -> None:
    """Equal to the four decimals that the articles print."""
    torch.testing.assert_close(tensor, torch.tensor(printed), rtol=0, atol=5.1e-5)


# The numbers that the articles print


def test_simple_self_attention_prints_what_the_book_prints() -> None:
    assert_printed(f.simple_self_attention(INPUTS)[1], [0.4419, 0.6515, 0.5683])


def test_self_attention_with_matrices_prints_what_the_book_prints() -> None:
    torch.manual_seed(123)
    output = f.SelfAttention_v1(3, 2)(INPUTS)
    assert_printed(output[0], [0.2996, 0.8053])
    assert_printed(output[-1], [0.2990, 0.8040])


def test_self_attention_with_linear_layers_prints_what_the_book_prints() -> None:
    torch.manual_seed(789)
    output = f.SelfAttention_v2(3, 2)(INPUTS)
    assert_printed(output[0], [-0.0739, 0.0713])
    assert_printed(output[-1], [-0.0754, 0.0693])


def test_renormalized_causal_weights_print_what_the_book_prints() -> None:
    torch.manual_seed(789)
    attention = f.SelfAttention_v2(3, 2)
    scores = f.attention_scores(attention.W_query(INPUTS), attention.W_key(INPUTS))
    weights = f.renormalized_weights(scores, causal_mask(6))
    assert_printed(weights[1], [0.5517, 0.4483, 0, 0, 0, 0])
    assert_printed(weights[-1], [0.1935, 0.1663, 0.1666, 0.1542, 0.1666, 0.1529])


def test_the_wrapper_prints_what_the_book_prints() -> None:
    torch.manual_seed(123)
    output = f.MultiHeadAttentionWrapper(3, 2, 6, 0.0, num_heads=2)(BATCH)
    assert output.shape == (2, 6, 4)
    for sequence in output:
        assert_printed(sequence[0], [-0.4519, 0.2216, 0.4772, 0.1063])


def test_multi_head_attention_prints_what_the_book_prints() -> None:
    torch.manual_seed(123)
    output = f.MultiHeadAttention(3, 2, 6, 0.0, num_heads=2)(BATCH)
    assert output.shape == (2, 6, 2)
    for sequence in output:
        assert_printed(sequence[0], [0.3190, 0.4858])
        assert_printed(sequence[-1], [0.2575, 0.4028])


# Each form equals the next


@some_shapes
@given(batch=batches, t=lengths, seed=seeds)
def test_the_three_masks_give_the_same_weights(batch: tuple[int, ...], t: int, seed: int) -> None:
    scores = normal(*batch, t, t, seed=seed).requires_grad_()
    mask = causal_mask(t)
    renormalized = f.renormalized_weights(scores, mask)
    boolean = f.boolean_masked_weights(scores, mask)
    additive = f.additive_masked_weights(scores, f.additive_mask(mask, torch.float64))
    assert_same_function(renormalized, boolean, scores)
    assert_same_function(boolean, additive, scores)


def test_only_the_first_mask_is_nan_if_the_masked_scores_are_far_above_the_others() -> None:
    scores, mask = torch.tensor([[0.0, 200.0], [0.0, 0.0]]), causal_mask(2)
    expected = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    assert f.renormalized_weights(scores, mask).isnan().tolist() == [[True, True], [False, False]]
    assert torch.equal(f.boolean_masked_weights(scores, mask), expected)
    assert torch.equal(f.additive_masked_weights(scores, f.additive_mask(mask)), expected)


@some_shapes
@given(batch=batches, t=lengths, d_in=widths, d_out=widths, seed=seeds)
def test_linear_layers_have_the_transposed_matrices(
    batch: tuple[int, ...], t: int, d_in: int, d_out: int, seed: int
) -> None:
    v1 = randomized(f.SelfAttention_v1(d_in, d_out), seed)
    v2 = f.SelfAttention_v2(d_in, d_out).double()
    for name in LAYERS:
        getattr(v2, name).weight.data = getattr(v1, name).data.T
    x = normal(*batch, t, d_in, seed=seed + 9).requires_grad_()
    one, other = v1(x), v2(x)
    assert_same_function(one, other, x)
    for by_hand, linear in zip(
        weight_gradients(one, v1.parameters()), weight_gradients(other, v2.parameters()), strict=True
    ):
        assert_same(by_hand, linear.T)


@some_shapes
@given(batch=batches, t=lengths, d_in=widths, d_out=widths, bias=st.booleans(), seed=seeds)
def test_causal_attention_equals_self_attention_at_the_last_token_of_every_prefix(
    batch: tuple[int, ...], t: int, d_in: int, d_out: int, bias: bool, seed: int
) -> None:
    v2 = randomized(f.SelfAttention_v2(d_in, d_out, qkv_bias=bias), seed)
    causal = f.CausalAttention(d_in, d_out, 6, 0.0, qkv_bias=bias).double()
    causal.load_state_dict(v2.state_dict())
    x = normal(*batch, t, d_in, seed=seed + 9).requires_grad_()
    for end in range(1, t + 1):
        assert_same_function(causal(x)[..., end - 1, :], v2(x[..., :end, :])[..., -1, :], x)


@some_shapes
@given(t=lengths, s=lengths, d=widths, d_v=widths, seed=seeds)
def test_the_complete_formula_equals_the_one_of_gpt2(t: int, s: int, d: int, d_v: int, seed: int) -> None:
    query, key, value = normal(2, t, d, seed=seed).requires_grad_(), normal(2, s, d, seed=1), normal(2, s, d_v, seed=2)
    mask = normal(t, s, seed=seed + 3) > 0
    mask[:, 0] = True
    for some_mask in (mask, None):
        lesson = f.attention_with_dropout(query, key, value, some_mask, nn.Identity())
        assert_same_function(lesson, attend(query, key, value, some_mask)[0], query)
    assert_same_function(lesson, f.scaled_dot_product_attention(query, key, value), query)


def stack_heads(wrapper: f.MultiHeadAttentionWrapper, fused: f.MultiHeadAttention) -> None:
    """Concatenates the matrices of separate heads into those of the fused layer."""
    for name in LAYERS:
        layers, target = [getattr(head, name) for head in wrapper.heads], getattr(fused, name)
        target.weight.data = torch.cat([layer.weight.data for layer in layers])
        if target.bias is not None:
            target.bias.data = torch.cat([layer.bias.data for layer in layers])


@some_shapes
@given(batch=batches, t=lengths, d_in=widths, d=widths, h=heads, bias=st.booleans(), seed=seeds)
def test_the_wrapper_equals_the_fused_layer_with_an_identity_as_out_proj(
    batch: tuple[int, ...], t: int, d_in: int, d: int, h: int, bias: bool, seed: int
) -> None:
    wrapper = randomized(f.MultiHeadAttentionWrapper(d_in, d, 6, 0.0, h, qkv_bias=bias), seed)
    fused = f.MultiHeadAttention(d_in, h * d, 6, 0.0, h, qkv_bias=bias).double()
    stack_heads(wrapper, fused)
    fused.out_proj.weight.data = torch.eye(h * d, dtype=torch.float64)
    fused.out_proj.bias.data.zero_()
    x = normal(*batch, t, d_in, seed=seed + 99).requires_grad_()
    one, other = wrapper(x), fused(x)
    assert_same_function(one, other, x)
    for name in LAYERS:
        per_head = weight_gradients(one, (getattr(head, name).weight for head in wrapper.heads))
        assert_same(torch.cat(per_head), weight_gradients(other, [getattr(fused, name).weight])[0])


@some_shapes
@given(batch=batches, t=lengths, d_in=widths, d=widths, h=heads, bias=st.booleans(), seed=seeds)
def test_separate_heads_with_an_output_projection_equal_the_fused_layer(
    batch: tuple[int, ...], t: int, d_in: int, d: int, h: int, bias: bool, seed: int
) -> None:
    per_head = randomized(f.MultiHeadAttentionPerHead(d_in, h * d, 6, 0.0, h, qkv_bias=bias), seed)
    fused = f.MultiHeadAttention(d_in, h * d, 6, 0.0, h, qkv_bias=bias).double()
    stack_heads(per_head, fused)
    fused.out_proj.load_state_dict(per_head.out_proj.state_dict())
    x = normal(*batch, t, d_in, seed=seed + 99).requires_grad_()
    one, other = per_head(x), fused(x)
    assert_same_function(one, other, x)
    for ours, theirs in zip(
        weight_gradients(one, per_head.out_proj.parameters()),
        weight_gradients(other, fused.out_proj.parameters()),
        strict=True,
    ):
        assert_same(ours, theirs)


def as_gpt2s_attention(fused: f.MultiHeadAttention, t: int) -> CausalSelfAttention:
    """GPT-2's module with the weights of a fused teaching layer that has biases."""
    config = GPTConfig(n_positions=t, n_embd=fused.out_proj.in_features, n_head=fused.num_heads)
    production = CausalSelfAttention(config).double()
    production.qkv_proj.weight.data = torch.cat([getattr(fused, name).weight.data for name in LAYERS])
    production.qkv_proj.bias.data = torch.cat([getattr(fused, name).bias.data for name in LAYERS])
    production.out_proj.load_state_dict(fused.out_proj.state_dict())
    return production


@some_shapes
@given(b=st.integers(1, 3), t=lengths, d=widths, h=heads, seed=seeds)
def test_the_fused_layer_equals_gpt2s_attention_and_pytorchs(b: int, t: int, d: int, h: int, seed: int) -> None:
    c = h * d
    fused = randomized(f.MultiHeadAttention(c, c, t, 0.0, h, qkv_bias=True), seed)
    production = as_gpt2s_attention(fused, t)
    torchs = nn.MultiheadAttention(c, h, batch_first=True).double()
    torchs.load_state_dict(
        {name.replace("qkv_proj.", "in_proj_"): tensor for name, tensor in production.state_dict().items()}
    )
    x = normal(b, t, c, seed=seed + 99).requires_grad_()
    ours, gpt2s = fused(x), production(x)
    theirs, _ = torchs(x, x, x, attn_mask=~causal_mask(t), need_weights=False)
    assert_same_function(ours, gpt2s, x)
    assert_same_function(ours, theirs, x)

    concatenated = torch.cat(weight_gradients(ours, [getattr(fused, name).weight for name in LAYERS]))
    assert_same(concatenated, *weight_gradients(gpt2s, [production.qkv_proj.weight]))
    assert_same(concatenated, *weight_gradients(theirs, [torchs.in_proj_weight]))


@some_shapes
@given(batch=batches, t=lengths, d_in=widths, d=widths, h=heads, bias=st.booleans(), seed=seeds)
def test_cross_attention_of_a_sequence_to_itself_equals_self_attention(
    batch: tuple[int, ...], t: int, d_in: int, d: int, h: int, bias: bool, seed: int
) -> None:
    fused = randomized(f.MultiHeadAttention(d_in, h * d, 6, 0.0, h, qkv_bias=bias), seed)
    cross = f.CrossAttention(d_in, h * d, 0.0, h, qkv_bias=bias).double()
    cross.load_state_dict(fused.state_dict())
    x = normal(*batch, t, d_in, seed=seed + 99).requires_grad_()
    assert_same_function(fused(x), cross(x, x, causal_mask(t)), x)


@some_shapes
@given(b=st.integers(1, 3), t=lengths, s=lengths, d=widths, h=heads, seed=seeds)
def test_cross_attention_equals_pytorchs_with_masked_keys(b: int, t: int, s: int, d: int, h: int, seed: int) -> None:
    c = h * d
    cross = randomized(f.CrossAttention(c, c, 0.0, h, qkv_bias=True), seed)
    torchs = nn.MultiheadAttention(c, h, batch_first=True).double()
    torchs.in_proj_weight.data = torch.cat([getattr(cross, name).weight.data for name in LAYERS])
    torchs.in_proj_bias.data = torch.cat([getattr(cross, name).bias.data for name in LAYERS])
    torchs.out_proj.load_state_dict(cross.out_proj.state_dict())
    x = normal(b, t, c, seed=seed + 50).requires_grad_()
    context = normal(b, s, c, seed=seed + 51).requires_grad_()
    real = normal(b, s, seed=seed + 52) > 0
    real[:, 0] = True
    ours = cross(x, context, real.unsqueeze(1))
    theirs, _ = torchs(x, context, context, key_padding_mask=~real, need_weights=False)
    assert_same_function(ours, theirs, x)
    assert_same(input_gradient(ours, context), input_gradient(theirs, context))


@some_shapes
@given(t=lengths, d_in=widths, d=widths, h=heads, bias=st.booleans(), seed=seeds)
def test_the_heads_of_the_fused_layer_reproduce_its_output(
    t: int, d_in: int, d: int, h: int, bias: bool, seed: int
) -> None:
    fused = randomized(f.MultiHeadAttention(d_in, h * d, 6, 0.25, h, qkv_bias=bias), seed).eval()
    x = normal(2, t, d_in, seed=seed + 99)
    recovered = [f.recover_head(fused, i) for i in range(h)]
    assert_same(fused.out_proj(torch.cat([head(x) for head in recovered], dim=-1)), fused(x))
    assert all(head.dropout.p == 0.25 and not head.training for head in recovered)


@some_shapes
@given(t=lengths, d=widths, h=heads, seed=seeds)
def test_the_heads_of_gpt2s_attention_reproduce_its_output(t: int, d: int, h: int, seed: int) -> None:
    production = randomized(CausalSelfAttention(GPTConfig(n_positions=6, n_embd=h * d, n_head=h)), seed)
    x = normal(2, t, h * d, seed=seed + 99)
    recovered = [f.recover_head(production, i)(x) for i in range(h)]
    assert_same(production.out_proj(torch.cat(recovered, dim=-1)), production(x))


# Masks, dropout, errors

CAUSAL_FORMS = {
    "one head": lambda dropout: f.CausalAttention(4, 4, 5, dropout),
    "wrapper": lambda dropout: f.MultiHeadAttentionWrapper(4, 4, 5, dropout, num_heads=2),
    "per head": lambda dropout: f.MultiHeadAttentionPerHead(4, 4, 5, dropout, num_heads=2),
    "fused": lambda dropout: f.MultiHeadAttention(4, 4, 5, dropout, num_heads=2),
}
every_causal_form = pytest.mark.parametrize("form", CAUSAL_FORMS.values(), ids=CAUSAL_FORMS)


@every_causal_form
def test_a_sequence_longer_than_the_mask_is_an_error(form) -> None:
    with pytest.raises(ConfigError, match=r"6 positions are more than .* context length \(5\)"):
        form(0.0)(torch.zeros(1, 6, 4))


@every_causal_form
def test_dropout_acts_in_training_mode_only(form) -> None:
    module, x = form(0.5), torch.randn(2, 5, 4)
    assert not torch.equal(module(x), module(x))
    module.eval()
    assert torch.equal(module(x), module(x))


def test_dropout_zeroes_a_fraction_of_the_weights_and_scales_the_others() -> None:
    torch.manual_seed(0)
    attention = f.CausalAttention(3, 400, 400, dropout=0.25)
    attention.W_value = nn.Identity()  # the values are the identity matrix, so that the output is the weights
    for layer in (attention.W_query, attention.W_key):
        layer.weight = nn.Parameter(torch.randn(400, 400) / 20)
    complete = attention.eval()(torch.eye(400))
    dropped = attention.train()(torch.eye(400))
    visible = causal_mask(400)
    kept = dropped[visible] != 0
    assert not dropped[~visible].any()
    assert kept.float().mean().item() == pytest.approx(0.75, abs=0.01)  # 80,200 weights: a standard deviation of 0.0015
    torch.testing.assert_close(dropped[visible][kept], complete[visible][kept] / 0.75)
    assert dropped.sum(dim=-1).mean().item() == pytest.approx(1, abs=0.02)
    # Each weight is dropped independently, not a token for all rows.
    in_each_column = (dropped[200:, :200] != 0).float().mean(dim=0)
    assert ((in_each_column > 0.5) & (in_each_column < 0.95)).all()


@pytest.mark.parametrize("form", [f.MultiHeadAttention, f.MultiHeadAttentionPerHead])
def test_a_width_that_is_not_divisible_by_the_heads_is_an_error(form) -> None:
    with pytest.raises(ConfigError, match=r"d_out \(6\) must be divisible by num_heads \(4\)"):
        form(3, 6, 5, 0.0, num_heads=4)


# The encoder-decoder Transformer


def test_sinusoidal_positions_are_those_of_the_paper() -> None:
    table = sinusoidal_positions(50, 7)
    assert table.shape == (50, 7)
    for position in (0, 1, 49):
        for feature in range(7):
            angle = position / 10000 ** (2 * (feature // 2) / 7)
            wave = math.cos(angle) if feature % 2 else math.sin(angle)
            assert table[position, feature].item() == pytest.approx(wave, abs=1e-5)


@some_shapes
@given(b=st.integers(1, 3), s=lengths, d=widths, h=heads, seed=seeds)
def test_the_encoder_block_equals_pytorchs(b: int, s: int, d: int, h: int, seed: int) -> None:
    c = h * d
    ours = randomized(EncoderBlock(c, h, 2 * c, dropout=0.0), seed)
    theirs = nn.TransformerEncoderLayer(c, h, 2 * c, dropout=0.0, batch_first=True).double()
    copy_attention(ours.attention, theirs.self_attn)
    copy_feed_forward(ours.feed_forward, theirs)
    theirs.norm1.load_state_dict(ours.attention_norm.state_dict())
    theirs.norm2.load_state_dict(ours.feed_forward_norm.state_dict())
    x = normal(b, s, c, seed=seed + 99).requires_grad_()
    real = torch.arange(s) < torch.arange(1, b + 1).unsqueeze(1)  # (B, S), ragged
    assert_same_block(ours(x, real.unsqueeze(1)), theirs(x, src_key_padding_mask=~real), x)


@some_shapes
@given(b=st.integers(1, 3), t=lengths, s=lengths, d=widths, h=heads, seed=seeds)
def test_the_decoder_block_equals_pytorchs(b: int, t: int, s: int, d: int, h: int, seed: int) -> None:
    c = h * d
    ours = randomized(DecoderBlock(c, h, 2 * c, context_length=6, dropout=0.0), seed)
    theirs = nn.TransformerDecoderLayer(c, h, 2 * c, dropout=0.0, batch_first=True).double()
    copy_attention(ours.causal_attention, theirs.self_attn)
    copy_attention(ours.cross_attention, theirs.multihead_attn)
    copy_feed_forward(ours.feed_forward, theirs)
    theirs.norm1.load_state_dict(ours.causal_attention_norm.state_dict())
    theirs.norm2.load_state_dict(ours.cross_attention_norm.state_dict())
    theirs.norm3.load_state_dict(ours.feed_forward_norm.state_dict())
    x, memory = normal(b, t, c, seed=seed + 98).requires_grad_(), normal(b, s, c, seed=seed + 99).requires_grad_()
    real = torch.arange(s) < torch.arange(1, b + 1).unsqueeze(1)  # (B, S), ragged
    one = ours(x, memory, real.unsqueeze(1))
    other = theirs(x, memory, tgt_mask=~causal_mask(t), memory_key_padding_mask=~real)
    assert_same_block(one, other, x)
    assert_same_block(one, other, memory)


def copy_attention(ours: nn.Module, theirs: nn.MultiheadAttention) -> None:
    theirs.in_proj_weight.data = torch.cat([getattr(ours, name).weight.data for name in LAYERS])
    theirs.in_proj_bias.data.zero_()
    theirs.out_proj.load_state_dict(ours.out_proj.state_dict())


def copy_feed_forward(ours: FeedForward, theirs: nn.Module) -> None:
    theirs.linear1.load_state_dict(ours[0].state_dict())
    theirs.linear2.load_state_dict(ours[2].state_dict())


def assert_same_block(one: Tensor, other: Tensor, x: Tensor) -> None:
    """With a larger tolerance, because a layer norm divides by a deviation that can be small and magnifies rounding."""
    torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(input_gradient(one, x), input_gradient(other, x), rtol=1e-6, atol=1e-6)


def small_transformer(dropout: float = 0.0) -> Transformer:
    torch.manual_seed(0)
    return Transformer(12, 13, 10, d_model=32, num_heads=4, num_layers=2, d_ff=64, dropout=dropout)


def test_a_masked_source_token_changes_no_logit() -> None:
    model = small_transformer()
    source, target = torch.randint(12, (2, 6)), torch.randint(13, (2, 5))
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    before = model(source, target, mask)
    source[1, 4:] = (source[1, 4:] + 1) % 12
    after = model(source, target, mask)
    assert torch.equal(before, after)
    assert not torch.allclose(before[1], model(source, target)[1], atol=1e-4)  # without the mask, it has an effect
    torch.testing.assert_close(after[1:], model(source[1:, :4], target[1:]))  # as if the padding were not there


def test_a_source_token_changes_every_logit_and_a_target_token_only_its_own_and_later_ones() -> None:
    model = small_transformer()
    source, target = torch.randint(12, (1, 6)), torch.randint(13, (1, 5))
    before = model(source, target)
    moved = (model((source + 1) % 12, target) - before).abs().amax(dim=-1)
    assert (moved > 1e-4).all()
    changed = target.clone()
    changed[0, 3] = (changed[0, 3] + 1) % 13
    moved = (model(source, changed) - before).abs().amax(dim=-1)[0]
    assert (moved[:3] == 0).all()
    assert (moved[3:] > 1e-4).all()


@pytest.mark.parametrize(("s", "t"), [(11, 2), (2, 11)])
def test_a_sequence_longer_than_the_transformers_context_is_an_error(s: int, t: int) -> None:
    with pytest.raises(ConfigError, match=r"11 positions are more than .* \(10\)"):
        small_transformer()(torch.zeros(1, s, dtype=torch.long), torch.zeros(1, t, dtype=torch.long))


def copy_task(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Sources of 3 to 8 letters (ids 1 to 11) padded with 0, the mask of the letters, and the shifted targets."""
    lengths = torch.randint(3, 9, (n, 1), generator=generator)
    real = torch.arange(8) < lengths
    letters = torch.randint(1, 12, (n, 8), generator=generator) * real
    return letters, real, torch.cat([torch.full((n, 1), 12), letters[:, :-1]], dim=1)  # id 12 starts the target


def test_the_transformer_learns_to_copy_unseen_sequences() -> None:
    model = small_transformer(dropout=0.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(1)
    for _ in range(200):
        source, real, shifted = copy_task(64, generator)
        logits = model(source, shifted, real)
        loss = nn.functional.cross_entropy(logits[real], source[real])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    source, real, _ = copy_task(200, generator)
    with torch.no_grad():  # greedy decoding, token by token
        memory = model.encode(source, real)
        decoded = torch.full((200, 1), 12)
        for _ in range(8):
            decoded = torch.cat([decoded, model.decode(decoded, memory, real)[:, -1:].argmax(dim=-1)], dim=1)
    copied = ((decoded[:, 1:] == source) | ~real).all(dim=1)
    assert copied.float().mean() > 0.9
