"""Whether a training step compiles as a whole, and then computes what it computes otherwise."""

from typing import Any

import pytest
import torch
from builders import new_model

from minigpt import GPT, Corpus, Notice, Step, TrainConfig, train
from minigpt.edges import provided


def assert_compiles(corpus: Corpus, *, taught: bool = False, **changes: Any) -> None:
    """It does in one graph; the losses of three steps are those without torch.compile.

    torch.compile traces the forward and the backward pass as a whole and generates no code, which takes minutes.
    """
    compile, losses = torch.compile, []
    torch._dynamo.reset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", lambda function: compile(function, backend="aot_eager", fullgraph=True))
        for mode in ("on", "off"):
            model = new_model(n_layer=2)
            config = TrainConfig(
                steps=3, batch_size=4, device="cpu", dtype="bfloat16", compile=mode, sample_every=0
            ).replace(**changes)  # fmt: skip
            for prepare in provided("prepare_model"):
                prepare(model, config)
            events = list(train(model, corpus, config, teacher=GPT(model.config) if taught else None))
            assert not [event.text for event in events if isinstance(event, Notice)]
            losses.append([event.loss for event in events if isinstance(event, Step)])
    torch._dynamo.reset()
    assert len(losses[0]) == 3
    assert losses[0] == pytest.approx(losses[1], abs=2e-3)
