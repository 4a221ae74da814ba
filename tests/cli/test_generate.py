"""`minigpt generate`: what it writes to standard output and to standard error."""

import itertools
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import new_model

from minigpt.cli.prompts import PromptFormat, read_prompts
from minigpt.config import GPTConfig, ReadingConfig
from minigpt.model.gpt import GPT
from minigpt.storage.checkpoint import load_checkpoint, save_checkpoint, weights_file
from minigpt.storage.files import atomic_write
from minigpt.tokenizer.tokenizer import Tokenizer


def save_model(name: str, seed: int = 0) -> Path:
    """Saves a random model in checkpoints/, whose text depends on its prompt."""
    model = new_model(seed=seed, scale=10, n_layer=1)
    return save_checkpoint(Path("checkpoints") / name, model, Tokenizer.named("bytes"))


SHORT = ["--max-new-tokens", "8", "--device", "cpu"]


def test_prompt_and_text_go_to_stdout_and_the_speed_to_stderr(run: Any) -> None:
    save_model("one")
    result = run("generate", "abc", *SHORT, "--seed", "1")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("abc")
    assert "tokens/s" in result.stderr
    assert "tokens/s" not in result.stdout


def test_the_newest_model_is_the_default_and_a_name_or_folder_chooses_another(run: Any) -> None:
    older, newer = save_model("older", seed=1), save_model("newer", seed=2)
    texts = {
        str(arguments): run("generate", "abc", *SHORT, "--temperature", "0", "--json", *arguments).stdout
        for arguments in ([], ["--model", "newer"], ["--model", "older"], ["--model", str(older)])
    }
    models = [json.loads(text)["model"] for text in texts.values()]
    assert models == [str(newer), str(newer), str(older), str(older)]
    ids = [json.loads(text)["ids"] for text in texts.values()]
    assert ids[0] == ids[1] != ids[2] == ids[3]


def test_json_has_one_object_per_sample_and_nothing_else_on_stdout(run: Any) -> None:
    save_model("one")
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
    save_model("one")
    (here / "prompt.txt").write_text("déjà vu")
    from_file = run("generate", "--prompt-file", "prompt.txt", *SHORT, "--temperature", "0")
    from_stdin = run("generate", "--prompt-file", "-", *SHORT, "--temperature", "0", stdin="déjà vu")
    from_argument = run("generate", "déjà vu", *SHORT, "--temperature", "0")
    assert from_file.stdout == from_stdin.stdout == from_argument.stdout
    assert from_file.stdout.startswith("déjà vu")


def test_a_space_at_the_end_of_a_prompt_is_printed_once_and_named_in_json(run: Any) -> None:
    tokenizer = Tokenizer.train(["def area(self): return self.area " * 20], "bpe:290")
    save_checkpoint(Path("checkpoints/code"), new_model(scale=10, vocab_size=tokenizer.vocab_size), tokenizer)
    shown = run("generate", "def ", *SHORT, "--seed", "1")
    record = json.loads(run("generate", "def ", *SHORT, "--seed", "1", "--json").stdout)
    assert record["healed"] == " "
    assert tokenizer.decode(record["ids"]) == " " + record["text"]
    assert shown.stdout == f"def {record['text']}\n"
    explained = run("generate", "def ", *SHORT, "--seed", "1", "--explain")
    assert explained.exit_code == 0, explained.stderr
    kept = json.loads(run("generate", "def ", *SHORT, "--seed", "1", "--json", "--no-token-healing").stdout)
    assert (kept["healed"], tokenizer.decode(kept["ids"])) == ("", kept["text"])


def test_invalid_utf8_is_written_only_if_it_is_allowed(run: Any) -> None:
    save_model("one")
    options = ["--device", "cpu", "--seed", "1", "--max-new-tokens", "100", "--temperature", "3", "--top-p", "1"]
    assert "\ufffd" not in run("generate", "abc", *options).stdout
    assert "\ufffd" in run("generate", "abc", *options, "--allow-invalid-utf8").stdout


