"""The starter model: found by name or where there is no other, listed, fine-tuned, exported, and good at English."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import new_model

import minigpt
from minigpt.pretrained.open_model import load_model
from minigpt.starter import STARTER
from minigpt.storage.checkpoint import save_checkpoint
from minigpt.storage.run import read_record
from minigpt.storage.tensors import TensorFile
from minigpt.tokenizer.tokenizer import Tokenizer

FEW = ["--max-new-tokens", "4", "--seed", "1"]


def test_a_folder_without_models_generates_with_it_and_says_so(run: Any) -> None:
    first = run("generate", "Once upon a time", *FEW)
    assert first.exit_code == 0
    assert first.stdout.startswith("Once upon a time")
    assert "checkpoints holds no model, so this is starter, a small English model" in first.stderr
    assert "\nstarter · " in first.stderr
    named = run("generate", "Once upon a time", "--model", "starter", *FEW)
    assert named.stdout == first.stdout
    assert "holds no model" not in named.stderr


def test_models_of_the_user_come_first(run: Any, here: Path) -> None:
    save_checkpoint("checkpoints/mine", new_model(), Tokenizer.named("bytes"))
    assert "checkpoints/mine · " in run("generate", "x", *FEW).stderr
    assert "\nstarter · " in "\n" + run("generate", "x", "--model", "starter", *FEW).stderr
    save_checkpoint("checkpoints/starter", new_model(), Tokenizer.named("bytes"))
    assert "checkpoints/starter · " in run("generate", "x", "--model", "starter", *FEW).stderr
    assert [model["kind"] for model in json.loads(run("list", "--json").stdout)] == ["model", "model"]
    assert minigpt.load("mine").directory == Path("checkpoints/mine")


def test_a_folder_of_texts_of_that_name_does_not_hide_it(run: Any, here: Path) -> None:
    (here / "starter").mkdir()
    assert run("generate", "x", "--model", "starter", *FEW).exit_code == 0
    assert run("generate", "x", "--model", "./starter", *FEW).exit_code == 1


def test_it_is_listed_after_the_models_of_the_user(run: Any) -> None:
    alone = run("list")
    assert "starter" in alone.stdout
    assert "(comes with minigpt)" in alone.stdout
    assert "minigpt train corpus.txt" in alone.stderr
    save_checkpoint("checkpoints/mine", new_model(), Tokenizer.named("bytes"))
    assert [(model["name"], model["kind"]) for model in json.loads(run("list", "--json").stdout)] == [
        ("mine", "model"),
        ("starter", "shipped"),
    ]


def test_a_mistyped_name_is_corrected_and_it_cannot_be_removed_or_chatted_with(run: Any) -> None:
    assert "did you mean 'starter'?" in run("generate", "x", "--model", "startr").stderr
    assert "there is no run 'starter' in checkpoints" in run("rm", "starter", "--yes").stderr
    chat = run("chat")
    assert chat.exit_code == 1
    assert "starter was not trained on a chat log, so it cannot chat; use `minigpt play starter`" in chat.stderr
    assert STARTER.directory.exists()


@pytest.mark.parametrize("options", [[], ["--lora", "--lora-rank", "1"]], ids=["all weights", "an adapter"])
def test_it_is_fine_tuned_and_recorded_by_its_name(run: Any, here: Path, options: list[str]) -> None:
    short = ["--steps", "2", "--context-length", "16", "--batch-size", "2", "--eval-every", "2", "--device", "cpu"]
    done = run("train", "fox.txt", "--from", "starter", "--name", "tuned", *short, *options)
    assert done.exit_code == 0, done.stderr
    record = read_record(here / "checkpoints/tuned")
    assert record.base == "starter"
    assert record.result is not None
    assert "fine-tuned from" in (info := run("info", "tuned").stdout)
    assert str(STARTER.directory) not in info
    assert run("generate", "the quick", "--model", "tuned", *FEW).exit_code == 0
    assert run("train", "--resume", "--name", "tuned", "--steps", "3").exit_code == 0


def test_an_adapter_finds_it_where_minigpt_is_installed_elsewhere(run: Any, here: Path) -> None:
    short = ["--steps", "1", "--context-length", "16", "--batch-size", "2", "--device", "cpu"]
    assert (
        run("train", "fox.txt", "--from", "starter", "--lora", "--lora-rank", "1", "--name", "a", *short).exit_code == 0
    )
    config = here / "checkpoints/a/adapter_config.json"
    entries = json.loads(config.read_text())
    entries["base_model_name_or_path"] = "/elsewhere/minigpt/starter/starter"
    config.write_text(json.dumps(entries))
    assert run("generate", "x", "--model", "a", *FEW).exit_code == 0


def test_it_is_exported_under_its_name(run: Any, here: Path) -> None:
    done = run("export", "starter", "--to", "html", "--yes")
    assert done.exit_code == 0, done.stderr
    assert (here / "starter.html").exists()


def test_it_predicts_english() -> None:
    text = (
        "When the rain had stopped, the old man took his hat from the table and went out to look for his daughter, who "
        "had not come home. He walked slowly along the wet road, and spoke to everyone whom he met."
    )
    checkpoint = load_model(STARTER.directory, "cpu").checkpoint
    ids = torch.tensor([[checkpoint.tokenizer.end_of_text, *checkpoint.tokenizer.encode(text)]])
    with torch.no_grad():
        nats = torch.nn.functional.cross_entropy(checkpoint.model(ids)[0, :-1], ids[0, 1:], reduction="sum")
    bits_per_byte = float(nats) / torch.log(torch.tensor(2.0)).item() / len(text.encode())
    assert 0.5 < bits_per_byte < 1.75


def test_it_is_small_and_in_bfloat16_and_names_no_folder() -> None:
    files = [path for path in STARTER.directory.iterdir() if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 24_000_000
    assert {path.name for path in files} >= {"config.json", "model.safetensors", "tokenizer.json", "README.md"}
    with TensorFile(STARTER.directory / "model.safetensors") as tensors:
        assert {tensors[name].dtype for name in tensors} == {torch.bfloat16}
    record = read_record(STARTER.directory)
    assert record.result is not None
    assert all("/" not in source for source in record.sources)
