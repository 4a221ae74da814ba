"""An inspection as a page to look at: attention maps, the logit lens, probabilities and norms."""

import base64
import math
from typing import Any

import numpy as np
from torch import Tensor

from minigpt.config import GPTConfig
from minigpt.inspection.activations import Inspection, Predictions, mean_bits
from minigpt.inspection.colors import DARKEST_BITS
from minigpt.reports.page import page
from minigpt.tokenizer.display import token_label
from minigpt.tokenizer.tokenizer import Tokenizer

_SCRIPTS = ("inspection", "tokens", "attention", "lens", "norms")  # of assets/, the first is what the others share
_MOST_WEIGHTS = 6_000_000  # in a page: 12 MB, 16 in base64


def most_tokens(config: GPTConfig) -> int:
    """How many tokens a page has room for: the whole context, unless that many maps of it would be too large."""
    weights = _MOST_WEIGHTS / (config.n_layer * config.n_head)
    return min(config.n_positions, int((math.sqrt(8 * weights + 1) - 1) / 2))


def inspection_page(inspection: Inspection, tokenizer: Tokenizer, model: str, *, layer: int = 0, head: int = 0) -> str:
    """The page of a model's inspection; it opens on the map of one layer and head.

    A weight is kept in 16 bits, to 8 millionths; a map is its lower triangle.
    """
    n_layer, n_head, n_tokens = inspection.attention.shape[:3]
    lens = inspection.lens
    words = sorted({*inspection.ids.tolist(), *lens.top_ids.flatten().tolist()})  # every token that is shown
    place = {word: number for number, word in enumerate(words)}
    per_token, per_byte = mean_bits(inspection.predictions, inspection.ids.tolist(), tokenizer.token_lengths)
    shown, tokens = [token_label(tokenizer, word) for word in words], [place[id] for id in inspection.ids.tolist()]
    data = {
        "model": model,
        "layers": n_layer,
        "heads": n_head,
        "layer": layer,
        "head": head,
        "words": shown,
        "tokens": tokens,
        "bitsPerToken": per_token,
        "bitsPerByte": per_byte,
        "attention": _packed(inspection.attention),
        "lens": [_told(lens[each], place) for each in range(n_layer)],
        "norms": {
            name.removesuffix("_norms"): _rounded(getattr(inspection, name))
            for name in ("token_norms", "position_norms", "attention_norms", "mlp_norms", "residual_norms")
        },
        "darkestBits": DARKEST_BITS,
    }
    start = "".join(shown[token] for token in tokens[:12]).replace("␣", " ")
    return page(f"{start}{'…' if n_tokens > 12 else ''} · {model}", list(_SCRIPTS), data)


def _packed(attention: Tensor) -> str:
    """The lower triangles of (L, H, T, T), row by row, as little-endian 16-bit shares of one, in base64."""
    rows, columns = np.tril_indices(attention.shape[-1])
    weights = attention.numpy()[:, :, rows, columns]  # (L, H, T (T + 1) / 2)
    return base64.b64encode(np.rint(weights * 65535).astype("<u2").tobytes()).decode()


def _told(predictions: Predictions, place: dict[int, int]) -> dict[str, Any]:
    """One layer's predictions: places in the list of words, and log-probabilities in nats."""
    return {
        "words": [[place[id] for id in ids] for ids in predictions.top_ids.tolist()],
        "logprobs": _rounded(predictions.top_logprobs),
        "entropy": _rounded(predictions.entropy),
        "actual": _rounded(predictions.logprobs),
        "ranks": predictions.ranks.tolist(),
    }


def _rounded(values: Tensor) -> Any:
    """Nested lists of four digits behind the point, None for what is no number."""
    if values.dim() > 1:
        return [_rounded(row) for row in values]
    return [round(value, 4) if math.isfinite(value) else None for value in values.tolist()]
