"""Text and tokens made visible."""

from minigpt.tokenizer.display import LAYOUT, token_label, visible
from minigpt.tokenizer.tokenizer import Tokenizer


def test_control_characters_and_incomplete_bytes_are_made_visible() -> None:
    tokenizer = Tokenizer.named("gpt2")
    labels = [token_label(tokenizer, id) for id in tokenizer.encode(" the\n\t\x1bé日")]
    assert labels == ["␣the", "↵", "␉", "␛", "é", "⟨e6 97⟩", "⟨a5⟩"]
    assert token_label(tokenizer, 50256) == "<|endoftext|>"
    assert token_label(tokenizer, 50300) == "⟨id 50300⟩"
    assert visible("a\u202eb\x9bc\x7f\n") == "a⟨202E⟩b␡c␡␊"
    assert visible("שלום\u200f\n\t", keep=LAYOUT) == "שלום\u200f\n\t"
