"""What `minigpt generate` says about a model that was trained on a chat log."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from minigpt.chat_logs.transcript import CHAT_TEMPLATE
from minigpt.cli.generate_settings import GenerateSettings
from minigpt.cli.options import command_line, model_name
from minigpt.edges import commands

if TYPE_CHECKING:
    from minigpt.storage.checkpoint import Checkpoint


@dataclass(frozen=True, kw_only=True)
class ChatHint(GenerateSettings):
    """Names `minigpt chat`, if that is installed."""

    def hints(self, checkpoint: "Checkpoint", checkpoints: Path) -> list[str]:
        hints = super().hints(checkpoint, checkpoints)
        if checkpoint.tokenizer.chat_template != CHAT_TEMPLATE or "chat" not in commands():
            return hints
        talk = command_line("chat", model_name(checkpoint.directory, checkpoints), checkpoints=checkpoints)
        return [*hints, f"this model was trained on a chat log; to talk to it: {talk}"]
