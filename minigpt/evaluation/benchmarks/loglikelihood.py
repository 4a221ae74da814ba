"""How likely a model finds given continuations of given contexts: in batches, and a context they share read once."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.evaluation.perplexity import Progress, resolve_protocol, sliced_logits
from minigpt.model.gpt import GPT, eval_mode
from minigpt.model.kv_cache import KVCache
from minigpt.tokenizer.tokenizer import Tokenizer

Ids = tuple[int, ...]
Pair = tuple[Ids, Ids]  # a context and its continuation, neither of them empty

_TOKENS_AT_ONCE = 4096  # in one forward pass, the cached ones counted, where nobody says how many rows


@dataclass(frozen=True)
class Score:
    """What a model makes of a continuation: its log-probability in nats, and whether greedy decoding would write it.

    `last_greedy` is that of its last token alone, given all before it; of equal logits the first index wins. `cut` says
    that not all of its context fitted before it.
    """

    log_probability: float
    greedy: bool
    last_greedy: bool
    cut: bool


@dataclass(frozen=True)
class _Row:
    """One sequence to read: the targets are what its last inputs predict; `prefix` stands before, in a cache.

    `cut` says that some of the context before the continuation's first token is left out, `ends` that its last token is
    among the targets.
    """

    pair: int
    prefix: Ids
    inputs: Ids
    targets: Ids
    cut: bool = False
    ends: bool = True


def encode_pair(tokenizer: Tokenizer, context: str, continuation: str) -> Pair:
    """The ids of a context and its continuation, tokenized together and parted where the context alone ends.

    White space at the end of the context belongs to the continuation, and an end of text stands for no context at all.
    Source: lm-evaluation-harness, `_encode_pair`.
    """
    kept = context.rstrip()
    continuation = context[len(kept) :] + continuation
    before = tokenizer.encode(kept)
    after = tokenizer.encode(kept + continuation)[len(before) :]
    return tuple(before or [tokenizer.end_of_text]), tuple(after)


def score(
    model: GPT,
    pairs: Sequence[Pair],
    *,
    context: int | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> list[Score]:
    """The score of each continuation given its context, in their order.

    The model is shown the last `context` tokens (default: its own context) before the continuation's last one. A
    continuation longer than that is read in several windows, each of its tokens with half the context before it at
    least. Pairs that are equal are scored once and so tie exactly. `progress` hears of the rows done.
    Raises: ConfigError where the context does not fit the model.
    """
    room, _ = resolve_protocol(model.config, context, None)
    distinct = list(dict.fromkeys(pairs))
    uses = Counter(before for before, _ in distinct)
    rows = [row for index, pair in enumerate(distinct) for row in _rows(index, pair, room, uses[pair[0]] > 1)]
    sums = [0.0] * len(distinct)
    greedy = [True] * len(distinct)
    last = [False] * len(distinct)
    cut = [False] * len(distinct)
    done = 0
    with eval_mode(model), torch.inference_mode():
        for batch in _batches(rows, batch_size):
            for row, (log_probabilities, hits) in zip(batch, _read(model, batch), strict=True):
                sums[row.pair] += float(log_probabilities.sum())
                greedy[row.pair] &= bool(hits.all())
                last[row.pair] |= row.ends and bool(hits[-1])
                cut[row.pair] |= row.cut
            done += len(batch)
            if progress is not None:
                progress(done, len(rows))
    scores = {pair: Score(sums[i], greedy[i], last[i], cut[i]) for i, pair in enumerate(distinct)}
    return [scores[pair] for pair in pairs]


def _rows(index: int, pair: Pair, room: int, shared: bool) -> Iterator[_Row]:
    """The sequences that score one pair."""
    before, after = pair
    ids = before + after
    if len(ids) - 1 <= room:
        split = len(before) - 1 if shared else 0  # the last of the context predicts the first of the continuation
        yield _Row(index, ids[:split], ids[split:-1], after)
        return
    step = len(after) if len(after) <= room else max(1, room // 2)
    for start in range(len(before), len(ids), step):
        end = min(start + step, len(ids))
        first = max(0, end - 1 - room)
        cut, ends = start == len(before) and first > 0, end == len(ids)
        yield _Row(index, (), ids[first : end - 1], ids[start:end], cut, ends)


def _batches(rows: list[_Row], batch_size: int | None) -> Iterator[list[_Row]]:
    """Rows of one prefix's length together, those of one prefix side by side, and the longest first."""
    ordered = sorted(rows, key=lambda row: (-len(row.prefix), row.prefix, -len(row.inputs)))
    batch: list[_Row] = []
    width = 0
    for row in ordered:
        longest = max(width, len(row.prefix) + len(row.inputs))
        full = len(batch) == batch_size if batch_size is not None else longest * (len(batch) + 1) > _TOKENS_AT_ONCE
        if batch and (full or len(row.prefix) != len(batch[0].prefix)):
            yield batch
            batch, longest = [], len(row.prefix) + len(row.inputs)
        batch.append(row)
        width = longest
    if batch:
        yield batch


def _read(model: GPT, batch: list[_Row]) -> Iterator[tuple[Tensor, Tensor]]:
    """Each row's log-probabilities of its targets, in float64, and whether each is the likeliest token: (n,) each."""
    device = model.token_embedding.weight.device
    width = max(len(row.inputs) for row in batch)
    ids = torch.zeros(len(batch), width, dtype=torch.int64)  # what pads on the right is seen by nothing before it
    for row, inputs in zip(ids, (row.inputs for row in batch), strict=True):
        row[: len(inputs)] = torch.tensor(inputs)
    cache = _prefixes(model, batch, width) if batch[0].prefix else None
    features = model.features(ids.to(device), cache)  # (B, T, C)
    wanted = torch.zeros(len(batch), width, dtype=torch.bool)
    for mark, row in zip(wanted, batch, strict=True):
        mark[len(row.inputs) - len(row.targets) : len(row.inputs)] = True
    targets = torch.tensor([token for row in batch for token in row.targets], device=device)  # (N,)
    found, hits = [], []
    for part, logits in sliced_logits(model, features[wanted.to(device)]):
        found.append(-F.cross_entropy(logits, targets[part], reduction="none").cpu().double())
        hits.append((logits.argmax(-1) == targets[part]).cpu())
    sizes = [len(row.targets) for row in batch]
    yield from zip(torch.split(torch.cat(found), sizes), torch.split(torch.cat(hits), sizes), strict=True)


def _prefixes(model: GPT, batch: list[_Row], width: int) -> KVCache:
    """A cache in which every row's prefix has been read, each prefix once, with room for `width` more."""
    numbers = {prefix: number for number, prefix in enumerate(dict.fromkeys(row.prefix for row in batch))}
    weight = model.token_embedding.weight
    roomy = model.config.replace(n_positions=len(batch[0].prefix) + width)
    cache = KVCache(roomy, len(numbers), device=weight.device, dtype=weight.dtype)
    model.features(torch.tensor(list(numbers), device=weight.device), cache)
    cache.keep([numbers[row.prefix] for row in batch])
    return cache
