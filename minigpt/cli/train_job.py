"""A training job made ready: a new run or one taken up again, with everything that was chosen said."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minigpt.cli.options import fields_of
from minigpt.config import GPTConfig, ReadingConfig, TrainConfig, preset_config
from minigpt.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from minigpt.model.gpt import GPT
    from minigpt.storage.run import Run
    from minigpt.text.corpus import Corpus
    from minigpt.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Job:
    """Everything `train()` takes, made ready."""

    model: "GPT"
    corpus: "Corpus"
    config: TrainConfig
    run: "Run"
    resume: bool


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the user typed, None and absent where nothing was: the same words mean the same on `--resume`."""

    sources: list[str]
    name: str | None
    checkpoints: Path
    preset: str | None
    tokenizer: str | None
    base: str | None
    reading: dict[str, Any]
    given: dict[str, Any]

    def check(self) -> None:
        """Raises ConfigError for what is wrong whatever the text is."""
        TrainConfig(**fields_of(TrainConfig, self.given))
        ReadingConfig(**self.reading)
        shape = fields_of(GPTConfig, self.given)
        for key, value in shape.items():
            GPTConfig.check(key, value)
        if {"n_embd", "n_head"} <= shape.keys():
            GPTConfig(**shape)
        fixed = [f"{key} ({value})" for key, value in shape.items() if key != "dropout"]
        fixed += [f"preset ({self.preset})"] if self.preset else []
        if self.base and fixed:
            raise ConfigError(
                f"{', '.join(fixed)} cannot be chosen when fine-tuning: the model given by --from has its own shape"
            )
        if self.preset:
            preset_config(self.preset).replace(**shape)

    @property
    def run_name(self) -> str:
        """The name given, else one from the first text: `data/moby_dick.txt.gz` is moby_dick, `-` is stdin."""
        if self.name or self.sources[0] == "-":
            return self.name or "stdin"
        path = Path(self.sources[0]).resolve()
        plain = path.with_suffix("") if path.suffix == ".gz" else path
        stem = plain.name if plain.is_dir() else plain.stem
        return stem.strip("*?[].") or path.parent.name or "run"

    @property
    def asked(self) -> dict[str, Any]:
        """What a resumed run is compared with, by the names of the options."""
        whole = {"preset": self.preset, "tokenizer": self.tokenizer, "from": self.base, **self.reading, **self.given}
        return {key: whole[key] for key in whole if key in _FIXED and whole[key] is not None}


# What a run is, so that it cannot change once it has begun.
_FIXED = (
    *("preset", "tokenizer", "from", "n_layer", "n_head", "n_embd", "dropout", "context_length"),
    *("batch_size", "batch_tokens", "seed", "text_key", "encoding_errors", "validation_fraction"),
)


def begin(request: Request, out: "Console") -> Job:
    """A new run: reads the corpus, plans, builds the model, makes the folder, and says all of it."""
    import torch

    from minigpt import __version__
    from minigpt.cli.render import plan_table
    from minigpt.device import free_memory, resolve_device, resolve_dtype
    from minigpt.model.gpt import GPT
    from minigpt.storage.checkpoint import find_checkpoint, free_name, load_checkpoint
    from minigpt.storage.run import Run
    from minigpt.training.planning import plan

    device = resolve_device(request.given.get("device", "auto"))
    resolve_dtype(request.given.get("dtype", "auto"), device)
    checkpoints = request.checkpoints
    base = load_checkpoint(find_checkpoint(request.base, checkpoints), "cpu") if request.base else None
    if base and request.tokenizer not in (None, base.tokenizer.name):
        raise ConfigError(
            f"tokenizer ({request.tokenizer}) cannot be chosen with --from: "
            f"{base.directory} brings its own, {base.tokenizer.name}"
        )
    reading = ReadingConfig(**request.reading)
    corpus = _build_corpus(request.sources, base.tokenizer if base else request.tokenizer, reading, out)
    made = plan(
        n_tokens=len(corpus.train),
        vocab_size=corpus.tokenizer.vocab_size,
        device_type=device.type,
        free_memory=free_memory(device),
        given=request.given,
        preset=request.preset,
        base=base.model.config if base else None,
    )
    torch.manual_seed(made.training.seed)
    model = GPT.from_tensors(made.model, base.model.state_dict()) if base else GPT(made.model)
    name = free_name(request.run_name, checkpoints)
    record = {
        "minigpt": __version__,
        "torch": torch.__version__,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "device": str(device),
        "sources": [source if source == "-" else str(Path(source).resolve()) for source in request.sources],
        "asked": request.asked,
        "reading": reading.to_dict(),
        "from": str(base.directory) if base else None,
        "tokenizer": corpus.tokenizer.name,
        "corpus": _corpus_record(corpus),
        "model": made.model.to_dict(),
        "training": made.training.to_dict(),
    }
    run = Run.create(checkpoints / name, model, corpus.tokenizer, record)
    out.print(plan_table(made, corpus, str(run.directory), str(device)))
    for note in made.notes:
        out.print(note, markup=False)
    if name != request.run_name:
        taken = checkpoints / request.run_name
        out.print(f"{taken} stands already, so this run is {name}; --resume would go on with it", markup=False)
    return Job(model, corpus, made.training, run, resume=False)


