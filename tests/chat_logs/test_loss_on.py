"""The loss on one speaker's turns: steps, several processes, evaluation, resuming, and what the command prints."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from builders import new_model, new_train_step
from torch import Tensor
from typer.testing import CliRunner

from minigpt.chat_logs.chat_corpus import ChatCorpus, sample_prompt
from minigpt.chat_logs.step_parts import scored_shares
from minigpt.chat_logs.transcript import CHAT_TEMPLATE, speaker_number
from minigpt.cli.app import app
from minigpt.config import TrainConfig
from minigpt.data.corpus import Corpus
from minigpt.errors import ConfigError
from minigpt.evaluation.perplexity import evaluate
from minigpt.storage.run import Run
from minigpt.training.events import Evaluation, Finished, Notice, Sample, Step
from minigpt.training.loop import train
from minigpt.training.progress import Progress
from minigpt.training.state import TrainingState
from minigpt.training.step_parts import CorpusBatches
from minigpt.training.world import World
from minigpt.tricks.batches import NoisyBatches

CPU = torch.device("cpu")


def write_log(folder: Path, n: int = 60) -> Path:
    """A chat log in which the lengths of the answers differ."""
    path = folder / "log.jsonl"
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"Say it {i} times, please."},
                {"role": "assistant", "content": "it " * (i % 7 + 1)},
            ]
        }
        for i in range(n)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    monkeypatch.setenv("MINIGPT_CACHE", str(tmp_path / "cache"))
    return Corpus.build(write_log(tmp_path), "bpe:300")


def settings(**fields: Any) -> TrainConfig:
    base = {"steps": 6, "batch_size": 6, "context_length": 12, "eval_every": 3, "sample_every": 0, "device": "cpu"}
    return TrainConfig(**base | {"loss_on": "assistant", "warmup_steps": 2} | fields)


def gradients_of(corpus: Corpus, config: TrainConfig, world: World | None = None) -> tuple[float, list[Tensor]]:
    model = new_model(vocab_size=corpus.tokenizer.vocab_size)
    step = new_train_step(model, corpus, config, world)
    loss, _ = step.compute_gradients(2)
    return loss.item(), [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("micro_batch_size", [1, 4, 6])
@pytest.mark.parametrize("bpe_dropout", [0.0, 0.3])
def test_a_step_is_that_of_the_mean_loss_of_all_scored_tokens_of_its_batch(
    corpus: Corpus, micro_batch_size: int, bpe_dropout: float
) -> None:
    config = settings(micro_batch_size=micro_batch_size, bpe_dropout=bpe_dropout)
    loss, gradients = gradients_of(corpus, config)
    inputs, targets = NoisyBatches(corpus, config).tensors(2, range(6), 1.0)
    model = new_model(vocab_size=corpus.tokenizer.vocab_size)
    expected = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), ignore_index=-100)
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    for ours, parameter in zip(gradients, model.parameters(), strict=True):
        torch.testing.assert_close(ours, parameter.grad, rtol=1e-3, atol=1e-6)


class Half(World):
    """One of two processes that do not communicate: the scored targets of the other are given."""

    def __init__(self, rows: range, others: int) -> None:
        super().__init__()
        self._rows, self._others = rows, others

    def rows(self, batch_size: int) -> range:
        return self._rows

    def all_reduce_sum(self, figures: Tensor) -> Tensor:
        return figures + self._others


def test_the_gradients_of_two_processes_add_up_to_those_of_one(corpus: Corpus) -> None:
    config = settings()
    _, whole = gradients_of(corpus, config)
    _, targets = corpus.batch(2, 6, 12, config.seed, None, "assistant")
    counts = [int((targets[rows.start : rows.stop] != -100).sum()) for rows in (range(2), range(2, 6))]
    assert counts[0] / sum(counts) != pytest.approx(2 / 6)
    (_, first), (_, second) = (
        gradients_of(corpus, config, Half(rows, others))
        for rows, others in ((range(2), counts[1]), (range(2, 6), counts[0]))
    )
    for one, other, both in zip(first, second, whole, strict=True):
        torch.testing.assert_close(one + other, both, rtol=1e-3, atol=1e-6)


class Unscored:
    """Batches in which no target is scored."""

    def scores_all(self, _: str) -> bool:
        return False

    def scored(self, *_: object) -> None:
        return None

    def batch(self, *_: object) -> tuple[Tensor, Tensor]:
        return torch.zeros(6, 12, dtype=torch.long), torch.full((6, 12), -100)


def test_a_micro_batch_without_a_scored_token_changes_nothing() -> None:
    model = new_model()
    step = new_train_step(model, Unscored(), settings())
    loss, n_scored = step.compute_gradients(0)
    assert loss.item() == 0
    assert n_scored == 0
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in model.parameters())


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_a_step_without_a_scored_token_has_no_loss_and_changes_nothing(corpus: Corpus, optimizer: str) -> None:
    model = new_model(vocab_size=corpus.tokenizer.vocab_size)
    step = new_train_step(model, corpus, settings(optimizer=optimizer))
    (scored,) = step.step(0, 1e-3)
    assert math.isfinite(scored.loss)
    state = TrainingState(step, "")
    before = {name: tensor.clone() for name, tensor in state.capture(Progress()).tensors.items()}
    assert any("momentum" in name or "exp_avg" in name for name in before)
    step.parts.batches = CorpusBatches(Unscored(), step.config)  # type: ignore[arg-type]
    for number in range(1, 7):  # five skipped steps would be a divergence
        (result,) = step.step(number, 1e-3)
        assert math.isnan(result.loss)
        assert not result.skipped
        assert result.gradient_norm == 0
    after = state.capture(Progress()).tensors
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    step.parts.batches = CorpusBatches(corpus, step.config)
    assert math.isfinite(step.step(7, 1e-3)[0].loss)


def test_a_step_of_which_only_another_process_scores_tokens_has_a_loss() -> None:
    step = new_train_step(new_model(), Unscored(), settings(), Half(range(6), 5))
    (result,) = step.step(0, 1e-3)
    assert result.loss == 5  # the sum with that of the other process


def test_steps_without_a_scored_token_are_logged_without_a_loss(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = Corpus.batch

    def unscored_at_first(self: Corpus, step: int, *rest: Any) -> tuple[Tensor, Tensor]:
        inputs, targets = batch(self, step, *rest)
        return inputs, targets if step >= 6 else torch.full_like(targets, -100)

    monkeypatch.setattr(Corpus, "batch", unscored_at_first)
    model = new_model(vocab_size=corpus.tokenizer.vocab_size)
    run = Run.create(tmp_path / "run", model, corpus.tokenizer, {})
    events = list(train(model, corpus, settings(steps=8, eval_every=8), run))
    assert [event.is_scored for event in events if isinstance(event, Step)] == [False] * 6 + [True] * 2
    losses = [line["loss"] for line in run.read_log() if "loss" in line]
    assert losses[:6] == [None] * 6
    assert all(loss > 1 for loss in losses[6:])
    assert not any(line.get("skipped") for line in run.read_log())


@pytest.mark.parametrize(("context", "batch_size", "expected"), [(12, 1, True), (12, 99, False), (24, 1, False)])
def test_one_notice_says_that_steps_will_score_no_token(
    tmp_path: Path, context: int, batch_size: int, expected: bool
) -> None:
    row = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "Yes"}]  # 24 tokens, 6 of them scored
    (tmp_path / "log.jsonl").write_text(f"{json.dumps(row)}\n" * 50)
    corpus = Corpus.build(tmp_path / "log.jsonl", "bytes", cache=tmp_path, validation_fraction=0)
    assert scored_shares(corpus, "assistant", 12) == (0.25, 0.5)
    assert scored_shares(corpus, "all", 12) == (1, 1)
    config = settings(context_length=context, batch_size=batch_size, steps=2)
    model = new_model(vocab_size=257, n_positions=32)
    notices = [event.text for event in train(model, corpus, config) if isinstance(event, Notice)]
    said = [text for text in notices if "loss includes" in text]
    assert said == expected * [
        "the loss includes 25.0% of the training tokens; 50% of the windows of 12 tokens have none of them, so about "
        "50.0% of the steps change nothing; raise --context-length, now 12, or --batch-size, now 1"
    ]


def test_bits_per_byte_count_the_scored_bytes_only(corpus: Corpus) -> None:
    model = new_model(vocab_size=corpus.tokenizer.vocab_size)
    tokens, scored = corpus.validation, corpus.scored("assistant")
    assert scored is not None
    measured = evaluate(
        model, tokens, token_lengths=corpus.tokenizer.token_lengths, context=12, stride=6, scored=scored
    )
    whole = evaluate(model, tokens, token_lengths=corpus.tokenizer.token_lengths, context=12, stride=6)
    others = evaluate(model, tokens, token_lengths=corpus.tokenizer.token_lengths, context=12, stride=6, scored=~scored)
    assert measured.tokens == int(scored[1:].sum())
    assert measured.bytes == int(corpus.tokenizer.token_lengths[tokens[1:][scored[1:]]].sum())
    assert measured.tokens + others.tokens == whole.tokens
    total = measured.loss * measured.tokens + others.loss * others.tokens
    assert total == pytest.approx(whole.loss * whole.tokens)
    assert measured.bits_per_byte == pytest.approx(measured.loss * measured.tokens / math.log(2) / measured.bytes)


@pytest.mark.parametrize("batch_size", [6, 1])  # of one sequence, the first step scores no token
def test_training_evaluates_the_role_only_and_resumes_bit_for_bit(
    corpus: Corpus, tmp_path: Path, batch_size: int
) -> None:
    config = settings(bpe_dropout=0.2, batch_size=batch_size, seed=3)
    shape = {"vocab_size": corpus.tokenizer.vocab_size, "dropout": 0.1}
    whole, parts = new_model(**shape), new_model(**shape)
    events = list(train(whole, corpus, config))
    scored = corpus.scored("assistant")
    assert scored is not None
    assert events[-1].validation_tokens == int(scored[1:].sum())  # type: ignore[union-attr]
    assert isinstance(events[-1], Finished)
    run = Run.create(tmp_path / "run", parts, corpus.tokenizer, {})
    for event in train(parts, corpus, config, run):
        if isinstance(event, Evaluation) and event.step == 3:
            break
    again = new_model(**shape, seed=5)
    first = [each.validation_loss for each in events if isinstance(each, Evaluation)]
    rest = list(train(again, corpus, config, Run.open(run.directory), resume=True))
    assert [each.validation_loss for each in rest if isinstance(each, Evaluation)] == first[-1:]
    for name, weights in whole.state_dict().items():
        assert torch.equal(again.state_dict()[name], weights), name


def test_a_sample_answers_a_held_out_question(corpus: Corpus) -> None:
    config = settings(steps=1, sample_every=1, context_length=64, batch_size=2)
    model = new_model(vocab_size=corpus.tokenizer.vocab_size, n_positions=64)
    samples = [event for event in train(model, corpus, config) if isinstance(event, Sample)]
    assert re.fullmatch(r"User: Say it \d+ times, please\.\nAssistant:", samples[0].prompt)
    assert sample_prompt(corpus, 3) == ""
    asked = config.replace(sample_prompt="User:")
    assert next(event for event in train(model, corpus, asked) if isinstance(event, Sample)).prompt == "User:"


def test_a_plain_text_cannot_be_trained_on_one_role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIGPT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.txt").write_text("plain text " * 99)
    plain = Corpus.build(tmp_path / "a.txt", "bytes")
    with pytest.raises(ConfigError, match=r"loss_on \(assistant\) needs a text in which every document"):
        train(new_model(), plain, settings())


def test_the_command_learns_no_message_with_weight_0_and_compares_its_losses_with_no_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINIGPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "140")
    rows = [json.loads(line) for line in write_log(tmp_path).read_text().splitlines()]
    for row in rows:
        row["messages"][1]["weight"] = 0
    (tmp_path / "log.json").write_text(json.dumps(rows, indent=1))
    options = ["--n-layer", "1", "--n-head", "2", "--n-embd", "16", "--context-length", "16", "--batch-size", "4",
               "--tokenizer", "bytes", "--steps", "2", "--device", "cpu", "--dtype", "float32"]  # fmt: skip
    result = CliRunner().invoke(app, ["train", "log.json", *options])
    assert result.exit_code == 0, result.output
    assert "messages with weight 0, which are read but not learned: 60" in result.stderr
    assert "of all turns of the conversations without messages of weight 0" in result.stderr
    assert "baselines" not in result.output
    measured = CliRunner().invoke(app, ["evaluate", "log", "log.json", "--json"])
    corpus = Corpus.build(tmp_path / "log.json", "bytes", validation_fraction=0)
    scored = corpus.scored("all", "train")
    assert scored is not None
    assert 0 < json.loads(measured.stdout)["tokens"] == int(scored.sum()) < len(corpus.train)
    refused = CliRunner().invoke(app, ["train", "log.json", *options, "--loss-on", "assistant"])
    assert "--loss-on (assistant) is not a role in this text but in messages with weight 0; give user" in refused.stderr


def test_the_command_says_what_is_scored_and_compares_it_with_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINIGPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "140")
    write_log(tmp_path)
    options = ["--n-layer", "1", "--n-head", "2", "--n-embd", "16", "--context-length", "16", "--batch-size", "4",
               "--tokenizer", "bytes", "--steps", "6", "--eval-every", "3", "--device", "cpu",
               "--dtype", "float32"]  # fmt: skip
    result = CliRunner().invoke(app, ["train", "log.jsonl", *options, "--loss-on", "assistant"])
    assert result.exit_code == 0, result.output
    assert "of the assistant's turns only" in result.stdout
    assert "bits per byte of the assistant's turns only  best so far" in result.stderr
    assert "baselines" not in result.output
    assert "held out to measure on; loss of the assistant's turns only" in result.stderr  # in the plan
    assert result.stdout.strip().endswith("minigpt chat log")
    record = json.loads(Path("checkpoints/log/training.json").read_text())
    assert record["training"]["loss_on"] == "assistant"
    assert record["chat_template"] == CHAT_TEMPLATE
    config = json.loads(Path("checkpoints/log/tokenizer_config.json").read_text())
    assert config["chat_template"] == CHAT_TEMPLATE
    assert "of the assistant's turns only" in Path("checkpoints/log/README.md").read_text()
    assert "of the assistant's turns only" in CliRunner().invoke(app, ["info", "log"]).stdout
    measured = CliRunner().invoke(app, ["evaluate", "log", "log.jsonl", "--loss-on", "user", "--json"])
    assert measured.exit_code == 0, measured.output
    figures = json.loads(measured.stdout)
    corpus = Corpus.build(tmp_path / "log.jsonl", "bytes", validation_fraction=0)
    assert isinstance(corpus, ChatCorpus)
    assert (figures["loss_on"], figures["tokens"]) == (
        "user",
        int((corpus.train_speakers == speaker_number("user")).sum()),
    )
    refused = CliRunner().invoke(app, ["train", "--resume", "--name", "log", "--loss-on", "all", "--steps", "9"])
    assert refused.exit_code == 1
    assert "--loss-on (all) cannot change on --resume without --allow-change" in refused.stderr
    generated = CliRunner().invoke(app, ["generate", "User: Hi", "--model", "log", "--max-new-tokens", "2"])
    assert "to talk to it: minigpt chat log" in generated.stderr
