"""Importing GGUF files in the layout of llama.cpp's converter, written with the gguf package."""

import ctypes
import os
import struct
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import assert_same_model, random_model

from minigpt.config import GPTConfig
from minigpt.errors import CheckpointError, MinigptError, MissingPackageError
from minigpt.importers.gguf import gguf_name, open_gguf
from minigpt.importers.gguf_file import GgufFile
from minigpt.model.gpt import GPT
from minigpt.pretrained.imported_model import ImportedModel
from minigpt.storage.huggingface import from_huggingface
from minigpt.tokenizer.tokenizer import Tokenizer
from minigpt.tokenizer.vocabulary import bytes_to_unicode

gguf = pytest.importorskip("gguf")

CONFIG = GPTConfig(vocab_size=259, n_positions=8, n_embd=32, n_layer=2, n_head=4, dropout=0.1)
IDS = torch.arange(8)[None]
TOKENIZER = Tokenizer.train(["the theory of the thing"], "bpe:259")


def tensors_of(gpt: GPT) -> dict[str, np.ndarray[Any, Any]]:
    return {gguf_name(name): tensor.numpy() for name, tensor in gpt.state_dict().items()}


def tokenizer_values(tokenizer: Tokenizer = TOKENIZER) -> dict[str, Any]:
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": list(tokenizer.token_strings),
        "tokenizer.ggml.token_type": [1] * (tokenizer.vocab_size - 1) + [3],
        "tokenizer.ggml.merges": list(tokenizer.merge_strings),
        "tokenizer.ggml.bos_token_id": tokenizer.end_of_text,
        "tokenizer.ggml.eos_token_id": tokenizer.end_of_text,
    }


def write(
    path: Path,
    gpt: GPT | None = None,
    *,
    kind: str = "F32",
    tensors: Mapping[str, np.ndarray[Any, Any] | None] = {},
    kinds: Mapping[str, str] = {},
    values: Mapping[str, Any] = {},
) -> Path:
    """Writes a model; `tensors` and `values` replace its own, and None removes one."""
    gpt = gpt or random_model(CONFIG)
    config = gpt.config
    values_of_file: dict[str, Any] = {
        "general.architecture": "gpt2",
        "gpt2.block_count": config.n_layer,
        "gpt2.context_length": config.n_positions,
        "gpt2.embedding_length": config.n_embd,
        "gpt2.feed_forward_length": 4 * config.n_embd,
        "gpt2.attention.head_count": config.n_head,
        "gpt2.attention.layer_norm_epsilon": config.layer_norm_epsilon,
        **tokenizer_values(),
        **values,
    }
    writer = gguf.GGUFWriter(path, "gpt2")
    del writer.kv_data[0]["general.architecture"]
    for key, value in values_of_file.items():
        match value:
            case None:
                pass
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
            case _:
                writer.add_array(key, value)
    for name, value in (tensors_of(gpt) | dict(tensors)).items():
        if value is None:
            continue
        own = kinds.get(name, kind if value.ndim == 2 and name != "position_embd.weight" else "F32")
        quantized = gguf.GGMLQuantizationType[own]
        if own == "F32":
            writer.add_tensor(name, value)
        else:
            writer.add_tensor(name, gguf.quantize(value, quantized), raw_dtype=quantized)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@contextmanager
def opened(path: Path) -> Iterator[ImportedModel]:
    imported = open_gguf(path)
    try:
        yield imported
    finally:
        imported.tensors.close()


def read(path: Path) -> GPT:
    with opened(path) as imported:
        return from_huggingface(imported.tensors, imported.config)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "tiny.gguf")


def test_an_imported_file_gives_the_logits_of_the_original(path: Path) -> None:
    with opened(path) as imported:
        assert imported.config == CONFIG
        assert imported.notes == ()
        assert imported.tokenizer.fingerprint == TOKENIZER.fingerprint
        read = from_huggingface(imported.tensors, imported.config)
    for name, tensor in random_model(CONFIG).state_dict().items():
        assert torch.equal(read.state_dict()[name], tensor), name
    assert_same_model(read, random_model(CONFIG))


