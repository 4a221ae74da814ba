"""The shape of a model, under the names of GPT-2's config.json, and the presets from nano to GPT-2 XL."""

import types
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from minigpt.errors import ConfigError
from minigpt.settings import Settings, setting

_ANY_MASK = 2**27  # bytes that every model may take for its causal mask: 11,585 positions
_MASK_PER_VALUE = 256  # bytes of the mask for each value of the weights that a larger model may take

_shape = partial(setting, group="Model")


@dataclass(frozen=True, kw_only=True)
class GPTConfig(Settings):
    """The shape of a GPT-2 style model; the field names are config.json's own."""

    vocab_size: int = _shape(50257, "vocabulary size in tokens", min=1)
    n_positions: int = _shape(1024, "context length in tokens", min=1)
    n_embd: int = _shape(768, "width of the model: features per token", min=1, chosen=True)
    n_layer: int = _shape(12, "number of transformer blocks", min=1, max=10_000, chosen=True)
    n_head: int = _shape(12, "attention heads per block", min=1, chosen=True)
    dropout: float = _shape(0.0, "dropout probability in training", min=0, below=1, on_resume="allowed", chosen=True)
    layer_norm_epsilon: float = _shape(1e-5, "epsilon added to the variance in every layer norm", above=0)
    activation_function: Literal["gelu_new", "gelu"] = _shape(
        "gelu_new", "activation function of the MLP: gelu_new (GPT-2's tanh form of GELU) or gelu (exact)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_embd % self.n_head:
            raise ConfigError(f"n_embd ({self.n_embd}) must be divisible by n_head ({self.n_head})")

    @property
    def head_width(self) -> int:
        """D = C / H, the features of one head."""
        return self.n_embd // self.n_head

    @property
    def n_parameters(self) -> int:
        """Number of parameters; the head shares the token embedding's."""
        embeddings, final_norm = (self.vocab_size + self.n_positions) * self.n_embd, 2 * self.n_embd
        return embeddings + self.n_layer * self.n_block_parameters + final_norm

    @property
    def n_block_parameters(self) -> int:
        c = self.n_embd
        attention = (c * 3 * c + 3 * c) + (c * c + c)
        mlp = (c * 4 * c + 4 * c) + (4 * c * c + c)
        norms = 2 * (2 * c)
        return attention + mlp + norms

    @property
    def n_inner_parameters(self) -> int:
        """Number of weights in the matrices of the blocks."""
        return 12 * self.n_layer * self.n_embd**2

    @property
    def mask_bytes(self) -> int:
        """Bytes of the causal mask, which the blocks share: one for each pair of positions."""
        return self.n_positions**2

    def mask_fits(self, values: int) -> bool:
        """Whether the causal mask, which is not saved, is in proportion to a file with so many values of weights."""
        return self.mask_bytes <= max(_ANY_MASK, _MASK_PER_VALUE * values)

    def check_positions(self) -> None:
        """Checks that a model of this shape could be loaded after it is saved.

        Raises: ConfigError with the longest context length if its causal mask is out of proportion to its weights.
        """

        def too_long(positions: int) -> bool:
            shape = self.replace(n_positions=positions)
            return not shape.mask_fits(shape.n_parameters)

        if too_long(self.n_positions):
            longest = bisect_left(range(1, self.n_positions), True, key=too_long)
            raise ConfigError(
                f"n_positions ({self.n_positions:,}), the context length, must be at most {longest:,} for a model of "
                f"this width and depth: its causal mask would take {self.mask_bytes:,} bytes; give a shorter "
                "--context-length or a larger model"
            )

    def flops_per_token(self, context: int) -> int:
        """Floating-point operations to train on one token, forward and backward: 6 N + 12 L C T.

        N is the number of parameters without the position embedding, which is not used in a matrix product. The second
        term is attention's scores and weighted sums, counted as if the upper triangle were computed too.
        Source: Chowdhery et al. 2022 (PaLM), appendix B.
        """
        parameters = self.n_parameters - self.n_positions * self.n_embd
        return 6 * parameters + 12 * self.n_layer * self.n_embd * context


# The last four are for a laptop's CPU. nano and micro learn from a text of a few megabytes in minutes; mini and small
# take longer.
PRESETS: Mapping[str, GPTConfig] = types.MappingProxyType(
    {
        "gpt2": GPTConfig(),
        "gpt2-medium": GPTConfig(n_embd=1024, n_layer=24, n_head=16),
        "gpt2-large": GPTConfig(n_embd=1280, n_layer=36, n_head=20),
        "gpt2-xl": GPTConfig(n_embd=1600, n_layer=48, n_head=25),
        "nano": GPTConfig(n_positions=128, n_embd=128, n_layer=4, n_head=4),
        "micro": GPTConfig(n_positions=128, n_embd=192, n_layer=6, n_head=6),
        "mini": GPTConfig(n_positions=256, n_embd=384, n_layer=6, n_head=6),
        "small": GPTConfig(n_positions=512, n_embd=512, n_layer=8, n_head=8),
    }
)


def preset_config(name: str) -> GPTConfig:
    """The model configuration of that name.

    Raises: ConfigError, listing the presets.
    """
    if name not in PRESETS:
        raise ConfigError(f"preset ({name!r}) must be one of {', '.join(PRESETS)}")
    return PRESETS[name]
