"""From prompts to ids, a step at a time, on any engine; it knows no text, no files and no terminal."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minigpt.config import SamplingConfig
from minigpt.errors import ConfigError, GenerationError
from minigpt.generation.engines.engine import Engine
from minigpt.generation.engines.resolve import resolve_engine
from minigpt.generation.nonfinite import first_nonfinite
from minigpt.generation.sampling import Sampler
from minigpt.generation.speculative import Drafter, Gain
from minigpt.model.gpt import GPT, eval_mode


def window_start(length: int, n_positions: int) -> int:
    """The first of `length` tokens that the model sees when it predicts the next: 0 until they outgrow the context.

    From then on the window slides by half a context at a time: GPT-2's positions are learned and absolute, so every
    slide moves them all and the window is computed anew. Sliding by halves costs that once per n_positions / 2
    tokens and leaves between n_positions / 2 and n_positions tokens in sight.
    """
    stride = max(1, n_positions // 2)
    excess = max(0, length - n_positions)
    return -(-excess // stride) * stride


def window_moves(n_prompt: int, n_new: int, n_positions: int, keep_first: int = 0) -> int:
    """How often the window moves while `n_new` tokens are generated after a prompt of `n_prompt` tokens."""
    lengths = range(max(1, n_prompt), n_prompt + n_new)
    starts = {window_start(length - keep_first, n_positions - keep_first) for length in lengths}
    return max(0, len(starts) - 1)


def visible(tokens: Sequence[int], n_positions: int, keep_first: int = 0) -> list[int]:
    """What the model sees of the tokens: the first `keep_first` always, of the rest the window."""
    start = window_start(len(tokens) - keep_first, n_positions - keep_first)
    return [*tokens[:keep_first], *tokens[keep_first + start :]]


@dataclass(frozen=True)
class Choice:
    """A token that was chosen and, where they were asked for, its log-probability by the model itself, before penalties
    and temperature, the likeliest tokens with theirs, the entropy of the whole distribution, and its rank in it from 0.

    Units: nats.
    """

    id: int
    logprob: float | None = None
    alternatives: tuple[tuple[int, float], ...] = ()
    entropy: float | None = None
    rank: int | None = None


class Decoder:
    """Continues several prompts side by side: `advance` until enough, `drop` rows that have ended.

    Each row comes out as it would alone: it sees its own tokens at its own positions and is drawn with the numbers of
    its own sample, `samples[row]`. Only the first `vocab_size` ids are drawn: a vocabulary may be padded beyond what
    its tokenizer knows. `alternatives` asks for log-probabilities and so many others beside each token. A drafter's
    guesses are used where there is one row; they change how fast tokens come, not which.

    Raises: ConfigError for an empty prompt, and for a `keep_first` that leaves no room.
    """

    def __init__(
        self,
        engine: Engine,
        prompts: Sequence[Sequence[int]],
        sampler: Sampler,
        *,
        samples: Sequence[int] | None = None,
        vocab_size: int | None = None,
        keep_first: int = 0,
        alternatives: int | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        if not all(len(prompt) for prompt in prompts):
            raise ConfigError("the prompt is empty (0 tokens); start from the tokenizer's end_of_text instead")
        if keep_first > engine.n_positions // 2:
            raise ConfigError(
                f"keep-first ({keep_first}) must be at most half the context length ({engine.n_positions // 2}), "
                "to leave room for what comes"
            )
        self.engine, self.sampler, self.drafter = engine, sampler, drafter
        self.tokens = [list(prompt) for prompt in prompts]
        self.samples = list(range(len(prompts)) if samples is None else samples)
        self.vocab_size, self.keep_first, self.alternatives = vocab_size, keep_first, alternatives
        self.rows = list(range(len(prompts)))  # which of the prompts go on
        self.n_new = 0
        self._starts: list[int] = []  # where the windows of those rows begin, that the engine has read
        self._gain = Gain()

    def advance(self) -> list[list[Choice]]:
        """The next tokens of every row that goes on, in their order: one each, or several of which all but the last
        were guessed right.

        Raises: GenerationError where the model's logits are no longer numbers, saying where in it that begins.
        """
        alone = self.drafter is not None and len(self.rows) == 1
        guessing = alone and self._gain.wants_guesses()
        starts = self._starts
        logits, guesses = self._read(guessing)  # (B, T, V), T - 1 guesses
        gained: list[list[Choice]] = [[] for _ in self.rows]
        for at in range(logits.shape[1]):
            scores = logits[:, at, : self.vocab_size]  # (B, V)
            chosen = self._choose(scores)
            for row, choice in enumerate(self._described(scores, chosen)):
                gained[row].append(choice)
                self.tokens[self.rows[row]].append(choice.id)
            self.n_new += 1
            if at < len(guesses) and int(chosen[0]) != guesses[at]:
                self.engine.rewind(len(guesses) - at)
                break
        if alone and self._starts == starts:  # a window that was read anew is no step to compare with
            self._gain.note(len(guesses), len(gained[0]))
        return gained

    def drop(self, rows: Collection[int]) -> None:
        """Goes on without these of `rows`."""
        left = [place for place, row in enumerate(self.rows) if row not in rows]
        if left and len(left) < len(self.rows):
            self.engine.keep(left)
        self.rows = [self.rows[place] for place in left]
        self._starts = [self._starts[place] for place in left]

    def _read(self, guessing: bool) -> tuple[Tensor, list[int]]:
        """Reads what the engine has not yet, and guesses behind it: logits (B, 1 + guesses, V), and the guesses."""
        going = [self.tokens[row] for row in self.rows]
        room = self.engine.n_positions - self.keep_first
        starts = [window_start(len(tokens) - self.keep_first, room) for tokens in going]
        if starts != self._starts:
            self._starts = starts
            return self._start([visible(tokens, self.engine.n_positions, self.keep_first) for tokens in going]), []
        guesses: list[int] = []
        if guessing and self.drafter is not None:
            left = self.sampler.config.max_new_tokens - self.n_new - 1
            most = min(left, self.engine.n_positions - self.engine.length - 1)
            guesses = self.drafter.propose(going[0], most, self._guess)[:most] if most > 0 else []
        ids = [[tokens[-1], *guesses] for tokens in going]
        return self.engine.read(torch.tensor(ids, device=self.engine.device)), guesses

    def _start(self, windows: list[list[int]]) -> Tensor:
        """Reads whole windows, one that several rows share only once: (B, 1, V)."""
        shared = {tuple(window): place for place, window in reversed(list(enumerate(windows)))}
        firsts = sorted(shared.values())
        logits = self.engine.start([windows[place] for place in firsts])  # (unique, V)
        if len(firsts) < len(windows):
            order = [firsts.index(shared[tuple(window)]) for window in windows]
            self.engine.keep(order)
            logits = logits[order]
        return logits[:, None]

    def _history(self) -> Tensor:
        """All tokens of the rows that go on, (B, T) int64, -1 before those of shorter rows; empty where not needed."""
        going = [self.tokens[row] for row in self.rows] if self.sampler.needs_history else [[] for _ in self.rows]
        longest = max(map(len, going))
        padded = [[-1] * (longest - len(tokens)) + tokens for tokens in going]
        return torch.tensor(padded, dtype=torch.int64, device=self.engine.device)

    def _choose(self, logits: Tensor) -> Tensor:
        samples = [self.samples[row] for row in self.rows]
        try:
            return self.sampler.choose(logits, self._history(), self.n_new, samples)
        except GenerationError as error:
            seen = visible(self.tokens[self.rows[0]], self.engine.n_positions, self.keep_first)
            culprit = first_nonfinite(self.engine.model, torch.tensor([seen], device=self.engine.device))
            raise GenerationError(f"{error}; first to go wrong: {culprit}") from error

    def _guess(self, logits: Tensor, ahead: int) -> int:
        """What the sampler would draw from a drafter's logits (V,), the history taken as it is so far."""
        samples = [self.samples[self.rows[0]]]
        return int(self.sampler.choose(logits[None], self._history(), self.n_new + ahead, samples))

    def _described(self, logits: Tensor, chosen: Tensor) -> Iterator[Choice]:
        """The choices of one step: logits (B, V), chosen (B,)."""
        ids = chosen.tolist()
        if self.alternatives is None:
            yield from map(Choice, ids)
            return
        logprobs = logits.float().log_softmax(dim=-1)  # (B, V)
        own = logprobs.gather(1, chosen[:, None]).squeeze(1)  # (B,)
        top = logprobs.topk(min(self.alternatives, logprobs.shape[1]), dim=-1)
        entropy = torch.special.entr(logprobs.exp()).sum(dim=-1)  # (B,)
        ranks = (logprobs > own[:, None]).sum(dim=-1)  # (B,)
        columns = (own, top.indices, top.values, entropy, ranks)
        for id, logprob, others, theirs, spread, rank in zip(
            ids, *(column.tolist() for column in columns), strict=True
        ):
            yield Choice(id, logprob, tuple(zip(others, theirs, strict=True)), spread, rank)


