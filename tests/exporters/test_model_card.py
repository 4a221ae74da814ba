"""The model card: the hub's metadata, the facts about training, and nothing private or invented."""

import errno
import json
import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from builders import new_model, new_run
from huggingface_hub import ModelCard
from huggingface_hub.utils import filter_repo_objects
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scripts import ROOT

from minigpt.config import GPTConfig
from minigpt.errors import CheckpointError
from minigpt.exporters.model_card import may_write_card, model_card, upload_command
from minigpt.storage import run as run_module
from minigpt.storage.checkpoint import save_checkpoint
from minigpt.storage.run import Run
from minigpt.storage.run_record import Result, RunRecord
from minigpt.tokenizer.tokenizer import Tokenizer

CONFIG = GPTConfig(vocab_size=257, n_positions=8, n_embd=8, n_layer=1, n_head=1)
RESULT = {
    "step": 1200, "reason": "length", "best_step": 1100, "validation_loss": 1.25, "bits_per_byte": 1.5,
    "validation_tokens": 999, "seconds": 61.7,
}  # fmt: skip
RECORD: dict[str, Any] = {
    "format": 1,
    "minigpt": "0.1.0",
    "torch": "2.9.0",
    "device": "cpu",
    "sources": ["/home/ada/secret/moby dick.txt", "-"],
    "from": None,
    "tokenizer": "bytes",
    "corpus": {
        "fingerprint": "ab12" * 16, "path": "/home/ada/.cache/x", "train_bytes": 9000, "validation_bytes": 1000,
        "train_tokens": 9000, "validation_tokens": 1000,
    },
    "training": {"batch_size": 16, "context_length": 8, "optimizer": "muon", "learning_rate": 0.008, "seed": 1337},
    "result": RESULT,
}  # fmt: skip


def run_record(entries: dict[str, Any]) -> RunRecord:
    return RunRecord.from_dict(entries)


def unfinished_run(path: Path) -> Run:
    return new_run(path, new_model(CONFIG), record=RECORD | {"result": None})


def test_the_hub_reads_the_kind_of_model_and_no_license_is_invented() -> None:
    card = ModelCard(model_card("whale", CONFIG, record=run_record(RECORD)))
    assert card.data.to_dict() == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["minigpt", "gpt2"],
    }
    assert card.text.strip().startswith("# whale")


def test_the_card_shows_model_text_settings_and_results() -> None:
    card = model_card("whale", CONFIG, record=run_record(RECORD))
    for fact in (
        f"{CONFIG.n_parameters:,} parameters, trained from scratch with minigpt 0.1.0",
        "| files | `moby dick.txt`, `standard input` |",
        "| training text | 9,000 bytes, 9,000 tokens |",
        "| validation text | 1,000 bytes, 1,000 tokens |",
        "ab12" * 16,
        "| context length | 8 tokens |",
        "| tokenizer | `bytes` |",
        "| steps | 1,200; the weights are those of step 1,100 |",
        "| learning rate | 0.008 |",
        "| validation loss | 1.2500 nats per token |",
        "| perplexity | 3.49 |",
        "| bits per byte | 1.5000 |",
        "on all of the validation text: 999 tokens, in windows of 8 tokens that do not overlap",
        "--to gguf",
    ):
        assert fact in card, fact


def test_neither_the_card_nor_the_uploaded_files_contain_a_path_of_the_machine(tmp_path: Path) -> None:
    card = model_card(
        "whale", CONFIG, record=run_record(RECORD | {"from": "ada/gpt2", "sources": ["ada/moby dick.txt"]})
    )
    assert "/home" not in card
    assert "ada" not in card
    run = unfinished_run(tmp_path / "whale")
    run.update(result=Result(**RESULT))
    for name in ("wandb/run-1/files/config.yaml", "tensorboard/events.out.tfevents.1.host"):  # of --log
        (run.directory / name).parent.mkdir(parents=True)
        (run.directory / name).write_text("/home/ada/secret/moby dick.txt")
    (command,) = re.findall(r"hf upload .*", card)
    excluded = [pattern for option, pattern in pairwise(shlex.split(command)) if option == "--exclude"]
    assert excluded == [
        "last/*", "teacher/*", "training.json", "*.jsonl", "*.html", ".lock*", "tensorboard/*", "wandb/*",
    ]  # fmt: skip
    private = {
        path.relative_to(run.directory).as_posix()
        for path in run.directory.rglob("*")
        if path.is_file() and "/home" in path.read_text("latin-1")
    }
    assert len(private) == 3
    assert list(filter_repo_objects(private, ignore_patterns=excluded)) == []


