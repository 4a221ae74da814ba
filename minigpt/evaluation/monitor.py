"""What else is measured at the evaluations and on the samples of a run."""

from collections.abc import Mapping, Sequence
from typing import Any

from minigpt.model.gpt import GPT


class Monitor:
    """Measures something else at the evaluations and on the samples of a run; by default nothing.

    At the seam `monitors`, an edge provides what makes one for a corpus.
    """

    def load_log(self, log: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]]) -> None:
        """Reads the log of a resumed run, and the lines of its evaluations that are comparable with later ones."""

    def on_evaluation(self, model: GPT, step: int, loss: float) -> Mapping[str, Any]:
        """Measures a model, on every process. Returns figures for the line in the log."""
        del model, step, loss
        return {}

    def on_sample(
        self, step: int, prompt: str, text: str, run_seconds: float | None
    ) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Measures a sample. Returns values for the event, by name, and figures for the line in the log.

        `run_seconds` is the expected duration of the run; None before the first step and on all processes but the main
        one, where nothing is to be measured.
        """
        del step, prompt, text, run_seconds
        return {}, {}

    def take_notices(self) -> list[str]:
        """Returns the notices since the last call."""
        return []
