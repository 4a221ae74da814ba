"""Penalties, biases and bans: logits processors that make texts with repetitions or certain words less likely."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from minigpt.config import SamplingConfig
from minigpt.device import to_device
from minigpt.errors import ConfigError
from minigpt.generation.logits_processors import LogitsProcessor
from minigpt.penalties.settings import PenaltySettings, parse_logit_bias
from minigpt.penalties.unseen_tokens import ban_of_unseen
from minigpt.tokenizer.tokenizer import Tokenizer

_CHECKED = 8  # tokens of an n-gram that are compared before it is checked whether any run is left
_MAX_DIGITS = 18  # of a token's id in an option; torch's integers hold them


def penalties(config: SamplingConfig, tokenizer: Tokenizer | None) -> Iterator[LogitsProcessor]:
    """The processors that the settings ask for, in transformers' order (the seam `logits_processors`)."""
    settings = PenaltySettings.of(config)
    biases = [_token_bias(entry, tokenizer) for entry in settings.logit_bias]
    if biases:
        yield LogitBias(biases)
    if settings.repetition_penalty != 1:
        yield RepetitionPenalty(settings.repetition_penalty)
    if settings.frequency_penalty != 0 or settings.presence_penalty != 0:
        yield FrequencyPenalty(settings.frequency_penalty, settings.presence_penalty)
    if settings.no_repeat_ngram_size > 0:
        yield NoRepeatNGram(settings.no_repeat_ngram_size)
    if settings.bad_words:
        if tokenizer is None:
            raise ConfigError(f"bad_words ({', '.join(map(repr, settings.bad_words))}) need a tokenizer")
        yield BadWords([ids for text in settings.bad_words for ids in _spellings(text, tokenizer)])
    if tokenizer is not None and not settings.allow_unseen_tokens:
        wanted = {id for id, number in biases if number > 0}
        if (ban := ban_of_unseen(tokenizer, wanted)) is not None:
            yield ban


class LogitBias:
    """Adds numbers to the logits of tokens, given as (id, number) pairs."""

    needs_history = False

    def __init__(self, biases: Sequence[tuple[int, float]]) -> None:
        self._highest = max(id for id, _ in biases)
        self._ids = torch.tensor([id for id, _ in biases])  # (N,)
        self._biases = torch.tensor([bias for _, bias in biases])  # (N,)

    def __call__(self, logits: Tensor, _history: Tensor | None = None, _n_new: int = 0) -> Tensor:
        """Raises: ConfigError for an id that is not below V."""
        if self._highest >= logits.shape[1]:
            raise ConfigError(f"logit_bias of #{self._highest} must be for an id from 0 to {logits.shape[1] - 1}")
        biases = to_device(self._biases, logits.device).expand(len(logits), -1)
        return logits.index_add(1, to_device(self._ids, logits.device), biases)


class RepetitionPenalty:
    """Divides the logit of every token in the history by `penalty`, or multiplies it if it is negative.

    Source: Keskar et al. 2019, section 4.1; the multiplication is transformers'.
    """

    def __init__(self, penalty: float) -> None:
        self.penalty = penalty

    def __call__(self, logits: Tensor, history: Tensor, _n_new: int) -> Tensor:
        if history.shape[1] == 0:
            return logits
        seen = torch.where(history < 0, history[:, -1:], history)  # (B, T); the last column is never padding
        score = logits.gather(1, seen)  # (B, T)
        return logits.scatter(1, seen, torch.where(score < 0, score * self.penalty, score / self.penalty))


class FrequencyPenalty:
    """Subtracts `frequency` from a token's logit for each time it was generated, and `presence` once if it was.

    Source: OpenAI's API reference, "frequency and presence penalties".
    """

    def __init__(self, frequency: float, presence: float) -> None:
        self.frequency, self.presence = frequency, presence

    def __call__(self, logits: Tensor, history: Tensor, n_new: int) -> Tensor:
        new = history[:, history.shape[1] - n_new :]  # (B, N)
        logits = logits.scatter_add(1, new, torch.full_like(new, -1, dtype=logits.dtype) * self.frequency)
        return logits.scatter(1, new, logits.gather(1, new) - self.presence)


class NoRepeatNGram:
    """Forbids the tokens that would complete a run of `size` tokens that is already in the history.

    The memory for this does not grow with `size`.
    Source: Paulus et al. 2017, section 2.5; Klein et al. 2017 (OpenNMT) for any size.
    """

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, logits: Tensor, history: Tensor, _n_new: int) -> Tensor:
        if history.shape[1] < self.size:
            return logits
        n_runs = history.shape[1] - self.size + 1
        current = history[:, n_runs:]  # (B, size - 1)
        repeats = history[:, :n_runs] >= 0  # (B, T - size + 1); padding can only be at the beginning of a run
        for at in range(self.size - 1):
            if at % _CHECKED == _CHECKED - 1 and not repeats.any():  # waits for a GPU
                break
            repeats &= history[:, at : at + n_runs] == current[:, at : at + 1]
        return _ban(logits, repeats, history[:, self.size - 1 :])


class BadWords:
    """Forbids the last token of every sequence whose other tokens are the end of the history.

    The memory for this grows with the sum of the sequences' lengths: a long sequence beside short ones costs no more.
    """

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        beginnings = [ids[:-1] for ids in sequences]
        self._reach = max(map(len, beginnings))  # L: tokens at the end of the history that decide
        self._last = torch.tensor([ids[-1] for ids in sequences])  # (N,)
        # The tokens of all beginnings, their places in the last L tokens of the history, and their sequences' numbers.
        self._tokens = torch.tensor([id for ids in beginnings for id in ids], dtype=torch.int64)  # (P,)
        places = [self._reach - len(ids) + at for ids in beginnings for at in range(len(ids))]
        self._places = torch.tensor(places, dtype=torch.int64)  # (P,)
        owners = [number for number, ids in enumerate(beginnings) for _ in ids]
        self._owners = torch.tensor(owners, dtype=torch.int64)  # (P,)

    def __call__(self, logits: Tensor, history: Tensor, _n_new: int) -> Tensor:
        tokens, places, owners, last = (
            to_device(each, logits.device) for each in (self._tokens, self._places, self._owners, self._last)
        )
        context = torch.nn.functional.pad(history, (self._reach, 0), value=-1)[:, history.shape[1] :]  # (B, L)
        differs = (context[:, places] != tokens).long()  # (B, P)
        n_different = differs.new_zeros(len(logits), len(last)).index_add(1, owners, differs)  # (B, N)
        return _ban(logits, n_different == 0, last.expand_as(n_different))


def _ban(logits: Tensor, banned: Tensor, tokens: Tensor) -> Tensor:
    """The logits with -inf for those of `tokens` that are `banned`: both (B, N)."""
    v = logits.shape[1]
    limits = torch.where(banned & (tokens < v), -math.inf, math.inf).to(logits.dtype)  # (B, N)
    return logits.scatter_reduce(1, tokens.clamp(0, v - 1), limits, "amin")  # padding, -1, is never banned


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
