"""Compares a model with the published outputs of OpenAI's GPT-2."""

from dataclasses import dataclass
from typing import Literal

import torch

from minigpt.config import PRESETS
from minigpt.model.gpt import GPT


@dataclass(frozen=True)
class Verification:
    """Whether a model gives the published outputs of OpenAI's GPT-2, with one line per compared output.

    The status is `unknown` for a shape without published outputs.
    """

    status: Literal["verified", "differs", "unknown"]
    details: tuple[str, ...]


# Published outputs of OpenAI's 124M GPT-2 in float32: a prompt's ids and its greedy continuation.
_GREEDY = (
    # transformers, tests/models/gpt2/test_modeling_gpt2.py: "The dog" to 20 tokens in all
    ((464, 3290), (373, 1043, 287, 257, 2214, 1474, 262, 16246, 286, 2688, 290, 2688, 27262, 13, 198, 198, 464, 3290)),
    # CTranslate2, python/tests/test_transformers.py: end of text, then "\nThe first time I saw the new version of"
    ((50256,), (198, 464, 717, 640, 314, 2497, 262, 649, 2196, 286)),
)
# rust-bert, tests/gpt2.rs: the next token after "One two three four" is " five", with this logit
_COUNTING, _FIVE, _FIVE_LOGIT, _TOLERANCE = (3198, 734, 1115, 1440), 1936, -69.4948, 1e-3


@torch.no_grad()
def verify_gpt2(model: GPT) -> Verification:
    """Compares a model of the 124M shape with the published outputs of OpenAI's, in float32."""
    if model.config.replace(dropout=0.0) != PRESETS["gpt2"]:
        return Verification("unknown", ("there are no published outputs to compare with for a model of this shape",))
    logits = _logits(model, _COUNTING)[-1]  # (V,)
    token, logit = int(logits.argmax()), float(logits[_FIVE])
    same = token == _FIVE and abs(logit - _FIVE_LOGIT) <= _TOLERANCE
    details = [f"next token {token}, logit of {_FIVE} {logit:.4f} (published: {_FIVE}, {_FIVE_LOGIT})"]
    for prompt, published in _GREEDY:
        chosen = _logits(model, prompt + published)[len(prompt) - 1 : -1].argmax(-1).tolist()
        pairs = enumerate(zip(chosen, published, strict=True))
        equal = next((index for index, pair in pairs if pair[0] != pair[1]), len(published))
        same = same and equal == len(published)
        details.append(f"greedy after {list(prompt)}: the first {equal} of {len(published)} tokens as published")
    if not same:
        details.append(
            "so these are not OpenAI's float32 weights: they may be fine-tuned, or rounded to half precision"
        )
    return Verification("verified" if same else "differs", tuple(details))


def _logits(model: GPT, ids: tuple[int, ...]) -> torch.Tensor:
    """The logits after each id: (T, V)."""
    return model(torch.tensor([ids], device=model.token_embedding.weight.device))[0]
