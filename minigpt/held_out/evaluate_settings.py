"""`minigpt evaluate --held-out`: the part of a model's training text that was held out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from minigpt.cli.evaluate_settings import EvaluateSettings
from minigpt.cli.render.evaluation import TextResult
from minigpt.cli.render.terminal import note
from minigpt.cli.text_evaluation import break_down_stream
from minigpt.config import scored_text_of
from minigpt.errors import ConfigError
from minigpt.settings import setting
from minigpt.units import count, shown_loss

if TYPE_CHECKING:
    from minigpt.data.sources import Scan
    from minigpt.evaluation.perplexity import EvaluationResult, Windows
    from minigpt.storage.checkpoint import Checkpoint
    from minigpt.storage.run_record import Result


@dataclass(frozen=True, kw_only=True)
class HeldOutSettings(EvaluateSettings):
    """The setting that evaluates the held-out part of the training text, in the windows of training."""

    held_out: bool = setting(
        False,
        "evaluate the held-out part of the training text, in the windows of training; give that text if it was moved",
        common=True,
    )

    @property
    def kinds(self) -> list[str]:
        return [*super().kinds, "--held-out"]

    def check_together(self, names: Sequence[str], *, has_text: bool) -> None:
        if self.held_out and names:
            raise ConfigError(f"--held-out cannot be combined with {' and '.join(names)}; evaluate them one by one")
        if self.held_out and self.limit is not None:
            raise ConfigError(f"--limit {self.limit} cannot be combined with --held-out, which evaluates all of it")
        super().check_together(names, has_text=has_text)

    def default_windows(self, checkpoint: "Checkpoint") -> tuple[int, int]:
        if not self.held_out:
            return super().default_windows(checkpoint)
        context = self.context_length or _training_context(checkpoint)
        return context, context

    def notes_on(self, found: "Scan", checkpoint: "Checkpoint") -> list[str]:
        from minigpt.held_out.training_corpus import training_overlap

        return [*super().notes_on(found, checkpoint), *training_overlap(found, checkpoint)]

    def evaluate_texts(
        self, checkpoint: "Checkpoint", sources: list[str], reading: dict[str, Any], windows: "Windows"
    ) -> TextResult:
        if not self.held_out:
            return super().evaluate_texts(checkpoint, sources, reading, windows)
        return evaluate_held_out(checkpoint, sources, reading, windows, self)


def _training_context(checkpoint: "Checkpoint") -> int:
    """The context length that the model was trained and evaluated with; if it is not recorded, the model's."""
    training = checkpoint.record.training if checkpoint.record else None
    return (training.context_length if training else None) or checkpoint.model.config.n_positions


def evaluate_held_out(
    checkpoint: "Checkpoint",
    sources: list[str],
    reading: dict[str, Any],
    windows: "Windows",
    settings: EvaluateSettings,
) -> TextResult:
    """Evaluates the held-out part of a model's training text, by default on the turns that the run measured.

    `sources` are the training text if it was given again, read with the recorded settings but those in `reading`.
    """
    from minigpt.cli.render.console import console, progress_bar
    from minigpt.held_out.training_corpus import find_training_corpus, given_training_corpus, held_out_overlap

    if sources:
        with progress_bar(console(), "tokenizing", in_bytes=True) as report:
            corpus = given_training_corpus(checkpoint, sources, report, reading)
    else:
        again = f"give that text: minigpt evaluate {checkpoint.directory.name} TEXT --held-out"
        corpus, _ = find_training_corpus(checkpoint, fix=again)
    if len(corpus.validation) < 2:
        raise ConfigError(
            f"{checkpoint.directory} was trained with nothing held out, so there is nothing to evaluate; give another "
            "text"
        )
    record = checkpoint.record
    trained_on = record.training.scored_role if record and record.training else "all"
    loss_on = settings.loss_on or trained_on
    corpus.check_loss_on(loss_on)
    for overlap in held_out_overlap(checkpoint):
        note(f"note: {overlap}")
    parts = break_down_stream(checkpoint, corpus.validation, corpus.scored(loss_on), windows, settings.by_position)
    labels = [f"held-out part #{number}" for number in range(1, len(parts.tokens) + 1)]
    context = _training_context(checkpoint)
    return TextResult(
        f"the part of the training text of {checkpoint.directory.name} that was held out",
        labels if len(labels) > 1 else ["held-out part"],
        parts,
        loss_on,
        "every token but the first scored once",
        [recorded_text(record.result if record else None, trained_on, context, parts.whole, loss_on)],
    )


def recorded_text(
    result: "Result | None", trained_on: str, context: int, measured: "EvaluationResult", loss_on: str
) -> str:
    """What a run recorded of its held-out part when it ended, to compare with what is `measured` now.

    The recorded losses are of the turns `trained_on`, in windows of `context` tokens without overlap; what is measured
    now are the turns `loss_on`.
    """
    if result is None or result.validation_loss is None or result.bits_per_byte is None:
        return "the run recorded no figure at its end to compare with"
    scored = result.validation_tokens or measured.tokens
    if loss_on != trained_on:
        on = f"on {count(scored, 'token')} {scored_text_of(trained_on) or 'of all turns'}"
    else:
        on = "on the same tokens" if scored == measured.tokens else f"on {scored:,} of these tokens"
    if (measured.context, measured.stride) != (context, context):
        on += f", in windows of {context} without overlap"
    loss, bits = shown_loss(result.validation_loss), shown_loss(result.bits_per_byte)
    return f"at the end of training: loss {loss}, {bits} bits per byte, {on}"
