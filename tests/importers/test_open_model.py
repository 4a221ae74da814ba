"""Opening models of every format of Hugging Face, and finding them by name or path."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import assert_same_model, new_model, random_model
from torch import Tensor
from typer.testing import CliRunner

from minigpt.cli.app import app
from minigpt.config import GPTConfig
from minigpt.errors import CheckpointError, TokenizerError
from minigpt.model.gpt import GPT
from minigpt.pretrained.gpt2 import import_gpt2
from minigpt.pretrained.imported_model import check_vocabulary
from minigpt.pretrained.open_model import describe_model, find_model, is_checkpoint, load_model, open_model
from minigpt.storage.checkpoint import load_checkpoint, save_checkpoint
from minigpt.storage.huggingface import to_huggingface
from minigpt.storage.tensors import save_tensors
from minigpt.tokenizer.tokenizer import Tokenizer

CONFIG = GPTConfig(vocab_size=257, n_positions=16, n_embd=12, n_layer=2, n_head=3)
IDS = torch.arange(16)[None] * 7


@pytest.fixture
def model() -> GPT:
    return random_model(CONFIG)


@pytest.fixture
def folder(tmp_path: Path, model: GPT) -> Path:
    """A model's folder as transformers writes it."""
    return save_checkpoint(tmp_path / "model", model, Tokenizer.named("bytes"))


def tensors_of(model: GPT) -> dict[str, Tensor]:
    return {name: tensor.contiguous() for name, tensor in to_huggingface(model).items()}


def in_safetensors(folder: Path, tensors: dict[str, Tensor]) -> None:
    save_tensors(folder / "model.safetensors", tensors)


def in_bin(folder: Path, tensors: dict[str, Tensor]) -> None:
    torch.save(tensors, folder / "pytorch_model.bin")


def in_old_bin(folder: Path, tensors: dict[str, Tensor]) -> None:
    torch.save(tensors, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)


def in_shards(folder: Path, tensors: dict[str, Tensor]) -> None:
    save_in_shards(folder, tensors, "model.safetensors", save_tensors)


def in_bin_shards(folder: Path, tensors: dict[str, Tensor]) -> None:
    save_in_shards(folder, tensors, "pytorch_model.bin", lambda path, part: torch.save(part, path))


def save_in_shards(folder: Path, tensors: dict[str, Tensor], name: str, save: Callable[..., object]) -> None:
    stem, _, ending = name.rpartition(".")
    file_of: dict[str, str] = {}
    for number in (1, 2, 3):
        part = dict(list(tensors.items())[number - 1 :: 3])
        shard = f"{stem}-0000{number}-of-00003.{ending}"
        save(folder / shard, part)
        file_of |= dict.fromkeys(part, shard)
    index = {"metadata": {"total_size": 1}, "weight_map": file_of}
    (folder / f"{name}.index.json").write_text(json.dumps(index))


FORMS = [in_safetensors, in_bin, in_old_bin, in_shards, in_bin_shards]


@pytest.mark.parametrize("prefix", ["transformer.", "", "module.transformer.", "_orig_mod.module.", "model."])
@pytest.mark.parametrize("form", FORMS)
def test_weights_in_every_format_and_version_give_the_same_logits(
    folder: Path, model: GPT, form: Callable[..., None], prefix: str
) -> None:
    (folder / "model.safetensors").unlink()
    tensors = {prefix + name.removeprefix("transformer."): tensor for name, tensor in tensors_of(model).items()}
    masks = {f"{prefix}h.0.attn.bias": torch.ones(1, 1, 16, 16).tril().bool()}
    masks |= {f"{prefix}h.0.attn.masked_bias": torch.tensor(-1e4), "lm_head.weight": tensors[f"{prefix}wte.weight"]}
    form(folder, tensors | masks)
    opened = load_model(folder, "cpu")
    assert_same_model(opened.checkpoint.model, model)
    assert opened.checkpoint.tokenizer.name == "bytes"


def test_tensors_saved_as_transposed_views_are_read_correctly(folder: Path, model: GPT) -> None:
    (folder / "model.safetensors").unlink()
    in_bin(folder, to_huggingface(model))  # matrices are transposed views, not copies
    assert_same_model(load_model(folder, "cpu").checkpoint.model, model)


@pytest.mark.parametrize("under", ["state_dict", "model", "model_state_dict"])
def test_weights_are_found_under_the_keys_of_trainers(folder: Path, model: GPT, under: str) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({under: tensors_of(model), "epoch": 3}, folder / "pytorch_model.bin")
    assert_same_model(load_model(folder, "cpu").checkpoint.model, model)


