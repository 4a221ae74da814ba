"""The sampler: turns logits into the next token, by a list of logits processors and a draw."""

import math
import secrets
from collections.abc import Sequence

import torch
from torch import Tensor

from minigpt.config import SamplingConfig
from minigpt.device import to_device
from minigpt.edges import provided
from minigpt.errors import ConfigError, GenerationError
from minigpt.generation.constraint import TextConstraint, TextState
from minigpt.generation.logits_processors import (
    BanTokens,
    CheckedProcessor,
    LogitsProcessor,
    configured_processors,
    min_p,
    top_k,
    top_p,
    typical_p,
)
from minigpt.seeds import mix_seed
from minigpt.tokenizer.tokenizer import Tokenizer

# How many of the most likely tokens a truncation looks at first. torch's topk is several times slower beyond V / 64,
# and top-p rarely keeps more.
_FIRST_K = 640
UNDECIDED = -1  # instead of a token: see `Sampler.pick_at_once`
_COLDEST, _HOTTEST = 1e-30, 1e30  # temperatures; much smaller and larger numbers are 0 and infinite in float32

NO_TOKEN_LEFT = (
    "no token is left to choose: bad_words, no_repeat_ngram_size, min_new_tokens, the model's suppress_tokens or a "
    "logits processor ban them all"
)


