"""Notices during training when a model begins to memorize its text instead of learning from it."""

from collections.abc import Mapping, Sequence
from typing import Any

from minigpt.data.corpus import Corpus
from minigpt.evaluation.monitor import Monitor
from minigpt.memorization.index import MOST_BYTES, Memorization, MemorizationIndex, TrainingLocation
from minigpt.memorization.words import LONG_RUN, Extent
from minigpt.model.gpt import GPT

_INDEX_FRACTION = 0.01  # of the run's time, the most that indexing its text may take
INDEX_SPEED = 4_000_000  # bytes per second, on a slow or busy machine
_MIN_BYTES = 1_000_000
_EVALUATIONS = 4  # in which the validation loss must have improved
_MIN_IMPROVEMENT = 0.005  # of the loss


def bytes_to_index(train_bytes: int, run_seconds: float) -> int:
    """How much of the training text a run of about `run_seconds` indexes."""
    return min(train_bytes, MOST_BYTES, max(_MIN_BYTES, int(_INDEX_FRACTION * run_seconds * INDEX_SPEED)))


class MemorizationMonitor(Monitor):
    """Compares samples with the training text and warns when more is copied while validation does not improve.

    The text is indexed for the first sample.
    """

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        self._index: MemorizationIndex | None = None
        self._losses: list[tuple[int, float]] = []  # step, validation loss
        self._longest: list[tuple[int, float]] = []  # step, words in the longest copied run
        self._warned = False
        self._notices: list[str] = []

    def take_notices(self) -> list[str]:
        """Returns the notices since the last call."""
        notices, self._notices = self._notices, []
        return notices

    def load_log(self, log: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]]) -> None:
        """Reads the earlier figures of a resumed run: those of the samples from its log, and its evaluations."""
        for line in log:
            if "longest_copied_words" in line:
                longest = Extent(line["longest_copied_words"], line.get("longest_copied_unspaced") or 0)
                self._longest.append((line["step"], longest.length))
        self._losses += [(line["step"], line["validation_loss"]) for line in evaluations]

    def on_evaluation(self, model: GPT, step: int, loss: float) -> Mapping[str, Any]:  # noqa: ARG002
        """Records a validation loss. Later ones are dropped: the run has been rolled back."""
        self._losses = [*(line for line in self._losses if line[0] < step), (step, loss)]
        return {}

    def on_sample(
        self, step: int, prompt: str, text: str, run_seconds: float | None
    ) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """`memorization` says how much of a sample is copied, `location` where its longest copied run comes from.

        The second is the first location in the training text, and None unless that run is a long one.
        """
        if run_seconds is None:
            return {"memorization": None, "location": None}, {}
        found = self.measure(step, text, prompt, run_seconds)
        return {"memorization": found, "location": self.locate(found)}, found.figures()

    def measure(self, step: int, text: str, prompt: str, run_seconds: float) -> Memorization:
        """Measures how much of a sample is copied; `run_seconds`, the run's expected duration, limits the index."""
        if self._index is None:
            self._index = MemorizationIndex.open(self.corpus, bytes_to_index(self.corpus.train_bytes, run_seconds))
            if not self._index.is_complete:
                self._notices.append(
                    f"samples are compared with {self._index.indexed_bytes / 1e6:.1f} MB of the training text's "
                    f"{self.corpus.train_bytes / 1e6:.1f} MB, spread evenly: more would take over 1 % of the run"
                )
        memorization = self._index.measure(text, prompt)
        longest = memorization.longest_extent
        self._longest = [*(line for line in self._longest if line[0] < step), (step, longest.length)]
        if not self._warned and (since := self._memorizing_since()) is not None:
            self._warned = True
            self._notices.append(
                f"step {step:,}: validation has not improved since step {since:,}, but samples copy more of the "
                f"training text, now {longest} in a row: the model begins to memorize; stop, train on more text, "
                "or raise --dropout"
            )
        return memorization

    def locate(self, memorization: Memorization) -> TrainingLocation | None:
        """The first location of a sample's longest copied run in the training text; None unless it is a long run."""
        longest = memorization.longest
        if self._index is None or longest is None or not memorization.is_long(longest):
            return None
        return self._index.locate(longest.position)

    def _memorizing_since(self) -> int | None:
        """The step since which validation has not improved, if the last sample copies more than any sample up to it."""
        if len(self._losses) < _EVALUATIONS:
            return None
        (first_step, first_loss), (_, last_loss) = self._losses[-_EVALUATIONS], self._losses[-1]
        earlier = [length for step, length in self._longest if step <= first_step]
        length = self._longest[-1][1]
        copies_more = bool(earlier) and length >= LONG_RUN and length > max(earlier)
        return first_step if copies_more and last_loss > (1 - _MIN_IMPROVEMENT) * first_loss else None
