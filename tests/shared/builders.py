"""Tiny models and runs for the tests, so that a test states only what it is about."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from minigpt.cli.app import app
from minigpt.config import GPTConfig, TrainConfig
from minigpt.generation.constraint import TextState
from minigpt.generation.logits_processors import min_p, top_k, top_p, typical_p
from minigpt.generation.sampling import Sampler
from minigpt.model.gpt import GPT
from minigpt.storage.run import Run
from minigpt.tokenizer.tokenizer import Tokenizer
from minigpt.tokenizer.vocabulary import bytes_to_unicode
from minigpt.training.step import TrainStep
from minigpt.training.step_parts import build_step_parts
from minigpt.training.world import World

TINY = {"vocab_size": 257, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}


def new_model(config: GPTConfig | None = None, *, seed: int = 0, scale: float = 1.0, **fields: Any) -> GPT:
    """A model with GPT-2's initial weights, its matrices times `scale`, in eval mode.

    Its shape is `config`, or TINY with these config `fields`. With a scale of about 8 the logits depend on the context.
    """
    torch.manual_seed(seed)
    model = GPT(config or GPTConfig(**(TINY | fields)))
    for parameter in model.parameters():
        parameter.data.mul_(scale if parameter.dim() == 2 else 1)
    return model.eval()


def new_train_step(
    model: GPT, corpus: Any, config: TrainConfig, world: World | None = None, dtype: torch.dtype = torch.float32
) -> TrainStep:
    """A training step on the CPU."""
    return TrainStep(build_step_parts(model, corpus, config, dtype, world), config, torch.device("cpu"), dtype)


def assert_restores_the_mode(function: Callable[[GPT], object]) -> None:
    """An error in the forward pass, which runs in eval mode, leaves a model that was in training mode there."""
    model = new_model().train()

    def broken(*_: object) -> Tensor:
        assert not model.training
        raise RuntimeError("out of memory")

    model.features = broken  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="out of memory"):
        function(model)
    assert model.training


def random_model(config: GPTConfig | None = None, *, seed: int = 0, std: float = 0.3, **fields: Any) -> GPT:
    """A model whose every tensor is random, biases and norms too, so that a mix-up of any two shows in the logits."""
    generator = torch.Generator().manual_seed(seed)
    model = GPT(config or GPTConfig(**(TINY | fields)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, std, generator=generator)
    return model.eval()


def by_columns(model: GPT) -> GPT:
    """The same model with its matrices stored by columns, as in a Hugging Face file."""
    for name, parameter in model.named_parameters():
        if name.endswith("proj.weight"):
            parameter.data = parameter.data.t().contiguous().t()
    return model


def assert_same_model(found: GPT, expected: GPT) -> None:
    """The models have the same shape and the same weights, bit for bit.

    Their logits may differ in the last bits: mapped and allocated memory are aligned differently, and weights stored by
    rows and by columns are added in another order. So tests of copies compare weights, not logits.
    """
    names = ("n_layer", "n_head", "n_embd", "n_positions", "vocab_size", "activation_function", "layer_norm_epsilon")
    for name in names:
        assert getattr(found.config, name) == getattr(expected.config, name), name
    weights = expected.state_dict()
    assert found.state_dict().keys() == weights.keys()
    for name, tensor in found.state_dict().items():
        assert tensor.dtype == weights[name].dtype, name
        assert torch.equal(tensor, weights[name]), name


def new_run(
    folder: Path, model: GPT | None = None, tokenizer: Tokenizer | str = "bytes", record: dict[str, Any] | None = None
) -> Run:
    """The folder of a run that has not started to train, with these entries in its record."""
    tokenizer = Tokenizer.named(tokenizer) if isinstance(tokenizer, str) else tokenizer
    return Run.create(folder, model or new_model(), tokenizer, {"started": "now", **(record or {})})


def new_pair(folder: Path, **fields: Any) -> tuple[GPT, Run]:
    """A model of bytes with these config `fields`, and its run, which has not started to train."""
    model = new_model(**fields)
    return model, new_run(folder, model)


def bytes_ending_in(name: str) -> Tokenizer:
    """The tokenizer of bytes whose end-of-text token has another name."""
    *plain, _ = Tokenizer.named("bytes").token_strings
    vocab = {token: id for id, token in enumerate([*plain, name])}
    return Tokenizer.from_vocabulary(vocab, [], special={name: 256}, end_of_text=name)


def tokenizer_with_roles(folder: Path) -> Tokenizer:
    """A token for each byte, and <s>, </s>, <unk> and <pad> for the four roles, from 256 on."""
    names = {"<s>": 256, "</s>": 257, "<unk>": 258, "<pad>": 259}
    bytes_only = {bytes_to_unicode(bytes([byte])): byte for byte in range(256)}
    Tokenizer.from_vocabulary(bytes_only, [], special=names, end_of_text="</s>").save(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= zip(("bos_token", "eos_token", "unk_token", "pad_token"), names, strict=True)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return Tokenizer.load(folder)


def finished_run(folder: Path) -> Path:
    """A folder in which a run of six steps on fox.txt, `checkpoints/fox`, has finished; returns that run's folder."""
    (folder / "fox.txt").write_text("the quick brown fox jumps over the lazy dog; " * 60)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("MINIGPT_CACHE", str(folder / "cache"))
        options = ["--n-layer", "1", "--n-head", "2", "--n-embd", "16", "--context-length", "16", "--batch-size", "4",
                   "--tokenizer", "bytes", "--steps", "6", "--eval-every", "3", "--device", "cpu",
                   "--dtype", "float32", "--learning-rate", "0.001"]  # fmt: skip
        result = CliRunner().invoke(app, ["train", "fox.txt", *options])
    assert result.exit_code == 0, result.output
    return folder / "checkpoints" / "fox"


def distribution(
    sampler: Sampler, logits: Tensor, history: Tensor, n_new: int, states: Sequence[TextState] | None = None
) -> Tensor:
    """The probabilities that a sampler's tokens are drawn with, from the whole vocabulary: (B, V) -> (B, V)."""
    config, processed = sampler.config, sampler.process(logits, history, n_new, states)
    if config.temperature == 0:
        return torch.nn.functional.one_hot(processed.argmax(dim=-1), processed.shape[1]).float()
    kept = (processed - processed.amax(dim=-1, keepdim=True)) / sampler.temperature
    if config.top_k is not None:
        kept = top_k(kept, config.top_k)
    if config.top_p < 1:
        kept = top_p(kept, config.top_p)
    if config.min_p > 0:
        kept = min_p(kept, config.min_p)
    if config.typical_p < 1:
        kept = typical_p(kept, config.typical_p)
    return kept.softmax(dim=-1)


def snapshot(folder: Path) -> dict[str, bytes | str | None]:
    """Everything in a folder: the bytes of files, the targets of links, None for folders."""

    def content(path: Path) -> bytes | str | None:
        if path.is_symlink():
            return str(path.readlink())
        return path.read_bytes() if path.is_file() else None

    return {str(path.relative_to(folder)): content(path) for path in folder.rglob("*")}
