"""`minigpt evaluate --loss-on` and `--me`: the loss of one role's turns of a chat log, and who the assistant is."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from minigpt.chat_logs.settings import ME
from minigpt.cli.evaluate_settings import EvaluateSettings
from minigpt.errors import ConfigError
from minigpt.settings import setting

if TYPE_CHECKING:
    from minigpt.cli.render.evaluation import TextResult
    from minigpt.evaluation.perplexity import Windows
    from minigpt.storage.checkpoint import Checkpoint

_optimization = partial(setting, group="Optimization")


@dataclass(frozen=True, kw_only=True)
class RoleSettings(EvaluateSettings):
    """The role whose turns are scored, and who the assistant is."""

    loss_on: Literal["all", "system", "user", "assistant"] | None = _optimization(
        None, "measure the loss of a chat log on all turns, or on those of one role [default: all]"
    )

    me: tuple[str, ...] = setting((), ME, group="Text")

    def check_together(self, names: Sequence[str], *, has_text: bool) -> None:
        super().check_together(names, has_text=has_text)
        if self.loss_on is not None and not has_text:
            raise ConfigError(f"--loss-on {self.loss_on} is only for chat logs; name one")
        if self.me and not has_text:
            raise ConfigError(f"--me {self.me[0]} is only for exports of chats; name one")

    def evaluate_texts(
        self, checkpoint: "Checkpoint", sources: list[str], reading: dict[str, Any], windows: "Windows"
    ) -> "TextResult":
        names = {"me": self.me} if self.me else {}
        return super().evaluate_texts(checkpoint, sources, reading | names, windows)
