"""Decoding: continues prompts token by token on any engine, with a sliding window and speculative decoding."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from minigpt.config import SamplingConfig
from minigpt.device import to_device
from minigpt.errors import ConfigError, GenerationError
from minigpt.generation.constraint import TextState
from minigpt.generation.engine import Engine
from minigpt.generation.healing import Prompt
from minigpt.generation.logits_processors import LogitsProcessor
from minigpt.generation.resolve_engine import resolve_engine
from minigpt.generation.sampling import UNDECIDED, Sampler
from minigpt.generation.speculative import Drafter, SpeedupMonitor
from minigpt.model.gpt import GPT, eval_mode
from minigpt.model.nonfinite import first_nonfinite


def window_start(length: int, n_positions: int) -> int:
    """The index of the first of `length` tokens that the model sees when it predicts the next one.

    It is 0 until the tokens exceed the context. From then on the window slides by half a context at a time: GPT-2's
    positions are learned and absolute, so that every slide changes them all and the whole window is recomputed. Sliding
    by halves costs this once per n_positions / 2 tokens and keeps at least n_positions / 2 tokens visible.
    """
    stride = max(1, n_positions // 2)
    excess = max(0, length - n_positions)
    return -(-excess // stride) * stride


def window_moves(n_prompt: int, n_new: int, n_positions: int, keep_first: int = 0) -> int:
    """How often the window moves while `n_new` tokens are generated after a prompt of `n_prompt` tokens."""
    lengths = range(max(1, n_prompt), n_prompt + n_new)
    starts = {window_start(length - keep_first, n_positions - keep_first) for length in lengths}
    return max(0, len(starts) - 1)


def visible_tokens(tokens: Sequence[int], n_positions: int, keep_first: int = 0) -> list[int]:
    """The tokens that the model sees: always the first `keep_first`, and the sliding window of the rest."""
    start = window_start(len(tokens) - keep_first, n_positions - keep_first)
    return [*tokens[:keep_first], *tokens[keep_first + start :]]


@dataclass(frozen=True)
class GeneratedToken:
    """A generated token and, if requested, the model's prediction for it, before processors and temperature.

    `logprob` is the token's log-probability in nats, `alternatives` are the most likely tokens with theirs, `entropy`
    is that of the distribution in nats, and `rank` is the number of more likely tokens.
    """

    id: int
    logprob: float | None = None
    alternatives: tuple[tuple[int, float], ...] = ()
    entropy: float | None = None
    rank: int | None = None


def check_prompt(prompt: Sequence[int]) -> None:
    """Raises ConfigError for an empty prompt."""
    if not len(prompt):
        raise ConfigError("the prompt is empty (0 tokens); start from the tokenizer's end_of_text instead")


def check_keep_first(keep_first: int, n_positions: int) -> None:
    """Raises ConfigError for a `keep_first` that leaves too little of this context length for new tokens."""
    if keep_first > n_positions // 2:
        raise ConfigError(
            f"keep-first ({keep_first}) must be at most half the context length ({n_positions // 2}), to leave room "
            "for new tokens"
        )


class Decoder:
    """Continues several prompts in parallel: `advance` generates the next tokens, `drop` ends rows.

    Each row gets the tokens that it would get alone: it sees its own tokens at its own positions and is drawn with the
    random numbers of the sample `samples[row]`. Only ids below `vocab_size` are drawn, because a model's
    vocabulary may be padded. A sampler with a tokenizer keeps every row's text UTF-8, and it begins with the `end` of a
    `Prompt`. `alternatives` requests log-probabilities and this many alternatives for each token. A `drafter` may
    be set before the first step. It is used while there is one row; it changes the speed but no token.

    Several decoders may use one engine in turns, also from several threads. After another one's turn, a decoder reads
    its windows again.

    Raises: ConfigError for an empty prompt, and for a `keep_first` that leaves too little room.
    """

    def __init__(
        self,
        engine: Engine,
        prompts: Sequence[Prompt | Sequence[int]],
        sampler: Sampler,
        *,
        samples: Sequence[int] | None = None,
        vocab_size: int | None = None,
        keep_first: int = 0,
        alternatives: int | None = None,
    ) -> None:
        encoded = [prompt if isinstance(prompt, Prompt) else Prompt(list(prompt)) for prompt in prompts]
        for prompt in encoded:
            check_prompt(prompt.ids)
        check_keep_first(keep_first, engine.n_positions)
        self.engine, self.sampler = engine, sampler
        self.drafter: Drafter | None = None
        self.tokens = [list(prompt.ids) for prompt in encoded]
        self.samples = list(range(len(prompts)) if samples is None else samples)
        self.vocab_size, self.keep_first, self.alternatives = vocab_size, keep_first, alternatives
        self.rows = list(range(len(prompts)))  # the prompts that are still continued
        self._constraint = sampler.constraint
        self._states: list[TextState] = []  # of the texts, if there is a constraint
        if self._constraint is not None:
            self._states = [self._constraint.start(prompt.ids, prompt.end.encode()) for prompt in encoded]
            self.vocab_size = vocab_size or self._constraint.vocab_size
        elif any(prompt.end for prompt in encoded):
            raise ConfigError("the end of a prompt needs a Sampler with a tokenizer")
        self.n_new = 0
        self.chosen: Tensor | None = None  # (B,) int64, the last token of each of `rows`, on the engine's device
        self._starts: list[int] = []  # of the windows that the engine has read, one per row
        self._n_starts = -1  # the engine's, after it has read them
        self._speedup = SpeedupMonitor()

    def advance(self) -> list[list[GeneratedToken]]:
        """The next tokens of every row in `rows`: one each, or several if draft tokens were accepted.

        Raises: GenerationError for NaN or infinite logits, naming the part of the model where they begin.
        """
        with self.engine.lock:
            speculative = self.drafter is not None and len(self.rows) == 1
            drafting = speculative and self._speedup.should_draft()
            n_starts = self._n_starts
            logits, draft = self._read(drafting)  # (B, T, V), T - 1 draft tokens
            generated: list[list[GeneratedToken]] = [[] for _ in self.rows]
            for at in range(logits.shape[1]):
                tokens = self._choose(logits[:, at, : self.vocab_size])
                for row, token in enumerate(tokens):
                    generated[row].append(token)
                    self._append(self.rows[row], token.id)
                self.n_new += 1
                if at < len(draft) and tokens[0].id != draft[at]:
                    if self._is_cached(self._starts):
                        self.engine.rewind(len(draft) - at)
                    break
            if speculative and self._n_starts == n_starts:  # a step that recomputed the window is not comparable
                self._speedup.record(len(draft), len(generated[0]))
            return generated

    def _append(self, row: int, token: int) -> None:
        self.tokens[row].append(token)
        if self._constraint is not None:
            self._states[row] = self._constraint.advance(self._states[row], token)

    def drop(self, rows: Collection[int]) -> None:
        """Stops continuing these rows."""
        kept = [index for index, row in enumerate(self.rows) if row not in rows]
        with self.engine.lock:
            if kept and len(kept) < len(self.rows) and self._is_cached(self._starts):
                self.engine.keep(kept)
        if len(kept) < len(self.rows):
            self.chosen = None
        self.rows = [self.rows[index] for index in kept]
        self._starts = [self._starts[index] for index in kept]

    def _is_cached(self, starts: list[int]) -> bool:
        """Whether the engine's cache holds the windows with these starts, and not those of another decoder."""
        return self._starts == starts and self._n_starts == self.engine.n_starts

    def _read(self, drafting: bool) -> tuple[Tensor, list[int]]:
        """Reads the tokens that the engine has not read, then a draft: logits (B, 1 + drafted, V), and the draft."""
        texts = [self.tokens[row] for row in self.rows]
        room = self.engine.n_positions - self.keep_first
        starts = [window_start(len(tokens) - self.keep_first, room) for tokens in texts]
        draft = self._propose(texts[0]) if drafting and self._is_cached(starts) else []
        if not self._is_cached(starts):
            windows = [visible_tokens(tokens, self.engine.n_positions, self.keep_first) for tokens in texts]
            logits = self._start_windows(windows)
            self._starts, self._n_starts = starts, self.engine.n_starts
            return logits, []
        if self.chosen is not None and not draft:
            return self.engine.read(self.chosen[:, None]), draft
        ids = torch.tensor([[tokens[-1], *draft] for tokens in texts])
        return self.engine.read(to_device(ids, self.engine.device)), draft

    def _propose(self, tokens: list[int]) -> list[int]:
        """A draft of the tokens after the only row's, no longer than what may still be generated and read."""
        left = self.sampler.config.max_new_tokens - self.n_new - 1
        max_tokens = min(left, self.engine.n_positions - self.engine.length - 1)
        if self.drafter is None or max_tokens <= 0:
            return []
        return self.drafter.propose(tokens, max_tokens, self._choose_draft)[:max_tokens]

    def _start_windows(self, windows: list[list[int]]) -> Tensor:
        """Reads whole windows, each only once if several rows share it: -> (B, 1, V)."""
        unique = list(dict.fromkeys(map(tuple, windows)))
        logits = self.engine.start(unique)  # (unique, V)
        if len(unique) < len(windows):
            order = [unique.index(tuple(window)) for window in windows]
            self.engine.keep(order)
            logits = logits[order]
        return logits[:, None]

    def _history(self, draft: Sequence[int] = ()) -> Tensor:
        """All tokens of `rows`, then `draft`: (B, T) int64, with -1 before shorter rows; (B, 0) if none are needed."""
        if not self.sampler.needs_history:
            return torch.empty(len(self.rows), 0, dtype=torch.int64, device=self.engine.device)
        texts = [[*self.tokens[row], *draft] for row in self.rows]
        longest = max(map(len, texts))
        padded = torch.tensor([[-1] * (longest - len(tokens)) + tokens for tokens in texts])
        return to_device(padded, self.engine.device)

    def _choose(self, logits: Tensor) -> list[GeneratedToken]:
        """The next token of each row, for logits (B, V), which stays in `chosen` too."""
        samples = [self.samples[row] for row in self.rows]
        states = [self._states[row] for row in self.rows] if self._constraint is not None else None
        numbers = self.sampler.numbers(samples, self.n_new)
        try:
            processed = self.sampler.process(logits, self._history(), self.n_new, states)
            self.chosen = self.sampler.pick_at_once(processed, numbers)
            tokens = describe(logits, self.chosen, self.alternatives)
            if any(token.id == UNDECIDED for token in tokens):
                self.chosen = self.sampler.pick(processed, logits, numbers)
                tokens = describe(logits, self.chosen, self.alternatives)
            return tokens
        except GenerationError as error:
            first = int((~logits.isfinite()).any(dim=-1).int().argmax())
            seen = visible_tokens(self.tokens[self.rows[first]], self.engine.n_positions, self.keep_first)
            origin = first_nonfinite(self.engine.model, torch.tensor([seen], device=self.engine.device))
            raise GenerationError(f"{error}; the first values that are not finite are in {origin}") from error

    def _choose_draft(self, logits: Tensor, draft: Sequence[int]) -> int:
        """The token that the sampler would choose from a drafter's logits (V,) after these draft tokens."""
        row, states = self.rows[0], None
        if self._constraint is not None:
            states = [reduce(self._constraint.advance, draft, self._states[row])]
        n_new = self.n_new + len(draft)
        return int(self.sampler.choose(logits[None], self._history(draft), n_new, [self.samples[row]], states))


