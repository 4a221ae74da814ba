"""A training job made ready: a new run, with everything that was chosen said."""

import contextlib
import functools
import os
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minigpt.cli.changes import is_free
from minigpt.cli.models import open_model
from minigpt.cli.options import fields_of
from minigpt.config import GPTConfig, ReadingConfig, RunOptions, TrainConfig, preset_config
from minigpt.errors import ConfigError, FolderTakenError

if TYPE_CHECKING:
    import torch
    from rich.console import Console

    from minigpt.data.corpus import Corpus
    from minigpt.model.gpt import GPT
    from minigpt.planning.plan import Plan
    from minigpt.storage.checkpoint import Checkpoint
    from minigpt.storage.run import Run
    from minigpt.storage.run_record import CorpusRecord, Environment
    from minigpt.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class Job:
    """Everything `train()` takes, made ready."""

    model: "GPT"
    corpus: "Corpus"
    config: TrainConfig
    run: "Run"
    resume: bool
    spent: float = 0.0  # seconds of a budget in minutes that measuring took


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
    allow_change: bool = False

    def check(self) -> None:
        """Raises ConfigError for what is wrong whatever the text is."""
        if self.name is not None and (Path(self.name).name != self.name or self.name[:1] in ("", ".")):
            raise ConfigError(
                f"name ({self.name!r}) must be a plain one, of a folder in {self.checkpoints}: no slash in it, and no "
                "dot to begin with"
            )
        if {"batch_size", "batch_tokens"} <= self.given.keys():
            raise ConfigError(
                f"batch_size ({self.given['batch_size']}) and batch_tokens ({self.given['batch_tokens']}) contradict "
                "one another; give one of them"
            )
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
        """The name given, else one from the first text: `data/moby_dick.txt.gz` is moby_dick, a pipe is stdin."""
        if self.name or _is_pipe(self.sources[0]):
            return self.name or "stdin"
        path = Path(self.sources[0]).resolve()
        plain = path.with_suffix("") if path.suffix == ".gz" else path
        stem = plain.name if plain.is_dir() else plain.stem
        return stem.strip("*?[].") or path.parent.name or "run"

    @property
    def asked(self) -> dict[str, Any]:
        """What a resumed run is compared with, by the names of the options."""
        whole = {"preset": self.preset, "tokenizer": self.tokenizer, "from": self.base, **self.reading, **self.given}
        return {key: value for key, value in whole.items() if value is not None and not is_free(key)}


@dataclass(frozen=True)
class Draft:
    """A new run before anything of it is written: its text, its plan, and the model that it starts from, if any."""

    name: str
    corpus: "Corpus"
    plan: "Plan"
    base: "Checkpoint | None"
    device: "torch.device"
    began: float  # when the plan was begun, by time.perf_counter()


def draw_up(request: Request, out: "Console", processes: int, on_this_machine: int) -> Draft:
    """Reads the corpus, measures the machine, plans for so many processes, some of them on it, and says all of it."""
    import torch

    from minigpt.cli.render.plan_table import plan_table
    from minigpt.device import free_memory, multiplies_bfloat16_faster, resolve_device, resolve_dtype
    from minigpt.planning.plan import FINE_TUNED, CorpusStats, plan, plan_preset
    from minigpt.planning.throughput import seconds_per_step
    from minigpt.planning.timing import StepTimer
    from minigpt.storage.checkpoint import free_name

    device = resolve_device(request.given.get("device", "auto"))
    dtype = resolve_dtype(request.given.get("dtype", "auto"), device)
    checkpoints = request.checkpoints
    base = open_model(request.base, checkpoints, "cpu", mapped=False) if request.base else None
    if base and request.tokenizer not in (None, base.tokenizer.name):
        raise ConfigError(
            f"tokenizer ({request.tokenizer}) cannot be chosen with --from: "
            f"{base.directory} brings its own, {base.tokenizer.name}"
        )
    tokenizer = base.tokenizer if base else request.tokenizer
    corpus = build_corpus(request.sources, tokenizer, ReadingConfig(**request.reading), out)
    began = time.perf_counter()
    with out.status("measuring this machine …"):
        survey, given, memory = CorpusStats.of(corpus), request.given, free_memory(device)
        dtypes: tuple[str, ...] = ()
        if device.type == "cpu":
            memory //= on_this_machine
            dtypes = ("float32", "bfloat16") if multiplies_bfloat16_faster() else ("float32",)
        elif dtype != torch.float16:  # recorded by its name, so that the run goes on in it; not where a CPU could not
            given = given | {"dtype": str(dtype).removeprefix("torch.")}
        clock = StepTimer(functools.partial(seconds_per_step, device=device, processes=processes), dtypes)
        preset = request.preset or (
            FINE_TUNED if base else plan_preset(survey, device.type, memory, given, clock, processes)
        )
        made = plan(
            survey,
            device_type=device.type,
            free_memory=memory,
            given=given,
            preset=preset,
            base=base.model.config if base else None,
            clock=clock,
            processes=processes,
        )
    _check_budget(made, time.perf_counter() - began)
    name = free_name(request.run_name, checkpoints)
    out.print(plan_table(made, corpus, str(checkpoints / name), str(device)))
    for note in made.notes:
        out.print(note, markup=False)
    compiles = device.type == "cuda" and made.training.sharding != "on"
    if made.training.compile == "on" or (made.training.compile == "auto" and compiles):
        out.print("the speed was measured before torch.compile, which may add to it", markup=False)
    if name != request.run_name:
        taken = checkpoints / request.run_name
        instead = f"--resume --name {taken.name} would go on with that"
        out.print(f"{taken} stands already, so this run is {name}; {instead}", markup=False)
    return Draft(name, corpus, made, base, device, began)


