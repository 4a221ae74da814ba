"""Exports a model to GGUF, ONNX, CTranslate2 or HTML; keeps the export only if its logits agree with the model's."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from minigpt.errors import CheckpointError, ConfigError
from minigpt.exporters import runners
from minigpt.exporters.ctranslate2 import write_ctranslate2
from minigpt.exporters.destination import (
    FILES,
    ONE_FILE,
    check_ids_only,
    check_replaceable,
    check_target,
    model_name,
    resolve_output,
)
from minigpt.exporters.gguf import read_gguf_adapter, write_gguf, write_gguf_adapter
from minigpt.exporters.html.page import PageText, check_page, read_page, write_page
from minigpt.exporters.modelfile import modelfile_path, write_modelfile
from minigpt.exporters.onnx import write_onnx
from minigpt.exporters.parity import TEXT, Parity, Run, Tokenize, compare, reference_of
from minigpt.foreign_tokenizers.ids_only import IdsOnly
from minigpt.lora.peft import Adapter, find_base, merged, read_adapter
from minigpt.model.gpt import GPT
from minigpt.native import compiled
from minigpt.native.engine import NativeEngine
from minigpt.optional_packages import optional_import
from minigpt.pretrained.open_model import is_checkpoint, load_model
from minigpt.storage.adapters import is_adapter
from minigpt.storage.checkpoint import (
    CONFIG,
    GENERATION_CONFIG,
    Checkpoint,
    config_files,
)
from minigpt.storage.files import atomic_folder, atomic_write
from minigpt.storage.folder import wrap_write_errors
from minigpt.tokenizer.files import is_ids_only, tokenizer_files

_PACKAGES = {  # that write and read each target
    "gguf": ("gguf",),
    "onnx": ("onnx", "onnxruntime"),
    "ctranslate2": ("ctranslate2",),
    "html": (),
}

# The largest allowed difference of a logit, in standard deviations of the logits. Differences come from the order of
# float32 sums, from rounding to smaller dtypes, and from llama.cpp's GELU, a float16 table of the tanh form. A trained
# model differed by 0.0017 (f16), 0.013 (bf16), 0.057 (q8_0) and 0.065 (int8); the bounds are about four times that.
_BOUNDS = {"f32": 0.001, "f16": 0.01, "bf16": 0.06, "q8_0": 0.25, "int8": 0.25}
_LLAMA_BOUND = 0.02
# A page gives the logits of `minigpt generate --quantize int8`, bit for bit. Where node has no SIMD, plain JavaScript
# adds in float64, and may round an activation to another integer: in small models that changes logits by up to 0.05.
_QUANTIZED_BOUND = 0.1
_MAX_SIZE_FOR_LLAMA = 2_000_000_000  # bytes; larger files are checked only in minigpt, because llama.cpp is slow


@dataclass(frozen=True)
class Export:
    """The written file or folder, its size in bytes, notes for the user, and how close its logits are.

    `context` is the model's context length in tokens, `modelfile` the file that Ollama reads, if one was written,
    `base` the path of the base model of an exported adapter, which the target program needs too.
    """

    path: Path
    target: str
    dtype: str
    size: int
    context: int
    notes: tuple[str, ...]
    parity: tuple[Parity, ...]
    modelfile: Path | None = None
    base: str | None = None


def export_model(
    source: str | Path,
    target: str,
    *,
    dtype: str | None = None,
    output: str | Path | None = None,
    force: bool = False,
    checkpoints: Path | None = None,
    text: PageText | None = None,
    large: bool = False,
    announce: Callable[[int], None] = lambda _: None,
) -> Export:
    """Exports a model that `load_model` can open, runs the export, and compares its logits with the model's.

    `target` is one of TARGETS, `dtype` one of its dtypes, by default the first. `output` is the file (for gguf, html)
    or the folder, by default named after the model, in the working directory; `force` replaces an existing export.
    The base model of an adapter is also looked for in `checkpoints`. For html, `text` is what the page says, `large`
    allows a file above 60 MB, and `announce` gets about its size in bytes before it is written.
    Raises: ConfigError for another target or dtype, and for a page that is too large or cannot compute the model;
    MissingPackageError if the target needs a package;
    CheckpointError if the model cannot be read, the target cannot express it, or needs a tokenizer that it does not
    have, the output exists or cannot be written, or the logits differ too much. A failed export leaves nothing.
    """
    source = Path(source)
    dtype = check_target(source, target, dtype)
    path = resolve_output(source, target, dtype, output)
    with wrap_write_errors(path):
        already_there = path.exists()
        if already_there:
            check_replaceable(source, target, path)
    if already_there and not force:
        raise CheckpointError(f"{path} already exists; choose another --output, or replace it with --force")
    if is_ids_only(source):
        check_ids_only(source, target)
    if is_adapter(source) and target == "gguf" and dtype != "f32":
        raise ConfigError(f"dtype ({dtype}) must be f32 for an adapter; merge it first: minigpt merge {source}")
    with optional_import(f"export to {target}", *_PACKAGES[target]):
        for package in _PACKAGES[target]:  # before the model is read
            import_module(package)
    model, notes = load_model(source, "cpu", mapped=True, checkpoints=checkpoints)
    if isinstance(model.tokenizer.vocabulary, IdsOnly):  # that of an adapter's base model
        check_ids_only(source, target)
    job = _ExportJob(model, dtype, list(notes))
    adapter = read_adapter(source) if is_adapter(source) else None
    base = None
    if adapter is not None and target == "gguf":
        base = find_base(source, adapter.base, checkpoints)
    elif adapter is not None:
        job.notes.append(f"the adapter is merged into its base model, {adapter.base}")
    context = job.model.config.n_positions
    modelfile = None
    if target == "html":
        announce(check_page(job.model.config, job.tokenizer, large=large))
        page_text = text or PageText(title=model_name(source))
        atomic_write(path, lambda file: job.html(file, page_text))
    elif adapter is not None and base is not None:
        atomic_write(path, lambda file: job.gguf_adapter(file, adapter, base))
    elif target == "gguf":
        atomic_write(path, job.gguf)
        modelfile = write_modelfile(path, context, job.tokenizer.chat_template, force=force)
        if modelfile is None and modelfile_path(path).exists():
            job.notes.append(f"{modelfile_path(path)} exists and was kept; --force replaces it")
    else:
        with atomic_folder(path, obsolete=FILES[target]) as building:
            job.onnx(building) if target == "onnx" else job.ctranslate2(building)
            size = sum(file.stat().st_size for file in building.iterdir())
    if target in ONE_FILE:
        size = path.stat().st_size
    needs = None if base is None else str(base)
    return Export(path, target, dtype, size, context, tuple(job.notes), tuple(job.parity), modelfile, needs)


class _ExportJob:
    """One export. The methods named after targets write that target and check it."""

    def __init__(self, model: Checkpoint, dtype: str, notes: list[str]) -> None:
        self.source, self.model, self.tokenizer = model.directory, model.model, model.tokenizer
        self.record = model.record
        self.dtype = dtype
        self.reference = reference_of(self.model, self.tokenizer)
        self.notes = notes
        self.parity: list[Parity] = []

    def gguf(self, file: BinaryIO) -> None:
        """Writes GGUF to an open named file."""
        name = self.source.resolve().stem if self.source.is_file() else self.source.resolve().name
        self.notes += write_gguf(file, self.model, self.tokenizer, dtype=self.dtype, name=name, record=self.record)
        file.flush()
        path = Path(file.name)
        self.check("minigpt", *runners.gguf_in_torch(path))
        if find_spec("llama_cpp") and path.stat().st_size < _MAX_SIZE_FOR_LLAMA:
            try:
                self.check("llama.cpp", *runners.gguf_in_llama(path))
            except runners.NotRunError as error:
                self.notes.append(f"not checked in llama.cpp, which does not run on this machine: {error}")

    def gguf_adapter(self, file: BinaryIO, adapter: Adapter, base: Path) -> None:
        """Writes an adapter as GGUF to an open named file, and checks it by adding it to the base model at a path."""
        write_gguf_adapter(file, adapter, self.model.config, self.source.resolve().name)
        file.flush()
        again = read_gguf_adapter(Path(file.name), adapter, self.model.config)
        model = load_model(base, "cpu", mapped=True).checkpoint.model
        self.check("minigpt", runners.model_in_torch(merged(model, again)))

    def html(self, file: BinaryIO, text: PageText) -> None:
        """Writes a page to an open named file."""
        write_page(file, self.model, self.tokenizer, text)
        file.flush()
        path = Path(file.name)
        try:
            logits, answer = runners.page_in_node(path, self.model.config, ids=self.reference.ids, texts=[TEXT])
        except runners.NotRunError as error:
            page, _ = read_page(path)
            self.check("minigpt", runners.model_in_torch(page))
            self.notes.append(f"the page's own code was not checked: {error}")
            return
        self.check("node", lambda _: logits, lambda _: answer["textIds"][0])
        if compiled.library() is None:
            self.notes.append(f"not compared with `minigpt generate --quantize int8`: {compiled.why_unavailable()}")
            return
        quantized = replace(self.reference, logits=_quantized_logits(self.model, self.reference.ids))
        found = compare("node beside --quantize int8", lambda _: logits, quantized)
        self.keep_if_close(found, _QUANTIZED_BOUND)

    def onnx(self, folder: Path) -> None:
        """Writes ONNX to a folder, with the config and tokenizer that Optimum and transformers.js need."""
        write_onnx(folder, self.model)
        if is_checkpoint(self.source):
            _copy((CONFIG, GENERATION_CONFIG, *tokenizer_files()), self.source, folder)
        else:
            for name, content in config_files(self.model, self.tokenizer).items():
                atomic_write(folder / name, content)
            self.tokenizer.save(folder)
        self.check("onnxruntime", runners.onnx_in_onnxruntime(folder, self.model.config))

    def ctranslate2(self, folder: Path) -> None:
        """Writes a folder for CTranslate2, and adds the tokenizer's files."""
        self.notes += write_ctranslate2(folder, self.model, self.tokenizer, self.dtype)
        if is_checkpoint(self.source):
            _copy(tokenizer_files(), self.source, folder)
        else:
            self.tokenizer.save(folder)
        self.check("CTranslate2", runners.model_in_ctranslate2(folder))

    def check(self, program: str, run: Run, tokenize: Tokenize | None = None) -> None:
        """Compares a program's logits and token ids with the model's.

        Raises: CheckpointError if they differ too much.
        """
        found = compare(program, run, self.reference, tokenize)
        if found.same_ids is False:
            raise CheckpointError(
                f"the export was not kept: {program} splits a text into other tokens than the original"
            )
        inexact = program == "llama.cpp" or (
            program == "minigpt" and self.model.config.activation_function != "gelu_new"
        )
        self.keep_if_close(found, max(_BOUNDS[self.dtype], _LLAMA_BOUND if inexact else 0))

    def keep_if_close(self, found: Parity, bound: float) -> None:
        """Records a comparison. Raises: CheckpointError if the logits differ by more than `bound` deviations."""
        if found.deviations > bound:
            raise CheckpointError(
                f"the export was not kept: in {found.by} a logit differs by {found.difference:.3g}, which is"
                f" {found.deviations:.2g} standard deviations of the logits, and must be at most"
                f" {bound} for {self.dtype}"
            )
        self.parity.append(found)


def _quantized_logits(model: GPT, ids: Sequence[int]) -> Tensor:
    """The logits of `minigpt generate --quantize int8` after each id: (T,) -> (T, V)."""
    engine = NativeEngine(model, "int8")
    first = engine.start([ids[:1]])  # (1, V)
    return torch.cat([first, engine.read(torch.tensor([ids[1:]]))[0]]) if len(ids) > 1 else first


def _copy(names: tuple[str, ...], source: Path, folder: Path) -> None:
    """Copies those of the files that exist."""
    for name in names:
        if (source / name).exists():
            shutil.copyfile(source / name, folder / name)
