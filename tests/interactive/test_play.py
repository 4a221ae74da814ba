"""`minigpt play`: turns, commands, and errors."""

import os
from pathlib import Path
from typing import Any

import pytest
from builders import new_model

from minigpt.cli import signals
from minigpt.config import SamplingConfig
from minigpt.errors import CheckpointError
from minigpt.generation import streaming
from minigpt.generation.engine import Engine
from minigpt.interactive import session as session_module
from minigpt.interactive.play import Session
from minigpt.interactive.session import OUT_OF_MEMORY, typed_lines
from minigpt.penalties.settings import PenaltySettings
from minigpt.storage.checkpoint import save_checkpoint
from minigpt.tokenizer.tokenizer import Tokenizer


def new_session(**settings: Any) -> Session:
    model = new_model(scale=10, n_positions=64, n_layer=1)
    config = SamplingConfig(**{"max_new_tokens": 8, "temperature": 2.0, "seed": 1, **settings})
    return Session(Engine(model), Tokenizer.named("bytes"), config)


def test_each_turn_continues_the_whole_text_so_far(capsys: pytest.CaptureFixture[str]) -> None:
    session = new_session(min_new_tokens=8)
    session.run(iter(["Once", "", "then"]))
    (first, a), (second, b), (third, c) = session.turns
    assert (first, second, third) == ("Once", "", "\nthen")
    assert session.text == "Once" + a + b + "\nthen" + c
    assert all((a, b, c))
    assert a + "\n" + b + "\n" + c in capsys.readouterr().out


def test_a_turn_that_ends_in_a_space_is_continued_as_the_tokenizer_splits_text() -> None:
    tokenizer = Tokenizer.train(["def area(self): return self.area " * 20], "bpe:290")
    model = new_model(scale=10, vocab_size=tokenizer.vocab_size, n_positions=64)
    texts = []
    for typed in ("def ", "def"):
        session = Session(Engine(model), tokenizer, SamplingConfig(temperature=0, logit_bias=(" self=30",)))
        session.config = session.config.replace(max_new_tokens=4)
        session.run(iter([typed]))
        texts.append(session.text)
    assert texts[0] == texts[1]


def test_retry_replaces_the_text_of_a_turn_and_undo_removes_the_turn() -> None:
    session = new_session()
    session.run(iter(["Once", "more"]))
    before = session.turns[:]
    session.run(iter(["/retry"]))
    assert session.turns[0] == before[0]
    assert session.turns[1][0] == before[1][0]
    assert session.turns[1][1] != before[1][1]
    session.run(iter(["/undo"]))
    assert session.turns == before[:1]


def test_a_text_that_becomes_longer_than_the_context_says_so_once(capsys: pytest.CaptureFixture[str]) -> None:
    longer = "the text is now longer than the context (64 tokens); the model reads only its end"
    session = new_session(min_new_tokens=8)
    session.run(iter(["a" * 30]))
    assert longer not in capsys.readouterr().err
    session.run(iter(["a" * 40, "more"]))
    assert capsys.readouterr().err.count(longer) == 1
    session.run(iter(["/new", "/set context keep-first:8", "a" * 70]))
    assert "the model reads its first 8 tokens and its end" in capsys.readouterr().err


def test_a_turn_that_cannot_be_written_changes_nothing() -> None:
    session = new_session()
    session.config = session.config.replace(seed=3)
    session.run(iter(["Once"]))
    before = session.turns[:]
    bad = session.config.replace(logit_bias=("\N{SNOWMAN}\N{SNOWMAN}=3",))
    good, session.config = session.config, bad
    session.run(iter(["more", "/retry", "/continue"]))
    assert session.turns == before
    assert session.config == bad, "the next turn has the seed that it would have had"
    session.config = good
    session.run(iter(["more"]))
    assert len(session.turns) == 2


