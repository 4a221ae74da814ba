"""Finds where a model's NaN or infinite logits come from."""

import torch
from torch import Tensor

from minigpt.errors import GenerationError
from minigpt.model.gpt import GPT, eval_mode

_NAMES = {
    "attention_norm": "attention norm",
    "mlp_norm": "MLP norm",
    "mlp": "MLP",
    "attention_residual": "residual sum after attention",
    "mlp_residual": "residual sum after the MLP",
    "final_norm": "final norm",
}


@torch.no_grad()
def first_nonfinite(model: GPT, ids: Tensor) -> str:
    """The first parameter with NaN or infinite values, else the first such stage of the forward pass of these tokens.

    Blocks are counted from 0, as in the parameters' names. Only the last tokens that fit the context are read.
    Shapes: ids (B, T) int64.
    """
    if (parameter := nonfinite_parameter(model)) is not None:
        return f"the parameter {parameter}"
    with eval_mode(model):
        for name, layer, output in model.trace(ids[:, -model.config.n_positions :]):
            if not output.isfinite().all():
                stage = _NAMES.get(name, name)
                return f"the {stage}{'' if layer is None else f' of block {layer}'}, although its input is finite"
    return "no stage of PyTorch's forward pass"


@torch.no_grad()
def nonfinite_parameter(model: GPT) -> str | None:
    """The first parameter with NaN or infinite values, and how many they are; None if all are finite."""
    for name, parameter in model.named_parameters():
        if not parameter.sum(dtype=torch.float32).isfinite():  # a sum is the fastest way to see that all are finite
            finite = parameter.isfinite()
            if not finite.all():
                return f"{name} ({int((~finite).sum())} of its {parameter.numel()} values are not finite)"
    return None


def check_finite(values: Tensor, model: GPT, ids: Tensor) -> None:
    """Checks values that were computed from the model's logits for these tokens.

    Shapes: ids (B, T) int64.
    Raises: GenerationError if one of the values is NaN or infinite; it names the first such values in the model.
    """
    if not values.isfinite().all():
        origin = first_nonfinite(model, ids.to(model.token_embedding.weight.device))
        raise GenerationError(
            f"the model's predictions are NaN or infinite; the first values that are not finite are in {origin}"
        )
