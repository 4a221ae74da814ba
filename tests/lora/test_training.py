"""Training with frozen weights."""

from pathlib import Path
from typing import Any

import pytest
from builders import new_model, new_pair

from minigpt.config import TrainConfig
from minigpt.data.corpus import Corpus
from minigpt.errors import CheckpointError, ConfigError
from minigpt.lora.fine_tuning import apply_fine_tuning
from minigpt.training.loop import train


def settings(**changes: Any) -> TrainConfig:
    base = TrainConfig(
        steps=10, batch_size=6, micro_batch_size=4, warmup_steps=2, learning_rate=1e-2, eval_every=3, sample_every=4,
        eval_tokens=200, device="cpu",
    )  # fmt: skip
    return base.replace(**changes)


def test_a_run_of_all_weights_does_not_resume_with_frozen_ones(corpus: Corpus, tmp_path: Path) -> None:
    model, run = new_pair(tmp_path / "run")
    list(train(model, corpus, settings(steps=2), run))
    frozen = settings(steps=4, freeze=1)
    apply_fine_tuning(model, frozen)
    with pytest.raises(CheckpointError, match=r"its tensor 'optimizer\..*' does not belong to this model"):
        train(model, corpus, frozen, run, resume=True)


@pytest.mark.parametrize(("changes", "asked"), [({"freeze": 1}, r"freeze \(1\)"), ({"lora": True}, r"lora \(on\)")])
def test_settings_that_are_not_applied_are_refused(corpus: Corpus, changes: dict[str, Any], asked: str) -> None:
    message = rf"^{asked} is not applied to the model; call .*\.apply_fine_tuning\(model, config"
    with pytest.raises(ConfigError, match=message):
        list(train(new_model(dropout=0.1), corpus, settings(**changes)))
