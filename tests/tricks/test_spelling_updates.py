"""SpellingAdamW: tokens of like spelling share a part of their embedding's updates."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from builders import new_model, new_run

from minigpt.autoplan.memory_estimates import state_bytes
from minigpt.config import GPTConfig, TrainConfig
from minigpt.data.corpus import Corpus
from minigpt.errors import ConfigError
from minigpt.model.gpt import GPT
from minigpt.native import operations, weight_updates
from minigpt.storage.checkpoint import load_checkpoint
from minigpt.storage.run import Run
from minigpt.tokenizer.tokenizer import Tokenizer
from minigpt.training.loop import train
from minigpt.training.step_parts import StepParts, build_step_parts
from minigpt.training.world import World
from minigpt.tricks.compiled_spelling import CompiledSpellingAdamW
from minigpt.tricks.spelling import SpellingFeatures
from minigpt.tricks.spelling_updates import FEATURE_STATES, SpellingAdamW

_PAIRS = [(0, 0), (1, 0), (1, 1), (2, 1), (4, 1)]  # of a token and a feature


def features() -> SpellingFeatures:
    tokens, numbers = np.array(_PAIRS).T
    return SpellingFeatures.from_pairs(tokens, numbers, 5, 2)


@pytest.fixture(params=[SpellingAdamW, CompiledSpellingAdamW], ids=["by PyTorch", "in C"])
def kind(request: pytest.FixtureRequest) -> type[SpellingAdamW]:
    """By what the embedding's update is computed."""
    if request.param is CompiledSpellingAdamW and not operations.fits(torch.zeros(1)):
        pytest.skip("the C code is not compiled, or this processor lacks AVX2")
    return request.param  # type: ignore[no-any-return]


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_the_embedding_is_that_of_a_token_and_its_features_both_trained_by_adam(
    kind: type[SpellingAdamW], decay: float
) -> None:
    torch.manual_seed(0)
    settings = {"lr": 0.01, "betas": (0.8, 0.9), "weight_decay": 0.0}
    own, vectors = torch.randn(5, 3, requires_grad=True), torch.zeros(2, 3, requires_grad=True)
    matrix = torch.zeros(5, 2)
    for token, feature in _PAIRS:
        matrix[token, feature] = 1
    embedding = own.detach().clone().requires_grad_()
    explicit = torch.optim.AdamW([own, vectors], **settings)
    shared = kind([embedding], embedding, features(), **(settings | {"weight_decay": decay}))
    for _ in range(5):
        gradient = torch.randn(5, 3)
        gradient[3:] = 0
        (own + matrix @ vectors).backward(gradient)
        with torch.no_grad():  # the weight decay is that of the sum
            own.mul_(1 - 0.01 * decay)
            vectors.mul_(1 - 0.01 * decay)
        explicit.step()
        explicit.zero_grad()
        embedding.grad = gradient
        shared.step()
        torch.testing.assert_close(embedding.detach(), (own + matrix @ vectors).detach())


def test_a_gradient_by_rows_is_that_of_the_whole_embedding_bit_for_bit(kind: type[SpellingAdamW]) -> None:
    results = []
    for sparse in (False, True):
        generator = torch.Generator().manual_seed(0)
        embedding = torch.randn(5, 40, generator=generator).requires_grad_()
        optimizer = kind([embedding], embedding, features(), lr=0.1)
        for _ in range(3):
            gradient = torch.randn(5, 40, generator=generator)
            gradient[[0, 3]] = 0
            ids = torch.tensor([1, 2, 4])
            rows = torch.sparse_coo_tensor(ids[None], gradient[ids], (5, 40), check_invariants=True)
            embedding.grad = rows if sparse else gradient
            optimizer.step()
        results.append((embedding.detach(), *optimizer.state[embedding].values()))
    assert all(map(torch.equal, *results))


def test_c_and_pytorch_continue_each_other_s_states(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for in_c in ([True] * 4, [False] * 4, [True, True, False, False], [False, False, True, True]):
        generator = torch.Generator().manual_seed(0)
        embedding = torch.randn(5, 40, generator=generator).requires_grad_()
        optimizer = CompiledSpellingAdamW([embedding], embedding, features(), lr=0.1)
        for use in in_c:
            with monkeypatch.context() as patch:
                if not use:
                    patch.setattr(weight_updates, "update_fits", lambda weight: False)
                embedding.grad = torch.randn(5, 40, generator=generator)
                optimizer.step()
        results.append((embedding.detach(), *optimizer.state[embedding].values()))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0])


def test_a_token_without_gradient_moves_with_those_of_like_spelling_only(
    kind: type[SpellingAdamW],
) -> None:
    embedding = torch.zeros(5, 3, requires_grad=True)
    optimizer = kind([embedding], embedding, features(), lr=0.1, weight_decay=0.0)
    embedding.grad = torch.zeros(5, 3)
    embedding.grad[2] = 1.0  # which has feature 1, like the tokens 1 and 4
    optimizer.step()
    assert (embedding[[0, 3]] == 0).all()
    torch.testing.assert_close(embedding[[1, 4]].detach(), torch.full((2, 3), -0.1))
    torch.testing.assert_close(embedding[2].detach(), torch.full((3,), -0.2))


