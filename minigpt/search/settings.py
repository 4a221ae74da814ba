"""The settings of the search for a likely text."""

from dataclasses import dataclass
from functools import partial
from typing import Self

from minigpt.config.sampling_settings import SamplingSettings
from minigpt.errors import ConfigError
from minigpt.settings import setting

_sampling = partial(setting, group="Sampling")


@dataclass(frozen=True, kw_only=True)
class SearchSettings(SamplingSettings):
    """The settings of the search for a likely text."""

    beams: int = _sampling(
        1,
        "more than 1: beam search for the most likely text; temperature, top-k, top-p, min-p, typical-p "
        "and seed have no effect",
        min=1,
    )
    length_penalty: float = _sampling(
        1.0, "rank beams by log-probability / length ** this; above 0 favors longer texts", min=-10, max=10
    )
    best_of: int = _sampling(
        1, "generate this many texts in parallel; keep those with the highest log-probability per byte", min=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beams > 1 and self.samples > self.beams:
            raise ConfigError(f"samples ({self.samples}) must be at most beams ({self.beams})")
        if self.best_of > 1:
            self._check_best_of()

    def likeliest_of(self, texts: int) -> Self:
        return self.replace(best_of=texts)

    @property
    def texts_per_prompt(self) -> int:
        return max(super().texts_per_prompt, self.best_of)

    @property
    def rows_per_prompt(self) -> int:
        return max(super().rows_per_prompt, self.beams)

    def _check_best_of(self) -> None:
        if self.samples > self.best_of:
            raise ConfigError(f"samples ({self.samples}) must be at most best_of ({self.best_of})")
        if self.beams > 1:
            raise ConfigError(
                f"beams ({self.beams}) cannot be combined with best_of ({self.best_of}): both look for a likely text"
            )
        if self.temperature == 0:
            raise ConfigError(f"best_of ({self.best_of}) needs a temperature above 0: at 0 all the texts are the same")