def test_generate_imports_only_what_it_uses(run: Any) -> None:
    save_model("one")
    code = (
        "import sys, atexit\n"
        "unused = {'torch._dynamo', 'sympy', 'tokenizers', 'transformers', 'huggingface_hub', 'matplotlib'}\n"
        "unused |= {'rich', 'minigpt.memorization.index', 'minigpt.data.sources', 'minigpt.cli.train'}\n"
        "atexit.register(lambda: print('UNUSED', unused & set(sys.modules)))\n"
        "from minigpt.cli.app import main\n"
        "sys.argv = ['minigpt', 'generate', 'x', '--max-new-tokens', '1', '--device', 'cpu']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "UNUSED set()" in done.stdout


def test_a_stop_string_ends_the_text_before_it(run: Any) -> None:
    save_model("one")
    whole = run("generate", "abc", *SHORT, "--temperature", "0", "--json").stdout
    text = json.loads(whole)["text"]
    stop = text[3:5]
    stopped = json.loads(run("generate", "abc", *SHORT, "--temperature", "0", "--json", "--stop", stop).stdout)
    assert stopped["finish_reason"] == "stop"
    assert stopped["text"] == text[: text.index(stop)]


def test_escapes_alone_are_the_characters_that_they_mean(run: Any) -> None:
    save_model("one")
    forced = ["generate", "abc", *SHORT, "--json", "--logit-bias", r"\n=100"]
    assert set(json.loads(run(*forced).stdout)["text"]) == {"\n"}
    assert json.loads(run(*forced, "--stop", r"\n").stdout)["text"] == ""
    assert json.loads(run(*forced, "--stop", r"\n\n\n").stdout)["finish_reason"] == "stop"
    literal = run(*forced, "--stop", r"\nabla")
    assert json.loads(literal.stdout)["finish_reason"] == "length"
    assert r"'\\nabla' contains a backslash; only \n, \r and \t alone mean" in literal.stderr
    assert "\n" not in json.loads(run(*forced, "--bad-words", r"\n").stdout)["text"]


def test_the_number_of_window_moves_is_reported(run: Any) -> None:
    save_model("one")
    result = run("generate", "a", "--max-new-tokens", "30", "--min-new-tokens", "30")  # seen at lengths of 1 to 30
    assert "the text is longer than the context (16 tokens): the window moved 2 times" in result.stderr
    assert "moved" not in run("generate", "a", "--max-new-tokens", "16", "--min-new-tokens", "16").stderr
    kept = run("generate", "a", "--max-new-tokens", "30", "--min-new-tokens", "30", "--context", "keep-first:8")
    assert "moved 4 times" in kept.stderr  # what is not kept, 8 positions, moves by 4


def test_a_space_that_is_generated_again_does_not_count_for_the_length_of_the_prompt(run: Any) -> None:
    tokenizer = Tokenizer.train(["def area(self): return self.area " * 20], "bpe:290")
    model = new_model(scale=10, vocab_size=tokenizer.vocab_size, n_positions=16)
    save_checkpoint(Path("checkpoints/code"), model, tokenizer)
    full = ["!" * 16 + " ", "--max-new-tokens", "1", "--device", "cpu", "--strict"]
    healed = run("generate", *full)
    assert healed.exit_code == 0, healed.stderr
    assert "moved" not in healed.stderr
    refused = run("generate", *full, "--no-token-healing")
    assert "the prompt has 17 tokens, more than the context length (16)" in refused.stderr


def test_a_model_that_is_being_saved_is_read_as_a_whole(run: Any) -> None:
    folders = [save_model("one", seed=1), save_model("other", seed=2)]
    models = [load_checkpoint(folder, "cpu").model for folder in folders]
    arguments = [*SHORT, "--temperature", "0", "--json"]
    whole = [records(run("generate", "abc", "--model", name, *arguments).stdout)[0]["ids"] for name in ("one", "other")]
    assert whole[0] != whole[1]
    stop = threading.Event()

    def save() -> None:
        for model in itertools.cycle(models):
            name, content = weights_file(model)
            atomic_write(folders[0] / name, content)
            if stop.is_set():
                return

    saving = threading.Thread(target=save)
    saving.start()
    try:
        for _ in range(8):
            assert records(run("generate", "abc", "--model", "one", *arguments).stdout)[0]["ids"] in whole
    finally:
        stop.set()
        saving.join()


def records(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_each_prompt_of_a_file_is_continued_as_it_is_alone(run: Any, here: Path) -> None:
    save_model("one")
    prompts = ["a", "longer than that", "", "déjà"]
    (here / "p.txt").write_text("\n".join(prompts))
    (here / "p.jsonl").write_text("\n".join([json.dumps("a"), json.dumps({"prompt": "two\nlines"})]))
    arguments = [*SHORT, "--json", "--seed", "3", "--samples", "2"]
    together = records(run("generate", "--prompt-file", "p.txt", *arguments).stdout)
    assert [record["prompt"] for record in together] == [p for p in prompts if p for _ in range(2)]
    for record in together:
        alone = records(run("generate", record["prompt"], *arguments).stdout)
        assert record["ids"] == alone[record["sample"]]["ids"]
    assert [r["prompt"] for r in records(run("generate", "--prompt-file", "p.jsonl", *arguments).stdout)[::2]] == [
        "a", "two\nlines",
    ]  # fmt: skip
    whole = records(run("generate", "--prompt-file", "p.txt", "--prompt-format", "whole", *arguments).stdout)
    assert whole[0]["prompt"] == "\n".join(prompts)


@pytest.mark.parametrize("form", ["lines", "whole"])
def test_prompts_are_split_at_line_ends_only_and_lose_a_byte_order_mark(tmp_path: Path, form: PromptFormat) -> None:
    prompts = ["a\x0cb", "c\x85d", "e\u2028f", "g\x0bh\x1c"]
    text = "{}\r\n{}\r{}\n\n{}\n".format(*prompts)
    (tmp_path / "p.txt").write_text("\ufeff" + text, encoding="utf-8", newline="")
    assert read_prompts(None, tmp_path / "p.txt", form, ReadingConfig()) == ([text] if form == "whole" else prompts)


def test_json_has_each_tokens_log_probability_and_the_most_likely_tokens(run: Any) -> None:
    folder = save_model("one")
    (record,) = records(run("generate", "abc", *SHORT, "--json", "--seed", "1", "--alternatives", "3").stdout)
    assert len(record["ids"]) == len(record["logprobs"]) == len(record["alternatives"])
    checkpoint = load_checkpoint(folder, "cpu")
    ids = [*checkpoint.tokenizer.encode("abc"), *record["ids"]]
    logprobs = checkpoint.model(torch.tensor([ids]))[0, 2:-1].log_softmax(-1)
    for at, (token, logprob, most_likely) in enumerate(
        zip(record["ids"], record["logprobs"], record["alternatives"], strict=True)
    ):
        assert logprob == pytest.approx(logprobs[at, token].item(), abs=1e-4)
        assert [other["id"] for other in most_likely] == logprobs[at].topk(3).indices.tolist()
        assert most_likely[0]["text"] == checkpoint.tokenizer.decode([most_likely[0]["id"]])


def test_five_alternatives_are_the_default(run: Any) -> None:
    save_model("one")
    (record,) = records(run("generate", "abc", *SHORT, "--json", "--seed", "1").stdout)
    assert {len(most_likely) for most_likely in record["alternatives"]} == {5}
    (record,) = records(run("generate", "abc", *SHORT, "--json", "--seed", "1", "--alternatives", "0").stdout)
    assert {len(most_likely) for most_likely in record["alternatives"]} == {0}


def test_a_random_seed_is_reported_and_repeats_the_text(run: Any) -> None:
    save_model("one")
    (first,) = records(run("generate", "abc", *SHORT, "--json", "--temperature", "2").stdout)
    (again,) = records(
        run("generate", "abc", *SHORT, "--json", "--temperature", "2", "--seed", str(first["seed"])).stdout
    )
    assert first["ids"] == again["ids"]


def test_a_draft_model_and_lookup_change_no_token(run: Any) -> None:
    save_model("one", seed=1)
    save_model("small", seed=2)
    arguments = ["generate", "ababab", "--max-new-tokens", "40", "--seed", "1", "--json", "--model", "one"]
    plain = records(run(*arguments, "--speculate", "off").stdout)[0]["ids"]
    assert records(run(*arguments, "--draft", "small").stdout)[0]["ids"] == plain
    assert records(run(*arguments, "--speculate", "lookup").stdout)[0]["ids"] == plain


def test_generation_on_cuda_does_not_use_attention_that_is_slow_for_new_lengths(run: Any) -> None:
    save_model("one")
    torch.backends.cuda.enable_cudnn_sdp(True)
    try:
        run("generate", "abc", *SHORT)
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(True)


def test_a_draft_model_with_another_tokenizer_is_refused(run: Any) -> None:
    save_model("one")
    torch.manual_seed(0)
    other = GPT(GPTConfig(vocab_size=50257, n_positions=16, n_embd=16, n_layer=1, n_head=2))
    save_checkpoint(Path("checkpoints") / "other", other, Tokenizer.named("gpt2"))
    result = run("generate", "abc", *SHORT, "--model", "one", "--draft", "other")
    assert result.exit_code == 1
    assert "must have the same tokenizer" in result.stderr


def test_more_samples_than_fit_in_memory_are_refused_with_the_number_that_fits(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model("one")
    monkeypatch.setattr("minigpt.generation.capacity.free_memory", lambda _: 20_000)
    result = run("generate", "abc", *SHORT, "--samples", "50")
    assert result.exit_code == 1
    assert re.search(r"50 continuations in parallel .* \d+ would fit", result.stderr)


def test_memory_that_runs_out_during_generation_is_one_sentence(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def collect(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    save_model("one")
    monkeypatch.setattr("minigpt.cli.generate.collect", collect)
    result = run("generate", "abc", *SHORT)
    assert result.exit_code == 1
    assert "minigpt: out of memory during generation; give fewer --samples" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_long_prompt_is_refused_by_strict_and_its_beginning_kept_by_keep_first(run: Any) -> None:
    save_model("one")
    refused = run("generate", "a" * 40, *SHORT, "--strict")
    assert refused.exit_code == 1
    assert "the prompt has 40 tokens, more than the context length (16)" in refused.stderr
    kept = run("generate", "b" * 4 + "a" * 40, *SHORT, "--json", "--seed", "1", "--context", "keep-first:4")
    assert "the model reads its first 4 tokens and its end" in kept.stderr
    slid = run("generate", "b" * 4 + "a" * 40, *SHORT, "--json", "--seed", "1")
    assert "the model reads only its end" in slid.stderr
    assert records(kept.stdout)[0]["logprobs"] != records(slid.stdout)[0]["logprobs"]


def test_an_empty_prompt_starts_from_the_end_of_text_token(run: Any) -> None:
    save_model("one")
    assert "from the end-of-text token" in run("generate", *SHORT).stderr


def test_nan_weights_are_reported_by_name(run: Any) -> None:
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=257, n_positions=16, n_embd=16, n_layer=2, n_head=2))
    model.blocks[1].mlp.up_proj.weight.data[3, 5] = float("nan")  # type: ignore[union-attr, index]
    save_checkpoint(Path("checkpoints") / "broken", model, Tokenizer.named("bytes"))
    result = run("generate", "abc", *SHORT)
    assert result.exit_code == 1
    assert "blocks.1.mlp.up_proj.weight" in result.stderr
    assert len(result.stderr.splitlines()) == 2  # the model's line, and the error's


def test_a_closed_pipe_ends_generation_silently(run: Any) -> None:
    save_model("one")
    command = f"{sys.executable} -m minigpt generate abc --samples 400 --max-new-tokens 15 | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("abc")
    assert "Traceback" not in done.stderr
    assert "Broken" not in done.stderr


def test_a_pipe_closed_before_the_last_output_is_not_an_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)  # the output stays in the buffer until the end
    script = "from minigpt.cli import app; app.app = lambda **_: print('the last line'); app.main()"
    command = [sys.executable, "-c", script]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False, env=buffered)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("script", ["sys.argv = ['minigpt', 'list']\nmodel_list.list_models = fail", "app.app = close"])
def test_the_error_of_windows_for_a_closed_pipe_is_known(script: str) -> None:
    program = f"""
import errno, sys
from minigpt.cli import app
from minigpt.storage import model_list
def fail(*_, **__):
    raise OSError(errno.EINVAL, "Invalid argument")
def close(**_):
    sys.stdout.flush = fail_once
def fail_once():
    del sys.stdout.flush
    fail()
app._CLOSED_PIPE = {{errno.EPIPE, errno.EINVAL}}
{script}
app.main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_windows_changes_neither_the_arguments_nor_the_line_ends() -> None:
    program = (
        "import io, sys; sys.stdout = io.TextIOWrapper(sys.stdout.buffer, newline='\\r\\n');"
        "from minigpt.cli import app; app.app = lambda **given: print(given); app.main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"{'windows_expand_args': False}\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    ("script", "redirected", "code", "expected"),
    [
        ("print('to a full disk', flush=True)", "> /dev/full", 1, "minigpt: standard output could not be written"),
        ("print('to nobody')", ">&-", 0, ""),
        ("print('on the way', file=sys.stderr, flush=True); print('done')", "2> /dev/full", 0, "done"),
        ("print('on the way', file=sys.stderr); print('done')", "2>&-", 0, "done"),
        ("open('/no/such/file')", "", 1, "Traceback"),
    ],
)
def test_progress_that_cannot_be_written_is_dropped_and_a_result_that_cannot_is_an_error(
    script: str, redirected: str, code: int, expected: str
) -> None:
    command = f"import sys; from minigpt.cli import app; app.app = lambda **_: exec({script!r}); app.main()"
    line = f'{sys.executable} -c "$COMMAND" {redirected}'
    environment = os.environ | {"COMMAND": command}
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == code
    assert (done.stdout + done.stderr).startswith(expected) if expected else done.stdout + done.stderr == ""


@pytest.mark.parametrize(
    "error", [MemoryError(), ImportError("libtorch_cpu.so: failed to map segment from shared object")]
)
def test_too_little_memory_to_load_a_package_is_one_sentence(
    run: Any, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr("minigpt.storage.model_list.list_models", fail)
    result = run("list")
    assert result.exit_code == 1
    assert result.stderr.startswith("minigpt: there is too little memory; raise the limit")


def test_beam_search_generates_as_many_tokens_as_fit_unless_a_number_is_given(run: Any) -> None:
    save_model("one")
    arguments = ["generate", "abc", "--device", "cpu", "--json", "--beams", "2"]
    (fitting,), (given,) = (
        records(run(*arguments, *more).stdout) for more in ([], ["--max-new-tokens", "13"])
    )  # of a context of 16
    assert fitting["ids"] == given["ids"]
    (file := Path("prompts.txt")).write_text("abc\nabcdefghijklmno\n")
    short, long = records(run("generate", "--prompt-file", str(file), *arguments[2:]).stdout)
    assert len(short["ids"]) == len(long["ids"]) == 1


def test_best_of_prints_the_most_likely_of_its_texts_and_says_so(run: Any) -> None:
    save_model("one")
    drawn = ["generate", "abc", *SHORT, "--seed", "3", "--temperature", "2"]
    texts = records(run(*drawn, "--samples", "6", "--json").stdout)
    likely = [record["text"] for record in sorted(texts, key=lambda record: -sum(record["logprobs"]))]
    assert texts[0]["text"] != likely[0]
    result = run(*drawn, "--best-of", "6", "--samples", "2")
    assert result.stdout == f"abc{likely[0]}\n\n---\nabc{likely[1]}\n"
    assert "the 2 most likely of 6 texts: 16 tokens" in result.stderr


@pytest.mark.parametrize(
    ("script", "redirected", "expected"),
    [
        ("print(ascii(input()))", "< latin1.txt", "'caf\\udce9'\n"),
        ("import sys; print(sys.stdin.buffer.read())", "<&-", "b''\n"),
    ],
)
def test_standard_input_may_have_another_encoding_or_be_closed(
    here: Path, script: str, redirected: str, expected: str
) -> None:
    Path("latin1.txt").write_bytes(b"caf\xe9\n")
    command = f"import sys; from minigpt.cli import app; app.app = lambda **_: exec({script!r}); app.main()"
    line = f'{sys.executable} -c "$COMMAND" {redirected}'
    environment = os.environ | {"COMMAND": command}
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False, env=environment)
    assert (done.stdout, done.stderr) == (expected, "")


LATIN1 = "caf\xe9 noir".encode("latin-1")


@pytest.mark.skipif(os.name == "nt", reason="arguments are Unicode there")
@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["generate", "caf\udce9", "-m", "fox"], "the prompt"),
        (["inspect", "fox", "caf\udce9"], "the prompt"),
        (["generate", "hi", "-m", "fox", "--stop", "caf\udce9"], "--stop"),
        (["generate", "hi", "-m", "fox", "--bad-words", "caf\udce9"], "--bad-words"),
        (["chat", "fox", "--system", "caf\udce9"], "--system"),
        (["train", "fox.txt", "--sample-prompt", "caf\udce9"], "--sample-prompt"),
        (["export", "fox", "--to", "html", "--title", "caf\udce9"], "--title"),
    ],
)
def test_a_text_on_the_command_line_that_is_not_utf8_is_refused(
    run: Any, here: Path, arguments: list[str], what: str
) -> None:
    save_model("fox")
    refused = run(*arguments)
    assert refused.exit_code == 1
    assert refused.stderr.startswith(f"minigpt: {what} is not UTF-8: byte 3 is 0xe9; ")
    if what == "the prompt":
        file = "--file" if arguments[0] == "inspect" else "--prompt-file"
        assert refused.stderr.endswith(f"put it into a file and give {file} FILE --encoding latin-1\n")


@pytest.mark.parametrize(
    ("arguments", "source"),
    [(["generate", "-m", "fox", "--prompt-file"], "prompt.txt"), (["inspect", "fox", "--file"], "-")],
)
def test_a_file_of_prompts_is_read_as_a_text_is(run: Any, here: Path, arguments: list[str], source: str) -> None:
    save_model("fox")
    name = "standard input" if source == "-" else source

    def read(content: bytes, *options: str) -> Any:
        Path("prompt.txt").write_bytes(content)
        return run(*arguments, source, "--json", *options, stdin=content)

    def text_of(result: Any) -> str:
        record = json.loads(result.stdout)
        return record["prompt"] if "prompt" in record else bytes(record["ids"]).decode()

    refused = read(LATIN1)
    assert refused.exit_code == 1
    advice = "it is probably Latin-1: read it with --encoding latin-1"
    assert refused.stderr == f"minigpt: {name} is not UTF-8: byte 3 is 0xe9; {advice}\n"
    assert text_of(read(LATIN1, "--encoding", "latin-1")) == "café noir"
    assert text_of(read(LATIN1, "--encoding-errors", "replace")) == "caf\ufffd noir"
    utf8 = read("café noir".encode(), "--encoding", "latin-1")
    assert text_of(utf8) == "café noir"
    assert f"read {name} as UTF-8, which it is, not as latin-1\n" in utf8.stderr
    assert "contains zero bytes" in read(b"a\0b").stderr
    assert text_of(read("café".encode("utf-16"), "--encoding", "utf-16")) == "café"
