"""Finds the characters of a text that a model cannot tell from others, because they have no token of their own."""

from minigpt.model.gpt import GPT
from minigpt.tokenizer.tokenizer import Tokenizer

_NO_TEXT = b"\xff"  # a byte that UTF-8 never has


def unread_characters(model: GPT, tokenizer: Tokenizer, text: str) -> list[str]:
    """The characters, each once, that become the unknown token, or one of the `unread_tokens`."""
    if unread := unread_tokens(model, tokenizer):
        return [char for char in dict.fromkeys(text) if unread & {*tokenizer.encode(char)}]
    unknown = tokenizer.special.get(tokenizer.unknown or "")
    if unknown is None or unknown not in tokenizer.encode(text):
        return []
    return [char for char in dict.fromkeys(text) if not char.isspace() and unknown in tokenizer.encode(char)]


def unread_tokens(model: GPT, tokenizer: Tokenizer) -> frozenset[int]:
    """The tokens that an imported model over characters got without an embedding of their own: the bytes of characters
    that it does not have (see `importers/nanogpt.py`).
    """
    if tokenizer.characters is None:
        return frozenset()
    embedding = model.token_embedding.weight
    of_no_text = embedding[tokenizer.byte_level("a search for characters").tokens[_NO_TEXT]]
    unread = (embedding == of_no_text).all(dim=1).nonzero().flatten().tolist()
    return frozenset(unread) if len(unread) > 1 else frozenset()  # in other models, that byte has its own
