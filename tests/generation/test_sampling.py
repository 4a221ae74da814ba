"""The sampler: the order of its processors against transformers, its draws against their distribution, bad logits."""

import math
from typing import Any

import pytest
import torch
from builders import distribution
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from minigpt.config import SamplingConfig
from minigpt.errors import ConfigError, GenerationError, MinigptError
from minigpt.generation import sampling
from minigpt.generation.sampling import Sampler, draw, uniform
from minigpt.tokenizer.tokenizer import Tokenizer
from minigpt.tokenizer.vocabulary import Vocabulary

LOGITS = torch.tensor([[0.1, 0.4, 0.2, 0.3]]).log()
NOTHING = torch.empty(1, 0, dtype=torch.int64)
GPT2 = Tokenizer.named("gpt2")
BYTES = Tokenizer.named("bytes")


def sampler(tokenizer: Tokenizer | None = None, **changes: Any) -> Sampler:
    """A sampler without filters, except for these settings."""
    return Sampler(SamplingConfig(**{"temperature": 1, "top_p": 1, "seed": 0} | changes), tokenizer)


def random_logits(seed: int, rows: int, v: int) -> Tensor:
    return torch.randn(rows, v, generator=torch.Generator().manual_seed(seed)) * 3


# The distribution


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**31), v=st.sampled_from([2, 7, 60, 2000]), k=st.none() | st.integers(1, 70),
    p=st.floats(0.01, 1), min_p=st.floats(0, 0.5), typical=st.floats(0.05, 1), temperature=st.floats(0.1, 3.0),
)  # fmt: skip
def test_processors_and_filters_act_in_the_order_of_transformers(
    seed: int, v: int, k: int | None, p: float, min_p: float, typical: float, temperature: float
) -> None:
    from transformers import (
        LogitsProcessorList,
        MinPLogitsWarper,
        RepetitionPenaltyLogitsProcessor,
        SequenceBiasLogitsProcessor,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
        TypicalLogitsWarper,
    )

    logits = random_logits(seed, 3, v)
    history = torch.randint(v, (3, 5), generator=torch.Generator().manual_seed(seed))
    processors = LogitsProcessorList(
        [
            SequenceBiasLogitsProcessor({(1,): 2.0}),
            RepetitionPenaltyLogitsProcessor(1.3),
            TemperatureLogitsWarper(temperature),
            *([] if k is None else [TopKLogitsWarper(k)]),
            TopPLogitsWarper(p),
            MinPLogitsWarper(min_p),
            *([] if typical == 1 else [TypicalLogitsWarper(typical)]),
        ]
    )
    expected = processors(history, logits).softmax(-1)
    ours = sampler(
        temperature=temperature, top_k=k, top_p=p, min_p=min_p, typical_p=typical, repetition_penalty=1.3,
        logit_bias=("#1=2",),
    )  # fmt: skip
    torch.testing.assert_close(distribution(ours, logits, history, 0), expected, rtol=1e-4, atol=1e-6)


def test_a_nucleus_of_more_than_the_first_k_tokens_is_complete() -> None:
    logits = torch.stack([torch.zeros(20_000), torch.linspace(0, 12, 20_000), torch.arange(20_000.0)])
    probability = distribution(sampler(top_p=0.9), logits, NOTHING, 0)
    assert (probability[0] > 0).all()  # all are equally likely, and ties are kept
    assert (probability[2] > 0).sum() == 3
    ordered = logits[1].softmax(-1).flip(0)
    size = int((ordered.cumsum(-1) < 0.9).sum()) + 1
    assert size > 3000
    assert abs(int((probability[1] > 0).sum()) - size) <= 1
    torch.testing.assert_close(probability.sum(-1), torch.ones(3))


def test_top_p_counts_all_tokens_that_tie_with_the_last_of_top_k() -> None:
    logits = torch.full((1, 41), -1.0)
    logits[0, 7] = 0  # 6 % of the probability; among four tokens it would be 48 %
    assert (distribution(sampler(top_k=3, top_p=0.3), logits, NOTHING, 0) > 0).all()
    assert sampler(top_k=3, top_p=0.3, seed=1).choose(logits.expand(50, 41), NOTHING, 0).unique().numel() > 10


def test_temperature_zero_chooses_the_most_likely_token_that_is_not_banned() -> None:
    greedy = sampler(BYTES, temperature=0, bad_words=("b",))
    logits = torch.zeros(1, 257)
    logits[0, [97, 98]] = torch.tensor([1.0, 2.0])
    assert greedy.choose(logits, torch.tensor([[1]]), 0).tolist() == [97]
    assert distribution(greedy, logits, torch.tensor([[1]]), 0)[0].nonzero().tolist() == [[97]]


