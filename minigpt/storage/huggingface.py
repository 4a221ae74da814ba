"""Converts GPT-2's weights and config.json between minigpt's form and Hugging Face's."""

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from minigpt.config import GPTConfig
from minigpt.errors import CheckpointError, ConfigError
from minigpt.model.gpt import GPT
from minigpt.storage.tensors import TensorSource

PREFIX = "transformer."  # GPT2LMHeadModel saves every name with it; OpenAI's files on the hub have none
_PREFIXES = re.compile(r"((_orig_mod|module|model|transformer)\.)+")  # of torch.compile, DDP and other wrappers
EMBEDDING_MODULE, HEAD_MODULE = "wte", "lm_head"  # transformers' modules, which share one matrix in GPT-2
HEAD = f"{HEAD_MODULE}.weight"
# A language model may have these heads as well, and does not need them to generate.
_UNUSED_HEADS = ("multiple_choice_head.", "v_head.")
# A model with one of these heads predicts something other than the next token.
_OTHER_HEADS = {"score.": "text classes", "classifier.": "token classes", "qa_outputs.": "answers in a text"}
_MASKS = re.compile(r"h\.\d+\.attn\.(masked_)?bias")  # buffers that older versions of transformers saved

# transformers' default, and so the value of a config.json without one. GPTConfig's other defaults are the same.
_DEFAULT_DROPOUT = 0.1
_ALIASES = {
    "n_positions": ("max_position_embeddings", "n_ctx"),
    "n_embd": ("hidden_size",),
    "n_layer": ("num_hidden_layers",),
    "n_head": ("num_attention_heads",),
}
# transformers' names of two functions; some of the tanh form round differently.
_ACTIVATIONS = {
    "gelu_new": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "gelu_fast": "gelu_new",
    "gelu_accurate": "gelu_new",
    "gelu_python_tanh": "gelu_new",
    "gelu": "gelu",
    "gelu_python": "gelu",
}


class StoredTensor(NamedTuple):
    """A tensor of the model: its name here, and its name (without prefix) and shape in a Hugging Face file."""

    name: str
    stored_name: str
    shape: tuple[int, ...]

    @property
    def transposed(self) -> bool:
        """Whether Hugging Face stores the transpose: OpenAI's code has x @ W, torch's linear layers x @ W^T."""
        return self.name.endswith("_proj.weight")


def _modules(config: GPTConfig) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Every module's name here, its name in Hugging Face's files, and the shape of its weight there."""
    c = config.n_embd
    yield "token_embedding", "wte", (config.vocab_size, c)
    yield "position_embedding", "wpe", (config.n_positions, c)
    for i in range(config.n_layer):
        yield f"blocks.{i}.attention_norm", f"h.{i}.ln_1", (c,)
        yield f"blocks.{i}.attention.qkv_proj", f"h.{i}.attn.c_attn", (c, 3 * c)
        yield f"blocks.{i}.attention.out_proj", f"h.{i}.attn.c_proj", (c, c)
        yield f"blocks.{i}.mlp_norm", f"h.{i}.ln_2", (c,)
        yield f"blocks.{i}.mlp.up_proj", f"h.{i}.mlp.c_fc", (c, 4 * c)
        yield f"blocks.{i}.mlp.down_proj", f"h.{i}.mlp.c_proj", (4 * c, c)
    yield "final_norm", "ln_f", (c,)


def linear_layers(config: GPTConfig) -> dict[str, str]:
    """The linear layers of the blocks: their names here, and in Hugging Face's files without prefix."""
    return {name: stored for name, stored, _ in _modules(config) if name.endswith("_proj")}


def stored_tensors(config: GPTConfig) -> Iterator[StoredTensor]:
    """Every tensor of a model of this shape, as Hugging Face stores it."""
    for name, stored_name, shape in _modules(config):
        yield StoredTensor(f"{name}.weight", f"{stored_name}.weight", shape)
        if not name.endswith("_embedding"):
            yield StoredTensor(f"{name}.bias", f"{stored_name}.bias", shape[-1:])


