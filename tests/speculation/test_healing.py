"""Speculative decoding after a prompt of which the end was taken back."""

from typing import Any

import pytest
import torch

from minigpt.config import GPTConfig, SamplingConfig
from minigpt.generation.engine import Engine
from minigpt.generation.streaming import Piece, generate_pieces
from minigpt.model.gpt import GPT
from minigpt.native import compiled
from minigpt.native.engine import NativeEngine
from minigpt.speculation.drafters import PromptLookup
from minigpt.tokenizer.tokenizer import Tokenizer

NAMES = ("area", "width", "height", "border", "corner", "center")
CODE = "".join(
    f"class {name.title()}:\n    def {name}(self, {other}):\n        return self.{other} + {other}\n\n\n"
    f"def get_{name}({other}):\n    if {other} > 2:\n        return {other}\n    return {name.title()}()\n\n\n"
    for name in NAMES
    for other in NAMES
    if name != other
)
BPE = Tokenizer.train([CODE], "bpe:400")
needs_native = pytest.mark.skipif(compiled.library() is None, reason="the C code is not compiled")


@pytest.fixture(scope="module")
def model() -> GPT:
    """A model that has learned CODE."""
    torch.manual_seed(0)
    ids = torch.tensor(BPE.encode(CODE))
    model = GPT(GPTConfig(vocab_size=BPE.vocab_size, n_positions=64, n_embd=48, n_layer=1, n_head=2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(0)
    for _ in range(150):
        starts = torch.randint(len(ids) - 33, (8,), generator=generator).tolist()
        batch = torch.stack([ids[start : start + 33] for start in starts])
        loss = torch.nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 1.0
    return model.eval()


def pieces(engine: Engine, prompts: list[str], **changes: Any) -> list[Piece]:
    drafter, alternatives = changes.pop("drafter", None), changes.pop("alternatives", None)
    config = SamplingConfig(**{"max_new_tokens": 12, "temperature": 0, "seed": 0} | changes)
    return list(generate_pieces(engine, BPE, prompts, config, drafter=drafter, alternatives=alternatives))


def text_of(found: list[Piece], row: int = 0) -> str:
    return "".join(piece.text for piece in found if piece.row == row)


@needs_native
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_speculation_changes_no_token_of_a_healed_prompt(always_drafts: None, model: GPT, temperature: float) -> None:
    prompt = "class Area:\n    def area(self, width):\n        return self.width + width\n\n\nclass Area:\n    def "
    engine = NativeEngine(model, "none")
    plain = pieces(engine, [prompt], temperature=temperature)
    drafted = pieces(engine, [prompt], temperature=temperature, drafter=PromptLookup())
    assert [piece.token.id for piece in drafted] == [piece.token.id for piece in plain]
    assert text_of(drafted) == text_of(plain)
