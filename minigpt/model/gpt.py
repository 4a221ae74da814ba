"""GPT-2 on one page: MLP, Block, GPT, its traced forward pass and its initial weights."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.config import GPTConfig
from minigpt.edges import provided
from minigpt.errors import ConfigError
from minigpt.model.attention import CausalSelfAttention, causal_mask, check_length
from minigpt.model.kv_cache import KVCache, LayerCache


class MLP(nn.Module):
    """Two projections with a GELU between them, four times as wide inside: (B, T, C) -> (B, T, C).

    `activation_function` chooses GPT-2's tanh approximation of GELU ("gelu_new") or the exact function ("gelu").

    Source: Radford et al. 2018, section 4.1; Hendrycks and Gimpel 2016, section 2 (both forms).
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.up_proj = nn.Linear(config.n_embd, 4 * config.n_embd)
        self.gelu = nn.GELU("tanh" if config.activation_function == "gelu_new" else "none")
        self.down_proj = nn.Linear(4 * config.n_embd, config.n_embd)
        self.residual_dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.gelu(self.up_proj(x))  # (B, T, 4C)
        return self.residual_dropout(self.down_proj(hidden))  # (B, T, C)


class Block(nn.Module):
    """Attention, then MLP; each adds to the residual stream what it computes from its normalized copy (pre-norm).

    Source: Radford et al. 2019, section 2.3.
    """

    def __init__(self, config: GPTConfig, mask: Tensor | None = None) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.attention = CausalSelfAttention(config, mask)
        self.mlp_norm = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, cache: LayerCache | None = None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cache)  # (B, T, C)
        return x + self.mlp(self.mlp_norm(x))  # (B, T, C)

    def last(self, x: Tensor, cache: LayerCache | None = None) -> Tensor:
        """The same for the last position only: (B, T, C) -> (B, 1, C)."""
        x = x[:, -1:] + self.attention(self.attention_norm(x), cache, last_only=True)  # (B, 1, C)
        return x + self.mlp(self.mlp_norm(x))  # (B, 1, C)

    def trace(self, x: Tensor, *, attention_weights: bool) -> Iterator[tuple[str, Tensor]]:
        """Yields every stage of `forward` with its name, as `GPT.trace` does."""
        yield "attention_norm", (normed := self.attention_norm(x))
        if attention_weights:
            attended, weights = self.attention.forward_with_weights(normed)
            yield "attention_weights", weights
        else:
            attended = self.attention(normed)
        yield "attention", attended
        yield "attention_residual", (x := x + attended)
        yield "mlp_norm", (normed := self.mlp_norm(x))
        yield "mlp", (transformed := self.mlp(normed))
        yield "mlp_residual", x + transformed


class Stage(NamedTuple):
    """One stage of a traced forward pass."""

    name: str
    layer: int | None  # the block, counted from 0; None outside the blocks
    output: Tensor


def _embedding(count: int, width: int) -> nn.Embedding:
    """An uninitialized embedding: `nn.Embedding` would draw values, which takes over a second on the meta device."""
    return nn.Embedding.from_pretrained(torch.empty(count, width), freeze=False)  # type: ignore[no-untyped-call]