def to_huggingface(model: GPT, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """The model's tensors with Hugging Face's names and orientation: views, or copies if `dtype` differs."""
    state = model.state_dict()
    tensors = {}
    for stored in stored_tensors(model.config):
        tensor = state[stored.name].to(dtype) if dtype else state[stored.name]
        tensors[PREFIX + stored.stored_name] = tensor.t() if stored.transposed else tensor
    return tensors


def from_huggingface(
    file: TensorSource,
    config: GPTConfig,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    mapped: bool = False,
) -> GPT:
    """The model in a file of GPT-2 weights, in eval mode; memory use peaks at little more than the weights.

    With `mapped`, weights that the file holds in this dtype stay memory-mapped: loading takes milliseconds, and
    matrices are transposed views. Use it only for models that are not trained.

    Accepts the prefixes of all versions, mask buffers, a stored copy of the tied head, unused heads and other dtypes.
    Raises: CheckpointError naming a tensor that is missing, unexpected, of the wrong shape, or an untied head.
    """
    check_size(config, file)
    tensors = {}
    mapped = mapped and torch.device(device).type == "cpu"
    for stored, name in _match(file, config).items():
        if mapped and (view := file.tensors[name].map(dtype)) is not None:
            tensors[stored.name] = view.t() if stored.transposed else view
            continue
        # A transposed matrix must be copied, so its source may share a buffer; the others keep what they were read to.
        tensor = file.read(name, reuse_buffer=stored.transposed)
        tensor = tensor.t() if stored.transposed else tensor
        tensors[stored.name] = tensor.to(device, dtype, copy=stored.transposed, memory_format=torch.contiguous_format)
    return GPT.from_tensors(config, tensors).to(device).eval()


def check_size(config: GPTConfig, file: TensorSource) -> None:
    """Checks that a file may hold the weights of a model of this shape, before memory is taken for the model.

    Raises: CheckpointError if the file has far fewer values, or the mask would be far larger than the weights.
    """
    values = sum(math.prod(shape) for shape in file.shapes.values())
    if config.n_parameters > 4 * values:  # with fewer, the tensor that is missing or too small is named later
        shape = (
            f"{config.n_layer:,} blocks, {config.n_embd:,} features, {config.vocab_size:,} tokens and"
            f" {config.n_positions:,} positions"
        )
        raise CheckpointError(
            f"{file.path} holds {values:,} values, but a model of {shape} has {config.n_parameters:,} parameters"
        )
    if not config.mask_fits(values):
        raise CheckpointError(
            f"{file.path} holds {values:,} values, too few for a model of {config.n_positions:,} positions, whose"
            f" causal mask takes {config.mask_bytes:,} bytes"
        )


def plain_name(name: str) -> str:
    """A tensor's name without the prefixes of wrappers."""
    match = _PREFIXES.match(name)
    return name[match.end() :] if match else name


def unused_heads(file: TensorSource) -> tuple[str, ...]:
    """One sentence for each head in the file that `from_huggingface` skips."""
    heads = sorted({plain_name(name).partition(".")[0] for name in file.shapes if _is_unused_head(name)})
    return tuple(f"{head} is skipped: it does not predict tokens" for head in heads)


def _is_unused_head(name: str) -> bool:
    return plain_name(name).startswith(_UNUSED_HEADS)


def _match(file: TensorSource, config: GPTConfig) -> dict[StoredTensor, str]:
    """Every tensor of the model with its full name in the file."""
    shapes = file.shapes
    unmatched: dict[str, str] = {}
    for full in shapes:
        other = unmatched.setdefault(plain_name(full), full)
        if other != full:
            raise CheckpointError(f"{file.path} has both {other!r} and {full!r}, expected only one of them")
    head = unmatched.pop(HEAD, None)
    if head is not None:
        # Of two tied tensors, safetensors' save_model keeps the one whose name sorts first: the head.
        unmatched.setdefault("wte.weight", head)
    names = {}
    for stored in stored_tensors(config):
        name = unmatched.pop(stored.stored_name, None)
        if name is None:
            raise CheckpointError(f"{file.path} has no tensor {stored.stored_name!r}, expected of shape {stored.shape}")
        if shapes[name] != stored.shape:
            raise CheckpointError(f"{name!r} in {file.path} has shape {shapes[name]}, expected {stored.shape}")
        names[stored] = name
    for plain, name in unmatched.items():
        if not (_MASKS.fullmatch(plain) or _is_unused_head(plain)):
            for start, predicted in _OTHER_HEADS.items():
                if plain.startswith(start):
                    raise CheckpointError(
                        f"{file.path} predicts {predicted} ({name!r}), not the next token, so it cannot generate text;"
                        " give the language model that it was fine-tuned from"
                    )
            raise CheckpointError(
                f"{file.path} has an unexpected tensor {name!r} of shape {shapes[name]} for a GPT-2 of"
                f" {config.n_layer} blocks"
            )
    if head is not None:
        check_tied(file, head, next(iter(names.values())))
    return names


def check_tied(file: TensorSource, head: str, tied: str) -> None:
    """Checks that the stored output head equals the token embedding, to which GPT-2's head is tied.

    Raises: CheckpointError if it does not.
    """
    if head != tied and not torch.equal(file.read(head, reuse_buffer=True), file.read(tied)):
        raise CheckpointError(
            f"{head!r} in {file.path} differs from {tied!r}: the output head must be tied to the token embedding"
        )


def config_to_huggingface(
    config: GPTConfig, *, end_of_text: int, dtype: torch.dtype, start_of_text: int | None = None
) -> dict[str, Any]:
    """The content of config.json; texts start with end-of-text by default."""
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": config.vocab_size,
        "n_positions": config.n_positions,
        "n_ctx": config.n_positions,
        "n_embd": config.n_embd,
        "n_layer": config.n_layer,
        "n_head": config.n_head,
        "n_inner": None,
        "activation_function": config.activation_function,
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.dropout,
        "resid_pdrop": config.dropout,
        "layer_norm_epsilon": config.layer_norm_epsilon,
        "initializer_range": 0.02,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "reorder_and_upcast_attn": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
        "bos_token_id": end_of_text if start_of_text is None else start_of_text,
        "eos_token_id": end_of_text,
        "use_cache": True,
        "torch_dtype": str(dtype).removeprefix("torch."),  # old and new versions of transformers read this key
    }


