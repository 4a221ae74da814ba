"""The states of UTF-8 agree with Python's decoder, byte by byte and token by token."""

import codecs

from hypothesis import example, given
from hypothesis import strategies as st

from minigpt.tokenizer.tokenizer import Tokenizer
from minigpt.tokenizer.utf8 import ANY, INVALID, N_STATES, START, state_after, token_transitions

# Bytes at the bounds of what UTF-8 allows, so that random texts reach every state.
BOUNDS = st.sampled_from(
    [0, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xED, 0xEF, 0xF0, 0xF4, 0xF5, 255]
)


def python_decodes(text: bytes) -> tuple[bool, int]:
    """Whether the bytes can be the beginning of a UTF-8 text, and how many of them begin its last character."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        decoder.decode(text)
    except UnicodeDecodeError:
        return False, 0
    pending = decoder.getstate()[0]
    if pending[:1] == b"\xed" and pending[1:] >= b"\xa0":  # half of a surrogate, which Python refuses a byte later
        return False, 0
    return True, len(pending)


@given(st.lists(BOUNDS, max_size=6).map(bytes) | st.text(max_size=4).map(str.encode) | st.binary(max_size=4))
@example(b"\xed\xa0\x80")  # half of a surrogate pair
@example(b"\xed\xa0")  # and its beginning
@example(b"\xed\x9f")
@example(b"\xf4\x90\x80\x80")  # beyond the last code point
@example(b"\xe0\x80\x80")  # too long a form
def test_a_text_is_valid_where_pythons_decoder_accepts_it(text: bytes) -> None:
    valid, pending = python_decodes(text)
    state = state_after(text)
    assert (state != INVALID) == valid
    if valid:
        assert (state == START) == (pending == 0)


@given(
    st.lists(st.lists(BOUNDS, max_size=5).map(bytes) | st.text(max_size=3).map(str.encode), min_size=1, max_size=6),
    st.sampled_from([b"", b"\xc3", b"\xe6", b"\xe6\xbc", b"\xe0", b"\xed", b"\xf0", b"\xf4", b"\xf1\x80", b"\xff"]),
)
def test_a_token_leads_to_the_state_of_its_bytes(tokens: list[bytes], before: bytes) -> None:
    after = token_transitions(tokens)
    for id, token in enumerate(tokens):
        assert after[state_after(before), id] == (state_after(before + token) if token else INVALID)
        assert after[ANY, id] == ANY
    assert after.shape == (N_STATES, len(tokens))


def test_end_of_text_stands_only_between_two_characters() -> None:
    tokenizer = Tokenizer.named("bytes")
    allowed = tokenizer.utf8_transitions[:, tokenizer.end_of_text] != INVALID
    assert [state for state in range(N_STATES) if allowed[state]] == [START, ANY]


def test_every_incomplete_character_can_be_completed_by_single_bytes() -> None:
    transitions = Tokenizer.named("gpt2").utf8_transitions
    for state in range(N_STATES):
        assert state == INVALID or (transitions[state] != INVALID).any()


def test_a_beginning_can_begin_with_longer_tokens_and_with_its_own_beginnings() -> None:
    gpt2 = Tokenizer.named("gpt2")
    found = {gpt2.token_bytes(id) for id in gpt2.ids_along(b"\n ")}
    assert found == {b"\n"}  # GPT-2 has no token that begins with a line break and a space
    spaces = {gpt2.token_bytes(id) for id in gpt2.ids_along(b" def")}
    assert {b" ", b" d", b" de", b" def", b" default"} <= spaces
    assert all(token.startswith(b" def") or b" def".startswith(token) for token in spaces)
    assert gpt2.end_of_text not in gpt2.ids_along(b"<")
