"""Every cell of the matrix in docs/reference/export-formats.md: the exported model gives the logits of its source."""

import re
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
    table = page.partition("| from \\ to |")[2].partition("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    assert sorted(source for row in rows for source in row[0].split("; ")) == sorted(MATRIX.SOURCES)
    assert all(len(row) == 1 + len(MATRIX.TARGETS) for row in rows)
    assert all(re.match(r"\d\.\de[+-]\d\d", cell) for row in rows for cell in row[1:])
    assert "ids differ" not in page


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
