"""A step of adapters, and one with frozen weights, compiles without a graph break."""

from typing import Any

import pytest
from compiling import assert_compiles

from minigpt.data.corpus import Corpus

LORA = {"lora": True, "lora_embedding": False, "optimizer": "adamw"}
CASES: dict[str, dict[str, Any]] = {
    "freeze": {"freeze": 1, "optimizer": "adamw"},
    "lora": LORA | {"base_dtype": "float32"},
    "lora bfloat16": LORA | {"base_dtype": "bfloat16"},
    "lora int8": LORA | {"base_dtype": "int8"},
}


@pytest.mark.filterwarnings("ignore")  # of torch.compile itself
@pytest.mark.parametrize("name", CASES)
def test_a_compiled_step_of_a_fine_tune_computes_what_the_plain_one_does(corpus: Corpus, name: str) -> None:
    assert_compiles(corpus, **CASES[name])
