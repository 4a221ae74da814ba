"""A decode step for a few rows on CUDA in Triton kernels: one for each product with a weight matrix, one for attention.

At batch size 1 a step reads every weight once and computes little, so that the memory's bandwidth bounds it. PyTorch
runs some 20 kernels in each block, most of which only wait. Here a block is five kernels: the layer norm is computed by
every program of the product that reads it, and bias, GELU and the sum with the residual stream by the one that ends it.
On Hopper and newer GPUs each kernel loads its weights while the one before it still runs (programmatic dependent
launch).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from minigpt.model.gpt import GPT, Block
from minigpt.model.kv_cache import KVCache

_SPLITS = 4  # programs that share the cached positions of a head
_TILE = 32 * 1024  # bytes of weights that a program holds in registers
_BLOCK = 64  # cached positions that a program reads at one time


@triton.jit
def embed_kernel(ids, at, padding, tokens, positions, x, C: tl.constexpr, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr):
    """Writes the token plus the position embedding of one row to x (B, C) float32."""
    if OVERLAPS:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < C
    position = tl.load(at + row) - tl.load(padding + row)
    token = tl.load(tokens + tl.load(ids + row) * C + columns, mask=mask, other=0.0).to(tl.float32)
    place = tl.load(positions + position * C + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(x + row * C + columns, token + place, mask=mask)


@triton.jit
def linear_kernel(
    x, weight, bias, norm_weight, norm_bias, sums, at, out, keys, values,
    N: tl.constexpr, K: tl.constexpr, C: tl.constexpr, D: tl.constexpr, P: tl.constexpr, EPS: tl.constexpr,
    ROWS: tl.constexpr, SPLITS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    NORM: tl.constexpr, MERGE: tl.constexpr, BIAS: tl.constexpr, GELU: tl.constexpr, ADD: tl.constexpr,
    CACHE: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """BLOCK_N columns of `x W^T + bias` for every row: x (B, K), weight (N, K) -> out (B, N).

    NORM applies a layer norm to x; MERGE reads x from the parts that `attend_kernel` left. GELU is applied to the
    result ("tanh", "none" for the exact form, "" for no GELU); ADD adds it to `out`. With CACHE, N = 3 C: queries go to
    `out` (B, C), keys and values to position `at` (B,) of the cache.
    """
    H: tl.constexpr = C // D
    rows_of_weight = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    columns = tl.arange(0, BLOCK_K)
    inside, there = columns < K, rows_of_weight < N
    # No earlier kernel writes weights: they are loaded before its results are waited for.
    w = tl.load(weight + rows_of_weight[:, None] * K + columns, mask=there[:, None] & inside, other=0.0)
    b = tl.zeros((BLOCK_N,), tl.float32)
    if BIAS:
        b = tl.load(bias + rows_of_weight, mask=there, other=0.0).to(tl.float32)
    scale = tl.zeros((BLOCK_K,), tl.float32)
    shift = tl.zeros((BLOCK_K,), tl.float32)
    if NORM:
        scale = tl.load(norm_weight + columns, mask=inside, other=0.0).to(tl.float32)
        shift = tl.load(norm_bias + columns, mask=inside, other=0.0).to(tl.float32)
    if OVERLAPS:
        gdc_launch_dependents()
        gdc_wait()
    for row in tl.static_range(ROWS):
        if MERGE:
            best = tl.full((BLOCK_K,), float("-inf"), tl.float32)
            for split in tl.static_range(SPLITS):
                largest = tl.load(sums + (row * SPLITS + split) * 2 * H + columns // D, mask=inside, other=0.0)
                best = tl.maximum(best, largest)
            total = tl.zeros((BLOCK_K,), tl.float32)
            value = tl.zeros((BLOCK_K,), tl.float32)
            for split in tl.static_range(SPLITS):
                part = sums + (row * SPLITS + split) * 2 * H + columns // D
                factor = tl.exp(tl.load(part, mask=inside, other=0.0) - best)
                total += factor * tl.load(part + H, mask=inside, other=1.0)
                value += factor * tl.load(x + (row * SPLITS + split) * C + columns, mask=inside, other=0.0)
            value = value / total
        else:
            value = tl.load(x + row * K + columns, mask=inside, other=0.0)
        if NORM:
            value = tl.where(inside, value - tl.sum(value, axis=0) / K, 0.0)
            value = value * tl.rsqrt(tl.sum(value * value, axis=0) / K + EPS) * scale + shift
        result = tl.sum(w.to(tl.float32) * value[None, :], axis=1) + b
        if GELU == "tanh":  # 0.5 (1 + tanh(u)) = sigmoid(2 u)
            result = result * tl.sigmoid(1.5957691216057308 * (result + 0.044715 * result * result * result))
        elif GELU == "none":
            result = 0.5 * result * (1.0 + tl.erf(result * 0.7071067811865476))
        if CACHE:
            tl.store(out + row * C + rows_of_weight, result, mask=rows_of_weight < C)
            column = rows_of_weight % C
            cached = ((row * (C // D) + column // D) * P + tl.load(at + row)) * D + column % D
            tl.store(keys + cached, result, mask=(rows_of_weight >= C) & (rows_of_weight < 2 * C))
            tl.store(values + cached, result, mask=(rows_of_weight >= 2 * C) & there)
        elif ADD:
            before = tl.load(out + row * N + rows_of_weight, mask=there, other=0.0)
            tl.store(out + row * N + rows_of_weight, before + result, mask=there)
        else:
            tl.store(out + row * N + rows_of_weight, result, mask=there)


@triton.jit
def attend_kernel(
    query, keys, values, at, padding, y, sums, C: tl.constexpr, D: tl.constexpr, P: tl.constexpr,
    SPLITS: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Attention of one head and one query over a part of the cached positions, up to `at` (B,).

    y (B, SPLITS, H, D) are the values summed with the weights exp(score - largest score); sums (B, SPLITS, 2, H) are
    that largest score and the sum of the weights. `linear_kernel` merges the parts.
    Source: Dao et al. 2023, "Flash-Decoding for long-context inference".
    """
    if OVERLAPS:
        gdc_launch_dependents()
        gdc_wait()
    row_and_head, split = tl.program_id(0), tl.program_id(1)
    H: tl.constexpr = C // D
    row, head = row_and_head // H, row_and_head % H
    length, first = tl.load(at + row) + 1, tl.load(padding + row)
    d = tl.arange(0, BLOCK_D)
    q = tl.load(query + row_and_head * D + d, mask=d < D, other=0.0) * (1.0 / tl.sqrt(D * 1.0))
    largest = float("-inf")
    total = 0.0
    value = tl.zeros((BLOCK_D,), tl.float32)
    for start in range(split * BLOCK_S, length, SPLITS * BLOCK_S):
        s = start + tl.arange(0, BLOCK_S)
        seen = (s < length) & (s >= first)
        place = (row_and_head * P + s)[:, None] * D + d
        mask = seen[:, None] & (d < D)
        k = tl.load(keys + place, mask=mask, other=0.0).to(tl.float32)
        v = tl.load(values + place, mask=mask, other=0.0).to(tl.float32)
        scores = tl.where(seen, tl.sum(k * q[None, :], axis=1), float("-inf"))
        now = tl.maximum(largest, tl.max(scores, axis=0))
        if now > float("-inf"):  # else all of these positions are padding
            weights = tl.exp(scores - now)
            kept = tl.exp(largest - now)
            total = total * kept + tl.sum(weights, axis=0)
            value = value * kept + tl.sum(weights[:, None] * v, axis=0)
            largest = now
    part = row * SPLITS + split
    tl.store(y + part * C + head * D + d, value, mask=d < D)
    tl.store(sums + part * 2 * H + head, largest)
    tl.store(sums + part * 2 * H + H + head, total)


