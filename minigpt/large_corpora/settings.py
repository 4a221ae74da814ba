"""The settings of reading texts with weights, and without repeated documents."""

from dataclasses import dataclass
from functools import partial

from minigpt.config.reading_settings import ReadingSettings
from minigpt.settings import setting

_text = partial(setting, group="Text")


@dataclass(frozen=True, kw_only=True)
class MixSettings(ReadingSettings):
    """The settings of reading texts with weights, and without repeated documents."""

    mix: bool = _text(False, "each TEXT has a weight, as in web/=3 books/=1: its share of the training sequences")
    deduplicate: bool = _text(False, "drop documents that are equal to an earlier one")

    def parted(self, source: str) -> tuple[str, str]:
        """The path of a source and, with `mix`, the "=" with its weight."""
        path, sign, weight = source.rpartition("=") if self.mix else ("", "", "")
        return (path, sign + weight) if sign else (source, "")
