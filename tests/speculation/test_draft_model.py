"""`minigpt generate --draft-model`."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from builders import new_model

from minigpt.speculation import generate_settings
from minigpt.speculation.generate_settings import SpeculationSettings
from minigpt.tokenizer.tokenizer import Tokenizer


def test_a_draft_model_is_opened_in_the_dtype_of_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model = SimpleNamespace(model=new_model().bfloat16(), tokenizer=Tokenizer.named("bytes"), directory=Path("one"))
    opened: list[dict[str, Any]] = []
    monkeypatch.setattr(generate_settings, "open_model", lambda *_, **options: opened.append(options) or model)
    engine: Any = SimpleNamespace(device=torch.device("cpu"))
    settings = SpeculationSettings(draft="small", speculate="off")
    settings.drafter(model, engine, Path("checkpoints"))  # type: ignore[arg-type]
    assert opened == [{"dtype": "bfloat16"}]