def config_from_huggingface(values: Mapping[str, Any], source: object) -> GPTConfig:
    """The model's shape from the content of a config.json; `source` names the file in errors.

    Missing keys take GPT-2's values. Of the three dropouts only `resid_pdrop` is kept. `reorder_and_upcast_attn` is
    ignored: in float32 it changes nothing but the order of rounding.
    Raises: CheckpointError if it is not a GPT-2, or has an option that computes something else than GPT-2.
    """
    model_type = values.get("model_type", "gpt2" if "n_embd" in values else None)  # the oldest files have no type
    if model_type != "gpt2":
        raise CheckpointError(f"model_type ({model_type!r}) in {source} must be 'gpt2'")
    settings: dict[str, Any] = {"dropout": values.get("resid_pdrop", _DEFAULT_DROPOUT)}
    for name in ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "layer_norm_epsilon"):
        for key in (name, *_ALIASES.get(name, ())):
            if key in values:
                settings[name] = values[key]
                break
    if (activation := str(values.get("activation_function"))) in _ACTIVATIONS:  # others are refused below
        settings["activation_function"] = _ACTIVATIONS[activation]
    try:
        config = GPTConfig(**settings)
    except ConfigError as error:
        raise CheckpointError(f"{source}: {error}") from error
    supported: dict[str, tuple[object, ...]] = {
        "activation_function": tuple(_ACTIVATIONS),
        "n_inner": (None, 4 * config.n_embd),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
        "tie_word_embeddings": (True,),
    }
    for option, choices in supported.items():
        value = values.get(option, choices[0])
        if value not in choices:
            expected = " or ".join(repr(choice) for choice in choices)
            raise CheckpointError(f"{option} ({value!r}) in {source} must be {expected}, as in GPT-2")
    return config


def infer_config(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> GPTConfig:
    """The model's shape from the shapes of its tensors, assuming heads of 64 features, as in every GPT-2.

    Raises: CheckpointError if they do not determine it.
    """
    plain = {plain_name(name): shape for name, shape in shapes.items()}
    blocks = {int(match[1]) for name in plain if (match := re.match(r"h\.(\d{1,6})\.", name))}
    tokens, positions = plain.get("wte.weight", plain.get(HEAD, ())), plain.get("wpe.weight", ())
    if len(tokens) != 2 or len(positions) != 2 or not blocks:
        raise CheckpointError(f"{path} does not hold GPT-2's tensors, 'wte.weight', 'wpe.weight' and 'h.0.…'")
    vocab_size, n_embd = tokens
    if n_embd % 64 or not n_embd:
        raise CheckpointError(
            f"{path} needs its config.json next to it: its {n_embd} features are not a multiple of 64, so the number of"
            " heads is unknown"
        )
    settings = {"n_layer": max(blocks) + 1, "n_head": n_embd // 64, "n_positions": positions[0], "n_embd": n_embd}
    return config_from_huggingface({"model_type": "gpt2", "vocab_size": vocab_size, **settings}, path)
