"""What a model shows of itself: its tokenizer, what it computes for a text, and how it was trained."""

from collections.abc import Callable, Sequence
from typing import Any

from minigpt.errors import CheckpointError
from minigpt.inspection.activations import inspect
from minigpt.inspection.json_form import inspection_json, most_tokens
from minigpt.reports.run_report import report_page
from minigpt.server.api_error import ApiError, invalid
from minigpt.server.request_bodies import DetokenizeBody, InspectBody, TokenizeBody
from minigpt.server.serve_config import ServeConfig
from minigpt.server.served_model import ServedModel

_MOST_WEIGHTS = 1_500_000  # of all attention maps: 3 MB, 4 in base64
_MOST_TOKENS = 256  # the logit lens reads the whole vocabulary after each of them, in every layer


def inspection(body: InspectBody, model: ServedModel, check: Callable[[], None]) -> dict[str, Any]:
    """The inspection of the end of a prompt; `check` is called often and may raise an error.

    Raises: ApiError for an id that the tokenizer does not have.
    """
    prompt = body.prompt
    ids = model.encode(prompt, token_healing=False).ids if isinstance(prompt, str) else prompt
    model.check_ids(ids, "prompt")
    kept = ids[-min(_MOST_TOKENS, most_tokens(model.network.config, _MOST_WEIGHTS)) :]
    found = inspect(model.network, kept, top=body.top, on_stage=check)
    return {**inspection_json(found, model.tokenizer, model.name), "skipped": len(ids) - len(kept)}


def report(model: ServedModel) -> str:
    """The page on the run that trained a model; damaged parts of its record are not shown.

    Nothing is read outside the model's folder: a record from a stranger may name any file as the training text.

    Raises: ApiError if minigpt did not train it, or its record cannot be read.
    """
    if model.directory is not None:
        try:
            return report_page([model.directory], [])
        except CheckpointError:  # its message names folders of this machine
            pass
    message = f"the model {model.name} has no report: its folder holds no record of a training run"
    raise ApiError(404, message, param="model", code="no_report")


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