@pytest.mark.parametrize("temperature", [1e-6, 1e-40, 5e-324])
def test_the_smallest_temperatures_are_greedy_and_do_not_overflow(temperature: float) -> None:
    logits = torch.tensor([[-70.0, -69.0, -69.5]])
    assert distribution(sampler(temperature=temperature), logits, NOTHING, 0).tolist() == [[0, 1, 0]]


def test_huge_logits_do_not_overflow() -> None:
    logits = torch.tensor([[3e38, -3e38, 3e38, -math.inf]])
    for choices in (sampler(), sampler(top_p=0.9, typical_p=0.9), sampler(top_k=3), sampler(min_p=0.1)):
        assert distribution(choices, logits, NOTHING, 0).tolist() == [[0.5, 0, 0.5, 0]]


# The draw


@pytest.fixture(params=["as installed", "with PyTorch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws are made in C if it is compiled, or with PyTorch, as on other devices."""
    if request.param == "with PyTorch":
        monkeypatch.setattr(sampling, "provided", lambda _: ())


@pytest.mark.usefixtures("way")
def test_draws_follow_the_distribution() -> None:
    logits = random_logits(0, 1, 12)
    choices = sampler(temperature=0.9, top_p=0.97)
    expected = distribution(choices, logits, NOTHING, 0)[0]
    n, drawn = 20_000, expected > 0
    tokens = choices.choose(logits.expand(n, 12), NOTHING, 3)
    counts = torch.bincount(tokens, minlength=12)
    assert counts[~drawn].sum() == 0
    chi_square = ((counts - n * expected)[drawn] ** 2 / (n * expected)[drawn]).sum()
    assert chi_square < 30  # at most 11 degrees of freedom: once in a thousand by chance, were the seed not fixed


@pytest.mark.usefixtures("way")
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**31), rows=st.integers(2, 5), v=st.sampled_from([3, 100, 1500, 30_000]),
    top_k=st.none() | st.integers(1, 50), top_p=st.sampled_from([0.5, 0.95, 1]), flat=st.booleans(), ties=st.booleans(),
    typical_p=st.sampled_from([0.5, 1]),
)  # fmt: skip
@example(seed=0, rows=5, v=1500, top_k=None, top_p=0.95, flat=True, ties=False, typical_p=1)
def test_a_row_alone_is_drawn_as_in_a_batch(
    seed: int, rows: int, v: int, top_k: int | None, top_p: float, flat: bool, ties: bool, typical_p: float
) -> None:
    logits = random_logits(seed, rows, v)
    logits = logits.bfloat16().float() if ties else logits
    logits[1::2] *= 0.1 if flat else 1  # these rows need a larger K
    choices = sampler(seed=seed, top_k=top_k, top_p=top_p, typical_p=typical_p)
    together = choices.choose(logits, NOTHING, 7)
    expected = distribution(choices, logits, NOTHING, 7)
    for row in range(rows):
        assert torch.equal(distribution(choices, logits[row : row + 1], NOTHING, 7)[0], expected[row])
        assert choices.choose(logits[row : row + 1], NOTHING, 7, [row]) == together[row]
        assert expected[row, together[row]] > 0


def test_a_draw_depends_on_the_seed_the_sample_and_the_step_alone() -> None:
    logits = torch.zeros(5, 1000)
    first = sampler(seed=7).choose(logits, NOTHING, 0)
    torch.manual_seed(3)
    assert torch.equal(sampler(seed=7).choose(logits, NOTHING, 0), first)
    assert torch.equal(sampler(seed=7).choose(logits, NOTHING, 0, [4, 3, 2, 1, 0]), first.flip(0))
    assert not torch.equal(sampler(seed=8).choose(logits, NOTHING, 0), first)
    assert not torch.equal(sampler(seed=7).choose(logits, NOTHING, 1), first)
    assert len(set(first.tolist())) > 1


def test_without_a_seed_the_sampler_chooses_one_and_reports_it() -> None:
    first, second = (Sampler(SamplingConfig()).seed for _ in range(2))
    assert first != second
    assert Sampler(SamplingConfig(seed=5)).seed == 5


@given(
    weights=st.lists(st.sampled_from([0.0, 1e-30, 1e-9, 0.1, 1.0]), min_size=1, max_size=40).filter(any),
    number=st.sampled_from([0.0, 0.5, 1 - 2**-53]) | st.floats(0, 1, exclude_max=True),
)
def test_a_drawn_token_never_has_probability_zero(weights: list[float], number: float) -> None:
    probability = torch.tensor([weights]) / sum(weights)
    (index,) = draw(probability, [number]).tolist()
    assert probability[0, index] > 0


