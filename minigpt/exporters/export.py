"""A model as another program's file or folder, verified by its logits before it stands under its name.

It knows which formats there are; what they look like is the writers' concern, and what they say `runners`'.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

from minigpt.errors import CheckpointError, ConfigError
from minigpt.exporters import runners
from minigpt.exporters.gguf import GGUF_DTYPES, write_gguf
from minigpt.exporters.onnx import ONNX_MODEL, ONNX_WEIGHTS, write_onnx
from minigpt.exporters.parity import Parity, Run, Tokenize, compare, reference_of
from minigpt.importers.open_model import is_checkpoint, load_model
from minigpt.storage.checkpoint import (
    CONFIG,
    GENERATION_CONFIG,
    TRAINING,
    Checkpoint,
    save_checkpoint,
    write_config,
    write_generation_config,
)
from minigpt.storage.files import atomic_folder, atomic_write, explained
from minigpt.storage.model_card import upload_command

# The dtypes of each target, its default first.
TARGETS = {"gguf": GGUF_DTYPES, "onnx": ("f32",), "ctranslate2": ("f32", "f16", "bf16", "int8")}
_PACKAGES = {
    "gguf": ("gguf",),
    "onnx": ("onnx", "onnxruntime"),
    "ctranslate2": ("ctranslate2", "transformers"),
}

# How far logits may be off, in standard deviations of the logits, before something must be wrong. It is the order of
# sums in float32, the rounding of smaller dtypes, and llama.cpp's GELU, the tanh form by a table in float16. A trained
# model was off by 0.0017 (f16), 0.013 (bf16), 0.057 (q8_0) and 0.065 (int8): the bounds are some four times that.
_BOUNDS = {"f32": 0.001, "f16": 0.01, "bf16": 0.06, "q8_0": 0.25, "int8": 0.25}
_LLAMA_BOUND = 0.02
_LARGEST_FOR_LLAMA = 2_000_000_000  # bytes: beyond, a second look costs more than it tells
_CTRANSLATE2_DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "int8": "int8"}
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json", "merges.txt")
# The files of a target that is a folder, the one that only it has first.
_FILES = {
    "onnx": (ONNX_MODEL, ONNX_WEIGHTS, CONFIG, GENERATION_CONFIG, *_TOKENIZER),
    "ctranslate2": ("model.bin", "vocabulary.json", CONFIG, *_TOKENIZER),
}
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".index")


@dataclass(frozen=True)
class Export:
    """What was written, where, how large it is in bytes, what to know of it, and how near it is to the original.

    `context` is the model's, which prompt and new tokens share.
    """

    path: Path
    target: str
    dtype: str
    size: int
    context: int
    notes: tuple[str, ...]
    agreements: tuple[Parity, ...]


def export_model(
    source: str | Path,
    target: str,
    *,
    dtype: str | None = None,
    output: str | Path | None = None,
    force: bool = False,
) -> Export:
    """Writes a model, which `load_model` opens, for another program, and compares what that says with the original.

    `target` is one of TARGETS, `dtype` one of its dtypes, by default the first. `output` is the file (for gguf) or the
    folder, by default named after the model, in the working directory; `force` lets it replace what stands there.
    Raises: ConfigError for another target or dtype; CheckpointError where the model cannot be read, the target
    lacks a package or cannot express the model, the output stands or cannot be written, or says something else than
    the original: then nothing is left of it.
    """
    source = Path(source)
    dtype = _check_target(source, target, dtype)
    path = _resolve_output(source, target, dtype, output)
    with explained(path):
        stands = path.exists()
        if stands:
            _check_replaceable(source, target, path)
    if stands and not force:
        raise CheckpointError(f"{path} is there already; choose another --output, or replace it with --force")
    _require_packages(target)
    model, notes = load_model(source, "cpu", mapped=True)
    job = _Job(model, dtype, list(notes))
    if target == "gguf":
        atomic_write(path, job.gguf)
        size = path.stat().st_size
    else:
        with atomic_folder(path) as building:
            job.onnx(building) if target == "onnx" else job.ctranslate2(building)
            size = sum(file.stat().st_size for file in building.iterdir())
            written = {file.name for file in building.iterdir()}
        with explained(path):
            for name in set(_FILES[target]) - written:  # of what was replaced
                (path / name).unlink(missing_ok=True)
    context = job.model.config.n_positions
    return Export(path, target, dtype, size, context, tuple(job.notes), tuple(job.agreements))


def _check_target(source: Path, target: str, dtype: str | None) -> str:
    """The dtype to export in.

    Raises: ConfigError where there is no such target, or it has no such dtype.
    """
    if target == "hf":
        raise ConfigError(
            f"target ('hf') needs no export: {source} is a Hugging Face model, transformers and vLLM open the folder as"
            f" it is, and `{upload_command(source.resolve().name, str(source))}` publishes it"
            if is_checkpoint(source)
            else "target ('hf') needs no export: `minigpt load-gpt2 --from` makes a Hugging Face folder of any model"
        )
    if target not in TARGETS:
        raise ConfigError(f"target ({target!r}) must be one of {', '.join(TARGETS)}")
    dtypes = TARGETS[target]
    if dtype is not None and dtype not in dtypes:
        choices = f"one of {', '.join(dtypes)}" if len(dtypes) > 1 else dtypes[0]
        raise ConfigError(f"dtype ({dtype!r}) must be {choices} for {target}")
    return dtype or dtypes[0]


def _resolve_output(source: Path, target: str, dtype: str, output: str | Path | None) -> Path:
    """The file or folder to write.

    Raises: ConfigError where that cannot be what is meant; CheckpointError where the place cannot be looked at.
    """
    own = source.resolve()
    name = (own.name if own.is_dir() else own.stem) + ("" if dtype == TARGETS[target][0] else f"-{dtype}")
    name += ".gguf" if target == "gguf" else f"-{target}"
    path = Path(name if output is None else output)
    with explained(path):
        is_folder, is_file = path.is_dir(), path.exists() and not path.is_dir()
    if target == "gguf":
        if is_folder:
            return path / name
        if path.suffix != ".gguf":
            raise ConfigError(f"output ({str(path)!r}) must end in .gguf, or be a folder to put {name} into")
    elif path.name in ("", "..") or is_file:
        raise ConfigError(f"output ({str(path)!r}) must be a folder of its own, such as {name}")
    return path


def _check_replaceable(source: Path, target: str, path: Path) -> None:
    """Makes sure that nothing but an earlier export of that target stands where a new one is to be written.

    Raises: ConfigError where something else does; OSError where a folder cannot be looked into.
    """
    if path.resolve() == source.resolve():
        raise ConfigError(f"output ({str(path)!r}) is the model that is to be exported; choose another --output")
    if target == "gguf":
        return
    own, held = _FILES[target], {entry.name for entry in path.iterdir()}
    others = [name for name in held - set(own) if Path(name).suffix in _WEIGHTS or name == TRAINING]
    if others or (held and own[0] not in held):
        what = f"holds {min(others)}" if others else f"has no {own[0]}"
        raise ConfigError(
            f"output ({str(path)!r}) {what}, so it is no earlier export to {target}, and would be lost; choose another"
            " --output"
        )


def _require_packages(target: str) -> None:
    """Makes sure that what writes and reads a target is installed.

    Raises: CheckpointError naming what is missing.
    """
    packages = _PACKAGES[target]
    if missing := [package for package in packages if find_spec(package) is None]:
        what = "packages that are" if len(missing) > 1 else "a package that is"
        raise CheckpointError(
            f"{target} needs {what} not installed ({', '.join(missing)}); pip install 'minigpt[{target}]'"
        )


class _Job:
    """One export: each method writes a target where it is told to, and checks what was written."""

    def __init__(self, model: Checkpoint, dtype: str, notes: list[str]) -> None:
        self.source, self.model, self.tokenizer = model.directory, model.model, model.tokenizer
        self.record = model.record
        self.dtype = dtype
        self.reference = reference_of(self.model, self.tokenizer)
        self.notes = notes
        self.agreements: list[Parity] = []

    def gguf(self, file: BinaryIO) -> None:
        """Into an open file that has a name."""
        name = self.source.resolve().stem if self.source.is_file() else self.source.resolve().name
        self.notes += write_gguf(file, self.model, self.tokenizer, dtype=self.dtype, name=name, record=self.record)
        file.flush()
        path = Path(file.name)
        self.check("minigpt", *runners.gguf_in_torch(path))
        if find_spec("llama_cpp") and path.stat().st_size < _LARGEST_FOR_LLAMA:
            try:
                self.check("llama.cpp", *runners.gguf_in_llama(path))
            except runners.NotRunError as error:
                self.notes.append(f"not checked in llama.cpp, which does not run here: {error}")

    def onnx(self, folder: Path) -> None:
        """Into a folder, with the files that make it a model for Optimum and transformers.js."""
        write_onnx(folder, self.model)
        if is_checkpoint(self.source):
            _copy((CONFIG, GENERATION_CONFIG, *_TOKENIZER), self.source, folder)
        else:
            write_config(folder, self.model, self.tokenizer)
            write_generation_config(folder, self.tokenizer)
            self.tokenizer.save(folder)
        self.check("onnxruntime", runners.onnx_in_onnxruntime(folder, self.model.config))

    def ctranslate2(self, folder: Path) -> None:
        """Into a folder, by CTranslate2's own converter, with the tokenizer's files."""
        config, tokenizer = self.model.config, self.tokenizer
        if tokenizer.vocab_size < config.vocab_size or tokenizer.unused_ids:
            raise CheckpointError(
                f"{self.source} has embeddings for {config.vocab_size} words, its tokenizer"
                f" {tokenizer.vocab_size - len(tokenizer.unused_ids)}; CTranslate2 needs one for each and no more"
            )
        with self.huggingface(folder) as source:
            runners.convert_to_ctranslate2(source, folder, config, _CTRANSLATE2_DTYPES[self.dtype])
            _copy(_TOKENIZER, source, folder)
        self.check("CTranslate2", runners.model_in_ctranslate2(folder))

    @contextmanager
    def huggingface(self, folder: Path) -> Iterator[Path]:
        """The model as a Hugging Face folder: it is one, or is made one for the moment."""
        if is_checkpoint(self.source):
            yield self.source
            return
        # Not in the folder itself, which CTranslate2's converter empties.
        with tempfile.TemporaryDirectory(prefix=".", suffix=".tmp", dir=folder.parent) as beside:
            yield save_checkpoint(Path(beside) / "model", self.model, self.tokenizer)

    def check(self, by: str, run: Run, tokenize: Tokenize | None = None) -> None:
        """Compares what a program says with what the model says.

        Raises: CheckpointError where it is something else.
        """
        found = compare(by, run, self.reference, tokenize)
        if found.same_ids is False:
            raise CheckpointError(f"the export was not kept: {by} splits a text into other tokens than minigpt does")
        inexact = by == "llama.cpp" or (by == "minigpt" and self.model.config.activation_function != "gelu_new")
        bound = max(_BOUNDS[self.dtype], _LLAMA_BOUND if inexact else 0)
        if found.deviations > bound:
            raise CheckpointError(
                f"the export was not kept: in {by} a logit differs by {found.difference:.3g}, which is"
                f" {found.deviations:.2g} standard deviations of the logits, and must be at most"
                f" {bound} for {self.dtype}"
            )
        self.agreements.append(found)


def _copy(names: tuple[str, ...], source: Path, folder: Path) -> None:
    """Copies those of the files that there are."""
    for name in names:
        if (source / name).exists():
            shutil.copyfile(source / name, folder / name)
