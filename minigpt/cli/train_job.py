"""A training job made ready: a new run or one taken up again, with everything that was chosen said."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minigpt.config import GPTConfig, TrainConfig
from minigpt.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from minigpt.model.gpt import GPT
    from minigpt.storage.run import Run
    from minigpt.text.corpus import Corpus
    from minigpt.training.planning import Plan


@dataclass(frozen=True)
class Job:
    """Everything `train()` takes, made ready."""

    model: "GPT"
    corpus: "Corpus"
    config: TrainConfig
    run: "Run"
    resume: bool


def fields_of(settings: type[GPTConfig] | type[TrainConfig], given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name in settings.__dataclass_fields__}


def begin(
    sources: list[str],
    name: str | None,
    given: dict[str, Any],
    fixed: dict[str, str | None],
    reading: dict[str, Any],
    checkpoints: Path,
    out: "Console",
) -> Job:
    """A new run: reads the corpus, plans, builds the model, makes the folder, and says all of it."""
    import torch

    from minigpt import __version__
    from minigpt.cli.render import now
    from minigpt.device import resolve_device, resolve_dtype
    from minigpt.model.gpt import GPT
    from minigpt.storage.checkpoint import find_checkpoint, free_name, load_checkpoint
    from minigpt.storage.run import Run
    from minigpt.training.planning import plan

    device = resolve_device(given.get("device", "auto"))
    resolve_dtype(given.get("dtype", "auto"), device)
    base = fixed["from"] and load_checkpoint(find_checkpoint(fixed["from"], checkpoints), "cpu")
    if base and fixed["tokenizer"] not in (None, base.tokenizer.name):
        raise ConfigError(
            f"tokenizer ({fixed['tokenizer']}) cannot be chosen with --from: "
            f"{base.directory} brings its own, {base.tokenizer.name}"
        )
    corpus = _build_corpus(sources, base.tokenizer if base else fixed["tokenizer"], reading, out)
    made = plan(
        n_tokens=len(corpus.train),
        vocab_size=corpus.tokenizer.vocab_size,
        device_type=device.type,
        given=given,
        preset=fixed["preset"],
        base=base.model.config if base else None,
    )
    torch.manual_seed(made.training.seed)
    model = GPT.from_tensors(made.model, base.model.state_dict()) if base else GPT(made.model)
    wanted = name or _stem(sources)
    free = free_name(wanted, checkpoints)
    record = {
        "minigpt": __version__,
        "torch": torch.__version__,
        "started": now(),
        "device": str(device),
        "sources": [source if source == "-" else str(Path(source).resolve()) for source in sources],
        "reading": reading,
        "from": str(base.directory) if base else None,
        "tokenizer": corpus.tokenizer.name,
        "corpus": _corpus_record(corpus),
        "model": made.model.to_dict(),
        "training": made.training.to_dict(),
    }
    run = Run.create(checkpoints / free, model, corpus.tokenizer, record)
    _say_plan(made, corpus, run, str(device), out)
    if free != wanted:
        out.print(f"{checkpoints / wanted} stands already, so this run is {free}; --resume would go on with it")
    return Job(model, corpus, made.training, run, resume=False)


def resumed_directory(name: str | None, sources: list[str] | None, checkpoints: Path) -> Path | None:
    """The folder of the run to go on with; None where it has not begun yet."""
    from minigpt.storage.checkpoint import TRAINING, find_checkpoint

    if name is None and not sources:
        return find_checkpoint(None, checkpoints)
    directory = checkpoints / (name or _stem(sources or []))
    return directory if (directory / TRAINING).exists() else None


def take_up(
    directory: Path, sources: list[str] | None, given: dict[str, Any], fixed: dict[str, str | None], out: "Console"
) -> Job:
    """A run that stands: its settings with the flags laid over them, its own tokenizer, the same corpus."""
    from minigpt.storage.checkpoint import load_checkpoint
    from minigpt.storage.run import Run
    from minigpt.training.loop import steps_in

    run = Run.open(directory)
    _refuse_changes(run, given, fixed)
    checkpoint = load_checkpoint(directory, "cpu")
    corpus = _build_corpus(sources or run.record["sources"], checkpoint.tokenizer, run.record["reading"], out)
    if corpus.fingerprint != run.record["corpus"]["fingerprint"]:
        raise ConfigError(
            f"the text is not the one that {directory} was trained on; give the same text to --resume, "
            f"or start a new run on this one with --from {directory.name}"
        )
    recorded = dict(run.record["training"])
    if {"steps", "epochs", "minutes"} & given.keys():
        recorded |= {"steps": None, "epochs": None, "minutes": None}
    config = TrainConfig(**(recorded | fields_of(TrainConfig, given)))
    progress = run.last_progress()
    if progress is not None:
        step, seconds = progress["step"], progress["seconds"]
        total = steps_in(config, len(corpus.train))
        if (total is not None and step >= total) or (config.minutes is not None and seconds >= 60 * config.minutes):
            raise ConfigError(
                f"{directory} is finished ({step} steps, {seconds / 60:.1f} minutes); go on with it by a longer "
                "--steps, --epochs or --minutes"
            )
        out.print(f"going on with {directory} at step {step:,}", markup=False)
    else:
        out.print(f"{directory} was stopped before its first save, so it starts at its beginning", markup=False)
    run.update(training=config.to_dict())
    return Job(checkpoint.model, corpus, config, run, resume=True)


def _refuse_changes(run: "Run", given: dict[str, Any], fixed: dict[str, str | None]) -> None:
    """Raises ConfigError, by name, for what a run cannot change once it has begun."""
    record = run.record
    now = fields_of(GPTConfig, given) | {key: given[key] for key in ("context_length", "seed") if key in given}
    then = record["model"] | {"context_length": record["training"]["context_length"]}
    then |= {"seed": record["training"]["seed"], "tokenizer": record["tokenizer"], "from": record["from"]}
    now |= {key: value for key in ("tokenizer", "from") if (value := fixed[key]) is not None}
    for key, value in now.items():
        if value != then[key]:
            raise ConfigError(f"{key} ({value}) cannot change on --resume; {run.directory} has {then[key]}")
    if fixed["preset"] is not None:
        raise ConfigError(f"preset ({fixed['preset']}) cannot be given on --resume; {run.directory} has its own shape")


def _build_corpus(sources: list[str], tokenizer: Any, reading: dict[str, Any], out: "Console") -> "Corpus":
    """The corpus, from the cache where it is there; a tokenizer of None is chosen by the text's size."""
    from minigpt.cli.render import byte_progress
    from minigpt.text.corpus import Corpus
    from minigpt.text.sources import scan
    from minigpt.training.planning import plan_tokenizer

    with out.status("reading the text …"):
        found = scan(sources, text_key=reading["text_key"], encoding_errors=reading["encoding_errors"])
    with byte_progress(out, "tokenizing") as progress:
        corpus = Corpus.build(
            found,
            tokenizer or plan_tokenizer(found.text_bytes),
            validation_fraction=reading["validation_fraction"],
            progress=progress,
        )
    if corpus.skipped:
        shown = ", ".join(corpus.skipped[:3]) + (" …" if len(corpus.skipped) > 3 else "")
        out.print(f"skipped {len(corpus.skipped)} files that are not text: {shown}", markup=False)
    return corpus


