"""Puts styles, scripts and data into an HTML page so that nothing in them can become another part of it."""

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from string import Template
from typing import Any

MOST_BITS = 10  # the surprisal with the strongest color: a probability of 1 in 1024
# The colors of attention weights, those of cividis at 0, 0.1, …, 1, from matplotlib: from dark blue to bright yellow,
# which color-blind readers can read too.
# Source: Nuñez, Anderton and Renslow 2018, "Optimizing colormaps with consideration for color vision deficiency".
CIVIDIS = (
    "00224e", "083370", "35456c", "4f576c", "666970", "7d7c78", "948e77", "aea371", "c8b866", "e5cf52", "fee838"
)  # fmt: skip


def read_asset(package: str, name: str) -> str:
    """A text file of a package's folder `assets`."""
    return (resources.files(package) / "assets" / name).read_text(encoding="utf-8")


def read_body(package: str, name: str) -> str:
    """The body of a page from a package's assets; `<!-- NAME.html -->` in it stands for that shared file."""
    return re.sub(
        r"<!-- (\w+\.html) -->\n", lambda found: read_asset("minigpt.pages", found[1]), read_asset(package, name)
    )


def policy_source(text: str) -> str:
    """The source of an inline script or style in a content security policy: the hash of its text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def script_json(data: Mapping[str, Any]) -> str:
    """JSON in ASCII without `<`, so that it cannot end a script element or start a comment.

    Raises: ValueError for NaN or infinity, which JSON cannot hold; give None instead.
    """
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def scripts_of(package: str, *names: str) -> list[str]:
    """The scripts of these names in a package's assets."""
    return [read_asset(package, f"{name}.js") for name in names]


def styles_of(package: str, *names: str) -> list[str]:
    """The style sheets of these names in a package's assets, of those that have one."""
    assets = resources.files(package) / "assets"
    return [read_asset(package, f"{name}.css") for name in names if (assets / f"{name}.css").is_file()]


def content_policy(scripts: Sequence[str], styles: Sequence[str], *, connects: bool = False) -> str:
    """The content security policy of a page that runs these scripts, has these style elements, and loads nothing.

    With `connects`, its scripts may send requests to the server that the page comes from.
    """
    sources = {"script-src": scripts, "style-src": styles}
    rules = [f"{name} {' '.join(map(policy_source, texts))}" for name, texts in sources.items()]
    return "; ".join(["default-src 'none'", *rules, *(["connect-src 'self'"] * connects)])


def document(
    title: str,
    kind: str,
    scripts: Sequence[str],
    styles: Sequence[str],
    data: Mapping[str, Any],
    *,
    policy: str = "",
    body: str = "",
) -> str:
    """A self-contained page that runs the scripts on the data and the colors' constants.

    The default policy is `content_policy`. `kind` is noted in the page, as `mark_of` says. The palette comes before the
    styles, `body` before the scripts.
    Raises: ValueError for NaN or infinity in the data, which JSON cannot hold; give None instead.
    """
    joined = joined_styles(styles)
    return Template(read_asset("minigpt.pages", "page.html")).substitute(
        title=html.escape(title),
        generator=mark_of(kind),
        policy=html.escape(policy or content_policy(scripts, [joined]), quote=True),
        styles=joined,
        body=body,
        data=script_json({"scale": CIVIDIS, "mostBits": MOST_BITS, **data}),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )


def joined_styles(styles: Sequence[str]) -> str:
    """The style element's text: the palette in light and dark, then these style sheets."""
    return "\n".join([read_asset("minigpt.pages", "palette.css"), *styles])


def mark_of(kind: str) -> str:
    """The text in every page of a kind, by which a page that minigpt wrote is recognized."""
    return f'<meta name="generator" content="minigpt, {kind}">'