def parts_of(features: SpellingFeatures, model: GPT, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> StepParts:
    """The parts of a step with these features."""
    monkeypatch.setattr(SpellingFeatures, "of", lambda *_: features)
    config = TrainConfig(steps=1, context_length=8, spelling_features=True, **settings)
    return build_step_parts(model, cast(Any, SimpleNamespace(tokenizer=None, scores_all=lambda _: True)), config)


@pytest.mark.parametrize("name", ["muon", "adamw"])
def test_the_embeddings_have_a_weight_decay_of_their_own(name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = GPT(GPTConfig(vocab_size=5, n_positions=8, n_embd=8, n_layer=1, n_head=2))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    parts = parts_of(
        features(), model, monkeypatch,
        weight_decay=0.5, embedding_weight_decay=2.0, learning_rate=0.1, optimizer=name,
    )  # fmt: skip
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for optimizer in parts.optimizers:
        optimizer.step()
    for name, parameter in model.named_parameters():
        kept = 1.0 if parameter.dim() < 2 else 0.8 if "embedding" in name else 0.95
        torch.testing.assert_close(parameter.detach(), kept * before[name])


def test_a_vocabulary_without_common_spellings_has_plain_adamw(monkeypatch: pytest.MonkeyPatch) -> None:
    model = GPT(GPTConfig(vocab_size=5, n_positions=8, n_embd=8, n_layer=1, n_head=2))
    none = SpellingFeatures.from_pairs(np.zeros(0, int), np.zeros(0, int), 5, 0)
    with_features, without = (parts_of(each, model, monkeypatch).optimizers[0] for each in (features(), none))
    assert isinstance(with_features, SpellingAdamW)
    assert not isinstance(without, SpellingAdamW)


def test_features_need_weights_that_fit_into_memory_without_sharding() -> None:
    class Sharded(World):
        is_sharded = True

    model = GPT(GPTConfig(vocab_size=5, n_positions=8, n_embd=8, n_layer=1, n_head=2))
    config = TrainConfig(context_length=8, spelling_features=True)
    with pytest.raises(ConfigError, match=r"^spelling_features needs unsharded .* give --no-spelling-features$"):
        build_step_parts(
            model, cast(Any, SimpleNamespace(tokenizer=None, scores_all=lambda _: True)), config, world=Sharded()
        )


def test_features_need_whole_weights() -> None:
    with pytest.raises(ConfigError, match=r"^spelling_features cannot be combined with sharding \(on\); omit one of"):
        TrainConfig(steps=1, spelling_features=True, sharding="on")


def test_the_state_of_the_features_is_that_of_the_embedding(kind: type[SpellingAdamW]) -> None:
    embedding = torch.zeros(5, 3, requires_grad=True)
    optimizer = kind([embedding], embedding, features(), lr=0.1)
    embedding.grad = torch.ones(5, 3)
    optimizer.step()
    assert {optimizer.state[embedding][name].shape for name in FEATURE_STATES} == {(2, 3)}


def test_the_estimated_memory_is_enough_for_the_features_of_a_text() -> None:
    tokenizer = Tokenizer.train(["She walked. He Walked, walks; WALKED talked talks.\n" * 20], "bpe:300")
    shape = GPTConfig(vocab_size=tokenizer.vocab_size, n_positions=8, n_embd=8, n_layer=1, n_head=2)
    count = SpellingFeatures.of(tokenizer, tokenizer.vocab_size).count
    with_features, without = (
        state_bytes(shape, "muon", training=TrainConfig(steps=1, spelling_features=each)) for each in (True, False)
    )
    numbers = 4 * count + tokenizer.vocab_size  # of features: gradient, update, two moments; of tokens: the update
    assert with_features - without >= 4 * 8 * numbers


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (True, True)])
def test_a_run_may_be_resumed_with_or_without_features(tmp_path: Path, first: bool, second: bool) -> None:
    path = tmp_path / "text.txt"
    path.write_text("The quick fox walked; the lazy dog talked, walks, talks. Walked and Talked! " * 60)
    corpus = Corpus.build(path, "bpe:300", cache=tmp_path / "cache")
    settings: dict[str, Any] = {
        "batch_size": 4,
        "context_length": 8,
        "learning_rate": 1e-2,
        "device": "cpu",
        "schedule": "constant",
    }
    config = TrainConfig(steps=4, spelling_features=first, **settings)
    run = new_run(tmp_path / "run", new_model(vocab_size=corpus.tokenizer.vocab_size), corpus.tokenizer)
    list(train(run_model(run), corpus, config, run))
    assert has_features(run) == first
    list(train(run_model(run), corpus, config.replace(steps=8, spelling_features=second), run, resume=True))
    assert has_features(run) == second
    last = run.load_last()
    assert last is not None
    assert last.progress["step"] == 8


def run_model(run: Run) -> GPT:
    return load_checkpoint(run.directory, "cpu").model


def has_features(run: Run) -> bool:
    last = run.load_last()
    assert last is not None
    names = [name for name in last.tensors if name.rpartition(".")[2] in FEATURE_STATES]
    assert len(names) in (0, len(FEATURE_STATES))
    return bool(names)
