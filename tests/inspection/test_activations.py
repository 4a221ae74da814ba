"""Inspection shows what the model computes: compared with transformers and with the definitions."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import assert_restores_the_mode, random_model
from torch import Tensor
from transformers import GPT2LMHeadModel

import minigpt
from minigpt.errors import ConfigError
from minigpt.evaluation import perplexity
from minigpt.evaluation.perplexity import evaluate
from minigpt.inspection.activations import Inspection, inspect, mean_bits, predict
from minigpt.model.gpt import GPT
from minigpt.storage.checkpoint import save_checkpoint
from minigpt.tokenizer.tokenizer import Tokenizer

IDS = [84, 104, 101, 32, 102, 111, 120, 46, 32, 84, 104, 101]


@pytest.fixture(scope="module")
def model() -> GPT:
    """A model whose attention and predictions differ between positions; its dropout must have no effect."""
    return random_model(std=0.2, n_embd=24, n_layer=3, n_head=4, dropout=0.3)


@pytest.fixture(scope="module")
def found(model: GPT) -> Inspection:
    return inspect(model, IDS, top=7)


@pytest.fixture(scope="module")
def theirs(model: GPT, tmp_path_factory: pytest.TempPathFactory) -> tuple[GPT2LMHeadModel, list[Tensor], list[Tensor]]:
    """The same weights in transformers, their attention maps and hidden states."""
    folder = save_checkpoint(tmp_path_factory.mktemp("models") / "random", model, Tokenizer.named("bytes"))
    other = GPT2LMHeadModel.from_pretrained(Path(folder), attn_implementation="eager").eval()
    with torch.no_grad():
        out = other(torch.tensor([IDS]), output_attentions=True, output_hidden_states=True)
    return other, list(out.attentions), list(out.hidden_states)


def test_an_inspection_is_shown_in_one_line_and_in_a_notebook_as_a_table_of_layers(found: Inspection) -> None:
    assert repr(found) == "Inspection(12 tokens, 3 layers, 4 heads each)"
    first, _, *layers = found._repr_html_().removeprefix("<pre>").removesuffix("</pre>").splitlines()
    assert first == repr(found)
    loss = -found.lens.logprobs[:, :-1].mean(-1)
    norm = found.residual_norms.mean(-1)
    expected = [[str(layer + 1), f"{loss[layer]:.3f}", f"{norm[layer]:.1f}"] for layer in range(3)]
    assert [row.split() for row in layers] == expected


def test_attention_weights_are_those_of_transformers(
    found: Inspection, theirs: tuple[object, list[Tensor], list[Tensor]]
) -> None:
    assert found.attention.shape == (3, 4, len(IDS), len(IDS))
    torch.testing.assert_close(found.attention, torch.cat(theirs[1]), rtol=0, atol=2e-6)


def test_the_lens_is_the_norm_and_head_of_transformers_applied_to_its_hidden_states(
    found: Inspection, theirs: tuple[GPT2LMHeadModel, list[Tensor], list[Tensor]]
) -> None:
    other, _, hidden = theirs
    for layer in range(2):  # the last hidden state of transformers is after the norm
        with torch.no_grad():
            logprobs = other.lm_head(other.transformer.ln_f(hidden[layer + 1]))[0].log_softmax(dim=-1)  # (T, V)
        assert torch.equal(found.lens.top_ids[layer], logprobs.topk(7).indices)
        torch.testing.assert_close(found.lens.top_logprobs[layer], logprobs.topk(7).values, rtol=0, atol=2e-5)
        torch.testing.assert_close(found.residual_norms[layer], hidden[layer + 1][0].norm(dim=-1), rtol=1e-5, atol=0)
    assert found.lens.top_ids.shape == (3, len(IDS), 7)


def test_probability_rank_and_entropy_follow_their_definitions(model: GPT, found: Inspection) -> None:
    with torch.no_grad():
        probabilities = model(torch.tensor([IDS]))[0].double().softmax(dim=-1)  # (T, V)
    own = found.predictions
    for at, (row, following) in enumerate(zip(probabilities, IDS[1:], strict=False)):
        assert own.logprobs[at].item() == pytest.approx(math.log(row[following]), abs=2e-5)
        assert own.ranks[at].item() == sum(other > row[following] for other in row)
        assert own.entropy[at].item() == pytest.approx(-sum(p * math.log(p) for p in row.tolist()), abs=2e-5)
    assert math.isnan(own.logprobs[-1])
    assert own.ranks[-1] == -1
    assert own.entropy[-1] > 0


def test_the_norms_are_those_of_what_each_sublayer_adds(model: GPT, found: Inspection) -> None:
    added: dict[str, list[Tensor]] = {"attention": [], "mlp": []}
    hooks = [
        module.register_forward_hook(lambda _module, _inputs, y, name=name: added[name].append(y[0]))
        for block in model.blocks
        for name, module in (("attention", block.attention), ("mlp", block.mlp))
    ]
    with torch.no_grad():
        x = model.embed(torch.tensor([IDS]))[0]  # (T, C)
        model(torch.tensor([IDS]))
    for hook in hooks:
        hook.remove()
    for layer in range(3):
        x = x + added["attention"][layer] + added["mlp"][layer]
        torch.testing.assert_close(found.attention_norms[layer], added["attention"][layer].norm(dim=-1))
        torch.testing.assert_close(found.mlp_norms[layer], added["mlp"][layer].norm(dim=-1))
        torch.testing.assert_close(found.residual_norms[layer], x.norm(dim=-1))
    torch.testing.assert_close(found.token_norms, model.token_embedding.weight[IDS].norm(dim=-1))
    torch.testing.assert_close(found.position_norms, model.position_embedding.weight[: len(IDS)].norm(dim=-1))


def test_predict_equals_inspect_with_logits_in_slices_of_any_size(
    model: GPT, found: Inspection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n_logits in (1, 257 * 5, 257 * 1000):
        monkeypatch.setattr(perplexity, "_MOST_LOGITS", n_logits)
        alone = predict(model, torch.tensor(IDS), top=7)
        for name, part in vars(alone).items():
            torch.testing.assert_close(part, getattr(found.predictions, name), equal_nan=True, rtol=0, atol=2e-5)


def test_inspect_uses_no_dropout_and_restores_train_mode(model: GPT, found: Inspection) -> None:
    model.train()
    try:
        again = inspect(model, IDS, top=7)
        assert model.training
    finally:
        model.eval()
    assert torch.equal(again.attention, found.attention)
    assert not again.attention.requires_grad


def test_the_mean_surprisal_is_the_loss_of_the_evaluation(model: GPT, found: Inspection) -> None:
    lengths = np.array([1] * 256 + [0])
    measured = evaluate(model, IDS, token_lengths=lengths)
    per_token, per_byte = mean_bits(found.predictions, IDS, lengths)
    assert per_token == pytest.approx(measured.loss / math.log(2), rel=1e-5)
    assert per_byte == pytest.approx(measured.bits_per_byte, rel=1e-5)
    assert mean_bits(predict(model, [3]), [3], lengths) == (None, None)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "of at least one"), ([[1, 2]], "one row"), ([257], "0 to 256"), ([-1], "0 to 256"), ([1] * 17, "context"),
        ("a text", r"not a text; give tokenizer\.encode\(text\)"),
    ],
)  # fmt: skip
def test_invalid_ids_are_refused(model: GPT, ids: Any, message: str) -> None:
    for read in (inspect, predict):
        with pytest.raises(ConfigError, match=message):
            read(model, ids)


def test_predicting_restores_the_training_mode_after_an_error() -> None:
    assert_restores_the_mode(lambda model: predict(model, [1, 2, 3]))


def test_an_inspection_of_the_loaded_model_names_it(here: Path) -> None:
    minigpt.save_checkpoint(here / "checkpoints/m", random_model(), minigpt.Tokenizer.named("bytes"))
    loaded: Any = minigpt.load("m", device="cpu")
    with pytest.raises(ConfigError, match=r"not a Model; give minigpt\.load\(\.\.\.\)\.model"):
        minigpt.inspect(loaded, [1, 2, 3])
