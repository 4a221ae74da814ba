"""Texts of untrained models, whose bytes are as likely as any, and what they are drawn with."""

from typing import Any

from builders import new_model

from minigpt.config import SamplingConfig
from minigpt.generation.engine import Engine
from minigpt.generation.streaming import generate_pieces
from minigpt.model.gpt import GPT
from minigpt.tokenizer.tokenizer import Tokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
TEXT = "朝起きると窓の外は雨だった。Ein Wörterbuch über Bäume, 電車の中で café 🐋🐋🐋 und naïve Grüße, 雨だった。" * 4
BYTES = Tokenizer.named("bytes")
TOKENIZERS = {"bytes": BYTES, "bpe": Tokenizer.train([TEXT], "bpe:300"), "chars": Tokenizer.train([TEXT], "chars")}
SAMPLERS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "all": {"temperature": 1.5, "top_p": 1.0},
    "top-p": {"temperature": 3.0, "top_p": 0.9},
    "top-k": {"temperature": 2.0, "top_k": 5},
    "min-p": {"temperature": 2.0, "min_p": 0.02},
    "typical": {"temperature": 2.0, "typical_p": 0.9},
    "penalties": {"temperature": 1.0, "repetition_penalty": 1.5, "frequency_penalty": 0.3, "no_repeat_ngram_size": 2},
}


def untrained(tokenizer: Tokenizer, **fields: int) -> GPT:
    """A model that has learned nothing: invalid bytes are as likely as any."""
    return new_model(scale=8, vocab_size=tokenizer.vocab_size, n_positions=64, **fields)


def written(engine: Engine, tokenizer: Tokenizer, prompts: list[str], **changes: Any) -> list[str]:
    """The texts, and a check that the tokens spell them."""
    drafter = changes.pop("drafter", None)
    config = SamplingConfig(**{"max_new_tokens": 150, "seed": 3} | changes)
    rows = len(prompts) * config.samples
    texts, ids = [""] * rows, [[] for _ in range(rows)]
    for piece in generate_pieces(engine, tokenizer, prompts, config, drafter=drafter):
        texts[piece.row] += piece.text
        ids[piece.row].append(piece.token.id)
    for text, row in zip(texts, ids, strict=True):
        kept = row[:-1] if row[-1] == tokenizer.end_of_text else row
        errors = "replace" if config.allow_invalid_utf8 else "ignore"  # a part of a character at the end is dropped
        assert tokenizer.decode_bytes(kept).decode(errors=errors) == text
    return texts
