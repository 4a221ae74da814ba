"""`minigpt inspect` and `generate --explain`: what they print where, in colours and without, and what they refuse."""

import io
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from minigpt.cli.render.token_colors import Continuation, Painter, Row, Spans, paint, percent, write_rows
from minigpt.config import GPTConfig
from minigpt.generation.decoding import Choice
from minigpt.generation.streaming import Piece
from minigpt.inspection.activations import predict
from minigpt.model.gpt import GPT
from minigpt.storage.checkpoint import load_checkpoint, save_checkpoint
from minigpt.tokenizer.tokenizer import Tokenizer

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
INSPECT = ["inspect", "one", "--device", "cpu"]
TOKENIZERS = {name: Tokenizer.named(name) for name in ("bytes", "gpt2")}
GENERATE = ["generate", "abc", "--model", "one", "--device", "cpu", "--seed", "1", "--max-new-tokens", "8"]


@pytest.fixture
def one(here: Path) -> Path:
    """A random model of bytes, its weights large enough that it has opinions; context 32."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=257, n_positions=32, n_embd=16, n_layer=2, n_head=2))
    for parameter in model.parameters():
        parameter.data.mul_(10 if parameter.dim() == 2 else 1)
    return save_checkpoint(Path("checkpoints") / "one", model, Tokenizer.named("bytes"))


def in_colour(width: int = 80) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=width, highlight=False)


def in_plain(width: int = 80) -> Console:
    return Console(file=io.StringIO(), width=width, highlight=False)


def written(out: Console) -> str:
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def test_the_arrays_of_json_are_the_model_s(run: Any, one: Path) -> None:
    result = run(*INSPECT, "the fox", "--json", "--top", "3")
    record = json.loads(result.stdout)
    ids = list(b"the fox")
    assert record["ids"] == ids
    expected = predict(load_checkpoint(one, "cpu").model, ids, top=3)
    assert record["logprobs"] == [None, *expected.logprobs[:-1].tolist()]
    assert record["entropy"] == [None, *expected.entropy[:-1].tolist()]
    assert record["ranks"] == [None, *expected.ranks[:-1].tolist()]
    assert record["top_ids"] == [None, *expected.top_ids[:-1].tolist()]
    assert record["next"]["top_ids"] == expected.top_ids[-1].tolist()
    assert record["bits_per_token"] == pytest.approx(-sum(record["logprobs"][1:]) / 6 / math.log(2))
    assert record["bits_per_byte"] == record["bits_per_token"]
    assert result.stderr == ""


def test_without_colours_each_token_s_surprise_stands_beneath_it(run: Any, one: Path) -> None:
    lines = run(*INSPECT, "the fox\nran").stdout.splitlines()
    logprobs = json.loads(run(*INSPECT, "the fox\nran", "--json").stdout)["logprobs"]
    digits = [" "]
    for logprob in logprobs[1:]:
        bits = -logprob / math.log(2)
        digits.append("·" if bits < 0.5 else str(round(bits)) if bits < 9.5 else "+")
    assert lines[:4] == ["the fox↵", "".join(digits[:8]).rstrip(), "ran", "".join(digits[8:]).rstrip()]
    assert "most surprising, and what comes next" in lines


def test_a_table_has_a_row_for_every_token_and_one_for_the_next(run: Any, one: Path) -> None:
    result = run(*INSPECT, "a\tb\x1bc d", "--table", "--top", "2")
    rows = result.stdout.split("\n\n")[0].splitlines()[1:]
    assert [row.split()[:2] for row in rows] == [
        ["0", "a"], ["1", "␉"], ["2", "b"], ["3", "␛"], ["4", "c"], ["5", "␣"], ["6", "d"], ["7", "(next)"]
    ]  # fmt: skip
    assert all(len(re.findall(r"%", row)) == 3 for row in rows[1:-1])  # its own probability, and two others
    assert "bits per token" in result.stdout
    assert "\x1b" not in result.stdout


def test_a_text_beyond_the_context_is_seen_from_its_end(run: Any, one: Path) -> None:
    text = "".join(chr(97 + at % 26) for at in range(50))
    result = run(*INSPECT, text, "--json")
    record = json.loads(result.stdout)
    assert (record["ids"], record["tokens_given"]) == (list(text[-32:].encode()), 50)
    assert result.stderr == "the text's 50 tokens are more than the context (32); its last 32 are inspected\n"
    assert run(*INSPECT, text[-32:], "--json").stderr == ""


def test_a_text_comes_from_a_file_or_standard_input(run: Any, one: Path, here: Path) -> None:
    (here / "text.txt").write_text("two\nlines", encoding="utf-8")
    given = [
        run(*INSPECT, "--file", "text.txt", "--json"),
        run(*INSPECT, "--file", "-", "--json", stdin="two\nlines"),
        run(*INSPECT, "two\nlines", "--json"),
    ]
    assert given[0].stdout == given[1].stdout == given[2].stdout != ""


def test_one_token_alone_was_not_predicted(run: Any, one: Path) -> None:
    result = run(*INSPECT, "a")
    assert result.exit_code == 0
    assert "one token alone" in result.stdout
    assert json.loads(run(*INSPECT, "a", "--json").stdout)["bits_per_token"] is None


def test_a_page_and_a_picture_are_written_and_said(run: Any, one: Path, here: Path) -> None:
    pytest.importorskip("matplotlib")
    result = run(*INSPECT, "the fox", "--html", "out.html", "--png", "out.png", "--layer", "1", "--head", "0")
    assert result.exit_code == 0, result.stderr
    assert re.findall(r"written: (\S+) ", result.stderr) == ["out.html", "out.png"]
    assert '"layer":1,"head":0' in (here / "out.html").read_text(encoding="utf-8")
    assert (here / "out.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([""], "the text is empty: give one behind the model's name, or a --file (- for standard input)"),
        ([], "the text is empty: give one behind the model's name, or a --file (- for standard input)"),
        (["a", "--file", "x.txt"], "a text and --file contradict one another; give one of them"),
        (["--file", "no"], "no cannot be read (No such file or directory); give a text file, or - for standard input"),
        (["a", "--png", "x.png"], "--png draws one map: give its --layer and --head, both counted from 0"),
        (["a", "--json", "--table"], "--json and --table contradict one another; give one of them"),
        (["a", "--head", "1"], "--layer and --head choose a map to draw: give --png FILE or --html FILE too"),
        (["a", "--html", "x.html", "--layer", "2"], "layer (2) must be from 0 to 1 for this model"),
        (["a", "--png", "x.png", "--layer", "0", "--head", "-1"], "head (-1) must be from 0 to 1 for this model"),
        (["a", "--html", "missing/x.html"], "missing/x.html cannot be written (no such file or directory)"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_in_one_line(run: Any, one: Path, arguments: list[str], message: str) -> None:
    result = run(*INSPECT, *arguments)
    assert result.exit_code == 1
    assert result.stderr == f"minigpt: {message}\n"
    assert result.stdout == ""


def test_a_model_without_a_tokenizer_and_a_missing_matplotlib_are_one_line_each(
    run: Any, one: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("matplotlib", "matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)
    result = run(*INSPECT, "a", "--png", "x.png", "--layer", "0", "--head", "0")
    assert result.exit_code == 1
    assert result.stderr == "minigpt: a picture of a map needs matplotlib: pip install 'minigpt[plot]'\n"
    for path in one.iterdir():
        if path.name not in ("config.json", "model.safetensors"):
            path.unlink()
    result = run(*INSPECT, "a")
    assert result.exit_code == 1
    assert re.fullmatch(r"minigpt: [^\n]*tokenizer[^\n]*\n", result.stderr)


# Painting


def test_a_token_is_brighter_the_likelier_it_is_and_its_text_readable() -> None:
    out = in_colour()
    painter = Painter(out)
    for logprob in (0.0, -1.0, -3.0, -5.0, -20.0):
        painter.add("x", logprob)
    painter.add("x", None)
    painter.end()
    grounds = re.findall(r"\x1b\[38;2;(\d+);\d+;\d+;48;2;(\d+);(\d+);(\d+)mx", written(out))
    light = [0.299 * int(r) + 0.587 * int(g) + 0.114 * int(b) for _, r, g, b in grounds]
    assert len(light) == 5  # what was not predicted has no ground
    assert light == sorted(light, reverse=True)
    assert all(abs(int(text) - ground) > 100 for (text, *_), ground in zip(grounds, light, strict=True))


def test_a_terminal_that_wants_no_colours_gets_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    out = in_colour()
    painter = Painter(out)
    painter.add("x", -2.0)
    painter.end()
    painter.legend()
    assert written(out).splitlines() == [
        "x",
        "3",
        "beneath each token its surprise in bits: · below ½, 1 to 9, + above",
    ]


@settings(deadline=None, max_examples=80)
@given(st.text(max_size=60), st.sampled_from(sorted(TOKENIZERS)), st.integers(4, 40))
def test_every_character_is_shown_once_and_no_escape_but_our_own(text: str, name: str, width: int) -> None:
    text = text.encode(errors="replace").decode()
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text)
    for out in (in_colour(width), in_plain(width)):
        painter = Painter(out)
        paint(painter, tokenizer, ids, [None, *[-1.0] * (len(ids) - 1)] if ids else [])
        shown = ESCAPE.sub("", written(out))
        assert not any(
            (ord(c) < 0x20 and c != "\n") or 0x7F <= ord(c) < 0xA0 or 0x202A <= ord(c) <= 0x202E for c in shown
        )
        if painter.coloured:
            assert shown.count("↵") == text.count("\n") + text.count("↵")
            plain = [c for c in text if ord(c) >= 0x20 and c.isalnum()]
            assert [c for c in shown if c in plain] == [c for c in plain if c in shown]
            assert all(c in shown for c in plain)
        else:
            assert all(cell_len(line) <= max(width, 6) for line in shown.splitlines())


def test_a_character_of_several_tokens_is_painted_whole_with_what_all_of_them_cost() -> None:
    tokenizer = Tokenizer.named("bytes")
    spans = Spans(tokenizer)
    fed = [spans.feed(id, logprob) for id, logprob in zip("a日".encode(), (-1.0, -2.0, -3.0, -4.0), strict=True)]
    assert fed == [("a", -1.0), ("", None), ("", None), ("日", -9.0)]
    spans.feed(0xE6, -5.0)
    assert spans.flush() == ("\ufffd", -5.0)


def test_marks_stay_beneath_wide_characters_and_over_line_ends() -> None:
    out = in_plain(8)
    painter = Painter(out)
    for text, bits in [("日本", 3), ("x", 4), ("abcd", 12), ("\n", 0), ("y", 1)]:
        painter.add(text, -bits * math.log(2))
    painter.end()
    assert written(out).splitlines() == ["日本xabc", "3   4+", "d↵", " ·", "y", "1"]


def test_a_right_to_left_word_in_a_table_turns_nothing_else() -> None:
    out = in_plain(100)
    write_rows(out, [Row(1, "שלום", -1.0, [("مرحبا", -2.0), ("a", -3.0)])])
    row = written(out).splitlines()[1]
    assert re.fullmatch(r" +1  \u2068שלום +\u2069 +37% +1\.44 +\u2068مرحبا\u2069 14%  a 5\.0%", row)


def test_a_table_in_a_narrow_terminal_is_cut_and_never_broken() -> None:
    out = in_colour(52)
    write_rows(out, [Row(1, "a", -1.0, [("b", -2.0), ("c", -3.0)], 1.0, 3)])
    lines = ESCAPE.sub("", written(out)).splitlines()
    assert len(lines) == 2
    assert all(line.endswith("…") for line in lines)
    assert [cell_len(line) for line in lines] == [52, 52]


def test_percentages_have_two_digits() -> None:
    shares = [1, 0.995, 0.5, 0.0996, 0.0234, 0.004, 0.00004]
    assert [percent(math.log(share)) for share in shares] == [
        "100%", "100%", "50%", "10%", "2.3%", "0.40%", "<0.01%"
    ]  # fmt: skip


# generate --explain


def test_generation_is_explained_with_the_same_text_and_the_model_s_own_numbers(run: Any, one: Path) -> None:
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
    assert marked[0].startswith(first[:4])
    assert marked[-1].startswith("beneath each token")


def test_several_texts_are_explained_one_after_the_other(run: Any, one: Path) -> None:
    result = run(*GENERATE, "--explain", "--samples", "3")
    assert result.stdout.count("\n---\n") == 2
    assert result.stdout.count("beneath each token") == 1


@pytest.mark.parametrize(
    ("others", "name"), [(["--json"], "--json"), (["--memorization"], "--memorization"), (["--beams", "2"], "--beams")]
)
def test_an_explanation_beside_what_contradicts_it_is_refused(
    run: Any, one: Path, others: list[str], name: str
) -> None:
    for way in ("--explain", "--table"):
        result = run(*GENERATE, way, *others)
        assert result.exit_code == 1
        assert result.stderr == f"minigpt: --explain and --table contradict {name}; give one of them\n"


def test_text_that_a_stop_string_holds_back_keeps_its_own_colours_and_what_is_cut_is_not_shown() -> None:
    tokenizer = Tokenizer.named("bytes")
    out = in_plain()
    continuation = Continuation(out, tokenizer, table=False)
    continuation.begin("p")
    pieces = [("", ord("a"), -1), ("", ord("b"), -2), ("abc", ord("c"), -3), ("", ord("S"), -4), ("", ord("T"), -5)]
    for text, id, bits in pieces:
        continuation.add(Piece(0, text, Choice(id, bits * math.log(2))))
    continuation.add(Piece(0, "", Choice(tokenizer.end_of_text, -6.0), "end_of_text"))
    continuation.end()
    assert written(out).splitlines()[:2] == ["pabc", " 123"]


def test_a_token_that_a_stop_string_holds_back_in_part_is_shown_in_part_in_one_colour() -> None:
    tokenizer = TOKENIZERS["gpt2"]
    (the,), (x,) = tokenizer.encode(" the"), tokenizer.encode("x")
    out = in_colour()
    continuation = Continuation(out, tokenizer, table=False)
    continuation.begin("p")
    continuation.add(Piece(0, " t", Choice(the, -1.0)))
    assert ESCAPE.sub("", written(out)) == "p t"
    continuation.add(Piece(0, "hex", Choice(x, -6.0)))
    continuation.add(Piece(0, " t", Choice(the, -3.0), "stop"))
    grounds = re.findall(r"48;2;([\d;]+)m([^\x1b]+)", written(out))
    assert [text for _, text in grounds] == [" t", "he", "x", " t"]
    assert grounds[0][0] == grounds[1][0] != grounds[2][0]
