"""Drafts for speculative decoding: from the text itself, or from a smaller model."""

from collections.abc import Sequence

import torch
from torch import Tensor

from minigpt.generation.engine import Engine
from minigpt.generation.healing import common_length
from minigpt.generation.speculative import ChooseDraft

_MAX_NGRAM = 4  # tokens at the end of the text that are looked up earlier in it
_MAX_DRAFT = 7  # tokens


class PromptLookup:
    """Drafts the tokens that followed an earlier occurrence of the last few tokens in the text.

    Source: Saxena 2023, "Prompt lookup decoding"; the idea is that of LZ77.
    """

    def __init__(self) -> None:
        self._indexed: list[int] = []
        self._ends: dict[
            tuple[int, ...], int
        ] = {}  # the position after each n-gram's last occurrence, before the end of the text

    def propose(self, tokens: Sequence[int], max_tokens: int, _choose: ChooseDraft) -> list[int]:
        self._index(tokens)
        for size in range(min(_MAX_NGRAM, len(tokens) - 1), 1, -1):
            end = self._ends.get(tuple(tokens[-size:]))
            if end is not None:
                followed = tokens[end:]  # repeated if it is short: the end of a text that loops
                return [followed[at % len(followed)] for at in range(min(max_tokens, _MAX_DRAFT))]
        return []

    def _index(self, tokens: Sequence[int]) -> None:
        """Indexes the n-grams that end before the last token."""
        if list(tokens[: len(self._indexed)]) != self._indexed:
            self._indexed, self._ends = [], {}
        for end in range(max(1, len(self._indexed)), len(tokens)):
            for size in range(2, _MAX_NGRAM + 1):
                if size <= end:
                    self._ends[tuple(tokens[end - size : end])] = end
        self._indexed = list(tokens)


def default_drafter(engine: Engine) -> PromptLookup | None:
    """`PromptLookup` for engines whose logits for several tokens at once equal those for one; None for others."""
    return PromptLookup() if engine.any_chunks else None


class DraftModel:
    """Drafts with a smaller model of the same vocabulary, with the random numbers that the large model will draw with.

    Source: Leviathan et al. 2023, section 2.1 (the draft). Common random numbers replace their rejection sampling: a
    draft token is accepted if the large model draws it too, so that every token is exactly the large model's.
    """

    def __init__(self, engine: Engine, vocab_size: int) -> None:
        self.engine, self.vocab_size = engine, vocab_size
        self._read: list[int] = []
        self._n_starts = -1  # the engine's, after it has read them

    def propose(self, tokens: Sequence[int], max_tokens: int, choose: ChooseDraft) -> list[int]:
        max_tokens = min(max_tokens, _MAX_DRAFT, self.engine.n_positions - len(tokens))
        if max_tokens <= 0:  # beyond its context the draft model would have to recompute its window at every step
            return []
        with self.engine.lock:
            logits = self._catch_up(tokens)  # (V,)
            draft: list[int] = []
            while True:
                draft.append(choose(logits[: self.vocab_size], draft))
                if len(draft) == max_tokens:
                    return draft
                logits = self.engine.read(torch.tensor([[draft[-1]]], device=self.engine.device))[0, -1]
                self._read.append(draft[-1])

    def _catch_up(self, tokens: Sequence[int]) -> Tensor:
        """Rewinds rejected draft tokens and reads the new tokens: logits (V,) of the next one."""
        same = min(common_length(self._read, tokens), len(tokens) - 1)  # at least one token is read, for its logits
        if same == 0 or self._n_starts != self.engine.n_starts:
            logits = self.engine.start([tokens])[0]
            self._read, self._n_starts = list(tokens), self.engine.n_starts
            return logits
        self.engine.rewind(len(self._read) - same)
        new = torch.tensor([list(tokens[same:])], device=self.engine.device)
        self._read = list(tokens)
        return self.engine.read(new)[0, -1]
