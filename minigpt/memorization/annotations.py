"""What the display of a run says of copying from the training text."""

from collections.abc import Mapping

from rich.text import Text

from minigpt.cli.render.annotations import Annotations, Result
from minigpt.memorization.drawing import highlighted, run_line, samples_text, summary_line
from minigpt.training.events import Sample


class CopyingAnnotations(Annotations):
    """Marks the long copied runs of samples, with the copied share and the location of the longest run's original."""

    def sampled(self, event: Sample) -> list[Text]:
        measured, location = event.measured.get("memorization"), event.measured.get("location")
        if measured is None:
            return []
        lines = [highlighted(event.text, measured), Text(summary_line(measured), style="dim")]
        if location is not None and measured.longest is not None:
            where = f"the training text, document {location.document:,}, line {location.line:,}"
            lines.append(Text(run_line(measured.longest, measured, event.text, where), style="dim"))
        return lines

    def result_rows(self, result: Result) -> Mapping[str, str]:
        copied = samples_text(result.job.run.read_log())
        return {"copied": copied} if copied else {}
