"""`minigpt export`."""

import ast
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import new_model

from minigpt import shell
from minigpt.chat_logs.transcript import CHAT_TEMPLATE
from minigpt.cli.options import command_line
from minigpt.config import GPTConfig
from minigpt.exporters import command as export
from minigpt.exporters import export as exporting
from minigpt.exporters import runners
from minigpt.importers.gguf import open_gguf
from minigpt.model.gpt import GPT
from minigpt.optional_packages import install_command
from minigpt.storage.checkpoint import save_checkpoint
from minigpt.tokenizer.tokenizer import Tokenizer

pytest.importorskip("gguf")

SHAPE = {"n_positions": 32, "n_embd": 32}


@pytest.fixture
def model(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model called `one`, which is not checked in llama.cpp, because that takes seconds."""
    monkeypatch.setattr(exporting, "_MAX_SIZE_FOR_LLAMA", 0)
    return save_checkpoint("checkpoints/one", new_model(**SHAPE), Tokenizer.named("bytes"))


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def open_config(path: Path) -> GPTConfig:
    foreign = open_gguf(path)
    foreign.tensors.close()
    return foreign.config


def test_gguf_is_written_and_compared_and_a_command_to_try_is_printed(run: Any, here: Path, model: Path) -> None:
    result = run("export", "one", "--to", "gguf")
    assert result.exit_code == 0, result.stderr
    parity = "largest logit difference 0; 16 of 16 greedy tokens equal; token ids equal"
    assert re.search(r"written to +one\.gguf", result.stderr)
    for text in ("f32", "kB", "checked in minigpt", parity):
        assert text in result.stderr
    assert result.stdout == "llama-completion -m one.gguf -p 'Once upon a time' -n 16\n"
    assert open_config(here / "one.gguf").n_embd == 32


def test_gguf_gets_a_modelfile_for_ollama_which_is_replaced_only_with_force(run: Any, here: Path, model: Path) -> None:
    result = run("export", "one", "--to", "gguf", "--output", "a one.gguf")
    written = (here / "a one.Modelfile").read_text()
    instructions = [line.split(" ", 1) for line in written.splitlines() if not line.startswith("#")]
    assert instructions == [
        ["FROM", "./a one.gguf"],
        ["TEMPLATE", '"""{{ .Prompt }}"""'],
        ["PARAMETER", "num_ctx 32"],
        ["PARAMETER", "num_predict 16"],
        ["PARAMETER", "temperature 0.8"],
        ["PARAMETER", "top_k 0"],
        ["PARAMETER", "top_p 0.95"],
        ["PARAMETER", "min_p 0"],
        ["PARAMETER", "repeat_penalty 1"],
    ]
    assert "ollama create a-one -f 'a one.Modelfile'" in result.stderr
    (here / "a one.Modelfile").write_text("FROM ./mine.gguf\n")
    (here / "a one.gguf").unlink()
    kept = run("export", "one", "--to", "gguf", "--output", "a one.gguf")
    assert "a one.Modelfile exists and was kept; --force replaces it" in kept.stderr
    assert "ollama" not in kept.stderr
    assert (here / "a one.Modelfile").read_text() == "FROM ./mine.gguf\n"
    run("export", "one", "--to", "gguf", "--output", "a one.gguf", "--force")
    assert (here / "a one.Modelfile").read_text() == written


@pytest.mark.parametrize("template", [CHAT_TEMPLATE, "{{ messages }}"])
def test_ollama_turns_a_conversation_into_a_transcript(run: Any, here: Path, model: Path, template: str) -> None:
    (model / "chat_template.jinja").write_text(template)
    assert run("export", "one", "--to", "gguf", "--output", "chat.gguf").exit_code == 0
    written = (here / "chat.Modelfile").read_text()
    if template != CHAT_TEMPLATE:
        assert "TEMPLATE" not in written  # Ollama chooses one by the template in the GGUF file
        assert "stop" not in written
        return
    quoted = dict(re.findall(r'^(TEMPLATE) """(.*?)"""$', written, flags=re.MULTILINE | re.DOTALL))
    conversation = quoted["TEMPLATE"]
    assert conversation.startswith("{{- range .Messages -}}")
    assert conversation.endswith("\n{{ end -}}\nAssistant:")
    assert re.findall(r"}}(\w+){{", conversation) == ["System", "User", "Assistant"]
    assert re.findall(r'^PARAMETER stop "\n(.*)"$', written, flags=re.MULTILINE) == ["System:", "User:", "Assistant:"]


def test_json_holds_the_whole_result(run: Any, here: Path, model: Path) -> None:
    record = json.loads(run("export", "--to", "gguf", "--dtype", "q8_0", "--output", "deep/er/x.gguf", "--json").stdout)
    assert record["path"] == "deep/er/x.gguf"
    assert record["size"] == (here / "deep/er/x.gguf").stat().st_size
    (parity,) = record["parity"]
    assert parity["by"] == "minigpt"
    assert 0 < parity["deviations"] < 0.3
    assert any("at most 32" in note for note in record["notes"])


def test_an_output_folder_gets_a_file_named_after_the_model(run: Any, here: Path, model: Path) -> None:
    (here / "out").mkdir()
    assert run("export", "one", "--dtype", "bf16", "-o", "out").exit_code == 0
    assert everything(here / "out") == {"one-bf16.gguf", "one-bf16.Modelfile"}


def test_an_onnx_export_is_a_folder_with_everything_that_optimum_needs(run: Any, here: Path, model: Path) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    (model / "chat_template.jinja").write_text("{{ messages }}")
    result = run("export", "one", "--to", "onnx")
    assert result.exit_code == 0, result.stderr
    assert "onnxruntime" in result.stderr
    assert {"model.onnx", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"} <= (
        everything(here / "one-onnx")
    )
    assert (here / "one-onnx" / "chat_template.jinja").read_text() == "{{ messages }}"
    assert "model.safetensors" not in everything(here / "one-onnx")
    assert "ORTModelForCausalLM" in result.stdout
    assert "'one-onnx'" in result.stdout


def test_a_gguf_file_is_exported_to_other_formats(run: Any, here: Path, model: Path) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    assert run("export", "one").exit_code == 0
    before = everything(here)
    assert run("export", "one.gguf", "--to", "onnx").exit_code == 0
    assert {"one-onnx", *(f"one-onnx/{name}" for name in everything(here / "one-onnx"))} == everything(here) - before
    assert {"model.onnx", "config.json", "tokenizer.json"} <= everything(here / "one-onnx")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (here / "one-onnx" / name).read_bytes() == (model / name).read_bytes()
    assert run("export", "one.gguf", "--dtype", "q8_0").exit_code == 0
    assert open_config(here / "one-q8_0.gguf") == open_config(here / "one.gguf")


def test_an_existing_file_is_replaced_only_with_force(run: Any, here: Path, model: Path) -> None:
    (here / "one.gguf").write_text("mine")
    result = run("export", "one")
    assert result.exit_code == 1
    assert "one.gguf already exists; choose another --output, or replace it with --force" in result.stderr
    assert (here / "one.gguf").read_text() == "mine"
    assert run("export", "one", "--force").exit_code == 0
    assert (here / "one.gguf").read_bytes()[:4] == b"GGUF"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("export", "two", "--to", "hf"), "checkpoints/two is an adapter, which peft opens; `minigpt merge checkp"),
        (("load-gpt2", "--from", "checkpoints/two"), "checkpoints/two is a LoRA adapter; make a whole model of it "),
        (("load-gpt2", "checkpoints/two"), "first: minigpt merge checkpoints/two"),
        (("load-gpt2", "checkpoints/two/adapter_model.safetensors"), "first: minigpt merge checkpoints/two"),
    ],
    ids=["export", "source", "model", "file"],
)
def test_an_adapter_is_merged_to_become_a_hugging_face_model(
    run: Any, here: Path, arguments: tuple[str, ...], message: str
) -> None:
    (here / "checkpoints" / "two").mkdir(parents=True)
    for name in ("adapter_config.json", "adapter_model.safetensors", "config.json"):
        (here / "checkpoints" / "two" / name).write_text("{}")
    result = run(*arguments, *(() if arguments[0] == "export" else ("--name", "three")))
    assert result.exit_code == 1
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    run: Any, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("gguf", "onnx", "onnxruntime", "ctranslate2"):
        monkeypatch.setitem(sys.modules, name, None)
    for target, names in {
        "gguf": ["gguf"],
        "onnx": ["onnx", "onnxruntime"],
        "ctranslate2": ["ctranslate2"],
    }.items():
        result = run("export", "one", "--to", target)
        assert result.exit_code == 1
        missing = f"{' and '.join(names)}, which {'are' if len(names) > 1 else 'is'} not installed"
        assert result.stderr == f"minigpt: export to {target} needs {missing}; run: {install_command(*names)}\n"


@pytest.mark.parametrize(
    ("target", "dtype", "shift"),
    [
        ("gguf", "f32", 0.001),
        ("gguf", "q8_0", 0.2),
        ("onnx", "f32", 0.001),
    ],
)
def test_an_export_with_other_logits_is_deleted(
    run: Any, here: Path, model: Path, target: str, dtype: str, shift: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer shifts a norm's bias by more than the dtype rounds."""
    if target == "onnx":
        pytest.importorskip("onnx")
        pytest.importorskip("onnxruntime")
    before = everything(here)
    write = getattr(exporting, f"write_{target}")

    def wrong(place: Any, model: GPT, *rest: Any, **options: Any) -> Any:
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        state["final_norm.bias"] += shift
        return write(place, GPT.from_tensors(model.config, state), *rest, **options)

    monkeypatch.setattr(exporting, f"write_{target}", wrong)
    result = run("export", "one", "--to", target, "--dtype", dtype)
    assert result.exit_code == 1
    assert "the export was not kept: in " in result.stderr
    assert "standard deviations of the logits" in result.stderr
    assert everything(here) == before


def test_a_model_whose_own_logits_are_not_finite_is_not_exported(run: Any, here: Path) -> None:
    gpt = new_model(**SHAPE)
    with torch.no_grad():
        gpt.final_norm.weight.fill_(3e38)
    save_checkpoint("checkpoints/huge", gpt, Tokenizer.named("bytes"))
    before = everything(here)
    result = run("export", "huge", "--to", "gguf")
    assert result.exit_code == 1
    assert "the export was not kept: in minigpt a logit differs by inf" in result.stderr
    assert everything(here) == before


def test_numbers_that_f16_cannot_hold_are_reported(run: Any, here: Path) -> None:
    gpt = new_model(**SHAPE)
    with torch.no_grad():
        gpt.blocks[0].mlp.up_proj.weight[3, 4] = 1e6  # type: ignore[union-attr, index]
    save_checkpoint("checkpoints/huge", gpt, Tokenizer.named("bytes"))
    result = run("export", "huge", "--dtype", "f16")
    assert result.exit_code == 1
    assert "blk.0.ffn_up.weight holds 1e+06, but f16 must be at most 65504; choose dtype bf16 or f32" in result.stderr
    assert not (here / "huge-f16.gguf").exists()


def test_an_export_with_another_tokenizer_is_deleted(
    run: Any, here: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = runners.gguf_in_torch
    monkeypatch.setattr(runners, "gguf_in_torch", lambda path: (read(path)[0], lambda text: [1, 2, 3]))
    result = run("export", "one")
    assert result.exit_code == 1
    assert "splits a text into other tokens" in result.stderr
    assert not (here / "one.gguf").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("target", ["gguf", "onnx"])
def test_a_full_disk_is_one_line_and_leaves_no_file(
    run: Any, here: Path, model: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if target == "onnx":
        pytest.importorskip("onnx")
        pytest.importorskip("onnxruntime")
        monkeypatch.setattr(exporting, "write_onnx", lambda folder, model: Path("/dev/full").write_bytes(bytes(9999)))
    else:
        write = exporting.write_gguf
        monkeypatch.setattr(
            exporting,
            "write_gguf",
            lambda file, *rest, **options: (write(file, *rest, **options), Path("/dev/full").write_bytes(bytes(9999))),
        )
    before = everything(here)
    result = run("export", "one", "--to", target)
    assert result.exit_code == 1
    assert "could not be written (no space left on device); free some space or write elsewhere" in result.stderr
    assert everything(here) == before


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_one_line(run: Any, here: Path, model: Path) -> None:
    (here / "locked").mkdir(mode=0o500)
    for target in ("gguf", "onnx"):
        result = run("export", "one", "--to", target, "-o", f"locked/x.{target}")
        assert result.exit_code == 1
        assert "could not be written (permission denied)" in result.stderr


@pytest.mark.parametrize("held", ["training.json", "x-1.safetensors"])
@pytest.mark.parametrize("target", ["onnx", "ctranslate2"])
def test_force_replaces_no_folder_that_holds_another_model(
    run: Any, here: Path, model: Path, target: str, held: str
) -> None:
    (here / "other").mkdir()
    for name in ("config.json", "model.onnx", "model.bin", held):
        (here / "other" / name).write_text("precious")
    for more in ([], ["--force"]):
        result = run("export", "one", "--to", target, "--output", "other", *more)
        assert result.exit_code == 1
        assert f"so it is not an earlier export to {target}, and would be lost" in result.stderr
    assert {path.read_text() for path in (here / "other").iterdir()} == {"precious"}


def test_force_replaces_the_files_of_an_earlier_export_and_no_others(run: Any, here: Path, model: Path) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    (here / "out").mkdir()
    for name in ("model.onnx", "model.onnx_data", "merges.txt", "config.json", "notes.md"):
        (here / "out" / name).write_text("old")
    assert run("export", "one", "--to", "onnx", "--output", "out").exit_code == 1
    assert (here / "out" / "model.onnx").read_text() == "old"
    assert run("export", "one", "--to", "onnx", "--output", "out", "--force").exit_code == 0
    assert {path.name for path in (here / "out").iterdir() if path.read_bytes() == b"old"} == {"notes.md"}
    assert not (here / "out" / "model.onnx_data").exists()


def test_a_model_is_not_replaced_by_its_own_export(run: Any, here: Path, model: Path) -> None:
    assert run("export", "one").exit_code == 0
    before = (here / "one.gguf").read_bytes()
    result = run("export", "one.gguf", "--dtype", "q8_0", "--output", "./one.gguf", "--force")
    assert result.exit_code == 1
    assert "is the model to export" in result.stderr
    assert (here / "one.gguf").read_bytes() == before


LLAMA = """
GGML_TYPE_F32 = 0
class Llama:
    def __init__(self, *rest, **options): ...
    def tokenize(self, text, **options): return [7, 8, 9]
"""


@pytest.fixture
def llama(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of a llama_cpp.py that is imported instead of an installed one."""
    (here / "installed").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(here / "installed"))
    return here / "installed" / "llama_cpp.py"


def test_no_python_file_of_the_working_directory_is_run(here: Path, llama: Path) -> None:
    llama.write_text(LLAMA)
    for name in ("json", "io", "numpy", "minigpt", "llama_cpp"):
        (here / f"{name}.py").write_text("open('ran', 'w').write('x')")
    _, tokenize = runners.gguf_in_llama(here / "m.gguf")
    assert tokenize("a text") == [7, 8, 9]
    assert not (here / "ran").exists()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("raise RuntimeError('no libllama.so here')", "RuntimeError: no libllama.so here"),
        ("import nothing_of_that_name", "ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        ("import time; time.sleep(60)", "no answer within 1 s"),
        pytest.param(
            "import os, signal; os.kill(os.getpid(), signal.SIGILL)",
            "llama-cpp-python was built for another processor",
            marks=pytest.mark.skipif(os.name == "nt", reason="Windows has no signals"),
        ),
    ],
)
def test_a_llama_cpp_that_does_not_run_is_a_note_and_the_file_is_kept(
    run: Any, here: Path, model: Path, llama: Path, content: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    llama.write_text(content)
    monkeypatch.setattr(exporting, "_MAX_SIZE_FOR_LLAMA", 1 << 30)
    monkeypatch.setattr(exporting, "find_spec", lambda name: True)
    if "sleep" in content:
        monkeypatch.setattr(runners, "_LLAMA_SECONDS", 1)
    record = json.loads(run("export", "one", "--json").stdout)
    assert f"not checked in llama.cpp, which does not run on this machine: {reason}" in record["notes"]
    assert [parity["by"] for parity in record["parity"]] == ["minigpt"]
    assert (here / "one.gguf").exists()


def test_a_llama_cpp_that_refuses_the_file_is_an_error(
    run: Any, here: Path, model: Path, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llama.write_text(LLAMA + "\n    def __init__(self, *rest, **options): raise ValueError('unknown architecture')")
    monkeypatch.setattr(exporting, "_MAX_SIZE_FOR_LLAMA", 1 << 30)
    monkeypatch.setattr(exporting, "find_spec", lambda name: True)
    result = run("export", "one")
    assert result.exit_code == 1
    assert "llama.cpp cannot use the file" in result.stderr
    assert "unknown architecture" in result.stderr
    assert not (here / "one.gguf").exists()


@pytest.mark.parametrize("path", ['it\'s "x" $HOME `id` \\ !', "-dashes", "plain"])
def test_the_commands_to_try_are_safe_in_a_shell(path: str) -> None:
    assert shlex.split(export._command("gguf", path, 7))[:3] == [
        "llama-completion",
        "-m",
        f"./{path}" if path.startswith("-") else path,
    ]
    for target in ("onnx", "ctranslate2"):
        python, option, program = shlex.split(export._command(target, path, 7))
        assert (python, option) == ("python", "-c")
        constants = [node.value for node in ast.walk(ast.parse(program)) if isinstance(node, ast.Constant)]
        assert {path, 7} <= set(constants)


def test_the_commands_to_try_are_for_cmd_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "IS_CMD", True)
    path = r"C:\my models\one.gguf"
    expected = 'llama-completion -m "C:\\my models\\one.gguf" -p "Once upon a time" -n 7'
    assert export._command("gguf", path, 7) == expected
    for target in ("onnx", "ctranslate2"):
        command = export._command(target, path, 7)
        assert command.startswith('python -c "')
        assert "\n" not in command
        ast.parse(command.removeprefix('python -c "').removesuffix('"'))
    assert command_line("generate", "it's", checkpoints=Path("my runs")) == (
        'minigpt generate "it\'s" --checkpoints "my runs"'
    )


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows sends no SIGINT to a process")
@pytest.mark.parametrize("target", ["gguf", "onnx", "ctranslate2"])
def test_ctrl_c_leaves_no_file(here: Path, target: str) -> None:
    """Ctrl-C comes at several moments after the export has begun to write."""
    pytest.importorskip("onnxruntime" if target == "onnx" else target)
    shape = GPTConfig(vocab_size=50257, n_positions=64, n_embd=256, n_layer=4, n_head=4)
    save_checkpoint("checkpoints/one", GPT(shape), Tokenizer.named("gpt2"))
    before = everything(here)
    for delay in (0.0, 0.1, 0.5, 1.0):
        command = [sys.executable, "-m", "minigpt", "export", "one", "--to", target, "-o", f"out/x.{target}"]
        process = subprocess.Popen(command, cwd=here, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        while process.poll() is None and everything(here) <= before | {"out"}:
            time.sleep(0.01)  # until it has begun to write
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 130, stderr
        assert stderr.strip().splitlines()[-1] == "minigpt: stopped"
        assert everything(here) == before | {"out"}
