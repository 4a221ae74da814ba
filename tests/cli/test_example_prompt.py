"""The prompt that a finished run proposes: words of the training text, in its language, safe to copy into a shell."""

import shlex
from pathlib import Path

import pytest
from builders import bytes_ending_in
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.cli.options import command_line
from minigpt.cli.train_end import example_prompt
from minigpt.data.corpus import Corpus
from minigpt.tokenizer.tokenizer import Tokenizer


def prompt_of(text: str, folder: Path, fraction: float = 0.0, tokenizer: Tokenizer | str = "bytes") -> str | None:
    path = folder / "text.txt"
    path.write_text(text, encoding="utf-8")
    return example_prompt(Corpus.build(path, tokenizer, cache=folder / "cache", validation_fraction=fraction))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "Titel\n\nEs war einmal ein König, der hatte drei Töchter und ein großes Schloss.\n",
            "Es war einmal ein",
        ),
        (
            "題\n\n　吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。"
            "何でも薄暗いじめじめした所で泣いていた。\n",
            "吾輩は猫である。名前",
        ),
        (
            "import os\n\ndef merge_sorted_lists(first, second, key=None, reverse=False):\n    return 1\n",
            "def merge_sorted_lists(first, second,",
        ),
        (
            "x\n--help is an option, and this line is as long as any\n"
            "- a list whose items are long enough to continue\n"
            '“It’s "quoted" $HOME `ls` \\ and goes on for a while,” he said.\n',
            '“It’s "quoted" $HOME `ls`',
        ),
        ("x\nA line with \x1b[31mcolor\x1b[0m that is long enough to be taken\nno\n", "A line with"),
        ("One sentence. Another sentence that is long enough to be taken here. Third.", "Another sentence that is"),
        (
            "x\n| bash     | I:838, V:999, 1234 | a shell, as a table has it |\nA shorter line of words.\n",
            "A shorter line of",
        ),
        ("x\n+-----+----------------------------------------------+ a\nno\n", "no"),
        ("ok", "ok"),
        ("12345 67890\n----\n\x00\x01"[:16], None),
    ],
)
def test_the_prompt_is_the_first_words_of_a_long_line_of_the_text(
    text: str, expected: str | None, tmp_path: Path
) -> None:
    assert prompt_of(text, tmp_path) == expected


def test_the_prompt_is_of_the_held_out_text_if_there_is_one(tmp_path: Path) -> None:
    text = "A first line of the text that is trained on, every day.\n" * 9
    text += "A last line of the text, which is held out from training.\n" * 3
    assert prompt_of(text, tmp_path) == "A first line of"
    assert prompt_of(text, tmp_path, fraction=0.2) == "A last line of"


@pytest.mark.parametrize("name", ["<|endoftext|>", "</s>"])
def test_the_prompt_does_not_contain_the_end_of_a_text(name: str, tmp_path: Path) -> None:
    text = "x\nA short one<|endoftext|>Another text that is long enough to be taken here."
    assert prompt_of(text, tmp_path, tokenizer=bytes_ending_in(name)) == "Another text that is"
    assert prompt_of("A<|endoftext|>B", tmp_path, tokenizer=bytes_ending_in(name)) in ("A", "B")


@settings(deadline=None, max_examples=40, derandomize=True)
@given(text=st.text(st.sampled_from("ab'\"$`!\\- \n\t\x1b\x07\u202e\u0301\u3000é漢。."), min_size=1, max_size=120))
def test_a_proposed_prompt_is_one_printable_word_of_the_shell(
    text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    prompt = prompt_of(text + "a", tmp_path_factory.mktemp("text"))
    if prompt is None:
        return
    assert prompt.isprintable()
    assert prompt == prompt.strip()
    assert not prompt.startswith("-")
    command = command_line("generate", prompt, "--model", "x", checkpoints=Path("checkpoints"))
    assert shlex.split(command) == ["minigpt", "generate", prompt, "--model", "x"]
