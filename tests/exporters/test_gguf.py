"""Exported GGUF files equal those of llama.cpp's converter, and llama.cpp gives the model's logits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import random_model, tokenizer_with_roles
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.chat_logs.transcript import CHAT_TEMPLATE
from minigpt.exporters import runners
from minigpt.exporters.gguf import GGUF_DTYPES, write_gguf
from minigpt.exporters.parity import compare, reference_of
from minigpt.importers.gguf import open_gguf
from minigpt.model.gpt import GPT
from minigpt.storage.huggingface import from_huggingface, to_huggingface
from minigpt.storage.run_record import RunRecord
from minigpt.tokenizer.tokenizer import Tokenizer
from minigpt.tokenizer.vocabulary import END_OF_TEXT, Vocabulary

gguf = pytest.importorskip("gguf")

CORPUS = "“It’s naïve — really”, he said… 日本語 と 日曜日, 1234½ Привет 🙂🙃 ▁▂▃\t\n" * 8
TOKENIZERS = ("gpt2", "bytes", "chars", "bpe:400")
TRICKY = [
    "Hello world, it's me!\n\n  don't  \t x",
    "“curly” — dash… é ü ñ ▁▂▃ 日本語 🙂",
    "\u00a0\u2003 a\0b\x7f\r\n\x85 \u1680\u200b",
    "Привет мир  ",
    "<|endoftext|> <|end",
    "[PAD300] \\xff \\x41 <0x41>",
    "ab'll 123 ½ ² ٣ e\u0301 \u0300 👨‍👩‍👧 🇩🇪",
    "日 本🙂é" * 3,
    " ",
    "",
]


def tokenizer_of(name: str) -> Tokenizer:
    return Tokenizer.named(name) if name in ("gpt2", "bytes") else Tokenizer.train([CORPUS], name)


def model_for(tokenizer: Tokenizer, *, n_embd: int = 32, padding: int = 0) -> GPT:
    """A small model whose every tensor is random, biases and norms too."""
    shape = {"n_positions": 64, "n_embd": n_embd, "n_head": 4, "layer_norm_epsilon": 1e-4}
    return random_model(vocab_size=tokenizer.vocab_size + padding, std=0.15, **shape)


def write(path: Path, model: GPT, tokenizer: Tokenizer, **options: Any) -> tuple[str, ...]:
    with path.open("wb") as file:
        return write_gguf(file, model, tokenizer, **options)


def contents(path: Path) -> dict[str, Any]:
    return {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}


def test_the_metadata_has_the_chat_template(tmp_path: Path) -> None:
    tokenizer = tokenizer_of("bpe:400")
    write(tmp_path / "plain.gguf", model_for(tokenizer), tokenizer)
    write(tmp_path / "chat.gguf", model_for(tokenizer), tokenizer.with_chat_template(CHAT_TEMPLATE))
    assert "tokenizer.chat_template" not in contents(tmp_path / "plain.gguf")
    assert contents(tmp_path / "chat.gguf")["tokenizer.chat_template"] == CHAT_TEMPLATE


def test_the_metadata_has_the_roles_of_special_tokens(tmp_path: Path) -> None:
    tokenizer = tokenizer_with_roles(tmp_path)
    write(tmp_path / "m.gguf", model_for(tokenizer), tokenizer)
    found, names = contents(tmp_path / "m.gguf"), ("bos", "eos", "unknown", "padding")
    assert [found[f"tokenizer.ggml.{name}_token_id"] for name in names] == [256, 257, 258, 259]
    imported = open_gguf(tmp_path / "m.gguf")
    imported.tensors.close()
    for role in ("bos_token", "eos_token", "unk_token", "pad_token"):
        assert imported.tokenizer.special_id(role) == tokenizer.special_id(role), role


def test_a_tokenizer_of_characters_reads_back_with_its_added_tokens(tmp_path: Path) -> None:
    plain = tokenizer_of("chars").byte_level("this test")
    first = len(plain.tokens)
    tokenizer = Tokenizer(
        Vocabulary(plain.tokens, (), {END_OF_TEXT: first}, added={"<name>": first + 1}, by_character=True)
    )
    write(tmp_path / "m.gguf", model_for(tokenizer), tokenizer)
    imported = open_gguf(tmp_path / "m.gguf")
    imported.tensors.close()
    assert imported.tokenizer.encode("a<name>é") == tokenizer.encode("a<name>é")


def test_the_metadata_has_every_end_of_a_text_up_to_three(tmp_path: Path) -> None:
    tokenizer = tokenizer_of("bpe:400").with_end_ids([3, 9])
    path, model = tmp_path / "m.gguf", model_for(tokenizer)
    assert not any("room for 3" in note for note in write(path, model, tokenizer))
    found = contents(path)
    assert [found[f"tokenizer.ggml.{name}_token_id"] for name in ("eos", "eot", "eom")] == [*tokenizer.end_ids]
    imported = open_gguf(path)
    imported.tensors.close()
    assert imported.tokenizer.end_ids == tokenizer.end_ids
    note = "GGUF has room for 3 ids that end a text, so llama.cpp may write on after the others (12, 20)"
    assert note in write(path, model, tokenizer.with_end_ids([3, 9, 12, 20]))


def test_the_metadata_has_what_llama_cpp_needs_and_facts_from_the_training_record(tmp_path: Path) -> None:
    tokenizer = tokenizer_of("bpe:400")
    record = RunRecord(sources=("/home/me/books/moby.txt", r"C:\Users\me\tales.txt"), base="checkpoints/gpt2")
    write(tmp_path / "m.gguf", model_for(tokenizer), tokenizer, dtype="f16", name="moby", record=record)
    found = contents(tmp_path / "m.gguf")
    end = tokenizer.end_of_text
    expected = {
        "general.architecture": "gpt2",
        "general.type": "model",
        "general.name": "moby",
        "general.description": "trained with minigpt on moby.txt, tales.txt",
        "general.base_model.0.name": "gpt2",
        "general.file_type": gguf.LlamaFileType.MOSTLY_F16,
        "general.quantization_version": 2,
        "gpt2.context_length": 64,
        "gpt2.embedding_length": 32,
        "gpt2.feed_forward_length": 128,
        "gpt2.block_count": 2,
        "gpt2.attention.head_count": 4,
        "gpt2.attention.layer_norm_epsilon": pytest.approx(1e-4),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.bos_token_id": end,
        "tokenizer.ggml.eos_token_id": end,
        "tokenizer.ggml.unknown_token_id": end,
        "tokenizer.ggml.padding_token_id": end,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.merges": tokenizer.merge_strings,
        "tokenizer.ggml.tokens": tokenizer.token_strings,
    }
    assert {name: found.get(name) for name in expected} == expected
    kinds = found["tokenizer.ggml.token_type"]
    assert kinds[end] == gguf.TokenType.CONTROL
    assert set(kinds[:end]) == {gguf.TokenType.NORMAL}


def test_names_that_are_not_utf8_have_question_marks_in_the_metadata(tmp_path: Path) -> None:
    name, tokenizer = "caf\udce9", tokenizer_of("bytes")
    record = RunRecord(sources=(f"/home/me/{name}.txt",), base=f"checkpoints/{name}")
    write(tmp_path / "m.gguf", model_for(tokenizer), tokenizer, name=name, record=record)
    found = contents(tmp_path / "m.gguf")
    assert found["general.name"] == found["general.base_model.0.name"] == "caf?"
    assert found["general.description"] == "trained with minigpt on caf?.txt"


@pytest.mark.parametrize("dtype", GGUF_DTYPES)
def test_tensors_have_the_layout_of_llama_cpps_converter(tmp_path: Path, dtype: str) -> None:
    tokenizer = tokenizer_of("bytes")
    model = model_for(tokenizer)
    write(tmp_path / "m.gguf", model, tokenizer, dtype=dtype)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT2, 2)
    kinds = gguf.GGMLQuantizationType
    found = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    theirs = to_huggingface(model)
    assert {names.get_name(name, (".weight", ".bias")) for name in theirs} == found.keys()
    for name, tensor in theirs.items():
        stored = found[names.get_name(name, (".weight", ".bias"))]
        # The converter transposes Hugging Face's x @ W matrices, and stores vectors and positions in float32.
        oriented = tensor.t() if name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")) else tensor
        small = tensor.dim() < 2 or name.endswith("wpe.weight")
        assert stored.tensor_type == (kinds.F32 if small else kinds[dtype.upper()]), name
        expected = gguf.quantize(oriented.detach().contiguous().numpy(), stored.tensor_type)
        assert stored.data.tobytes() == expected.tobytes(), name
        assert tuple(stored.shape) == tuple(oriented.shape)[::-1]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_note_says_that_llama_cpp_reads_the_name_of_the_end_of_a_text_as_that(tmp_path: Path, name: str) -> None:
    tokenizer = tokenizer_of(name)
    notes = write(tmp_path / "m.gguf", model_for(tokenizer), tokenizer)
    assert "llama.cpp reads <|endoftext|> in a prompt as the end of a text, minigpt as characters" in notes


def test_rows_that_are_not_multiples_of_q8_0_blocks_are_stored_as_f16_with_a_note(tmp_path: Path) -> None:
    tokenizer = tokenizer_of("bytes")
    notes = write(tmp_path / "m.gguf", model_for(tokenizer, n_embd=24), tokenizer, dtype="q8_0")
    kinds = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    assert kinds["blk.0.ffn_down.weight"] == "Q8_0"  # rows of 96
    assert kinds["blk.0.ffn_up.weight"] == kinds["token_embd.weight"] == "F16"  # rows of 24
    assert any(note.startswith("7 matrices are f16") for note in notes)
    assert not any("f16" in note for note in write(tmp_path / "n.gguf", model_for(tokenizer), tokenizer, dtype="q8_0"))


def test_padding_embeddings_become_unused_tokens_that_match_no_text(tmp_path: Path) -> None:
    for name, expected in {"bytes": "[PAD258]", "chars": r"\xff[PAD{}]"}.items():
        tokenizer = tokenizer_of(name)
        write(tmp_path / "m.gguf", model_for(tokenizer, padding=2), tokenizer)
        found = contents(tmp_path / "m.gguf")
        assert found["tokenizer.ggml.tokens"][-1] == expected.format(tokenizer.vocab_size + 1)
        assert found["tokenizer.ggml.token_type"][-2:] == [gguf.TokenType.UNUSED] * 2


@pytest.mark.parametrize("name", TOKENIZERS)
def test_an_export_reads_back_as_the_same_model_and_tokenizer(tmp_path: Path, name: str) -> None:
    tokenizer = tokenizer_of(name)
    model = model_for(tokenizer, padding=3)
    write(tmp_path / "m.gguf", model, tokenizer)
    imported = open_gguf(tmp_path / "m.gguf")
    again = from_huggingface(imported.tensors, imported.config)
    imported.tensors.close()
    assert imported.config == model.config.replace(dropout=imported.config.dropout)
    for ours, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[ours], tensor), ours
    assert imported.tokenizer.name == tokenizer.name
    assert imported.tokenizer.end_of_text == tokenizer.end_of_text
    for text in TRICKY:
        assert imported.tokenizer.encode(text) == tokenizer.encode(text)


@pytest.mark.slow
@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("padding", [0, 3])
def test_llama_cpp_tokenizes_and_detokenizes_as_minigpt_does(tmp_path: Path, name: str, padding: int) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    tokenizer = tokenizer_of(name)
    write(tmp_path / "m.gguf", model_for(tokenizer, padding=padding), tokenizer)
    llama = llama_cpp.Llama(str(tmp_path / "m.gguf"), vocab_only=True, verbose=False)
    assert llama.token_eos() == llama.token_bos() == tokenizer.end_of_text
    assert llama.tokenize(b"a", add_bos=True, special=False) == tokenizer.encode("a")  # because add_bos_token is false
    assert llama.tokenize(b"<|endoftext|>", add_bos=False, special=True) == [tokenizer.end_of_text]

    def check(text: str) -> None:
        expected = tokenizer.encode(text)
        assert llama.tokenize(text.encode(), add_bos=False, special=False) == expected
        assert llama.detokenize(expected) == text.encode()

    for text in TRICKY:
        if not (name == "chars" and "<|endoftext|>" in text):
            check(text)
    letters = st.sampled_from([*"aZ09 \n\t'’.,-é日本🙂▁\u00a0\u0301\0"]) | st.characters(codec="utf-8")
    settings(max_examples=500, deadline=None)(given(st.text(letters, max_size=40))(check))()


@pytest.mark.slow
@pytest.mark.parametrize("name", TOKENIZERS)
def test_llama_cpp_gives_the_models_logits_and_greedy_tokens(tmp_path: Path, name: str) -> None:
    pytest.importorskip("llama_cpp")
    tokenizer = tokenizer_of(name)
    model = model_for(tokenizer)
    reference = reference_of(model, tokenizer)
    # The remaining difference in float32 is llama.cpp's GELU, a float16 table.
    for dtype, bound in {"f32": 0.002, "f16": 0.01, "bf16": 0.05, "q8_0": 0.1}.items():
        path = tmp_path / f"{dtype}.gguf"
        write(path, model, tokenizer, dtype=dtype)
        found = compare(dtype, *runners.gguf_in_llama(path)[:1], reference, runners.gguf_in_llama(path)[1])
        assert found.deviations < bound, found
        assert found.same_ids
        if dtype == "f32":
            assert found.greedy == found.of == 16


@pytest.mark.slow
def test_llama_cpp_generates_the_same_text_greedily(tmp_path: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    tokenizer = tokenizer_of("bpe:400")
    model = model_for(tokenizer)
    torch.nn.init.normal_(model.position_embedding.weight, std=1.0)  # otherwise it repeats one token
    write(tmp_path / "m.gguf", model, tokenizer)
    llama = llama_cpp.Llama(str(tmp_path / "m.gguf"), n_ctx=64, verbose=False, type_k=0, type_v=0)
    ids = tokenizer.encode("he said")
    theirs = []
    for token in llama.generate(ids, temp=0.0, reset=True):
        theirs.append(token)
        if len(theirs) == 20:
            break
    for _ in range(20):
        ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    assert theirs == ids[-20:]
    assert np.unique(theirs).size > 3
