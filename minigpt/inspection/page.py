"""Self-contained HTML pages: their data, styles and scripts are in the file, and they load nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

from minigpt.inspection.activations import Inspection
from minigpt.inspection.json_form import inspection_json
from minigpt.pages.document import document, scripts_of, styles_of
from minigpt.tokenizer.display import visible
from minigpt.tokenizer.tokenizer import Tokenizer

# The views of an inspection, in assets/ of minigpt.pages, in the order in which they are shown.
INSPECTION_VIEWS = ("inspection", "tokens", "attention", "lens", "norms")
_SHARED = {"page", *INSPECTION_VIEWS, "inspection_page"}
INSPECTION = "inspection"
MOST_WEIGHTS = 6_000_000  # of all attention maps in a page: 12 MB, 16 in base64


def page(
    title: str, script_names: Sequence[str], data: Mapping[str, Any], kind: str, package: str = "minigpt.pages"
) -> str:
    """A page that runs page.js and then the scripts named, each with its style sheet, on `data`.

    The scripts are those of `minigpt.pages` and of `package`. `kind` is noted in the page, as `mark_of` says.

    The scripts get the data as JSON, so that text in it cannot become part of the page. The content security policy
    forbids the page to load anything and to run other scripts.

    Raises: ValueError for NaN or infinity in the data, which JSON cannot hold; give None instead.
    """
    return document(visible(title), kind, *page_assets(script_names, package), data)


def page_assets(script_names: Sequence[str], package: str = "minigpt.pages") -> tuple[list[str], list[str]]:
    """The scripts of a page, with page.js before them, and its style sheets; those of `package` if not shared."""
    scripts, styles = [], []
    for name in ("page", *script_names):
        place = "minigpt.pages" if name in _SHARED else package
        scripts += scripts_of(place, name)
        styles += styles_of(place, name)
    return scripts, styles


def inspection_page(
    inspection: Inspection, tokenizer: Tokenizer, model: str, *, layer: int | None = None, head: int | None = None
) -> str:
    """The page of an inspection, which opens with this attention map, or with a token and map that tell something."""
    data = inspection_json(inspection, tokenizer, model, layer=layer, head=head)
    labels = [data["labels"][number] for number in data["tokens"]]
    start = "".join(labels[:12]).replace("␣", " ")
    title = f"{start}{'…' if len(labels) > 12 else ''} · {model}"
    return page(title, [*INSPECTION_VIEWS, "inspection_page"], data, INSPECTION)
