"""How many continuations are generated in parallel."""

import pytest
import torch

from minigpt.config import GPTConfig, SamplingConfig
from minigpt.errors import ConfigError
from minigpt.generation import capacity

SHAPE = GPTConfig(vocab_size=257, n_positions=16, n_embd=16, n_layer=2, n_head=2)
CPU = torch.device("cpu")
ROW = 2 * 4 * 2 * 16 * 16 + 8 * 257  # bytes: keys and values of a full context, and logits


@pytest.mark.parametrize(("rows", "samples", "expected"), [(3, 1, 3), (7, 3, 6), (10**6, 1, 32), (10**6, 5, 30)])
@pytest.mark.parametrize("keep_all", [True, False])
def test_the_rows_fit_in_four_fifths_of_the_free_memory_and_are_a_multiple_of_a_prompts_texts(
    monkeypatch: pytest.MonkeyPatch, rows: int, samples: int, expected: int, keep_all: bool
) -> None:
    monkeypatch.setattr(capacity, "free_memory", lambda _: int((rows + 1) * ROW / 0.8) - 1)
    config = SamplingConfig(samples=samples) if keep_all else SamplingConfig(best_of=samples)
    assert capacity.rows_at_once(SHAPE, 16, config, CPU) == expected


def test_beams_count_as_rows_and_too_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "free_memory", lambda _: int(4 * ROW / 0.8) - 1)
    with pytest.raises(ConfigError, match=r"^4 .* 3 would fit$"):
        capacity.rows_at_once(SHAPE, 16, SamplingConfig(beams=4), CPU)
