"""Every cell of the matrix in docs/reference/export-formats.md: the exported model gives the logits of its source."""

from pathlib import Path
from typing import Any

import pytest
from scripts import ROOT, load_script

# The largest allowed difference of a logit, in standard deviations of the logits.
BOUNDS = {
    "GGUF f32 in llama.cpp": 0.005,
    "GGUF f16 in llama.cpp": 0.01,
    "GGUF bf16 in llama.cpp": 0.06,
    "GGUF q8_0 in llama.cpp": 0.25,
}


MATRIX: Any = load_script("docs/interop_matrix.py")


def test_the_page_shows_the_whole_matrix() -> None:
    page = (ROOT / "docs" / "reference" / "export-formats.md").read_text(encoding="utf-8")
    assert "| from \\ to | " + " | ".join(MATRIX.TARGETS) + " |" in page
    rows = [line for line in page.splitlines() if line.startswith(tuple(f"| {source} |" for source in MATRIX.SOURCES))]
    assert len(rows) == len(MATRIX.SOURCES)
    assert all(row.count("ids equal") == len(MATRIX.TARGETS) for row in rows)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # from the other programs
@pytest.mark.parametrize("target", MATRIX.TARGETS)
@pytest.mark.parametrize("source", MATRIX.SOURCES)
def test_a_conversion_keeps_logits_greedy_tokens_and_ids(tmp_path: Path, source: str, target: str) -> None:
    packages = {"G": "gguf", "O": "onnxruntime", "C": "ctranslate2", "t": "transformers"}
    for package in (packages[target[0]], "transformers", *(["llama_cpp"] if "llama" in target else [])):
        pytest.importorskip(package)
    found = MATRIX.cell(source, target, tmp_path)
    # llama.cpp and readers of its files have only the tanh form of GELU; nanoGPT's models use the exact one.
    inexact = "nanoGPT" in source and "GGUF" in target
    assert found.deviations < BOUNDS.get(target, 0.005 if inexact else 1e-4), found
    assert found.same_ids
    if "q8_0" not in target:
        assert found.greedy == found.of == 16
