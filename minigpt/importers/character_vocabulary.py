"""A model whose words are characters and nothing else, as an equal one that has every byte and an end of text.

minigpt's words begin with the 256 bytes, so that no text is unencodable. A model without them can be given them, if
they are never predicted: their logits are made so low, for every input, that the softmax over all words is the one over
the characters. It knows no files.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from minigpt.config import GPTConfig
from minigpt.errors import CheckpointError
from minigpt.storage.huggingface import HEAD, TensorSource, check_tied
from minigpt.tokenizer.tokenizer import Tokenizer

_LOGIT = -1000.0  # of a word that is never drawn, where the others' are between -100 and 100
_ENOUGH = 0.05  # of the features' length along one direction, to be made -1000 of without rounding showing


class ReplacedTensors:
    """A source of which some tensors are others than the file's, and which has no copy of the tied head."""

    def __init__(self, source: TensorSource, replaced: dict[str, Tensor]) -> None:
        self.path, self._source, self._replaced = source.path, source, replaced

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor's name and shape."""
        shapes = self._source.shapes | {name: tuple(tensor.shape) for name, tensor in self._replaced.items()}
        shapes.pop(HEAD, None)
        return shapes

    def read(self, name: str) -> Tensor:
        """One tensor, in memory of its own.

        Raises: as the source does.
        """
        return self._replaced[name].clone() if name in self._replaced else self._source.read(name)

    def borrow(self, name: str) -> Tensor:
        """One tensor, in memory that the next borrowing may overwrite.

        Raises: as `read`.
        """
        return self._replaced[name] if name in self._replaced else self._source.borrow(name)

    def map(self, name: str, dtype: torch.dtype) -> Tensor | None:
        """One tensor where it lies in the file, or None.

        Raises: as `read`.
        """
        return None if name in self._replaced else self._source.map(name, dtype)

    def close(self) -> None:
        """Lets go of the source."""
        self._source.close()


def with_bytes(
    source: TensorSource, config: GPTConfig, characters: Sequence[str]
) -> tuple[GPTConfig, TensorSource, Tokenizer]:
    """The same model over the words of a `chars` tokenizer; `characters` are the words it has, in the order of its ids.

    `source` has Hugging Face's names without a prefix. The characters keep their logits, up to roundings.
    Raises: CheckpointError where characters are not as many as the model has words, or nothing keeps bytes unpredicted.
    """
    if len(characters) != config.vocab_size or len(set(characters)) != len(characters):
        raise CheckpointError(
            f"{source.path} has a model of {config.vocab_size} words, and {len(set(characters))} characters are named"
        )
    tokenizer = Tokenizer.train(["".join(characters)], "chars")
    ids = [tokenizer.encode(character) for character in characters]
    if any(len(each) != 1 for each in ids):
        raise CheckpointError(f"{source.path} has a word that is no character that can be written: {characters}")
    width = config.n_embd
    for name, shape in {"wte.weight": (len(characters), width), "ln_f.weight": (width,), "ln_f.bias": (width,)}.items():
        if source.shapes.get(name) != shape:
            raise CheckpointError(f"{source.path} has no tensor {name!r} of shape {shape}")
    if HEAD in source.shapes:
        check_tied(source, HEAD, "wte.weight")
    embedding = source.read("wte.weight").double()  # (V, C)
    weight, bias = source.read("ln_f.weight").double(), source.read("ln_f.bias").double()  # (C,)
    if not all(tensor.isfinite().all() for tensor in (embedding, weight, bias)):
        raise CheckpointError(f"{source.path} has weights that are no numbers, as of a training that went wrong")
    unpredicted, shift = _never_predicted(embedding, weight, bias, str(source.path))
    enlarged = unpredicted.repeat(tokenizer.vocab_size, 1)
    enlarged[torch.tensor([each[0] for each in ids])] = embedding
    replaced = {"wte.weight": enlarged.float(), "ln_f.bias": (bias + shift).float()}
    return config.replace(vocab_size=tokenizer.vocab_size), ReplacedTensors(source, replaced), tokenizer


def _never_predicted(embedding: Tensor, weight: Tensor, bias: Tensor, path: str) -> tuple[Tensor, Tensor]:
    """An embedding whose logit is -1000 whatever the input, and what is to be added to the final norm's bias for that.

    The head reads h = w n + b, where n, normalised, sums to 0. So h (1/w) = sum(n) + b (1/w) = b (1/w), whatever the
    input: along 1/w the features never change. Where b is (almost) 0 there, as in models without biases, something is
    added to b that is orthogonal to every word's embedding, so that no word's logit changes.
    """
    room = embedding.shape[1] - embedding.shape[0]
    if weight.abs().min() > 1e-4 * weight.abs().max():
        along = 1 / weight
        along /= along.norm()
        shift = torch.zeros_like(bias)
        constant, enough = float(bias @ along), _ENOUGH * float(weight.norm())
        if abs(constant) < enough and room > 0:
            basis = torch.linalg.svd(embedding, full_matrices=True).Vh[len(embedding) :]  # (C - V, C)
            free = basis.T @ (basis @ along)  # the part of `along` that no word's embedding has
            if float(free.norm()) >= _ENOUGH:
                shift = free * ((2 * enough if constant >= 0 else -2 * enough) / float(free @ along))
                constant = float((bias + shift) @ along)
        if abs(constant) >= enough:
            return along * (_LOGIT / constant), shift
    raise CheckpointError(
        f"{path} has {len(embedding)} words in {len(weight)} features, which leave no direction in which the bytes that"
        " it lacks are never predicted; train it anew with `minigpt train --tokenizer chars`"
    )
