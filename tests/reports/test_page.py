"""Pages are single files that load nothing and run no text of their data; the inspection page holds its numbers."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from importlib import resources
from typing import Any

import numpy as np
import pytest
from builders import new_model
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.config import PRESETS, GPTConfig
from minigpt.inspection.activations import inspect
from minigpt.inspection.json_form import most_tokens
from minigpt.inspection.page import MOST_WEIGHTS, inspection_page, page
from minigpt.tokenizer.display import token_label
from minigpt.tokenizer.tokenizer import Tokenizer

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!-- <script>",
    "]]>",
    "\u2028\u2029",
    "&lt;/script&gt;",
    "\\u003c/script",
    "\x00\x1b[31m",
    "$data ${data}",
]
ASSETS = [
    asset
    for package in ("minigpt.pages", "minigpt.reports", "minigpt.server")
    for asset in (resources.files(package) / "assets").iterdir()
]
SCRIPTS = {asset.name: asset for asset in ASSETS if asset.name.endswith(".js")}


class Parts(HTMLParser):
    """The elements of a page and their texts, as a browser parses them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.inside = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.texts.append("")
        self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.texts[-1] += data

    def of(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        return [
            (attributes, text)
            for (name, attributes), text in zip(self.elements, self.texts, strict=True)
            if name == tag
        ]


def data_of(text: str) -> Any:
    (found,) = [content for attributes, content in Parts(text).of("script") if attributes.get("id") == "data"]
    return json.loads(found)


def test_hostile_text_stays_data() -> None:
    made = page("</title><script>alert(1)</script>", ["inspection"], {"texts": HOSTILE}, "page")
    assert data_of(made)["texts"] == HOSTILE
    parts = Parts(made)
    assert [attributes for attributes, _ in parts.of("script")] == [{"type": "application/json", "id": "data"}, {}, {}]
    assert parts.of("title")[0][1] == "</title><script>alert(1)</script>"
    assert {tag for tag, _ in parts.elements} == {"html", "head", "meta", "title", "style", "body", "script"}


@settings(deadline=None, max_examples=60)
@given(st.text(st.characters(codec=None)))
def test_any_text_survives_the_round_trip(text: str) -> None:
    made = page(text.encode(errors="replace").decode(), [], {"text": text, text: 1}, "page")
    assert data_of(made)["text"] == (1 if text == "text" else text)
    assert len(Parts(made).of("script")) == 2
    made.encode()


def test_the_policy_allows_only_the_pages_own_scripts_and_styles_and_no_loading() -> None:
    parts = Parts(page("t", ["inspection", "tokens"], {}, "page"))
    policies = [attributes["content"] for attributes, _ in parts.of("meta") if "http-equiv" in attributes]
    (policy,) = policies
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules.keys() == {"default-src", "script-src", "style-src"}
    assert rules["default-src"] == "'none'"
    for tag in ("script", "style"):
        texts = [text for attributes, text in parts.of(tag) if "id" not in attributes]
        hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in texts]
        assert rules[f"{tag}-src"].split() == hashes


def test_the_assets_contain_no_external_address() -> None:
    for asset in ASSETS:
        for address in re.findall(r"https?:[^\s\"'`]+|url\((?!#)[^)]*\)|@import", asset.read_text(encoding="utf-8")):
            assert address.startswith("http://www.w3.org/"), (asset.name, address)  # the namespaces of HTML and SVG


def test_nan_in_the_data_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        page("t", [], {"value": float("nan")}, "page")


@pytest.mark.parametrize("script", sorted(SCRIPTS))
def test_the_scripts_are_valid_javascript(script: str) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    subprocess.run([node, "--check", str(SCRIPTS[script])], check=True)


def test_the_inspection_page_holds_the_inspections_numbers() -> None:
    model, tokenizer = new_model(scale=10, n_positions=32), Tokenizer.named("bytes")
    ids = tokenizer.encode("The </script> fox é\n")
    found = inspect(model, ids, top=4)
    data = data_of(inspection_page(found, tokenizer, "model"))
    n = len(ids)
    packed = np.frombuffer(base64.b64decode(data["attention"]), dtype="<u2").reshape(2, 2, n * (n + 1) // 2) / 65535
    rows, columns = np.tril_indices(n)
    assert np.abs(packed - found.attention.numpy()[:, :, rows, columns]).max() < 8e-6
    assert [data["labels"][token] for token in data["tokens"]] == [token_label(tokenizer, id) for id in ids]
    for layer in range(2):
        lens = data["lens"][layer]
        labels = [[token_label(tokenizer, id) for id in each] for each in found.lens.top_ids[layer].tolist()]
        assert [[data["labels"][number] for number in each] for each in lens["top"]] == labels
        assert np.allclose(lens["logprobs"], found.lens.top_logprobs[layer], atol=6e-5)
        assert lens["actual"][-1] is None
        assert np.allclose(lens["actual"][:-1], found.lens.logprobs[layer][:-1], atol=6e-5)
        assert lens["ranks"] == found.lens.ranks[layer].tolist()
    assert np.allclose(data["norms"]["residual"], found.residual_norms, atol=6e-5)


def test_the_page_of_12_layers_of_12_heads_over_64_tokens_is_smaller_than_5_megabytes() -> None:
    model = new_model(scale=10, n_layer=12, n_head=12, n_embd=24, n_positions=64)
    made = inspection_page(inspect(model, list(range(64)), top=10), Tokenizer.named("bytes"), "model")
    assert len(made.encode()) < 5_000_000


def test_a_page_has_room_for_a_whole_context_unless_its_maps_are_too_large() -> None:
    assert most_tokens(GPTConfig(n_layer=4, n_head=4, n_embd=128, n_positions=64), MOST_WEIGHTS) == 64
    most = most_tokens(PRESETS["gpt2"], MOST_WEIGHTS)
    assert 200 < most < 1024
    assert 144 * most * (most + 1) // 2 <= 6_000_000 < 144 * (most + 1) * (most + 2) // 2
