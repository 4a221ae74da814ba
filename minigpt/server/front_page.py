"""`GET /`: the playground, a page that continues texts, shows alternatives, attention and the model's report."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from starlette.responses import Response

from minigpt.inspection.page import INSPECTION_VIEWS, page_assets
from minigpt.pages.document import content_policy, document, joined_styles, read_body, scripts_of, styles_of
from minigpt.reports.run_report import SCRIPTS as REPORT_SCRIPTS
from minigpt.server.request_bodies import CompletionBody

_SHARED = ("page", "reading", *INSPECTION_VIEWS, "branches", "text", "prompt_form")
_OWN = ("api", "settings", "views", "playground")
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
# The settings on the page: their label, their first value, which is that of `minigpt generate`, and the last value that
# the page's field offers. The word on each is that of the request's schema.
_SETTINGS: Mapping[str, tuple[str, float | str, float | None]] = {
    "max_tokens": ("Tokens to write", 100, 10_000),
    "n": ("Texts side by side", 1, 8),
    "temperature": ("Temperature", 0.8, 2),
    "top_p": ("Top-p", 0.95, 1),
    "top_k": ("Top-k", "", None),
    "min_p": ("Min-p", 0, 1),
    "typical_p": ("Typical-p", 1, 1),
    "repetition_penalty": ("Repetition penalty", 1, 10),
    "presence_penalty": ("Presence penalty", 0, 2),
    "frequency_penalty": ("Frequency penalty", 0, 2),
    "no_repeat_ngram_size": ("No repeated n-gram", 0, 100),
    "min_new_tokens": ("Least tokens", 0, 10_000),
    "seed": ("Seed", "", 2**53 - 1),
}


def front_page() -> Response:
    """The page. It holds nothing of the models: it asks for them, with the key if there is one."""
    page, policy = _page()
    return page_response(page, policy)


def page_response(page: str, policy: str = "") -> Response:
    """A page, which no other page may embed; `policy` is in addition to the one inside the page."""
    policy = "; ".join(filter(None, (policy, "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'")))
    return Response(page, headers={**_HEADERS, "Content-Security-Policy": policy}, media_type="text/html")


@cache
def _page() -> tuple[str, str]:
    """The page and its policy. A report in a frame of the page inherits the policy, which allows its scripts."""
    scripts = scripts_of("minigpt.pages", *_SHARED) + scripts_of("minigpt.server", *_OWN)
    styles = styles_of("minigpt.pages", *_SHARED) + styles_of("minigpt.server", *_OWN)
    report_scripts, report_styles = page_assets(REPORT_SCRIPTS, "minigpt.reports")
    policy = content_policy(
        list(dict.fromkeys([*scripts, *report_scripts])),
        [joined_styles(styles), joined_styles(report_styles)],
        connects=True,
    )
    data = {"settings": _settings()}
    body = read_body("minigpt.server", "playground.html")
    return document("minigpt", "playground", scripts, styles, data, policy=policy, body=body), policy


def _settings() -> list[dict[str, Any]]:
    """The settings in their order, with the bounds and the help of the request's schema."""
    found, fields = [], CompletionBody.model_json_schema()["properties"]
    for name, (label, value, largest) in _SETTINGS.items():
        schema = {**fields[name], **fields[name].get("anyOf", [{}])[0]}
        found.append(
            {
                "name": name,
                "label": label,
                "help": schema["description"],
                "value": value,
                "min": 1 if name == "max_tokens" else schema.get("minimum", schema.get("exclusiveMinimum")),
                "isAbove": "exclusiveMinimum" in schema,
                "max": largest,
                "isInteger": "integer" in schema["type"],
            }
        )
    return found
