"""Importing TensorFlow checkpoints, which are written by an encoder that shares no code with the reader."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import assert_same_model, random_model
from tensorflow_checkpoints import (
    HEADER,
    Tensor,
    block,
    footer,
    integer_field,
    message_field,
    openai_tensors,
    save_checkpoint,
    table,
    varint,
    with_checksum,
    write_hparams,
    write_vocabulary,
)

from minigpt.config import GPTConfig
from minigpt.errors import CheckpointError, MinigptError
from minigpt.importers.tensorflow import open_tensorflow
from minigpt.model.gpt import GPT
from minigpt.pretrained.open_model import open_model
from minigpt.storage.huggingface import from_huggingface
from minigpt.tokenizer.tokenizer import Tokenizer

CONFIG = GPTConfig(vocab_size=259, n_positions=8, n_embd=12, n_layer=2, n_head=3, dropout=0.1)
TOKENIZER = Tokenizer.train(["the theory of the thing"], "bpe:259")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny model with a trained vocabulary in OpenAI's layout."""
    folder = tmp_path / "124M"
    save_checkpoint(folder, openai_tensors(random_model(CONFIG)))
    write_hparams(folder, CONFIG)
    write_vocabulary(folder, TOKENIZER)
    return folder


def read(folder: Path) -> GPT:
    imported = open_tensorflow(folder)
    try:
        return from_huggingface(imported.tensors, imported.config)
    finally:
        imported.tensors.close()


def test_an_imported_checkpoint_gives_the_logits_of_the_original(folder: Path) -> None:
    imported = open_tensorflow(folder)
    assert imported.config == CONFIG
    assert imported.notes == ()
    assert imported.tokenizer.fingerprint == TOKENIZER.fingerprint
    assert_same_model(from_huggingface(imported.tensors, imported.config), random_model(CONFIG))
    imported.tensors.close()


def test_a_checkpoint_may_have_several_data_files(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, openai_tensors(random_model(CONFIG)), shards=3)
    write_hparams(tmp_path, CONFIG)
    write_vocabulary(tmp_path, TOKENIZER)
    assert_same_model(read(tmp_path), random_model(CONFIG))
    (tmp_path / "model.ckpt.data-00001-of-00003").unlink()
    with pytest.raises(CheckpointError, match=r"model.ckpt.data-00001-of-00003 does not exist$"):
        read(tmp_path)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_weights_of_other_dtypes_become_float32(tmp_path: Path, dtype: Any) -> None:
    save_checkpoint(tmp_path, openai_tensors(random_model(CONFIG), dtype))
    write_hparams(tmp_path, CONFIG)
    write_vocabulary(tmp_path, TOKENIZER)
    expected = random_model(CONFIG).to(torch.float16 if dtype is np.float16 else torch.float32).to(torch.float32)
    assert_same_model(read(tmp_path), expected)


def test_training_variables_are_skipped_with_a_note(tmp_path: Path) -> None:
    weights = openai_tensors(random_model(CONFIG))
    slots = [Tensor(f"{weight.name}/{slot}", weight.value) for weight in weights for slot in ("Adam", "Adam_1")]
    others = [Tensor(name, np.array(3, np.int64)) for name in ("beta1_power", "global_step")]
    save_checkpoint(tmp_path, weights + slots + others)
    write_hparams(tmp_path, CONFIG)
    write_vocabulary(tmp_path, TOKENIZER)
    imported = open_tensorflow(tmp_path)
    imported.tensors.close()
    names = "'beta1_power', 'global_step', 'model/h0/attn/c_attn/b/Adam', …"
    assert imported.notes == (f"training variables are skipped: {2 * len(weights) + 2} ({names})",)
    assert_same_model(read(tmp_path), random_model(CONFIG))


def test_a_tensor_that_gpt2_does_not_have_is_refused(tmp_path: Path) -> None:
    """Unlike an optimizer's state, it may change what the model computes."""
    save_checkpoint(
        tmp_path, [*openai_tensors(random_model(CONFIG)), Tensor("model/h0/attn/rotary/w", np.ones(3, np.float32))]
    )
    write_hparams(tmp_path, CONFIG)
    write_vocabulary(tmp_path, TOKENIZER)
    with pytest.raises(CheckpointError, match="has an unexpected tensor 'model/h0/attn/rotary/w' for a GPT-2 of 2"):
        open_tensorflow(tmp_path)


