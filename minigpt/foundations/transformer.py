"""The encoder-decoder Transformer of 2017, built from the last forms in `foundations/attention.py`.

Read it from top to bottom: positions, feed-forward network, encoder block, decoder block, and the model. GPT-2
(`minigpt/model/gpt.py`) is this decoder without cross-attention, and with these changes:

- layer norms are before each sublayer, and one is after the last block;
- positions are learned;
- GELU replaces ReLU;
- the projections of Q, K and V have biases;
- the output head is the token embedding, and embeddings are not multiplied by √d_model.

The articles' own code is corrected in these points:

- blocks are in an `nn.ModuleList`;
- the source mask, which the articles' blocks accept and ignore, reaches every encoder block and every cross-attention;
- initial embeddings are small, so that after their multiplication by √d_model they do not hide the positions.

Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.
"""

import math

import torch
from torch import Tensor, nn

from minigpt.foundations.attention import CrossAttention, MultiHeadAttention
from minigpt.model.attention import check_length


def sinusoidal_positions(length: int, d_model: int) -> Tensor:
    """Position encodings without parameters: a sine and a cosine per pair of features, of wavelength 2π to 20000π.

    New: attention itself does not depend on the order of its inputs, so the positions are added to them.
    PE(pos, 2i) = sin(pos / 10000^(2i / d_model)),  PE(pos, 2i+1) = cos(pos / 10000^(2i / d_model)).

    Shapes: (length, d_model).
    Source: Vaswani et al. 2017, section 3.5.
    """
    positions = torch.arange(length).unsqueeze(1)  # (length, 1)
    exponents = torch.arange(0, d_model, 2) / d_model  # (ceil(d_model / 2),)
    angles = positions / 10000**exponents  # (length, ceil(d_model / 2))
    table = torch.empty(length, d_model)
    table[:, 0::2] = angles.sin()
    table[:, 1::2] = angles.cos()[:, : d_model // 2]  # an odd width has one more sine
    return table


class FeedForward(nn.Sequential):
    """max(0, x W_1 + b_1) W_2 + b_2 at every position: (..., d_model) -> (..., d_model).

    New: a network that transforms each position by itself, with the same weights for all positions.

    Source: Vaswani et al. 2017, equation 2.
    """

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Linear(d_ff, d_model))


class EncoderBlock(nn.Module):
    """Self-attention to all positions, then the feed-forward network.

    x = norm(x + attention(x, x, mask));  x = norm(x + feed_forward(x)).

    New: residual connections and layer norms (after the sum, "post-norm"), and a mask that hides padding.

    Shapes: x (B, S, d_model), mask (B, 1, S), True = a real token -> (B, S, d_model).
    Source: Vaswani et al. 2017, section 3.1, and 5.4 for the dropout of each sublayer's output. The paper does not
    mention the dropout of the attention weights.
    """

    def __init__(self, d_model: int, num_heads: int, d_ff: int, dropout: float) -> None:
        super().__init__()
        self.attention = CrossAttention(d_model, d_model, dropout, num_heads)
        self.attention_norm = nn.LayerNorm(d_model)
        self.feed_forward = FeedForward(d_model, d_ff)
        self.feed_forward_norm = nn.LayerNorm(d_model)
        self.residual_dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.attention_norm(x + self.residual_dropout(self.attention(x, x, mask)))
        return self.feed_forward_norm(x + self.residual_dropout(self.feed_forward(x)))


class DecoderBlock(nn.Module):
    """Causal self-attention, cross-attention to the encoder's output, then the feed-forward network.

    x = norm(x + causal_attention(x));  x = norm(x + cross_attention(x, memory, mask));  x = norm(x + feed_forward(x)).

    New: the cross-attention, and the causal mask in the self-attention.

    Shapes: x (B, T, d_model), memory (B, S, d_model), mask (B, 1, S), True = a real source token -> (B, T, d_model).
    Source: Vaswani et al. 2017, section 3.1.
    """

    def __init__(self, d_model: int, num_heads: int, d_ff: int, context_length: int, dropout: float) -> None:
        super().__init__()
        self.causal_attention = MultiHeadAttention(d_model, d_model, context_length, dropout, num_heads)
        self.causal_attention_norm = nn.LayerNorm(d_model)
        self.cross_attention = CrossAttention(d_model, d_model, dropout, num_heads)
        self.cross_attention_norm = nn.LayerNorm(d_model)
        self.feed_forward = FeedForward(d_model, d_ff)
        self.feed_forward_norm = nn.LayerNorm(d_model)
        self.residual_dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.causal_attention_norm(x + self.residual_dropout(self.causal_attention(x)))
        x = self.cross_attention_norm(x + self.residual_dropout(self.cross_attention(x, memory, mask)))
        return self.feed_forward_norm(x + self.residual_dropout(self.feed_forward(x)))


