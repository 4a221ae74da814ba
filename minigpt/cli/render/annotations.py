"""What edges add to the display of a run: marks, lines and rows of figures that they know of."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.text import Text

from minigpt.edges import provided
from minigpt.runs.events import Started
from minigpt.runs.job import Job
from minigpt.training.events import Evaluation, Finished, Sample


@dataclass(frozen=True)
class NextStep:
    """A sentence and the commands that it proposes: the arguments of `minigpt`, without --checkpoints."""

    text: str
    commands: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Result:
    """The end of a job that `processes` have trained. `tokens_per_second` is None if no step was taken."""

    job: Job
    finished: Finished
    tokens_per_second: float | None
    processes: int


class Annotations:
    """What one edge adds to the display of a run; nothing, unless it overrides a method.

    An edge provides a subclass at the seam "annotations". Each start of training makes a new one.
    """

    def __init__(self, started: Started) -> None:
        self.started = started

    def resumed(self, evaluations: Sequence[Mapping[str, object]]) -> str:  # noqa: ARG002
        """Lines that follow from the evaluations in the log of a resumed run."""
        return ""

    def evaluated(self, event: Evaluation) -> tuple[str, str]:  # noqa: ARG002
        """A remark at the end of the line of an evaluation, and lines below it."""
        return "", ""

    def sampled(self, event: Sample) -> list[Text]:  # noqa: ARG002
        """The styled text of a sample, and lines below it; empty to draw it plainly."""
        return []

    def verdict(self, result: Result) -> Iterable[str]:  # noqa: ARG002
        """Sentences on the result, above its table."""
        return ()

    def result_rows(self, result: Result) -> Mapping[str, str]:  # noqa: ARG002
        """Rows of the table of the result. One of the same name as another replaces it."""
        return {}

    def next_steps(self, job: Job) -> Iterable[NextStep]:  # noqa: ARG002
        """What would make the model better."""
        return ()

    def first_try(self, job: Job) -> NextStep | None:  # noqa: ARG002
        """How to try the model, if that is not `minigpt generate`."""
        return None


def annotations_of(started: Started) -> list[Annotations]:
    """The annotations of the installed edges."""
    return [build(started) for build in provided("annotations")]