class GPT(nn.Module):
    """A decoder-only transformer that maps ids (B, T) to logits (B, T, V).

    Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = _embedding(config.vocab_size, config.n_embd)
        self.position_embedding = _embedding(config.n_positions, config.n_embd)
        self.embedding_dropout = nn.Dropout(config.dropout)
        mask = causal_mask(config.n_positions)
        self.blocks = nn.ModuleList(Block(config, mask) for _ in range(config.n_layer))
        self.final_norm = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        if not self.token_embedding.weight.is_meta:
            initialize(self)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits of the next token at every position: (B, T) int64 -> (B, T, V)."""
        return self.logits(self.features(ids))

    def embed(self, ids: Tensor, cache: KVCache | None = None, vectors: Tensor | None = None) -> Tensor:
        """Token embeddings plus position embeddings: (B, T) int64 -> (B, T, C).

        With a cache, positions continue after the cached ones. `vectors` (B, T, C) are the token embeddings if the
        caller has looked them up.
        Raises: ConfigError if the positions do not fit into the context.
        """
        new = ids.shape[1]
        check_length(new if cache is None else cache.length + new, self.config.n_positions)
        positions = torch.arange(new, device=ids.device) if cache is None else cache.positions(new)
        tokens = self.token_embedding(ids) if vectors is None else vectors  # (B, T, C)
        return self.embedding_dropout(tokens + self.position_embedding(positions))

    def features(self, ids: Tensor, cache: KVCache | None = None, vectors: Tensor | None = None) -> Tensor:
        """The final hidden states, the input of the head: (B, T) int64 -> (B, T, C).

        With a cache, `ids` continue the cached sequence and are appended to it. `vectors` are as in `embed`.
        Raises: ConfigError if the positions do not fit into the context.
        """
        x, cached = self._begin(ids, cache, vectors)
        for block, layer in zip(self.blocks, cached, strict=True):
            x = block(x, layer)  # (B, T, C)
        return self.final_norm(x)

    def last_features(self, ids: Tensor, cache: KVCache | None = None) -> Tensor:
        """`features` of the last position, all that the next token of a prompt needs: (B, T) int64 -> (B, C).

        Of the other positions the last block computes keys and values only.
        """
        x, cached = self._begin(ids, cache)
        *blocks, last = zip(self.blocks, cached, strict=True)
        for block, layer in blocks:
            x = block(x, layer)  # (B, T, C)
        block, layer = last
        assert isinstance(block, Block)
        return self.final_norm(block.last(x, layer)[:, 0])

    def _begin(
        self, ids: Tensor, cache: KVCache | None, vectors: Tensor | None = None
    ) -> tuple[Tensor, Sequence[LayerCache | None]]:
        """The embeddings (B, T, C), and the cache of each block."""
        if cache is None:
            return self.embed(ids, None, vectors), [None] * len(self.blocks)
        cache.rewind(0)  # drops what an interrupted pass appended to its first layers only
        return self.embed(ids, cache, vectors), cache.layers

    def logits(self, features: Tensor) -> Tensor:
        """The head, tied to the token embedding: (..., C) -> (..., V)."""
        return F.linear(features, self.token_embedding.weight)

    def trace(self, ids: Tensor, *, attention_weights: bool = False) -> Iterator[Stage]:
        """Yields every stage of the forward pass of `ids` (B, T) in the order of computation; the last is the logits.

        | stage                               | layer | output                                              |
        |-------------------------------------|-------|-----------------------------------------------------|
        | embedding                           | None  | (B, T, C)                                           |
        | attention_norm, attention           | 0, 1… | (B, T, C), the sublayer's input and output          |
        | attention_weights, only if asked    |       | (B, H, T, T), before `attention`                    |
        | attention_residual                  |       | (B, T, C), the residual stream plus `attention`     |
        | mlp_norm, mlp                       |       | (B, T, C), the sublayer's input and output          |
        | mlp_residual                        |       | (B, T, C), the residual stream plus `mlp`           |
        | final_norm                          | None  | (B, T, C)                                           |
        | logits                              | None  | (B, T, V)                                           |

        Attention weights need the explicit formula instead of PyTorch's fused kernel; the results are equal to within
        rounding. A stage is computed when the caller asks for it.
        Raises: ConfigError if the positions do not fit into the context.
        """
        yield Stage("embedding", None, x := self.embed(ids))
        for layer, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            for name, output in block.trace(x, attention_weights=attention_weights):
                yield Stage(name, layer, output)
            x = output  # the last stage is the block's result
        yield Stage("final_norm", None, x := self.final_norm(x))
        yield Stage("logits", None, self.logits(x))

    @torch.no_grad()
    def attention_weights(self, ids: Tensor) -> list[Tensor]:
        """Every layer's attention weights: (B, T) -> L of (B, H, T, T), each row summing to one in eval mode."""
        stages = self.trace(ids, attention_weights=True)
        return [stage.output for stage in stages if stage.name == "attention_weights"]

    @classmethod
    def from_tensors(cls, config: GPTConfig, tensors: Mapping[str, Tensor]) -> "GPT":
        """A model that uses existing tensors, named as in `state_dict()`, without copying or initializing them."""
        with torch.device("meta"):
            model = cls(config)
        model.load_state_dict(dict(tensors), strict=True, assign=True)
        attentions = [module for module in model.modules() if isinstance(module, CausalSelfAttention)]
        mask = attentions[0].mask.to(model.token_embedding.weight.device)  # it is not in the state
        for attention in attentions:
            attention.mask = mask
        return model


def initialize(model: GPT) -> None:
    """Draws GPT-2's initial weights from PyTorch's global generator.

    | parameter                                | initial value                    |
    |------------------------------------------|----------------------------------|
    | token_embedding, position_embedding      | normal(0, 0.02)                  |
    | qkv_proj.weight, up_proj.weight          | normal(0, 0.02)                  |
    | out_proj.weight, down_proj.weight        | normal(0, 0.02 / sqrt(2 n_layer)) |
    | every bias                               | 0                                |
    | layer norms                              | weight 1, bias 0                 |

    Source: Radford et al. 2019, section 2.3 (residual layers scaled by 1/sqrt(N), N = 2 n_layer residual
    additions); OpenAI's code for 0.02. OpenAI drew positions from normal(0, 0.01); later implementations use 0.02.
    """
    residual_std = 0.02 / math.sqrt(2 * model.config.n_layer)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            residual = name.endswith(("out_proj.weight", "down_proj.weight"))
            nn.init.normal_(parameter, std=residual_std if residual else 0.02)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
        else:
            nn.init.ones_(parameter)


def check_module(model: object) -> None:
    """Raises ConfigError for anything but the PyTorch module, such as the result of `minigpt.load()`."""
    if not isinstance(model, GPT):
        raise ConfigError(f"the model must be a GPT, not a {type(model).__name__}; give minigpt.load(...).model")


def accelerate(model: GPT) -> None:
    """Lets the installed edges replace modules by ones that compute the same faster, in place.

    An edge provides such a function of a model at the seam `accelerate`.
    """
    for replace_modules in provided("accelerate"):
        replace_modules(model)


@contextmanager
def eval_mode(model: GPT) -> Iterator[None]:
    """A context in which the model is in eval mode, without dropout; afterwards its previous mode is restored."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
