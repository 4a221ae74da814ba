"""`minigpt evaluate` on the command line: texts by document and position, benchmarks, and invalid input."""

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import new_model

from minigpt.cli.render.evaluation import TextResult
from minigpt.evaluation.breakdown import Breakdown
from minigpt.evaluation.perplexity import EvaluationResult, perplexity
from minigpt.storage.checkpoint import load_checkpoint, save_checkpoint
from minigpt.tokenizer.tokenizer import Tokenizer


@pytest.fixture
def one(here: Path) -> Path:
    """A model of bytes with a context of 16, called one."""
    return save_checkpoint("checkpoints/one", new_model(), Tokenizer.named("bytes"))


@pytest.fixture
def lambada(here: Path) -> Path:
    path = here / "passages.jsonl"
    path.write_text('{"text": "a passage that is longer than the context"}\n{"text": "the fox"}\n{"text": "a dog"}\n')
    return path


def test_documents_have_names_and_add_up_to_the_total(run: Any, one: Path, here: Path) -> None:
    (here / "two.txt").write_text("the lazy dog<|endoftext|>a quick brown fox")
    figures = json.loads(run("evaluate", "one", "fox.txt", "two.txt", "--json").stdout)
    documents = figures["documents"]
    assert [document["name"] for document in documents] == ["fox.txt", "two.txt #1", "two.txt #2"]
    assert [document["bytes"] for document in documents] == [2700, 12, 17]
    assert sum(document["tokens"] for document in documents) == figures["tokens"]
    nats = sum(document["tokens"] * document["loss"] for document in documents)
    assert nats / figures["tokens"] == pytest.approx(figures["loss"])
    shown = run("evaluate", "one", "fox.txt", "two.txt").stdout
    assert "3 documents, the hardest to predict first" in shown
    assert "two.txt #2" in shown


def test_many_documents_are_shown_from_both_ends_and_json_has_all(run: Any, one: Path, here: Path) -> None:
    (here / "many.jsonl").write_text(
        "".join(json.dumps({"text": f"document {n} " * (n + 1)}) + "\n" for n in range(25))
    )
    shown = run("evaluate", "one", "many.jsonl").stdout
    assert "the 10 hardest and the 10 easiest of 25; --json has them all" in shown
    assert shown.count("many.jsonl #") == 20
    every = json.loads(run("evaluate", "one", "many.jsonl", "--json").stdout)["documents"]
    assert len(every) == 25
    hardest = max(every, key=lambda document: document["bits_per_byte"])["name"]
    assert shown[shown.index("many.jsonl #") :].split("   ")[0].strip() == hardest
    few = run("evaluate", "one", "many.jsonl", "--limit", "3", "--json").stdout
    assert [document["name"] for document in json.loads(few)["documents"]] == [f"many.jsonl #{n}" for n in (1, 2, 3)]
    assert "the first 3 documents" in run("evaluate", "one", "many.jsonl", "--limit", "3").stdout


def test_the_loss_by_position_is_printed_and_in_json(run: Any, one: Path) -> None:
    figures = json.loads(run("evaluate", "one", "fox.txt", "--by-position", "--json").stdout)
    assert len(figures["position_losses"]) == len(figures["position_tokens"]) == 16
    assert sum(figures["position_tokens"]) > figures["tokens"]
    shown = run("evaluate", "one", "fox.txt", "--by-position").stdout
    for text in ("tokens before", "3 to 4", "9 to 16", "█"):
        assert text in shown


