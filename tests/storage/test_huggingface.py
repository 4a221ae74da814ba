"""Weights and configs in Hugging Face's form, compared with transformers in both directions."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import assert_same_model

from minigpt.config import PRESETS, GPTConfig
from minigpt.errors import CheckpointError, ConfigError
from minigpt.model.gpt import GPT
from minigpt.storage.files import atomic_write, json_bytes, read_json
from minigpt.storage.huggingface import (
    config_from_huggingface,
    config_to_huggingface,
    from_huggingface,
    infer_config,
    stored_tensors,
    to_huggingface,
)
from minigpt.storage.tensors import TensorFile, save_tensors

# No two sizes are equal, except in one shape, where a missing transposition would not be a wrong shape.
SHAPES = [
    GPTConfig(vocab_size=37, n_positions=11, n_embd=20, n_layer=3, n_head=5),
    GPTConfig(vocab_size=3, n_positions=7, n_embd=6, n_layer=1, n_head=1),
    GPTConfig(vocab_size=101, n_positions=16, n_embd=24, n_layer=2, n_head=2, layer_norm_epsilon=1e-3),
]
TINY = SHAPES[1]


def randomize(module: torch.nn.Module, seed: int = 0, scale: float = 0.5) -> None:
    """Sets weights large enough that every activation is nonlinear and any mistake changes the logits."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale / math.sqrt(parameter.shape[-1]))
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator))


def randomized_model(config: GPTConfig) -> GPT:
    model = GPT(config).eval()
    randomize(model)
    return model


def random_ids(config: GPTConfig) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(config.vocab_size, (3, config.n_positions), generator=generator)


@torch.no_grad()
def greedy(model: GPT, prompt: torch.Tensor) -> torch.Tensor:
    ids = prompt
    while ids.shape[1] < model.config.n_positions:
        ids = torch.cat([ids, model(ids)[:, -1:].argmax(-1)], dim=1)
    return ids


def save(folder: Path, model: GPT) -> Path:
    config = config_to_huggingface(model.config, end_of_text=model.config.vocab_size - 1, dtype=torch.float32)
    atomic_write(folder / "config.json", json_bytes(config))
    save_tensors(folder / "model.safetensors", to_huggingface(model), {"format": "pt"})
    return folder


def load(folder: Path) -> GPT:
    config = config_from_huggingface(read_json(folder / "config.json"), folder)
    with TensorFile(folder / "model.safetensors") as file:
        return from_huggingface(file, config)


@pytest.fixture
def transformers() -> Iterator[Any]:
    """The transformers package, without progress bars."""
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    yield transformers
    transformers.utils.logging.enable_progress_bar()


def reference_model(transformers: Any, config: GPTConfig) -> Any:
    values = config_to_huggingface(config, end_of_text=config.vocab_size - 1, dtype=torch.float32)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**values)).eval()
    randomize(model)
    return model


@torch.no_grad()
def assert_parity(model: GPT, reference: Any) -> None:
    ids = random_ids(model.config)
    torch.testing.assert_close(model(ids), reference(ids).logits, rtol=1e-5, atol=1e-5)
    prompt = ids[:, :3]
    reference.generation_config.eos_token_id = None  # so that it generates up to the end of the context
    expected = reference.generate(
        prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_length=model.config.n_positions
    )
    assert torch.equal(greedy(model, prompt), expected)


@pytest.mark.parametrize("config", SHAPES, ids=str)
def test_a_model_saved_by_transformers_gives_the_same_logits(
    tmp_path: Path, transformers: Any, config: GPTConfig
) -> None:
    reference = reference_model(transformers, config)
    reference.save_pretrained(tmp_path)
    assert_parity(load(tmp_path), reference)


@pytest.mark.parametrize("config", SHAPES, ids=str)
def test_a_saved_model_gives_the_same_logits_in_transformers(
    tmp_path: Path, transformers: Any, config: GPTConfig
) -> None:
    model = randomized_model(config)
    assert_parity(model, transformers.AutoModelForCausalLM.from_pretrained(save(tmp_path, model)))


