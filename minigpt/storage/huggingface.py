"""GPT-2 as Hugging Face stores it: names and orientation of the weights, and config.json, both ways.

It knows tensors and dictionaries; which files they stand in is `checkpoint`'s and `pretrained`'s concern.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from minigpt.config import GPTConfig
from minigpt.errors import CheckpointError, ConfigError
from minigpt.model.gpt import GPT

PREFIX = "transformer."  # of every name that GPT2LMHeadModel saves; OpenAI's own files on the hub go without
_PREFIXES = re.compile(r"((_orig_mod|module|model|transformer)\.)+")  # torch.compile's and DDP's, and other wrappers'
HEAD = "lm_head.weight"
# Heads beside the one that predicts words: those that it writes as well without, and those that it was made for.
_SPARE_HEADS = ("multiple_choice_head.", "v_head.")
_OTHER_HEADS = {"score.": "text classes", "classifier.": "word classes", "qa_outputs.": "answers in a text"}
_MASKS = re.compile(r"h\.\d+\.attn\.(masked_)?bias")  # buffers that older versions saved

# Where config.json has no value: GPT-2's, as transformers takes them. GPTConfig's other defaults are the same.
_DEFAULT_DROPOUT = 0.1
_ALIASES = {
    "n_positions": ("max_position_embeddings", "n_ctx"),
    "n_embd": ("hidden_size",),
    "n_layer": ("num_hidden_layers",),
    "n_head": ("num_attention_heads",),
}
# transformers' names of two functions; gelu_fast is the tanh form with its constant multiplied out.
_ACTIVATIONS = {
    "gelu_new": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "gelu_fast": "gelu_new",
    "gelu": "gelu",
    "gelu_python": "gelu",
}


class TensorSource(Protocol):
    """Named tensors to be read one by one, as `TensorFile` has them: a file, several, or another format's.

    `shapes` are every tensor's; `read` gives one in memory of its own, `borrow` in memory that the next borrowing may
    overwrite, `map` where it lies on disk if it lies there in this dtype, else None. `path` names it in errors.
    """

    path: Path

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]: ...

    def read(self, name: str) -> Tensor: ...

    def borrow(self, name: str) -> Tensor: ...

    def map(self, name: str, dtype: torch.dtype) -> Tensor | None: ...

    def close(self) -> None: ...


class Stored(NamedTuple):
    """A tensor of the model as Hugging Face stores it: our name, theirs without prefix, and its shape there."""

    ours: str
    theirs: str
    shape: tuple[int, ...]

    @property
    def transposed(self) -> bool:
        """Hugging Face keeps what OpenAI's code had: x @ W, where torch's linear layers have x @ W^T."""
        return self.ours.endswith("_proj.weight")


def _modules(config: GPTConfig) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """The table of names, and the shape of each weight there."""
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


def stored_tensors(config: GPTConfig) -> Iterator[Stored]:
    """Every tensor of a model of this shape, as Hugging Face stores it."""
    for ours, theirs, shape in _modules(config):
        yield Stored(f"{ours}.weight", f"{theirs}.weight", shape)
        if not ours.endswith("_embedding"):
            yield Stored(f"{ours}.bias", f"{theirs}.bias", shape[-1:])


def to_huggingface(model: GPT, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """The model's tensors by Hugging Face's names and in its orientation: views, copied only where `dtype` differs."""
    state = model.state_dict()
    tensors = {}
    for stored in stored_tensors(model.config):
        tensor = state[stored.ours].to(dtype) if dtype else state[stored.ours]
        tensors[PREFIX + stored.theirs] = tensor.t() if stored.transposed else tensor
    return tensors


def from_huggingface(
    file: TensorSource,
    config: GPTConfig,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    mapped: bool = False,
) -> GPT:
    """The model in a file of GPT-2 weights, in eval mode, at the cost of its weights in memory and little more.

    `mapped` weights stay in the file where it holds them in this dtype, and are read as they are used: a start takes
    milliseconds, and matrices lie as the file has them, turned. Only for models that are not trained.

    Prefixes of all ages, mask buffers, a stored copy of the tied head, spare heads and other dtypes are met.
    Raises: CheckpointError naming the tensor that is missing, too many, misshapen, or an untied head.
    """
    tensors = {}
    mapped = mapped and torch.device(device).type == "cpu"
    for stored, name in _match(file, config).items():
        if mapped and (lying := file.map(name, dtype)) is not None:
            tensors[stored.ours] = lying.t() if stored.transposed else lying
            continue
        # Turned matrices are made anew, all others stay in the memory that they were read into.
        tensor = file.borrow(name).t() if stored.transposed else file.read(name)
        tensors[stored.ours] = tensor.to(device, dtype, copy=stored.transposed, memory_format=torch.contiguous_format)
    return GPT.from_tensors(config, tensors).to(device).eval()


def plain_name(name: str) -> str:
    """A tensor's name without what a wrapper put in front of it."""
    match = _PREFIXES.match(name)
    return name[match.end() :] if match else name


