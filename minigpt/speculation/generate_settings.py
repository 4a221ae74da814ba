"""`minigpt generate --draft` and `--speculate`: where the drafts of speculative decoding come from."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from minigpt.cli.generate_settings import GenerateSettings
from minigpt.cli.models import open_model
from minigpt.cli.options import complete_runs
from minigpt.config import SamplingConfig
from minigpt.errors import ConfigError
from minigpt.settings import setting

if TYPE_CHECKING:
    from minigpt.generation.engine import Engine
    from minigpt.generation.speculative import Drafter
    from minigpt.storage.checkpoint import Checkpoint


@dataclass(frozen=True, kw_only=True)
class SpeculationSettings(GenerateSettings):
    """The settings of speculative decoding."""

    draft: str | None = setting(
        None, "a smaller model with the same tokenizer, for speculative decoding", choices=complete_runs
    )
    speculate: Literal["auto", "lookup", "off"] = setting(
        "auto", "speculative decoding: guess repeated text and verify it at once; the text is the same"
    )

    def check_together(self, config: SamplingConfig, *, as_json: bool) -> None:
        super().check_together(config, as_json=as_json)
        beams = getattr(config, "beams", 1)  # of the edge `search`
        if beams > 1 and self.draft is not None:
            raise ConfigError(f"beams ({beams}) cannot be combined with --draft: beam search uses no draft model")

    def drafter(self, checkpoint: "Checkpoint", engine: "Engine", checkpoints: Path) -> "Drafter | None":
        """The model named `draft`, or as `speculate` says."""
        from minigpt.generation.resolve_engine import resolve_engine
        from minigpt.speculation.drafters import DraftModel, PromptLookup, default_drafter

        if self.draft is not None:
            dtype = str(checkpoint.model.token_embedding.weight.dtype).removeprefix("torch.")
            small = open_model(self.draft, checkpoints, str(engine.device), dtype=dtype)
            if small.tokenizer.fingerprint != checkpoint.tokenizer.fingerprint:
                raise ConfigError(f"draft ({small.directory}) must have the same tokenizer as {checkpoint.directory}")
            return DraftModel(resolve_engine(small.model), small.tokenizer.vocab_size)
        if self.speculate == "auto":
            return default_drafter(engine)
        return PromptLookup() if self.speculate == "lookup" else None

    def notes(self, n_texts: int) -> list[str]:
        alone = self.draft is None or n_texts == 1
        hint = [] if alone else ["--draft has an effect only while a single continuation is being generated"]
        return [*super().notes(n_texts), *hint]