@pytest.mark.parametrize(("kind", "dtype"), [("F16", torch.float16), ("BF16", torch.bfloat16)])
def test_half_precision_becomes_float32_without_a_note(tmp_path: Path, kind: str, dtype: torch.dtype) -> None:
    path = write(tmp_path / "half.gguf", kind=kind)
    expected = random_model(CONFIG)
    with torch.no_grad():
        for name, parameter in expected.named_parameters():
            if parameter.dim() == 2 and name != "position_embedding.weight":
                parameter.copy_(parameter.to(dtype))
    assert_same_model(read(path), expected)
    with opened(path) as imported:
        assert imported.notes == ()


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_quantized_weights_are_dequantized_exactly(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / "quantized.gguf", kind=kind)
    expected = random_model(CONFIG)
    quantized = gguf.GGMLQuantizationType[kind]
    with torch.no_grad():
        for name, parameter in expected.named_parameters():
            if parameter.dim() == 2 and name != "position_embedding.weight":
                blocks = gguf.quantize(parameter.numpy(), quantized)
                parameter.copy_(torch.from_numpy(gguf.dequantize(blocks, quantized)))
    assert_same_model(read(path), expected)
    assert not torch.equal(expected(IDS), random_model(CONFIG)(IDS))
    with opened(path) as imported:
        assert imported.notes == (f"quantized tensors (9 {kind}) are converted to float32; their rounding stays",)


def test_a_matrix_with_more_rows_than_one_read_is_complete(tmp_path: Path) -> None:
    config = CONFIG.replace(n_positions=2500)
    tensor = tensors_of(random_model(config))["position_embd.weight"]
    path = write(tmp_path / "long.gguf", random_model(config), kinds={"position_embd.weight": "Q8_0"})
    with opened(path) as imported:
        read = imported.tensors.read("wpe.weight")
    kind = gguf.GGMLQuantizationType.Q8_0
    assert torch.equal(read, torch.from_numpy(gguf.dequantize(gguf.quantize(tensor, kind), kind)))


