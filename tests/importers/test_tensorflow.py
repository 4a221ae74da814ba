"""OpenAI's checkpoints, written by an encoder of the format that shares nothing with the reader."""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.config import GPTConfig
from minigpt.errors import CheckpointError, MinigptError
from minigpt.importers.crc32c import crc32c, unmask
from minigpt.importers.open_model import open_model
from minigpt.importers.tensorflow import open_tensorflow
from minigpt.model.gpt import GPT
from minigpt.storage.huggingface import from_huggingface, to_huggingface
from minigpt.tokenizer.tokenizer import Tokenizer
from minigpt.tokenizer.vocabulary import bytes_to_unicode

CONFIG = GPTConfig(vocab_size=259, n_positions=8, n_embd=12, n_layer=2, n_head=3, dropout=0.1)
IDS = torch.arange(8)[None]
TOKENIZER = Tokenizer.train(["the theory of the thing"], "bpe:259")

# The checksum, a byte at a time, and as TensorFlow keeps it.


def remainder(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


REMAINDERS = [remainder(byte) for byte in range(256)]


def checksum(data: bytes) -> int:
    register = 0xFFFFFFFF
    for byte in data:
        register = register >> 8 ^ REMAINDERS[(register ^ byte) & 0xFF]
    return register ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    crc = checksum(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


# Protocol buffers.


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    groups = [value >> shift & 0x7F for shift in range(0, max(value.bit_length(), 1), 7)]
    return bytes([group | 0x80 for group in groups[:-1]] + groups[-1:])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value) if value else b""  # a default is not written


def message(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


class Tensor(NamedTuple):
    """A tensor in a data file, with what an index says of it where that is to be a lie."""

    name: str
    value: np.ndarray[Any, Any]
    lies: dict[str, Any] = {}  # noqa: RUF012 - never written to


DTYPES = {"float32": 1, "float64": 2, "int64": 9, "float16": 19}


def entry(tensor: Tensor, shard: int, start: int) -> bytes:
    content = tensor.value.tobytes()
    said = {
        "dtype": DTYPES[tensor.value.dtype.name],
        "shape": tensor.value.shape,
        "shard": shard,
        "start": start,
        "size": len(content),
        "crc": masked(content),
        "more": b"",
    } | tensor.lies
    shape = b"".join(message(2, number(1, size)) for size in said["shape"])
    body = number(1, said["dtype"]) + message(2, shape) + number(3, said["shard"]) + number(4, said["start"])
    return body + number(5, said["size"]) + varint(6 << 3 | 5) + struct.pack("<I", said["crc"]) + said["more"]


# LevelDB's tables.


def block(entries: list[tuple[bytes, bytes]]) -> bytes:
    content, restarts, last = b"", [], b""
    for place, (key, value) in enumerate(entries):
        if place % 16 == 0:
            restarts.append(len(content))
            last = b""
        shared = next((i for i, pair in enumerate(zip(last, key, strict=False)) if pair[0] != pair[1]), len(last))
        content += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    return content + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def sealed(body: bytes, kind: bytes = b"\0") -> bytes:
    return body + kind + struct.pack("<I", masked(body + kind))


def footer(metaindex: bytes, index: bytes) -> bytes:
    return (metaindex + index).ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


def table(entries: list[tuple[bytes, bytes]], block_size: int = 1024) -> bytes:
    content, index = b"", []

    def add(entries: list[tuple[bytes, bytes]]) -> bytes:
        nonlocal content
        body = block(entries)
        handle = varint(len(content)) + varint(len(body))
        content += sealed(body)
        return handle

    waiting: list[tuple[bytes, bytes]] = []
    for pair in entries:
        waiting.append(pair)
        if sum(len(key) + len(value) for key, value in waiting) > block_size:
            index.append((waiting[-1][0], add(waiting)))
            waiting = []
    if waiting:
        index.append((waiting[-1][0], add(waiting)))
    metaindex = add([])
    last = add(index)
    return content + footer(metaindex, last)


HEADER = number(1, 1) + message(3, number(1, 1))


def save(
    folder: Path, tensors: list[Tensor], *, name: str = "model.ckpt", shards: int = 1, header: bytes | None = None
) -> None:
    """The files that TensorFlow's Saver leaves."""
    folder.mkdir(parents=True, exist_ok=True)
    data = [b""] * shards
    index = [(b"", number(1, shards) + message(3, number(1, 1)) if header is None else header)]
    for place, tensor in enumerate(sorted(tensors, key=lambda tensor: tensor.name.encode())):
        shard = place % shards
        index.append((tensor.name.encode(), entry(tensor, shard, len(data[shard]))))
        data[shard] += tensor.value.tobytes()
    for shard, content in enumerate(data):
        (folder / f"{name}.data-{shard:05d}-of-{shards:05d}").write_bytes(content)
    (folder / f"{name}.index").write_bytes(table(index))
    (folder / "checkpoint").write_text(f'model_checkpoint_path: "{name}"\nall_model_checkpoint_paths: "{name}"\n')


# GPT-2 in that layout.


def model(config: GPTConfig = CONFIG) -> GPT:
    torch.manual_seed(0)
    built = GPT(config).eval()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.normal_(0, 0.3)
    return built


def openai_tensors(gpt: GPT, dtype: Any = np.float32) -> list[Tensor]:
    tensors = []
    for name, tensor in to_huggingface(gpt).items():
        _, *path, kind = name.split(".")
        kind = "b" if kind == "bias" else "g" if path[-1].startswith("ln_") else "w"
        if path[0] == "h":
            path = [f"h{path[1]}", *path[2:]]
        value = np.ascontiguousarray(tensor.detach().numpy()).astype(dtype)
        if path[-1] in ("wte", "wpe"):
            tensors.append(Tensor("/".join(["model", *path]), value))
        else:  # a convolution of width 1
            tensors.append(Tensor("/".join(["model", *path, kind]), value[None] if kind == "w" else value))
    return tensors


def hparams(folder: Path, config: GPTConfig = CONFIG) -> None:
    names = {
        "n_vocab": "vocab_size",
        "n_ctx": "n_positions",
        "n_embd": "n_embd",
        "n_head": "n_head",
        "n_layer": "n_layer",
    }
    (folder / "hparams.json").write_text(json.dumps({theirs: getattr(config, ours) for theirs, ours in names.items()}))


def vocabulary(folder: Path, tokenizer: Tokenizer = TOKENIZER) -> None:
    words = {bytes_to_unicode(tokenizer.token_bytes(id)): id for id in range(tokenizer.end_of_text)}
    (folder / "encoder.json").write_text(json.dumps(words | {"<|endoftext|>": tokenizer.end_of_text}))
    lines = [f"{bytes_to_unicode(left)} {bytes_to_unicode(right)}" for left, right in tokenizer.merges]
    (folder / "vocab.bpe").write_text("\n".join(["#version: 0.2", *lines, ""]), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny model over a trained vocabulary, as OpenAI would have published it."""
    folder = tmp_path / "124M"
    save(folder, openai_tensors(model()))
    hparams(folder)
    vocabulary(folder)
    return folder


def read(folder: Path) -> GPT:
    imported = open_tensorflow(folder)
    try:
        return from_huggingface(imported.tensors, imported.config)
    finally:
        imported.tensors.close()


def test_a_checkpoint_of_openais_is_the_model_it_was_made_of(folder: Path) -> None:
    imported = open_tensorflow(folder)
    assert imported.config == CONFIG
    assert imported.notes == ()
    assert imported.tokenizer.fingerprint == TOKENIZER.fingerprint
    assert torch.equal(from_huggingface(imported.tensors, imported.config)(IDS), model()(IDS))
    imported.tensors.close()


def test_a_tensor_read_is_not_overwritten_by_one_borrowed(folder: Path) -> None:
    tensors = open_tensorflow(folder).tensors
    first, second = tensors.read("h.0.mlp.c_fc.weight"), tensors.read("h.1.mlp.c_fc.weight", reuse_buffer=True)
    stored = to_huggingface(model())
    assert torch.equal(first, stored["transformer.h.0.mlp.c_fc.weight"])
    assert torch.equal(second, stored["transformer.h.1.mlp.c_fc.weight"])
    assert tensors.shapes["h.0.mlp.c_fc.weight"] == (12, 48)
    assert tensors.map("wte.weight", torch.float32) is None
    tensors.close()


def test_several_data_files_are_one_model(tmp_path: Path) -> None:
    save(tmp_path, openai_tensors(model()), shards=3)
    hparams(tmp_path)
    vocabulary(tmp_path)
    assert torch.equal(read(tmp_path)(IDS), model()(IDS))
    (tmp_path / "model.ckpt.data-00001-of-00003").unlink()
    with pytest.raises(CheckpointError, match=r"model.ckpt.data-00001-of-00003 does not exist$"):
        read(tmp_path)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_weights_of_other_dtypes_become_float32(tmp_path: Path, dtype: Any) -> None:
    save(tmp_path, openai_tensors(model(), dtype))
    hparams(tmp_path)
    vocabulary(tmp_path)
    expected = model().to(torch.float16 if dtype is np.float16 else torch.float32).to(torch.float32)
    assert torch.equal(read(tmp_path)(IDS), expected(IDS))


def test_what_an_optimizer_kept_is_left_out_and_said(tmp_path: Path) -> None:
    weights = openai_tensors(model())
    slots = [Tensor(f"{weight.name}/{slot}", weight.value) for weight in weights for slot in ("Adam", "Adam_1")]
    others = [Tensor(name, np.array(3, np.int64)) for name in ("beta1_power", "global_step")]
    save(tmp_path, weights + slots + others)
    hparams(tmp_path)
    vocabulary(tmp_path)
    imported = open_tensorflow(tmp_path)
    imported.tensors.close()
    left_out = "'beta1_power', 'global_step', 'model/h0/attn/c_attn/b/Adam', …"
    assert imported.notes == (f"training variables are skipped: {2 * len(weights) + 2} ({left_out})",)
    assert torch.equal(read(tmp_path)(IDS), model()(IDS))


def test_a_tensor_that_gpt2_has_not_is_refused(tmp_path: Path) -> None:
    """It may change what the model does, unlike an optimizer's state."""
    save(tmp_path, [*openai_tensors(model()), Tensor("model/h0/attn/rotary/w", np.ones(3, np.float32))])
    hparams(tmp_path)
    vocabulary(tmp_path)
    with pytest.raises(CheckpointError, match="has an unexpected tensor 'model/h0/attn/rotary/w' for a GPT-2 of 2"):
        open_tensorflow(tmp_path)


def test_the_latest_checkpoint_is_read_wherever_it_was_trained(tmp_path: Path) -> None:
    other = model(CONFIG.replace(n_embd=6))
    save(tmp_path, openai_tensors(other), name="model-7")
    save(tmp_path, openai_tensors(model()), name="model-1000")
    hparams(tmp_path)
    vocabulary(tmp_path)
    record = tmp_path / "checkpoint"
    record.write_text('model_checkpoint_path: "/content/checkpoint/run1/model-1000"\n')
    assert torch.equal(read(tmp_path)(IDS), model()(IDS))
    record.unlink()
    with pytest.raises(CheckpointError, match=r"has 2 checkpoints \(model-1000, model-7\), and its file"):
        open_tensorflow(tmp_path)
    (tmp_path / "model-7.index").unlink()
    assert torch.equal(read(tmp_path)(IDS), model()(IDS))


def test_without_its_vocabulary_only_gpt2s_own_size_is_assumed_to_be_gpt2(tmp_path: Path) -> None:
    config = CONFIG.replace(vocab_size=50257, n_embd=3, n_layer=1)
    save(tmp_path, openai_tensors(model(config)))
    hparams(tmp_path, config)
    imported = open_tensorflow(tmp_path)
    assert imported.tokenizer.name == "gpt2"
    assert imported.notes == ("no encoder.json and vocab.bpe beside it: GPT-2's vocabulary is assumed",)
    imported.tensors.close()
    (tmp_path / "encoder.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"must hold vocab.bpe, with its 50257 tokens$"):
        open_tensorflow(tmp_path)
    (tmp_path / "encoder.json").unlink()
    other = config.replace(vocab_size=50304)
    save(tmp_path, openai_tensors(model(other)))
    hparams(tmp_path, other)
    with pytest.raises(CheckpointError, match=r"must hold encoder.json and vocab.bpe, with its 50304 tokens$"):
        open_tensorflow(tmp_path)


def test_a_vocabulary_that_is_larger_or_smaller_than_the_model_is_refused_or_said(tmp_path: Path) -> None:
    for words in (257, 264):
        config = CONFIG.replace(vocab_size=words)
        save(tmp_path / str(words), openai_tensors(model(config)))
        hparams(tmp_path / str(words), config)
        vocabulary(tmp_path / str(words))
    with pytest.raises(
        CheckpointError, match=r"has a model of 257 tokens, but its tokenizer \(bpe:259\) has 259; they do not"
    ):
        open_tensorflow(tmp_path / "257")
    imported = open_tensorflow(tmp_path / "264")
    imported.tensors.close()
    assert imported.notes == ("ids 259 to 263 have no token and are never generated",)


def test_a_checkpoint_without_hparams_tells_its_shape_and_the_heads_are_an_assumption_that_is_said(
    tmp_path: Path,
) -> None:
    config = CONFIG.replace(n_embd=128, n_head=2, n_layer=1)
    save(tmp_path, openai_tensors(model(config)))
    vocabulary(tmp_path)
    imported = open_tensorflow(tmp_path)
    assert imported.config == config
    assert imported.notes == ("no hparams.json beside model.ckpt.index: 2 heads of 64 are assumed, as in every GPT-2",)
    imported.tensors.close()
    assert torch.equal(read(tmp_path)(IDS), model(config)(IDS))
    for path in (tmp_path, tmp_path / "model.ckpt.index"):  # as every command opens them
        opened = open_model(path)
        opened.tensors.close()
        assert opened.config == config
    scalars = [tensor._replace(value=np.float32(1)) for tensor in openai_tensors(model(config))]
    for tensors in (
        openai_tensors(model()),
        openai_tensors(model(config))[1:],
        openai_tensors(model(config))[:2],
        scalars,
    ):
        save(tmp_path, tensors)
        with pytest.raises(
            CheckpointError, match=r"must hold hparams.json: model.ckpt.index alone does not determine the mod"
        ):
            open_tensorflow(tmp_path)


# Damage.


def replace(name: str, **lies: Any) -> Callable[[Path], None]:
    """A checkpoint whose index says something else of one tensor."""

    def damage(folder: Path) -> None:
        tensors = [tensor._replace(lies=lies) if tensor.name == name else tensor for tensor in openai_tensors(model())]
        save(folder, tensors)

    return damage


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: save(folder, [tensor for tensor in openai_tensors(model()) if tensor.name != name])


def flip(name: str, place: int) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[place] ^= 1
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
    """An index whose blocks are all the same one."""
    handle = varint(0) + varint(len(first))
    body = block([(b"%05d" % i, handle) for i in range(times)])
    return sealed(first, kind) + sealed(body) + footer(handle, varint(len(first) + 5) + varint(len(body)))


WTE = "model/wte"
DATA = "model.ckpt.data-00000-of-00001"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without(WTE), r"has no tensor 'model/wte', expected of shape \(259, 12\)"),
        (replace(WTE, shape=(12, 259)), r"'model/wte' in .* has shape \(12, 259\), expected \(259, 12\)"),
        (replace(WTE, shape=(2, 259, 12)), r"has shape \(2, 259, 12\), expected"),
        (replace(WTE, shape=(-1, 12)), r"has shape \(18446744073709551615, 12\), expected"),
        (replace(WTE, shape=(1,) * 9), "damaged or not a TensorFlow index .*has 9 dimensions"),
        (replace(WTE, dtype=3), r".*\(3\) must be one of 1 \(float32\), 2 \(float64\), 14 \(bf"),
        (replace(WTE, size=12), r"has 12 bytes from byte \d+ on, expected 12432 bytes that no other tensor uses"),
        (
            replace(WTE, start=0),
            r"from byte 0 on, expected 12432 bytes that no other tensor uses|expected \d+ bytes that no other",
        ),
        (replace(WTE, start=2**62), r"data-.* has \d+ bytes, but 4611686018427400336 bytes from byte 0"),
        (replace(WTE, start=-5), r"has \d+ bytes, but \d+ bytes"),
        (replace(WTE, shard=1), r"model.ckpt.index names data file 1 of 1, which cannot exist"),
        (replace(WTE, shard=-1), r"names data file 18446744073709551615 of 1, which cannot exist"),
        (replace(WTE, crc=0), r"'model/wte' in .*data-00000-of-00001 is damaged: its checksum is wrong"),
        (replace(WTE, more=message(7, b"")), r"'model/wte' in .* is saved in slices, which is not supported"),
        (replace(WTE, more=varint(1 << 3 | 2) + varint(0)), "field 1 is not an integer"),
        (replace(WTE, more=number(2, 1)), "field 2 is not a message"),
        (replace(WTE, more=varint(9 << 3 | 3)), "a value has wire type 3"),
        (replace(WTE, more=message(9, b"..")[:-1]), "a value lies outside of its message"),
        (replace(WTE, more=b"\x80"), "an integer does not end"),
        (flip(DATA, 1000), "is damaged: its checksum is wrong; copy or download it again"),
        (cut(DATA, 1000), r"data-00000-of-00001 has 1000 bytes, but \d+ bytes from byte 0 on are needed; copy"),
        (lambda folder: (folder / DATA).unlink(), "data-00000-of-00001 does not exist$"),
        (flip("model.ckpt.index", 100), r"index is damaged or not .* \(a block's checksum is wrong\); copy"),
        (flip("model.ckpt.index", -1), "it does not end as a table does"),
        (cut("model.ckpt.index", 30), "it does not end as a table does"),
        (cut("model.ckpt.index", 0), "it does not end as a table does"),
        (index(in_blocks(block([(b"", HEADER)]), 100)), "its blocks overlap"),
        (index(in_blocks(block([(b"", HEADER)]), 1, b"\1")), r"a block is compressed \(1\), which TensorFlow"),
        (index(in_blocks(varint(1) + varint(0) + varint(0) + bytes(4), 1)), "an entry lies outside of its block"),
        (index(in_blocks(varint(0) + varint(9) + varint(0) + bytes(4), 1)), "an entry lies outside of its block"),
        (index(table([(b"k" * 300, b"")])), "an entry lies outside of its block"),
        (index(table([(b"k", b"")])), "its header must be that of a little-endian checkpoint"),
        (index(table([(b"", HEADER + number(2, 1))])), "its header must be that of a little-endian checkpoint"),
        (index(table([])), r"has no tensor 'model/wte'"),
        (index(table([(b"", b"\x0a\xff")])), "a value lies outside|an integer does not end"),
        (lambda folder: os.truncate(folder / "model.ckpt.index", 5 << 20), "has 5242880 bytes, but an index"),
        (lambda folder: (folder / "model.ckpt.index").unlink(), "has no checkpoint, expected model.ckpt.index beside"),
        (lambda folder: (folder / "vocab.bpe").unlink(), "124M must hold vocab.bpe, with its 259 tokens$"),
        (lambda folder: (folder / "encoder.json").write_text("{"), "encoder.json"),
        (lambda folder: (folder / "hparams.json").write_text("{"), "hparams.json is not JSON"),
        (edit_hparams(n_head=None), "hparams.json has no n_head, which OpenAI's files always have$"),
        (edit_hparams(n_head=5), r"hparams.json: n_embd \(12\) must be divisible by n_head \(5\)"),
        (edit_hparams(n_head="3"), r"hparams.json: n_head \('3'\)"),
        (edit_hparams(n_layer=10**9), "has no tensor 'model/h2/ln_1/g', expected of shape"),
        (edit_hparams(n_layer=1), "has an unexpected tensor 'model/h1/attn/c_attn/b' for a GPT-2 of 1 blocks"),
        (edit_hparams(n_ctx=9), r"'model/wpe' in .* has shape \(8, 12\), expected \(9, 12\)"),
    ],
)  # fmt: skip
def test_damage_is_one_sentence(folder: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(folder)
    with pytest.raises(MinigptError, match=message) as refused:
        read(folder)
    assert "\n" not in str(refused.value)


def test_damaged_indexes_are_refused_whatever_the_damage(folder: Path, fuzz: Callable[..., dict[str, int]]) -> None:
    counts = fuzz(folder / "model.ckpt.index", lambda: read(folder), 150)
    assert counts["refused"] > 100


def resealed(content: bytes) -> bytes:
    """An index with the checksums of its blocks made right, so that damage reaches what is behind them."""
    damaged = bytearray(content)
    footer, place, numbers = content[-48:], 0, []
    try:
        for _ in range(4):
            value = shift = 0
            while True:
                byte = footer[place]
                place += 1
                value |= (byte & 0x7F) << shift
                shift += 7
                if byte < 0x80:
                    break
            numbers.append(value)
    except IndexError:
        return content
    ends = [numbers[0] + numbers[1], numbers[2] + numbers[3]]
    starts = [numbers[0], numbers[2]]
    for start, end in zip([0, *starts], [numbers[0] - 5, *ends], strict=True):
        if 0 <= start <= end and end + 5 <= len(damaged):
            damaged[end + 1 : end + 5] = struct.pack("<I", masked(bytes(damaged[start : end + 1])))
    return bytes(damaged)


def test_damage_behind_checksums_that_are_right_is_refused_too(
    folder: Path, fuzz: Callable[..., dict[str, int]]
) -> None:
    """The checksums keep no one out who means harm."""
    plain = folder / "model.ckpt.index"
    tensors = [Tensor(tensor.name, tensor.value) for tensor in openai_tensors(model())]
    save(folder, tensors)
    unsealed = folder / "unsealed"
    unsealed.write_bytes(plain.read_bytes())

    def read_resealed() -> None:
        plain.write_bytes(resealed(unsealed.read_bytes()))
        read(folder)

    counts = fuzz(unsealed, read_resealed, 150)
    assert counts["refused"] > 75


# The checksum.


def test_the_checksum_is_the_published_one() -> None:
    """RFC 3720, appendix B.4, and the check value of the catalogues."""
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(b"") == 0


@given(st.binary(max_size=300), st.sampled_from([0, 1, 65535, 65536, 65537, 200_000]))
@settings(deadline=None, max_examples=30)
def test_the_checksum_of_many_rows_is_that_of_one_byte_after_the_other(end: bytes, zeros: int) -> None:
    """Zeros have a checksum too, which the first byte's alone begins."""
    data = np.random.default_rng(len(end)).bytes(100) + bytes(zeros) + end
    assert crc32c(data) == checksum(data)


def test_a_checksum_is_unmasked() -> None:
    assert unmask(masked(b"123456789")) == 0xE3069283
