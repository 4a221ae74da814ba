"""Writes the losses of a run into a CSV file."""

from collections.abc import Iterable
from pathlib import Path

from minigpt_csv_log import CsvSettings

from minigpt.runs.events import Event
from minigpt.runs.job import Job, Sink
from minigpt.runs.sink_settings import SinkSettings
from minigpt.training.events import Evaluation, Finished


class CsvSink(Sink):
    """Appends a row at each evaluation."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.write_text("step,validation_loss\n", encoding="utf-8")

    def receive(self, event: Event) -> Iterable[Event]:
        if isinstance(event, Evaluation):
            with self.path.open("a", encoding="utf-8") as file:
                file.write(f"{event.step},{event.validation_loss}\n")
        return ()

    def close(self, finished: Finished | None) -> Iterable[str]:
        return [f"the losses are in {self.path}"] if finished else []


def csv_sink(job: Job, settings: SinkSettings) -> Sink | None:
    """The sink of a job; None if no file was given."""
    path = CsvSettings.of(settings).csv
    return CsvSink(Path(path)) if path is not None else None