def _corpus_record(corpus: "Corpus") -> dict[str, Any]:
    return {
        "fingerprint": corpus.fingerprint,
        "train_bytes": corpus.train_bytes,
        "validation_bytes": corpus.validation_bytes,
        "train_tokens": len(corpus.train),
        "validation_tokens": len(corpus.validation),
    }


def _stem(sources: list[str]) -> str:
    """A run's name from its first text: `data/moby_dick.txt.gz` is moby_dick, standard input is stdin."""
    if sources[0] == "-":
        return "stdin"
    path = Path(sources[0]).resolve()
    stem = path.name.split(".")[0].strip("*?[]") or path.parent.name
    return stem or "run"


def _say_plan(made: "Plan", corpus: "Corpus", run: "Run", device: str, out: "Console") -> None:
    """What was chosen, and the flag that changes each."""
    from rich.table import Table

    from minigpt.cli.render import size

    model, training = made.model, made.training
    tokens = training.sequences_per_step * (training.context_length or 0)
    length = (
        f"{training.minutes:g} minutes"
        if training.minutes
        else f"{training.epochs:g} epochs"
        if training.epochs
        else f"{training.steps:,} steps"
    )
    held_out = "nothing held out: nothing will tell when to stop"
    if len(corpus.validation) > 1:
        held_out = f"{size(corpus.validation_bytes)} held out ({corpus.held_out})"
    per_token = corpus.train_bytes / len(corpus.train)
    rows = [
        ("text", f"{size(corpus.train_bytes)}, {held_out}", "--validation-fraction"),
        ("tokenizer", f"{corpus.tokenizer.name}, {corpus.tokenizer.vocab_size:,} words", "--tokenizer"),
        ("tokens", f"{len(corpus.train):,} of {per_token:.2f} bytes", ""),
        ("model", f"{made.preset}, {model.n_parameters:,} parameters", "--preset"),
        ("", f"{model.n_layer} layers, {model.n_head} heads, {model.n_embd} wide", "--n-layer --n-head --n-embd"),
        ("context", f"{training.context_length} tokens", "--context-length"),
        ("dropout", f"{model.dropout:g}", "--dropout"),
        ("batch", f"{training.sequences_per_step} sequences, {tokens:,} tokens a step", "--batch-size"),
        ("rate", f"{training.learning_rate:g}, {training.schedule}", "--learning-rate --schedule"),
        ("length", length, "--minutes --steps --epochs"),
        ("early stop", f"after {training.patience} evaluations" if training.patience else "never", "--patience"),
        ("device", device, "--device --dtype"),
        ("seed", str(training.seed), "--seed"),
    ]
    table = Table(title=str(run.directory), title_justify="left", title_style="bold", box=None, show_header=False)
    table.add_column(style="dim")
    table.add_column()
    table.add_column(style="cyan")
    for row in rows:
        table.add_row(*row)
    out.print(table)
    for note in made.notes:
        out.print(note, markup=False)