def test_types_that_only_llama_quantize_writes_are_read(tmp_path: Path) -> None:
    """Their blocks have 256 values, and any bytes are a valid block."""
    config = CONFIG.replace(n_embd=256, n_layer=1)
    path = write(tmp_path / "k.gguf", random_model(config))
    values = np.random.default_rng(0).integers(0, 60, (259, 144), np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "gpt2")
    writer.add_tensor("token_embd.weight", values, raw_dtype=gguf.GGMLQuantizationType.Q4_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GgufFile(tmp_path / "other.gguf")
    expected = torch.from_numpy(gguf.dequantize(values, gguf.GGMLQuantizationType.Q4_K))
    assert file.tensors["token_embd.weight"].shape == (259, 256)
    assert torch.equal(file.read("token_embd.weight"), expected)
    file.close()
    assert_same_model(read(path), random_model(config))


def test_an_output_matrix_equal_to_the_token_embedding_is_tied(tmp_path: Path) -> None:
    tied = tensors_of(random_model(CONFIG))["token_embd.weight"]
    path = write(tmp_path / "tied.gguf", tensors={"output.weight": tied})
    assert_same_model(read(path), random_model(CONFIG))
    other = tied.copy()
    other[7, 3] += 1e-3
    path = write(tmp_path / "untied.gguf", tensors={"output.weight": other})
    with pytest.raises(CheckpointError, match=r"untied.gguf differs from .*: the output head must be tied"):
        read(path)


@pytest.mark.parametrize(("coarse", "fine"), [("Q4_0", "Q8_0"), ("Q8_0", "Q4_0"), ("Q8_0", "F16"), ("BF16", "F32")])
def test_of_one_matrix_in_two_precisions_the_finer_is_used(tmp_path: Path, coarse: str, fine: str) -> None:
    tied = tensors_of(random_model(CONFIG))["token_embd.weight"]
    kinds = {"token_embd.weight": coarse, "output.weight": fine}
    path = write(tmp_path / "both.gguf", tensors={"output.weight": tied}, kinds=kinds)
    finer = {"token_embd.weight": "Q8_0"} if "Q8_0" in (coarse, fine) and fine != "F16" else {"token_embd.weight": fine}
    only = write(tmp_path / "one.gguf", kinds=finer)
    assert_same_model(read(path), read(only))
    with opened(path) as imported:
        assert imported.notes[0].startswith(f"token_embd.weight ({coarse}) and output.weight ({fine}) differ by ")
        assert "%, so they are one matrix in two precisions: " in imported.notes[0]


def test_one_matrix_stored_twice_needs_no_note(tmp_path: Path) -> None:
    tied = tensors_of(random_model(CONFIG))["token_embd.weight"]
    path = write(tmp_path / "twice.gguf", kind="Q8_0", tensors={"output.weight": tied})
    with opened(path) as imported:
        assert imported.notes == ("quantized tensors (9 Q8_0) are converted to float32; their rounding stays",)


def test_an_output_matrix_that_differs_by_more_than_rounding_is_refused(tmp_path: Path) -> None:
    tied = tensors_of(random_model(CONFIG))["token_embd.weight"]
    other = tied + 0.1 * np.random.default_rng(0).standard_normal(tied.shape).astype(np.float32)
    kinds = {"token_embd.weight": "Q8_0", "output.weight": "F16"}
    path = write(tmp_path / "untied.gguf", tensors={"output.weight": other}, kinds=kinds)
    with pytest.raises(CheckpointError, match=r"'output.weight' in .* differs from 'token_embd.weight' by 3\d%: the"):
        open_gguf(path)
    path = write(tmp_path / "nan.gguf", tensors={"output.weight": tied * np.float32("nan")}, kinds=kinds)
    with pytest.raises(CheckpointError, match=r"differs from 'token_embd.weight' by nan%"):
        open_gguf(path)


# The tokenizer.


def test_embeddings_without_tokens_are_noted(tmp_path: Path) -> None:
    """llama.cpp's converter writes unused tokens for them."""
    values = tokenizer_values()
    values["tokenizer.ggml.tokens"] += [f"[PAD{id}]" for id in range(259, 264)]
    values["tokenizer.ggml.token_type"] += [5] * 5
    path = write(tmp_path / "padded.gguf", random_model(CONFIG.replace(vocab_size=264)), values=values)
    with opened(path) as imported:
        assert imported.tokenizer.fingerprint == TOKENIZER.fingerprint
        assert imported.notes == ("ids 259 to 263 have no token and are never generated",)
    path = write(tmp_path / "short.gguf", random_model(CONFIG.replace(vocab_size=258)))
    with pytest.raises(
        CheckpointError, match=r"has a model of 258 tokens, but its tokenizer \(bpe:259\) has 259; they do not"
    ):
        open_gguf(path)


def test_without_token_types_the_end_of_text_is_found_by_its_id(tmp_path: Path) -> None:
    for missing in ({}, {"tokenizer.ggml.bos_token_id": None}, {"tokenizer.ggml.eos_token_id": None}):
        values = {"tokenizer.ggml.token_type": None} | missing
        with opened(write(tmp_path / "old.gguf", values=values)) as imported:
            assert imported.tokenizer.fingerprint == TOKENIZER.fingerprint
    values = {f"tokenizer.ggml.{name}": None for name in ("token_type", "bos_token_id", "eos_token_id")}
    with opened(write(tmp_path / "older.gguf", values=values)) as imported:
        assert imported.tokenizer.fingerprint == TOKENIZER.fingerprint


def test_special_and_added_tokens_keep_their_ids(tmp_path: Path) -> None:
    values = tokenizer_values()
    values["tokenizer.ggml.tokens"] += ["<|pad|>", "<name>"]
    values["tokenizer.ggml.token_type"] += [3, 4]
    path = write(tmp_path / "more.gguf", random_model(CONFIG.replace(vocab_size=261)), values=values)
    with opened(path) as imported:
        assert dict(imported.tokenizer.special) == {"<|endoftext|>": 258, "<|pad|>": 259}
        assert imported.tokenizer.encode("a<name>")[-1] == 260
        assert 259 not in imported.tokenizer.encode("<|pad|>")


@pytest.mark.parametrize("split", [None, "default"])
def test_a_missing_pre_tokenizer_is_assumed_with_a_note(tmp_path: Path, split: str | None) -> None:
    with opened(write(tmp_path / "old.gguf", values={"tokenizer.ggml.pre": split})) as imported:
        (note,) = imported.notes
        assert note.endswith("the file does not name its pre-tokenizer (tokenizer.ggml.pre): GPT-2's is assumed")


def test_a_start_token_that_llama_cpp_adds_begins_prompts(tmp_path: Path) -> None:
    with opened(write(tmp_path / "bos.gguf", values={"tokenizer.ggml.add_bos_token": True})) as imported:
        assert imported.notes == ("the tokenizer puts <|endoftext|> before every prompt, as in llama.cpp",)
        assert imported.tokenizer.prefix_ids == (imported.tokenizer.end_of_text,)


@pytest.mark.parametrize(("prefix", "notes"), [([257], 1), ([256], 2), ([257, 256], 2)])
def test_a_token_before_every_prompt_is_exported_and_read_back(tmp_path: Path, prefix: list[int], notes: int) -> None:
    from minigpt.exporters.gguf import write_gguf

    byte_level = {bytes_to_unicode(bytes([byte])): byte for byte in range(256)}
    special, roles = {"</s>": 256, "<s>": 257}, {"bos_token": "<s>"}
    tokenizer = Tokenizer.from_vocabulary(
        byte_level, [], special=special, end_of_text="</s>", roles=roles, prefix=prefix
    )
    with (tmp_path / "ours.gguf").open("w+b") as file:
        written = write_gguf(file, random_model(CONFIG.replace(vocab_size=258)), tokenizer)
    about_start = [note for note in written if "llama.cpp does not" in note]
    assert len(about_start) == notes - 1
    with opened(tmp_path / "ours.gguf") as imported:
        assert imported.tokenizer.prefix_ids == (() if about_start else (257,))


# Other models, and damage.


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"general.architecture": "llama"}, r"general.architecture \('llama'\) in .* must be 'gpt2'"),
        ({"general.architecture": [1, 2]}, r"general.architecture \(array\('i', \[1, 2\]\)\) in .* must be 'gpt2'"),
        ({"general.type": "adapter"}, r"general.type \('adapter'\) in .* must be 'model'"),
        ({"split.count": 3}, "is one of 3 parts of a model; join them with llama-gguf-split"),
        ({"gpt2.context_length": None}, "has no gpt2.context_length, which llama.cpp's converter writes for every"),
        ({"gpt2.context_length": "8"}, r"n_positions \('8'\)"),
        ({"gpt2.attention.head_count": [4, 4]}, r"n_head \(array"),
        ({"gpt2.attention.head_count": 5}, r"n_embd \(32\) must be divisible by n_head \(5\)"),
        ({"gpt2.attention.head_count_kv": 2}, r"head_count_kv \(2\) in .* must be 4, as in GPT-2"),
        ({"gpt2.feed_forward_length": 64}, r"feed_forward_length \(64\) in .* must be 128, as in GPT-2"),
        ({"gpt2.attention.layer_norm_epsilon": float("nan")}, r"layer_norm_epsilon \(nan\)"),
        ({"gpt2.block_count": 4_000_000_000}, r"n_layer \(4000000000\) must be at most 10000"),
        ({"gpt2.block_count": 3}, r"has no tensor 'blk.2.attn_norm.weight', expected of shape \(32,\)"),
        ({"gpt2.block_count": 1}, "has an unexpected tensor 'blk.1.attn_norm.bias' for a GPT-2 of 1 blocks"),
        ({"tokenizer.ggml.model": "llama"}, r"tokenizer.ggml.model \('llama'\) in .* must be 'gpt2'"),
        ({"tokenizer.ggml.model": "rwkv"}, r"tokenizer.ggml.model \('rwkv'\) in .* must be one that minigpt wrote"),
        (
            {"tokenizer.ggml.pre": "llama-bpe"},
            r"tokenizer.ggml.pre \('llama-bpe'\) in .* must be 'gpt-2': others split texts",
        ),
        ({"tokenizer.ggml.tokens": None}, "must have tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.token_type": [1, 2]}, "one tokenizer.ggml.token_type for each"),
        ({"tokenizer.ggml.token_type": [1.5] * 259}, "one tokenizer.ggml.token_type for each"),
        ({"tokenizer.ggml.merges": None}, "has no tokenizer.ggml.merges"),
        ({"tokenizer.ggml.merges": ["a", "b"]}, "the tokenizer in .*other.gguf cannot be used: .*merge"),
        ({"tokenizer.ggml.eos_token_id": 259}, r"eos_token_id \(259\) in .* must be the id of one of its 259 tokens"),
        ({"tokenizer.ggml.tokens": ["a"] * 259}, "has the token 'a' twice, as 0 and 1"),
        ({"tokenizer.ggml.tokens": [f"w{id}" for id in range(259)]}, "the tokenizer in .* cannot be used: .*byte"),
        ({"general.alignment": 24}, "its alignment is 24, which must be a power of two"),
    ],
)  # fmt: skip
def test_another_model_is_refused_with_the_key_and_its_value(
    tmp_path: Path, values: dict[str, Any], message: str
) -> None:
    path = write(tmp_path / "other.gguf", values=values)
    with pytest.raises(MinigptError, match=message) as refused:
        open_gguf(path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"token_embd.weight": None}, "has no tensor 'token_embd.weight'"),
        ({"blk.1.ffn_up.bias": None}, r"has no tensor 'blk.1.ffn_up.bias', expected of shape \(128,\)"),
        ({"rope_freqs.weight": np.ones(4, np.float32)}, "an unexpected tensor 'rope_freqs.weight' for a GPT-2 of 2"),
        ({"blk.0.ffn_up.weight": np.ones((32, 128), np.float32)}, r"'blk.0.ffn_up.weight' in .* \(32, 128\), expec"),
        ({"output.weight": np.ones((9, 32), np.float32)}, r"'output.weight' in .* has shape \(9, 32\), expected"),
        ({"output_norm.bias": np.ones(32, np.int32)}, "'output_norm.bias' in .* has ggml type 26, which"),
    ],
)  # fmt: skip
def test_tensors_of_another_model_are_refused_with_their_name(
    tmp_path: Path, tensors: dict[str, np.ndarray[Any, Any] | None], message: str
) -> None:
    path = write(tmp_path / "other.gguf", tensors=tensors)
    with pytest.raises(CheckpointError, match=message):
        read(path)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def header(n_tensors: int, n_values: int, rest: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_values) + rest


