"""How files are read as documents: the settings of the spine and of the installed edges, in one class."""

from typing import TYPE_CHECKING, Any

from minigpt.config.reading_settings import ReadingSettings
from minigpt.edges import provided
from minigpt.settings import combined

if TYPE_CHECKING:
    # What the spine may read. An edge reads its own: `MixSettings.of(reading).mix`.
    class ReadingConfig(ReadingSettings):
        """How files are read as documents, and how many documents are held out for validation."""

        def __init__(self, **settings: Any) -> None: ...
else:
    ReadingConfig = combined(
        "ReadingConfig",
        """How files are read as documents, and how many documents are held out for validation.""",
        (ReadingSettings, *provided("reading_settings")),
    )
