"""Text and tokens made visible."""

from minigpt.tokenizer.display import one_line, plain_name, token_label, visible
from minigpt.tokenizer.tokenizer import Tokenizer


def test_control_characters_and_incomplete_bytes_are_made_visible() -> None:
    tokenizer = Tokenizer.named("gpt2")
    labels = [token_label(tokenizer, id) for id in tokenizer.encode(" the\n\t\x1bé日")]
    assert labels == ["␣the", "↵", "␉", "␛", "é", "⟨e6 97⟩", "⟨a5⟩"]
    assert token_label(tokenizer, 50256) == "<|endoftext|>"
    assert token_label(tokenizer, 50300) == "⟨id 50300⟩"
    assert visible("a\u202eb\x9bc\x7f\n") == "a⟨202E⟩b␡c␡␊"
    assert visible("שלום\u200f\n\t", is_text=True) == "שלום\u200f\n\t"


def test_invisible_characters_of_names_are_visible_and_bytes_that_are_not_utf8() -> None:
    name = b"caf\xe9".decode(errors="surrogateescape")
    assert visible(f"{name}\u200b\u2066\ud800") == "caf⟨E9⟩⟨200B⟩⟨2066⟩⟨D800⟩"
    assert visible("‍👩‍🚀 می‌خواهم") == "‍👩‍🚀 می‌خواهم"  # joiners belong to the writing
    assert visible("a\u202eb\x1b", is_text=True) == "a⟨202E⟩b␛"
    assert plain_name(f"{name}\n\x1b[1m") == "caf___[1m"


def test_a_long_value_loses_its_middle() -> None:
    assert one_line("a" * 2000) == "a" * 2000
    shown = one_line("a" * 5_000_000 + "\nb", most=100)
    assert shown.startswith("a" * 75 + " … (4,999,902 characters omitted) … ")
    assert shown.endswith("a␊b")
