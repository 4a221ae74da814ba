"""How many continuations are generated in parallel."""

import pytest
import torch

from minigpt.config import GPTConfig, SamplingConfig
from minigpt.errors import ConfigError
from minigpt.generation import capacity
from minigpt.model.kv_cache import KVCache

SHAPE = GPTConfig(vocab_size=257, n_positions=16, n_embd=16, n_layer=2, n_head=2)
CPU = torch.device("cpu")
LOGITS = 8 * 257  # bytes
ROW = 2 * 4 * 2 * 16 * 16 + LOGITS  # bytes, with the keys and values of a full context


@pytest.mark.parametrize(("rows", "samples", "expected"), [(3, 1, 3), (7, 3, 6), (10**6, 1, 32), (10**6, 5, 30)])
@pytest.mark.parametrize("keep_all", [True, False])
def test_the_rows_fit_in_four_fifths_of_the_free_memory_and_are_a_multiple_of_a_prompts_texts(
    monkeypatch: pytest.MonkeyPatch, rows: int, samples: int, expected: int, keep_all: bool
) -> None:
    monkeypatch.setattr(capacity, "free_memory", lambda _: int((rows + 1) * ROW / 0.8) - 1)
    config = SamplingConfig(samples=samples) if keep_all else SamplingConfig(best_of=samples)
    assert capacity.rows_at_once(SHAPE, torch.float32, config, CPU) == expected


def test_beams_count_as_rows_and_too_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "free_memory", lambda _: int(4 * ROW / 0.8) - 1)
    with pytest.raises(ConfigError, match=r"^4 .* 3 would fit$"):
        capacity.rows_at_once(SHAPE, torch.float32, SamplingConfig(beams=4), CPU)


@pytest.mark.parametrize(
    ("beams", "free", "message"),
    [
        (12, 9.0, "12 continuations in parallel need 7.6 GB for keys and values, but may take only 80% of the 9.0 GB "
         "that are free; 11 would fit"),
        (1, 0.7, "1 continuation needs 0.6 GB for keys and values, but may take only 80% of the 0.7 GB that are free; "
         "use a smaller model, or free memory"),
    ],
)  # fmt: skip
def test_the_refusal_names_the_share_of_the_free_memory_and_how_many_rows_fit_in_it(
    monkeypatch: pytest.MonkeyPatch, beams: int, free: float, message: str
) -> None:
    monkeypatch.setattr(capacity, "free_memory", lambda _: int(free * 1e9))
    gpt2_xl = GPTConfig(vocab_size=50257, n_positions=1024, n_embd=1600, n_layer=48, n_head=25)
    with pytest.raises(ConfigError) as caught:
        capacity.rows_at_once(gpt2_xl, torch.float32, SamplingConfig(beams=beams), CPU)
    assert str(caught.value) == message


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_short_text_counts_with_all_the_memory_that_its_cache_allocates(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    cache = KVCache(SHAPE, 5, dtype=dtype)
    allocated = sum(buffer.nbytes for layer in cache.layers for buffer in (layer.keys, layer.values))
    monkeypatch.setattr(capacity, "free_memory", lambda _: int((allocated + 5 * LOGITS) / 0.8) + 1)
    assert capacity.rows_at_once(SHAPE, dtype, SamplingConfig(max_new_tokens=1), CPU) == 5
