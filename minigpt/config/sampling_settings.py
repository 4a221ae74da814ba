"""How text is generated, as far as no edge adds to it."""

from dataclasses import dataclass
from functools import partial
from typing import Literal, Self

from minigpt.errors import ConfigError
from minigpt.settings import Settings, setting

_sampling = partial(setting, group="Sampling")


@dataclass(frozen=True, kw_only=True)
class SamplingSettings(Settings):
    """The settings that sampling has without any edge."""

    max_new_tokens: int = _sampling(200, "maximum number of tokens to generate", min=1, common=True)
    min_new_tokens: int = _sampling(0, "minimum number of tokens before the end of text", min=0)
    temperature: float = _sampling(0.8, "sampling temperature: 0 is greedy, higher is more random", min=0, common=True)
    top_k: int | None = _sampling(None, "sample only from the k most likely tokens", min=1, common=True)
    top_p: float = _sampling(
        0.95, "sample only from the most likely tokens with this total probability", above=0, max=1, common=True
    )
    min_p: float = _sampling(
        0.0, "sample only tokens with at least this fraction of the highest probability", min=0, max=1
    )
    typical_p: float = _sampling(
        1.0,
        "sample only from the tokens with this total probability whose surprisal is nearest the entropy",
        above=0,
        max=1,
    )
    seed: int | None = _sampling(
        None, "random seed; the same seed gives the same text on one machine", min=0, max=2**63 - 1, common=True
    )
    samples: int = _sampling(1, "number of texts to generate", min=1, common=True)
    stop: tuple[str, ...] = setting(
        (), "text to stop before, such as '###', or '\\n' for a line break; repeatable", escapes=True, common=True
    )
    until: Literal["sentence", "paragraph", "line"] | None = setting(
        None, "stop after the first complete sentence, paragraph or line", common=True
    )
    token_healing: bool = setting(
        True, "generate the white space at the end of a prompt again, together with what follows"
    )
    special_tokens: bool = setting(
        False, "read the names of special tokens, such as <speaker1>, as these tokens, not as text"
    )
    allow_invalid_utf8: bool = setting(False, "allow tokens that break a character, which then becomes U+FFFD")
    context: str = setting(
        "slide",
        "what the model reads of a text longer than its context: slide (the end) or keep-first:N (the "
        "first N tokens and the end)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_new_tokens > self.max_new_tokens:
            raise ConfigError(
                f"min_new_tokens ({self.min_new_tokens}) must be at most max_new_tokens ({self.max_new_tokens})"
            )
        if "" in self.stop:
            raise ConfigError("stop ('') must be a text to stop before")
        _ = self.keep_first

    def likeliest_of(self, texts: int) -> Self:  # noqa: ARG002
        """These settings for the most likely of so many texts, if something installed can choose it."""
        return self

    @property
    def texts_per_prompt(self) -> int:
        """The number of texts that are drawn for each prompt; of these, `samples` are kept."""
        return self.samples

    @property
    def rows_per_prompt(self) -> int:
        """The number of texts of each prompt that are in memory together."""
        return self.texts_per_prompt

    @property
    def keep_first(self) -> int:
        """The number of tokens at the start of the text that the model always reads.

        Raises: ConfigError if `context` is neither slide nor keep-first:N.
        """
        name, _, count = self.context.partition(":")
        if self.context == "slide":
            return 0
        if name == "keep-first" and count.isdecimal() and len(count) < 19:
            return int(count)
        raise ConfigError(f"context ({self.context!r}) must be slide or keep-first:N, as in keep-first:32")
