"""Beam search: extends several likely sequences in parallel to find the most likely ones."""

from collections.abc import Sequence

import torch

from minigpt.config import SamplingConfig
from minigpt.errors import ConfigError
from minigpt.generation.engine import Engine
from minigpt.generation.sampling import NO_TOKEN_LEFT, Sampler, check_finite
from minigpt.search.settings import SearchSettings


def check_room(n_prompt: int, max_new_tokens: int, n_positions: int) -> None:
    """Raises ConfigError if a prompt and its continuation do not fit into the context together.

    Beam search has no sliding window.
    """
    room = n_positions - n_prompt
    if max_new_tokens <= room:
        return
    raise ConfigError(
        f"with beams, the prompt's tokens ({n_prompt}) and max_new_tokens ({max_new_tokens}) must fit into the context "
        f"({n_positions}) together; "
        + (f"give a --max-new-tokens of at most {room}" if room > 0 else "shorten the prompt")
    )


@torch.inference_mode()
def beam_search(
    engine: Engine,
    prompt: Sequence[int],
    config: SamplingConfig,
    sampler: Sampler,
    end_ids: Sequence[int],
    vocab_size: int | None = None,
    beginning: bytes = b"",
) -> list[tuple[float, list[int]]]:
    """Up to `beams` continuations of a prompt with their scores, best first.

    A continuation ends with one of `end_ids`, its last token, or after `max_new_tokens`. Its score is its
    log-probability / length ** length_penalty. The sampler's processors act on the log-probabilities. Only ids below
    `vocab_size` are used. A sampler with a tokenizer keeps the texts UTF-8, and their first bytes are `beginning`.

    Raises: ConfigError if prompt and continuation do not fit into the context together, or no token is left to choose;
    GenerationError for logits that are NaN or infinite.
    Source: Sutskever et al. 2014, section 3.2; Wu et al. 2016, section 7 (the length penalty, without its constant).
    Candidates and stopping criterion are those of transformers with `early_stopping=False`.
    """
    search = SearchSettings.of(config)
    check_room(len(prompt), config.max_new_tokens, engine.n_positions)
    with engine.lock:
        logits = engine.start([prompt])[:, :vocab_size]  # (R, V), R the number of active sequences
        sequences = torch.tensor([list(prompt)], device=engine.device)  # (R, T)
        scores = torch.zeros(1, 1, device=engine.device)  # (R, 1), the log-probabilities of the sequences
        constraint = sampler.constraint
        ends = torch.tensor(end_ids, device=engine.device)
        states = None if constraint is None else [constraint.start(prompt, beginning)]  # of the active sequences
        finished: list[tuple[float, list[int]]] = []
        for length in range(1, config.max_new_tokens + 1):
            check_finite(logits)
            logprobs = logits.float().log_softmax(dim=-1)  # (R, V)
            extended = scores + sampler.process(logprobs, sequences, length - 1, states)  # (R, V)
            # Each sequence can end in as many ways as there are ends, so that at least `beams` candidates stay active.
            best = extended.flatten().topk(min((1 + len(end_ids)) * search.beams, extended.numel()))
            rows, tokens = best.indices // extended.shape[1], best.indices % extended.shape[1]  # (N,), (N,)
            sequences = torch.cat([sequences[rows], tokens[:, None]], dim=1)  # (N, T + 1)
            possible = best.values > -torch.inf
            ended = possible & (torch.isin(tokens, ends) | (length == config.max_new_tokens))
            final_scores = [score / length**search.length_penalty for score in best.values.tolist()]  # (N,)
            for row in ended[: search.beams].nonzero().flatten().tolist():
                finished.append((final_scores[row], sequences[row, len(prompt) :].tolist()))
            finished = sorted(finished, key=lambda scored: -scored[0])[: search.beams]
            active = (possible & ~ended).nonzero().flatten()[: search.beams]  # (R,)
            if len(active) == 0:
                break
            if len(finished) == search.beams and final_scores[active[0]] <= finished[-1][0]:
                break
            parents = rows[active].tolist()
            if constraint is not None and states is not None:
                steps = zip(parents, tokens[active].tolist(), strict=True)
                states = [constraint.advance(states[parent], token) for parent, token in steps]
            engine.keep(parents)
            logits = engine.read(tokens[active, None])[:, -1, :vocab_size]
            sequences, scores = sequences[active], best.values[active, None]
        if not finished:
            raise ConfigError(NO_TOKEN_LEFT)
        return finished