def describe(logits: Tensor, tokens: Tensor, alternatives: int | None) -> list[GeneratedToken]:
    """These tokens with the model's predictions for them, if requested: logits (B, V), tokens (B,) int64."""
    if alternatives is None:
        return [GeneratedToken(id) for id in tokens.tolist()]
    if logits.device.type != "cpu":
        return read_together([pack(logits, tokens, alternatives)])[0]
    return _tokens(*_predictions(logits, tokens, alternatives))  # to pack them takes a fifth of a small model's token


def pack(logits: Tensor, tokens: Tensor, alternatives: int | None) -> Tensor:
    """What `describe` says, before it is read from the device: (B, 1) or, with k alternatives, (B, 4 + 2 k) int32.

    The columns are integers, then the bits of float32 numbers.
    """
    if alternatives is None:
        return tokens[:, None].int()
    integers, numbers = _predictions(logits, tokens, alternatives)
    return torch.cat([integers.int(), numbers.view(torch.int32)], dim=1)


def read_together(packed: Sequence[Tensor]) -> list[list[GeneratedToken]]:
    """What `pack` has packed, in one transfer from the device."""
    together = torch.cat([each.flatten() for each in packed]).cpu()
    parts = torch.split(together, [each.numel() for each in packed])
    return [_unpack(part.view(each.shape)) for part, each in zip(parts, packed, strict=True)]


