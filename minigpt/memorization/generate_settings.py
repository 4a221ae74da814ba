"""`minigpt generate --memorization`: what the continuations copy from the training text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from minigpt.cli.generate_settings import GenerateSettings
from minigpt.cli.render.continuations import Output
from minigpt.config import ReadingConfig, SamplingConfig
from minigpt.errors import ConfigError
from minigpt.settings import setting

if TYPE_CHECKING:
    from minigpt.storage.checkpoint import Checkpoint


@dataclass(frozen=True, kw_only=True)
class CopySettings(GenerateSettings):
    """Settings that show what the continuations copy from the training text."""

    memorization: bool = setting(
        False, "mark what is copied word for word from the training text, and say where", common=True
    )
    corpus: tuple[str, ...] = setting((), "with --memorization: a text to search [default: the training text]")
    copied_words: int | None = setting(
        None,
        "with --memorization: minimum words in a copied run; 2.5 characters of a script without spaces count as one "
        "[default: 8]",
        min=1,
    )

    @property
    def forms(self) -> list[str]:
        return [*super().forms, *(["--memorization"] if self.memorization else [])]

    @property
    def reads_files(self) -> dict[str, Sequence[str]]:
        return super().reads_files | {"--corpus": self.corpus}

    def check_together(self, config: SamplingConfig, *, as_json: bool) -> None:
        if self.corpus and not self.memorization:
            raise ConfigError(f"--corpus {self.corpus[0]} needs --memorization, which searches it")
        if self.copied_words is not None and not self.memorization:
            raise ConfigError(f"--copied-words {self.copied_words} needs --memorization")
        super().check_together(config, as_json=as_json)

    def output(self, checkpoint: "Checkpoint", reading: ReadingConfig) -> Output | None:
        if not self.memorization:
            return super().output(checkpoint, reading)
        from minigpt.memorization.command import open_meter  # takes a tenth of a second

        return open_meter(checkpoint, list(self.corpus), self.copied_words, reading)