def test_benchmark_results_are_shown_next_to_published_ones(run: Any, one: Path, lambada: Path) -> None:
    result = run("evaluate", "one", "lambada", "--data", "passages.jsonl", "--limit", "2")
    assert result.exit_code == 0, result.stderr
    for text in ("lambada, 2 passages of passages.jsonl", "accuracy, last token", "46.67 %", "32.56 %", "40.06",
                 "1 of 2 texts cut at the front to 16 tokens", "the first 2 passages only",
                 "gpt2 (124,439,808 parameters)"):  # fmt: skip
        assert text in result.stdout, text
    record = json.loads(run("evaluate", "one", "lambada", "--data", "passages.jsonl", "--json").stdout)
    (benchmark,) = record["benchmarks"]
    assert benchmark["passages"] == 3
    assert benchmark["metrics"]["accuracy_last_word"]["value"] == 0
    assert math.log(benchmark["metrics"]["perplexity_last_word"]["value"]) > 4
    assert {each["source"] for each in benchmark["published"]} == {"transformers#13761", "lm-eval#2159", "GPT-2 paper"}
    assert not any(each["same_protocol"] for each in benchmark["published"])  # a passage was truncated
    assert record["parameters"] > 0


def test_an_equal_protocol_is_marked_in_json(run: Any, one: Path, here: Path) -> None:
    (here / "short.jsonl").write_text('{"text": "The fox"}\n' * 5153)
    record = json.loads(run("evaluate", "one", "lambada", "--data", "short.jsonl", "--json").stdout)
    published = {each["source"]: each for each in record["benchmarks"][0]["published"]}
    same = {source: each["same_protocol"] for source, each in published.items()}
    # The first is a result per token, and this model's tokens are bytes.
    assert same == {"transformers#13761": False, "lm-eval#2159": True, "GPT-2 paper": False}
    assert published["transformers#13761"]["differs"] == ["tokens of GPT-2's tokenizer"]
    shown = run("evaluate", "one", "lambada", "--data", "short.jsonl").stdout
    assert re.search(r"46\.67 % +transformers#13761 +tokens of GPT-2's tokenizer", shown)
    assert re.search(r"32\.56 % +lm-eval#2159 +none", shown)


def test_texts_and_benchmarks_can_be_combined_and_printed_as_markdown(run: Any, one: Path, lambada: Path) -> None:
    arguments = ("evaluate", "one", "fox.txt", "lambada", "--data", "passages.jsonl")
    record = json.loads(run(*arguments, "--json").stdout)
    assert record["text"]["tokens"] == 2701
    assert len(record["benchmarks"]) == 1
    shown = run(*arguments, "--markdown").stdout
    assert "| measure | this model | published | source | difference |\n| --- | ---: | ---: | --- | --- |\n" in shown
    assert "| bits per byte |" in shown
    assert all(line.count("|") in (0, 4, 6) for line in shown.splitlines())


@pytest.mark.parametrize("form", ["--json", "--markdown", None])
def test_the_benchmarks_before_an_error_are_printed(
    run: Any, one: Path, lambada: Path, here: Path, form: str | None
) -> None:
    lambada.rename(here / "lambada_test.jsonl")
    (here / "hellaswag_val.jsonl").write_text('{"text": "a b"}')
    result = run("evaluate", "one", "fox.txt", "lambada", "hellaswag", "--data", ".", *filter(None, [form]))
    assert result.exit_code == 1
    assert "hellaswag_val.jsonl, line 1 is not a question of HellaSwag" in result.stderr
    if form == "--json":
        record = json.loads(result.stdout)
        assert record["text"]["bytes"] == 2700
        assert [each["benchmark"] for each in record["benchmarks"]] == ["lambada"]
    else:
        assert result.stdout.index("all texts") < result.stdout.index("accuracy, last word")
        assert "\n\n\n" not in result.stdout


