"""From logits to the next token by the settings: penalties and bans, filters, the draw; it knows no model."""

import math
import secrets
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from minigpt.config import SamplingConfig, parse_logit_bias
from minigpt.errors import ConfigError, GenerationError
from minigpt.generation.logits_processors import (
    ban_repeated_ngrams,
    ban_sequences,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    keep_typical,
    penalize_frequency,
    penalize_repetition,
)
from minigpt.seeds import mix_seed
from minigpt.tokenizer.tokenizer import Tokenizer

# The likeliest tokens that are looked at first. torch's topk is several times slower beyond V / 64, and a nucleus of
# more is rare.
_FIRST_LOOK = 640

NOTHING_LEFT = "no token is left to choose: bad_words, no_repeat_ngram_size and min_new_tokens ban them all"


class Sampler:
    """Turns logits into next tokens by a SamplingConfig.

    In this order, which is transformers': logit bias, repetition, frequency and presence penalties, no repeated
    n-grams, bad words, no end of text too soon; then temperature, top-k, top-p, min-p, typical-p; then the draw. At
    temperature 0 the likeliest token that the first group leaves is taken. Ids that the tokenizer has no token for are
    never taken.

    `history` is (B, T) int64, every token so far, -1 where a row is padded on the left; its last `n_new` columns are
    the generated ones. Where `needs_history` is false only `n_new` is looked at, for the draw.

    Raises: ConfigError for words that are no token, or that need a tokenizer where there is none.
    """

    def __init__(self, config: SamplingConfig, tokenizer: Tokenizer | None = None) -> None:
        self.config = config
        self.seed = secrets.randbits(32) if config.seed is None else config.seed
        biases = [_token_bias(entry, tokenizer) for entry in config.logit_bias]
        self._bias_ids = torch.tensor([token for token, _ in biases], dtype=torch.int64)  # (N,)
        self._biases = torch.tensor([bias for _, bias in biases])  # (N,)
        self._bad_sequences = _sequences(config.bad_words, tokenizer)  # (N, L)
        self._end_of_text = None if tokenizer is None else tokenizer.end_of_text
        self._unused = torch.tensor([] if tokenizer is None else tokenizer.unused_ids, dtype=torch.int64)  # (N,)
        if config.min_new_tokens > 0 and tokenizer is None:
            raise ConfigError(f"min_new_tokens ({config.min_new_tokens}) needs a tokenizer, to know the end of text")
        self.needs_history = (
            config.repetition_penalty != 1
            or config.frequency_penalty != 0
            or config.presence_penalty != 0
            or config.no_repeat_ngram_size > 0
            or config.min_new_tokens > 0
            or len(config.bad_words) > 0
        )

    def adjust(self, logits: Tensor, history: Tensor, n_new: int) -> Tensor:
        """The logits after the penalties and bans, which are all that greedy decoding and beams heed: (B, V).

        Raises: ConfigError for a biased id beyond V.
        """
        config = self.config
        logits = logits.float()
        if len(self._unused):
            logits = logits.index_fill(1, self._unused.to(logits.device), -math.inf)
        if config.logit_bias:
            if (highest := int(self._bias_ids.max())) >= logits.shape[1]:
                raise ConfigError(f"logit_bias of #{highest} must be of an id from 0 to {logits.shape[1] - 1}")
            biases = self._biases.to(logits.device).expand(len(logits), -1)
            logits = logits.index_add(1, self._bias_ids.to(logits.device), biases)
        if config.repetition_penalty != 1:
            logits = penalize_repetition(logits, history, config.repetition_penalty)
        if config.frequency_penalty != 0 or config.presence_penalty != 0:
            new = history[:, history.shape[1] - n_new :]
            logits = penalize_frequency(logits, new, config.frequency_penalty, config.presence_penalty)
        if config.no_repeat_ngram_size > 0:
            logits = ban_repeated_ngrams(logits, history, config.no_repeat_ngram_size)
        if config.bad_words:
            logits = ban_sequences(logits, history, self._bad_sequences.to(logits.device))
        if n_new < config.min_new_tokens:
            logits = logits.index_fill(1, torch.tensor([self._end_of_text], device=logits.device), -math.inf)
        return logits

    def distribution(self, logits: Tensor, history: Tensor, n_new: int) -> Tensor:
        """The probabilities that `choose` draws from: (B, V) -> (B, V) float32, one-hot at temperature 0.

        Raises: as `choose`.
        """
        adjusted = self.adjust(logits, history, n_new)
        result = torch.zeros_like(adjusted)
        if self.config.temperature == 0:
            return result.scatter_(1, _argmax(adjusted, logits), 1.0)
        for rows, ids, probability in self._drawable(self._scaled(adjusted, logits)):
            result[rows] = result[rows].scatter(1, ids, probability)
        return result

    def choose(self, logits: Tensor, history: Tensor, n_new: int, samples: Sequence[int] | None = None) -> Tensor:
        """The next token of each row: (B, V) -> (B,) int64.

        Row b is drawn with the number `uniform(seed, samples[b], n_new)`, so that it is the same alone or in a batch;
        where no samples are given they are the rows' own numbers.

        Raises: GenerationError for logits that are nan or infinite; ConfigError where no token is left.
        """
        adjusted = self.adjust(logits, history, n_new)
        if self.config.temperature == 0:
            return _argmax(adjusted, logits).squeeze(1)
        numbers = [uniform(self.seed, sample, n_new) for sample in samples or range(len(logits))]
        tokens = [0] * len(logits)
        for rows, ids, probability in self._drawable(self._scaled(adjusted, logits)):
            index = draw(probability, [numbers[row] for row in rows])  # (R,)
            for row, token in zip(rows, ids.gather(1, index[:, None]).squeeze(1).tolist(), strict=True):
                tokens[row] = token
        return torch.tensor(tokens, device=logits.device)

    def _scaled(self, adjusted: Tensor, logits: Tensor) -> Tensor:
        """The logits by the temperature, each row's largest at 0: however small the temperature, nothing overflows."""
        largest = adjusted.amax(dim=-1, keepdim=True)  # (B, 1)
        _check(largest, logits)
        return (adjusted - largest).div_(max(self.config.temperature, 1e-30))  # float32 knows nothing far below

    def _drawable(self, logits: Tensor) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """What may be drawn of logits (B, V), in groups of rows: (rows, ids (R, K), their probabilities (R, K)).

        Sorting a vocabulary takes as long as a small model's step, so top-k, top-p and min-p see only each row's K
        likeliest tokens. That is enough where they drop the last of those, for whatever is less likely would go too;
        the other rows are tried again with more.
        """
        config, v = self.config, logits.shape[1]
        rows = list(range(len(logits)))
        if config.top_k is None and config.top_p == 1 and config.min_p == 0:
            yield rows, torch.arange(v, device=logits.device).expand_as(logits), self._probability(logits)
            return
        k = _FIRST_LOOK if config.top_k is None else config.top_k + 1
        while True:
            k = min(k, v)
            kept, ids = self._likeliest(logits, k)
            enough = (kept[:, -1] == -math.inf).tolist() if k < v else [True] * len(rows)
            if all(enough):
                yield rows, ids, self._probability(kept)
                return
            done = [row for row, is_enough in enumerate(enough) if is_enough]
            left = [row for row, is_enough in enumerate(enough) if not is_enough]
            if done:
                yield [rows[row] for row in done], ids[done], self._probability(kept[done])
            rows, logits, k = [rows[row] for row in left], logits[left], 16 * k

    def _likeliest(self, logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k largest of logits (B, V), what top-k, top-p and min-p drop of them at -inf, and their ids: (B, K)."""
        config = self.config
        kept, ids = logits.topk(k, dim=-1)  # (B, K), (B, K)
        if config.top_k is not None:
            kept = keep_top_k(kept, config.top_k)
        if config.top_p < 1:
            held: float | Tensor = 1.0  # the share of the probability that these tokens hold, of what top-k leaves
            if config.top_k is None:
                held = logits.softmax(dim=-1).gather(1, ids).sum(dim=-1, keepdim=True)  # (B, 1)
            kept = keep_top_p(kept, config.top_p / held)
        if config.min_p > 0:
            kept = keep_min_p(kept, config.min_p)
        return kept, ids

    def _probability(self, kept: Tensor) -> Tensor:
        """The probabilities of the tokens that are left, after the last filter: (B, K) -> (B, K)."""
        if self.config.typical_p < 1:
            kept = keep_typical(kept, self.config.typical_p)
        return kept.softmax(dim=-1)


def uniform(seed: int, sample: int, step: int) -> float:
    """The number in [0, 1) that a sample's token is drawn with: a pure function, so that no order of work moves it."""
    return (mix_seed(seed, sample, step) >> 10) * 2.0**-53


def draw(probability: Tensor, numbers: Sequence[float]) -> Tensor:
    """One index per row, by the inverse of its distribution function at the row's number: (B, K) -> (B,) int64.

    Probabilities are counted in whole 2**-52s: such sums are exact in any order, so that nothing of probability 0 is
    drawn, nor anything beyond the end, however near to 1 the number is.
    """
    sums = (probability * 2.0**52).long().cumsum_(dim=-1)  # (B, K)
    targets = [[int(number * total)] for number, total in zip(numbers, sums[:, -1].tolist(), strict=True)]
    return torch.searchsorted(sums, torch.tensor(targets, device=sums.device), right=True).squeeze(1)


def _argmax(adjusted: Tensor, logits: Tensor) -> Tensor:
    """The likeliest token of each row, the first of several: (B, V) -> (B, 1)."""
    if adjusted.device.type == "cpu":  # where numpy's argmax takes a tenth of the time of torch's
        tokens = torch.from_numpy(adjusted.detach().numpy().argmax(axis=-1, keepdims=True))
    else:
        tokens = adjusted.argmax(dim=-1, keepdim=True)
    _check(adjusted.gather(1, tokens), logits)
    return tokens


def _check(largest: Tensor, logits: Tensor) -> None:
    """Raises where a row's largest adjusted logit, (B, 1), is no finite number; a nan counts as the largest."""
    values = largest.flatten().tolist()
    if all(map(math.isfinite, values)):
        return
    check_finite(logits)
    if -math.inf in values:
        raise ConfigError(NOTHING_LEFT)
    raise ConfigError("logit_bias or a penalty is so large that a logit overflows; give a smaller one")


def check_finite(logits: Tensor) -> None:
    """Raises GenerationError where a row of logits, (B, V), holds nan or infinity, or -infinity alone."""
    for row, value in enumerate(logits.amax(dim=-1).tolist()):
        if not math.isfinite(value):
            raise GenerationError(
                f"the model's logits must be finite, but the largest of row {row} is {value}; its weights are damaged, "
                "or too large for their dtype"
            )


def _token_bias(entry: str, tokenizer: Tokenizer | None) -> tuple[int, float]:
    """The token's id and the number of one `logit_bias`: `#318=2.5` is an id, all else the exact text of one token.

    Raises: ConfigError where the text is several tokens, or where there is no tokenizer to tell.
    """
    token, bias = parse_logit_bias(entry)
    if token.startswith("#") and token[1:].isdecimal():
        return int(token[1:]), bias
    if tokenizer is None:
        raise ConfigError(f"logit_bias ({entry!r}) needs a tokenizer, or an id such as '#318=2.5'")
    ids = tokenizer.encode(token)
    if len(ids) > 1:
        pieces = ", ".join(f"{tokenizer.decode([piece])!r} (#{piece})" for piece in ids)
        raise ConfigError(f"logit_bias ({entry!r}) must name one token, but {token!r} is {len(ids)}: {pieces}")
    return ids[0], bias


def _sequences(words: Sequence[str], tokenizer: Tokenizer | None) -> Tensor:
    """The ids of words, each also with a space before it, as the rows of (N, L) int64, -1 where one is shorter."""
    if not words:
        return torch.empty(0, 1, dtype=torch.int64)
    if tokenizer is None:
        raise ConfigError(f"bad_words ({', '.join(map(repr, words))}) need a tokenizer, to know their tokens")
    spelt = [tokenizer.encode(start + word) for word in words for start in ("", " ")]
    longest = max(map(len, spelt))
    return torch.tensor([[-1] * (longest - len(ids)) + ids for ids in spelt])