@pytest.mark.slow
def test_the_124m_shape_gives_the_same_logits_in_both_directions(tmp_path: Path, transformers: Any) -> None:
    config = PRESETS["gpt2"]
    ids = random_ids(config)[:1, :200]
    reference = reference_model(transformers, config)
    reference.save_pretrained(tmp_path / "theirs")
    model = load(tmp_path / "theirs")
    again = transformers.AutoModelForCausalLM.from_pretrained(save(tmp_path / "ours", model))
    with torch.no_grad():
        expected = reference(ids).logits
        torch.testing.assert_close(model(ids), expected, rtol=1e-4, atol=1e-4)
        assert torch.equal(again(ids).logits, expected)


def test_a_saved_model_loads_equal(tmp_path: Path) -> None:
    model = randomized_model(SHAPES[0])
    loaded = load(save(tmp_path, model))
    assert loaded.config == model.config
    assert not loaded.training
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
        assert loaded.state_dict()[name].is_contiguous(), name


def test_a_mapped_model_is_equal_and_stays_in_its_file(tmp_path: Path) -> None:
    model = randomized_model(SHAPES[0])
    with TensorFile(save(tmp_path, model) / "model.safetensors") as file:
        mapped = from_huggingface(file, SHAPES[0], mapped=True)
        inside = {parameter.untyped_storage().data_ptr() for parameter in mapped.parameters()}
    assert max(inside) - min(inside) < (tmp_path / "model.safetensors").stat().st_size
    assert not mapped.training
    for name, tensor in model.state_dict().items():
        found = mapped.state_dict()[name]
        assert torch.equal(found, tensor), name
        assert (found.t() if name.endswith("_proj.weight") else found).is_contiguous(), name


def test_tensors_that_cannot_be_mapped_are_read(tmp_path: Path) -> None:
    model = randomized_model(SHAPES[0])
    save_tensors(tmp_path / "half", to_huggingface(model, torch.float16))
    with TensorFile(tmp_path / "half") as file:
        as_float, as_half = (
            from_huggingface(file, SHAPES[0], dtype=d, mapped=True) for d in (torch.float32, torch.float16)
        )
    for name, tensor in model.state_dict().items():
        assert torch.equal(as_half.state_dict()[name], tensor.half()), name
        assert torch.equal(as_float.state_dict()[name], tensor.half().float()), name


def test_stored_tensors_names_every_tensor_of_the_model_once() -> None:
    with torch.device("meta"):
        state = GPT(SHAPES[0]).state_dict()
    table = list(stored_tensors(SHAPES[0]))
    assert [stored.name for stored in table] == list(state)
    assert len({stored.stored_name for stored in table}) == len(state)
    for stored in table:
        assert stored.shape == tuple(
            reversed(state[stored.name].shape) if stored.transposed else state[stored.name].shape
        )


WTE, HEAD = "transformer.wte.weight", "lm_head.weight"
MASKS = {"transformer.h.0.attn.bias": torch.ones(1, 1, 7, 7), "h.0.attn.masked_bias": torch.tensor(-1e4)}


