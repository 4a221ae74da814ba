"""GPT-2 on one page: MLP, Block, GPT, and the weights it starts from; it knows no files, text or training."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.config import GPTConfig
from minigpt.model.attention import CausalSelfAttention, KVCache, check_room


class MLP(nn.Module):
    """Two projections, four times as wide between them, with GPT-2's tanh form of GELU, or its exact form if asked.

    Source: Radford et al. 2018, section 4.1; Hendrycks and Gimpel 2016, section 2 (both forms).
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.up_proj = nn.Linear(config.n_embd, 4 * config.n_embd)
        self.down_proj = nn.Linear(4 * config.n_embd, config.n_embd)
        self.residual_dropout = nn.Dropout(config.dropout)
        self.gelu_form = "tanh" if config.activation_function == "gelu_new" else "none"

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.gelu(self.up_proj(x), approximate=self.gelu_form)  # (B, T, 4C)
        return self.residual_dropout(self.down_proj(hidden))  # (B, T, C)


class Block(nn.Module):
    """Attention, then MLP; each reads a normalised copy of the stream and adds to it (pre-norm).

    Source: Radford et al. 2019, section 2.3.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.attention = CausalSelfAttention(config)
        self.mlp_norm = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, cache: KVCache | None = None, layer: int = 0) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cache, layer)  # (B, T, C)
        return x + self.mlp(self.mlp_norm(x))  # (B, T, C)


def _embedding(count: int, width: int) -> nn.Embedding:
    """An embedding without first values: `nn.Embedding` draws its own, which on the meta device costs over a second."""
    return nn.Embedding.from_pretrained(torch.empty(count, width), freeze=False)  # type: ignore[no-untyped-call]


class GPT(nn.Module):
    """A decoder-only transformer: ids (B, T) in, logits (B, T, V) out.

    Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = _embedding(config.vocab_size, config.n_embd)
        self.position_embedding = _embedding(config.n_positions, config.n_embd)
        self.embedding_dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.final_norm = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        if not self.token_embedding.weight.is_meta:
            initialize(self)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits of the next token at every position: (B, T) int64 -> (B, T, V)."""
        return self.logits(self.features(ids))

    def embed(self, ids: Tensor, cache: KVCache | None = None) -> Tensor:
        """Tokens plus their positions, behind those that the cache holds: (B, T) int64 -> (B, T, C).

        Raises: ConfigError where the positions would not fit into the context.
        """
        check_room(ids.shape[1], cache, self.config.n_positions)
        positions = torch.arange(ids.shape[1], device=ids.device) if cache is None else cache.positions(ids.shape[1])
        return self.embedding_dropout(self.token_embedding(ids) + self.position_embedding(positions))

    def features(self, ids: Tensor, cache: KVCache | None = None) -> Tensor:
        """What the head reads: (B, T) int64 -> (B, T, C). With a cache, `ids` continue what it holds.

        Raises: ConfigError where the positions would not fit into the context.
        """
        x = self.embed(ids, cache)  # (B, T, C)
        for layer, block in enumerate(self.blocks):
            x = block(x, cache, layer)  # (B, T, C)
        if cache is not None:
            cache.length += ids.shape[1]
        return self.final_norm(x)

    def logits(self, features: Tensor) -> Tensor:
        """The tied head: (..., C) -> (..., V)."""
        return F.linear(features, self.token_embedding.weight)

    @torch.no_grad()
    def attention_weights(self, ids: Tensor) -> list[Tensor]:
        """Every layer's attention weights: (B, T) -> L of (B, H, T, T), each row summing to one in eval mode."""
        x = self.embed(ids)  # (B, T, C)
        every_layer = []
        for block in self.blocks:
            assert isinstance(block, Block)
            y, weights = block.attention.forward_with_weights(block.attention_norm(x))
            every_layer.append(weights)
            x = x + y
            x = x + block.mlp(block.mlp_norm(x))  # (B, T, C)
        return every_layer

    @classmethod
    def from_tensors(cls, config: GPTConfig, tensors: Mapping[str, Tensor]) -> "GPT":
        """A model around existing tensors, named as in `state_dict()`: neither copied nor initialised first."""
        with torch.device("meta"):
            model = cls(config)
        model.load_state_dict(dict(tensors), strict=True, assign=True)
        for module in model.modules():
            if isinstance(module, CausalSelfAttention):  # not in the state, so still where it was made
                module.mask = module.mask.to(module.out_proj.weight.device)
        return model


def initialize(model: GPT) -> None:
    """GPT-2's initial weights, drawn from torch's global generator.

    | parameter                                | initial value                    |
    |------------------------------------------|----------------------------------|
    | token_embedding, position_embedding      | normal(0, 0.02)                  |
    | qkv_proj.weight, up_proj.weight          | normal(0, 0.02)                  |
    | out_proj.weight, down_proj.weight        | normal(0, 0.02 / sqrt(2 n_layer)) |
    | every bias                               | 0                                |
    | layer norms                              | weight 1, bias 0                 |

    Source: Radford et al. 2019, section 2.3 (residual layers scaled by 1/sqrt(N), N = 2 n_layer residual
    additions); OpenAI's code for 0.02. OpenAI drew positions from normal(0, 0.01); 0.02 is the field's habit since.
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


@contextmanager
def eval_mode(model: GPT) -> Iterator[None]:
    """Without dropout; whatever happens, the model's mode comes back."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
