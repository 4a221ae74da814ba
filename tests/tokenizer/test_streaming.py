"""UTF-8 streaming: the pieces join to the decoded text, and no piece ends within a character."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.tokenizer.tokenizer import Tokenizer

MIXED = "It was the best of times, it's said.\n\nnaïve café — 中文字符 русский 😀👍🏽 1234 don't \t x = {}\r\n" * 5
TEXTS = st.one_of(st.text(), st.text(alphabet=sorted(set(MIXED))))
KINDS = ("gpt2", "bytes", "chars", "bpe:350")


def make(kind: str) -> Tokenizer:
    return Tokenizer.named(kind) if kind in ("gpt2", "bytes") else Tokenizer.train([MIXED], kind)


@pytest.mark.parametrize("kind", KINDS)
def test_streamed_pieces_join_to_the_decoded_text_even_if_it_is_invalid_utf8(kind: str) -> None:
    tokenizer = make(kind)

    @given(st.one_of(TEXTS.map(tokenizer.encode), st.lists(st.integers(0, tokenizer.end_of_text))))
    @settings(deadline=None, max_examples=100)
    def check(ids: list[int]) -> None:
        decoder = tokenizer.decoder()
        pieces = [decoder.feed(id) for id in ids] + [decoder.flush()]
        assert "".join(pieces) == tokenizer.decode(ids)

    check()


def test_a_character_is_held_back_until_its_last_byte() -> None:
    decoder = make("bytes").decoder()
    assert [decoder.feed(byte) for byte in "é中!".encode()] == ["", "é", "", "", "中", "!"]
    assert decoder.feed(0xC3) == ""
    assert decoder.flush() == "\ufffd"
