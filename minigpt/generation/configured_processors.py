"""The logits processors that the settings of a SamplingConfig ask for."""

from collections.abc import Iterator

from torch import Tensor

from minigpt.config import SamplingConfig, parse_logit_bias
from minigpt.errors import ConfigError
from minigpt.generation.logits_processors import (
    BadWords,
    FrequencyPenalty,
    LogitBias,
    LogitsProcessor,
    MinNewTokens,
    MinP,
    NoRepeatNGram,
    RepetitionPenalty,
    TopK,
    TopP,
    Truncation,
)
from minigpt.tokenizer.tokenizer import Tokenizer

_MAX_DIGITS = 18  # of a token's id in an option; torch's integers hold them


class CheckedProcessor:
    """A caller's processor: it gets its own copy of the logits, and its result is checked."""

    def __init__(self, processor: LogitsProcessor) -> None:
        self.processor = processor
        self.needs_history = getattr(processor, "needs_history", True)

    def __call__(self, logits: Tensor, history: Tensor, n_new: int) -> Tensor:
        result = self.processor(logits.clone(), history, n_new)
        name = getattr(self.processor, "__name__", type(self.processor).__name__)
        if not isinstance(result, Tensor) or result.shape != logits.shape:
            given = f"a tensor of shape {tuple(result.shape)}" if isinstance(result, Tensor) else repr(result)
            raise ConfigError(f"logits processor {name} must return logits of shape {tuple(logits.shape)}, not {given}")
        if result.isnan().any() and not logits.isnan().any():  # NaN from the model is reported as such later
            raise ConfigError(f"logits processor {name} must not return NaN; use -inf to forbid a token")
        return result.float()


def configured_processors(config: SamplingConfig, tokenizer: Tokenizer | None) -> Iterator[LogitsProcessor]:
    """The penalties and bans of a config, in transformers' order."""
    if config.logit_bias:
        yield LogitBias([_token_bias(entry, tokenizer) for entry in config.logit_bias])
    if config.repetition_penalty != 1:
        yield RepetitionPenalty(config.repetition_penalty)
    if config.frequency_penalty != 0 or config.presence_penalty != 0:
        yield FrequencyPenalty(config.frequency_penalty, config.presence_penalty)
    if config.no_repeat_ngram_size > 0:
        yield NoRepeatNGram(config.no_repeat_ngram_size)
    if config.bad_words:
        if tokenizer is None:
            raise ConfigError(f"bad_words ({', '.join(map(repr, config.bad_words))}) need a tokenizer")
        yield BadWords([ids for text in config.bad_words for ids in _spellings(text, tokenizer)])
    if config.min_new_tokens > 0:
        if tokenizer is None:
            raise ConfigError(f"min_new_tokens ({config.min_new_tokens}) needs a tokenizer")
        yield MinNewTokens(config.min_new_tokens, tokenizer.end_ids)


def _spellings(text: str, tokenizer: Tokenizer) -> list[list[int]]:
    """The tokens of a bad word, without and with a space before it; for the name of a special token, also that token.

    Raises: ConfigError for a text without tokens, such as a space that the tokenizer drops.
    """
    spellings = [tokenizer.encode(space + text) for space in ("", " ")]
    if not all(spellings):
        raise ConfigError(
            f"bad_words ({text!r}) must contain a token, but this model's tokenizer finds none in it; give another text"
        )
    return [*spellings, [tokenizer.special[text]]] if text in tokenizer.special else spellings


def configured_truncations(config: SamplingConfig) -> list[Truncation]:
    truncations: list[Truncation] = []
    if config.top_k is not None:
        truncations.append(TopK(config.top_k))
    if config.top_p < 1:
        truncations.append(TopP(config.top_p))
    if config.min_p > 0:
        truncations.append(MinP(config.min_p))
    return truncations


def _token_bias(entry: str, tokenizer: Tokenizer | None) -> tuple[int, float]:
    """The token id and the number of one `logit_bias`: `#318=2.5` is an id, others are the exact text of one token, or
    the name of a special token.

    Raises: ConfigError for a text of several tokens or of none, or without a tokenizer, and for an id that the
    tokenizer does not have.
    """
    token, bias = parse_logit_bias(entry)
    if token.startswith("#") and token[1:].isdecimal():
        if len(token) > _MAX_DIGITS:
            raise ConfigError(f"logit_bias ({entry!r}) must name the id of a token, which has fewer digits")
        if tokenizer is not None and int(token[1:]) >= tokenizer.vocab_size:
            raise ConfigError(f"logit_bias of {token} must be for an id from 0 to {tokenizer.vocab_size - 1}")
        return int(token[1:]), bias
    if tokenizer is None:
        raise ConfigError(f"logit_bias ({entry!r}) needs a tokenizer, or an id such as '#318=2.5'")
    ids = [tokenizer.special[token]] if token in tokenizer.special else tokenizer.encode(token)
    if not ids:
        raise ConfigError(
            f"logit_bias ({entry!r}) must name one token, but this model's tokenizer finds none in {token!r}"
        )
    if len(ids) > 1:
        pieces = ", ".join(f"{tokenizer.decode([piece])!r} (#{piece})" for piece in ids)
        raise ConfigError(f"logit_bias ({entry!r}) must name one token, but {token!r} is {len(ids)}: {pieces}")
    return ids[0], bias
