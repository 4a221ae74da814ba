"""`/tokenize`, `/detokenize` and `/tokenizer_info`: a model's tokenizer for clients that have none."""

from collections.abc import Sequence
from typing import Any

from minigpt.server.api_error import invalid
from minigpt.server.request_bodies import DetokenizeBody, TokenizeBody
from minigpt.server.serve_config import ServeConfig
from minigpt.server.served_model import ServedModel


def tokenize(body: TokenizeBody, model: ServedModel, config: ServeConfig) -> dict[str, Any]:
    """The token ids of a text, how many they are, and the model's context length.

    A text that is exactly the name of a special token is this token; an empty text has no tokens.
    Raises: ApiError for too many.
    """
    ids = model.encode(body.prompt, token_healing=False).ids if body.prompt else []
    if not body.add_special_tokens and body.prompt not in model.tokenizer.special:
        ids = model.tokenizer.encode(body.prompt)
    _check_amount(ids, "prompt", config)
    return {"tokens": ids, "count": len(ids), "max_model_len": model.context_length}


def detokenize(body: DetokenizeBody, model: ServedModel, config: ServeConfig) -> dict[str, Any]:
    """The text of token ids.

    Raises: ApiError for too many, and for an id that the tokenizer does not have.
    """
    _check_amount(body.tokens, "tokens", config)
    model.check_ids(body.tokens, "tokens")
    return {"prompt": model.tokenizer.decode(body.tokens)}


def _check_amount(ids: Sequence[int], param: str, config: ServeConfig) -> None:
    if len(ids) > config.max_total_tokens:
        raise invalid(
            f"{len(ids):,} tokens in one request are more than the {config.max_total_tokens:,} that this server "
            "accepts; send them in several requests",
            param,
        )


def tokenizer_info(model: ServedModel) -> dict[str, Any]:
    """The tokenizer's class and special tokens, by the names of Hugging Face's tokenizer_config.json."""
    tokenizer = model.tokenizer
    names = {id: name for name, id in tokenizer.special.items()}
    return {
        "tokenizer_class": tokenizer.class_name,
        "tokenizer": tokenizer.name,
        "vocab_size": tokenizer.vocab_size,
        "model_max_length": model.context_length,
        "bos_token": names[tokenizer.special_id("bos_token")],
        "eos_token": names[tokenizer.end_of_text],
        "unk_token": tokenizer.unknown or names[tokenizer.special_id("unk_token")],
        "pad_token": names[tokenizer.special_id("pad_token")],
        "add_bos_token": bool(tokenizer.prefix_ids),
        "chat_template": model.chat_template,
    }
