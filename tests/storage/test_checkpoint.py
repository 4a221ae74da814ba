"""Checkpoints: saved and loaded equal, unchanged by failed writes, found by name, and refused with a clear error."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import new_model, tokenizer_with_roles

from minigpt.config import GPTConfig
from minigpt.errors import CheckpointError, DeviceError, TokenizerError
from minigpt.model.gpt import GPT
from minigpt.storage.checkpoint import (
    find_checkpoint,
    free_name,
    load_checkpoint,
    read_config,
    save_checkpoint,
    weights_file,
)
from minigpt.storage.files import atomic_write
from minigpt.storage.tensors import TensorFile
from minigpt.tokenizer.tokenizer import Tokenizer

CONFIG = GPTConfig(vocab_size=257, n_positions=8, n_embd=12, n_layer=2, n_head=3, dropout=0.2)
BYTES = Tokenizer.named("bytes")
FILES = [
    "config.json",
    "generation_config.json",
    "merges.txt",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
]


def model(seed: int = 0) -> GPT:
    return new_model(CONFIG, seed=seed)


def files_in(folder: Path) -> list[str]:
    """All but the model card, which an edge writes."""
    return sorted(path.name for path in folder.iterdir() if path.name != "README.md")


def same_weights(left: GPT, right: GPT) -> bool:
    return all(torch.equal(tensor, right.state_dict()[name]) for name, tensor in left.state_dict().items())


def test_a_saved_checkpoint_loads_with_equal_model_tokenizer_and_record(tmp_path: Path) -> None:
    training = {"steps": 100, "corpus": "Moby Dick — the whale", "best": {"loss": 1.5}}
    saved = model()
    assert save_checkpoint(tmp_path / "runs" / "one", saved, BYTES, training) == tmp_path / "runs" / "one"
    loaded = load_checkpoint(tmp_path / "runs" / "one", "cpu")
    assert loaded.model.config == CONFIG
    assert same_weights(loaded.model, saved)
    assert not loaded.model.training
    assert loaded.tokenizer.fingerprint == BYTES.fingerprint
    assert loaded.training == training
    assert loaded.directory == tmp_path / "runs" / "one"


def test_a_loaded_model_can_be_trained(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "one", model(), BYTES)
    loaded = load_checkpoint(tmp_path / "one", "cpu").model
    loaded(torch.zeros(1, 8, dtype=torch.int64)).sum().backward()
    assert all(parameter.grad is not None for parameter in loaded.parameters())


def test_a_new_directory_has_only_the_files_of_a_model(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "one", model(), BYTES)
    assert files_in(tmp_path) == ["one"]
    assert files_in(tmp_path / "one") == FILES
    assert load_checkpoint(tmp_path / "one", "cpu").training is None


def test_all_files_name_the_same_begin_and_end_of_texts(tmp_path: Path) -> None:
    tokenizer = tokenizer_with_roles(tmp_path / "tokenizer")
    save_checkpoint(tmp_path / "one", new_model(vocab_size=tokenizer.vocab_size), tokenizer)
    for name in ("config.json", "generation_config.json"):
        values = json.loads((tmp_path / "one" / name).read_text())
        assert (values["bos_token_id"], values["eos_token_id"]) == (256, 257)


def test_every_end_of_a_text_is_saved_and_transformers_stops_at_each(tmp_path: Path) -> None:
    tokenizer = BYTES.with_end_ids([3, 9])
    save_checkpoint(tmp_path / "one", model(), tokenizer)
    assert json.loads((tmp_path / "one" / "generation_config.json").read_text())["eos_token_id"] == [256, 3, 9]
    assert load_checkpoint(tmp_path / "one", "cpu").tokenizer.end_ids == (256, 3, 9)
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "one")
    biased = {"sequence_bias": [[[9], 100.0]], "do_sample": False, "max_new_tokens": 4}
    ids = theirs.generate(torch.tensor([[1]]), attention_mask=torch.ones(1, 1), **biased)
    assert ids.tolist() == [[1, 9]]


def test_saving_over_a_run_keeps_its_other_files(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, model(0), BYTES, {"steps": 1})
    (tmp_path / "log.jsonl").write_text("{}\n")
    save_checkpoint(tmp_path, model(1), BYTES)
    assert files_in(tmp_path) == sorted([*FILES, "log.jsonl", "training.json"])
    loaded = load_checkpoint(tmp_path, "cpu")
    assert same_weights(loaded.model, model(1))
    assert loaded.training == {"steps": 1}


def test_a_tokenizer_saved_over_another_leaves_nothing_of_it(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, model(), BYTES)
    (tmp_path / "chat_template.jinja").write_text("old")
    (tmp_path / "added_tokens.json").write_text('{"<old>": 300}')
    save_checkpoint(tmp_path, model(), BYTES.with_chat_template("new"))
    found = load_checkpoint(tmp_path, "cpu").tokenizer
    assert (found.chat_template, found.fingerprint) == ("new", BYTES.fingerprint)


def test_a_model_is_saved_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    save_checkpoint(".", model(), BYTES)
    assert files_in(tmp_path / "here") == FILES
    assert files_in(tmp_path) == ["here"]


def test_new_weights_change_only_the_weights(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, model(0), BYTES)
    before = {name: (tmp_path / name).read_bytes() for name in FILES}
    name, content = weights_file(model(1), metadata={"loss": "1.25"})
    atomic_write(tmp_path / name, content)
    changed = [name for name in FILES if (tmp_path / name).read_bytes() != before[name]]
    assert changed == ["model.safetensors"]
    with TensorFile(tmp_path / "model.safetensors") as file:
        assert file.metadata == {"format": "pt", "loss": "1.25"}
    assert same_weights(load_checkpoint(tmp_path, "cpu").model, model(1))


def test_weights_saved_in_half_precision_load_as_float32(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "half", model(), BYTES, dtype=torch.bfloat16)
    assert json.loads((tmp_path / "half" / "config.json").read_text())["torch_dtype"] == "bfloat16"
    loaded = load_checkpoint(tmp_path / "half", "cpu").model
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float32}
    assert same_weights(loaded, model().bfloat16().float())
    again = load_checkpoint(tmp_path / "half", "cpu", dtype=torch.bfloat16).model
    assert {parameter.dtype for parameter in again.parameters()} == {torch.bfloat16}


def fill_disk(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(*((os, "fsync") if where == "minigpt's files" else (Tokenizer, "save")), refuse)


@pytest.mark.parametrize("where", ["minigpt's files", "the tokenizer's files"])
def test_a_full_disk_leaves_an_existing_checkpoint_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    save_checkpoint(tmp_path / "one", model(0), BYTES, {"steps": 1})
    before = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    fill_disk(monkeypatch, where)
    with pytest.raises(CheckpointError, match="no space left on device"):
        save_checkpoint(tmp_path / "one", model(1), BYTES, {"steps": 2})
    assert {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()} == before
    assert files_in(tmp_path) == ["one"]


def test_a_model_whose_context_is_too_long_to_be_loaded_again_is_not_saved(tmp_path: Path) -> None:
    long = model()
    long.config = CONFIG.replace(n_positions=12_000)  # without its causal mask
    with pytest.raises(CheckpointError, match=rf"^{tmp_path}/one is not written: n_positions .* at most 11,585 "):
        save_checkpoint(tmp_path / "one", long, BYTES)
    assert files_in(tmp_path) == []


def remove(name: str) -> Any:
    return lambda folder: (folder / name).unlink()


def replace(name: str, content: bytes) -> Any:
    return lambda folder: (folder / name).write_bytes(content)


def truncate(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 1000)


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (remove("config.json"), CheckpointError, "PATH has no config.json, so it is not a checkpoint"),
        (remove("model.safetensors"), CheckpointError, "PATH/model.safetensors does not exist"),
        (replace("tokenizer.json", b"{"), TokenizerError, "PATH/tokenizer.json cannot be used: it is damaged"),
        (replace("config.json", b"not {json"), CheckpointError, "PATH/config.json is not JSON"),
        (replace("config.json", b"{}"), CheckpointError, r"model_type \(None\) in PATH/config.json must be 'gpt2'"),
        (replace("model.safetensors", b""), CheckpointError, "PATH/model.safetensors is empty"),
        (truncate, CheckpointError, "PATH/model.safetensors is truncated, corrupted or not safetensors"),
    ],
)
def test_a_damaged_checkpoint_gives_a_one_sentence_error_with_the_file(
    tmp_path: Path, damage: Any, error: type[Exception], message: str
) -> None:
    save_checkpoint(tmp_path / "one", model(), BYTES)
    damage(tmp_path / "one")
    with pytest.raises(error, match="^" + message.replace("PATH", str(tmp_path / "one"))) as refused:
        load_checkpoint(tmp_path / "one", "cpu")
    assert "\n" not in str(refused.value)


def test_a_model_generates_text_whatever_its_training_json_holds(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "one", model(), BYTES)
    (tmp_path / "one" / "training.json").write_bytes(b"[")
    loaded = load_checkpoint(tmp_path / "one", "cpu")
    with pytest.raises(CheckpointError, match=r"training\.json is not JSON"):
        _ = loaded.record


def test_a_tokenizer_with_more_tokens_than_its_model_is_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "one", model(), BYTES)
    Tokenizer.train(["äöü"], "chars").save(tmp_path / "one")
    with pytest.raises(CheckpointError, match=f"the tokenizer in {tmp_path}/one has 260 tokens but its model only 257"):
        load_checkpoint(tmp_path / "one", "cpu")


def test_a_missing_directory_and_an_unknown_device_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"^{tmp_path}/none does not exist, so it is not a checkpoint"):
        load_checkpoint(tmp_path / "none", "cpu")
    with pytest.raises(DeviceError, match="toaster"):
        load_checkpoint(tmp_path / "none", "toaster")


def test_the_config_is_read_without_the_weights(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "one", model(), BYTES)
    (tmp_path / "one" / "model.safetensors").unlink()
    assert read_config(tmp_path / "one") == CONFIG


def make(checkpoints: Path, name: str, time: float) -> None:
    (checkpoints / name).mkdir(parents=True)
    for file in ("config.json", "model.safetensors"):
        (checkpoints / name / file).write_bytes(b"{}")
        os.utime(checkpoints / name / file, (time, time))


def test_the_newest_model_is_the_one_with_the_newest_weights(tmp_path: Path) -> None:
    make(tmp_path, "old", 1_000_000)
    make(tmp_path, "newest", 3_000_000)
    make(tmp_path, "middle", 2_000_000)
    make(tmp_path, ".newer.123.tmp", 4_000_000)  # a checkpoint that is being written
    (tmp_path / "empty").mkdir()
    assert find_checkpoint(None, tmp_path) == tmp_path / "newest"
    os.utime(tmp_path / "old" / "model.safetensors", (5_000_000, 5_000_000))
    assert find_checkpoint(None, tmp_path) == tmp_path / "old"


def test_a_model_is_found_by_name_and_by_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "checkpoints", "whale", 1)
    make(tmp_path / "elsewhere", "whale", 1)
    assert find_checkpoint("whale", tmp_path / "checkpoints") == tmp_path / "checkpoints" / "whale"
    assert find_checkpoint(str(tmp_path / "elsewhere" / "whale"), tmp_path) == tmp_path / "elsewhere" / "whale"
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert find_checkpoint("whale", tmp_path / "checkpoints") == tmp_path / "checkpoints" / "whale"
    assert find_checkpoint("./whale", tmp_path / "none") == Path("whale")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("whael", "^no model 'whael' in .*; did you mean 'whale'[?]$"),
        ("squid", "^no model 'squid' in .*; available: gpt2, whale$"),
    ],
)
@pytest.mark.usefixtures("no_shipped_models")
def test_the_error_for_an_unknown_name_lists_the_models(tmp_path: Path, name: str, message: str) -> None:
    make(tmp_path, "whale", 1)
    make(tmp_path, "gpt2", 2)
    with pytest.raises(CheckpointError, match=message):
        find_checkpoint(name, tmp_path)


@pytest.mark.parametrize("name", [None, "whale"])
@pytest.mark.usefixtures("no_shipped_models")
def test_without_any_model_the_error_says_how_to_get_one(tmp_path: Path, name: str | None) -> None:
    with pytest.raises(
        CheckpointError, match=r"^no model .*`minigpt train corpus.txt`.*`minigpt load-gpt2`$"
    ) as refused:
        find_checkpoint(name, tmp_path / "none")
    assert "\n" not in str(refused.value)


def test_free_name_adds_the_first_free_number(tmp_path: Path) -> None:
    assert free_name("moby", tmp_path / "none") == "moby"
    for name in ("moby", "moby-2", "moby-3", "moby-5"):
        (tmp_path / name).mkdir()
    assert free_name("moby", tmp_path) == "moby-4"
    assert free_name("dick", tmp_path) == "dick"
