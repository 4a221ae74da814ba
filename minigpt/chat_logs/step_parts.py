"""What training says if the loss of a chat log includes only one role's turns."""

from typing import Any

from minigpt.config import TrainConfig
from minigpt.data import batches
from minigpt.data.corpus import Corpus
from minigpt.training.step_parts import StepParts

_UNSCORED_STEPS = 0.001  # of the steps: more are worth a notice


def note_unscored_steps(parts: StepParts, config: TrainConfig, given: dict[str, Any]) -> None:  # noqa: ARG001
    """Says so if steps will score no token, which change nothing."""
    if parts.batches.scores_all:
        return
    context, size = config.context_length or parts.model.config.n_positions, config.sequences_per_step
    tokens, windows = scored_shares(parts.corpus, config.scored_role, context)
    unscored = (1 - windows) ** size
    if unscored > _UNSCORED_STEPS:
        parts.notices.append(
            f"the loss includes {tokens:.1%} of the training tokens; {1 - windows:.0%} of the windows of {context} "
            f"tokens have none of them, so about {unscored:.1%} of the steps change nothing; raise "
            f"--context-length, now {context}, or --batch-size, now {size}"
        )


def scored_shares(corpus: Corpus, role: str, length: int) -> tuple[float, float]:
    """The share of the training tokens that the loss includes, and of the windows of `length` that have one."""
    scored = corpus.scored(role, "train")
    if scored is None:
        return 1.0, 1.0
    n_windows = batches.windows_per_epoch(len(scored), length)
    return float(scored.mean()), float(scored[: n_windows * length].reshape(n_windows, -1).any(1).mean())