@pytest.mark.parametrize("folder", ["/home/jane/", "C:\\Users\\jane\\"], ids=["posix", "windows"])
def test_the_card_of_a_run_of_any_system_has_no_folder(folder: str) -> None:
    moved = RECORD | {"sources": [f"{folder}moby dick.txt"], "from": f"{folder}gpt2"}
    card = model_card("whale", CONFIG, record=run_record(moved))
    assert "jane" not in card
    assert "| files | `moby dick.txt` |" in card
    assert "fine-tuned from `gpt2`" in card
    base = {"name": f"{folder}gpt2", "sha256": "0" * 64}
    adapted = model_card("whale", CONFIG, record=run_record(moved | {"adapter_base": base}))
    assert "jane" not in adapted
    assert "The adapter needs its base model, `gpt2`." in adapted
    assert "`adapter_config.json` names the base model by its path on your machine." in adapted


def test_an_adapter_of_a_model_on_the_hub_is_uploaded_unchanged() -> None:
    base = {"name": "openai-community/gpt2", "sha256": "0" * 64}
    card = model_card("whale", CONFIG, record=run_record(RECORD | {"adapter_base": base}))
    assert "The folder is a complete adapter for the hub." in card
    assert "its path on your machine" not in card


@pytest.mark.parametrize(
    ("changes", "expected", "unexpected"),
    [
        ({"result": None}, "Training has not finished", "nats per token"),
        (
            {"result": RESULT | {"validation_loss": None, "bits_per_byte": None}},
            "There was no validation text",
            "nats per",
        ),
        ({"result": RESULT | {"bits_per_byte": None}}, "1.2500 nats", "| bits per byte"),
        ({"result": RESULT | {"reason": "early stop"}}, "1,200, stopped early;", "has not finished"),
        (
            {"result": RESULT | {"validation_tokens": 300}},
            "on a sample of the validation text: 300 tokens",
            "on all of",
        ),
        ({"from": "/models/gpt2"}, "fine-tuned from `gpt2` with minigpt 0.1.0", "and nothing else"),
        ({"sources": [f"{n}.txt" for n in range(13)]}, "`9.txt` and 3 more", "10.txt"),
        ({"corpus": {}, "training": {}}, "1.2500 nats", "| training text"),
    ],
)
def test_unknown_facts_are_omitted(changes: dict[str, Any], expected: str, unexpected: str) -> None:
    card = model_card("whale", CONFIG, record=run_record(RECORD | changes))
    assert expected in card
    assert unexpected not in card


def test_the_card_of_an_imported_model_names_its_origin(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "gpt2", new_model(CONFIG), Tokenizer.named("bytes"), origin="openai-community/gpt2")
    card = (tmp_path / "gpt2" / "README.md").read_text()
    assert "imported by minigpt from `openai-community/gpt2`" in card
    assert "## Training" not in card
    assert "`openai-community/gpt2`. Its weights are the same, in float32.\n" in card
    noted = model_card("x", CONFIG, origin="model.gguf", notes=("9 Q8_0 are <rounded>", "no config.json"))
    assert "from `model.gguf`. Its weights are the same, in float32. Notes on the import:" in noted
    assert "\n- 9 Q8\\_0 are \\<rounded\\>\n- no config.json\n" in noted


def test_an_incomplete_result_is_shown_as_far_as_it_goes() -> None:
    card = model_card("whale", CONFIG, record=run_record(RECORD | {"result": {"step": 5, "validation_loss": 1.25}}))
    assert "| steps | 5 |" in card
    assert "1.2500 nats" in card
    assert "| seed | 1337 |" in model_card("whale", CONFIG, record=run_record(RECORD | {"result": {"best_step": 5}}))


