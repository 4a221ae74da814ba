"""An inspection as JSON, in the form that the scripts of the inspection's views read."""

import base64
import math
from typing import Any

import numpy as np
from torch import Tensor

from minigpt.config import GPTConfig
from minigpt.inspection.activations import Inspection, Predictions, mean_bits
from minigpt.inspection.opening import opening
from minigpt.pages.document import MOST_BITS
from minigpt.storage.run_log import replace_nonfinite
from minigpt.tokenizer.display import token_label
from minigpt.tokenizer.tokenizer import Tokenizer


def most_tokens(config: GPTConfig, weights: int) -> int:
    """The most tokens whose attention maps have at most this many weights in all; never more than the context."""
    of_a_map = weights / (config.n_layer * config.n_head)
    return max(1, min(config.n_positions, int((math.sqrt(8 * of_a_map + 1) - 1) / 2)))


def inspection_json(
    inspection: Inspection, tokenizer: Tokenizer, model: str, *, layer: int | None = None, head: int | None = None
) -> dict[str, Any]:
    """The data of the views of an inspection, which begin with what `opening` chooses.

    Attention weights have 16 bits, a precision of 8e-6; a map is stored as its lower triangle.
    """
    n_layer, n_head = inspection.attention.shape[:2]
    lens = inspection.lens
    shown = sorted({*inspection.ids.tolist(), *lens.top_ids.flatten().tolist()})
    number_of = {id: number for number, id in enumerate(shown)}
    layer, head, token = opening(inspection, layer, head)
    per_token, per_byte = mean_bits(inspection.predictions, inspection.ids.tolist(), tokenizer.token_lengths)
    return {
        "model": model,
        "layers": n_layer,
        "heads": n_head,
        "layer": layer,
        "head": head,
        "token": token,
        "labels": [token_label(tokenizer, id) for id in shown],
        "tokens": [number_of[id] for id in inspection.ids.tolist()],
        **replace_nonfinite({"bitsPerToken": per_token, "bitsPerByte": per_byte}),
        "attention": _packed_triangles(inspection.attention),
        "lens": [_layer_predictions(lens[layer], number_of) for layer in range(n_layer)],
        "norms": {
            name.removesuffix("_norms"): _rounded(getattr(inspection, name))
            for name in ("token_norms", "position_norms", "attention_norms", "mlp_norms", "residual_norms")
        },
        "darkestBits": MOST_BITS,
    }


def _packed_triangles(attention: Tensor) -> str:
    """The lower triangles of (L, H, T, T), row by row, as little-endian 16-bit fractions in base64."""
    rows, columns = np.tril_indices(attention.shape[-1])
    weights = attention.numpy()[:, :, rows, columns]  # (L, H, T (T + 1) / 2)
    return base64.b64encode(np.rint(weights * 65535).astype("<u2").tobytes()).decode()


def _layer_predictions(predictions: Predictions, number_of: dict[int, int]) -> dict[str, Any]:
    """One layer's predictions; tokens are numbers in the list of labels. Units: nats."""
    return {
        "top": [[number_of[id] for id in ids] for ids in predictions.top_ids.tolist()],
        "logprobs": _rounded(predictions.top_logprobs),
        "entropy": _rounded(predictions.entropy),
        "actual": _rounded(predictions.logprobs),
        "ranks": predictions.ranks.tolist(),
    }


def _rounded(values: Tensor) -> Any:
    """Nested lists, rounded to four decimals, with None for NaN and infinity."""
    if values.dim() > 1:
        return [_rounded(row) for row in values]
    return [round(value, 4) if math.isfinite(value) else None for value in values.tolist()]
