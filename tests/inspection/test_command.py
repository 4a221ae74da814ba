"""`minigpt inspect` and `generate --explain`: their output and their error messages."""

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import new_model

from minigpt.inspection.activations import predict
from minigpt.inspection.token_colors import percent
from minigpt.optional_packages import install_command
from minigpt.storage.checkpoint import load_checkpoint, save_checkpoint
from minigpt.tokenizer.tokenizer import Tokenizer

INSPECT = ["inspect", "one", "--device", "cpu"]
GENERATE = ["generate", "abc", "--model", "one", "--device", "cpu", "--seed", "1", "--max-new-tokens", "8"]


@pytest.fixture
def one(here: Path) -> Path:
    """A random model whose predictions depend on the text, with a context of 32 bytes."""
    model = new_model(scale=10, n_positions=32)
    return save_checkpoint(Path("checkpoints") / "one", model, Tokenizer.named("bytes"))


def test_the_json_arrays_are_the_models_predictions(run: Any, one: Path) -> None:
    result = run(*INSPECT, "the fox", "--json", "--top", "3")
    record = json.loads(result.stdout)
    ids = list(b"the fox")
    assert record["ids"] == ids
    expected = predict(load_checkpoint(one, "cpu").model, ids, top=3)
    for name in ("logprobs", "entropy"):  # two models in different memory may round sums differently
        assert record[name][0] is None
        assert record[name][1:] == pytest.approx(getattr(expected, name)[:-1].tolist(), rel=1e-5)
    assert record["ranks"] == [None, *expected.ranks[:-1].tolist()]
    assert record["top_ids"] == [None, *expected.top_ids[:-1].tolist()]
    assert record["next"]["top_ids"] == expected.top_ids[-1].tolist()
    assert record["bits_per_token"] == pytest.approx(-sum(record["logprobs"][1:]) / 6 / math.log(2))
    assert record["bits_per_byte"] == record["bits_per_token"]
    assert result.stderr == ""


def test_without_colors_each_tokens_surprisal_is_printed_below_it(run: Any, one: Path) -> None:
    lines = run(*INSPECT, "the fox\nran").stdout.splitlines()
    logprobs = json.loads(run(*INSPECT, "the fox\nran", "--json").stdout)["logprobs"]
    digits = [" "]
    for logprob in logprobs[1:]:
        bits = -logprob / math.log(2)
        digits.append("·" if bits < 0.5 else str(round(bits)) if bits < 9.5 else "+")
    assert lines[:4] == ["the fox↵", "".join(digits[:8]).rstrip(), "ran", "".join(digits[8:]).rstrip()]
    assert "the least likely tokens, and the next one; surprisal and entropy in bits" in lines


