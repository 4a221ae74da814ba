"""Loads a model to generate text with, whatever its format."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

from minigpt.config import GPTConfig, SamplingConfig
from minigpt.device import avoid_cudnn_attention, resolve_device, resolve_dtype
from minigpt.edges import provided
from minigpt.errors import ConfigError
from minigpt.generation.engine import Engine
from minigpt.generation.engine_settings import Quantization
from minigpt.generation.logits_processors import LogitsProcessor
from minigpt.generation.resolve_engine import missing_compiled_code, resolve_engine
from minigpt.generation.streaming import Piece, generate_pieces
from minigpt.model.gpt import GPT
from minigpt.pretrained.open_model import find_adapted, load_model
from minigpt.storage.checkpoint import Checkpoint
from minigpt.threads import respect_cpu_quota
from minigpt.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class Model:
    """A model with its tokenizer, ready to generate.

    `notes` say what its import changed, if anything, and why it is slow, if the compiled code is missing.
    """

    checkpoint: Checkpoint = field(repr=False)
    engine: Engine = field(repr=False)
    directory: Path
    notes: tuple[str, ...] = ()

    @property
    def model(self) -> GPT:
        """The PyTorch module, in eval mode."""
        return self.checkpoint.model

    @property
    def tokenizer(self) -> Tokenizer:
        return self.checkpoint.tokenizer

    @property
    def config(self) -> GPTConfig:
        """The model's shape."""
        return self.checkpoint.model.config

    @overload
    def generate(
        self, prompt: str | Sequence[int] = "", *, processors: Sequence[LogitsProcessor] = (), **sampling: Any
    ) -> str: ...
    @overload
    def generate(
        self, prompt: Sequence[str | Sequence[int]], *, processors: Sequence[LogitsProcessor] = (), **sampling: Any
    ) -> list[str]: ...
    def generate(self, prompt: Any = "", **settings: Any) -> str | list[str]:
        """The continuation of a prompt, a text or token ids, without the prompt; a list of them for a list of prompts.

        `sampling` are the fields of SamplingConfig, `processors` the caller's functions of the logits (see
        `LogitsProcessor`).

        Raises: ConfigError for sampling settings that are out of bounds; GenerationError if the logits are NaN.

        >>> model = minigpt.load("corpus")
        >>> text = model.generate("Once upon a time", max_new_tokens=20, temperature=0.8, top_p=0.95)
        >>> one, other = model.generate(["Once", "Twice"], max_new_tokens=5)
        """
        several = not isinstance(prompt, str) and any(isinstance(each, str | Sequence) for each in prompt)
        prompts = list(prompt) if several else [prompt]
        texts = [""] * len(prompts)
        for piece in self._pieces(prompts, **settings):
            texts[piece.row] += piece.text
        return texts if several else texts[0]

    def stream(
        self, prompt: str | Sequence[int] = "", *, processors: Sequence[LogitsProcessor] = (), **sampling: Any
    ) -> Iterator[str]:
        """The continuation of a prompt in pieces of whole characters, each when it is generated.

        Raises: as `generate`.

        >>> import sys
        >>> for piece in minigpt.load("corpus").stream("Once upon a time", seed=1):
        ...     _ = sys.stderr.write(piece)
        """
        pieces = self._pieces([prompt], processors=processors, **sampling)
        return (piece.text for piece in pieces if piece.text)

    def _pieces(
        self, prompts: Sequence[str | Sequence[int]], *, processors: Sequence[LogitsProcessor] = (), **sampling: Any
    ) -> Iterator[Piece]:
        config = _sampling_config(sampling)
        drafter = next((make(self.engine) for make in provided("drafter")), None)
        return generate_pieces(self.engine, self.tokenizer, prompts, config, processors=processors, drafter=drafter)


def load(
    name: str | Path | None = None,
    *,
    checkpoints: str | Path = "checkpoints",
    device: str = "auto",
    dtype: str = "float32",
    quantize: Quantization = "auto",
    compile: bool = False,
    adapter: str | Path | None = None,
) -> Model:
    """Loads a model by the name of its run or by its path, in any format that minigpt reads; None is the newest.

    `quantize` is "auto" (int8 on a CPU from 50 million parameters on), "int8" or "none"; `compile` runs torch.compile
    first, on CUDA. `adapter` is the name or folder of an adapter, which is added to the model, by default to the one
    that it names. Limits torch's threads to the container's CPU quota, unless OMP_NUM_THREADS is set.
    Raises: CheckpointError if it is missing, damaged or not a GPT-2; TokenizerError; DeviceError; ConfigError for a
    `quantize` or `compile` that the model or the device does not support; MissingPackageError for a format that needs a
    package.

    >>> model = minigpt.load("corpus")
    >>> model.config.n_layer
    4
    """
    respect_cpu_quota()
    target = resolve_device(device)
    if target.type == "cuda":
        avoid_cudnn_attention()
    path, base = find_adapted(name, adapter, checkpoints)
    checkpoint, notes = load_model(
        path, str(target), dtype=resolve_dtype(dtype, target), mapped=True, checkpoints=Path(checkpoints), base=base
    )
    engine = resolve_engine(checkpoint.model, quantize, compiled=compile)
    if slow := missing_compiled_code(checkpoint.model):
        notes += (slow,)
    return Model(checkpoint, engine, checkpoint.directory, notes)


def _sampling_config(sampling: dict[str, Any]) -> SamplingConfig:
    """The sampling settings; a setting of several texts also takes a single text or a list."""
    known = SamplingConfig.__dataclass_fields__
    for name in sampling.keys() - known.keys():
        raise ConfigError(f"unknown sampling setting {name!r}; there are: {', '.join(sorted(known))}")
    several = {name for name, each in known.items() if each.default == ()}
    given = {name: _strings(value) if name in several else value for name, value in sampling.items()}
    config = SamplingConfig(**given)
    if config.samples != 1:
        raise ConfigError(f"samples ({config.samples}) must be 1 here: generate once for each sample")
    return config


def _strings(value: Any) -> Any:
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, Iterable) else value
