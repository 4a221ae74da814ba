"""Which tokens may come next in each row, so that its text stays UTF-8 and begins with the bytes it must begin with."""

import codecs
import math
from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from minigpt.device import to_device
from minigpt.tokenizer import utf8
from minigpt.tokenizer.tokenizer import Tokenizer


class TextState(NamedTuple):
    """What a row's text so far allows: a state of `tokenizer/utf8.py`, and the bytes that must come first.

    `beginning` is the end of the prompt that is generated again (see `healing.py`); it is empty once it is written.
    """

    utf8: int
    beginning: bytes = b""


_STATES = tuple(map(TextState, range(utf8.N_STATES)))
_START, _ANY = _STATES[utf8.START], _STATES[utf8.ANY]

Masks = dict[tuple[TextState, torch.device], Tensor]

_MASKS: WeakKeyDictionary[Tokenizer, Masks] = WeakKeyDictionary()  # those without a beginning, for all constraints


class TextConstraint:
    """Masks the tokens that would break a character, and at first those that contradict the row's `beginning`.

    A character that has begun is finished: where a penalty or ban forbids every token that would do so, it does not
    apply. Special tokens, end-of-text among them, may stand only between two characters. With `allow_invalid_utf8`, or
    after a prompt that is not UTF-8, any bytes may follow.
    """

    def __init__(self, tokenizer: Tokenizer, *, allow_invalid_utf8: bool = False) -> None:
        self._tokenizer, self._allow_invalid_utf8 = tokenizer, allow_invalid_utf8
        self._shared_masks = _MASKS.setdefault(tokenizer, {})
        self._own_masks: Masks = {}  # those with a beginning

    @property
    def vocab_size(self) -> int:
        """The number of token ids that the masks cover."""
        return self._tokenizer.vocab_size

    def start(self, prompt: Sequence[int], beginning: bytes = b"") -> TextState:
        """The state after the tokens of a prompt, if its continuation must begin with these bytes."""
        state = utf8.ANY
        if not self._allow_invalid_utf8:
            decoder = codecs.getincrementaldecoder("utf-8")()
            try:
                decoder.decode(self._tokenizer.decode_bytes(prompt))
                state = utf8.state_after(decoder.getstate()[0])  # of the last character, if it is incomplete
            except UnicodeDecodeError:
                pass
        return TextState(state, beginning)

    def advance(self, state: TextState, token: int) -> TextState:
        """The state after one more token."""
        after = self._tokenizer.utf8_transitions.item(state.utf8, token)
        if not state.beginning:
            return _STATES[after]
        return TextState(after, state.beginning[len(self._tokenizer.token_bytes(token)) :])

    def apply(self, processed: Tensor, logits: Tensor, states: Sequence[TextState]) -> Tensor:
        """Processed logits with -inf for the tokens that must not follow: (B, V) -> (B, V).

        `logits` (B, V) are those before all processors.
        """
        state = states[0]
        if states.count(state) == len(states):
            if state == _ANY:
                return processed
            mask = self._mask(state, processed.device)  # (V,)
            if state == _START:
                return processed + mask
        else:
            mask = torch.stack([self._mask(state, processed.device) for state in states])  # (B, V)
        masked = processed + mask
        unfinished = [[state not in (_START, _ANY)] for state in states]
        if not any(map(any, unfinished)):
            return masked
        is_stuck = (masked.amax(dim=-1, keepdim=True) == -math.inf) & to_device(torch.tensor(unfinished), mask.device)
        return torch.where(is_stuck, logits.float() + mask, masked)

    def _mask(self, state: TextState, device: torch.device) -> Tensor:
        """The mask of a state, which is built once: (V,)."""
        masks = self._own_masks if state.beginning else self._shared_masks
        if (state, device) not in masks:
            masks[state, device] = self._build_mask(state, device)
        return masks[state, device]

    def _build_mask(self, state: TextState, device: torch.device) -> Tensor:
        """0 for the tokens that may follow in this state, -inf for the others: (V,) float32."""
        transitions = self._tokenizer.utf8_transitions[state.utf8]
        allowed = torch.from_numpy(transitions != utf8.INVALID)
        if state.beginning:
            fits = torch.zeros_like(allowed)
            fits[self._tokenizer.ids_along(state.beginning)] = True
            allowed &= fits
        return torch.where(allowed, 0.0, -math.inf).to(device)
