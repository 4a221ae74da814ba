"""A self-contained HTML page: its data, styles and scripts are in the file, and it loads nothing."""

import html
from collections.abc import Mapping, Sequence
from importlib import resources
from string import Template
from typing import Any

from minigpt.inspection.colors import CIVIDIS
from minigpt.pages.document import palette, policy_source, read_asset, script_json
from minigpt.tokenizer.display import visible

_ASSETS = resources.files("minigpt.reports") / "assets"


def page(
    title: str, script_names: Sequence[str], data: Mapping[str, Any], kind: str = "page", *, connects: bool = False
) -> str:
    """A page that runs page.js of assets/ and then the scripts named, each with its style sheet, on `data`.

    `kind` is noted in the page, as `mark_of` says.

    The scripts get the data as JSON, so that text in it cannot become part of the page. The content security policy
    forbids the page to load anything and to run other scripts; with `connects`, it may read from the server that it
    comes from.

    Raises: ValueError for NaN or infinity in the data, which JSON cannot hold; give None instead.
    """
    names = ["page", *script_names]
    own_styles = [_asset(f"{name}.css") for name in names if (_ASSETS / f"{name}.css").is_file()]
    styles = "\n".join([palette(), *own_styles])
    scripts = [_asset(f"{name}.js") for name in names]
    policy = (
        f"default-src 'none'; script-src {' '.join(map(policy_source, scripts))}; style-src {policy_source(styles)}"
    )
    policy += "; connect-src 'self'" * connects
    return Template(_asset("page.html")).substitute(
        title=html.escape(visible(title)),
        generator=mark_of(kind),
        policy=html.escape(policy, quote=True),
        styles=styles,
        data=script_json({"scale": CIVIDIS, **data}),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )


def mark_of(kind: str) -> str:
    """The text in every page of a kind, by which a page that minigpt wrote is recognized."""
    return f'<meta name="generator" content="minigpt, {kind}">'


def _asset(name: str) -> str:
    return read_asset("minigpt.reports", name)
