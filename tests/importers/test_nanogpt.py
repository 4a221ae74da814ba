"""Importing nanoGPT's checkpoints, over GPT-2's vocabulary and over characters."""

import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from builders import assert_same_model, random_model
from torch import Tensor

from minigpt.config import GPTConfig
from minigpt.errors import CheckpointError
from minigpt.generation.engine import Engine
from minigpt.generation.resolve_engine import resolve_engine
from minigpt.importers.plain_pickle import read_plain_pickle
from minigpt.pretrained.gpt2 import import_gpt2
from minigpt.pretrained.open_model import load_model, open_model
from minigpt.pretrained.unread_characters import unread_characters
from minigpt.storage.checkpoint import load_checkpoint
from minigpt.tokenizer.tokenizer import Tokenizer

TEXT = "Ein Fuß im Schnee, 1 naïve Æsche.\n"
CHARACTERS = sorted(set(TEXT))


def weights(vocab_size: int, *, c: int = 48, layers: int = 2, biased: bool = False, seed: int = 0) -> dict[str, Tensor]:
    """Random weights with nanoGPT's names, none of them zero or one, as after some training."""
    torch.manual_seed(seed)
    shapes: dict[str, tuple[int, ...]] = {"transformer.wte.weight": (vocab_size, c), "transformer.wpe.weight": (16, c)}
    for layer in range(layers):
        h = f"transformer.h.{layer}"
        shapes |= {f"{h}.ln_1.weight": (c,), f"{h}.attn.c_attn.weight": (3 * c, c), f"{h}.attn.c_proj.weight": (c, c)}
        shapes |= {f"{h}.ln_2.weight": (c,), f"{h}.mlp.c_fc.weight": (4 * c, c), f"{h}.mlp.c_proj.weight": (c, 4 * c)}
    shapes["transformer.ln_f.weight"] = (c,)
    if biased:
        names = [name for name in shapes if not name.endswith(("wte.weight", "wpe.weight"))]
        shapes |= {name.removesuffix("weight") + "bias": shapes[name][:1] for name in names}
    tensors = {name: torch.randn(shape) * 0.3 + ("ln_" in name) for name, shape in shapes.items()}
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"]
    return tensors


