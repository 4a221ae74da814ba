"""A model without a tokenizer: texts have no tokens, and its size is saved."""

from pathlib import Path
from typing import Any

import pytest
from builders import new_model

from minigpt.config import SamplingConfig
from minigpt.errors import ConfigError
from minigpt.foreign_tokenizers.ids_only import IdsOnly
from minigpt.generation.sampling import Sampler
from minigpt.storage.checkpoint import load_checkpoint, save_checkpoint
from minigpt.tokenizer.tokenizer import Tokenizer


def sampler(tokenizer: Tokenizer | None = None, **changes: Any) -> Sampler:
    """A sampler without filters, except for these settings."""
    return Sampler(SamplingConfig(**{"temperature": 1, "top_p": 1, "seed": 0} | changes), tokenizer)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"bad_words": ("3", " ")},
            "bad_words (' ') must contain a token, but this model's tokenizer finds none in it; give another text",
        ),
        (
            {"logit_bias": (" =2",)},
            "logit_bias (' =2') must name one token, but this model's tokenizer finds none in ' '",
        ),
    ],
    ids=["bad word", "bias"],
)
def test_a_text_without_tokens_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        sampler(Tokenizer(IdsOnly(size=40, end_id=7)), **changes)
    assert str(caught.value) == message


def test_it_replaces_a_tokenizer_that_was_saved_before(tmp_path: Path) -> None:
    ids_only = Tokenizer(IdsOnly(257, 256))
    save_checkpoint(tmp_path, new_model(), Tokenizer.named("bytes"))
    save_checkpoint(tmp_path, new_model(), ids_only)
    assert load_checkpoint(tmp_path, "cpu").tokenizer.fingerprint == ids_only.fingerprint


def test_a_model_without_a_tokenizer_saves_its_size_into_a_new_folder(tmp_path):
    Tokenizer(IdsOnly(size=40, end_id=7)).save(tmp_path / "new" / "folder")
    loaded = Tokenizer.load(tmp_path / "new" / "folder")
    assert (loaded.vocab_size, loaded.end_of_text) == (40, 7)
