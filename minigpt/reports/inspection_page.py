"""An inspection as an HTML page: attention maps, the logit lens, probabilities and norms."""

from minigpt.config import GPTConfig
from minigpt.inspection import json_form
from minigpt.inspection.activations import Inspection
from minigpt.inspection.json_form import inspection_json
from minigpt.reports.page import INSPECTION_VIEWS, page
from minigpt.tokenizer.tokenizer import Tokenizer

KIND = "inspection"
_MOST_WEIGHTS = 6_000_000  # in a page: 12 MB, 16 in base64


def most_tokens(config: GPTConfig) -> int:
    """The most tokens that a page has room for: the context, or fewer if its attention maps would be too large."""
    return json_form.most_tokens(config, _MOST_WEIGHTS)


def inspection_page(inspection: Inspection, tokenizer: Tokenizer, model: str, *, layer: int = 0, head: int = 0) -> str:
    """The page of an inspection, which opens with the attention map of one layer and head."""
    data = inspection_json(inspection, tokenizer, model, layer=layer, head=head)
    labels = [data["labels"][number] for number in data["tokens"]]
    start = "".join(labels[:12]).replace("␣", " ")
    title = f"{start}{'…' if len(labels) > 12 else ''} · {model}"
    return page(title, [*INSPECTION_VIEWS, "inspection_page"], data, KIND)
