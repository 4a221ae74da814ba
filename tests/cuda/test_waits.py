"""How often the CPU waits for a real GPU; tests/test_pretended_cuda.py counts more, without one."""

import warnings
from typing import Any

import pytest
import torch
from builders import new_model

from minigpt.config import SamplingConfig
from minigpt.generation.decoding import generate


@pytest.mark.gpu
@pytest.mark.parametrize("changes", [{"temperature": 0.0}, {"top_p": 1.0}, {"top_k": 5, "no_repeat_ngram_size": 3}])
def test_a_token_on_a_gpu_costs_one_wait(changes: dict[str, Any]) -> None:
    """Counted by CUDA's own check."""
    steps = generate(new_model(n_positions=64).to("cuda"), torch.tensor([[1, 2, 3]]), SamplingConfig(**changes))
    for _ in range(3):  # the prompt and the recording of the step
        next(steps)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            next(steps)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert len([warning for warning in caught if "synchronizing" in str(warning.message)]) == 1
