"""Writes TensorFlow checkpoints of GPT-2 for the tests; the encoder shares no code with minigpt's reader."""

import json
import struct
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import numpy as np

from minigpt.config import GPTConfig
from minigpt.model.gpt import GPT
from minigpt.storage.huggingface import to_huggingface
from minigpt.tokenizer.tokenizer import Tokenizer
from minigpt.tokenizer.vocabulary import bytes_to_unicode


def masked(data: bytes) -> int:
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


# Protocol buffers.


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    groups = [value >> shift & 0x7F for shift in range(0, max(value.bit_length(), 1), 7)]
    return bytes([group | 0x80 for group in groups[:-1]] + groups[-1:])


def integer_field(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value) if value else b""  # a default value is not written


def message_field(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


class Tensor(NamedTuple):
    """A tensor in a data file; `false_entries` replace the correct entries of its index."""

    name: str
    value: np.ndarray[Any, Any]
    false_entries: dict[str, Any] = {}  # noqa: RUF012 - never changed


DTYPES = {"float32": 1, "float64": 2, "int64": 9, "float16": 19}


def entry(tensor: Tensor, shard: int, start: int) -> bytes:
    content = tensor.value.tobytes()
    fields = {
        "dtype": DTYPES[tensor.value.dtype.name],
        "shape": tensor.value.shape,
        "shard": shard,
        "start": start,
        "size": len(content),
        "crc": masked(content),
        "extra": b"",
    } | tensor.false_entries
    shape = b"".join(message_field(2, integer_field(1, size)) for size in fields["shape"])
    body = (
        integer_field(1, fields["dtype"])
        + message_field(2, shape)
        + integer_field(3, fields["shard"])
        + integer_field(4, fields["start"])
    )
    return (
        body
        + integer_field(5, fields["size"])
        + varint(6 << 3 | 5)
        + struct.pack("<I", fields["crc"])
        + fields["extra"]
    )


# LevelDB tables.


def block(entries: list[tuple[bytes, bytes]]) -> bytes:
    content, restarts, last = b"", [], b""
    for number, (key, value) in enumerate(entries):
        if number % 16 == 0:
            restarts.append(len(content))
            last = b""
        shared = next((i for i, pair in enumerate(zip(last, key, strict=False)) if pair[0] != pair[1]), len(last))
        content += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    return content + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def with_checksum(body: bytes, compression: bytes = b"\0") -> bytes:
    return body + compression + struct.pack("<I", masked(body + compression))


def footer(metaindex: bytes, index: bytes) -> bytes:
    return (metaindex + index).ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


def table(entries: list[tuple[bytes, bytes]], block_size: int = 1024) -> bytes:
    content, index = b"", []

    def add(entries: list[tuple[bytes, bytes]]) -> bytes:
        nonlocal content
        body = block(entries)
        handle = varint(len(content)) + varint(len(body))
        content += with_checksum(body)
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


HEADER = integer_field(1, 1) + message_field(3, integer_field(1, 1))


def save_checkpoint(
    folder: Path, tensors: list[Tensor], *, name: str = "model.ckpt", shards: int = 1, header: bytes | None = None
) -> None:
    """Writes the files of TensorFlow's Saver."""
    folder.mkdir(parents=True, exist_ok=True)
    data = [b""] * shards
    index = [(b"", integer_field(1, shards) + message_field(3, integer_field(1, 1)) if header is None else header)]
    for number, tensor in enumerate(sorted(tensors, key=lambda tensor: tensor.name.encode())):
        shard = number % shards
        index.append((tensor.name.encode(), entry(tensor, shard, len(data[shard]))))
        data[shard] += tensor.value.tobytes()
    for shard, content in enumerate(data):
        (folder / f"{name}.data-{shard:05d}-of-{shards:05d}").write_bytes(content)
    (folder / f"{name}.index").write_bytes(table(index))
    (folder / "checkpoint").write_text(f'model_checkpoint_path: "{name}"\nall_model_checkpoint_paths: "{name}"\n')


# GPT-2 in OpenAI's layout.


def openai_tensors(gpt: GPT, dtype: Any = np.float32) -> list[Tensor]:
    """The model's tensors with OpenAI's names and shapes."""
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


def write_hparams(folder: Path, config: GPTConfig) -> None:
    """Writes hparams.json."""
    names = {
        "n_vocab": "vocab_size",
        "n_ctx": "n_positions",
        "n_embd": "n_embd",
        "n_head": "n_head",
        "n_layer": "n_layer",
    }
    (folder / "hparams.json").write_text(json.dumps({key: getattr(config, name) for key, name in names.items()}))


def write_vocabulary(folder: Path, tokenizer: Tokenizer) -> None:
    """Writes encoder.json and vocab.bpe."""
    tokens = {bytes_to_unicode(tokenizer.token_bytes(id)): id for id in range(tokenizer.end_of_text)}
    (folder / "encoder.json").write_text(json.dumps(tokens | {"<|endoftext|>": tokenizer.end_of_text}))
    lines = [f"{bytes_to_unicode(left)} {bytes_to_unicode(right)}" for left, right in tokenizer.merges]
    (folder / "vocab.bpe").write_text("\n".join(["#version: 0.2", *lines, ""]), encoding="utf-8")