class Transformer(nn.Module):
    """Encoder and decoder: predicts each target token from a source sequence and the earlier target tokens.

    New: embeddings, stacks of blocks, and a projection to the target vocabulary. Padding at the end of a target needs
    no mask, because earlier positions do not attend to it and the loss ignores it.

    Shapes: source (B, S) and target (B, T) int64, source_mask (B, S), True = a real token -> logits (B, T, V).
    Raises: ConfigError if a sequence is longer than context_length.
    Source: Vaswani et al. 2017, figure 1; section 3.4 for the embeddings (which the paper ties, and this does not).
    """

    positions: Tensor

    def __init__(
        self,
        source_vocab_size: int,
        target_vocab_size: int,
        context_length: int,
        d_model: int = 512,
        num_heads: int = 8,
        num_layers: int = 6,
        d_ff: int = 2048,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.source_embedding = nn.Embedding(source_vocab_size, d_model)
        self.target_embedding = nn.Embedding(target_vocab_size, d_model)
        for embedding in (self.source_embedding, self.target_embedding):
            # `embed` multiplies by √d_model, so that tokens and positions have similar sizes.
            nn.init.normal_(embedding.weight, std=d_model**-0.5)
        self.register_buffer("positions", sinusoidal_positions(context_length, d_model), persistent=False)
        self.embedding_dropout = nn.Dropout(dropout)
        self.encoder = nn.ModuleList(EncoderBlock(d_model, num_heads, d_ff, dropout) for _ in range(num_layers))
        self.decoder = nn.ModuleList(
            DecoderBlock(d_model, num_heads, d_ff, context_length, dropout) for _ in range(num_layers)
        )
        self.out_proj = nn.Linear(d_model, target_vocab_size)

    def forward(self, source: Tensor, target: Tensor, source_mask: Tensor | None = None) -> Tensor:
        return self.decode(target, self.encode(source, source_mask), source_mask)

    def encode(self, source: Tensor, source_mask: Tensor | None = None) -> Tensor:
        """The encoder's output, the memory that the decoder attends to: (B, S) -> (B, S, d_model)."""
        mask = for_every_query(source_mask)  # (B, 1, S)
        x = self.embed(source, self.source_embedding)  # (B, S, d_model)
        for block in self.encoder:
            x = block(x, mask)  # (B, S, d_model)
        return x

    def decode(self, target: Tensor, memory: Tensor, source_mask: Tensor | None = None) -> Tensor:
        """Logits of the token after each target token: (B, T), (B, S, d_model) -> (B, T, V)."""
        mask = for_every_query(source_mask)  # (B, 1, S)
        x = self.embed(target, self.target_embedding)  # (B, T, d_model)
        for block in self.decoder:
            x = block(x, memory, mask)  # (B, T, d_model)
        return self.out_proj(x)

    def embed(self, ids: Tensor, embedding: nn.Embedding) -> Tensor:
        """Token embeddings, multiplied by √d_model, plus positions: (B, T) int64 -> (B, T, d_model).

        Source: Vaswani et al. 2017, sections 3.4 and 3.5.
        """
        t, d_model = ids.shape[-1], embedding.embedding_dim
        check_length(t, len(self.positions))
        return self.embedding_dropout(embedding(ids) * math.sqrt(d_model) + self.positions[:t])


def for_every_query(source_mask: Tensor | None) -> Tensor | None:
    """Converts a mask of keys to a mask of pairs of query and key, the same for every query: (B, S) -> (B, 1, S)."""
    return None if source_mask is None else source_mask.unsqueeze(-2)