def test_the_random_numbers_are_uniform_along_every_argument() -> None:
    for numbers in (
        [uniform(seed, 0, 0) for seed in range(10_000)],
        [uniform(1, sample, 5) for sample in range(10_000)],
        [uniform(2**63 - 1, 3, step) for step in range(10_000)],
    ):
        ordered = sorted(numbers)
        assert ordered[0] >= 0
        assert ordered[-1] < 1
        distance = max(abs(number - (i + 0.5) / 10_000) for i, number in enumerate(ordered))
        assert distance < 0.0195  # Kolmogorov-Smirnov at one in a thousand
        neighbors = torch.tensor(numbers)
        assert torch.corrcoef(torch.stack([neighbors[1:], neighbors[:-1]]))[0, 1].abs() < 0.035


# History, tokens, ids


def test_a_bias_is_added_to_the_token_of_an_id_or_of_a_text() -> None:
    choices = sampler(GPT2, logit_bias=("#318=-2", " is=0.5", " Paris=3", "==1", " 5=2"))
    processed = choices.process(torch.zeros(1, 50257), NOTHING, 0)[0]
    assert {i: processed[i].item() for i in processed.nonzero().flatten().tolist()} == {
        28: 1,
        318: -1.5,
        642: 2,
        6342: 3,
    }


def test_a_bad_word_is_banned_with_and_without_a_space_before_it() -> None:
    processed = sampler(GPT2, bad_words=("is",)).process(torch.zeros(1, 50257), torch.tensor([[1]]), 0)[0]
    assert (processed == -math.inf).nonzero().flatten().tolist() == [271, 318]


def test_the_name_of_a_special_token_is_that_token() -> None:
    choices = sampler(GPT2, logit_bias=("<|endoftext|>=-5",))
    processed = choices.process(torch.zeros(1, 50257), NOTHING, 0)[0]
    assert {i: processed[i].item() for i in processed.nonzero().flatten().tolist()} == {50256: -5}
    processed = sampler(GPT2, bad_words=("<|endoftext|>",)).process(torch.zeros(1, 50257), torch.tensor([[1]]), 0)[0]
    assert (processed == -math.inf).nonzero().flatten().tolist() == [50256]


def test_a_bias_for_a_text_of_several_tokens_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        sampler(GPT2, logit_bias=(" zebras!=2",))
    assert str(caught.value) == (
        "logit_bias (' zebras!=2') must name one token, "
        "but ' zebras!' is 4: ' ze' (#41271), 'br' (#1671), 'as' (#292), "
        "'!' (#0)"
    )


@pytest.mark.parametrize(
    "changes", [{"logit_bias": (" is=2",)}, {"bad_words": ("is",)}, {"min_new_tokens": 3}]
)  # fmt: skip
def test_settings_with_texts_need_a_tokenizer(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes)) + r" \(.*\) needs? a tokenizer"):
        sampler(**changes)


def test_a_bias_for_an_id_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(ConfigError, match="logit_bias of #257 must be for an id from 0 to 256"):
        Sampler(SamplingConfig(logit_bias=("#257=1",)), Tokenizer.named("bytes"))
    with pytest.raises(ConfigError, match="logit_bias of #4 must be for an id from 0 to 3"):
        sampler(logit_bias=("#4=1",)).choose(LOGITS, NOTHING, 0)


# Settings that cannot be combined


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"min_new_tokens": 5, "max_new_tokens": 4}, "min_new_tokens (5) must be at most max_new_tokens (4)"),
        ({"beams": 2, "samples": 3}, "samples (3) must be at most beams (2)"),
        ({"bad_words": ("a", "")}, "bad_words contains an empty text (''); give a text that must not be generated"),
        ({"length_penalty": 1000}, "length_penalty (1000) must be at most 10"),
        ({"length_penalty": -1000}, "length_penalty (-1000) must be at least -10"),
        ({"repetition_penalty": 0}, "repetition_penalty (0) must be above 0"),
        ({"until": "word"}, "until ('word') must be one of sentence, paragraph, line"),
        *(
            (
                {"logit_bias": (entry,)},
                f"logit_bias ({entry!r}) must be TEXT=NUMBER or #ID=NUMBER, as in ' word=2.5' or '#318=-100'",
            )
            for entry in ("", "word", "=2", "word=", "word=much", "word=inf", "word=nan")
        ),
        (
            {"logit_bias": ("318=-100",)},
            "logit_bias ('318=-100') could mean an id or a text; give '#318=-100' for the token with that id, or "
            "#ID=NUMBER with the id of the text's token",
        ),
    ],
)
def test_invalid_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SamplingConfig(**changes)
    assert str(caught.value) == message


