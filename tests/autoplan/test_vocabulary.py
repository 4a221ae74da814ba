"""The tokenizer that is chosen for a new model."""

from minigpt.tokenizer.bpe_training import default_tokenizer


def test_the_vocabulary_size_grows_with_the_text() -> None:
    sizes = (1000, 40_000, 300_000, 1_115_394, 1_212_543, 10**8, 10**9)
    assert [default_tokenizer(size) for size in sizes] == [
        "bytes", "bpe:512", "bpe:2048", "bpe:8192", "bpe:32768", "bpe:32768", "gpt2"
    ]  # fmt: skip
