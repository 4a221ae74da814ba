"""`minigpt generate` with the C code, and without."""

import json
from pathlib import Path
from typing import Any

import pytest
from builders import new_model

from minigpt.native import compiled, engine_provider
from minigpt.storage.checkpoint import save_checkpoint
from minigpt.tokenizer.tokenizer import Tokenizer


def save_model(name: str, seed: int = 0) -> Path:
    """Saves a random model in checkpoints/, whose text depends on its prompt."""
    model = new_model(seed=seed, scale=10, n_layer=1)
    return save_checkpoint(Path("checkpoints") / name, model, Tokenizer.named("bytes"))


SHORT = ["--max-new-tokens", "8", "--device", "cpu"]


def records(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_missing_compiler_is_reported_in_one_line(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model("one")
    monkeypatch.setattr(compiled, "_library", lambda: "there is no compiler")
    notes = run("generate", "abc", *SHORT).stderr.splitlines()
    assert sum("there is no compiler" in line for line in notes) == 1
    assert notes[0] == "PyTorch generates the text, several times slower than compiled code: there is no compiler"
    assert "cpu, float32, PyTorch" in notes[1]
    other = run("generate", "abc", "--dtype", "bfloat16", *SHORT).stderr  # which PyTorch generates in any case
    assert "there is no compiler" not in other


def test_one_core_is_said_of_the_models_that_compiled_code_runs(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if compiled.library() is None:
        pytest.skip("minigpt was installed without a C compiler")
    save_model("one")
    monkeypatch.setattr(compiled, "uses_one_core", lambda: "no omp.h")
    assert "on one core, because its compiler has no OpenMP (no omp.h)" in run("generate", "abc", *SHORT).stderr
    assert "no omp.h" not in run("generate", "abc", "--dtype", "bfloat16", *SHORT).stderr


def test_an_instruction_set_that_the_processor_lacks_is_reported_in_one_line(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiled.library() is None:
        pytest.skip("minigpt was installed without a C compiler")
    save_model("one")
    monkeypatch.setattr(compiled, "_library", compiled._library.__wrapped__)
    with monkeypatch.context() as environment:
        environment.setenv("MINIGPT_CPU_ISA", "mmx")
        result = run("generate", "abc", *SHORT)
    compiled.library()  # selects the default again
    assert result.exit_code == 1
    assert result.stderr.startswith("minigpt: MINIGPT_CPU_ISA is 'mmx'; on this processor it can be: ")
    assert len(result.stderr.splitlines()) == 1


def test_int8_weights_can_be_chosen_and_are_the_default_of_a_large_model(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiled.library() is None:
        pytest.skip("minigpt was installed without a C compiler")
    save_model("one")
    engines = {}
    for name, arguments in (("auto", []), ("none", ["--quantize", "none"]), ("int8", ["--quantize", "int8"])):
        engines[name] = records(run("generate", "abc", *SHORT, "--json", *arguments).stdout)[0]["engine"]
    assert "float32" in engines["auto"]
    assert "float32" in engines["none"]
    assert "int8" in engines["int8"]
    monkeypatch.setattr(engine_provider, "_INT8_FROM", 1000)
    assert "int8" in records(run("generate", "abc", *SHORT, "--json").stdout)[0]["engine"]
    assert "int8" in run("generate", "abc", *SHORT).stderr