class TritonStep:
    """The logits after one more id in every row, as `static_step` computes them, for one model, cache and device."""

    def __init__(self, model: GPT, cache: KVCache, *, overlaps: bool, processors: int) -> None:
        config, rows, device = model.config, cache.batch_size, cache.layers[0].keys.device
        self.model, self.cache, self.overlaps, self._processors = model, cache, overlaps, processors

        def buffer(*shape: int) -> Tensor:
            return torch.empty(*shape, dtype=torch.float32, device=device)

        self._x, self._hidden = buffer(rows, config.n_embd), buffer(rows, 4 * config.n_embd)
        self._query = buffer(rows, config.n_embd)
        self._parts = buffer(rows, _SPLITS, config.n_head, config.head_width)
        self._sums = buffer(rows, _SPLITS, 2, config.n_head)
        self._logits = torch.empty(rows, config.vocab_size, dtype=model.token_embedding.weight.dtype, device=device)

    def __call__(self, ids: Tensor, at: Tensor, padding: Tensor) -> Tensor:
        """Shapes: ids, at and padding (B,) int64 -> (B, V), which the next call overwrites."""
        model, config, x = self.model, self.model.config, self._x
        rows = len(ids)
        embed_kernel[(rows,)](
            ids, at, padding, model.token_embedding.weight, model.position_embedding.weight, x, C=config.n_embd,
            BLOCK=triton.next_power_of_2(config.n_embd), **self._launch(),
        )  # fmt: skip
        for block, layer in zip(model.blocks, self.cache.layers, strict=True):
            assert isinstance(block, Block)
            attention, mlp = block.attention, block.mlp
            self._linear(
                x, attention.qkv_proj, self._query, norm=block.attention_norm, at=at, keys=layer.keys,
                values=layer.values,
            )  # fmt: skip
            attend_kernel[(rows * config.n_head, _SPLITS)](
                self._query, layer.keys, layer.values, at, padding, self._parts, self._sums, C=config.n_embd,
                D=config.head_width, P=config.n_positions, SPLITS=_SPLITS, BLOCK_S=_BLOCK,
                BLOCK_D=triton.next_power_of_2(config.head_width), **self._launch(),
            )  # fmt: skip
            self._linear(self._parts, attention.out_proj, x, merges=True, adds=True)
            self._linear(x, mlp.up_proj, self._hidden, norm=block.mlp_norm, gelu=mlp.gelu.approximate)
            self._linear(self._hidden, mlp.down_proj, x, adds=True)
        self._linear(x, model.token_embedding, self._logits, norm=model.final_norm)
        return self._logits

    def _linear(
        self, x: Tensor, layer: nn.Module, out: Tensor, *, norm: nn.LayerNorm | None = None, merges: bool = False,
        adds: bool = False, gelu: str = "", at: Tensor | None = None, keys: Tensor | None = None,
        values: Tensor | None = None,
    ) -> None:  # fmt: skip
        config, weight = self.model.config, layer.weight
        assert isinstance(weight, Tensor)
        n, k = weight.shape
        bias = getattr(layer, "bias", None)
        block_k = triton.next_power_of_2(k)
        block_n = max(1, _TILE // (block_k * weight.element_size()))
        while block_n > 1 and triton.cdiv(n, block_n) < self._processors:
            block_n //= 2
        unused = self._sums  # for a pointer that the kernel does not read
        linear_kernel[(triton.cdiv(n, block_n),)](
            x, weight, unused if bias is None else bias, unused if norm is None else norm.weight,
            unused if norm is None else norm.bias, self._sums, unused if at is None else at, out,
            unused if keys is None else keys, unused if values is None else values,
            N=n, K=k, C=config.n_embd, D=config.head_width, P=config.n_positions, EPS=config.layer_norm_epsilon,
            ROWS=self.cache.batch_size, SPLITS=_SPLITS, BLOCK_N=block_n, BLOCK_K=block_k, NORM=norm is not None,
            MERGE=merges, BIAS=bias is not None, GELU=gelu, ADD=adds, CACHE=keys is not None, **self._launch(),
        )  # fmt: skip

    def _launch(self) -> dict[str, bool]:
        return {"OVERLAPS": self.overlaps} | ({"launch_pdl": True} if self.overlaps else {})
