"""A model that was a teacher."""

from typing import Any

import pytest
from builders import new_model

from minigpt.config import TrainConfig
from minigpt.data.corpus import Corpus
from minigpt.errors import ConfigError
from minigpt.training.events import Step
from minigpt.training.loop import train


def settings(**changes: Any) -> TrainConfig:
    base = TrainConfig(
        steps=10, batch_size=6, micro_batch_size=4, warmup_steps=2, learning_rate=1e-2, eval_every=3, sample_every=4,
        eval_tokens=200, device="cpu",
    )  # fmt: skip
    return base.replace(**changes)


def test_a_model_that_was_a_teacher_is_trained_only_after_its_weights_are_unfrozen(corpus: Corpus) -> None:
    student, teacher = new_model(), new_model()
    config = settings(steps=1, eval_every=None, sample_every=0)
    list(train(student, corpus, config, teacher=teacher))
    with pytest.raises(ConfigError, match=r"no weights to train: .* call model\.requires_grad_\(True\)"):
        train(teacher, corpus, config)
    teacher.requires_grad_(True)
    assert any(isinstance(event, Step) for event in train(teacher, corpus, config))
