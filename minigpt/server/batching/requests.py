"""What a batch is asked for, and what it answers."""

from collections.abc import Sequence
from dataclasses import dataclass

from minigpt.config import SamplingConfig
from minigpt.errors import ConfigError, MinigptError
from minigpt.generation.decoding import GeneratedToken, check_keep_first, check_prompt
from minigpt.generation.sampling import Sampler
from minigpt.generation.streaming import Piece


@dataclass(frozen=True, eq=False)
class GenerationRequest:
    """A prompt to continue `config.samples` times, to score, or both.

    The continuation begins with `end`, the end of the prompt's text that `prompt` does not contain (see `healing.py`).
    `alternatives` requests log-probabilities and this many alternatives for each token. With `score_prompt` they are
    given for the prompt's tokens, too. With `continues` false the request ends after its prompt. With `one_turn` the
    continuation ends before the next turn of a transcript. Two requests are equal only if they are the same object.
    """

    prompt: Sequence[int]
    config: SamplingConfig
    sampler: Sampler
    alternatives: int | None = None
    score_prompt: bool = False
    continues: bool = True
    end: str = ""
    one_turn: bool = False

    @property
    def n_rows(self) -> int:
        """How many slots the request needs."""
        return self.config.samples if self.continues else 1

    @property
    def n_texts(self) -> int:
        """How many texts its answer has: also if it only scores a prompt, in one slot."""
        return self.config.samples


def check_request(request: GenerationRequest, n_positions: int) -> None:
    """Checks that a model with this context length can answer a request.

    Raises: ConfigError for an empty prompt, a prompt to score that is longer than the context, and a `keep_first` that
    leaves too little room.
    """
    check_prompt(request.prompt)
    if request.score_prompt and len(request.prompt) > n_positions:
        raise ConfigError(
            f"a prompt of {len(request.prompt)} tokens cannot be scored: the context length is {n_positions}"
        )
    check_keep_first(request.config.keep_first, n_positions)


@dataclass(frozen=True)
class ScoredPrompt:
    """The prompt was read: its tokens with the model's predictions for them, of which the first one has none.

    There are no tokens if the request does not score its prompt.
    """

    tokens: tuple[GeneratedToken, ...]


@dataclass(frozen=True)
class Failed:
    """The request ended with an error that concerns it alone."""

    error: MinigptError


@dataclass(frozen=True)
class Event:
    """A part of the answer to a request; `is_last` ends it."""

    request: GenerationRequest
    content: Piece | ScoredPrompt | Failed
    is_last: bool = False
