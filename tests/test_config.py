"""Settings: their bounds and types, the errors for wrong values, and their import without PyTorch."""

import dataclasses
import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from minigpt.config import PRESETS, GPTConfig, ReadingConfig, SamplingConfig, TrainConfig
from minigpt.errors import ConfigError
from minigpt.run_options import RunOptions
from minigpt.settings import Settings

GROUPS: list[type[Settings]] = [GPTConfig, TrainConfig, SamplingConfig]
every_group = pytest.mark.parametrize("group", GROUPS)


@pytest.mark.parametrize(
    ("group", "values", "message"),
    [
        (GPTConfig, {"n_layer": 0}, "n_layer (0) must be at least 1"),
        (GPTConfig, {"vocab_size": -3}, "vocab_size (-3) must be at least 1"),
        (GPTConfig, {"n_positions": 0}, "n_positions (0) must be at least 1"),
        (GPTConfig, {"dropout": 1.0}, "dropout (1.0) must be below 1"),
        (GPTConfig, {"dropout": -0.1}, "dropout (-0.1) must be at least 0"),
        (GPTConfig, {"layer_norm_epsilon": 0}, "layer_norm_epsilon (0) must be above 0"),
        (GPTConfig, {"layer_norm_epsilon": float("nan")}, "layer_norm_epsilon (nan) must be a finite number"),
        (GPTConfig, {"n_embd": 770}, "n_embd (770) must be divisible by n_head (12)"),
        (GPTConfig, {"n_head": 2.0}, "n_head (2.0) must be a whole number"),
        (GPTConfig, {"n_layer": True}, "n_layer (True) must be a whole number"),
        (GPTConfig, {"n_layer": None}, "n_layer (None) must be a whole number"),
        (GPTConfig, {"dropout": "0.1"}, "dropout ('0.1') must be a number"),
        (GPTConfig, {"dropout": False}, "dropout (False) must be a number"),
        (GPTConfig, {"dropout": "0" * 9999}, f"dropout ('{'0' * 37}...{'0' * 38}') must be a number"),
        (GPTConfig, {"n_layer": [[1] * 9999]}, "n_layer ([[1, 1, 1, 1, 1, 1, ...]]) must be a whole number"),
        (TrainConfig, {"steps": 0}, "steps (0) must be at least 1"),
        (TrainConfig, {"minutes": 0.0}, "minutes (0.0) must be above 0"),
        (TrainConfig, {"learning_rate": float("nan")}, "learning_rate (nan) must be a finite number"),
        (TrainConfig, {"cooldown": 1.5}, "cooldown (1.5) must be at most 1"),
        (TrainConfig, {"beta2": 1}, "beta2 (1) must be below 1"),
        (TrainConfig, {"grad_clip": -1}, "grad_clip (-1) must be at least 0"),
        (TrainConfig, {"schedule": "linear"}, "schedule ('linear') must be one of cosine, trapezoid, constant"),
        (TrainConfig, {"dtype": "int8"}, "dtype ('int8') must be one of auto, float32, bfloat16, float16"),
        (TrainConfig, {"device": 3}, "device (3) must be of type str"),
        (TrainConfig, {"seed": 2**63}, "seed (9223372036854775808) must be at most 9223372036854775807"),
        (GPTConfig, {"n_embd": 10**400}, f"n_embd (a number of about 400 digits) must be at most {2**63 - 1}"),
        (TrainConfig, {"steps": -(10**400)}, f"steps (a number of about 400 digits) must be at least {1 - 2**63}"),
        (
            TrainConfig,
            {"learning_rate": 10**400},
            "learning_rate (a number of about 400 digits) must be at most 9223372036854775807",
        ),
        (TrainConfig, {"minutes": 1e308}, "minutes (1e+308) must be at most 1000000000.0"),
        (TrainConfig, {"epochs": 1e308}, "epochs (1e+308) must be at most 1000000000000.0"),
        (
            SamplingConfig,
            {"context": "keep-first:" + "9" * 19},
            f"context ('keep-first:{'9' * 19}') must be slide or keep-first:N, as in keep-first:32",
        ),
        (SamplingConfig, {"top_k": 0}, "top_k (0) must be at least 1"),
        (SamplingConfig, {"top_p": 0}, "top_p (0) must be above 0"),
        (SamplingConfig, {"top_p": 1.01}, "top_p (1.01) must be at most 1"),
        (SamplingConfig, {"temperature": -1}, "temperature (-1) must be at least 0"),
        (SamplingConfig, {"stop": "###"}, "stop ('###') must be a tuple of strings"),
        (SamplingConfig, {"stop": (1,)}, "stop ((1,)) must be a tuple of strings"),
    ],
)
def test_the_error_for_a_wrong_value_has_the_name_the_value_and_what_would_be_right(
    group: type[Settings], values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        group(**values)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("group", "values"),
    [
        (GPTConfig, {"dropout": 0}),
        (GPTConfig, {"vocab_size": 1, "n_positions": 1, "n_embd": 1, "n_layer": 1, "n_head": 1}),
        (TrainConfig, {"steps": 1, "warmup_steps": 0, "grad_clip": 0, "cooldown": 1, "final_learning_rate": 0}),
        (TrainConfig, {"seed": 2**63 - 1, "patience": 0, "sample_every": 0}),
        (SamplingConfig, {"temperature": 0, "top_p": 1, "top_k": 1, "seed": 0, "stop": ("a", "b")}),
    ],
)
def test_an_inclusive_bound_is_allowed(group: type[Settings], values: dict[str, Any]) -> None:
    config = group(**values)
    assert {name: getattr(config, name) for name in values} == values