# NaN or infinite logits, and bans that leave no token

BAD_LOGITS = pytest.mark.parametrize("value", [math.nan, math.inf])
WAYS = pytest.mark.parametrize(
    "changes", [{"temperature": 0}, {}, {"top_p": 0.9}, {"top_k": 2}, {"min_p": 0.5, "typical_p": 0.5}]
)


@BAD_LOGITS
@WAYS
def test_nan_and_infinite_logits_are_an_error(value: float, changes: dict[str, Any]) -> None:
    logits = torch.cat([LOGITS, LOGITS])
    logits[1, 2] = value
    message = rf"logits must be finite, but the largest of row 1 is {value}"
    with pytest.raises(GenerationError, match=message) as caught:
        sampler(**changes).choose(logits, NOTHING, 0)
    assert isinstance(caught.value, MinigptError)


@WAYS
def test_bans_that_leave_no_token_are_an_error(changes: dict[str, Any]) -> None:
    choices = sampler(no_repeat_ngram_size=1, **changes)
    assert choices.choose(LOGITS, torch.tensor([[0, 1, 3]]), 3).tolist() == [2]
    with pytest.raises(ConfigError, match="no token is left to choose"):
        choices.choose(LOGITS, torch.tensor([[0, 1, 2, 3]]), 4)


def test_a_bias_that_overflows_is_an_error() -> None:
    with pytest.raises(ConfigError, match="a logit overflows: use a smaller logit_bias"):
        sampler(logit_bias=("#1=1e300",)).choose(LOGITS, NOTHING, 0)


# The caller's processors


def test_processors_act_in_their_order_after_the_penalties_and_before_the_temperature() -> None:
    seen = []

    def add_one(logits: Tensor, _history: Tensor, _n_new: int) -> Tensor:
        seen.append(logits.tolist())
        return logits + 1

    def double(logits: Tensor, _history: Tensor, _n_new: int) -> Tensor:
        return 2 * logits

    config = SamplingConfig(temperature=0.5, top_p=1, logit_bias=("#1=3",))
    choices = Sampler(config, processors=[add_one, double])
    assert choices.process(torch.zeros(1, 2), NOTHING, 0).tolist() == [[2, 8]]
    assert seen == [[[0, 3]]]
    torch.testing.assert_close(
        distribution(choices, torch.zeros(1, 2), NOTHING, 0), torch.tensor([[4.0, 16.0]]).softmax(-1)
    )


def test_a_processor_gets_the_history_and_the_number_of_new_tokens() -> None:
    history = torch.tensor([[-1, 1, 2], [3, 1, 0]])
    seen = []

    def record(logits: Tensor, history: Tensor, n_new: int) -> Tensor:
        seen.append((history.tolist(), n_new))
        return logits

    choices = Sampler(SamplingConfig(seed=0), processors=[record])
    assert choices.needs_history
    choices.choose(torch.zeros(2, 4), history, 2)
    assert seen == [(history.tolist(), 2)]


def test_a_processor_cannot_allow_ids_without_a_token() -> None:
    tokens = {bytes([byte]): byte for byte in range(256)}
    tokenizer = Tokenizer(Vocabulary(tokens, [], {"<|endoftext|>": 258}))
    choices = Sampler(
        SamplingConfig(temperature=0), tokenizer, processors=[lambda logits, _history, _n_new: logits * 0 + 1]
    )
    assert (choices.process(torch.zeros(1, 259), NOTHING, 0) == -math.inf).nonzero().tolist() == [[0, 256], [0, 257]]


@pytest.mark.parametrize(
    ("result", "what"), [(None, "None"), (torch.zeros(4), r"a tensor of shape \(4,\)")], ids=["nothing", "shape"]
)
def test_a_processor_that_returns_no_logits_is_named(result: Tensor | None, what: str) -> None:
    def broken(_logits: Tensor, _history: Tensor, _n_new: int) -> Any:
        return result

    with pytest.raises(ConfigError, match=rf"logits processor broken must return logits of shape \(1, 4\), not {what}"):
        Sampler(SamplingConfig(), processors=[broken]).choose(LOGITS, NOTHING, 0)


def test_a_processor_that_returns_nan_is_named_unless_the_nan_is_the_models() -> None:
    def to_nan(logits: Tensor, _history: Tensor, _n_new: int) -> Tensor:
        return logits * math.nan

    choices = Sampler(SamplingConfig(), processors=[to_nan])
    with pytest.raises(ConfigError, match="logits processor to_nan must not return NaN"):
        choices.choose(LOGITS, NOTHING, 0)
    with pytest.raises(GenerationError, match="the largest of row 0 is nan"):
        choices.choose(LOGITS * math.nan, NOTHING, 0)
