"""Beam search: several likely texts grown side by side, for the likeliest there is; it knows no text and no stops."""

from collections.abc import Sequence

import torch

from minigpt.config import SamplingConfig
from minigpt.errors import ConfigError
from minigpt.generation.engines.engine import Engine
from minigpt.generation.sampling import NOTHING_LEFT, Sampler, check_finite


@torch.inference_mode()
def beam_search(
    engine: Engine,
    prompt: Sequence[int],
    config: SamplingConfig,
    sampler: Sampler,
    end_of_text: int,
    vocab_size: int | None = None,
) -> list[tuple[float, list[int]]]:
    """Up to `beams` continuations of a prompt with their scores, best first.

    A continuation ends with `end_of_text`, which then is its last token, or has `max_new_tokens`. Its score is its
    log-probability / length ** length_penalty; the sampler's penalties and bans act on the log-probabilities. Only the
    first `vocab_size` ids are used.

    Raises: ConfigError where prompt and continuation do not fit the context, whose window does not slide here, or no
    token is left to choose; GenerationError for logits that are nan or infinite.
    Source: Sutskever et al. 2014, section 3.2; Wu et al. 2016, section 7 (the length penalty, without its constant);
    what is looked at and when to stop are transformers', with its `early_stopping=False`.
    """
    if len(prompt) + config.max_new_tokens > engine.n_positions:
        raise ConfigError(
            f"prompt ({len(prompt)} tokens) and max_new_tokens ({config.max_new_tokens}) must fit into the context "
            f"({engine.n_positions}) together, for beams"
        )
    logits = engine.start([prompt])[:, :vocab_size]  # (R, V), of the R texts that go on
    texts = torch.tensor([list(prompt)], device=engine.device)  # (R, T)
    scores = torch.zeros(1, 1, device=engine.device)  # (R, 1), their log-probabilities
    finished: list[tuple[float, list[int]]] = []
    for length in range(1, config.max_new_tokens + 1):
        check_finite(logits)
        grown = scores + sampler.adjust(logits.float().log_softmax(dim=-1), texts, length - 1)  # (R, V)
        # Each text has one way to end, so that of twice as many as there are beams enough go on.
        best = grown.flatten().topk(min(2 * config.beams, grown.numel()))
        rows, tokens = best.indices // grown.shape[1], best.indices % grown.shape[1]  # (N,), (N,)
        texts = torch.cat([texts[rows], tokens[:, None]], dim=1)  # (N, T + 1)
        possible = best.values > -torch.inf
        ended = possible & ((tokens == end_of_text) | (length == config.max_new_tokens))
        ranks = best.values / length**config.length_penalty  # (N,)
        for row in ended[: config.beams].nonzero().flatten().tolist():
            finished.append((float(ranks[row]), texts[row, len(prompt) :].tolist()))
        finished = sorted(finished, key=lambda found: -found[0])[: config.beams]
        going = (possible & ~ended).nonzero().flatten()[: config.beams]  # (R,)
        if len(going) == 0:
            break
        if len(finished) == config.beams and float(ranks[going[0]]) <= finished[-1][0]:
            break
        engine.keep(rows[going].tolist())
        logits = engine.read(tokens[going, None])[:, -1, :vocab_size]
        texts, scores = texts[going], best.values[going, None]
    if not finished:
        raise ConfigError(NOTHING_LEFT)
    return finished