def test_numbers_of_numpy_become_those_of_python() -> None:
    config = TrainConfig(steps=np.int64(3), learning_rate=np.float32(0.5), batch_size=np.arange(2, 4)[1])  # type: ignore[arg-type]
    assert json.loads(json.dumps(config.to_dict()))["steps"] == 3
    assert (config.learning_rate, config.batch_size) == (0.5, 3)
    assert json.dumps(RunOptions.of({"n_layer": np.int32(2)}).to_dict()) == '{"n_layer": 2}'
    for wrong in (np.bool_(True), np.float64(2.5), np.array([2])):
        with pytest.raises(ConfigError, match="must be a whole number"):
            TrainConfig(steps=wrong)


def test_replace_changes_the_given_settings_and_checks_them() -> None:
    small = GPTConfig(n_layer=2)
    wide = small.replace(n_embd=96, n_head=8)
    assert (wide.n_layer, wide.n_embd, wide.head_width) == (2, 96, 12)
    assert small.n_embd == 768
    with pytest.raises(ConfigError, match=r"n_embd \(96\) must be divisible by n_head \(7\)"):
        wide.replace(n_head=7)
    with pytest.raises(ConfigError, match=r"steps \(3\) and minutes \(1\) cannot be combined"):
        TrainConfig(steps=3).replace(minutes=1)


@every_group
def test_every_setting_has_a_help_text_and_a_default(group: type[Settings]) -> None:
    for field in dataclasses.fields(group):
        assert len(field.metadata["help"]) > 5, field.name
        assert field.default is not dataclasses.MISSING, field.name


@pytest.mark.parametrize(
    ("given", "sequences"),
    [
        ({"batch_size": 7}, 7),
        ({"batch_size": 7, "batch_tokens": 1000, "context_length": 100}, 10),
        ({"batch_tokens": 1060, "context_length": 100}, 11),
        ({"batch_tokens": 3, "context_length": 100}, 1),
    ],
)
def test_the_batch_size_is_given_in_sequences_or_in_tokens(given: dict[str, int], sequences: int) -> None:
    assert TrainConfig(**given).sequences_per_step == sequences


def test_a_batch_in_tokens_needs_a_context_length() -> None:
    with pytest.raises(ConfigError, match="batch_tokens needs context_length"):
        _ = TrainConfig(batch_tokens=100).sequences_per_step


@pytest.mark.parametrize(
    "statement",
    [
        "import minigpt",
        "import minigpt.config",
        "from minigpt import GPTConfig, ConfigError, PRESETS",
        "dir(__import__('minigpt'))",
    ],
)
def test_settings_are_imported_without_pytorch(statement: str) -> None:
    check = f"import sys; {statement}; sys.exit({{'torch', 'numpy', 'typer', 'rich'}} & set(sys.modules) or None)"
    result = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_the_names_of_the_package_are_imported_on_first_use() -> None:
    import minigpt

    assert minigpt.GPTConfig is GPTConfig
    assert set(minigpt.__all__) <= set(dir(minigpt))
    with pytest.raises(AttributeError, match="has no attribute 'GTP'"):
        _ = minigpt.GTP


def test_the_flops_of_gpt2_are_those_of_the_formula() -> None:
    # 6 x (124,439,808 - 1024 x 768) + 12 x 12 x 768 x 1024, as in nanoGPT's estimate_mfu for one token
    assert PRESETS["gpt2"].flops_per_token(1024) == 6 * 123_653_376 + 113_246_208
    assert PRESETS["gpt2"].flops_per_token(512) == 6 * 123_653_376 + 113_246_208 / 2


@pytest.mark.parametrize("name", ["from", "preset", "tokenizer"])
def test_an_empty_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name} \(''\) must be a name; omit it to have it chosen"):
        RunOptions.of({name: ""})


def test_an_empty_text_key_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"text_key \(''\) must name a field"):
        ReadingConfig(text_key="")


@pytest.mark.parametrize(
    ("settings", "device", "sharded", "expected"),
    [
        ({"minutes": 3}, "cuda", False, True),
        ({"minutes": 2.9}, "cuda", False, False),  # the minute that compiling takes
        ({"steps": 1000}, "cuda", False, True),
        ({"steps": 999}, "cuda", False, False),
        ({"epochs": 1}, "cuda", False, True),
        ({"minutes": 3}, "cuda", True, False),
        ({"minutes": 3}, "cpu", False, False),
        ({"minutes": 0.5, "compile": "on"}, "cpu", True, True),
        ({"minutes": 9, "compile": "off"}, "cuda", False, False),
    ],
)
def test_long_runs_are_compiled_on_cuda(settings: dict[str, Any], device: str, sharded: bool, expected: bool) -> None:
    assert TrainConfig(**settings).compiles(device, sharded=sharded) is expected
