"""Tokens that a model has not seen in training: how they are recorded, and that no text has them by default."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import new_model

from minigpt import load
from minigpt.config import SamplingConfig
from minigpt.data.corpus import Corpus
from minigpt.generation.engine import Engine
from minigpt.generation.sampling import Sampler
from minigpt.generation.streaming import generate_pieces
from minigpt.penalties.unseen_tokens import unseen_tokens
from minigpt.storage.checkpoint import load_checkpoint, save_checkpoint
from minigpt.tokenizer.tokenizer import Tokenizer

BYTES = Tokenizer.named("bytes")
LETTERS = set(b"the quick brown fox jumps over the lazy dog; ")
UNSEEN = sorted(set(range(256)) - LETTERS)
SHORT = ["--steps", "2", "--batch-size", "4", "--device", "cpu", "--no-report"]


def suppressed(name: str) -> list[int]:
    content = json.loads((Path("checkpoints") / name / "generation_config.json").read_text())
    return content.get("suppress_tokens", [])


def drawn(model: Any, tokenizer: Tokenizer, prompt: str = "the", **sampling: Any) -> set[int]:
    """The tokens of several texts."""
    config = SamplingConfig(**{"max_new_tokens": 60, "temperature": 3.0, "top_p": 1.0, "seed": 1} | sampling)
    return {piece.token.id for piece in generate_pieces(Engine(model), tokenizer, [prompt], config)}


def test_the_unseen_tokens_are_those_that_the_training_part_lacks(corpus: Corpus) -> None:
    assert list(unseen_tokens(corpus, None)) == UNSEEN  # and not the end of a text
    assert list(unseen_tokens(corpus, [1, 2, ord("t"), 300])) == [1, 2]
    assert list(unseen_tokens(corpus, ())) == []


def test_a_long_text_is_read_in_blocks(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minigpt.penalties.unseen_tokens._BLOCK", 7)
    assert list(unseen_tokens(corpus, None)) == UNSEEN


@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 0}, {"beams": 3}, {"best_of": 3}, {"samples": 3}, {"min_new_tokens": 20}]
)
def test_no_way_of_generating_gives_an_unseen_token(sampling: dict[str, Any]) -> None:
    model, tokenizer = new_model(scale=8, n_positions=64), BYTES.with_suppressed_ids(UNSEEN)
    free = sampling | {"max_new_tokens": 40}
    assert not drawn(model, tokenizer, **free) & set(UNSEEN)
    assert drawn(model, tokenizer, **free, allow_unseen_tokens=True) & set(UNSEEN)
    assert drawn(model, BYTES, **free) == drawn(model, tokenizer, **free, allow_unseen_tokens=True)


def test_a_bias_brings_an_unseen_token_back() -> None:
    model, tokenizer = new_model(scale=8, n_positions=64), BYTES.with_suppressed_ids(UNSEEN)
    assert drawn(model, tokenizer, logit_bias=("#7=100",)) == {7}
    assert not drawn(model, tokenizer, logit_bias=("#7=-1",)) & set(UNSEEN)


def test_the_end_of_a_prompt_and_of_a_character_may_need_unseen_tokens() -> None:
    """Healing spells the tab again, and only the second byte of é is left to choose."""
    model, tokenizer = new_model(scale=8, n_positions=64), BYTES.with_suppressed_ids([9, *range(128, 256)])
    sampler = Sampler(SamplingConfig(temperature=0), tokenizer)
    assert sampler.constraint is not None
    logits, history = torch.randn(1, 257), torch.empty(1, 0, dtype=torch.int64)
    for prompt, beginning, expected in ((b"a\xc3", b"", range(128, 192)), (b"a", b"\t", [9])):
        state = sampler.constraint.start(list(prompt), beginning)
        assert int(sampler.choose(logits, history, 0, states=[state])) in expected
    assert drawn(model, tokenizer, "the\t")


def test_probabilities_are_those_of_the_model_itself() -> None:
    """The figures of a token and its alternatives are from before all bans, also for unseen tokens."""
    model, tokenizer = new_model(scale=8, n_positions=64), BYTES.with_suppressed_ids(UNSEEN)
    config = SamplingConfig(temperature=0, max_new_tokens=1)
    (piece,) = generate_pieces(Engine(model), tokenizer, ["the"], config, alternatives=257)
    with torch.no_grad():
        expected = model(torch.tensor([list(b"the")]))[0, -1, :257].log_softmax(0)
    token = piece.token
    assert token.logprob == pytest.approx(float(expected[token.id]), abs=1e-4)
    assert set(dict(token.alternatives)) == set(range(257))
    assert token.rank == int((expected > expected[token.id]).sum()) > 0


def test_the_record_is_transformers_own_and_outlives_saving(tmp_path: Path) -> None:
    from transformers import GenerationConfig

    model, tokenizer = new_model(), BYTES.with_suppressed_ids([5, 7, 900])
    save_checkpoint(tmp_path / "one", model, tokenizer)
    assert GenerationConfig.from_pretrained(tmp_path / "one").suppress_tokens == [5, 7]
    again = load_checkpoint(tmp_path / "one", "cpu")
    assert again.tokenizer.suppressed_ids == (5, 7)
    assert again.tokenizer.fingerprint == BYTES.fingerprint  # a cached text stays valid
    save_checkpoint(tmp_path / "two", again.model, again.tokenizer.with_chat_template("x"))
    assert load_checkpoint(tmp_path / "two", "cpu").tokenizer.suppressed_ids == (5, 7)
    save_checkpoint(tmp_path / "none", model, BYTES)
    assert "suppress_tokens" not in json.loads((tmp_path / "none" / "generation_config.json").read_text())


def test_transformers_does_not_generate_the_unseen_tokens_either(tmp_path: Path) -> None:
    import transformers

    model, tokenizer = new_model(scale=8, n_positions=64), BYTES.with_suppressed_ids(UNSEEN)
    save_checkpoint(tmp_path, model, tokenizer)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.tensor([list(b"the")])
    found = theirs.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=20)[0, 3:]
    config = SamplingConfig(temperature=0, max_new_tokens=20)
    expected = [piece.token.id for piece in generate_pieces(Engine(model), tokenizer, ["the"], config)]
    assert found.tolist() == expected
    assert not set(expected) & set(UNSEEN)


def test_runs_record_what_neither_their_text_nor_their_base_has(run: Any, tiny: list[str]) -> None:
    assert run("train", "fox.txt", *tiny, "--no-report").exit_code == 0
    assert suppressed("fox") == UNSEEN
    Path("more.txt").write_text("THE QUICK FOX 123; " * 99)
    assert run("train", "more.txt", "--from", "fox", *SHORT).exit_code == 0
    both = sorted(set(UNSEEN) - set(b"THE QUICK FOX 123; "))
    assert suppressed("more") == both
    # A base that says nothing may know every token.
    path = Path("checkpoints/fox/generation_config.json")
    path.write_text(json.dumps({name: id for name, id in json.loads(path.read_text()).items() if name[0] != "s"}))
    assert run("train", "more.txt", "--from", "fox", "--name", "free", *SHORT).exit_code == 0
    assert suppressed("free") == []
    # Resumed with another text, a run has seen both.
    resumed = run("train", "fox.txt", "--resume", "--name", "more", "--allow-change", "--steps", "4", "--no-report")
    assert resumed.exit_code == 0, resumed.stderr
    assert suppressed("more") == both
    Path("@.txt").write_text("@#% the fox; " * 99)
    changed = run("train", "@.txt", "--resume", "--name", "more", "--allow-change", "--steps", "6", "--no-report")
    assert changed.exit_code == 0, changed.stderr
    assert suppressed("more") == sorted(set(both) - set(b"@#%"))


def test_a_run_of_a_pipe_keeps_its_record_when_it_is_resumed(run: Any, tiny: list[str]) -> None:
    text = "the quick brown fox jumps over the lazy dog; " * 60
    assert run("train", "-", *tiny, "--no-report", "--name", "piped", stdin=text).exit_code == 0
    assert suppressed("piped") == UNSEEN
    assert run("train", "--resume", "--name", "piped", "--steps", "8", "--no-report").exit_code == 0
    assert suppressed("piped") == UNSEEN


def test_python_and_the_command_draw_unseen_tokens_only_if_they_are_asked_to(run: Any, tiny: list[str]) -> None:
    assert run("train", "fox.txt", *tiny, "--no-report").exit_code == 0
    model = load("fox", device="cpu", quantize="none")
    wild = {"temperature": 9.0, "top_p": 1.0, "max_new_tokens": 99, "seed": 3}
    assert set(model.generate("the", **wild).encode()) <= LETTERS
    assert not set(model.generate("the", **wild, allow_unseen_tokens=True).encode()) <= LETTERS
    options = ["the", "-m", "fox", "--temperature", "9", "--top-p", "1", "--seed", "3", "--json"]
    text = json.loads(run("generate", *options).stdout)["text"]
    assert set(text.encode()) <= LETTERS
    text = json.loads(run("generate", *options, "--allow-unseen-tokens").stdout)["text"]
    assert not set(text.encode()) <= LETTERS
    assert "tokens never drawn" in " ".join(run("info", "fox").stdout.split())


def test_many_suppressed_ids_are_read_once() -> None:
    tokenizer = Tokenizer.named("gpt2").with_suppressed_ids(np.arange(40_000))
    first, second = (Sampler(SamplingConfig(), tokenizer) for _ in range(2))
    assert first.processors[0] is second.processors[0]
