"""The surprisal of the start of the validation text, measured at each evaluation of a run, for its report."""

from collections.abc import Mapping
from typing import Any

from minigpt.data.corpus import Corpus
from minigpt.evaluation.monitor import Monitor
from minigpt.inspection.activations import passage, surprisal
from minigpt.model.gpt import GPT


class PassageMonitor(Monitor):
    """Logs the first tokens of the validation text as `passage`, and the loss of each but the first as `surprise`.

    Unit: nats, rounded to a thousandth.
    """

    def __init__(self, corpus: Corpus) -> None:
        self.validation = corpus.validation

    def on_evaluation(self, model: GPT, step: int, loss: float) -> Mapping[str, Any]:  # noqa: ARG002
        ids = passage(self.validation, model.config.n_positions)
        return {"passage": ids, "surprise": surprisal(model, ids)}