def test_settings_are_changed_by_name_and_a_wrong_one_is_one_line_and_no_change(
    capsys: pytest.CaptureFixture[str],
) -> None:
    session = new_session()
    session.run(iter(["/set temperature 0.5", "/set --top-k 7", '/set stop "a b" c', "/set until line"]))
    assert session.config.temperature == 0.5
    assert session.config.top_k == 7
    assert session.config.stop == ("a b", "c")
    assert session.config.until == "line"
    session.run(iter(["/set token-healing off", "/set allow-invalid-utf8 on"]))
    assert (session.config.token_healing, session.config.allow_invalid_utf8) == (False, True)
    assert "token-healing off" in capsys.readouterr().err
    session.run(iter(["/set top-k none", "/set until none", "/set stop"]))
    assert (session.config.top_k, session.config.until, session.config.stop) == (None, None, ())
    names = ("stop", "bad-words", "logit-bias")
    session.run(iter([f"/set {name} a=1" for name in names]))
    penalties = PenaltySettings.of(session.config)
    assert (session.config.stop, penalties.bad_words, penalties.logit_bias) == (("a=1",),) * 3
    session.run(iter([f"/set {name} none" for name in names]))
    penalties = PenaltySettings.of(session.config)
    assert (session.config.stop, penalties.bad_words, penalties.logit_bias) == ((),) * 3
    config = session.config
    capsys.readouterr()
    session.run(
        iter(["/set temperature warm", "/set top-p 3", "/set beams 4", "/set nothing 1", "/set token-healing no"])
    )
    assert session.config == config
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 5
    assert errors[4] == "token_healing ('no') must be on or off"
    assert "temperature ('warm') must be a number" in errors[0]
    assert "top_p (3.0) must be at most 1" in errors[1]
    session.run(iter(["/set stop don't", "/set stop a\\"]))
    assert session.config == config
    assert capsys.readouterr().err.splitlines() == [
        '''stop ("don't") has no closing quotation; put a text with an apostrophe in quotation marks, as in "don't"''',
        "stop ('a\\\\') has no escaped character; write a backslash twice",
    ]
    session.run(iter(["/set"]))
    assert "temperature 0.5" in capsys.readouterr().err


def test_ctrl_c_stops_the_model_and_keeps_what_it_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    session = new_session()
    shown: list[str] = []

    def write(text: str) -> None:
        shown.append(text)
        if len(shown) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(session_module, "prose", lambda: write)
    session.run(iter(["Once"]))
    assert session.text == "Once" + "".join(shown[:2])
    session.run(iter(["/continue"]))
    assert len(session.turns) == 2