def test_a_padded_vocabulary_keeps_its_embeddings(folder: Path, model: GPT, tmp_path: Path) -> None:
    padded = new_model(CONFIG.replace(vocab_size=320))
    save_checkpoint(tmp_path / "padded", padded, Tokenizer.named("bytes"))
    imported = import_gpt2(tmp_path / "padded", checkpoints=tmp_path / "to", device="cpu")
    assert_same_model(load_checkpoint(tmp_path / "to" / "padded", "cpu").model, padded)
    assert imported.notes == ("ids 257 to 319 have no token and are never generated",)


@pytest.mark.parametrize(
    "options",
    [
        {"scale_attn_by_inverse_layer_idx": True},
        {"scale_attn_weights": False},
        {"scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False},
        {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True},
        {"activation_function": "gelu"},
        {"activation_function": "gelu_fast"},
        {"n_inner": 48},
    ],
    ids=str,
)
@pytest.mark.parametrize("form", [in_safetensors, in_old_bin])
def test_options_of_the_config_give_the_logits_that_transformers_gives(
    tmp_path: Path, options: dict[str, Any], form: Callable[..., None]
) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=257, n_positions=16, n_embd=12, n_layer=3, n_head=3, attn_implementation="eager", **options
    )
    theirs = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    Tokenizer.named("bytes").save(tmp_path / "theirs")
    (tmp_path / "theirs" / "config.json").write_text(config.to_json_string())
    form(tmp_path / "theirs", {name: tensor.detach() for name, tensor in theirs.transformer.state_dict().items()})
    opened = load_model(tmp_path / "theirs", "cpu", mapped=True)
    with torch.no_grad():
        expected = theirs(IDS).logits
        torch.testing.assert_close(opened.checkpoint.model(IDS), expected, atol=2e-5, rtol=1e-5)
    imported = import_gpt2(tmp_path / "theirs", checkpoints=tmp_path / "to", device="cpu")
    assert any("multiplied into the weights" in note for note in imported.notes) == any(
        "scale" in name for name in options
    )
    saved = load_checkpoint(tmp_path / "to" / "theirs", "cpu").model
    torch.testing.assert_close(saved(IDS), expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "shape"), [("multiple_choice_head.summary.weight", (1, 12)), ("v_head.summary.bias", (1,))]
)
def test_heads_that_do_not_predict_tokens_are_skipped_with_a_note(
    folder: Path, model: GPT, name: str, shape: tuple[int, ...]
) -> None:
    in_safetensors(folder, tensors_of(model) | {name: torch.ones(shape)})
    opened = load_model(folder / "model.safetensors", "cpu")
    assert_same_model(opened.checkpoint.model, model)
    assert opened.notes == (f"{name.partition('.')[0]} is skipped: it does not predict tokens",)


@pytest.mark.parametrize("name", ["score.weight", "classifier.weight", "qa_outputs.bias"])
def test_models_for_other_tasks_are_refused_because_of_their_head(folder: Path, model: GPT, name: str) -> None:
    in_safetensors(folder, tensors_of(model) | {name: torch.ones(2, 12)})
    with pytest.raises(CheckpointError, match=rf"predicts .* \('{name}'\), not the next token"):
        load_model(folder / "model.safetensors", "cpu")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda index: index["weight_map"].pop("transformer.wpe.weight"), "has a tensor 'transformer.wpe.weight' that"),
        (
            lambda index: index["weight_map"].update(x=index["weight_map"]["transformer.wpe.weight"]),
            "has no tensor 'x'",
        ),
        (lambda index: index.pop("weight_map"), "must have a weight_map of tensor names to files"),
    ],
)
def test_an_index_that_differs_from_its_files_is_refused_with_the_tensors_name(
    folder: Path, model: GPT, change: Callable[[Any], Any], message: str
) -> None:
    (folder / "model.safetensors").unlink()
    in_shards(folder, tensors_of(model))
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=message):
        open_model(folder)


def test_symbolic_links_to_a_cache_are_followed(folder: Path, model: GPT, tmp_path: Path) -> None:
    (folder / "model.safetensors").unlink()
    in_shards(folder, tensors_of(model))
    shutil.move(folder, tmp_path / "blobs")
    folder.mkdir()
    for path in (tmp_path / "blobs").iterdir():
        (folder / path.name).symlink_to(path)
    assert_same_model(load_model(folder, "cpu").checkpoint.model, model)