def nanogpt(tensors: dict[str, Tensor], ids: Tensor, heads: int = 4) -> Tensor:
    """The logits of nanoGPT's model.py: exact GELU, torch's linear layers, biases only if the weights have them."""
    w = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w.get(f"{name}.bias"), 1e-5)

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))

    x = w["wte.weight"][ids] + w["wpe.weight"][: ids.shape[1]]
    layer = 0
    while f"h.{layer}.ln_1.weight" in w:
        h = f"h.{layer}"
        q, k, v = (
            each.unflatten(-1, (heads, -1)).transpose(1, 2)
            for each in linear(norm(x, f"{h}.ln_1"), f"{h}.attn.c_attn").chunk(3, -1)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + linear(attended, f"{h}.attn.c_proj")
        x = x + linear(F.gelu(linear(norm(x, f"{h}.ln_2"), f"{h}.mlp.c_fc")), f"{h}.mlp.c_proj")
        layer += 1
    return F.linear(norm(x, "ln_f"), w["lm_head.weight"])


def save(folder: Path, tensors: dict[str, Tensor], *, prefix: str = "", **changes: Any) -> Path:
    """Writes a ckpt.pt like train.py, with optimizer state and settings."""
    vocab_size, c = tensors["transformer.wte.weight"].shape
    arguments = {
        "n_layer": sum(name.endswith("ln_1.weight") for name in tensors), "n_head": 4, "n_embd": c, "block_size": 16,
        "bias": "transformer.ln_f.bias" in tensors, "vocab_size": vocab_size, "dropout": 0.1,
    }  # fmt: skip
    state = {0: {"step": torch.tensor(3.0), "exp_avg": torch.zeros(vocab_size, c)}}
    content = {
        "model": {prefix + name: tensor for name, tensor in tensors.items()},
        "optimizer": {"state": state, "param_groups": [{"lr": 1e-3, "betas": (0.9, 0.95), "params": [0]}]},
        "model_args": arguments | changes.pop("model_args", {}),
        "iter_num": 30, "best_val_loss": torch.tensor(2.9), "config": {"dataset": "fuss", "out_dir": "out"},
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(content | changes, folder / "ckpt.pt")
    return folder / "ckpt.pt"


def save_meta(folder: Path, characters: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    itos = dict(enumerate(characters))
    meta = {"vocab_size": len(itos), "itos": itos, "stoi": {c: i for i, c in itos.items()}}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("prefix", ["", "_orig_mod."])
def test_a_checkpoint_over_characters_gives_nanogpts_logits_and_probabilities(
    tmp_path: Path, prefix: str, biased: bool
) -> None:
    tensors = weights(len(CHARACTERS), biased=biased)
    path = save(tmp_path / "out", tensors, prefix=prefix)
    save_meta(tmp_path / "out", CHARACTERS)
    model, tokenizer = (checkpoint := load_model(path, "cpu").checkpoint).model, checkpoint.tokenizer
    text = TEXT[:16]
    theirs = nanogpt(tensors, torch.tensor([[CHARACTERS.index(c) for c in text]]))
    ours = model(torch.tensor([tokenizer.encode(text)]))
    ids = [tokenizer.encode(character)[0] for character in CHARACTERS]
    torch.testing.assert_close(ours[..., ids], theirs, atol=2e-4, rtol=1e-5)
    torch.testing.assert_close(ours.softmax(-1)[..., ids], theirs.softmax(-1), atol=1e-5, rtol=1e-4)
    others = [id for id in range(tokenizer.vocab_size) if id not in ids]
    assert ours[..., others].max() < -990
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT


def test_the_exact_gelu_is_used_and_the_tanh_form_would_be_noticed(tmp_path: Path) -> None:
    tensors = weights(50257, c=8, layers=1)
    opened = load_model(save(tmp_path, tensors), "cpu")
    ids = torch.tensor([[464, 3290, 373, 1043]])
    theirs = nanogpt(tensors, ids)
    torch.testing.assert_close(opened.checkpoint.model(ids), theirs, atol=1e-5, rtol=1e-5)
    mlp = opened.checkpoint.model.blocks[0].mlp
    mlp.gelu.approximate = "tanh"
    assert (opened.checkpoint.model(ids) - theirs).abs().max() > 1e-4


def test_a_padded_vocabulary_keeps_its_embeddings_and_its_logits(tmp_path: Path) -> None:
    tensors = weights(50304, c=8, layers=1, biased=True)
    opened = load_model(save(tmp_path, tensors), "cpu")
    ids = torch.tensor([[464, 3290, 373, 1043]])
    torch.testing.assert_close(opened.checkpoint.model(ids), nanogpt(tensors, ids), atol=1e-5, rtol=1e-5)
    assert opened.checkpoint.tokenizer.vocab_size == 50257
    assert "ids 50257 to 50303 have no token and are never generated" in opened.notes


def test_meta_pkl_is_found_next_to_the_checkpoint_and_in_its_data_folder_but_not_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path / "nanoGPT" / "out", weights(len(CHARACTERS)))
    with pytest.raises(
        CheckpointError, match=r"tokens but does not say what they are; put the meta.pkl .*data/fuss, next"
    ):
        open_model(path)
    save_meta(tmp_path / "nanoGPT" / "data" / "fuss", CHARACTERS)
    imported = open_model(path)
    imported.tensors.close()
    assert f"its {len(CHARACTERS)} characters are those of the data/fuss/meta.pkl" in imported.notes
    shutil.move(tmp_path / "nanoGPT" / "out", tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path / "nanoGPT")
    with pytest.raises(CheckpointError, match=r"put the meta\.pkl of its data"):
        open_model(tmp_path / "elsewhere")
    save_meta(tmp_path / "elsewhere", CHARACTERS[::-1])
    imported = open_model(tmp_path / "elsewhere" / "ckpt.pt")
    imported.tensors.close()
    assert f"its {len(CHARACTERS)} characters are those of the meta.pkl next to it" in imported.notes


@pytest.mark.parametrize("dataset", ["../secret", "/etc", "..", 5])
def test_the_name_of_the_data_folder_cannot_lead_elsewhere(tmp_path: Path, dataset: object) -> None:
    save_meta(tmp_path / "secret", CHARACTERS)
    path = save(tmp_path / "run" / "out", weights(len(CHARACTERS)), config={"dataset": dataset})
    with pytest.raises(CheckpointError, match=r"does not say what they are"):
        open_model(path)


def test_an_import_is_saved_and_runs_on_an_engine_with_exact_gelu(tmp_path: Path) -> None:
    tensors = weights(len(CHARACTERS))
    save_meta(tmp_path / "out", CHARACTERS)
    imported = import_gpt2(save(tmp_path / "out", tensors), checkpoints=tmp_path / "to", device="cpu")
    saved = load_checkpoint(tmp_path / "to" / "out", "cpu")
    assert_same_model(saved.model, imported.checkpoint.model)
    assert saved.model.config.activation_function == "gelu"
    assert type(resolve_engine(saved.model)) is Engine


@pytest.mark.parametrize("bias", [None, 0.0, 0.01, 1.0])
@pytest.mark.parametrize("n_characters", [47, 48, 64, 2000])
def test_a_model_may_have_more_characters_than_features(tmp_path: Path, n_characters: int, bias: float | None) -> None:
    characters = [chr(0x4E00 + number) for number in range(n_characters)]
    save_meta(tmp_path, characters)
    tensors = weights(n_characters, c=48, biased=bias is not None)
    if bias is not None:
        tensors["transformer.ln_f.bias"] *= bias
        tensors["transformer.ln_f.bias"] += bias
    loaded = load_model(save(tmp_path, tensors), "cpu")
    opened, ids = loaded.checkpoint, torch.tensor([[0, 5, n_characters - 1, 9]])
    ours = opened.model(torch.tensor([opened.tokenizer.encode("".join(characters[id] for id in ids[0]))]))
    order = [opened.tokenizer.encode(character)[0] for character in characters]
    theirs = nanogpt(tensors, ids)
    is_changed = any("change the characters' logits by up to 0.0" in note for note in loaded.notes)
    assert is_changed == (n_characters > 48 and bias in (None, 0.0))
    atol = 0.03 if is_changed else 2e-4
    torch.testing.assert_close(ours[..., order].log_softmax(-1), theirs.log_softmax(-1), atol=atol, rtol=1e-5)
    if n_characters < 48 or bias == 1.0:
        torch.testing.assert_close(ours[..., order], theirs, atol=2e-4, rtol=1e-5)
    assert ours[..., :256].max() < -900


def test_characters_outside_the_vocabulary_are_named(tmp_path: Path) -> None:
    save_meta(tmp_path, CHARACTERS)
    opened = load_model(save(tmp_path, weights(len(CHARACTERS))), "cpu").checkpoint
    text = "Ein Äpfel ß 2, æsche\n日日"
    unread = unread_characters(opened.model, opened.tokenizer, text)
    assert unread == [character for character in dict.fromkeys(text) if character not in CHARACTERS]
    assert unread_characters(opened.model, opened.tokenizer, TEXT) == []
    tokenizer = Tokenizer.train([TEXT], "chars")
    trained = random_model(GPTConfig(vocab_size=tokenizer.vocab_size, n_positions=16, n_embd=8, n_layer=1, n_head=1))
    assert unread_characters(trained, tokenizer, text) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_args": {"n_head": 5}}, r"model_args in PATH: n_embd \(48\) must be divisible by n_head \(5\)"),
        ({"model_args": {"n_layer": "2"}}, r"model_args in PATH: n_layer \('2'\) must be a whole number"),
        ({"model_args": {"n_layer": ((),)}}, r"model_args in PATH: n_layer must be a number, not a tuple"),
        ({"model_args": {"n_head": 10**50}}, r"model_args in PATH: n_head \(a number of about 50 digits\) must be at"),
        ({"model_args": {"n_layer": 3}}, r"PATH has no tensor 'h.2.ln_1.weight', expected of shape \(48,\)"),
        ({"model_args": {"bias": True}}, r"PATH has no tensor 'ln_f.bias' of shape \(48,\)"),
        ({"model_args": {"vocab_size": 7}}, r"PATH has a model of 7 tokens, but 21 different characters are listed"),
        ({"model": 5}, r"PATH must hold its weights under 'model'"),
        ({"model": {"wte.weight": 5}}, r"PATH holds a int named 'wte.weight', expected only tensors"),
    ],
    ids=str,
)
def test_a_damaged_checkpoint_gives_a_one_sentence_error(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    save_meta(tmp_path, CHARACTERS)
    path = save(tmp_path, weights(21), **changes)
    with pytest.raises(CheckpointError, match="^" + message.replace("PATH", str(path))):
        load_model(path, "cpu")


def test_an_untied_head_is_refused(tmp_path: Path) -> None:
    tensors = weights(len(CHARACTERS))
    tensors["lm_head.weight"] = tensors["lm_head.weight"] + 1
    save_meta(tmp_path, CHARACTERS)
    with pytest.raises(CheckpointError, match=r"'lm_head.weight' in .* differs from 'wte.weight': the output head"):
        load_model(save(tmp_path, tensors), "cpu")


# meta.pkl


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_values_of_every_protocol_are_read(protocol: int) -> None:
    value = {"vocab_size": 3, "itos": {0: "\n", 1: "ß", 2: "漢" * 300}, "big": 2**80, "minus": -7, "same": "\n"}
    assert read_plain_pickle(pickle.dumps(value, protocol), "here") == value


class Attack:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path("/tmp/minigpt-was-attacked").touch, ())


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_would_run_code_is_refused_and_runs_nothing(tmp_path: Path, protocol: int) -> None:
    (tmp_path / "meta.pkl").write_bytes(pickle.dumps({"itos": {0: Attack()}, "stoi": {}}, protocol))
    path = save(tmp_path, weights(len(CHARACTERS)))
    with pytest.raises(CheckpointError, match=r"meta.pkl would run \S+getattr when opened, .* expected only dict"):
        open_model(path)
    assert not Path("/tmp/minigpt-was-attacked").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "meta.pkl is truncated, damaged or not a file of plain values"),
        (pickle.dumps([1]), "must have 'itos'"),
        (pickle.dumps({1}), r"holds objects that are not plain values \(EMPTY_SET\); expected only dictionaries"),
        (
            pickle.dumps({(1, 2): 3}),
            "damaged or not a file of plain values .a key of a dictionary is not a plain",
        ),
        (
            pickle.dumps({"itos": {1: "a"}}),
            "must have 'itos', a dictionary from the ids 0, 1, 2, … to their characters",
        ),
        (pickle.dumps({"itos": {0: "ab"}}), "has tokens of several characters"),
        (bytes(2**20 + 1), r"it has 1,048,577 bytes, and must have at most 1,048,576"),
        (b"\x80\x04}r\xff\xff\xff\xff.", "must have 'itos'"),  # a memo index for which pickle takes gigabytes
        (b"\x80\x04})" + b"\x85" * 500_000 + b"K\x01s.", "it has more than 262,144 opcodes"),  # crashes pickle
        (b"\x80\x04r\xff\xff\xff\xff.", "damaged or not a file of plain values"),  # memorizes nothing
    ],
)
def test_a_damaged_meta_pkl_gives_a_one_sentence_error(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "meta.pkl").write_bytes(content)
    path = save(tmp_path, weights(len(CHARACTERS)))
    with pytest.raises(CheckpointError, match=message) as refused:
        open_model(path)
    assert "\n" not in str(refused.value)
