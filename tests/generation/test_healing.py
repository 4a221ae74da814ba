"""Token healing: the end of a prompt is taken back where its tokens would be others if the text went on."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minigpt.config import GPTConfig, SamplingConfig
from minigpt.generation.engine import Engine
from minigpt.generation.healing import encode_prompt
from minigpt.generation.streaming import Piece, generate_pieces
from minigpt.model.gpt import GPT
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
GPT2 = Tokenizer.named("gpt2")
BYTES = Tokenizer.named("bytes")


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


@pytest.fixture
def engine(model: GPT) -> Engine:
    return Engine(model)


def pieces(engine: Engine, prompts: list[str], **changes: Any) -> list[Piece]:
    drafter, alternatives = changes.pop("drafter", None), changes.pop("alternatives", None)
    config = SamplingConfig(**{"max_new_tokens": 12, "temperature": 0, "seed": 0} | changes)
    return list(generate_pieces(engine, BPE, prompts, config, drafter=drafter, alternatives=alternatives))


def text_of(found: list[Piece], row: int = 0) -> str:
    return "".join(piece.text for piece in found if piece.row == row)


# Which prompts


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("", ""), ("Hello", ""), ("Hello.", ""), ("x = (", ""), ('She said: "', ""), ("walked slo", ""), ("2024", ""),
        ("naïve é", ""), ("日本", ""), ("日本。", ""), ("x '", ""),
        ("def ", " "), ("Hello. ", " "), ("a\n", "\n"), ("a\n\n", "\n\n"), ("a  ", " "), (" ", " "), ("I'", "'"),
    ],
)  # fmt: skip
def test_only_an_end_whose_tokens_would_change_is_taken_back(text: str, end: str) -> None:
    prompt = encode_prompt(GPT2, text)
    assert prompt.end == end
    if not end:
        assert prompt.ids == (GPT2.encode(text) or [GPT2.end_of_text])


def test_an_end_that_an_end_token_could_spell_is_not_taken_back() -> None:
    text = "class Area:\n"
    assert encode_prompt(BPE, text).end == "\n"
    assert encode_prompt(BPE.with_end_ids(BPE.encode("\n")), text) == (BPE.encode(text), "")
    assert encode_prompt(BPE.with_end_ids(BPE.encode("x")), text) == encode_prompt(BPE, text)


def test_the_indentation_of_a_trained_tokenizer_is_taken_back_whole() -> None:
    text = "class Area:\n    "
    assert BPE.decode(encode_prompt(BPE, text).ids) == "class Area:"
    assert encode_prompt(BPE, text).end == "\n    "


@given(st.text("ab' \n\t\u3000é雨.1", max_size=12))
def test_the_tokens_and_the_end_spell_the_prompt(text: str) -> None:
    for tokenizer in (GPT2, BPE):
        ids, end = encode_prompt(tokenizer, text)
        if ids != [tokenizer.end_of_text]:
            assert tokenizer.decode(ids) + end == text
        if not text or not (text[-1].isspace() or text[-1] == "'"):
            assert ids == (tokenizer.encode(text) or [tokenizer.end_of_text])
        assert encode_prompt(tokenizer, text, token_healing=False).ids == (
            tokenizer.encode(text) or [tokenizer.end_of_text]
        )


@given(st.text("ab \n\t.1", max_size=10), st.sampled_from([" ", "\n", "  ", "\n    "]), st.text("abs", min_size=1))
def test_the_tokens_of_a_longer_text_begin_with_those_that_are_kept(start: str, space: str, more: str) -> None:
    for tokenizer in (GPT2, BPE):
        ids = encode_prompt(tokenizer, start + space).ids
        if ids != [tokenizer.end_of_text]:
            assert tokenizer.encode(start + space + more)[: len(ids)] == ids


def test_a_tokenizer_without_merges_takes_nothing_back() -> None:
    assert encode_prompt(BYTES, "def ") == (list(b"def "), "")
    chars = Tokenizer.train(["def é"], "chars")
    assert encode_prompt(chars, "é ").end == ""


# What is generated


@pytest.mark.parametrize("prompt", ["class Area:\n    def", "class Width:\n    def"])
def test_a_space_at_the_end_of_a_prompt_does_not_change_the_text(engine: Engine, prompt: str) -> None:
    whole = text_of(pieces(engine, [prompt]))
    assert whole.startswith(" ")
    assert text_of(pieces(engine, [prompt + " "])) == whole[1:]


def test_the_tokens_spell_the_end_and_the_text_leaves_it_out(engine: Engine) -> None:
    for prompt, end in (("class Area:\n    def ", " "), ("class Area:\n    ", "\n    ")):
        found = pieces(engine, [prompt], temperature=1.0, samples=4)
        for row in range(4):
            own = [piece for piece in found if piece.row == row]
            assert "".join(piece.healed for piece in own) == end
            assert BPE.decode([piece.token.id for piece in own]) == end + text_of(found, row)
            assert len(own) == 12


def test_a_limit_within_the_end_of_the_prompt_leaves_no_text(engine: Engine) -> None:
    prompt = "\n\n\n\n \n\n \n\n\n\n "
    end = encode_prompt(BPE, prompt).end
    assert len(end) > 1
    found = pieces(engine, [prompt], max_new_tokens=1)
    assert (len(found), found[0].finish_reason) == (1, "length")
    assert found[0].healed + found[0].text == BPE.decode([found[0].token.id])


def test_the_log_probability_is_that_of_the_token_after_the_tokens_that_are_kept(engine: Engine, model: GPT) -> None:
    prompt = "class Area:\n    def "
    first = pieces(engine, [prompt], alternatives=3)[0]
    kept = encode_prompt(BPE, prompt).ids
    expected = model(torch.tensor([kept]))[0, -1].log_softmax(-1)
    assert first.token.logprob == pytest.approx(expected[first.token.id].item(), abs=1e-4)
    assert first.token.alternatives[0][1] == pytest.approx(expected.max().item(), abs=1e-4)


def test_beams_continue_a_healed_prompt(engine: Engine) -> None:
    found = pieces(engine, ["class Area:\n    def "], beams=4, samples=4)
    for row in range(4):
        ids = [piece.token.id for piece in found if piece.row == row]
        assert BPE.decode(ids) == " " + text_of(found, row)
    assert text_of(found).startswith(NAMES)


def test_a_stop_string_is_not_found_in_the_end_of_the_prompt(engine: Engine) -> None:
    found = pieces(engine, ["class Area:\n    def "], stop=(" ",))
    assert text_of(found) != ""
    assert " " not in text_of(found)