def _unpack(packed: Tensor) -> list[GeneratedToken]:
    if packed.shape[1] == 1:
        return [GeneratedToken(id) for id in packed.flatten().tolist()]
    integers, bits = packed.chunk(2, dim=1)
    return _tokens(integers, bits.contiguous().view(torch.float32))


def _predictions(logits: Tensor, tokens: Tensor, alternatives: int) -> tuple[Tensor, Tensor]:
    """Ids, ranks and the alternatives' ids; log-probabilities, entropies and the alternatives': (B, 2 + k) twice."""
    logprobs = logits.float().log_softmax(dim=-1)  # (B, V)
    logprob = logprobs.gather(1, tokens.clamp(min=0)[:, None])  # (B, 1); a token may be UNDECIDED
    top = logprobs.topk(min(alternatives, logprobs.shape[1]), dim=-1)
    entropy = torch.special.entr(logprobs.exp()).sum(dim=-1, keepdim=True)  # (B, 1)
    ranks = (logprobs > logprob).sum(dim=-1, keepdim=True)  # (B, 1)
    return torch.cat([tokens[:, None], ranks, top.indices], dim=1), torch.cat([logprob, entropy, top.values], dim=1)


def _tokens(integers: Tensor, numbers: Tensor) -> list[GeneratedToken]:
    return [
        GeneratedToken(id, logprob, tuple(zip(top_ids, top_logprobs, strict=True)), entropy, rank)
        for (id, rank, *top_ids), (logprob, entropy, *top_logprobs) in zip(
            integers.tolist(), numbers.tolist(), strict=True
        )
    ]


