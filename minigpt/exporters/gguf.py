"""A model as one GGUF file, as llama.cpp, Ollama and LM Studio read it; whether they agree with us, it does not check.

What is written is what llama.cpp's own converter writes for a GPT-2: matrices as torch's linear layers have them,
vectors and position embeddings in float32 whatever the dtype, and no output matrix, since the head is tied.
Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; llama.cpp, conversion/base.py and conversion/gpt2.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from torch import Tensor

from minigpt.errors import CheckpointError
from minigpt.importers.gguf_names import name_in_gguf
from minigpt.model.gpt import GPT
from minigpt.storage.run_record import RunRecord
from minigpt.tokenizer.tokenizer import Tokenizer
from minigpt.tokenizer.vocabulary import END_OF_TEXT

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType, GGUFWriter

NO_MERGE = f"{END_OF_TEXT} {END_OF_TEXT}"  # of two words that no text is split into
_CONTEXT_STEP, _LARGEST_F16 = 256, 65504.0
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
    """Writes a model into an open file that has a name, one tensor after the other, and says what a user should know.

    `dtype` is one of GGUF_DTYPES.
    Raises: CheckpointError where a number is too large for the dtype; OSError.
    """
    import gguf

    writer = gguf.GGUFWriter(file.name, gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH.GPT2])
    _describe(writer, model, dtype, name, record or RunRecord())
    notes = _add_tokenizer(writer, tokenizer, model.config.vocab_size)
    tensors = list(_tensors(model, gguf.GGMLQuantizationType[dtype.upper()]))
    for theirs, tensor, kind in tensors:
        *rows, row = gguf.quant_shape_to_byte_shape(tuple(tensor.shape), kind)
        writer.add_tensor_info(theirs, tensor.shape, np.dtype(np.float32), math.prod(rows) * row, raw_dtype=kind)
    with closing(writer):
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
    file.seek(0, 2)
    for theirs, tensor, kind in tensors:  # not by the writer, whose errors do not say that the disk is full
        numbers = tensor.detach().float().cpu().contiguous()
        if kind.name == "F16" and (largest := float(numbers.abs().max())) > _LARGEST_F16:
            raise CheckpointError(
                f"{theirs} holds {largest:.3g}, and f16 at most {_LARGEST_F16:.0f}; choose dtype bf16 or f32"
            )
        file.write(bytes(-file.tell() % gguf.GGUF_DEFAULT_ALIGNMENT))
        file.write(gguf.quantize(numbers.numpy(), kind).data)
    file.write(bytes(-file.tell() % gguf.GGUF_DEFAULT_ALIGNMENT))
    if dtype == "q8_0" and (kept := sum(kind.name == "F16" for *_, kind in tensors)):
        notes += (f"{kept} matrices are f16: their rows cannot be cut into q8_0's blocks of 32 numbers",)
    if model.config.activation_function != "gelu_new":
        notes += (
            "llama.cpp knows GPT-2's tanh form of GELU only, this model has the exact one: logits differ a little",
        )
    if (context := model.config.n_positions) % _CONTEXT_STEP:
        notes += (
            f"llama.cpp rounds the context up to a multiple of {_CONTEXT_STEP} and aborts where the model has no more"
            f" positions: keep prompt and new tokens (-n) together within {context}",
        )
    return notes


def _describe(writer: GGUFWriter, model: GPT, dtype: str, name: str, record: RunRecord) -> None:
    """What the model is (general.*) and its shape (gpt2.*)."""
    import gguf

    config = model.config
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(name)
    writer.add_size_label(gguf.size_label(config.n_parameters, 0, 0, 0))
    if sources := [Path(source).name for source in record.sources]:
        writer.add_description(f"trained with minigpt on {', '.join(sources)}")
    if base := record.base:
        writer.add_base_model_count(1)
        writer.add_base_model_name(0, Path(base).name)
    writer.add_tags(["text-generation"])
    writer.add_context_length(config.n_positions)
    writer.add_embedding_length(config.n_embd)
    writer.add_feed_forward_length(4 * config.n_embd)
    writer.add_block_count(config.n_layer)
    writer.add_head_count(config.n_head)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)
    writer.add_file_type(gguf.LlamaFileType["ALL_F32" if dtype == "f32" else f"MOSTLY_{dtype.upper()}"])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def _tensors(model: GPT, kind: GGMLQuantizationType) -> Iterator[tuple[str, Tensor, GGMLQuantizationType]]:
    """Every tensor by its name in GGUF, and how it is kept there: only matrices are ever less than float32."""
    import gguf

    kinds = gguf.GGMLQuantizationType
    for name, tensor in model.state_dict().items():
        own = kinds.F32 if tensor.dim() < 2 or name == "position_embedding.weight" else kind
        if own is kinds.Q8_0 and tensor.shape[-1] % gguf.GGML_QUANT_SIZES[own][0]:
            own = kinds.F16
        yield name_in_gguf(name), tensor, own


def _add_tokenizer(writer: GGUFWriter, tokenizer: Tokenizer, vocab_size: int) -> tuple[str, ...]:
    """The tokenizer as one of llama.cpp's that gives the same ids, and what of it is different all the same.

    Byte-pair encodings are its "gpt2"; bytes too, whose merges, which may not be missing there, are one that never
    applies. Characters are its "rwkv", which takes the longest word at each place: one character where that is a word,
    else one byte. Merges could not say that, as half of a character of three bytes is no word, and would be lost.
    """
    import gguf

    kinds = [gguf.TokenType.NORMAL] * vocab_size
    for id in (*tokenizer.unused_ids, *range(tokenizer.vocab_size, vocab_size)):
        kinds[id] = gguf.TokenType.UNUSED
    for id in tokenizer.vocabulary.added.values():
        kinds[id] = gguf.TokenType.USER_DEFINED
    for id in tokenizer.special.values():
        kinds[id] = gguf.TokenType.CONTROL
    by_character = tokenizer.vocabulary.by_character
    words = list(tokenizer.token_strings)
    if by_character:
        for id, kind in enumerate(kinds[: len(words)]):
            if kind is gguf.TokenType.NORMAL:
                words[id] = "".join(f"\\x{byte:02x}" for byte in tokenizer.token_bytes(id))
    padding = r"\xff[PAD{}]" if by_character else "[PAD{}]"  # no UTF-8 has that byte, so no text matches the word
    words += [""] * (vocab_size - len(words))
    writer.add_tokenizer_model("rwkv" if by_character else "gpt2")
    if not by_character:
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_merges(tokenizer.merge_strings or [NO_MERGE])
    writer.add_token_list([word or padding.format(id) for id, word in enumerate(words)])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(tokenizer.end_of_text)
    writer.add_eos_token_id(tokenizer.end_of_text)
    writer.add_unk_token_id(tokenizer.end_of_text)
    writer.add_pad_token_id(tokenizer.end_of_text)
    writer.add_add_bos_token(False)
    if not by_character:
        return ()
    return (f"{END_OF_TEXT} in a prompt is the end of a text to llama.cpp, and characters to minigpt",)