def test_an_unsupported_tokenizer_is_refused_and_not_replaced_by_gpt2s(tmp_path: Path) -> None:
    small = new_model(GPTConfig(n_positions=4, n_embd=4, n_layer=1, n_head=1))
    folder = save_checkpoint(tmp_path / "model", small, Tokenizer.named("gpt2"))
    for path in folder.iterdir():
        if path.name not in ("config.json", "model.safetensors"):
            path.unlink()
    assert load_model(folder, "cpu").checkpoint.tokenizer.name == "gpt2"
    (folder / "vocab.txt").write_text("[UNK]\n")
    with pytest.raises(TokenizerError, match=r"vocab\.txt cannot be used: it must name its end-of-text token"):
        load_model(folder, "cpu")


def test_a_checkpoint_takes_precedence_over_a_path_of_the_same_name(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder, tmp_path / "checkpoints" / "whale")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "whale").mkdir()
    assert find_model("whale", "checkpoints") == Path("checkpoints/whale")
    assert find_model("model", "checkpoints") == Path("model")
    assert find_model(None, "checkpoints") == Path("checkpoints/whale")
    with pytest.raises(CheckpointError, match=r"no model 'whole' in checkpoints; did you mean 'whale'"):
        find_model("whole", "checkpoints")
    assert is_checkpoint(Path("model"))


def test_the_error_for_a_name_on_the_hub_shows_the_command_that_imports_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("owner/tiny-gpt", "gpt2-xl"):
        with pytest.raises(CheckpointError, match=f"^no model '{name}' in checkpoints, .*`minigpt load-gpt2 {name}`"):
            find_model(name, "checkpoints")
    with pytest.raises(CheckpointError, match=r"^no model 'whale' in checkpoints; available: starter$"):
        find_model("whale", "checkpoints")
    shutil.copytree(folder, tmp_path / "owner" / "tiny-gpt")
    assert find_model("owner/tiny-gpt", "checkpoints") == Path("owner/tiny-gpt")
    monkeypatch.chdir(folder)
    with pytest.raises(CheckpointError, match=r"^no model ''"):  # and not the working directory
        find_model("", "checkpoints")


def test_a_name_that_is_too_long_gives_a_one_sentence_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"x could not be read \(file name too long\)"):
        find_model("x" * 300, tmp_path)


def test_extra_tensors_in_a_checkpoint_folder_are_noted(tmp_path: Path) -> None:
    padded = new_model(CONFIG.replace(vocab_size=320))
    folder = save_checkpoint(tmp_path / "padded", padded, Tokenizer.named("bytes"))
    in_safetensors(folder, tensors_of(padded) | {"v_head.summary.bias": torch.ones(1)})
    assert is_checkpoint(folder)
    notes = (
        "ids 257 to 319 have no token and are never generated",
        "v_head is skipped: it does not predict tokens",
    )
    assert load_model(folder, "cpu").notes == notes
    assert describe_model(folder)[2] == notes


def test_every_command_that_accepts_a_model_accepts_a_path_of_any_format(
    folder: Path, model: GPT, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.move(folder / "model.safetensors", tmp_path / "weights")
    in_old_bin(folder, tensors_of(model) | {"v_head.summary.bias": torch.ones(1)})
    (tmp_path / "text.txt").write_text("All the whales of the world. " * 40)
    note = "note: v_head is skipped: it does not predict tokens"
    for command in (
        ["generate", "a", "--model", "model", "--max-new-tokens", "2", "--seed", "1"],
        ["evaluate", "model/pytorch_model.bin", "text.txt"],
        ["info", "model"],
        ["info", "model", "--json"],
        ["train", "text.txt", "--from", "model", "--steps", "1", "--device", "cpu", "--eval-every", "1"],
    ):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, (command, done.output, done.stderr)
        assert note in done.stderr, command
    assert (tmp_path / "checkpoints" / "text" / "model.safetensors").exists()


def test_an_hdf5_file_is_tensorflows_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    with pytest.raises(CheckpointError, match=r"weights.bin is in TensorFlow's \(Keras\) format"):
        open_model(tmp_path / "weights.bin")


@pytest.mark.parametrize(
    ("rows", "note"),
    [(258, "the id 257 has no token and is never"), (259, "ids 257 to 258 have no token and are never")],
)
def test_rows_without_a_token_are_noted(rows: int, note: str) -> None:
    notes = check_vocabulary(Tokenizer.named("bytes"), GPTConfig(vocab_size=rows), "a test")
    assert notes == [f"{note} generated"]
