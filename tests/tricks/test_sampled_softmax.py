"""Sampled softmax: the samples, and the loss and gradients against the plain formula."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from builders import assert_same_model, new_model
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minigpt.config import TrainConfig
from minigpt.data.corpus import Corpus
from minigpt.distillation.step_parts import Teacher, TeacherTargets
from minigpt.model.gpt import GPT
from minigpt.training.loop import train
from minigpt.training.loss import HeadPlan, LossModel, next_token_loss, overwrite_with_gradient
from minigpt.training.step import local_gradients
from minigpt.tricks.sampled_softmax import (
    EXCLUDED,
    SampledLossModel,
    StepVocabulary,
    TokenSampler,
    correct_,
    inclusion_probabilities,
)

COUNTS = torch.arange(400, 0, -1) ** 2  # of 400 tokens, the first the most frequent


@pytest.mark.parametrize("size", [40, 100, 399])
def test_samples_have_the_given_size_on_average_and_prefer_frequent_tokens(size: int) -> None:
    probabilities = inclusion_probabilities(COUNTS, size)
    assert probabilities.sum().item() == pytest.approx(size, rel=1e-3)
    assert (probabilities.diff() <= 0).all()
    assert probabilities.min() >= 0.05 - 1e-6
    assert probabilities.max() <= 1


@pytest.mark.parametrize(("size", "expected"), [(400, 400.0), (10_000, 400.0), (1, 20.0)])
def test_a_sample_has_at_most_all_tokens_and_each_with_at_least_a_twentieth(size: int, expected: float) -> None:
    assert inclusion_probabilities(COUNTS, size).sum().item() == pytest.approx(expected, rel=1e-6)


def test_the_expected_factor_of_each_exponential_is_one() -> None:
    sampler, steps = TokenSampler(COUNTS, 100, seed=3), 2000
    factors = torch.stack([sampler.corrections(step) for step in range(steps)]).exp()  # 0 for those not in the sample
    deviation = (1 / sampler.probabilities - 1).sqrt() / steps**0.5  # of the mean of a Bernoulli variable over p
    assert ((factors.mean(0) - 1).abs() <= 5 * deviation + 1e-6).all()


def test_a_sample_depends_on_the_seed_and_the_step_only() -> None:
    first = TokenSampler(COUNTS, 100, seed=3).corrections(5)
    torch.manual_seed(9)
    assert torch.equal(TokenSampler(COUNTS, 100, seed=3).corrections(5), first)
    assert not torch.equal(TokenSampler(COUNTS, 100, seed=3).corrections(6), first)
    assert not torch.equal(TokenSampler(COUNTS, 100, seed=4).corrections(5), first)


def plain_loss(
    features: Tensor, head: Tensor, targets: Tensor, corrections: Tensor, soft: TeacherTargets | None
) -> Tensor:
    """The same loss by the formula over all of the vocabulary."""

    def corrected(x: Tensor, weight: Tensor) -> Tensor:
        logits, own = (x @ weight.t()).flatten(0, -2), targets.flatten()[:, None]
        added = corrections.masked_fill(corrections == EXCLUDED, -torch.inf).to(x.dtype).expand_as(logits)
        return logits + added.scatter(1, own, 0.0)

    logits = corrected(features, head)
    hard = F.cross_entropy(logits, targets.flatten())
    if soft is None:
        return hard
    teacher = corrected(soft.features, soft.head).softmax(1)
    of_teacher = -(teacher * logits.log_softmax(1).clamp(min=-1e9)).sum(1).mean()
    return (1 - soft.weight) * hard + soft.weight * of_teacher


@settings(deadline=None, max_examples=25)
@given(
    b=st.integers(1, 3), t=st.integers(1, 9), v=st.integers(2, 40), size=st.integers(1, 30), rows=st.integers(1, 30),
    with_teacher=st.booleans(), pads=st.booleans(),
)  # fmt: skip
def test_sampled_loss_and_gradients_equal_the_formula(
    b: int, t: int, v: int, size: int, rows: int, with_teacher: bool, pads: bool
) -> None:
    generator = torch.Generator().manual_seed(b * 1000 + t * 100 + v)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    features, head = normal(b, t, 5).requires_grad_(), normal(v, 5).requires_grad_()
    targets = torch.randint(v, (b, t), generator=generator)
    soft = TeacherTargets(normal(b * t, 3), normal(v, 3), 0.3) if with_teacher else None
    corrections = TokenSampler(torch.arange(v), size, seed=v).corrections(t)
    plan = HeadPlan(rows, max(1, rows // 2), pads_vocabulary=pads, gradient=overwrite_with_gradient)
    loss = next_token_loss(
        features, head, targets, plan=plan, soft=soft, correct=partial(correct_, corrections=corrections)
    )
    found = torch.autograd.grad(loss * 0.5, (features, head))
    expected = plain_loss(features, head, targets, corrections, soft)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(found, torch.autograd.grad(expected * 0.5, (features, head)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("scored", [None, [0, 3, 9, 15]])
@pytest.mark.parametrize("with_teacher", [False, True])
def test_a_step_on_its_own_tokens_has_the_gradients_of_the_whole_vocabulary(
    with_teacher: bool, scored: list[int] | None
) -> None:
    model, teacher = (new_model(vocab_size=400, n_positions=8, scale=3, seed=seed) for seed in (0, 1))
    loss = LossModel(model)
    if with_teacher:
        loss.soft_targets = Teacher(teacher, 0.3)
    module = SampledLossModel.of(loss)
    generator = torch.Generator().manual_seed(1)
    inputs, targets = torch.randint(400, (2, 2, 8), generator=generator)
    corrections = TokenSampler(COUNTS, 100, seed=1).corrections(0)
    places = torch.arange(16) if scored is None else torch.tensor(scored)
    own = None if scored is None else places
    found = module(inputs, targets, own, *StepVocabulary.of(inputs, targets, corrections, own))
    found.backward()
    rows = [parameter.grad for parameter in model.parameters()]
    features = model.features(inputs).flatten(0, 1)[places]
    soft = None
    if with_teacher:
        soft = TeacherTargets(teacher.features(inputs).flatten(0, 1)[places], teacher.token_embedding.weight, 0.3)
    expected = plain_loss(features, model.token_embedding.weight, targets.flatten()[places], corrections, soft)
    torch.testing.assert_close(found, expected)
    for ours, theirs in zip(rows, torch.autograd.grad(expected, list(model.parameters())), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    used = (corrections > EXCLUDED).index_fill(0, torch.cat([inputs.flatten(), targets.flatten()]), True)
    assert rows[0] is model.token_embedding.weight.grad
    assert not rows[0][~used].any()


@pytest.mark.parametrize(("vocab_size", "expected"), [(400, 128), (127, 127), (128, 128)])
def test_the_tokens_of_a_step_are_a_multiple_of_128_or_all(vocab_size: int, expected: int) -> None:
    inputs, targets = torch.arange(40).view(2, 20), torch.arange(3, 43).view(2, 20)
    corrections = torch.full((vocab_size,), EXCLUDED)
    corrections[30:60] = 0.5
    step = StepVocabulary.of(inputs, targets, corrections)
    assert len(step.ids) == expected
    assert torch.equal(step.ids[step.inputs], inputs)
    assert torch.equal(step.ids[step.targets], targets)
    assert torch.equal(step.ids.unique(), step.ids)
    assert torch.equal(step.corrections, corrections[step.ids])


@pytest.mark.parametrize("scored", [None, [0, 3, 9]])
def test_a_sparse_gradient_has_the_rows_of_the_whole_one(scored: list[int] | None) -> None:
    model = new_model(vocab_size=400, n_positions=8, scale=3)
    module, generator = SampledLossModel(model), torch.Generator().manual_seed(1)
    inputs, targets = torch.randint(400, (2, 2, 8), generator=generator)
    corrections = TokenSampler(COUNTS, 100, seed=1).corrections(0)
    found = []
    for module.sparse_gradient in (False, True):
        model.zero_grad()
        for rows in (slice(0, 1), slice(1, 2)):  # two micro-batches
            places = None if scored is None else torch.tensor(scored[:1])
            vocabulary = StepVocabulary.of(inputs[rows], targets[rows], corrections, places)
            module(inputs[rows], targets[rows], places, *vocabulary).backward()
        gradients = local_gradients(list(model.parameters()))
        found.append((model.token_embedding.weight.grad, torch.nn.utils.get_total_norm(gradients)))
    (whole, norm), (sparse, same) = found
    assert whole is not None
    assert sparse is not None
    assert sparse.is_sparse
    assert len(sparse.indices()[0]) < 200
    torch.testing.assert_close(sparse.to_dense(), whole)
    torch.testing.assert_close(norm, same)


def test_a_sample_of_all_tokens_gives_the_exact_loss() -> None:
    torch.manual_seed(1)
    features, head, targets = torch.randn(2, 7, 8), torch.randn(400, 8), torch.randint(400, (2, 7))
    everything = TokenSampler(COUNTS, 400, seed=1).corrections(0)
    exact = next_token_loss(features, head, targets)
    torch.testing.assert_close(
        next_token_loss(features, head, targets, correct=partial(correct_, corrections=everything)), exact
    )


def test_in_bfloat16_the_loss_and_gradients_are_those_of_float32_within_rounding() -> None:
    torch.manual_seed(1)
    features, head = torch.randn(1, 64, 32), 0.2 * torch.randn(400, 32)
    targets, corrections = torch.randint(400, (1, 64)), TokenSampler(COUNTS, 100, seed=1).corrections(0)
    soft = TeacherTargets(torch.randn(64, 16), 0.2 * torch.randn(400, 16), 0.5)
    results = []
    for enabled in (False, True):
        x, weight = features.clone().requires_grad_(), head.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            loss = next_token_loss(x, weight, targets, soft=soft, correct=partial(correct_, corrections=corrections))
        results.append((loss.detach(), *torch.autograd.grad(loss, (x, weight))))
    for exact, rounded in zip(*results, strict=True):
        assert (exact - rounded).norm() <= 0.02 * exact.norm()  # bfloat16 keeps 8 bits: a few roundings of 0.4 %


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    path = tmp_path / "text.txt"
    path.write_text("the quick brown fox jumps over the lazy dog; pack my box with five dozen jugs. " * 80)
    return Corpus.build(path, "bytes", cache=tmp_path / "cache")


def trained(corpus: Corpus, **settings: Any) -> tuple[GPT, list[float]]:
    """A small model after four steps with a sampled softmax, and its losses."""
    given = {"steps": 4, "batch_size": 4, "context_length": 8, "sampled_softmax": 40, "device": "cpu", "patience": 0}
    model = new_model(vocab_size=corpus.tokenizer.vocab_size)
    events = train(model, corpus, TrainConfig(**(given | settings)))
    return model, [event.loss for event in events if type(event).__name__ == "Step"]


def test_training_repeats_bit_for_bit_and_samples_fewer_tokens_than_it_has(corpus: Corpus) -> None:
    (model, losses), (again, same) = trained(corpus), trained(corpus)
    assert losses == same
    assert_same_model(model, again)
    assert losses != trained(corpus, sampled_softmax=0)[1]
    assert losses != trained(corpus, seed=1)[1]


def test_a_sample_as_large_as_the_vocabulary_is_no_sample(corpus: Corpus) -> None:
    assert trained(corpus, sampled_softmax=corpus.tokenizer.vocab_size)[1] == trained(corpus, sampled_softmax=0)[1]


@pytest.mark.parametrize("features", [False, True])
def test_micro_batches_share_the_step_s_sample(corpus: Corpus, features: bool) -> None:
    together = trained(corpus, spelling_features=features)[1]
    apart = trained(corpus, spelling_features=features, micro_batch_size=1)[1]
    assert together == pytest.approx(apart, rel=1e-4)
