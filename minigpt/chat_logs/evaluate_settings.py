"""`minigpt evaluate --loss-on`: the loss of one role's turns of a chat log."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from minigpt.cli.evaluate_settings import EvaluateSettings
from minigpt.errors import ConfigError
from minigpt.settings import setting

_optimization = partial(setting, group="Optimization")


@dataclass(frozen=True, kw_only=True)
class RoleSettings(EvaluateSettings):
    """The role whose turns are scored."""

    loss_on: Literal["all", "system", "user", "assistant"] | None = _optimization(
        None, "measure the loss of a chat log on all turns, or on those of one role [default: all]"
    )

    def check_together(self, names: Sequence[str], *, has_text: bool) -> None:
        super().check_together(names, has_text=has_text)
        if self.loss_on is not None and not has_text:
            raise ConfigError(f"--loss-on {self.loss_on} is only for chat logs; name one")
