"""Converts a model over characters to an equal one over minigpt's character vocabulary.

minigpt's vocabularies contain the 256 bytes and an end of text, so that every text can be encoded. They are added
with embeddings that give a logit of -1000 for every input. So the softmax over all tokens equals the softmax over the
characters.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from minigpt.config import GPTConfig
from minigpt.errors import CheckpointError
from minigpt.storage.huggingface import HEAD, check_tied
from minigpt.storage.tensors import LazyTensor, TensorSource
from minigpt.tokenizer.tokenizer import Tokenizer

_LOGIT = -1000.0  # of a token that is never drawn; the others' logits are between -100 and 100
# The features' constant component along a direction, relative to their norm, of which -1000 is made: the larger, the
# less it is rounded. With each, by how much the difference of two characters' logits may change.
_UNCHANGED = 1e-4
_CONSTANTS = ((0.1, _UNCHANGED), (0.02, 0.01), (0.005, 0.01), (0.001, 0.03), (0.0003, 0.03))
_RIDGE = 1e-12  # relative to the largest eigenvalue
_MAX_LENGTH = 20  # of a shift, relative to its component along that direction


def add_byte_tokens(
    source: TensorSource, config: GPTConfig, characters: Sequence[str]
) -> tuple[GPTConfig, TensorSource, Tokenizer, list[str]]:
    """The same model over the vocabulary of a `chars` tokenizer, and a note if a logit changes; `characters` are its
    tokens in the order of its ids.

    `source` has Hugging Face's names without a prefix.
    Raises: CheckpointError if the number of characters differs from the vocabulary size, or the added tokens cannot be
    kept from being predicted.
    """
    if len(characters) != config.vocab_size or len(set(characters)) != len(characters):
        raise CheckpointError(
            f"{source.path} has a model of {config.vocab_size} tokens, but {len(set(characters))} different characters"
            " are listed"
        )
    tokenizer = Tokenizer.train(["".join(characters)], "chars")
    ids = [tokenizer.encode(character) for character in characters]
    if any(len(each) != 1 for each in ids):
        raise CheckpointError(f"{source.path} has a token that is not a valid Unicode character: {characters}")
    width = config.n_embd
    for name, shape in {"wte.weight": (len(characters), width), "ln_f.weight": (width,), "ln_f.bias": (width,)}.items():
        if source.shapes.get(name) != shape:
            raise CheckpointError(f"{source.path} has no tensor {name!r} of shape {shape}")
    if HEAD in source.shapes:
        check_tied(source, HEAD, "wte.weight")
    embedding = source.read("wte.weight").double()  # (V, C)
    weight, bias = source.read("ln_f.weight").double(), source.read("ln_f.bias").double()  # (C,)
    if not all(tensor.isfinite().all() for tensor in (embedding, weight, bias)):
        raise CheckpointError(f"{source.path} has weights that are NaN or infinite, so its training diverged")
    unpredicted = _never_predicted(embedding, weight, bias, str(source.path))
    enlarged = unpredicted.embedding.repeat(tokenizer.vocab_size, 1)
    enlarged[torch.tensor([each[0] for each in ids])] = embedding
    replaced = {"wte.weight": enlarged.float(), "ln_f.bias": (bias + unpredicted.shift).float()}
    tensors = {**source.tensors, **{name: LazyTensor.of(tensor) for name, tensor in replaced.items()}}
    tensors.pop(HEAD, None)
    notes = []
    if unpredicted.change > _UNCHANGED:
        notes.append(
            f"the model has {len(characters)} characters in {width} features, so the added tokens change the"
            f" characters' logits by up to {unpredicted.change:.1g}"
        )
    return config.replace(vocab_size=tokenizer.vocab_size), source.replace(tensors), tokenizer, notes


class _Unpredicted(NamedTuple):
    """An embedding whose logit is -1000 for every input, a shift of the final norm's bias that makes it possible, and
    by how much the shift changes the difference of two characters' logits at most.
    """

    embedding: Tensor
    shift: Tensor
    change: float


def _never_predicted(embedding: Tensor, weight: Tensor, bias: Tensor, path: str) -> _Unpredicted:
    """Finds that embedding.

    The head reads h = w n + b, where n is normalized and sums to 0. So h · (1/w) = sum(n) + b · (1/w) = b · (1/w) for
    every input: along 1/w the features are constant. If that constant is (almost) 0, as in models without biases,
    the shift changes it. Of the shifts that do, this is the one that changes the characters' logits least: not at all
    if there are fewer characters than features, else by about the same number for all, which changes no probability.
    """
    if weight.abs().min() > 1e-4 * weight.abs().max():
        along = 1 / weight
        along /= along.norm()
        constant, size = float(bias @ along), float(weight.norm())
        for relative, most in _CONSTANTS:
            if abs(constant) >= relative * size / 2:
                return _Unpredicted(along * (_LOGIT / constant), torch.zeros_like(bias), 0.0)
            changing = embedding if most == _UNCHANGED else embedding - embedding.mean(dim=0)  # (V, C)
            direction = _least_changing(changing, along)
            shift = direction * (math.copysign(relative * size, constant) - constant)
            changes = changing @ shift
            change = 2 * float(changes.abs().max())
            if change <= most and float(direction.norm()) <= _MAX_LENGTH:
                return _Unpredicted(along * (_LOGIT / float((bias + shift) @ along)), shift, change)
    raise CheckpointError(
        f"{path} has {len(embedding)} tokens in {len(weight)} features, which leaves no direction for tokens that are"
        " never predicted, such as the bytes that it lacks; train it again with `minigpt train --tokenizer chars`"
    )


def _least_changing(embedding: Tensor, along: Tensor) -> Tensor:
    """The direction with component 1 along a unit vector whose products with the rows of the embedding are least."""
    values, vectors = torch.linalg.eigh(embedding.T @ embedding)
    direction = vectors @ ((vectors.T @ along) / (values.clamp(min=0) + _RIDGE * values[-1]))
    return direction / (direction @ along)
