"""`minigpt.plan` and `minigpt.fit` with an adapter."""

from pathlib import Path
from typing import Any

import minigpt

SETTINGS: dict[str, Any] = {
    "n_layer": 1, "n_head": 2, "n_embd": 16, "context_length": 16, "batch_size": 4, "tokenizer": "bytes", "steps": 6,
    "eval_every": 3, "device": "cpu", "dtype": "float32", "dropout": 0.1,
}  # fmt: skip


def test_a_plan_of_an_adapter_starts_from_the_base_model_each_time(here: Path) -> None:
    lora: dict[str, Any] = {"lora": True, "lora_rank": 2, "lora_embedding": True}
    list(minigpt.fit("fox.txt", name="base", report=False, **SETTINGS))
    plan = minigpt.plan("fox.txt", base="base", name="tuned", steps=3, learning_rate=0.01, device="cpu", **lora)
    runs = [list(minigpt.fit(plan, report=False)) for _ in range(2)]
    losses = [[event.loss for event in events if isinstance(event, minigpt.Step)] for events in runs]
    assert len(losses[0]) == 3
    assert losses[0] == losses[1]
