"""Whether a run begins to recite its text instead of learning from it; it draws no samples and measures no loss."""

from collections.abc import Iterable, Mapping
from typing import Any

from minigpt.data.corpus import Corpus
from minigpt.evaluation.memorization.index import (
    LONG_RUN,
    MOST_BYTES,
    Memorization,
    MemorizationIndex,
    TrainingLocation,
)

_SHARE = 0.01  # of a run, the most that indexing its text may take
_BYTES_PER_SECOND = 4_000_000  # indexed, on a slow or busy machine
_FEWEST_BYTES = 1_000_000
_EVALUATIONS = 4  # over which validation must have moved
_FLAT = 0.005  # of the loss, what is no improvement


class MemorizationMonitor:
    """Measures samples against the training part, whose index is made at the first of them, and remembers figures.

    `notices` are what the user should know, to be taken away by whoever tells it.
    """

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        self.notices: list[str] = []
        self._index: MemorizationIndex | None = None
        self._losses: list[tuple[int, float]] = []
        self._longest: list[tuple[int, int]] = []
        self._warned = False

    def recall(self, log: Iterable[Mapping[str, Any]]) -> None:
        """Takes the figures of a run so far from its log."""
        for line in log:
            if "longest_copied_words" in line:
                self._longest.append((line["step"], line["longest_copied_words"]))
            elif line.get("validation_loss") is not None:
                self._losses.append((line["step"], line["validation_loss"]))

    def record_loss(self, step: int, loss: float) -> None:
        """Remembers a validation loss; what was measured later than `step` is forgotten, for the run has gone back."""
        self._losses = [*(line for line in self._losses if line[0] < step), (step, loss)]

    def measure(self, step: int, text: str, prompt: str, run_seconds: float) -> Memorization:
        """How much of a sample is copied; `run_seconds` is what the whole run will take, and bounds the index."""
        if self._index is None:
            most = max(_FEWEST_BYTES, int(_SHARE * run_seconds * _BYTES_PER_SECOND))
            self._index = MemorizationIndex.open(self.corpus, min(most, MOST_BYTES))
            if not self._index.is_complete:
                self.notices.append(
                    f"copies are looked for in {self._index.indexed_bytes / 1e6:.1f} MB of the training text's "
                    f"{self.corpus.train_bytes / 1e6:.1f} MB, spread evenly: more would take over 1 % of the run"
                )
        copying = self._index.measure(text, prompt)
        words = copying.longest_words
        self._longest = [*(line for line in self._longest if line[0] < step), (step, words)]
        if not self._warned and (since := self._reciting_since()) is not None:
            self._warned = True
            self.notices.append(
                f"step {step:,}: validation has not improved since step {since:,}, but what is copied from the text "
                f"grows, now {words} words on end: the model begins to learn it by heart; stop, give it more text, or "
                "raise --dropout"
            )
        return copying

    def locate(self, copying: Memorization) -> TrainingLocation | None:
        """Where the longest run of a sample that was measured stands in the training part, if it is a long one."""
        longest = copying.longest
        if self._index is None or longest is None or longest.words < copying.min_words:
            return None
        return self._index.locate(longest.position)

    def _reciting_since(self) -> int | None:
        """The step since which validation is flat or rises while the last sample copies more than any up to there."""
        if len(self._losses) < _EVALUATIONS:
            return None
        (before, was), (_, now) = self._losses[-_EVALUATIONS], self._losses[-1]
        earlier = [words for step, words in self._longest if step <= before]
        words = self._longest[-1][1]
        rises = bool(earlier) and words >= LONG_RUN and words > max(earlier)
        return before if rises and now > (1 - _FLAT) * was else None
