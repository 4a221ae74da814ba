"""The settings of sinks. They are options of `minigpt train`, so that this module imports no torch."""

import functools
from dataclasses import dataclass

from minigpt.edges import provided
from minigpt.settings import Settings, combined


@dataclass(frozen=True, kw_only=True)
class SinkSettings(Settings):
    """The settings of the sinks, which are options of `minigpt train`. An edge adds a group at "sink_settings"."""


@functools.cache
def sink_settings() -> type[SinkSettings]:
    """The class of the settings of all installed sinks."""
    groups = (SinkSettings, *provided("sink_settings"))
    kind: type[SinkSettings] = combined("AllSinkSettings", "The settings of the installed sinks.", groups)
    return kind
