"""The settings of `minigpt generate` beside those of sampling; edges add theirs, and other forms of its output."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from minigpt.cli.render.continuations import Output
from minigpt.config import ReadingConfig, SamplingConfig
from minigpt.errors import ConfigError
from minigpt.generation.engine_settings import EngineSettings
from minigpt.settings import setting

if TYPE_CHECKING:
    from minigpt.generation.engine import Engine
    from minigpt.generation.speculative import Drafter
    from minigpt.storage.checkpoint import Checkpoint


@dataclass(frozen=True, kw_only=True)
class GenerateSettings(EngineSettings):
    """The settings of `generate`.

    An edge adds a group to the seam `generate_settings`: a subclass with its settings. It overrides the methods below
    and adds to what `super()` says.
    """

    prompt_format: Literal["auto", "lines", "jsonl", "whole"] = setting(
        "auto",
        "lines (a prompt per line), jsonl (a JSON text or list of token ids per line), whole (one prompt), or auto: "
        "jsonl for .jsonl, whole for -, else lines",
    )
    strict: bool = setting(False, "refuse prompts longer than the context length")
    alternatives: int | None = setting(
        None, "with --json or --table: how many likely tokens to show [default: 5]", min=0
    )

    @property
    def forms(self) -> list[str]:
        """The options given that choose how continuations are printed, of which there can be only one."""
        return []

    @property
    def shows_alternatives(self) -> dict[str, bool]:
        """The options that show the most likely tokens, and whether each is given."""
        return {}

    @property
    def reads_files(self) -> dict[str, Sequence[str]]:
        """The options that name texts to read, and what is given to each."""
        return {}

    def check_together(self, config: SamplingConfig, *, as_json: bool) -> None:  # noqa: ARG002
        """Raises ConfigError for settings that do not go together, before the model is loaded."""
        showing = {"--json": as_json} | self.shows_alternatives
        if self.alternatives is not None and not any(showing.values()):
            show = "show" if len(showing) > 1 else "shows"
            raise ConfigError(f"--alternatives {self.alternatives} needs {' or '.join(showing)}, which {show} them")
        if len(self.forms) > 1:
            raise ConfigError(f"{self.forms[0]} cannot be combined with {self.forms[1]}")

    def fitted(self, config: SamplingConfig, n_prompt: int, context: int, *, may_shorten: bool) -> SamplingConfig:  # noqa: ARG002
        """The settings for a longest prompt of so many tokens; with `may_shorten`, perhaps with fewer new ones.

        Raises: ConfigError if what is generated does not fit into the context.
        """
        return config

    def chosen(self, config: SamplingConfig, n_texts: int) -> str:  # noqa: ARG002
        """What the `n_texts` printed were chosen from, if more were generated."""
        return ""

    def output(self, checkpoint: "Checkpoint", reading: ReadingConfig) -> Output | None:  # noqa: ARG002
        """The output of the option in `forms`; None without one."""
        return None

    def drafter(self, checkpoint: "Checkpoint", engine: "Engine", checkpoints: Path) -> "Drafter | None":  # noqa: ARG002
        """What drafts tokens for speculative decoding."""
        return None

    def notes(self, n_texts: int) -> list[str]:  # noqa: ARG002
        """Lines about the settings, if so many texts are generated together."""
        return []

    def hints(self, checkpoint: "Checkpoint", checkpoints: Path) -> list[str]:  # noqa: ARG002
        """Lines about the model, printed before its text."""
        return []
