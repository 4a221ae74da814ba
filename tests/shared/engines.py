"""Every engine, so that what engines have in common is tested on each that is installed."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from minigpt import edges
from minigpt.generation.engine import Engine
from minigpt.model.gpt import GPT

_EDGES = {"torch": None, "graph": "cuda", "native": "native", "int8": "native"}


def _reason_to_skip(kind: str) -> str:
    edge = _EDGES[kind]
    if edge is not None and not edges.is_installed(edge):
        return f"{edge} is not installed"
    if edge == "native" and edges.load("minigpt.native.compiled:library")() is None:
        return "the C code is not compiled"
    return ""


def of_kinds(*kinds: str) -> list[object]:
    """The kinds of engines as the values of a parameter; a test is skipped where its engine is missing."""
    marks = {kind: pytest.mark.skipif(bool(_reason_to_skip(kind)), reason=_reason_to_skip(kind)) for kind in kinds}
    return [pytest.param(kind, marks=marks[kind]) for kind in kinds]


def build_engine(kind: str, model: GPT) -> Engine:
    """An engine: PyTorch's, recorded steps of it, or the C code, with float32 weights or int8."""
    if kind == "torch":
        return Engine(model)
    if kind == "graph":
        return edges.load("minigpt.cuda.graphs:GraphEngine")(model)
    return edges.load("minigpt.native.engine:NativeEngine")(model, "int8" if kind == "int8" else "none")


@contextmanager
def short_spans() -> Iterator[None]:
    """Spans of 2, 4 and 8 cached positions, so that the short texts of tests need several of them."""
    with pytest.MonkeyPatch.context() as patch:
        if edges.is_installed("cuda"):
            patch.setattr("minigpt.cuda.graphs._SHORTEST_SPAN", 2)
        yield