def generate(
    model: GPT | Engine, ids: Tensor, config: SamplingConfig, *, vocab_size: int | None = None
) -> Iterator[Tensor]:
    """The tokens that continue `ids`, one step at a time, `max_new_tokens` of them; stopping sooner is the caller's.

    Shapes: ids (B, T) int64 -> (B,) int64 per step.
    Raises: ConfigError for an empty prompt: a model continues something, an end-of-text at least; GenerationError.
    """
    engine = resolve_engine(model) if isinstance(model, GPT) else model
    decoder = Decoder(engine, ids.tolist(), Sampler(config), vocab_size=vocab_size)
    with eval_mode(engine.model):
        for _ in range(config.max_new_tokens):
            yield torch.tensor([choices[0].id for choices in decoder.advance()], device=engine.device)


@torch.inference_mode()
def generate_uncached(model: GPT, ids: Tensor, config: SamplingConfig) -> Iterator[Tensor]:
    """The same tokens by the plain loop, the whole window through the model for every token: the oracle in tests."""
    sampler = Sampler(config)
    tokens = ids
    with eval_mode(model):
        for n_new in range(config.max_new_tokens):
            start = window_start(tokens.shape[1], model.config.n_positions)
            logits = model(tokens[:, start:])[:, -1]  # (B, V)
            chosen = sampler.choose(logits, tokens, n_new)  # (B,)
            tokens = torch.cat([tokens, chosen[:, None]], dim=1)  # (B, T + 1)
            yield chosen