def left_out(file: TensorSource) -> tuple[str, ...]:
    """Sentences on the tensors of a file that `from_huggingface` does not take, where the model had a use for them."""
    spare = sorted({plain_name(name).partition(".")[0] for name in file.shapes if _is_spare(name)})
    return tuple(f"{head} is left out: it is no part of what predicts words" for head in spare)


def _is_spare(name: str) -> bool:
    return plain_name(name).startswith(_SPARE_HEADS)


def _match(file: TensorSource, config: GPTConfig) -> dict[Stored, str]:
    """Every tensor of the model and its full name in the file, which holds these and no others.

    Raises: CheckpointError, as `from_huggingface`.
    """
    shapes = file.shapes
    unmatched: dict[str, str] = {}
    for full in shapes:
        other = unmatched.setdefault(plain_name(full), full)
        if other != full:
            raise CheckpointError(f"{file.path} has both {other!r} and {full!r}, expected one of them")
    head = unmatched.pop(HEAD, None)
    if head is not None:
        unmatched.setdefault("wte.weight", head)  # of tied tensors, safetensors' save_model keeps the first by name
    names = {}
    for stored in stored_tensors(config):
        name = unmatched.pop(stored.theirs, None)
        if name is None:
            raise CheckpointError(f"{file.path} has no tensor {stored.theirs!r}, expected of shape {stored.shape}")
        if shapes[name] != stored.shape:
            raise CheckpointError(f"{name!r} in {file.path} is of shape {shapes[name]}, expected {stored.shape}")
        names[stored] = name
    for theirs, name in unmatched.items():
        if not (_MASKS.fullmatch(theirs) or _is_spare(theirs)):
            for start, predicted in _OTHER_HEADS.items():
                if theirs.startswith(start):
                    raise CheckpointError(
                        f"{file.path} predicts {predicted} ({name!r}) rather than words, so there is nothing that it"
                        " could write; give the language model that it was made from"
                    )
            raise CheckpointError(
                f"{file.path} has a tensor {name!r} of shape {shapes[name]} that a GPT-2 of {config.n_layer} blocks"
                " does not have"
            )
    if head is not None:
        check_tied(file, head, next(iter(names.values())))
    return names


def check_tied(file: TensorSource, head: str, tied: str) -> None:
    """Makes sure that a head is stored as a copy of the token embedding, as GPT-2's is one with it.

    Raises: CheckpointError where it is not.
    """
    if head != tied and not torch.equal(file.borrow(head), file.read(tied)):
        raise CheckpointError(
            f"{head!r} in {file.path} differs from {tied!r}: an output head of its own is not supported,"
            " it must be tied to the token embedding"
        )


def config_to_huggingface(config: GPTConfig, *, end_of_text: int, dtype: torch.dtype) -> dict[str, Any]:
    """The content of config.json."""
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
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_text,
        "use_cache": True,
        "torch_dtype": str(dtype).removeprefix("torch."),  # the name that old and new transformers both read
    }


def config_from_huggingface(values: Mapping[str, Any], source: object) -> GPTConfig:
    """The shape that a config.json describes; `source` names the file in errors.

    Missing keys take GPT-2's values. Of the three dropouts, `resid_pdrop` is the one kept: they matter in training
    only. `reorder_and_upcast_attn` is met: in float32 it changes the order of roundings and nothing else.
    Raises: CheckpointError where it is not a GPT-2, or one whose function differs from the published one.
    """
    model_type = values.get("model_type", "gpt2" if "n_embd" in values else None)  # the oldest files name no type
    if model_type != "gpt2":
        raise CheckpointError(f"model_type ({model_type!r}) in {source} must be 'gpt2'")
    settings: dict[str, Any] = {"dropout": values.get("resid_pdrop", _DEFAULT_DROPOUT)}
    for name in ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "layer_norm_epsilon"):
        for key in (name, *_ALIASES.get(name, ())):
            if key in values:
                settings[name] = values[key]
                break
    if (activation := str(values.get("activation_function"))) in _ACTIVATIONS:  # what is not is refused below
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
            raise CheckpointError(f"{option} ({value!r}) in {source} makes another model than GPT-2's: {expected}")
    return config


def infer_config(file: TensorSource) -> GPTConfig:
    """The shape that the tensors themselves tell; the heads are taken to be 64 wide, as in every GPT-2.

    Raises: CheckpointError where they do not tell.
    """
    shapes = {plain_name(name): shape for name, shape in file.shapes.items()}
    blocks = {int(match[1]) for name in shapes if (match := re.match(r"h\.(\d{1,6})\.", name))}
    words, positions = shapes.get("wte.weight", shapes.get(HEAD, ())), shapes.get("wpe.weight", ())
    if len(words) != 2 or len(positions) != 2 or not blocks:
        raise CheckpointError(f"{file.path} does not hold GPT-2's tensors, 'wte.weight', 'wpe.weight' and 'h.0.…'")
    if words[1] % 64:
        raise CheckpointError(
            f"{file.path} needs its config.json beside it: how many heads {words[1]} features are cannot be told"
        )
    return GPTConfig(
        vocab_size=words[0],
        n_positions=positions[0],
        n_embd=words[1],
        n_layer=max(blocks) + 1,
        n_head=words[1] // 64,
        dropout=_DEFAULT_DROPOUT,
    )
