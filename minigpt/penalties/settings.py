"""The settings of penalties, biases and bans."""

import math
from dataclasses import dataclass
from functools import partial

from minigpt.config.sampling_settings import SamplingSettings
from minigpt.errors import ConfigError
from minigpt.settings import setting

_sampling = partial(setting, group="Sampling")


@dataclass(frozen=True, kw_only=True)
class PenaltySettings(SamplingSettings):
    """The settings of penalties, biases and bans."""

    repetition_penalty: float = _sampling(
        1.0, "divisor of the scores of tokens that the text already contains; 1: off", above=0
    )
    frequency_penalty: float = _sampling(0.0, "subtracted from a token's score for each time it was generated")
    presence_penalty: float = _sampling(0.0, "subtracted from a token's score if it was generated at least once")
    no_repeat_ngram_size: int = _sampling(
        0, "never repeat a sequence of this many tokens, including the prompt's; 0: off", min=0
    )
    logit_bias: tuple[str, ...] = _sampling(
        (),
        "add to a token's score: TEXT=NUMBER or #ID=NUMBER, as in ' word=2.5' or '#318=-100'; repeatable",
        escapes=True,
    )
    bad_words: tuple[str, ...] = _sampling(
        (), "never generate the usual tokens of this text; other tokens may still spell it; repeatable", escapes=True
    )
    allow_unseen_tokens: bool = _sampling(False, "also draw tokens that the training text does not contain")

    def __post_init__(self) -> None:
        super().__post_init__()
        if "" in self.bad_words:
            raise ConfigError("bad_words contains an empty text (''); give a text that must not be generated")
        for entry in self.logit_bias:
            parse_logit_bias(entry)


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
