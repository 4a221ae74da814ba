"""One HTML file that needs no other: data, styles and scripts in it, and nothing that it could load."""

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from string import Template
from typing import Any

from minigpt.inspection.colors import CIVIDIS

_ASSETS = resources.files("minigpt.reports") / "assets"


def page(title: str, script_names: Sequence[str], data: Mapping[str, Any]) -> str:
    """A page that runs assets/page.js, then these scripts of assets/, over `data`; each brings its style sheet along.

    Data reaches a script as JSON and only as JSON: text in it cannot become part of the page. The page's own policy
    forbids it to load anything, or to run any script but these.
    Raises: ValueError for a number in the data that JSON has no form for, such as NaN: give None.
    """
    names = ["page", *script_names]
    styles = "\n".join(_asset(f"{name}.css") for name in names if (_ASSETS / f"{name}.css").is_file())
    scripts = [_asset(f"{name}.js") for name in names]
    policy = f"default-src 'none'; script-src {' '.join(map(_source, scripts))}; style-src {_source(styles)}"
    return Template(_asset("page.html")).substitute(
        title=html.escape(title),
        policy=html.escape(policy, quote=True),
        styles=styles,
        data=_json({"scale": CIVIDIS, **data}),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _source(text: str) -> str:
    """What a content security policy calls an inline script or style of exactly this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _json(data: Mapping[str, Any]) -> str:
    """JSON that ends no script element and opens no comment: ASCII alone, and no <."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
