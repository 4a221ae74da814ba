"""A training step compiles without a graph break, and computes what the plain step does."""

from typing import Any

import pytest
from compiling import assert_compiles

from minigpt.data.corpus import Corpus

CASES: dict[str, dict[str, Any]] = {
    "muon": {},
    "adamw": {"optimizer": "adamw"},
    "checkpointing": {"checkpoint_activations": "on"},
}


@pytest.mark.filterwarnings("ignore")  # of torch.compile itself
@pytest.mark.parametrize("name", CASES)
def test_a_compiled_step_computes_what_the_plain_one_does(corpus: Corpus, name: str) -> None:
    assert_compiles(corpus, **CASES[name])
