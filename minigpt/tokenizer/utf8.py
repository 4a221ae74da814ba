"""UTF-8 as a state machine: which byte, and which token, may follow an incomplete character.

Source: The Unicode Standard, table 3-7 (well-formed UTF-8 byte sequences).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

START = 0  # between two characters
# States 1, 2 and 3: that many continuation bytes (0x80 to 0xBF) are missing.
_AFTER_E0, _AFTER_ED, _AFTER_F0, _AFTER_F4 = 4, 5, 6, 7  # their next byte has narrower bounds
INVALID = 8  # the bytes are not UTF-8, whatever follows
ANY = 9  # invalid bytes are allowed; this state is never left
N_STATES = 10

Transitions = npt.NDArray[np.uint8]


def _byte_transitions() -> Transitions:
    """The state after each byte in each state. Shapes: (N_STATES, 256)."""
    after = np.full((N_STATES, 256), INVALID, np.uint8)
    after[START, :0x80] = START
    after[START, 0xC2:0xE0] = 1
    after[START, 0xE0:0xF0] = 2
    after[START, 0xF0:0xF5] = 3
    for byte, state in ((0xE0, _AFTER_E0), (0xED, _AFTER_ED), (0xF0, _AFTER_F0), (0xF4, _AFTER_F4)):
        after[START, byte] = state
    for missing in (1, 2, 3):
        after[missing, 0x80:0xC0] = missing - 1
    after[_AFTER_E0, 0xA0:0xC0] = 1  # below: a character that fits in two bytes
    after[_AFTER_ED, 0x80:0xA0] = 1  # above: half of a surrogate pair
    after[_AFTER_F0, 0x90:0xC0] = 2  # below: a character that fits in three bytes
    after[_AFTER_F4, 0x80:0x90] = 2  # above: beyond U+10FFFF
    after[ANY] = ANY
    return after


_AFTER_BYTE = _byte_transitions()


def state_after(text: bytes) -> int:
    """The state after these bytes, from the start of a text."""
    state = START
    for byte in text:
        state = int(_AFTER_BYTE[state, byte])
    return state


def token_transitions(tokens: Sequence[bytes], whole: Sequence[int] = ()) -> Transitions:
    """The state after each token in each state; INVALID for a token that must not follow there.

    The tokens with the ids `whole`, such as end-of-text, may stand only between two characters; tokens without bytes
    nowhere.
    Shapes: (N_STATES, V).
    """
    after = np.full((N_STATES, len(tokens)), INVALID, np.uint8)
    after[ANY] = ANY
    after[START, [bool(token) for token in tokens]] = START  # right for ASCII; the other tokens follow
    others = [id for id, token in enumerate(tokens) if not token.isascii()]
    states = np.repeat(np.arange(N_STATES, dtype=np.uint8)[:, None], len(others), axis=1)
    lengths = np.array([len(tokens[id]) for id in others], np.int64)
    content = np.frombuffer(b"".join(tokens[id] for id in others), np.uint8)
    starts = np.cumsum(lengths) - lengths
    for at in range(int(lengths.max(initial=0))):
        longer = np.flatnonzero(lengths > at)
        states[:, longer] = _AFTER_BYTE[states[:, longer], content[starts[longer] + at]]
    after[:, others] = states
    after[1:ANY, list(whole)] = INVALID
    return after
