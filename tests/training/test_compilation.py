"""Every kind of training step compiles without a graph break, and computes what the plain step does."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from builders import new_model

from minigpt import GPT, Corpus, Notice, Step, TrainConfig, train
from minigpt.lora.fine_tuning import apply_fine_tuning

LORA = {"lora": True, "lora_embedding": False, "optimizer": "adamw"}
CASES: dict[str, dict[str, Any]] = {
    "muon": {},
    "adamw": {"optimizer": "adamw"},
    "checkpointing": {"checkpoint_activations": "on"},
    "teacher": {"distill": "on"},
    "freeze": {"freeze": 1, "optimizer": "adamw"},
    "lora": LORA | {"base_dtype": "float32"},
    "lora bfloat16": LORA | {"base_dtype": "bfloat16"},
    "lora int8": LORA | {"base_dtype": "int8"},
}


@pytest.fixture(autouse=True)
def _without_code(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch.compile traces the forward and the backward pass as a whole and generates no code, which takes minutes."""
    compiled: Callable[..., Any] = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function: compiled(function, backend="aot_eager", fullgraph=True))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore")  # of torch.compile itself
@pytest.mark.parametrize("name", CASES)
def test_a_compiled_step_computes_what_the_plain_one_does(corpus: Corpus, name: str) -> None:
    losses = []
    for mode in ("on", "off"):
        model = new_model(n_layer=2)
        config = TrainConfig(
            steps=3, batch_size=4, device="cpu", dtype="bfloat16", compile=mode, sample_every=0
        ).replace(**CASES[name])  # fmt: skip
        apply_fine_tuning(model, config)
        teacher = GPT(model.config) if config.distill == "on" else None
        events = list(train(model, corpus, config, teacher=teacher))
        assert not [event.text for event in events if isinstance(event, Notice)]
        losses.append([event.loss for event in events if isinstance(event, Step)])
    assert len(losses[0]) == 3
    assert losses[0] == pytest.approx(losses[1], abs=2e-3)