@pytest.mark.parametrize(("function", "options"), [("predict", []), ("inspect", ["--html", "page.html"])])
def test_running_out_of_memory_is_one_line_with_what_helps(
    run: Any, one: Path, function: str, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried")

    monkeypatch.setattr(f"minigpt.inspection.activations.{function}", fail)
    refused = run(*INSPECT, "the fox", *options)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr == "minigpt: out of memory during inspection; give a shorter text, or --device cpu\n"


def test_a_table_has_a_row_for_every_token_and_one_for_the_next(run: Any, one: Path) -> None:
    result = run(*INSPECT, "a\tb\x1bc d", "--table", "--top", "2")
    rows = result.stdout.split("\n\n")[0].splitlines()[1:]
    assert [row.split()[:2] for row in rows] == [
        ["0", "a"], ["1", "␉"], ["2", "b"], ["3", "␛"], ["4", "c"], ["5", "␣"], ["6", "d"], ["7", "(next)"]
    ]  # fmt: skip
    assert all(len(re.findall(r"%", row)) == 3 for row in rows[1:-1])  # its own probability, and two others
    assert "bits per token" in result.stdout
    assert "\x1b" not in result.stdout


def test_of_a_text_longer_than_the_context_only_the_end_is_inspected(run: Any, one: Path) -> None:
    text = "".join(chr(97 + at % 26) for at in range(50))
    result = run(*INSPECT, text, "--json")
    record = json.loads(result.stdout)
    assert (record["ids"], record["tokens_given"]) == (list(text[-32:].encode()), 50)
    assert (
        result.stderr == "the text has 50 tokens, more than the context length (32); only its last 32 are inspected\n"
    )
    assert run(*INSPECT, text[-32:], "--json").stderr == ""


def test_a_text_comes_from_a_file_or_standard_input(run: Any, one: Path, here: Path) -> None:
    (here / "text.txt").write_text("two\nlines", encoding="utf-8")
    given = [
        run(*INSPECT, "--file", "text.txt", "--json"),
        run(*INSPECT, "--file", "-", "--json", stdin="two\nlines"),
        run(*INSPECT, "two\nlines", "--json"),
    ]
    assert given[0].stdout == given[1].stdout == given[2].stdout != ""


def test_a_single_token_has_no_probability(run: Any, one: Path) -> None:
    result = run(*INSPECT, "a")
    assert result.exit_code == 0
    assert "the text is a single token" in result.stdout
    assert json.loads(run(*INSPECT, "a", "--json").stdout)["bits_per_token"] is None


def test_a_page_and_a_picture_are_written_and_reported(run: Any, one: Path, here: Path) -> None:
    pytest.importorskip("matplotlib")
    result = run(*INSPECT, "the fox", "--html", "out.html", "--png", "out.png", "--layer", "1", "--head", "0")
    assert result.exit_code == 0, result.stderr
    assert re.findall(r"written: (\S+) ", result.stderr) == ["out.html", "out.png"]
    assert '"layer":1,"head":0' in (here / "out.html").read_text(encoding="utf-8")
    assert (here / "out.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("option", ["--html", "--png"])
def test_an_existing_file_is_replaced_if_it_is_an_output_of_the_same_option_or_with_force(
    run: Any, one: Path, here: Path, option: str
) -> None:
    pytest.importorskip("matplotlib")
    heads = ["--layer", "0", "--head", "0"]
    (here / "out.png").write_bytes(b"my picture")
    refused = run(*INSPECT, "fox", option, "out.png", *heads)
    assert refused.exit_code == 1
    expected = "out.png exists and is not a file that this command wrote; give another name, or --force"
    assert refused.stderr == f"minigpt: {expected}\n"
    assert (here / "out.png").read_bytes() == b"my picture"
    assert run(*INSPECT, "fox", option, "out.png", *heads, "--force").exit_code == 0
    assert run(*INSPECT, "fox", option, "out.png", *heads).exit_code == 0
    for _ in range(2):  # a name without a suffix is that of a PNG
        assert run(*INSPECT, "fox", "--png", "map", *heads).exit_code == 0
    other = "--png" if option == "--html" else "--html"
    assert run(*INSPECT, "fox", other, "out.png", *heads).exit_code == 1


def test_a_missing_matplotlib_and_a_missing_tokenizer_are_one_line_each(
    run: Any, one: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("matplotlib", "matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)
    result = run(*INSPECT, "a", "--png", "x.png", "--layer", "0", "--head", "0")
    assert result.exit_code == 1
    needs = "drawing an attention map needs matplotlib, which is not installed"
    assert result.stderr == f"minigpt: {needs}; run: {install_command('matplotlib')}\n"
    for path in one.iterdir():
        if path.name not in ("config.json", "model.safetensors"):
            path.unlink()
    result = run(*INSPECT, "a")
    assert result.exit_code == 1
    assert re.fullmatch(r"minigpt: [^\n]*tokenizer[^\n]*\n", result.stderr)


# generate --explain


def test_explained_text_is_the_same_text_with_the_models_probabilities(run: Any, one: Path) -> None:
    plain = run(*GENERATE).stdout
    record = json.loads(run(*GENERATE, "--json").stdout)
    explained = run(*GENERATE, "--table", "--alternatives", "2").stdout.splitlines()
    assert len(explained) == 1 + len(record["ids"])
    for row, logprob, others in zip(explained[1:], record["logprobs"], record["alternatives"], strict=True):
        assert f" {percent(logprob)} " in row
        assert percent(others[0]["logprob"]) in row
        assert percent(others[1]["logprob"]) in row
        assert row.count("%") == 3
    marked = run(*GENERATE, "--explain").stdout.splitlines()
    first = plain.split("\n")[0]
    assert marked[0][:3] == first[:3]  # control characters are made visible
    assert marked[-1].startswith("below each token")


def test_several_samples_are_explained_one_after_the_other(run: Any, one: Path) -> None:
    result = run(*GENERATE, "--explain", "--samples", "3")
    assert result.stdout.count("\n---\n") == 2
    assert result.stdout.count("below each token") == 1


@pytest.mark.parametrize("option", [["--table"], ["--json"], ["--html", "new.html"]])
def test_a_model_with_nan_is_refused_with_the_parameter(run: Any, one: Path, option: list[str]) -> None:
    model = load_checkpoint(one, "cpu").model
    model.get_parameter("final_norm.weight").data[3] = math.nan
    save_checkpoint(one, model, Tokenizer.named("bytes"))
    refused = run(*INSPECT, "the fox", *option)
    assert refused.exit_code == 1
    assert "the first values that are not finite are in the parameter final_norm.weight (1 of" in refused.stderr
    assert refused.stdout == ""
    assert not Path("new.html").exists()