def engine_of(model: GPT | Engine) -> Engine:
    """The fastest engine for a model; an engine itself.

    Raises: ConfigError for anything else, such as the result of `minigpt.load()`.
    """
    engine = resolve_engine(model) if isinstance(model, GPT) else model
    if not hasattr(engine, "n_positions"):
        raise ConfigError(
            f"the model must be a GPT or an engine, not a {type(model).__name__}; give minigpt.load(...).model"
        )
    return engine


def generate(
    model: GPT | Engine,
    ids: Tensor,
    config: SamplingConfig,
    *,
    processors: Sequence[LogitsProcessor] = (),
    vocab_size: int | None = None,
) -> Iterator[Tensor]:
    """Continues `ids` with `max_new_tokens` tokens, one step at a time; the caller may stop earlier.

    Shapes: ids (B, T) int64 -> (B,) int64 per step.
    Raises: ConfigError for `ids` of another shape and for an empty prompt (use an end-of-text instead); GenerationError
    for NaN or infinite logits.
    """
    engine = engine_of(model)
    if not isinstance(ids, Tensor) or ids.dim() != 2:
        what = f"of shape {tuple(ids.shape)}" if isinstance(ids, Tensor) else f"a {type(ids).__name__}"
        raise ConfigError(f"ids ({what}) must be a tensor (B, T); give torch.tensor([ids])")
    decoder = Decoder(engine, ids.tolist(), Sampler(config, processors=processors), vocab_size=vocab_size)
    with eval_mode(engine.model):
        for _ in range(config.max_new_tokens):
            decoder.advance()
            assert decoder.chosen is not None
            yield decoder.chosen.clone()
