"""How text is generated."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal

from minigpt.errors import ConfigError
from minigpt.settings import Settings, setting

_sampling = partial(setting, group="Sampling")


@dataclass(frozen=True, kw_only=True)
class SamplingConfig(Settings):
    """How text is generated.

    A token's score is its logit. Penalties, biases and bans change the scores first; then temperature, top_k, top_p,
    min_p and typical_p are applied in this order.
    """

    max_new_tokens: int = _sampling(200, "maximum number of tokens to generate", min=1)
    min_new_tokens: int = _sampling(0, "minimum number of tokens before the end of text", min=0)
    temperature: float = _sampling(0.8, "sampling temperature: 0 is greedy, higher is more random", min=0)
    top_k: int | None = _sampling(None, "sample only from the k most likely tokens", min=1)
    top_p: float = _sampling(
        0.95, "sample only from the most likely tokens with this total probability", above=0, max=1
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
    repetition_penalty: float = _sampling(
        1.0, "divisor of the scores of tokens that the text already contains; 1: off", above=0
    )
    frequency_penalty: float = _sampling(0.0, "subtracted from a token's score for each time it was generated")
    presence_penalty: float = _sampling(0.0, "subtracted from a token's score if it was generated at least once")
    no_repeat_ngram_size: int = _sampling(
        0, "never repeat a sequence of this many tokens, including the prompt's; 0: off", min=0
    )
    logit_bias: tuple[str, ...] = _sampling(
        (), "add to a token's score: TEXT=NUMBER or #ID=NUMBER, as in ' word=2.5' or '#318=-100'; repeatable"
    )
    bad_words: tuple[str, ...] = _sampling(
        (), "never generate the usual tokens of this text; other tokens may still spell it; repeatable"
    )
    beams: int = _sampling(
        1,
        "more than 1: beam search for the most likely text; temperature, top-k, top-p, min-p, typical-p "
        "and seed have no effect",
        min=1,
    )
    length_penalty: float = _sampling(
        1.0, "rank beams by log-probability / length ** this; above 0 favors longer texts", min=-10, max=10
    )
    seed: int | None = _sampling(
        None, "random seed; the same seed gives the same text on one machine", min=0, max=2**63 - 1
    )
    samples: int = _sampling(1, "number of texts to generate", min=1)
    best_of: int = _sampling(
        1, "generate this many texts in parallel; keep those with the highest log-probability per byte", min=1
    )
    stop: tuple[str, ...] = setting((), "text to stop before, such as '###', or '\\n' for a line break; repeatable")
    until: Literal["sentence", "paragraph", "line"] | None = setting(
        None, "stop after the first complete sentence, paragraph or line"
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
        if self.beams > 1 and self.samples > self.beams:
            raise ConfigError(f"samples ({self.samples}) must be at most beams ({self.beams})")
        if self.best_of > 1:
            self._check_best_of()
        if "" in self.stop:
            raise ConfigError("stop contains an empty text (''); give the text to stop before")
        if "" in self.bad_words:
            raise ConfigError("bad_words contains an empty text (''); give a text that must not be generated")
        for entry in self.logit_bias:
            parse_logit_bias(entry)
        _ = self.keep_first

    def _check_best_of(self) -> None:
        if self.samples > self.best_of:
            raise ConfigError(f"samples ({self.samples}) must be at most best_of ({self.best_of})")
        if self.beams > 1:
            raise ConfigError(
                f"beams ({self.beams}) cannot be combined with best_of ({self.best_of}): both look for a likely text"
            )
        if self.temperature == 0:
            raise ConfigError(f"best_of ({self.best_of}) needs a temperature above 0: at 0 all the texts are the same")

    @property
    def texts_per_prompt(self) -> int:
        """The number of texts that are drawn for each prompt; of these, `samples` are kept."""
        return max(self.samples, self.best_of)

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


def parse_logit_bias(entry: str) -> tuple[str, float]:
    """Splits a `--logit-bias` at its last "=" into the token, a text or `#ID`, and the number.

    Raises: ConfigError if it has another form, or if the text consists of digits and could be meant as an id.
    """
    token, _, number = entry.rpartition("=")
    try:
        bias = float(number)
    except ValueError:
        bias = math.nan
    if not token or not math.isfinite(bias):
        raise ConfigError(f"logit_bias ({entry!r}) must be TEXT=NUMBER or #ID=NUMBER, as in ' word=2.5' or '#318=-100'")
    if token.isdecimal():
        raise ConfigError(
            f"logit_bias ({entry!r}) could mean an id or a text; give '#{entry}' for the token with that id, or "
            "#ID=NUMBER with the id of the text's token"
        )
    return token, bias