def test_a_record_of_another_program_is_ignored(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "x", new_model(CONFIG), Tokenizer.named("bytes"), {"corpus": "Moby Dick", "result": 3})
    assert "Moby Dick" not in (tmp_path / "x" / "README.md").read_text()


UNDECODABLE = st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF)  # bytes of a file name that are not UTF-8


@settings(deadline=None, max_examples=25)
@given(st.text(min_size=1), st.text(st.characters(codec="utf-8", exclude_characters="\0") | UNDECODABLE, min_size=1))
@example("a|b`c\n# d", "<!-- x -->\n---\n`|")
@example("$(rm -rf)", "---\nlicense: mit\n---")
def test_no_name_or_source_can_inject_markdown_or_metadata(name: str, source: str) -> None:
    plain = model_card("x", CONFIG, record=run_record(RECORD | {"sources": ["y"]}))
    card = model_card(name, CONFIG, record=run_record(RECORD | {"sources": [source]}))
    assert ModelCard(card).data.to_dict() == ModelCard(plain).data.to_dict()
    headings = [line for line in card.splitlines() if line.startswith("#")]
    assert len(headings) == len([line for line in plain.splitlines() if line.startswith("#")])
    assert card.count("\n|") == plain.count("\n|")
    (command,) = re.findall(r"hf upload .*", card)
    assert len(shlex.split(command)) == 5 + 16


def test_the_card_is_rewritten_with_the_record_until_someone_edits_it(tmp_path: Path) -> None:
    run = unfinished_run(tmp_path / "whale")
    path = run.directory / "README.md"
    assert "Training has not finished" in path.read_text()
    run.update(result=Result(**RESULT))
    assert path.read_text() == model_card("whale", CONFIG, record=run.record)
    assert "1.2500 nats" in path.read_text()
    Run.open(run.directory).update(result=None)  # as --resume with a longer budget does
    assert "Training has not finished" in path.read_text()
    path.unlink()  # as in runs of versions without cards
    run.update(result=Result(**RESULT))
    assert "1.2500 nats" in path.read_text()
    path.write_text(path.read_text().replace("# whale", "# My whale"))
    mine = path.read_text()
    run.update(result=None)
    save_checkpoint(run.directory, new_model(CONFIG), Tokenizer.named("bytes"), run.record)
    assert path.read_text() == mine
    assert not may_write_card(run.directory)


@pytest.mark.parametrize("content", [b"", b"# mine\n", b"\xff\xfe", b"<!-- minigpt writes this page -->\n"])
def test_a_readme_that_minigpt_did_not_write_is_kept(tmp_path: Path, content: bytes) -> None:
    run = unfinished_run(tmp_path / "whale")
    (run.directory / "README.md").write_bytes(content)
    run.update(result=Result(**RESULT))
    assert (run.directory / "README.md").read_bytes() == content


def test_the_result_is_saved_even_if_the_card_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = unfinished_run(tmp_path / "whale")

    write = run_module.Folder.write

    def full(folder: run_module.Folder, name: str, content: run_module.Content) -> None:
        if name == "README.md":
            raise OSError(errno.ENOSPC, "no space left on device")
        write(folder, name, content)

    monkeypatch.setattr(run_module.Folder, "write", full)
    with pytest.raises(CheckpointError, match=r"README\.md could not be written"):
        run.update(result=Result(**RESULT))
    assert json.loads((run.directory / "training.json").read_text())["result"]["step"] == 1200


def test_the_upload_command_is_that_of_the_model_card() -> None:
    page = (ROOT / "docs" / "how-to" / "export.md").read_text(encoding="utf-8")
    assert f"```\n{upload_command('NAME', 'checkpoints/NAME')}\n```" in page


def test_the_card_of_a_model_in_the_working_directory_has_the_name_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    save_checkpoint(".", new_model(), Tokenizer.named("bytes"))
    assert "\n# here\n" in Path("README.md").read_text()