def test_the_checkpoint_that_the_file_checkpoint_names_is_read_whatever_its_path(tmp_path: Path) -> None:
    other = random_model(CONFIG.replace(n_embd=6))
    save_checkpoint(tmp_path, openai_tensors(other), name="model-7")
    save_checkpoint(tmp_path, openai_tensors(random_model(CONFIG)), name="model-1000")
    write_hparams(tmp_path, CONFIG)
    write_vocabulary(tmp_path, TOKENIZER)
    record = tmp_path / "checkpoint"
    record.write_text('model_checkpoint_path: "/content/checkpoint/run1/model-1000"\n')
    assert_same_model(read(tmp_path), random_model(CONFIG))
    record.unlink()
    with pytest.raises(CheckpointError, match=r"has 2 checkpoints \(model-1000, model-7\), and its file"):
        open_tensorflow(tmp_path)
    (tmp_path / "model-7.index").unlink()
    assert_same_model(read(tmp_path), random_model(CONFIG))


def test_gpt2s_vocabulary_is_assumed_only_for_a_model_of_its_size(tmp_path: Path) -> None:
    config = CONFIG.replace(vocab_size=50257, n_embd=3, n_layer=1)
    save_checkpoint(tmp_path, openai_tensors(random_model(config)))
    write_hparams(tmp_path, config)
    imported = open_tensorflow(tmp_path)
    assert imported.tokenizer.name == "gpt2"
    assert imported.notes == ("no encoder.json and vocab.bpe next to it: GPT-2's vocabulary is assumed",)
    imported.tensors.close()
    (tmp_path / "encoder.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"must hold vocab.bpe, with its 50257 tokens$"):
        open_tensorflow(tmp_path)
    (tmp_path / "encoder.json").unlink()
    other = config.replace(vocab_size=50304)
    save_checkpoint(tmp_path, openai_tensors(random_model(other)))
    write_hparams(tmp_path, other)
    with pytest.raises(CheckpointError, match=r"must hold encoder.json and vocab.bpe, with its 50304 tokens$"):
        open_tensorflow(tmp_path)


def test_a_vocabulary_larger_than_the_model_is_refused_and_a_smaller_one_noted(tmp_path: Path) -> None:
    for size in (257, 264):
        config = CONFIG.replace(vocab_size=size)
        save_checkpoint(tmp_path / str(size), openai_tensors(random_model(config)))
        write_hparams(tmp_path / str(size), config)
        write_vocabulary(tmp_path / str(size), TOKENIZER)
    with pytest.raises(
        CheckpointError, match=r"has a model of 257 tokens, but its tokenizer \(bpe:259\) has 259; they do not"
    ):
        open_tensorflow(tmp_path / "257")
    imported = open_tensorflow(tmp_path / "264")
    imported.tensors.close()
    assert imported.notes == ("ids 259 to 263 have no token and are never generated",)


def test_without_hparams_the_shape_comes_from_the_tensors_and_the_number_of_heads_is_a_noted_assumption(
    tmp_path: Path,
) -> None:
    config = CONFIG.replace(n_embd=128, n_head=2, n_layer=1)
    save_checkpoint(tmp_path, openai_tensors(random_model(config)))
    write_vocabulary(tmp_path, TOKENIZER)
    imported = open_tensorflow(tmp_path)
    assert imported.config == config
    assert imported.notes == ("no hparams.json next to model.ckpt.index: 2 heads of 64 are assumed, as in every GPT-2",)
    imported.tensors.close()
    assert_same_model(read(tmp_path), random_model(config))
    for path in (tmp_path, tmp_path / "model.ckpt.index"):  # the two ways in which commands open it
        opened = open_model(path)
        opened.tensors.close()
        assert opened.config == config
    scalars = [tensor._replace(value=np.float32(1)) for tensor in openai_tensors(random_model(config))]
    for tensors in (
        openai_tensors(random_model(CONFIG)),
        openai_tensors(random_model(config))[1:],
        openai_tensors(random_model(config))[:2],
        scalars,
    ):
        save_checkpoint(tmp_path, tensors)
        with pytest.raises(
            CheckpointError, match=r"must hold hparams.json: model.ckpt.index alone does not determine the mod"
        ):
            open_tensorflow(tmp_path)


# Damage.


def replace(name: str, **entries: Any) -> Callable[[Path], None]:
    """Damages the index entry of one tensor."""

    def damage(folder: Path) -> None:
        tensors = [
            tensor._replace(false_entries=entries) if tensor.name == name else tensor
            for tensor in openai_tensors(random_model(CONFIG))
        ]
        save_checkpoint(folder, tensors)

    return damage


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: save_checkpoint(
        folder, [tensor for tensor in openai_tensors(random_model(CONFIG)) if tensor.name != name]
    )


def flip(name: str, index: int) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[index] ^= 1
        (folder / name).write_bytes(content)

    return damage


def cut(name: str, size: int) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / name, size)


def edit_hparams(**values: Any) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        settings = json.loads((folder / "hparams.json").read_text()) | values
        settings = {name: value for name, value in settings.items() if value is not None}
        (folder / "hparams.json").write_text(json.dumps(settings))

    return damage


def index(content: bytes) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / "model.ckpt.index").write_bytes(content)

    return damage