def resumed_directory(request: Request) -> Path | None:
    """The folder of the run to go on with; None where it has not begun yet and can begin now.

    Raises: ConfigError where there is no such run, nor a text to begin it with.
    """
    from minigpt.storage.checkpoint import TRAINING
    from minigpt.storage.run import newest_run

    checkpoints = request.checkpoints
    if request.name is None and not request.sources:
        newest = newest_run(checkpoints)
        if newest is None:
            raise ConfigError(f"there is no run in {checkpoints} to resume; begin one with minigpt train corpus.txt")
        return newest
    directory = checkpoints / request.run_name
    if (directory / TRAINING).exists():
        return directory
    if request.sources:
        return None
    names = sorted(path.parent.name for path in checkpoints.glob(f"*/{TRAINING}"))
    there = f"there are: {', '.join(names)}" if names else "there is none at all"
    raise ConfigError(f"there is no run {request.run_name!r} in {checkpoints}; {there}")


def take_up(request: Request, directory: Path, out: "Console") -> Job:
    """A run that stands: its settings with the flags laid over them, its own tokenizer, the same corpus."""
    from minigpt.storage.checkpoint import load_checkpoint
    from minigpt.storage.run import Run

    run = Run.open(directory)
    _refuse_changes(run, request)
    checkpoint = load_checkpoint(directory, "cpu")
    corpus = _recorded_corpus(run, request, checkpoint.tokenizer, out)
    recorded = dict(run.record["training"])
    if {"steps", "epochs", "minutes"} & request.given.keys():
        recorded |= {"steps": None, "epochs": None, "minutes": None}
    config = TrainConfig(**(recorded | fields_of(TrainConfig, request.given)))
    progress = run.last_progress()
    if progress is None:
        out.print(f"{directory} was stopped before its first save, so it starts at its beginning", markup=False)
    else:
        _refuse_finished(run, progress, config, len(corpus.train))
        out.print(f"going on with {directory} at step {progress['step']:,}", markup=False)
    run.update(training=config.to_dict(), result=None)
    return Job(checkpoint.model, corpus, config, run, resume=True)


def _refuse_changes(run: "Run", request: Request) -> None:
    """Raises ConfigError, by name, for what a run cannot change once it has begun; what it has may be said again."""
    record = run.record
    has = {**record["model"], **record["training"], **record["reading"], "tokenizer": record["tokenizer"]}
    has |= {"from": record["from"], "preset": None}
    for key, value in request.asked.items():
        if value not in (has[key], record["asked"].get(key)):
            known = record["asked"].get(key, has[key])
            raise ConfigError(f"{key} ({value}) cannot change on --resume; {run.directory} has {known}")


def _refuse_finished(run: "Run", progress: dict[str, Any], config: TrainConfig, n_tokens: int) -> None:
    """Raises ConfigError for a run that has come to its end, saying how it can go on."""
    from minigpt.training.pace import steps_in

    if not run.record.get("result"):
        return
    step, seconds, stale = progress["step"], progress["seconds"], progress["stale_evaluations"]
    total = steps_in(config, n_tokens)
    if (total is not None and step >= total) or (config.minutes is not None and seconds >= 60 * config.minutes):
        raise ConfigError(
            f"{run.directory} is finished ({step} steps, {seconds / 60:.1f} minutes); go on with it by a longer "
            "--steps, --epochs or --minutes"
        )
    if config.patience and stale >= config.patience:
        raise ConfigError(
            f"{run.directory} stopped early at step {step}, after {stale} evaluations without improvement; go on with "
            "it by --patience 0"
        )


def _recorded_corpus(run: "Run", request: Request, tokenizer: "Tokenizer", out: "Console") -> "Corpus":
    """The corpus that the run began with, from its text or, where that came through a pipe, from the cache.

    Raises: ConfigError where the text is another one by now.
    """
    from minigpt.text.corpus import Corpus

    if not request.sources and "-" in run.record["sources"]:
        return Corpus.load(run.record["corpus"]["path"])
    reading = ReadingConfig(**run.record["reading"])
    corpus = _build_corpus(request.sources or run.record["sources"], tokenizer, reading, out)
    if corpus.fingerprint != run.record["corpus"]["fingerprint"]:
        raise ConfigError(
            f"the text is not the one that {run.directory} was trained on; give the same text to --resume, "
            f"or start a new run on this one with --from {run.directory.name}"
        )
    return corpus


def _build_corpus(
    sources: list[str], tokenizer: "Tokenizer | str | None", reading: ReadingConfig, out: "Console"
) -> "Corpus":
    """The corpus, from the cache where it is there; a tokenizer of None is chosen by the text's size."""
    from minigpt.cli.render import byte_progress
    from minigpt.text.corpus import Corpus
    from minigpt.text.sources import scan
    from minigpt.text.tokenizer import trained_size
    from minigpt.training.planning import plan_tokenizer

    wanted = trained_size(tokenizer) if isinstance(tokenizer, str) else None
    with out.status("reading the text …"):
        found = scan(sources, text_key=reading.text_key, encoding_errors=reading.encoding_errors)
    with byte_progress(out, "tokenizing") as progress:
        corpus = Corpus.build(
            found,
            tokenizer or plan_tokenizer(found.text_bytes),
            validation_fraction=reading.validation_fraction,
            progress=progress,
        )
    if corpus.skipped:
        shown = ", ".join(corpus.skipped[:3]) + (" …" if len(corpus.skipped) > 3 else "")
        out.print(f"skipped {len(corpus.skipped)} files that are not text: {shown}", markup=False)
    if wanted and wanted > corpus.tokenizer.vocab_size:
        out.print(f"the text supports only {corpus.tokenizer.vocab_size:,} words, not {wanted:,}", markup=False)
    return corpus


def _corpus_record(corpus: "Corpus") -> dict[str, Any]:
    return {
        "fingerprint": corpus.fingerprint,
        "path": str(corpus.path),
        "train_bytes": corpus.train_bytes,
        "validation_bytes": corpus.validation_bytes,
        "train_tokens": len(corpus.train),
        "validation_tokens": len(corpus.validation),
    }