class Sampler:
    """Chooses next tokens from logits, by the settings of a SamplingConfig and the caller's own logits processors.

    The steps, in transformers' order:
    1. `processors`: logit bias, repetition penalty, frequency and presence penalty, no repeated n-grams, bad words,
       unseen tokens, minimum of new tokens, the caller's processors, and a ban of ids that have no token. At last
       `constraint`, if there is a tokenizer and the states of the rows are given: the text stays UTF-8.
       Temperature 0 and beam search then take the most likely tokens; the next steps are for drawing.
    2. Temperature, top-k, top-p, min-p, typical-p.
    3. The draw, a pure function of the seed, the sample and the step.

    Methods take logits (B, V) and a `history` (B, T) int64: all tokens so far, with -1 as the padding of shorter rows
    on the left. Its last `n_new` columns are the generated tokens. If `needs_history` is false, it may be (B, 0).
    `states` are those of the rows' texts, from `constraint`.

    Raises: ConfigError for a logit bias that is not one token, a bad word that has no token, and settings that need a
    tokenizer without one.
    """

    def __init__(
        self,
        config: SamplingConfig,
        tokenizer: Tokenizer | None = None,
        *,
        processors: Sequence[LogitsProcessor] = (),
    ) -> None:
        self.config = config
        self.seed = secrets.randbits(32) if config.seed is None else config.seed
        self.processors = [*configured_processors(config, tokenizer), *map(CheckedProcessor, processors)]
        if tokenizer is not None and tokenizer.unused_ids:
            self.processors.append(BanTokens(tokenizer.unused_ids))
        self.constraint = (
            None if tokenizer is None else TextConstraint(tokenizer, allow_invalid_utf8=config.allow_invalid_utf8)
        )
        self.needs_history = any(getattr(processor, "needs_history", True) for processor in self.processors)
        self.temperature = min(max(config.temperature, _COLDEST), _HOTTEST)

    def process(self, logits: Tensor, history: Tensor, n_new: int, states: Sequence[TextState] | None = None) -> Tensor:
        """The logits after all `processors` and the constraint: (B, V) -> (B, V) float32.

        Raises: ConfigError for a biased id that is not below V, and for a processor that returns another shape.
        """
        processed = logits.float()
        for processor in self.processors:
            processed = processor(processed, history, n_new)
        if states is None or self.constraint is None:
            return processed
        return self.constraint.apply(processed, logits, states)

    def choose(
        self,
        logits: Tensor,
        history: Tensor,
        n_new: int,
        samples: Sequence[int] | None = None,
        states: Sequence[TextState] | None = None,
    ) -> Tensor:
        """The next token of each row: (B, V) -> (B,) int64.

        Row b is drawn with the number `uniform(seed, samples[b], n_new)`, so that it is the same alone or in a batch.
        By default the samples are the row numbers.

        Raises: GenerationError for logits that are NaN or infinite; ConfigError if no token is left to choose.
        """
        numbers = self.numbers(samples or range(len(logits)), n_new)
        return self.pick(self.process(logits, history, n_new, states), logits, numbers)

    def numbers(self, samples: Sequence[int], n_new: int) -> list[float]:
        """The numbers in [0, 1) that these samples are drawn with after `n_new` tokens."""
        return [uniform(self.seed, sample, n_new) for sample in samples]

    def pick(self, processed: Tensor, logits: Tensor, numbers: Sequence[float]) -> Tensor:
        """The tokens for logits that `process` has changed: processed and logits (B, V) -> (B,) int64.

        The numbers in [0, 1), one for each row, decide which token is drawn. Rows of different samplers can be picked
        together if their `rule` is the same.

        Raises: as `choose`.
        """
        tokens, k = self.pick_at_once(processed, numbers), self._first_k
        undecided = [row for row, token in enumerate(tokens.tolist()) if token == UNDECIDED]
        if undecided:
            _check_largest(processed.amax(dim=-1), logits)
        while undecided:
            k *= 16
            rows = torch.tensor(undecided, device=processed.device)
            again = self._draw(processed[rows], [numbers[row] for row in undecided], k)
            tokens = tokens.index_copy(0, rows, again)
            undecided = [row for row, token in zip(undecided, again.tolist(), strict=True) if token == UNDECIDED]
        return tokens

    def pick_at_once(self, processed: Tensor, numbers: Sequence[float]) -> Tensor:
        """The same as `pick`, but the CPU does not wait for a GPU: processed (B, V) -> (B,) int64.

        A row is UNDECIDED if its largest logit is NaN or infinite, or if its truncations keep more than the first few
        hundred tokens. The caller, who reads the tokens anyway, calls `pick` if there is such a row.

        An edge may draw faster at the seam `draw_tokens`: a function of the logits (B, V), the numbers, temperature,
        top_k, top_p and min_p, which returns the tokens (B,) int64, or None if it cannot draw them.
        """
        if self.config.temperature == 0:
            largest, tokens = _largest(processed)
            if largest.device.type == "cpu" and all(map(math.isfinite, largest.flatten().tolist())):
                return tokens.squeeze(1)  # a tenth of a small model's token faster
            return tokens.masked_fill_(_is_not_finite(largest), UNDECIDED).squeeze(1)
        config = self.config
        for draw_tokens in provided("draw_tokens") if config.typical_p == 1 else ():
            drawn = draw_tokens(processed, numbers, self.temperature, config.top_k, config.top_p, config.min_p)
            if drawn is not None:
                return drawn
        return self._draw(processed, numbers, self._first_k)

    def _draw(self, processed: Tensor, numbers: Sequence[float], k: int) -> Tensor:
        """Draws with PyTorch, on any device and with `typical_p`: (B, V) -> (B,) int64.

        A row is UNDECIDED if its largest logit is NaN or infinite, or if its truncations keep k tokens or more.
        """
        largest = processed.amax(dim=-1, keepdim=True)  # (B, 1)
        probability, ids, complete = self._candidates(self._scale(processed, largest), k)
        tokens = ids.gather(1, draw(probability, numbers)[:, None])  # (B, 1)
        undecided = _is_not_finite(largest)
        if complete is not None:
            undecided |= ~complete
        return tokens.masked_fill_(undecided, UNDECIDED).squeeze(1)

    @property
    def rule(self) -> tuple[object, ...]:
        """The settings that `pick` follows."""
        config = self.config
        return config.temperature, config.top_k, config.top_p, config.min_p, config.typical_p

    @property
    def _first_k(self) -> int:
        return _FIRST_K if self.config.top_k is None else self.config.top_k + 1

    def _scale(self, processed: Tensor, largest: Tensor) -> Tensor:
        """The processed logits divided by the temperature, shifted so that each row's largest is 0: no temperature,
        however small, overflows.
        """
        return (processed - largest).div_(self.temperature)  # in place: a tenth of a sampling step

    def _candidates(self, logits: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """The probabilities of the tokens that may be drawn from scaled logits (B, V), and their ids: (B, K) twice.

        Sorting a vocabulary takes as long as a small model's forward pass. Truncations therefore see only each row's k
        most likely tokens. That is enough for the rows whose least likely one is dropped, which the third value names:
        (B, 1) bool, or None for all rows.
        """
        v, config = logits.shape[1], self.config
        if config.top_k is None and config.top_p == 1 and config.min_p == 0:
            return self._probability(logits), torch.arange(v, device=logits.device).expand_as(logits), None
        kept, ids, complete = self._truncate(logits, min(k, v))
        return self._probability(kept), ids, complete if k < v else None

    def _truncate(self, logits: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """The k largest of logits (B, V), with those that the truncations drop at -inf, and their ids: (B, K) each.

        Of equal logits, the one with the lower id is first.
        The third value says which rows are complete, (B, 1) bool: no token is missing that the truncations keep.
        """
        ids = logits.topk(k, dim=-1).indices.sort(dim=-1).values  # (B, K); topk has no order of equal logits
        kept, order = logits.gather(1, ids).sort(dim=-1, descending=True, stable=True)  # (B, K), (B, K)
        ids = ids.gather(1, order)
        config, complete = self.config, torch.ones_like(kept[:, -1:], dtype=torch.bool)
        mass: float | Tensor = 1.0  # after top-k, the tokens that are left hold all of the probability
        if config.top_k is not None:
            kept = top_k(kept, config.top_k)
            complete = kept[:, -1:] == -math.inf  # top-p needs all tokens that tie with the last one
        elif config.top_p < 1:
            mass = logits.softmax(dim=-1).gather(1, ids).sum(dim=-1, keepdim=True)  # (B, 1)
        if config.top_p < 1:
            kept = top_p(kept, config.top_p, mass)
        if config.min_p > 0:
            kept = min_p(kept, config.min_p)
        return kept, ids, complete & (kept[:, -1:] == -math.inf)

    def _probability(self, kept: Tensor) -> Tensor:
        """The probabilities of the tokens that are left: (B, K) -> (B, K)."""
        if self.config.typical_p < 1:
            kept = typical_p(kept, self.config.typical_p)
        return kept.softmax(dim=-1)


def uniform(seed: int, sample: int, step: int) -> float:
    """The number in [0, 1) with which a sample's token is drawn: a pure function, the same in any order of work."""
    return (mix_seed(seed, sample, step) >> 10) * 2.0**-53


def draw(probability: Tensor, numbers: Sequence[float]) -> Tensor:
    """Inverse transform sampling: the index at which each row's cumulative distribution passes its number.

    Probabilities are counted in units of 2**-52. Their sums are exact in any order, so that no index of probability 0
    and none beyond the end is drawn, however near to 1 the number is.
    Shapes: (B, K) -> (B,) int64.
    """
    sums = (probability * 2.0**52).long().cumsum_(dim=-1)  # (B, K)
    exact = torch.device("cpu") if sums.device.type == "mps" else sums.device  # MPS has no float64
    selected = to_device(torch.tensor(numbers, dtype=torch.float64), exact)[:, None]  # (B, 1)
    targets = (selected * sums[:, -1:].to(exact)).long().to(sums.device)  # (B, 1)
    found = torch.searchsorted(sums, targets, right=True).squeeze(1)
    return found.clamp_(max=sums.shape[1] - 1)  # beyond the end only if a probability is NaN


def _largest(processed: Tensor) -> tuple[Tensor, Tensor]:
    """Each row's largest logit, and its token, the first of several: (B, V) -> (B, 1) twice."""
    if processed.device.type != "cpu":
        return processed.max(dim=-1, keepdim=True)
    # numpy's argmax takes a tenth of the time of torch's
    tokens = torch.from_numpy(processed.detach().numpy().argmax(axis=-1, keepdims=True))
    return processed.gather(1, tokens), tokens


def _is_not_finite(values: Tensor) -> Tensor:
    return values * 0 != 0  # two kernels; `isfinite` is four


def _check_largest(largest: Tensor, logits: Tensor) -> None:
    """Raises: GenerationError or ConfigError if a row's largest processed logit is NaN or infinite: (B, ...)."""
    values = largest.flatten().tolist()
    if all(map(math.isfinite, values)):
        return
    check_finite(logits)
    if -math.inf in values:
        raise ConfigError(NO_TOKEN_LEFT)
    raise ConfigError("a logit overflows: use a smaller logit_bias or penalty, or correct the logits processor")


def check_finite(logits: Tensor) -> None:
    """Raises: GenerationError if the largest of a row of logits, (B, V), is NaN or infinite."""
    for row, value in enumerate(logits.amax(dim=-1).tolist()):
        if not math.isfinite(value):
            raise GenerationError(
                f"the model's logits must be finite, but the largest of row {row} is {value}; its weights are damaged, "
                "or too large for their dtype"
            )
