"""What every importer gives, whatever the format: a model's shape, tensors and tokenizer, and what was made of it."""

from dataclasses import dataclass

from minigpt.config import GPTConfig
from minigpt.storage.huggingface import TensorSource
from minigpt.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class ImportedModel:
    """A model as another program left it, opened and not yet read.

    `tensors` speak in Hugging Face's names and orientation, whatever the file's own are, so that one function builds
    every model. `notes` are sentences for the user: what was assumed, left out or turned into something equal.
    """

    config: GPTConfig
    tensors: TensorSource
    tokenizer: Tokenizer
    notes: tuple[str, ...] = ()