def _check_budget(made: "Plan", measuring: float) -> None:
    """Raises ConfigError where the minutes are over before the first step."""
    minutes, needed = made.training.minutes, measuring + made.seconds_per_step
    if minutes is not None and 60 * minutes < needed:
        raise ConfigError(
            f"minutes ({minutes:g}) are over before a first step could be taken: measuring this machine took "
            f"{measuring:.1f} s, and a step takes {made.seconds_per_step:.2g} s; give at least {2 * needed / 60:.2g}, "
            "or --steps"
        )


def begin(request: Request, draft: Draft, out: "Console", processes: int) -> Job:
    """A new run as it was drawn up, for so many processes: its model, what it is compared with, and its folder."""
    import torch

    from minigpt import __version__
    from minigpt.evaluation.baselines import cheap_baselines
    from minigpt.model.gpt import GPT
    from minigpt.storage.checkpoint import free_name
    from minigpt.storage.run import Run
    from minigpt.storage.run_record import BaselineRecord, BaselinesRecord, RunRecord

    made, corpus, base = draft.plan, draft.corpus, draft.base
    torch.manual_seed(made.training.seed)
    model = GPT.from_tensors(made.model, base.model.state_dict()) if base else GPT(made.model)
    with out.status("measuring what simple methods make of the held-out text …"):
        baselines = cheap_baselines(corpus)
    record = RunRecord(
        minigpt=__version__,
        torch=torch.__version__,
        started=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        device=str(draft.device),
        environment=_environment(draft.device, processes),
        sources=resolved(request.sources),
        asked=RunOptions.of(request.asked),
        reading=ReadingConfig(**request.reading),
        base=str(base.directory) if base else None,
        preset=made.preset,
        tokenizer=corpus.tokenizer.name,
        corpus=corpus_record(corpus),
        baselines=BaselinesRecord(
            fingerprint=corpus.fingerprint,
            measured=tuple(BaselineRecord(**asdict(baseline)) for baseline in baselines),
        ),
        model=made.model,
        training=made.training,
        expected=made.expected,
    )
    name, run = draft.name, None
    while run is None:
        try:
            run = Run.create(request.checkpoints / name, model, corpus.tokenizer, record)
        except FolderTakenError:  # since the plan was said
            taken, name = name, free_name(request.run_name, request.checkpoints)
            out.print(f"another run has just taken {request.checkpoints / taken}, so this one is {name}", markup=False)
    run.lock()
    return Job(model, corpus, made.training, run, resume=False, spent=time.perf_counter() - draft.began)


def _environment(device: "torch.device", processes: int) -> "Environment":
    import torch

    from minigpt.storage.run_record import Environment

    return Environment(
        python=platform.python_version(),
        system=platform.platform(),
        cpu=_cpu_name(),
        gpu=torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        cores=os.cpu_count(),
        threads=torch.get_num_threads(),
        processes=processes,
    )


def _cpu_name() -> str:
    """The processor's own name where the system tells it, else its architecture's."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def build_corpus(
    sources: list[str], tokenizer: "Tokenizer | str | None", reading: ReadingConfig, out: "Console"
) -> "Corpus":
    """The corpus, from the cache where it is there; a tokenizer of None is chosen by the text's size."""
    from minigpt.cli.render.console import byte_progress
    from minigpt.cli.render.units import count
    from minigpt.data.corpus import Corpus
    from minigpt.data.sources import scan
    from minigpt.planning.plan import plan_tokenizer
    from minigpt.tokenizer.tokenizer import requested_vocab_size

    wanted = requested_vocab_size(tokenizer) if isinstance(tokenizer, str) else None
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
        out.print(f"skipped {count(len(corpus.skipped), 'file')} without text: {shown}", markup=False)
    if wanted and wanted > corpus.tokenizer.vocab_size:
        out.print(f"the text supports only {corpus.tokenizer.vocab_size:,} words, not {wanted:,}", markup=False)
    return corpus


def resolved(sources: list[str]) -> tuple[str, ...]:
    """The texts by paths that hold from any folder; `-` for a pipe, which cannot be read again."""
    return tuple("-" if _is_pipe(source) else str(Path(source).resolve()) for source in sources)


def _is_pipe(source: str) -> bool:
    return source == "-" or Path(source).is_fifo()  # one of a shell's own, as of <(…), too


def corpus_record(corpus: "Corpus") -> "CorpusRecord":
    """What training.json says of the text."""
    from minigpt.storage.run_record import CorpusRecord

    return CorpusRecord(
        fingerprint=corpus.fingerprint,
        path=str(corpus.path),
        train_bytes=corpus.train_bytes,
        validation_bytes=corpus.validation_bytes,
        train_tokens=len(corpus.train),
        validation_tokens=len(corpus.validation),
    )
