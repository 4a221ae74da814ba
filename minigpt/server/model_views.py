"""`/inspect` and `/report`: what a model computes for a text, and how it was trained."""

from collections.abc import Callable
from typing import Any

from minigpt.errors import CheckpointError
from minigpt.inspection.activations import inspect
from minigpt.inspection.json_form import inspection_json, most_tokens
from minigpt.reports.run_report import report_page
from minigpt.server.api_error import ApiError
from minigpt.server.request_bodies import InspectBody
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