def test_ctrl_c_in_a_command_or_at_the_end_of_a_turn_does_not_end_the_session(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = new_session()

    def write(text: str) -> None:
        if text == "" or (text.startswith("Once") and text.endswith("\n")):  # the end of a turn, and /show
            signals._raise(2, None)

    monkeypatch.setattr(session_module, "write", write)
    monkeypatch.setattr(session_module, "prose", lambda: write)
    session.run(iter(["Once", "/show", "more"]))
    assert [typed for typed, _ in session.turns] == ["Once", "\nmore"]
    assert capsys.readouterr().err.splitlines().count(" [stopped]") == 3
    assert not signals.was_interrupted()


def test_a_retry_that_is_stopped_before_its_first_word_keeps_the_old_text(monkeypatch: pytest.MonkeyPatch) -> None:
    session = new_session()
    session.run(iter(["Once", "more"]))
    before = session.text

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(session_module, "prose", lambda: stop)
    session.run(iter(["/retry"]))
    assert session.text == before


def test_a_turn_that_runs_out_of_memory_is_one_line_and_keeps_the_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = new_session()
    session.run(iter(["Once"]))
    before = session.text

    def generate_pieces(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(streaming, "generate_pieces", generate_pieces)
    session.run(iter(["more", "/retry"]))
    assert session.text == before
    assert capsys.readouterr().err.splitlines().count(OUT_OF_MEMORY) == 2


def test_save_writes_the_whole_text_and_a_missing_folder_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = new_session()
    files = (f" {tmp_path / 'a.txt'}", f" {tmp_path / 'no' / 'a.txt'}", "", " ~no/x", " x\0y")
    session.run(iter(["Ünce", *(f"/save{file}" for file in files)]))
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == session.text
    errors = capsys.readouterr().err
    assert "could not be written (no such file or directory)" in errors
    assert "/save needs a file name" in errors
    assert "~no/x is in a home folder that is unknown" in errors
    assert "is not a file name (embedded null byte); give another" in errors


def test_what_is_typed_in_another_encoding_is_refused_and_the_session_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    session = new_session()
    session.run(iter(["caf\udce9", "/set stop caf\udce9", "Once"]))
    assert [typed for typed, _ in session.turns] == ["Once"]
    errors = capsys.readouterr().err
    assert "the text is not UTF-8: byte 3 is 0xe9; type it in UTF-8\n" in errors
    assert "stop is not UTF-8: byte 3 is 0xe9; give it in UTF-8\n" in errors


def test_a_save_that_fails_keeps_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = new_session()
    session.turns = [("Once", "")]
    session.save(str(tmp_path / "a.txt"))

    def fail(*_: object, **__: object) -> None:
        raise OSError("disk error")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(CheckpointError, match="disk error"):
        session.save(str(tmp_path / "a.txt"))
    assert (tmp_path / "a.txt").read_text() == "Once"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with os.fdopen(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb") as reader:
        session = new_session()
        session.turns = [("Once", "")]
        session.save(f"--force {pipe}")
        assert reader.read() == b"Once"
    assert pipe.is_fifo()


def test_save_replaces_only_what_the_session_wrote_unless_forced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine, theirs = tmp_path / "mine.txt", tmp_path / "theirs.txt"
    theirs.write_text("precious")
    session = new_session()
    session.run(iter(["Once", f"/save {mine}", "upon", f"/save {mine}", f"/save {theirs}"]))
    assert mine.read_text(encoding="utf-8") == session.text
    assert theirs.read_text() == "precious"
    assert f"{theirs} exists already; give another name, or replace it by /save --force" in capsys.readouterr().err
    session.run(iter([f"/save --force {theirs}"]))
    assert theirs.read_text(encoding="utf-8") == session.text


def test_save_after_new_replaces_no_file_of_the_old_text_unless_forced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.txt"
    session = new_session()
    session.run(iter(["Once", f"/save {file}"]))
    first = session.text
    session.run(iter(["/new", "Twice", f"/save {file}"]))
    assert file.read_text(encoding="utf-8") == first
    refusal = f"{file} exists already; give another name, or replace it by /save --force {file}"
    assert refusal in capsys.readouterr().err.splitlines()
    session.run(iter([f"/save --force {file}", "more", f"/save {file}"]))
    assert file.read_text(encoding="utf-8") == session.text


def test_save_replaces_no_file_that_another_program_changed_unless_forced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.txt"
    session = new_session()
    session.run(iter(["Once", f"/save {file}"]))
    file.write_text("edited")
    session.run(iter(["more", f"/save {file}"]))
    assert file.read_text() == "edited"
    refusal = f"{file} was changed since it was saved here; give another name, or replace it by /save --force {file}"
    assert refusal in capsys.readouterr().err.splitlines()
    session.run(iter([f"/save --force {file}", "more", f"/save {file}"]))
    assert file.read_text(encoding="utf-8") == session.text
    file.unlink()
    session.run(iter([f"/save {file}"]))
    assert file.read_text(encoding="utf-8") == session.text


def test_commands_without_a_text_and_unknown_commands_are_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    session = new_session()
    session.run(iter(["/undo", "/retry", "/dance", "/help", "/quit", "never read"]))
    errors = capsys.readouterr().err
    assert "nothing to undo" in errors
    assert "nothing to retry" in errors
    assert "/dance is not a command" in errors
    assert "/save FILE" in errors
    assert session.turns == []


def test_continued_lines_are_joined_and_ctrl_c_at_the_prompt_discards_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = iter(["one\\", "two", '"""a', "b", 'c"""', '"""', "d", '"""', KeyboardInterrupt(), "last", EOFError()])

    def answer(_prompt: str) -> str:
        value = next(typed)
        if isinstance(value, BaseException):
            raise value
        return value

    monkeypatch.setattr("builtins.input", answer)
    assert list(typed_lines()) == ["one\ntwo", "a\nb\nc", "d", "last"]


def test_ctrl_d_ends_the_session_where_the_console_gives_it_as_a_character(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = iter(["one", "\x04", "never read"])
    monkeypatch.setattr("builtins.input", lambda _prompt: next(typed))
    assert list(typed_lines()) == ["one"]


def test_play_reads_from_standard_input(run: Any) -> None:
    save_checkpoint(Path("checkpoints") / "one", new_session().engine.model, Tokenizer.named("bytes"))
    result = run("play", "one", "--max-new-tokens", "4", "--device", "cpu", stdin="Once\n/set\n/quit\n")
    assert result.exit_code == 0, result.stderr
    assert "parameters" in result.stderr
    assert "max-new-tokens 4" in result.stderr
    assert "/help lists the commands, /quit quits." in result.stderr


def test_a_seed_is_that_of_the_next_turn_and_no_two_turns_have_the_same() -> None:
    def written(*inputs: str) -> list[str]:
        session = new_session()
        session.run(iter(inputs))
        return [text for _, text in session.turns]

    assert written("Once", "/set seed 7", "/retry") == written("/set seed 7", "Once")
    assert written("Once", "/new", "Once") == written("/set seed 2", "Once")  # the first turn had the seed 1
