"""A self-contained HTML page: its data, styles and scripts are in the file, and it loads nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

from minigpt.pages.color_scale import CIVIDIS
from minigpt.pages.document import content_policy, document, joined_styles, scripts_of, styles_of
from minigpt.tokenizer.display import visible

# The views of an inspection, in assets/ of minigpt.pages, in the order in which they are shown.
INSPECTION_VIEWS = ("inspection", "tokens", "attention", "lens", "norms")
_SHARED = ("page", *INSPECTION_VIEWS)


def page(title: str, script_names: Sequence[str], data: Mapping[str, Any], kind: str = "page") -> str:
    """A page that runs page.js and then the scripts named, each with its style sheet, on `data`.

    The scripts are those of `minigpt.pages` and of this room. `kind` is noted in the page, as `mark_of` says.

    The scripts get the data as JSON, so that text in it cannot become part of the page. The content security policy
    forbids the page to load anything and to run other scripts.

    Raises: ValueError for NaN or infinity in the data, which JSON cannot hold; give None instead.
    """
    scripts, styles = page_assets(script_names)
    policy = content_policy(scripts, [joined_styles(styles)])
    return document(visible(title), kind, scripts, styles, {"scale": CIVIDIS, **data}, policy=policy)


def page_assets(script_names: Sequence[str]) -> tuple[list[str], list[str]]:
    """The scripts of a page, with page.js before them, and its style sheets."""
    scripts, styles = [], []
    for name in ("page", *script_names):
        package = "minigpt.pages" if name in _SHARED else "minigpt.reports"
        scripts += scripts_of(package, name)
        styles += styles_of(package, name)
    return scripts, styles