def in_blocks(first: bytes, times: int, kind: bytes = b"\0") -> bytes:
    """An index that refers to the same block several times."""
    handle = varint(0) + varint(len(first))
    body = block([(b"%05d" % i, handle) for i in range(times)])
    return with_checksum(first, kind) + with_checksum(body) + footer(handle, varint(len(first) + 5) + varint(len(body)))


WTE = "model/wte"
DATA = "model.ckpt.data-00000-of-00001"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without(WTE), r"has no tensor 'model/wte', expected of shape \(259, 12\)"),
        (replace(WTE, shape=(12, 259)), r"'model/wte' in .* has shape \(12, 259\), expected \(259, 12\)"),
        (replace(WTE, shape=(-1, 12)), r"has shape \(18446744073709551615, 12\), expected"),
        (replace(WTE, shape=(1,) * 9), "damaged or not a TensorFlow index .*has 9 dimensions"),
        (replace(WTE, dtype=3), r".*\(3\) must be one of 1 \(float32\), 2 \(float64\), 14 \(bf"),
        (replace(WTE, size=12), r"has 12 bytes from byte \d+ on, expected 12432 bytes that no other tensor uses"),
        (
            replace(WTE, start=0),
            r"from byte 0 on, expected 12432 bytes that no other tensor uses|expected \d+ bytes that no other",
        ),
        (replace(WTE, start=2**62), r"data-.* has \d+ bytes, but 4611686018427400336 bytes from byte 0"),
        (replace(WTE, shard=1), r"model.ckpt.index names data file 1 of 1, which cannot exist"),
        (replace(WTE, crc=0), r"'model/wte' in .*data-00000-of-00001 is damaged: its checksum is wrong"),
        (replace(WTE, extra=message_field(7, b"")), r"'model/wte' in .* is saved in slices, which is not supported"),
        (replace(WTE, extra=varint(1 << 3 | 2) + varint(0)), "field 1 is not an integer"),
        (replace(WTE, extra=integer_field(2, 1)), "field 2 is not a message"),
        (replace(WTE, extra=varint(9 << 3 | 3)), "a value has wire type 3"),
        (replace(WTE, extra=message_field(9, b"..")[:-1]), "a value lies outside of its message"),
        (replace(WTE, extra=b"\x80"), "an integer does not end"),
        (cut(DATA, 1000), r"data-00000-of-00001 has 1000 bytes, but \d+ bytes from byte 0 on are needed; copy"),
        (lambda folder: (folder / DATA).unlink(), "data-00000-of-00001 does not exist$"),
        (flip("model.ckpt.index", 100), r"index is damaged or not .* \(a block's checksum is wrong\); copy"),
        (flip("model.ckpt.index", -1), "it does not end as a table does"),
        (index(in_blocks(block([(b"", HEADER)]), 100)), "its blocks overlap"),
        (index(in_blocks(block([(b"", HEADER)]), 1, b"\1")), r"a block is compressed \(1\), which TensorFlow"),
        (index(in_blocks(varint(1) + varint(0) + varint(0) + bytes(4), 1)), "an entry lies outside of its block"),
        (index(table([(b"k" * 300, b"")])), "an entry lies outside of its block"),
        (index(table([(b"k", b"")])), "its header must be that of a little-endian checkpoint"),
        (index(table([])), r"has no tensor 'model/wte'"),
        (index(table([(b"", b"\x0a\xff")])), "a value lies outside|an integer does not end"),
        (lambda folder: os.truncate(folder / "model.ckpt.index", 5 << 20), "has 5242880 bytes, but an index"),
        (lambda folder: (folder / "model.ckpt.index").unlink(), "has no checkpoint, expected model.ckpt.index next to"),
        (lambda folder: (folder / "vocab.bpe").unlink(), "124M must hold vocab.bpe, with its 259 tokens$"),
        (lambda folder: (folder / "encoder.json").write_text("{"), "encoder.json"),
        (lambda folder: (folder / "hparams.json").write_text("{"), "hparams.json is not JSON"),
        (edit_hparams(n_head=None), "hparams.json has no n_head, which OpenAI's files always have$"),
        (edit_hparams(n_head=5), r"hparams.json: n_embd \(12\) must be divisible by n_head \(5\)"),
        (edit_hparams(n_head="3"), r"hparams.json: n_head \('3'\)"),
        (edit_hparams(n_layer=10**9), r"n_layer \(1000000000\) must be at most 10000"),
        (edit_hparams(n_layer=3), "has no tensor 'model/h2/ln_1/g', expected of shape"),
        (edit_hparams(n_layer=1), "has an unexpected tensor 'model/h1/attn/c_attn/b' for a GPT-2 of 1 blocks"),
    ],
)  # fmt: skip
def test_damage_gives_a_one_sentence_error(folder: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(folder)
    with pytest.raises(MinigptError, match=message) as refused:
        read(folder)
    assert "\n" not in str(refused.value)