def test_a_missing_package_is_said_before_any_benchmark_runs(
    run: Any, one: Path, lambada: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    lambada.rename("lambada_test.jsonl")
    Path("hellaswag_val.parquet").touch()
    result = run("evaluate", "one", "lambada", "hellaswag", "--data", ".")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(
        "minigpt: reading hellaswag_val.parquet needs pyarrow, which is not installed; pass the benchmark's original "
        "file with --data, or run: "
    )


def test_a_file_takes_precedence_over_a_benchmark_with_its_name(run: Any, one: Path, here: Path) -> None:
    (here / "ptb").write_text("a text of mine")
    assert json.loads(run("evaluate", "one", "ptb", "--json").stdout)["bytes"] == len("a text of mine")


def test_with_data_the_name_of_a_benchmark_is_the_benchmark(run: Any, one: Path, lambada: Path, here: Path) -> None:
    (here / "lambada").mkdir()
    lambada.rename(here / "lambada" / "lambada_test.jsonl")
    result = run("evaluate", "one", "lambada", "--data", "lambada", "--json")
    assert result.exit_code == 0, result.stderr
    (benchmark,) = json.loads(result.stdout)["benchmarks"]
    assert benchmark["data"] == ["lambada/lambada_test.jsonl"]


def test_a_document_without_bytes_has_a_dash_and_null() -> None:
    figures = ([4.0, 2.0], [2, 1], [1, 0], [], [])
    parts = Breakdown(EvaluationResult(2.0, 3, 1, 16, 8), *map(np.array, figures))
    assert TextResult("", ["a", "empty"], parts).tables("bytes")[1].rows[1] == ("empty", "1", "0", "2.0000", "-")
    unscored = Breakdown(EvaluationResult(2.0, 2, 1, 16, 8), *map(np.array, ([4.0, 0.0], [2, 0], [1, 0], [], [])))
    assert TextResult("", ["a", "unscored"], unscored).tables("bytes")[1].rows[1] == ("unscored", "0", "0", "-", "-")
    nothing = Breakdown(EvaluationResult(2.0, 1, 0, 16, 8), *map(np.array, ([2.0], [1], [0], [], [])))
    assert TextResult("", ["empty"], nothing).tables("bytes")[0].rows[2] == ("bits per byte", "-", "")
    assert TextResult("", ["empty"], nothing).record()["bits_per_byte"] is None


@pytest.mark.parametrize("width", [60])
def test_in_a_narrow_terminal_no_number_is_cut_and_differences_become_notes(
    run: Any, one: Path, lambada: Path, here: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    (here / "a_long_name_for_a_text_that_was_found_somewhere.txt").write_text("the lazy dog " * 900)
    (here / "wiki.test.raw").write_text(" = Fox = \n the quick brown fox \n" * 20)
    texts = [str(path) for path in here.glob("*.txt")]
    arguments = ("evaluate", "one", *texts, "lambada", "wikitext2", "--by-position")
    (here / "lambada_test.jsonl").write_bytes((here / "passages.jsonl").read_bytes())
    shown = run(*arguments, "--data", ".").stdout
    assert max(map(len, shown.splitlines())) <= width
    for row in ("measure +this model +published +note", r"accuracy, last token +0\.00 % +46\.67 % +\(1\)",
                r"document +tokens +bytes +loss +bits per byte", r"tokens before +loss +tokens",
                r"\(1\) source: transformers#13761; difference: tokens of"):  # fmt: skip
        assert re.search(f"^ *{row}", shown, re.MULTILINE), row
    assert not re.search("^ *█+ *$|…", shown, re.MULTILINE)  # no bar is wrapped, and nothing is cut
    monkeypatch.setenv("COLUMNS", "120")
    assert "(1)" not in run(*arguments, "--data", ".").stdout


def test_control_characters_in_a_file_name_do_not_reach_the_terminal(run: Any, one: Path, here: Path) -> None:
    (here / "red\x1b[31m.txt").write_text("the lazy dog")
    shown = run("evaluate", "one", "fox.txt", "red\x1b[31m.txt").stdout
    assert "\x1b" not in shown
    assert "red␛[31m.txt" in shown
    named = json.loads(run("evaluate", "one", "fox.txt", "red\x1b[31m.txt", "--json").stdout)["documents"]
    assert named[1]["name"] == "red\x1b[31m.txt"
    (here / "wiki\x1b[1m.raw").write_text(" = Fox = \n the quick brown fox \n")
    assert "\x1b" not in run("evaluate", "one", "wikitext2", "--data", "wiki\x1b[1m.raw").stdout


def test_detokenizing_changes_the_text_but_not_the_word_and_byte_counts(run: Any, one: Path, here: Path) -> None:
    (here / "ptb.test.txt").write_text(" no it was n't \n it 's N % \n")
    published, detokenized = (
        json.loads(run("evaluate", "one", "ptb", "--data", ".", "--json", *more).stdout)["benchmarks"][0]["metrics"]
        for more in ((), ("--detokenize",))
    )
    assert "10 words" in published["perplexity_word"]["protocol"]
    assert "10 words" in detokenized["perplexity_word"]["protocol"]
    assert "28 tokens" in published["perplexity_token"]["protocol"]
    assert "22 tokens" in detokenized["perplexity_token"]["protocol"]
    assert "de-tokenized" in detokenized["perplexity_token"]["protocol"]
    nats = 22 * math.log(detokenized["perplexity_token"]["value"])
    assert detokenized["bits_per_byte"]["value"] == pytest.approx(nats / math.log(2) / 28)


def test_a_model_without_a_tokenizer_is_one_line_on_stderr(run: Any, one: Path) -> None:
    for name in ("tokenizer.json", "vocab.json", "merges.txt"):
        (one / name).unlink(missing_ok=True)
    result = run("evaluate", "one", "fox.txt")
    assert result.exit_code == 1
    assert "tokenizer.json" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("arguments", [["fox.txt"], ["fox.txt", "--json", "--by-position"], ["lambada"], ["wikitext2"]])
def test_a_model_with_nan_is_refused_with_the_parameter(
    run: Any, one: Path, lambada: Path, here: Path, arguments: list[str]
) -> None:
    model = load_checkpoint(one, "cpu").model
    model.get_parameter("final_norm.weight").data[3] = math.nan
    save_checkpoint(one, model, Tokenizer.named("bytes"))
    (here / "wiki.txt").write_text(" = A heading = \n a text\n")
    data = {"lambada": ["--data", str(lambada)], "wikitext2": ["--data", "wiki.txt"]}.get(arguments[0], [])
    refused = run("evaluate", "one", *arguments, *data)
    assert refused.exit_code == 1
    assert "the first values that are not finite are in the parameter final_norm.weight (1 of" in refused.stderr
    assert refused.stdout == ""


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError()], ids=["cuda", "cpu"])
@pytest.mark.parametrize("arguments", [["fox.txt"], ["lambada", "--data", "passages.jsonl"]], ids=["text", "lambada"])
def test_running_out_of_memory_is_one_line_with_the_options_that_help(
    run: Any, one: Path, lambada: Path, arguments: list[str], error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr("minigpt.model.gpt.GPT.features", fail)
    refused = run("evaluate", "one", *arguments)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr == "minigpt: out of memory during evaluation; give a smaller --batch-size, or --device cpu\n"


def test_positions_without_a_scored_token_are_null_and_have_no_row(run: Any, one: Path, here: Path) -> None:
    roles = ["user", "assistant"]
    messages = [{"role": role, "content": "abc"} for role in roles]
    (here / "chat.jsonl").write_text(json.dumps({"messages": messages}))
    command = ["evaluate", "one", "chat.jsonl", "--loss-on", "assistant", "--by-position"]
    figures = json.loads(run(*command, "--json").stdout)
    losses, counts = figures["position_losses"], figures["position_tokens"]
    assert [loss is None for loss in losses] == [count == 0 for count in counts]
    assert counts[0] == 0
    assert counts[-1] > 0
    shown = run(*command)
    assert shown.exit_code == 0, shown.output
    table = shown.stdout[shown.stdout.index("loss by position") :]
    assert not re.search(r"^ *1 ", table, re.MULTILINE)
    assert "9 to" in table


def test_the_perplexity_is_infinite_if_too_large_for_a_float_and_nan_stays_nan() -> None:
    assert perplexity(1.0) == math.e
    assert perplexity(1e4) == math.inf
    assert math.isnan(perplexity(math.nan))
