"""Sinks: what receives the events of a job, such as a display, a logger or a page about the run."""

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from minigpt.edges import provided
from minigpt.settings import Settings, combined

if TYPE_CHECKING:
    from minigpt.runs.events import Event
    from minigpt.runs.job import Job
    from minigpt.training.events import Finished


class Sink:
    """Receives the events of a job. Training does not depend on it: its own errors are its own to handle.

    An edge provides a function of the job and of the `SinkSettings` at the seam "sinks", which returns a Sink or None.
    """

    def receive(self, event: "Event") -> "Iterable[Event]":  # noqa: ARG002
        """Takes the next event. Returns the events that it adds after it, which every sink receives too.

        Raises: MinigptError if it cannot begin, at the first `Started` only: nothing is trained yet.
        """
        return ()

    def close(self, finished: "Finished | None") -> Iterable[str]:  # noqa: ARG002
        """Ends it, after training: `finished` is the last event, None if the run was left before. Returns notices."""
        return ()


@dataclass(frozen=True, kw_only=True)
class SinkSettings(Settings):
    """The settings of the sinks, which are options of `minigpt train`. An edge adds a group at "sink_settings"."""


@functools.cache
def sink_settings() -> type[SinkSettings]:
    """The class of the settings of all installed sinks."""
    groups = (SinkSettings, *provided("sink_settings"))
    kind: type[SinkSettings] = combined("AllSinkSettings", "The settings of the installed sinks.", groups)
    return kind


def sinks_of(job: "Job", **settings: Any) -> list[Sink]:
    """The sinks of the installed edges for a job with these settings, of which those that no sink has are ignored."""
    kind = sink_settings()
    known = kind(**{name: value for name, value in settings.items() if name in kind.__dataclass_fields__})
    return [sink for build in provided("sinks") if (sink := build(job, known)) is not None]