@pytest.mark.parametrize(
    "variant",
    [
        lambda tensors: {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()},
        lambda tensors: tensors | MASKS,
        lambda tensors: tensors | {HEAD: tensors[WTE].clone()},
        lambda tensors: {HEAD if name == WTE else name: tensor for name, tensor in tensors.items()},
    ],
    ids=["without prefix", "masks", "tied head", "head alone"],
)
def test_files_of_all_versions_load_equal(tmp_path: Path, variant: Any) -> None:
    model = randomized_model(TINY)
    save_tensors(tmp_path / "file", variant(to_huggingface(model)))
    with TensorFile(tmp_path / "file") as file:
        loaded = from_huggingface(file, TINY)
    assert_same_model(loaded, model)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("transformer.h.0.mlp.c_fc.weight", None, r"PATH has no tensor 'h.0.mlp.c_fc.weight', expected of shape \(6, "),
        ("transformer.h.1.ln_1.weight", torch.ones(6), r"PATH has an unexpected tensor 'transformer.h.1.ln_1.weight'"),
        ("transformer.wpe.weight", torch.ones(8, 6), r"'transformer.wpe.weight' in PATH has shape \(8, 6\), expected"),
        ("transformer.h.0.attn.c_attn.weight", torch.ones(18, 6), r"'\S+c_attn.weight' in PATH has shape \(18, 6\), e"),
        (HEAD, torch.ones(3, 6), rf"'{HEAD}' in PATH differs from '{WTE}': the output head must be tied"),
        (HEAD, torch.ones(4, 6), rf"'{HEAD}' in PATH differs from '{WTE}': the output head must be tied"),
        ("wte.weight", torch.ones(3, 6), rf"PATH has both '{WTE}' and 'wte.weight', expected only one of them"),
    ],
)  # fmt: skip
def test_tensors_of_another_model_are_refused_with_name_and_shape(
    tmp_path: Path, name: str, change: torch.Tensor | None, message: str
) -> None:
    path = tmp_path / "file"
    tensors = {**to_huggingface(randomized_model(TINY)), name: change}
    save_tensors(path, {name: tensor for name, tensor in tensors.items() if tensor is not None})
    with TensorFile(path) as file, pytest.raises(CheckpointError, match="^" + message.replace("PATH", str(path))):
        from_huggingface(file, TINY)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_files_of_other_dtypes_load_as_float32(tmp_path: Path, dtype: torch.dtype) -> None:
    model = randomized_model(TINY)
    save_tensors(tmp_path / "file", to_huggingface(model, dtype))
    with TensorFile(tmp_path / "file") as file:
        loaded = from_huggingface(file, TINY)
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor.to(dtype).float()), name


def test_a_config_with_a_false_number_of_blocks_is_refused_at_once(tmp_path: Path) -> None:
    save_tensors(tmp_path / "file", to_huggingface(randomized_model(TINY)))
    with (
        TensorFile(tmp_path / "file") as file,
        pytest.raises(CheckpointError, match=r"holds .* values, but a model of 10,000 blocks"),
    ):
        from_huggingface(file, TINY.replace(n_layer=10_000))
    with pytest.raises(ConfigError, match=r"n_layer \(10{12}\) must be at most 10000"):
        TINY.replace(n_layer=10**12)


@pytest.mark.parametrize("config", [*SHAPES, PRESETS["gpt2-xl"], GPTConfig(dropout=0.25)], ids=str)
def test_a_config_is_converted_and_back_without_change(config: GPTConfig) -> None:
    values = config_to_huggingface(config, end_of_text=5, dtype=torch.bfloat16)
    assert config_from_huggingface(values, "here") == config
    assert (values["bos_token_id"], values["eos_token_id"], values["torch_dtype"]) == (5, 5, "bfloat16")


def test_transformers_reads_the_config_with_the_same_values(transformers: Any) -> None:
    config = GPTConfig(
        vocab_size=37, n_positions=11, n_embd=20, n_layer=3, n_head=5, dropout=0.2, layer_norm_epsilon=1e-6
    )
    read = transformers.GPT2Config(**config_to_huggingface(config, end_of_text=36, dtype=torch.float16))
    defaults = transformers.GPT2Config()
    for name in ("activation_function", "n_inner", "scale_attn_weights", "initializer_range", "tie_word_embeddings"):
        assert getattr(read, name) == getattr(defaults, name), name
    assert (read.attn_pdrop, read.embd_pdrop, read.resid_pdrop) == (0.2, 0.2, 0.2)
    assert (read.n_positions, read.layer_norm_epsilon, read.eos_token_id, read.dtype) == (11, 1e-6, 36, torch.float16)


