"""Converts a model over characters to an equal one over minigpt's character vocabulary.

minigpt's vocabularies contain the 256 bytes and an end of text, so that every text can be encoded. They are added
with embeddings that give a logit of -1000 for every input. So the softmax over all tokens equals the softmax over the
characters.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from minigpt.config import GPTConfig
from minigpt.errors import CheckpointError
from minigpt.importers.tensor_sources import ReplacedTensors
from minigpt.storage.huggingface import HEAD, TensorSource, check_tied
from minigpt.tokenizer.tokenizer import Tokenizer

_LOGIT = -1000.0  # of a token that is never drawn; the others' logits are between -100 and 100
# The features' constant component along a direction, relative to their norm, that suffices to make -1000 of it
# without visible rounding.
_MIN_CONSTANT = 0.05


def add_byte_tokens(
    source: TensorSource, config: GPTConfig, characters: Sequence[str]
) -> tuple[GPTConfig, TensorSource, Tokenizer]:
    """The same model over the vocabulary of a `chars` tokenizer; `characters` are its tokens in the order of its ids.

    `source` has Hugging Face's names without a prefix. The characters keep their logits, up to rounding.
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
    unpredicted, shift = _never_predicted(embedding, weight, bias, str(source.path))
    enlarged = unpredicted.repeat(tokenizer.vocab_size, 1)
    enlarged[torch.tensor([each[0] for each in ids])] = embedding
    replaced = {"wte.weight": enlarged.float(), "ln_f.bias": (bias + shift).float()}
    tensors = ReplacedTensors(source, replaced, removed=(HEAD,))
    return config.replace(vocab_size=tokenizer.vocab_size), tensors, tokenizer


def _never_predicted(embedding: Tensor, weight: Tensor, bias: Tensor, path: str) -> tuple[Tensor, Tensor]:
    """An embedding whose logit is -1000 for every input, and a shift of the final norm's bias that makes it possible.

    The head reads h = w n + b, where n is normalized and sums to 0. So h · (1/w) = sum(n) + b · (1/w) = b · (1/w) for
    every input: along 1/w the features are constant. If that constant is (almost) 0, as in models without biases,
    the shift changes it. The shift is orthogonal to every character's embedding, so no character's logit changes.
    """
    n_free = embedding.shape[1] - embedding.shape[0]
    if weight.abs().min() > 1e-4 * weight.abs().max():
        along = 1 / weight
        along /= along.norm()
        shift = torch.zeros_like(bias)
        constant, enough = float(bias @ along), _MIN_CONSTANT * float(weight.norm())
        if abs(constant) < enough and n_free > 0:
            basis = torch.linalg.svd(embedding, full_matrices=True).Vh[len(embedding) :]  # (C - V, C)
            free = basis.T @ (basis @ along)  # the component of `along` that is orthogonal to every embedding
            if float(free.norm()) >= _MIN_CONSTANT:
                shift = free * ((2 * enough if constant >= 0 else -2 * enough) / float(free @ along))
                constant = float((bias + shift) @ along)
        if abs(constant) >= enough:
            return along * (_LOGIT / constant), shift
    raise CheckpointError(
        f"{path} has {len(embedding)} tokens in {len(weight)} features, which leaves no direction for tokens that are"
        " never predicted, such as the bytes that it lacks; train it again with `minigpt train --tokenizer chars`"
    )
