"""Where a model's numbers first went wrong: an explanation for logits that are nan or infinite; it mends nothing."""

from collections.abc import Iterator

import torch
from torch import Tensor

from minigpt.model.gpt import GPT, Block, eval_mode


@torch.no_grad()
def first_nonfinite(model: GPT, ids: Tensor) -> str:
    """The name of what first is nan or infinite, a parameter or else a stage of the forward pass over these tokens.

    Blocks are counted from 0, as in the parameters' names. Only the last tokens that fit the context are read.
    Shapes: ids (B, T) int64.
    """
    for name, parameter in model.named_parameters():
        finite = parameter.isfinite()
        if not finite.all():
            return f"the parameter {name}, {int((~finite).sum())} of whose {parameter.numel()} values are not finite"
    with eval_mode(model):
        for name, x in _stages(model, ids[:, -model.config.n_positions :]):
            if not x.isfinite().all():
                return f"{name}, from finite values"
    return "nothing in the model as PyTorch computes it, where every value is finite"


def _stages(model: GPT, ids: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The forward pass in steps, each with its name: (B, T) -> several of (B, T, C), and (B, T, V) at last."""
    x = model.embed(ids)
    yield "the embedding", x
    for layer, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        normed = block.attention_norm(x)
        yield f"block {layer}'s attention norm", normed
        change = block.attention(normed)
        yield f"block {layer}'s attention", change
        x = x + change
        yield f"the sum after block {layer}'s attention", x
        normed = block.mlp_norm(x)
        yield f"block {layer}'s MLP norm", normed
        change = block.mlp(normed)
        yield f"block {layer}'s MLP", change
        x = x + change
        yield f"the sum after block {layer}'s MLP", x
    x = model.final_norm(x)
    yield "the final norm", x
    yield "the logits", model.logits(x)
