"""Puts styles, scripts and data into an HTML page so that nothing in them can become another part of it."""

import base64
import hashlib
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any


def read_asset(package: str, name: str) -> str:
    """A text file of a package's folder `assets`."""
    return (resources.files(package) / "assets" / name).read_text(encoding="utf-8")


def palette() -> str:
    """The style sheet that comes first in every page: the colours in light and dark, and what follows from them."""
    return read_asset("minigpt.pages", "palette.css")


def policy_source(text: str) -> str:
    """The source of an inline script or style in a content security policy: the hash of its text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def script_json(data: Mapping[str, Any]) -> str:
    """JSON in ASCII without `<`, so that it cannot end a script element or start a comment.

    Raises: ValueError for NaN or infinity, which JSON cannot hold; give None instead.
    """
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
