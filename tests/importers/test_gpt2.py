"""Importing a GPT-2 from files as a checkpoint, and the comparison with published outputs."""

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import assert_same_model, new_model

from minigpt.config import PRESETS, GPTConfig
from minigpt.errors import CheckpointError, TokenizerError
from minigpt.model.gpt import GPT
from minigpt.pretrained import gpt2 as verification
from minigpt.pretrained.gpt2 import _name_of, import_gpt2, load_gpt2, verify_gpt2
from minigpt.storage.checkpoint import load_checkpoint, save_checkpoint
from minigpt.storage.huggingface import to_huggingface
from minigpt.storage.tensors import TensorFile, save_tensors
from minigpt.tokenizer.tokenizer import Tokenizer

CONFIG = GPTConfig(vocab_size=257, n_positions=8, n_embd=12, n_layer=2, n_head=3)


def model(config: GPTConfig = CONFIG, seed: int = 0) -> GPT:
    return new_model(config, seed=seed)


def has_weights_of(one: GPT, other: GPT) -> bool:
    """Whether two models have the same shape and bit for bit the same weights, whatever their dropout.

    Their logits may still differ in the last bits: on some processors matrix kernels take different paths for mapped
    and for allocated memory.
    """
    weights = one.state_dict()
    equal = (torch.equal(weights[name], value) for name, value in other.state_dict().items())
    return one.config.replace(dropout=other.config.dropout) == other.config and all(equal)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder as transformers writes it, with a tiny model over bytes."""
    return save_checkpoint(tmp_path / "source" / "tiny", model(), Tokenizer.named("bytes"))


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_is_imported_under_its_name_and_gives_the_same_logits(tmp_path: Path, source: Path) -> None:
    imported = import_gpt2(source, checkpoints=tmp_path / "to", device="cpu")
    assert imported.checkpoint.directory == tmp_path / "to" / "tiny"
    assert imported.source == str(source)
    assert imported.notes == ()
    assert has_weights_of(imported.checkpoint.model, model())
    saved = load_checkpoint(tmp_path / "to" / "tiny", "cpu")
    assert_same_model(saved.model, model())
    assert saved.tokenizer.name == "bytes"
    assert saved.training is None


def test_a_source_with_a_name_is_imported_under_that_name(tmp_path: Path, source: Path) -> None:
    assert load_gpt2("gpt2", source=source, checkpoints=tmp_path, device="cpu").directory == tmp_path / "gpt2"
    assert load_gpt2(source=source, name="mine", checkpoints=tmp_path, device="cpu").directory == tmp_path / "mine"
    assert load_gpt2(source=source, checkpoints=tmp_path, device="cpu").directory == tmp_path / "tiny"


def test_a_generic_file_is_named_after_its_folder_unless_that_has_no_name() -> None:
    assert _name_of(Path("/fox/model.gguf")) == "fox"
    assert _name_of(Path("/model.gguf")) == "model"


@pytest.mark.parametrize("name", ["../outside", ".."])
def test_a_name_cannot_lead_out_of_the_checkpoints_folder(tmp_path: Path, source: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match=r"^name \(.*\) must be the name of a folder, not a path"):
        load_gpt2(source, name=name, checkpoints=tmp_path / "to", device="cpu")
    assert not (tmp_path / "to").exists()


def test_a_file_is_imported_with_the_config_next_to_it(tmp_path: Path, source: Path) -> None:
    imported = import_gpt2(source / "model.safetensors", checkpoints=tmp_path / "to", device="cpu")
    assert imported.checkpoint.directory == tmp_path / "to" / "tiny"
    assert imported.notes == ()
    assert has_weights_of(imported.checkpoint.model, model())


def test_a_single_file_determines_the_shape_and_the_number_of_heads_is_a_noted_assumption(tmp_path: Path) -> None:
    alone = model(GPTConfig(n_positions=8, n_embd=128, n_layer=1, n_head=2))
    save_tensors(tmp_path / "fine-tune.safetensors", to_huggingface(alone))
    imported = import_gpt2(tmp_path / "fine-tune.safetensors", checkpoints=tmp_path / "to", device="cpu")
    assert imported.notes == (
        "no config.json next to fine-tune.safetensors: 2 heads of 64 are assumed, as in every GPT-2",
        "no tokenizer next to the weights: GPT-2's vocabulary is assumed",
    )
    assert imported.checkpoint.directory == tmp_path / "to" / "fine-tune"
    assert imported.checkpoint.tokenizer.name == "gpt2"
    assert has_weights_of(imported.checkpoint.model, alone)


def test_an_import_of_half_precision_is_saved_as_float32(tmp_path: Path) -> None:
    half = save_checkpoint(tmp_path / "half", model(), Tokenizer.named("bytes"), dtype=torch.float16)
    load_gpt2(half, checkpoints=tmp_path / "to", device="cpu")
    with TensorFile(tmp_path / "to" / "half" / "model.safetensors") as file:
        assert file.read("transformer.ln_f.weight").dtype == torch.float32
    assert json.loads((tmp_path / "to" / "half" / "config.json").read_text())["torch_dtype"] == "float32"


def test_the_card_shows_the_notes_on_the_import_and_no_path(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = json.loads((source / "config.json").read_text()) | {"scale_attn_weights": False}
    (source / "config.json").write_text(json.dumps(values))
    monkeypatch.chdir(tmp_path)
    load_gpt2("source/tiny", checkpoints="to", device="cpu")
    card = Path("to/tiny/README.md").read_text()
    assert "imported by minigpt from `tiny`. Its weights are the same, in float32. Notes on the import:" in card
    assert "is multiplied into the weights of the queries" in card
    assert "source/tiny" not in card


def test_two_models_are_refused(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(source, tmp_path / "half")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=r"^half and .*/source/tiny are two models.*--name"):
        load_gpt2("half", source=source, checkpoints="to", device="cpu")


@pytest.mark.parametrize("given", [{"model": ""}, {"source": ""}])
def test_an_empty_name_is_not_the_working_directory(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, str]
) -> None:
    monkeypatch.chdir(source)
    with pytest.raises(CheckpointError, match=r"^model \(''\) must be gpt2, "):
        import_gpt2(**given, checkpoints=tmp_path / "to")


def test_a_pipe_is_refused_without_waiting_for_its_writer(tmp_path: Path, source: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    for path in (tmp_path / "model.safetensors", Path("/dev/null")):
        with pytest.raises(CheckpointError, match=r"it is a pipe or a device, not a regular file\); give a folder"):
            load_gpt2(path, checkpoints=tmp_path / "to", device="cpu")


def test_every_end_of_a_text_is_imported_with_a_note(tmp_path: Path, source: Path) -> None:
    before = load_gpt2(source, checkpoints=tmp_path / "before", device="cpu").directory
    (source / "generation_config.json").write_text('{"eos_token_id": [256, 9]}')
    imported = import_gpt2(source, checkpoints=tmp_path / "to", device="cpu")
    assert imported.notes == ("a generated text ends at any of these tokens: 256 (<|endoftext|>), 9 (␉)",)
    assert imported.checkpoint.tokenizer.end_ids == (256, 9)
    saved = imported.checkpoint.directory
    assert json.loads((saved / "generation_config.json").read_text())["eos_token_id"] == [256, 9]
    assert load_checkpoint(saved, "cpu").tokenizer.end_ids == (256, 9)
    assert load_gpt2(source, checkpoints=tmp_path / "to", device="cpu").directory == saved
    with pytest.raises(CheckpointError, match="holds something else"):  # an import that stops at one of them
        load_gpt2(source, checkpoints=before.parent, device="cpu")


def test_an_identical_import_is_kept_unchanged(tmp_path: Path, source: Path) -> None:
    first = load_gpt2(source, checkpoints=tmp_path / "to", device="cpu").directory
    time = (first / "model.safetensors").stat().st_mtime_ns
    assert load_gpt2(source, checkpoints=tmp_path / "to", device="cpu").directory == first
    assert (first / "model.safetensors").stat().st_mtime_ns == time


@pytest.mark.parametrize(
    "other",
    [
        model(seed=1),
        model(CONFIG.replace(n_positions=9)),
        model(CONFIG.replace(dropout=0.5)),
    ],
    ids=["weights", "shape", "dropout"],
)
def test_another_model_under_the_name_is_never_replaced(tmp_path: Path, source: Path, other: GPT) -> None:
    save_checkpoint(tmp_path / "to" / "tiny", other, Tokenizer.named("bytes"))
    before = everything_in(tmp_path / "to")
    with pytest.raises(CheckpointError, match=f"^{tmp_path}/to/tiny holds something else.*another --name$"):
        load_gpt2(source, checkpoints=tmp_path / "to", device="cpu")
    assert everything_in(tmp_path / "to") == before


def test_a_damaged_import_does_not_count_as_identical(tmp_path: Path, source: Path) -> None:
    directory = load_gpt2(source, checkpoints=tmp_path / "to", device="cpu").directory
    os.truncate(directory / "model.safetensors", 1000)
    with pytest.raises(CheckpointError, match="holds something else; remove it or choose another --name"):
        load_gpt2(source, checkpoints=tmp_path / "to", device="cpu")


def test_a_training_run_is_never_replaced_not_even_by_the_same_weights(tmp_path: Path, source: Path) -> None:
    save_checkpoint(tmp_path / "to" / "tiny", model(), Tokenizer.named("bytes"), {"steps": 5})
    before = everything_in(tmp_path / "to")
    with pytest.raises(CheckpointError, match=f"^{tmp_path}/to/tiny is a training run.*another --name$"):
        load_gpt2(source, checkpoints=tmp_path / "to", device="cpu")
    assert everything_in(tmp_path / "to") == before


def test_a_full_disk_leaves_no_partial_import(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(CheckpointError, match=rf"^{tmp_path}/to/tiny could not be written \(no space left on device"):
        load_gpt2(source, checkpoints=tmp_path / "to", device="cpu")
    assert list((tmp_path / "to").iterdir()) == []


def config(**changes: Any) -> Any:
    def damage(folder: Path) -> None:
        values = json.loads((folder / "config.json").read_text()) | changes
        (folder / "config.json").write_text(json.dumps(values))

    return damage


def truncate(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 3000)


def instead_of_weights(name: str) -> Any:
    return lambda folder: (folder / "model.safetensors").rename(folder / name)


def not_a_number(folder: Path) -> None:
    with TensorFile(folder / "model.safetensors") as file:
        tensors = {name: file.read(name) for name in file.shapes}
    tensors["transformer.h.1.mlp.c_fc.bias"][:2] = torch.tensor([torch.nan, -torch.inf])
    save_tensors(folder / "model.safetensors", tensors, {"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (config(model_type="llama"), r"model_type \('llama'\) in PATH/config.json must be 'gpt2'"),
        (config(n_layer=3), r"PATH/model.safetensors has no tensor 'h.2.ln_1.weight', expected of shape \(12,\)"),
        (config(vocab_size=200), r"PATH has a model of 200 tokens, but its tokenizer \(bytes\) has 257"),
        (truncate, "PATH/model.safetensors is truncated, corrupted or not safetensors"),
        (lambda folder: (folder / "config.json").unlink(), "PATH has no config.json; put it next to model.safetensors"),
        (instead_of_weights("model.safetensors.index.json"), "PATH/model.safetensors.index.json is not JSON"),
        (instead_of_weights("weights"), "PATH holds no model .*config.json.*; give a folder of"),
        (instead_of_weights("tf_model.h5"), r"PATH/tf_model.h5 is in TensorFlow's \(Keras\) format, .* from_tf=True"),
        (instead_of_weights("flax_model.msgpack"), "PATH/flax_model.msgpack is in Flax's format, .* from_flax=True"),
        (not_a_number, r"PATH has weights that are NaN .* diverged: blocks.1.mlp.up_proj.bias \(2 of its 48 values"),
        (shutil.rmtree, "PATH does not exist; give a folder of Hugging Face's, nanoGPT's or OpenAI's"),
    ],
)
def test_wrong_input_gives_a_one_sentence_error_and_writes_nothing(
    tmp_path: Path, source: Path, damage: Any, message: str
) -> None:
    damage(source)
    with pytest.raises(CheckpointError, match="^" + message.replace("PATH", str(source))) as refused:
        load_gpt2(source, checkpoints=tmp_path / "to", device="cpu")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "to").exists()


def test_a_source_that_is_missing_or_of_an_unsupported_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=f"^{tmp_path}/none does not exist; give a folder of Hugging Face's, nano"
    ):
        load_gpt2("gpt2", source=tmp_path / "none", checkpoints=tmp_path)
    (tmp_path / "model.txt").write_text("Call me Ishmael. Some years ago")
    with pytest.raises(CheckpointError, match=f"^{tmp_path}/model.txt has no supported format; give a fold"):
        load_gpt2(tmp_path / "model.txt", checkpoints=tmp_path)
    with pytest.raises(
        CheckpointError, match=r"^revision \('v1'\) needs a model on the hub, but .*/model.txt is a path"
    ):
        load_gpt2(tmp_path / "model.txt", revision="v1", checkpoints=tmp_path)


def test_a_model_without_tokenizer_and_not_of_gpt2s_size_is_refused(tmp_path: Path, source: Path) -> None:
    for path in source.glob("*"):
        if path.name not in ("config.json", "model.safetensors"):
            path.unlink()
    with pytest.raises(CheckpointError, match=r"has no tokenizer, and its model has 257 tokens, not GPT-2's 50257"):
        load_gpt2(source, checkpoints=tmp_path)


def test_an_unsupported_tokenizer_is_refused_rather_than_replaced(tmp_path: Path, source: Path) -> None:
    values = json.loads((source / "tokenizer.json").read_text())
    values["model"]["type"] = "Other"
    (source / "tokenizer.json").write_text(json.dumps(values))
    with pytest.raises(TokenizerError, match="'Other'"):
        load_gpt2(source, checkpoints=tmp_path)


def test_the_tokenizer_file_of_the_published_gpt2_is_recognized(tmp_path: Path) -> None:
    """It is older than the option `use_regex` and does not have it."""
    small = GPTConfig(n_positions=8, n_embd=2, n_layer=1, n_head=1)
    folder = save_checkpoint(tmp_path / "small", model(small), Tokenizer.named("gpt2"))
    values = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    values["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    (folder / "tokenizer.json").write_text(json.dumps(values), encoding="utf-8")
    assert load_gpt2(folder, checkpoints=tmp_path / "to", device="cpu").tokenizer.name == "gpt2"


def test_the_published_ids_decode_to_the_published_texts() -> None:
    tokenizer = Tokenizer.named("gpt2")
    assert tokenizer.encode("One two three four") == list(verification._COUNTING)
    assert tokenizer.encode(" five") == [verification._FIVE]
    (dog, _), (end, first_time) = verification._GREEDY
    assert tokenizer.decode(dog) == "The dog"
    assert end == (tokenizer.end_of_text,)
    assert tokenizer.decode(first_time) == "\nThe first time I saw the new version of"


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> GPT:
    """A small model that replaces the 124M one; its own outputs replace the published ones."""
    small = GPTConfig(n_positions=32, n_embd=8, n_layer=2, n_head=2, dropout=0.1)
    monkeypatch.setattr(verification, "PRESETS", PRESETS | {"gpt2": small.replace(dropout=0.0)})
    torch.manual_seed(3)
    stand_in = GPT(small).eval()
    with torch.no_grad():
        for parameter in stand_in.parameters():
            parameter.normal_()
        ids = torch.tensor([verification._COUNTING])
        logits = stand_in(ids)[0, -1]
        published = []
        for prompt, continuation in verification._GREEDY:
            ids = torch.tensor([prompt])
            for _ in continuation:
                ids = torch.cat([ids, stand_in(ids)[:, -1:].argmax(-1)], dim=1)
            published.append((prompt, tuple(ids[0, len(prompt) :].tolist())))
    monkeypatch.setattr(verification, "_FIVE", int(logits.argmax()))
    monkeypatch.setattr(verification, "_FIVE_LOGIT", float(logits.max()))
    monkeypatch.setattr(verification, "_GREEDY", tuple(published))
    return stand_in


def test_an_import_is_compared_with_the_published_outputs_and_every_difference_noticed(
    tmp_path: Path, stand_in: GPT, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(tmp_path / "real", stand_in, Tokenizer.named("gpt2"))
    report = import_gpt2(tmp_path / "real", checkpoints=tmp_path / "to", device="cpu").verification
    assert report.status == "verified"
    assert report.details[1].endswith("the first 18 of 18 tokens as published")
    assert verify_gpt2(model()).status == "unknown"  # another shape
    prompt, continuation = verification._GREEDY[1]
    other = (*continuation[:4], continuation[4] + 1, *continuation[5:])
    for name, value in {
        "_FIVE_LOGIT": verification._FIVE_LOGIT + 0.01,
        "_FIVE": verification._FIVE - 1,
        "_GREEDY": (verification._GREEDY[0], (prompt, other)),
    }.items():
        with monkeypatch.context() as patch:
            patch.setattr(verification, name, value)
            report = verify_gpt2(stand_in)
        assert report.status == "differs", name
    assert report.details[2] == "greedy after [50256]: the first 4 of 10 tokens as published"


@pytest.mark.slow
def test_random_weights_of_the_124m_shape_do_not_give_the_published_outputs() -> None:
    report = verify_gpt2(model(PRESETS["gpt2"]))
    assert report.status == "differs"
    assert "published: 1936, -69.4948" in report.details[0]
