"""`minigpt generate` and what it prints where."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from minigpt.config import GPTConfig
from minigpt.model.gpt import GPT
from minigpt.storage.checkpoint import save_checkpoint
from minigpt.text.tokenizer import Tokenizer


def make_model(name: str, seed: int = 0) -> Path:
    """A random model in checkpoints/, its weights large enough that its text depends on them."""
    torch.manual_seed(seed)
    model = GPT(GPTConfig(vocab_size=257, n_positions=16, n_embd=16, n_layer=1, n_head=2))
    for parameter in model.parameters():
        parameter.data.mul_(10 if parameter.dim() == 2 else 1)
    return save_checkpoint(Path("checkpoints") / name, model, Tokenizer.named("bytes"))


SHORT = ["--max-new-tokens", "8", "--device", "cpu"]


def test_text_goes_to_stdout_behind_its_prompt_and_the_rate_to_stderr(run: Any) -> None:
    make_model("one")
    result = run("generate", "abc", *SHORT, "--seed", "1")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("abc")
    assert "tokens/s" in result.stderr
    assert "tokens/s" not in result.stdout


def test_the_newest_model_is_the_default_and_a_name_or_folder_chooses_another(run: Any) -> None:
    older, newer = make_model("older", seed=1), make_model("newer", seed=2)
    texts = {
        str(arguments): run("generate", "abc", *SHORT, "--temperature", "0", "--json", *arguments).stdout
        for arguments in ([], ["--model", "newer"], ["--model", "older"], ["--model", str(older)])
    }
    models = [json.loads(text)["model"] for text in texts.values()]
    assert models == [str(newer), str(newer), str(older), str(older)]
    ids = [json.loads(text)["ids"] for text in texts.values()]
    assert ids[0] == ids[1] != ids[2] == ids[3]


def test_json_has_one_object_per_sample_and_nothing_else_on_stdout(run: Any) -> None:
    make_model("one")
    result = run("generate", "abc", *SHORT, "--json", "--samples", "3", "--seed", "4", "--temperature", "2")
    records = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(records) == 3
    assert result.stderr == ""
    for record in records:
        assert record.keys() >= {"prompt", "text", "ids", "finish_reason", "tokens_per_second", "model", "seed"}
        assert len(record["ids"]) <= 8
    assert len({record["text"] for record in records}) > 1
    again = run("generate", "abc", *SHORT, "--json", "--samples", "3", "--seed", "4", "--temperature", "2")
    assert [json.loads(line)["ids"] for line in again.stdout.splitlines()] == [record["ids"] for record in records]


def test_a_prompt_comes_from_a_file_or_standard_input(run: Any, here: Path) -> None:
    make_model("one")
    (here / "prompt.txt").write_text("déjà vu")
    from_file = run("generate", "--prompt-file", "prompt.txt", *SHORT, "--temperature", "0")
    from_stdin = run("generate", "--prompt-file", "-", *SHORT, "--temperature", "0", stdin="déjà vu")
    from_argument = run("generate", "déjà vu", *SHORT, "--temperature", "0")
    assert from_file.stdout == from_stdin.stdout == from_argument.stdout
    assert from_file.stdout.startswith("déjà vu")


def test_no_prompt_starts_a_document(run: Any) -> None:
    make_model("one")
    result = run("generate", *SHORT)
    assert result.exit_code == 0, result.stderr


def test_a_start_imports_nothing_that_generating_does_not_use(run: Any) -> None:
    make_model("one")
    code = (
        "import sys, atexit\n"
        "unused = {'torch._dynamo', 'sympy', 'tokenizers', 'transformers', 'huggingface_hub', 'matplotlib'}\n"
        "atexit.register(lambda: print('UNUSED', unused & set(sys.modules)))\n"
        "from minigpt.cli.app import main\n"
        "sys.argv = ['minigpt', 'generate', 'x', '--max-new-tokens', '1', '--device', 'cpu']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "UNUSED set()" in done.stdout


def test_a_stop_string_ends_the_text_before_it(run: Any) -> None:
    make_model("one")
    whole = run("generate", "abc", *SHORT, "--temperature", "0", "--json").stdout
    text = json.loads(whole)["text"]
    stop = text[3:5]
    stopped = json.loads(run("generate", "abc", *SHORT, "--temperature", "0", "--json", "--stop", stop).stdout)
    assert stopped["finish_reason"] == "stop"
    assert stopped["text"] == text[: text.index(stop)]


def test_generation_goes_past_the_context_and_says_what_of_a_long_prompt_is_seen(run: Any) -> None:
    make_model("one")
    result = run("generate", "a" * 40, "--max-new-tokens", "40", "--json")
    assert "only its end is seen" in result.stderr
    assert len(json.loads(result.stdout)["ids"]) <= 40


def test_a_top_k_above_the_vocabulary_is_clamped(run: Any) -> None:
    make_model("one")
    assert run("generate", "abc", *SHORT, "--top-k", "100000").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x"], "minigpt train corpus.txt"),
        (["x", "--model", "nothing"], "no model 'nothing'"),
        (["x", "--temperature", "-1"], "temperature (-1.0) must be at least 0"),
        (["x", "--top-p", "0"], "top_p (0.0) must be above 0"),
        (["x", "--samples", "0"], "samples (0) must be at least 1"),
        (["x", "--prompt-file", "y.txt"], "contradict"),
        (["--prompt-file", "missing.txt"], "missing.txt cannot be read"),
        (["x", "--device", "tpu"], "device ('tpu')"),
    ],
)
def test_wrong_input_is_one_line_on_stderr(run: Any, arguments: list[str], message: str) -> None:
    result = run("generate", *arguments)
    assert result.exit_code == 1
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_prompt_that_is_not_utf8_names_the_byte(run: Any) -> None:
    make_model("one")
    result = run("generate", "--prompt-file", "-", stdin=b"caf\xe9 ")
    assert result.exit_code == 1
    assert "byte 0xe9 at offset 3" in result.stderr
