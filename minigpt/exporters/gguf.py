"""Writes a model, or a LoRA adapter, as one GGUF file, for llama.cpp, Ollama and LM Studio.

The content is that of llama.cpp's own converter for GPT-2: matrices in the orientation of torch's linear layers,
vectors and position embeddings in float32 for every dtype, and no output matrix, since the head is tied.
Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; llama.cpp, conversion/base.py and conversion/gpt2.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from torch import Tensor

from minigpt.config import GPTConfig
from minigpt.errors import CheckpointError
from minigpt.importers.gguf import gguf_name
from minigpt.importers.gguf_file import GgufFile
from minigpt.lora.peft import Adapter, AdapterLayer
from minigpt.model.gpt import GPT
from minigpt.storage.huggingface import linear_layers
from minigpt.storage.names import encodable, plain_source
from minigpt.storage.run_record import RunRecord
from minigpt.tokenizer.tokenizer import Tokenizer
from minigpt.tokenizer.vocabulary import END_OF_TEXT

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType, GGUFWriter

NO_MERGE = f"{END_OF_TEXT} {END_OF_TEXT}"  # never applies, because no text is split into these tokens
_CONTEXT_STEP, _MAX_F16 = 256, 65504.0
GGUF_DTYPES = ("f32", "f16", "bf16", "q8_0")


def write_gguf(
    file: BinaryIO,
    model: GPT,
    tokenizer: Tokenizer,
    *,
    dtype: str = "f32",
    name: str = "minigpt",
    record: RunRecord | None = None,
) -> tuple[str, ...]:
    """Writes a model into an open named file, one tensor after the other; returns notes for the user.

    `dtype` is one of GGUF_DTYPES.
    Raises: CheckpointError if a weight is too large for the dtype; OSError.
    """
    import gguf

    writer = gguf.GGUFWriter(file.name, gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH.GPT2])
    _describe(writer, model, dtype, name, record or RunRecord())
    notes = _add_tokenizer(writer, tokenizer, model.config.vocab_size)
    tensors = list(_tensors(model, gguf.GGMLQuantizationType[dtype.upper()]))
    for stored_name, tensor, type_ in tensors:
        *rows, row = gguf.quant_shape_to_byte_shape(tuple(tensor.shape), type_)
        writer.add_tensor_info(stored_name, tensor.shape, np.dtype(np.float32), math.prod(rows) * row, raw_dtype=type_)
    with closing(writer):
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
    file.seek(0, 2)
    for stored_name, tensor, type_ in tensors:  # without the writer, whose errors do not say that the disk is full
        values = tensor.detach().float().cpu().contiguous()
        if type_.name == "F16" and (largest := float(values.abs().max())) > _MAX_F16:
            raise CheckpointError(
                f"{stored_name} holds {largest:.3g}, but f16 must be at most {_MAX_F16:.0f}; choose dtype bf16 or f32"
            )
        file.write(bytes(-file.tell() % gguf.GGUF_DEFAULT_ALIGNMENT))
        file.write(gguf.quantize(values.numpy(), type_).data)
    file.write(bytes(-file.tell() % gguf.GGUF_DEFAULT_ALIGNMENT))
    if dtype == "q8_0" and (n_f16 := sum(type_.name == "F16" for *_, type_ in tensors)):
        notes += (f"{n_f16} matrices are f16: their rows cannot be divided into q8_0's blocks of 32 values",)
    if model.config.activation_function != "gelu_new":
        notes += ("llama.cpp has only the tanh form of GELU, this model uses the exact one: logits differ slightly",)
    if (context := model.config.n_positions) % _CONTEXT_STEP:
        notes += (
            f"llama.cpp rounds the context up to a multiple of {_CONTEXT_STEP} and aborts after the model's last"
            f" position: prompt and new tokens (-n) together must be at most {context}",
        )
    return notes


def _describe(writer: GGUFWriter, model: GPT, dtype: str, name: str, record: RunRecord) -> None:
    """Adds the metadata on the model (general.*) and its shape (gpt2.*)."""
    import gguf

    config = model.config
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(encodable(name))
    writer.add_size_label(gguf.size_label(config.n_parameters, 0, 0, 0))
    if sources := [plain_source(source) for source in record.sources]:
        writer.add_description(encodable(f"trained with minigpt on {', '.join(sources)}"))
    if base := record.base:
        writer.add_base_model_count(1)
        writer.add_base_model_name(0, encodable(plain_source(base)))
    writer.add_tags(["text-generation"])
    writer.add_context_length(config.n_positions)
    writer.add_embedding_length(config.n_embd)
    writer.add_feed_forward_length(4 * config.n_embd)
    writer.add_block_count(config.n_layer)
    writer.add_head_count(config.n_head)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)
    writer.add_file_type(gguf.LlamaFileType["ALL_F32" if dtype == "f32" else f"MOSTLY_{dtype.upper()}"])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def _tensors(model: GPT, matrix_type: GGMLQuantizationType) -> Iterator[tuple[str, Tensor, GGMLQuantizationType]]:
    """Every tensor with its name and type in GGUF; only matrices are ever stored with less than float32."""
    import gguf

    types = gguf.GGMLQuantizationType
    for name, tensor in model.state_dict().items():
        type_ = types.F32 if tensor.dim() < 2 or name == "position_embedding.weight" else matrix_type
        if type_ is types.Q8_0 and tensor.shape[-1] % gguf.GGML_QUANT_SIZES[type_][0]:
            type_ = types.F16
        yield gguf_name(name), tensor, type_


def _add_tokenizer(writer: GGUFWriter, tokenizer: Tokenizer, vocab_size: int) -> tuple[str, ...]:
    """Adds the tokenizer as one of llama.cpp's that gives the same ids; returns notes on remaining differences.

    A byte-pair encoding is llama.cpp's "gpt2". So is a tokenizer of bytes, with one merge that never applies, because
    llama.cpp requires merges. A tokenizer of characters is llama.cpp's "rwkv", which takes the longest token at each
    position: a character if it is a token, else a byte. Merges cannot express that, because they would have to go
    through parts of a character, which are not tokens.
    """
    import gguf

    vocabulary = tokenizer.byte_level("GGUF")
    types = [gguf.TokenType.NORMAL] * vocab_size
    for id in (*tokenizer.unused_ids, *range(tokenizer.vocab_size, vocab_size)):
        types[id] = gguf.TokenType.UNUSED
    for id in vocabulary.added.values():
        types[id] = gguf.TokenType.USER_DEFINED
    for id in tokenizer.special.values():
        types[id] = gguf.TokenType.CONTROL
    by_character = vocabulary.by_character
    tokens = list(tokenizer.token_strings)
    if by_character:
        for id, type_ in enumerate(types[: len(tokens)]):
            if type_ is gguf.TokenType.NORMAL:
                tokens[id] = "".join(f"\\x{byte:02x}" for byte in tokenizer.token_bytes(id))
    padding = r"\xff[PAD{}]" if by_character else "[PAD{}]"  # UTF-8 never has that byte, so no text matches the token
    tokens += [""] * (vocab_size - len(tokens))
    writer.add_tokenizer_model("rwkv" if by_character else "gpt2")
    if not by_character:
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_merges(tokenizer.merge_strings or [NO_MERGE])
    writer.add_token_list([token or padding.format(id) for id, token in enumerate(tokens)])
    writer.add_token_types(types)
    writer.add_bos_token_id(tokenizer.special_id("bos_token"))
    writer.add_eos_token_id(tokenizer.end_of_text)
    for add, id in zip((writer.add_eot_token_id, writer.add_eom_token_id), tokenizer.end_ids[1:], strict=False):
        add(id)
    writer.add_unk_token_id(tokenizer.special_id("unk_token"))
    writer.add_pad_token_id(tokenizer.special_id("pad_token"))
    adds_bos = tokenizer.prefix_ids == (tokenizer.special_id("bos_token"),)
    writer.add_add_bos_token(adds_bos)
    if tokenizer.chat_template is not None:
        writer.add_chat_template(tokenizer.chat_template)
    notes = [f"llama.cpp reads {END_OF_TEXT} in a prompt as the end of a text, minigpt as characters"]
    if tokenizer.prefix_ids and not adds_bos:
        ids = ", ".join(map(str, tokenizer.prefix_ids))
        notes.append(f"the tokenizer puts other tokens than one bos_token before a prompt ({ids}), llama.cpp does not")
    if more := tokenizer.end_ids[3:]:
        ids = ", ".join(map(str, more))
        notes.append(f"GGUF has room for 3 ids that end a text, so llama.cpp may write on after the others ({ids})")
    return tuple(notes)


# Adapters
# Source: llama.cpp, convert_lora_to_gguf.py (keys and names) and src/llama-adapter.cpp (shapes and the scale).

_SMALLEST_ALPHA, _LARGEST_ALPHA = 1e-30, 1e30


def write_gguf_adapter(file: BinaryIO, adapter: Adapter, config: GPTConfig, name: str) -> None:
    """Writes an adapter of a model of this shape into an open named file; llama.cpp adds it to its base model's GGUF.

    llama.cpp scales every product by alpha / r, with one alpha; a layer with another scale has it in its matrix B.
    Raises: CheckpointError for an adapter with DoRA or whole tensors, which GGUF cannot express; OSError.
    """
    import gguf

    for layer in adapter.layers.values():
        if layer.magnitude is not None:
            raise CheckpointError(f"{adapter.directory} uses DoRA, which GGUF adapters do not have; merge it first")
    if adapter.replaced:
        raise CheckpointError(
            f"{adapter.directory} replaces {next(iter(adapter.replaced))!r}, and GGUF adapters only add to matrices; "
            f"merge it first: minigpt merge {adapter.directory}"
        )
    writer = gguf.GGUFWriter(file.name, gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH.GPT2])
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_name(encodable(name))
    if adapter.base is not None:
        writer.add_base_model_count(1)
        writer.add_base_model_name(0, encodable(plain_source(adapter.base)))
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    # llama.cpp reads an alpha of 0 as "not scaled". It is a float32 in the file.
    alphas = (layer.alpha for layer in adapter.layers.values())
    alpha = next((each for each in alphas if _SMALLEST_ALPHA <= abs(each) <= _LARGEST_ALPHA), 1.0)
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, alpha)
    names = {stored: own for own, stored in linear_layers(config).items()}
    for stored, layer in adapter.layers.items():
        own = gguf_name(f"{names[stored]}.weight")
        b = layer.b * (layer.scale * layer.rank / alpha)
        writer.add_tensor(f"{own}.lora_a", np.ascontiguousarray(layer.a.numpy()))  # (r, in)
        writer.add_tensor(f"{own}.lora_b", np.ascontiguousarray(b.numpy()))  # (out, r)
    with closing(writer):
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()


def read_gguf_adapter(path: Path, like: Adapter, config: GPTConfig) -> Adapter:
    """The adapter in a GGUF file, as llama.cpp computes it, with the layers of `like`.

    Raises: CheckpointError if the file is damaged.
    """
    file = GgufFile(path)
    with closing(file):
        alpha = float(file.metadata["adapter.lora.alpha"])
        names = {stored: own for own, stored in linear_layers(config).items()}
        layers = {}
        for stored in like.layers:
            own = gguf_name(f"{names[stored]}.weight")
            a, b = file.read(f"{own}.lora_a"), file.read(f"{own}.lora_b")
            layers[stored] = AdapterLayer(a, b, alpha, alpha / len(a))
    return replace(like, layers=layers)
