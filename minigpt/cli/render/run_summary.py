"""The result of a training run as a table."""

from typing import TYPE_CHECKING

from rich.console import RenderableType

from minigpt.cli.render.console import facts
from minigpt.units import duration, shown_perplexity

if TYPE_CHECKING:
    from minigpt.planning.throughput import Peak
    from minigpt.training.events import Finished


def speed(tokens_per_second: float, flops_per_token: float, peak: "Peak") -> str:
    """The speed of training: tokens per second, and the share of the device's peak that they use."""
    flops = tokens_per_second * flops_per_token
    return f"{tokens_per_second:,.0f} tokens/s, {flops / peak.flops:.0%} of this machine's peak ({peak.source})"


def summary(
    event: "Finished",
    n_scored: int,
    speed: str,
    saved: str,
    baselines: str | None,
    copied: str | None,
    scored_text: str = "",
) -> RenderableType:
    """The result of a run; `n_scored` is the number of validation tokens that can be scored, and `scored_text` says
    what they are part of, if not of all of the text.

    `saved` names the run's folder.
    """
    from minigpt.evaluation.perplexity import perplexity

    rows = {"steps": f"{event.step:,} in {duration(event.seconds)}", "speed": speed}
    if event.validation_loss is not None and event.bits_per_byte is not None:
        rows["best weights"] = f"step {event.best_step:,}"
        read = event.validation_tokens
        tokens = f"all {read:,} tokens" if read >= n_scored else f"{read:,} of {n_scored:,} tokens"
        rows["validation loss"] = f"{event.validation_loss:.4f} nats per token, {tokens}"
        rows["perplexity"] = f"{shown_perplexity(perplexity(event.validation_loss))} per token"
        rows["bits per byte"] = f"{event.bits_per_byte:.4f} {scored_text}".rstrip()
    rows |= {name: text for name, text in (("baselines", baselines), ("copied", copied)) if text is not None}
    rows["saved in"] = saved
    title = {"early stop": "stopped early: the validation loss no longer improves", "diverged": "diverged"}
    return facts(title.get(event.reason, "done"), rows)