def test_missing_keys_get_the_defaults_of_transformers(transformers: Any) -> None:
    defaults = transformers.GPT2Config()
    expected = GPTConfig(
        **{name: getattr(defaults, name) for name in ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head")},
        layer_norm_epsilon=defaults.layer_norm_epsilon,
        dropout=defaults.resid_pdrop,
    )
    assert config_from_huggingface({"model_type": "gpt2"}, "here") == expected


@pytest.mark.parametrize(
    "values",
    [
        {"n_embd": 64, "n_head": 4, "n_ctx": 32},  # the oldest files: no model_type, and n_ctx for n_positions
        {"model_type": "gpt2", "hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 32},
        {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_positions": 32, "n_ctx": 1024, "n_inner": 256},
        {
            "model_type": "gpt2",
            "n_embd": 64,
            "n_head": 4,
            "n_positions": 32,
            "activation_function": "gelu_pytorch_tanh",
        },
        {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_positions": 32, "reorder_and_upcast_attn": True},
        {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_positions": 32, "attn_pdrop": 0.5, "embd_pdrop": 0.3},
    ],
    ids=str,
)
def test_config_files_of_all_versions_give_the_same_config(values: dict[str, Any]) -> None:
    assert config_from_huggingface(values, "here") == GPTConfig(n_embd=64, n_head=4, n_positions=32, dropout=0.1)


def test_every_name_that_transformers_has_for_gelu_is_known() -> None:
    activations = pytest.importorskip("transformers.activations").ACT2FN
    inputs = torch.linspace(-12, 12, 2001)
    found = {}
    for name in activations:
        for ours, form in (("gelu_new", "tanh"), ("gelu", "none")):
            if name not in ("xielu", "prelu"):  # with parameters
                output = activations[name](inputs)
                if torch.allclose(output, torch.nn.functional.gelu(inputs, approximate=form), atol=2e-6):
                    found[name] = ours
    assert len(found) >= 7
    for name, ours in found.items():
        values = {"model_type": "gpt2", "activation_function": name}
        assert config_from_huggingface(values, "here").activation_function == ours


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "llama"}, r"model_type \('llama'\) in here must be 'gpt2'"),
        ({"model_type": None}, r"model_type \(None\) in here must be 'gpt2'"),
        ({}, r"model_type \(None\) in here must be 'gpt2'"),
        (
            {"activation_function": "relu"},
            r"activation_function \('relu'\) in here .* 'gelu_new' or 'gelu_pytorch_tanh'",
        ),
        ({"n_inner": 3000}, r"n_inner \(3000\) in here must be None or 3072, as in GPT-2"),
        ({"scale_attn_weights": False}, r"scale_attn_weights \(False\) in here"),
        ({"scale_attn_by_inverse_layer_idx": True}, r"scale_attn_by_inverse_layer_idx \(True\) in here"),
        ({"add_cross_attention": True}, r"add_cross_attention \(True\) in here"),
        ({"tie_word_embeddings": False}, r"tie_word_embeddings \(False\) in here"),
        ({"n_head": 7}, r"here: n_embd \(768\) must be divisible by n_head \(7\)"),
        ({"n_layer": "12"}, r"here: n_layer \('12'\) must be a whole number"),
        ({"vocab_size": None}, r"here: vocab_size \(None\) must be a whole number"),
        ({"resid_pdrop": 1.5}, r"here: dropout \(1.5\) must be below 1"),
    ],
    ids=str,
)
def test_a_config_of_another_model_is_refused_with_key_and_value(values: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match="^" + message) as refused:
        config_from_huggingface({"model_type": "gpt2"} | values if values else {}, "here")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_the_shape_is_inferred_from_the_tensors_if_heads_have_64_features(tmp_path: Path, prefix: str) -> None:
    config = GPTConfig(vocab_size=9, n_positions=5, n_embd=128, n_layer=2, n_head=2, dropout=0.1)
    tensors = {prefix + stored.stored_name: torch.zeros(1).expand(stored.shape) for stored in stored_tensors(config)}
    save_tensors(tmp_path / "file", tensors)
    with TensorFile(tmp_path / "file") as file:
        assert infer_config(file.path, file.shapes) == config


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"a": torch.zeros(1)}, "does not hold GPT-2's tensors"),
        (
            {"wte.weight": torch.zeros(2), "wpe.weight": torch.zeros(2), "h.0.x": torch.zeros(1)},
            "does not hold GPT-2's",
        ),
        (
            {"wte.weight": torch.zeros(3, 60), "wpe.weight": torch.zeros(2, 60), "h.0.x": torch.zeros(1)},
            "needs its config.json next to it: its 60 features are not a multiple",
        ),
    ],
)
def test_tensors_that_do_not_determine_the_shape_are_refused(
    tmp_path: Path, tensors: dict[str, torch.Tensor], message: str
) -> None:
    save_tensors(tmp_path / "file", tensors)
    with TensorFile(tmp_path / "file") as file, pytest.raises(CheckpointError, match=message):
        infer_config(file.path, file.shapes)
