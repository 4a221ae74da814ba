"""`minigpt generate --explain` and `--table`: the probability of every generated token."""

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
class ExplainSettings(GenerateSettings):
    """Settings that show the probability of every generated token."""

    explain: bool = setting(False, "color each token by the probability the model gave it", common=True)
    table: bool = setting(False, "print a row for each token: probability, surprisal, most likely tokens")

    @property
    def _form(self) -> str | None:
        return "--explain" if self.explain else "--table" if self.table else None

    @property
    def forms(self) -> list[str]:
        return [*super().forms, *([self._form] if self._form else [])]

    @property
    def shows_alternatives(self) -> dict[str, bool]:
        return super().shows_alternatives | {"--table": self.table}

    def check_together(self, config: SamplingConfig, *, as_json: bool) -> None:
        super().check_together(config, as_json=as_json)
        for name, is_given in {"--json": as_json, "--beams": getattr(config, "beams", 1) > 1}.items():
            if self._form and is_given:
                raise ConfigError(f"{self._form} cannot be combined with {name}")

    def output(self, checkpoint: "Checkpoint", reading: ReadingConfig) -> Output | None:
        if self._form is None:
            return super().output(checkpoint, reading)
        from minigpt.cli.render.console import console
        from minigpt.inspection.explained_output import ColoredOutput, TableOutput

        return (TableOutput if self.table else ColoredOutput)(console(stderr=False), checkpoint.tokenizer)
