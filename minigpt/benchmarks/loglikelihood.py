"""Scores continuations of contexts by their log-probability, in batches; a shared context is read once."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.benchmarks.results import BenchmarkOptions
from minigpt.errors import DataError, quoted
from minigpt.evaluation.perplexity import resolve_protocol, sliced_logits
from minigpt.model.gpt import GPT, eval_mode
from minigpt.model.kv_cache import KVCache
from minigpt.model.nonfinite import check_finite
from minigpt.tokenizer.tokenizer import Tokenizer

Ids = tuple[int, ...]
Pair = tuple[Ids, Ids]  # a context and its continuation, neither of them empty

_BATCH_TOKENS = 4096  # in one forward pass, including cached ones, unless the caller chooses


@dataclass(frozen=True)
class ContinuationScore:
    """The score of a continuation.

    `log_probability` is in nats. `is_greedy` says whether greedy decoding would produce the continuation, and
    `is_last_greedy` whether it would produce its last token after all tokens before it; of equal logits the first index
    wins. `is_truncated` says that not all of the context fitted before the continuation.
    """

    log_probability: float
    is_greedy: bool
    is_last_greedy: bool
    is_truncated: bool


@dataclass(frozen=True)
class _Row:
    """One sequence for the model, which scores all or some of a continuation.

    `targets` are the tokens that the last inputs predict. `prefix` precedes the inputs, in a cache. `is_truncated` says
    that the context was cut, `is_end` that the continuation's last token is among the targets.
    """

    pair: int
    prefix: Ids
    inputs: Ids
    targets: Ids
    is_truncated: bool = False
    is_end: bool = True


def encode_pair(tokenizer: Tokenizer, context: str, continuation: str) -> Pair:
    """The token ids of a context and its continuation, tokenized together and split where the context ends.

    White space at the end of the context belongs to the continuation. A context without tokens becomes an end-of-text.
    Source: lm-evaluation-harness, `_encode_pair`.
    Raises: DataError for a continuation without tokens.
    """
    stripped = context.rstrip()
    continuation = context[len(stripped) :] + continuation
    before = tokenizer.encode(stripped)
    after = tokenizer.encode(stripped + continuation)[len(before) :]
    return _pair(tokenizer, before, after, continuation)


def encode_apart(tokenizer: Tokenizer, context: str, continuation: str) -> Pair:
    """The token ids of a context and its continuation, each tokenized by itself; otherwise as `encode_pair`."""
    return _pair(tokenizer, tokenizer.encode(context), tokenizer.encode(continuation), continuation)


def _pair(tokenizer: Tokenizer, before: list[int], after: list[int], continuation: str) -> Pair:
    if not after:
        raise DataError(
            f"the continuation {quoted(continuation)} has no token of the tokenizer ({tokenizer.name}), so it has no "
            "probability; evaluate the model on another benchmark"
        )
    return tuple(before or [tokenizer.start_of_text]), tuple(after)


def score_continuations(
    model: GPT,
    pairs: Sequence[Pair],
    options: BenchmarkOptions = BenchmarkOptions(),  # noqa: B008  (frozen)
) -> list[ContinuationScore]:
    """Scores each continuation given its context, in order.

    The model sees the last `context` tokens before the continuation's last token. A longer continuation is read in
    several windows, each token with at least half the context before it. Equal pairs are scored once, so they tie
    exactly. `progress` is called with the rows done and the total.
    Raises: ConfigError if the context does not fit the model; GenerationError if a score is NaN or infinite.
    """
    context, _ = resolve_protocol(model.config, options.context, None)
    distinct = list(dict.fromkeys(pairs))
    uses = Counter(before for before, _ in distinct)
    rows = [row for index, pair in enumerate(distinct) for row in _rows(index, pair, context, uses[pair[0]] > 1)]
    sums = [0.0] * len(distinct)
    greedy = [True] * len(distinct)
    last_greedy = [False] * len(distinct)
    truncated = [False] * len(distinct)
    done = 0
    with eval_mode(model), torch.inference_mode():
        for batch in _batches(rows, options.batch_size):
            for row, (log_probabilities, is_greedy) in zip(batch, _score_rows(model, batch), strict=True):
                check_finite(log_probabilities, model, torch.tensor([row.prefix + row.inputs]))
                sums[row.pair] += float(log_probabilities.sum())
                greedy[row.pair] &= bool(is_greedy.all())
                last_greedy[row.pair] |= row.is_end and bool(is_greedy[-1])
                truncated[row.pair] |= row.is_truncated
            done += len(batch)
            if options.progress is not None:
                options.progress(done, len(rows))
    results = zip(sums, greedy, last_greedy, truncated, strict=True)
    scores = {pair: ContinuationScore(*result) for pair, result in zip(distinct, results, strict=True)}
    return [scores[pair] for pair in pairs]


def argmax(values: Sequence[float]) -> int:
    """The index of the largest value, the first of equal ones."""
    return max(range(len(values)), key=values.__getitem__)


def _rows(index: int, pair: Pair, context: int, is_shared: bool) -> Iterator[_Row]:
    """The rows that score one pair; a shared context becomes a prefix."""
    before, after = pair
    ids = before + after
    if len(ids) - 1 <= context:
        split = len(before) - 1 if is_shared else 0  # the context's last token predicts the continuation's first
        yield _Row(index, ids[:split], ids[split:-1], after)
        return
    step = len(after) if len(after) <= context else max(1, context // 2)
    for start in range(len(before), len(ids), step):
        end = min(start + step, len(ids))
        first = max(0, end - 1 - context)
        is_truncated, is_end = start == len(before) and first > 0, end == len(ids)
        yield _Row(index, (), ids[first : end - 1], ids[start:end], is_truncated, is_end)


def _batches(rows: list[_Row], batch_size: int | None) -> Iterator[list[_Row]]:
    """Batches of rows whose prefixes have the same length; equal prefixes are adjacent, and long rows come first."""
    ordered = sorted(rows, key=lambda row: (-len(row.prefix), row.prefix, -len(row.inputs)))
    batch: list[_Row] = []
    width = 0
    for row in ordered:
        longest = max(width, len(row.prefix) + len(row.inputs))
        is_full = len(batch) == batch_size if batch_size is not None else longest * (len(batch) + 1) > _BATCH_TOKENS
        if batch and (is_full or len(row.prefix) != len(batch[0].prefix)):
            yield batch
            batch, longest = [], len(row.prefix) + len(row.inputs)
        batch.append(row)
        width = longest
    if batch:
        yield batch


def _score_rows(model: GPT, batch: list[_Row]) -> Iterator[tuple[Tensor, Tensor]]:
    """For each row: the log-probabilities of its targets (n,) in float64, and whether each is the most likely (n,)."""
    device = model.token_embedding.weight.device
    width = max(len(row.inputs) for row in batch)
    ids = torch.zeros(len(batch), width, dtype=torch.int64)  # padding on the right: attention is causal
    for row, inputs in zip(ids, (row.inputs for row in batch), strict=True):
        row[: len(inputs)] = torch.tensor(inputs)
    cache = _prefix_cache(model, batch, width) if batch[0].prefix else None
    features = model.features(ids.to(device), cache)  # (B, T, C)
    is_scored = torch.zeros(len(batch), width, dtype=torch.bool)
    for mask, row in zip(is_scored, batch, strict=True):
        mask[len(row.inputs) - len(row.targets) : len(row.inputs)] = True
    targets = torch.tensor([token for row in batch for token in row.targets], device=device)  # (N,)
    log_probabilities, is_greedy = [], []
    for part, logits in sliced_logits(model, features[is_scored.to(device)]):
        log_probabilities.append(-F.cross_entropy(logits, targets[part], reduction="none").cpu().double())
        is_greedy.append((logits.argmax(-1) == targets[part]).cpu())
    sizes = [len(row.targets) for row in batch]
    yield from zip(
        torch.split(torch.cat(log_probabilities), sizes), torch.split(torch.cat(is_greedy), sizes), strict=True
    )


def _prefix_cache(model: GPT, batch: list[_Row], width: int) -> KVCache:
    """A cache that holds every row's prefix, each read once, with room for `width` more tokens."""
    numbers = {prefix: number for number, prefix in enumerate(dict.fromkeys(row.prefix for row in batch))}
    weight = model.token_embedding.weight
    config = model.config.replace(n_positions=len(batch[0].prefix) + width)
    cache = KVCache(config, len(numbers), device=weight.device, dtype=weight.dtype)
    model.features(torch.tensor(list(numbers), device=weight.device), cache)
    cache.keep([numbers[row.prefix] for row in batch])
    return cache
