"""The settings of training on conversations."""

from dataclasses import dataclass
from functools import partial
from typing import Literal

from minigpt.config.reading_settings import ReadingSettings
from minigpt.config.train_settings import TrainSettings, scored_text_of
from minigpt.settings import setting

ME = "in an export of WhatsApp or Telegram, the name of the sender who is the assistant; repeatable"

_text = partial(setting, group="Text")
_optimization = partial(setting, group="Optimization")


@dataclass(frozen=True, kw_only=True)
class ChatLogSettings(TrainSettings):
    """The settings of training on conversations."""

    loss_on: Literal["all", "system", "user", "assistant"] = _optimization(
        "all", "measure the loss of a chat log on all turns, or on those of one role"
    )

    @property
    def scored_role(self) -> str:
        """Whose turns the losses are measured on."""
        return self.loss_on

    @property
    def scored_text(self) -> str:
        """What the losses are measured on, if that is not all of the text: "of the assistant's turns only"."""
        return scored_text_of(self.loss_on)


@dataclass(frozen=True, kw_only=True)
class ExportSettings(ReadingSettings):
    """The settings of reading the exports of messengers."""

    me: tuple[str, ...] = _text((), ME)