def tensor(name: bytes, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


HUGE = 2**64 - 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"it starts with b'', not with b'GGUF'|ends inside its header"),
        (b"GGML" + bytes(20), "it starts with b'GGML', not with b'GGUF'"),
        (header(0, 0, version=1), "has GGUF version 1, expected 2 or 3"),
        (header(0, 0, version=3 << 24), "expected 2 or 3; it is for big-endian machines"),
        (header(HUGE, 0), "it claims 18446744073709551615 tensors and 0 values"),
        (header(0, 1, struct.pack("<Q", HUGE)), "its header has more than 67108864 bytes"),
        (header(0, 1, text(b"k") + struct.pack("<I", 13)), "it has a value of unknown type 13"),
        (header(0, 1, text(b"k") + struct.pack("<IIQ", 9, 4, HUGE)), "its header has more than"),
        (header(0, 1, text(b"k") + struct.pack("<IIQ", 9, 8, HUGE)), "it claims 18,446,744,073,709,551,615 strings"),
        (header(0, 1, text(b"k") + struct.pack("<IIQIQ", 9, 9, HUGE, 9, HUGE)), "it has a value of unknown type 9"),
        (header(1, 0, text(b"t") + struct.pack("<I", 2**31)), "a tensor in it has 2147483648 dimensions"),
        (header(2, 0, tensor(b"t", (1,), 0, 0) + tensor(b"t", (1,), 0, 0) + bytes(64)), "it names a tensor twice"),
        (header(1, 0, tensor(b"t", (HUGE, HUGE), 0, 0)), r"has \d+ bytes, but \d+ bytes from byte"),
        (header(1, 0, tensor(b"t", (4,), 0, HUGE)), "has .* bytes, but 16 bytes from byte"),
        (header(2, 0, tensor(b"a", (4,), 0, 0) + tensor(b"b", (4,), 0, 8) + bytes(99)), "'b' in .* overlaps another"),
        (header(1, 0, tensor(b"t", (31,), 8, 0)), r"'t' in .* has shape \(31,\), but its rows must consist of blocks"),
        (header(1, 0, tensor(b"t", (32,), 99, 0)), "'t' in .* has ggml type 99, which cannot be dequantized"),
        (header(0, 0), r"general.architecture \(None\)"),
    ],
)  # fmt: skip
def test_false_headers_give_a_one_sentence_error(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "false.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as refused:
        open_gguf(path)
    assert "\n" not in str(refused.value)


def test_a_missing_or_truncated_file_gives_a_one_sentence_error(path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"none.gguf does not exist$"):
        open_gguf(path.with_name("none.gguf"))
    with pytest.raises(CheckpointError, match=r"could not be read \(is a directory\)$"):
        open_gguf(path.parent)
    os.truncate(path, path.stat().st_size - 4096)
    with pytest.raises(
        CheckpointError, match=r"tiny.gguf has \d+ bytes, but \d+ bytes from byte \d+ on are needed; copy"
    ):
        open_gguf(path)


def test_without_the_gguf_package_only_unquantized_files_are_read(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantized = write(tmp_path / "quantized.gguf", kind="Q8_0")
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert_same_model(read(path), random_model(CONFIG))
    with pytest.raises(
        MissingPackageError,
        match=r"^reading the quantized weights of .*quantized\.gguf needs gguf, which is not installed",
    ):
        read(quantized)


def test_nan_stays_nan_without_a_warning(tmp_path: Path) -> None:
    """An infinite scale in the file must not raise numpy's warning."""
    weight = tensors_of(random_model(CONFIG))["blk.0.ffn_up.weight"].copy()
    path = write(tmp_path / "infinite.gguf", kind="Q8_0", tensors={"blk.0.ffn_up.weight": weight})
    content = bytearray(path.read_bytes())
    file = GgufFile(path)
    start = file.tensors["blk.0.ffn_up.weight"].start
    file.close()
    content[start : start + 3] = b"\x00\x7c\x00"  # infinity in float16, times 0
    path.write_bytes(content)
    assert not read(path)(IDS).isfinite().all()


# Against llama.cpp.


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0"])
def test_llama_cpp_gives_the_same_logits_for_a_file(tmp_path: Path, kind: str) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    gpt2 = Tokenizer.named("gpt2")
    config = GPTConfig(n_positions=64, n_embd=64, n_layer=2, n_head=4)
    path = write(tmp_path / "model.gguf", random_model(config), kind=kind, values=tokenizer_values(gpt2))
    prompt = "Llamas read what we read: 12345, naïve, don't."
    with opened(path) as imported:
        ours = from_huggingface(imported.tensors, imported.config)
        ids = imported.tokenizer.encode(prompt)
    theirs = llama_cpp.Llama(str(path), n_ctx=64, logits_all=True, verbose=False, n_threads=1)
    assert theirs.tokenize(prompt.encode(), add_bos=False, special=False) == ids
    theirs.eval(ids)
    scores = torch.from_numpy(np.array(theirs.scores[: len(ids)]))
    with torch.no_grad():
        logits = ours(torch.tensor([ids]))[0]
    scale = logits.abs().max()
    assert float((scores - logits).abs().max() / scale) < {"F32": 2e-3, "F16": 5e-3, "Q8_0": 2e-2}[kind]
    assert torch.equal(scores.argmax(-1), logits.argmax(-1)) or kind == "Q8_0"
    theirs.close()


@pytest.mark.slow
@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("kind", ["Q4_K_M", "Q6_K", "Q2_K", "IQ4_XS"])
def test_files_of_llama_quantize_give_llama_cpps_logits(tmp_path: Path, kind: str, twice: bool) -> None:
    """Older converters wrote the tied matrix twice, and llama-quantize gives the two different types."""
    llama_cpp = pytest.importorskip("llama_cpp")
    config = GPTConfig(n_positions=64, n_embd=256, n_layer=2, n_head=4)
    original = random_model(config)
    with torch.no_grad():
        for parameter in original.parameters():
            parameter.mul_(0.2)
    again = {"output.weight": tensors_of(original)["token_embd.weight"]} if twice else {}
    source = write(tmp_path / "f32.gguf", original, tensors=again, values=tokenizer_values(Tokenizer.named("gpt2")))
    path = tmp_path / "quantized.gguf"
    how = llama_cpp.llama_model_quantize_default_params()
    how.ftype, how.nthread = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}"), 1
    assert llama_cpp.llama_model_quantize(str(source).encode(), str(path).encode(), ctypes.byref(how)) == 0
    ids = Tokenizer.named("gpt2").encode("Llamas read what we read: 12345, naïve, don't.")
    theirs = llama_cpp.Llama(str(path), n_ctx=64, logits_all=True, verbose=False, n_threads=1)
    theirs.eval(ids)
    scores = torch.from_numpy(np.array(theirs.scores[: len(ids)]))
    theirs.close()
    with torch.no_grad():
        logits, exact = read(path)(torch.tensor([ids]))[0], original(torch.tensor([ids]))[0]
    # llama.cpp rounds activations to 8 bits. Here the embedding has the precision of the head.
    assert (scores - logits).norm() < (0.1 if twice else 0.02) * logits.norm()
    assert (exact - logits).norm() <= 1.1 * (exact - scores).norm()
