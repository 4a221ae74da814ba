"""The edges: packages that each add one thing to the spine. Each can be deleted, and other packages can add more.

The rest of minigpt, the *spine*, imports no edge. It asks for what the edges provide at a *seam*:

    for accelerate in provided("accelerate"):
        accelerate(model)

A package from elsewhere adds an edge by an entry point of the group `minigpt.edges`, whose object is an `Edge`. Every
command imports its module, which therefore imports no torch.
"""

import functools
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from minigpt.errors import ConfigError

GROUP = "minigpt.edges"


@dataclass(frozen=True, kw_only=True)
class Edge:
    """A part of minigpt that adds one thing.

    `package` is what is deleted to be without it. It `needs` these edges of minigpt; without one of them it counts as
    missing. `provides` has, by seam, what it adds there, each as "module:attribute"; `commands` the same by the
    command's name.
    """

    name: str
    sentence: str
    package: str
    needs: tuple[str, ...] = ()
    provides: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_installed(self) -> bool:
        """Whether its package and those that it needs are there."""
        known = {edge.name: edge for edge in EDGES}
        try:
            is_there = find_spec(self.package) is not None
        except ModuleNotFoundError:  # a package that it is in
            return False
        return is_there and all(name in known and known[name].is_installed for name in self.needs)


# Where several provide something at the same seam, the order is this one.
EDGES = (
    Edge(
        name="shared_cores",
        sentence="Threads that leave cores to other programs, and that sleep while they wait for each other.",
        package="minigpt.shared_cores",
        provides={
            "watch_load": "minigpt.shared_cores.load_monitor:watch_load",
            "step_parts": "minigpt.shared_cores.thread_trials:try_threads",
        },
    ),
    Edge(
        name="native",
        sentence="Operations of generation and training in C.",
        package="minigpt.native",
        needs=("shared_cores",),
        provides={
            "accelerate": "minigpt.native.accelerate:accelerate",
            "step_parts": "minigpt.native.step_parts:use_compiled_code",
            "engine": "minigpt.native.engine_provider:ENGINES",
            "slots": "minigpt.native.slots:new_slots",
            "engine_settings": "minigpt.native.engine_settings:NativeEngineSettings",
            "draw_tokens": "minigpt.native.operations:draw_tokens",
        },
    ),
    Edge(
        name="cuda",
        sentence="Generation on CUDA by recorded graphs and Triton kernels.",
        package="minigpt.cuda",
        provides={
            "engine": "minigpt.cuda.graphs:ENGINES",
            "slots": "minigpt.cuda.slots:new_slots",
            "engine_settings": "minigpt.cuda.engine_settings:CudaEngineSettings",
        },
    ),
    Edge(
        name="slots",
        sentence="Texts that are generated together and begin and end at any time.",
        package="minigpt.slots",
    ),
    Edge(
        name="penalties",
        sentence="Penalties for repetition, biases of tokens, forbidden words, and tokens that a model has not seen.",
        package="minigpt.penalties",
        provides={
            "sampling_settings": "minigpt.penalties.settings:PenaltySettings",
            "logits_processors": "minigpt.penalties.processors:penalties",
            "unseen_tokens": "minigpt.penalties.unseen_tokens:unseen_tokens",
        },
    ),
    Edge(
        name="search",
        sentence="Beam search, and the best of several drawn texts.",
        package="minigpt.search",
        provides={
            "sampling_settings": "minigpt.search.settings:SearchSettings",
            "search": "minigpt.search.likely_pieces:likely_pieces",
            "generate_settings": "minigpt.search.generate_settings:FitOfBeams",
        },
    ),
    Edge(
        name="speculation",
        sentence="Speculative decoding: drafts from the text itself, or from a smaller model.",
        package="minigpt.speculation",
        provides={
            "generate_settings": "minigpt.speculation.generate_settings:SpeculationSettings",
            "drafter": "minigpt.speculation.drafters:default_drafter",
        },
    ),
    Edge(
        name="autoplan",
        sentence="Settings chosen for the text and the machine, and the result to expect.",
        package="minigpt.autoplan",
        needs=(
            "baselines",
            "memorization",
            "distillation",
            "tricks",
            "distributed",
            "lora",
            "shared_cores",
        ),
        provides={
            "planner": "minigpt.autoplan.planner:MeasuringPlanner",
            "sinks": "minigpt.autoplan.speed_monitor:speed_sink",
            "annotations": "minigpt.autoplan.annotations:PlanAnnotations",
            "training_memory": "minigpt.autoplan.memory_estimates:least_memory",
        },
    ),
    Edge(
        name="distillation",
        sentence="A teacher from whose predictions the model learns.",
        package="minigpt.distillation",
        provides={
            "train_settings": "minigpt.distillation.settings:DistillationSettings",
            "step_parts": "minigpt.distillation.step_parts:use_teacher",
            "stages": "minigpt.distillation.teacher:TeacherStage",
        },
    ),
    Edge(
        name="tricks",
        sentence="Sampled softmax, spelling features, BPE-dropout and token noise.",
        package="minigpt.tricks",
        provides={
            "train_settings": "minigpt.tricks.settings:TrickSettings",
            "step_parts": "minigpt.tricks.step_parts:use_tricks",
        },
    ),
    Edge(
        name="lora",
        sentence="Adapters, frozen weights, and the files of peft.",
        package="minigpt.lora",
        provides={
            "train_settings": "minigpt.lora.settings:LoraSettings",
            "prepare_model": "minigpt.lora.fine_tuning:apply_fine_tuning",
            "adapter": "minigpt.lora.adapter_format:lora_format",
        },
        commands={"merge": "minigpt.lora.command:merge"},
    ),
    Edge(
        name="distributed",
        sentence="Training by several processes.",
        package="minigpt.distributed",
        provides={
            "train_settings": "minigpt.distributed.settings:DistributedSettings",
            "step_parts": "minigpt.distributed.muon_processes:share_muon",
            "world": "minigpt.distributed.joined_world:joined_world",
        },
    ),
    Edge(
        name="protobuf",
        sentence="What the readers of SentencePiece and TensorFlow files share.",
        package="minigpt.protobuf",
    ),
    Edge(
        name="importers",
        sentence="Weights of GGUF, nanoGPT, TensorFlow and PyTorch files.",
        package="minigpt.importers",
        needs=("protobuf",),
        provides={"weight_reader": "minigpt.importers.readers:READERS"},
    ),
    Edge(
        name="foreign_tokenizers",
        sentence="Tokenizers of the tokenizers library and of SentencePiece.",
        package="minigpt.foreign_tokenizers",
        needs=("protobuf",),
        provides={"tokenizer_reader": "minigpt.foreign_tokenizers.library_files:reader"},
    ),
    Edge(
        name="documents",
        sentence="Text of EPUB, HTML, Word, PDF and subtitle files.",
        package="minigpt.documents",
        provides={"text_reader": "minigpt.documents.read:reader"},
    ),
    Edge(
        name="chat_logs",
        sentence="Conversations as training text.",
        package="minigpt.chat_logs",
        provides={
            "train_settings": "minigpt.chat_logs.settings:ChatLogSettings",
            "reading_settings": "minigpt.chat_logs.settings:ExportSettings",
            "step_parts": "minigpt.chat_logs.step_parts:note_unscored_steps",
            "generate_settings": "minigpt.chat_logs.generate_settings:ChatHint",
            "text_reader": "minigpt.chat_logs.json_files:readers",
            "conversations": "minigpt.chat_logs.conversations:reader",
            "annotations": "minigpt.chat_logs.annotations:ChatAnnotations",
            "evaluate_settings": "minigpt.chat_logs.evaluate_settings:RoleSettings",
            "token_reader": "minigpt.chat_logs.conversations:reader",
            "sample_prompt": "minigpt.chat_logs.chat_corpus:sample_prompt",
        },
    ),
    Edge(
        name="large_corpora",
        sentence="Parquet files, mixtures of texts, and token files of other programs.",
        package="minigpt.large_corpora",
        needs=("documents",),
        provides={
            "reading_settings": "minigpt.large_corpora.settings:MixSettings",
            "text_reader": "minigpt.large_corpora.parquet:reader",
            "token_reader": "minigpt.large_corpora.texts:reader",
        },
    ),
    Edge(
        name="interactive",
        sentence="Writing with a model in the terminal.",
        package="minigpt.interactive",
        needs=("chat_logs",),
        commands={"play": "minigpt.interactive.play:play", "chat": "minigpt.interactive.chat:chat"},
    ),
    Edge(
        name="server",
        sentence="The OpenAI API, a playground and metrics over HTTP.",
        package="minigpt.server",
        needs=(
            "penalties",
            "slots",
            "inspection",
            "pages",
            "chat_logs",
            "reports",
        ),
        commands={"serve": "minigpt.server.command:serve"},
    ),
    Edge(
        name="exporters",
        sentence="GGUF, ONNX, CTranslate2 and a page that runs in a browser, and model cards for the hub.",
        package="minigpt.exporters",
        needs=(
            "native",
            "lora",
            "foreign_tokenizers",
            "chat_logs",
            "pages",
            "importers",
        ),
        provides={"model_card": "minigpt.exporters.model_card:card"},
        commands={"export": "minigpt.exporters.command:export"},
    ),
    Edge(
        name="terminal",
        sentence="A live panel of a run, and prose that is broken at words, in a terminal.",
        package="minigpt.terminal",
        provides={"panel": "minigpt.terminal.panel:panel", "wrap": "minigpt.terminal.wrapping:wrapper"},
    ),
    Edge(
        name="baselines",
        sentence="Compressors and n-gram tables that a model is compared with.",
        package="minigpt.baselines",
    ),
    Edge(
        name="corpus_report",
        sentence="What is in a text, before training on it.",
        package="minigpt.corpus_report",
        needs=(
            "baselines",
            "memorization",
            "chat_logs",
        ),
        commands={"corpus": "minigpt.corpus_report.command:corpus"},
    ),
    Edge(
        name="benchmarks",
        sentence="LAMBADA, HellaSwag, CBT and language-modeling benchmarks.",
        package="minigpt.benchmarks",
        needs=("large_corpora",),
        provides={"evaluate_settings": "minigpt.benchmarks.evaluate_settings:BenchmarkSettings"},
    ),
    Edge(
        name="held_out",
        sentence="The held-out part of a training text, and whether a text was trained on.",
        package="minigpt.held_out",
        provides={
            "evaluate_settings": "minigpt.held_out.evaluate_settings:HeldOutSettings",
            "sample_prompt": "minigpt.held_out.sample_prompt:sample_prompt",
        },
    ),
    Edge(
        name="inspection",
        sentence="Attention and predictions, layer by layer.",
        package="minigpt.inspection",
        needs=("pages",),
        provides={
            "monitors": "minigpt.inspection.passage_monitor:PassageMonitor",
            "generate_settings": "minigpt.inspection.generate_settings:ExplainSettings",
        },
        commands={"inspect": "minigpt.inspection.command:inspect"},
    ),
    Edge(
        name="memorization",
        sentence="How much of a text was copied from the training text.",
        package="minigpt.memorization",
        needs=("held_out",),
        provides={
            "monitors": "minigpt.memorization.monitor:MemorizationMonitor",
            "annotations": "minigpt.memorization.annotations:CopyingAnnotations",
            "generate_settings": "minigpt.memorization.generate_settings:CopySettings",
        },
    ),
    Edge(
        name="loggers",
        sentence="TensorBoard and Weights & Biases.",
        package="minigpt.loggers",
        needs=("removal",),
        provides={
            "sink_settings": "minigpt.loggers.settings:LoggerSettings",
            "sinks": "minigpt.loggers.loggers:logger_sink",
        },
    ),
    Edge(
        name="reports",
        sentence="A page about a run, also while it trains.",
        package="minigpt.reports",
        needs=(
            "baselines",
            "memorization",
            "inspection",
            "pages",
        ),
        provides={
            "sink_settings": "minigpt.reports.settings:ReportSettings",
            "sinks": "minigpt.reports.run_pages:report_sink",
        },
        commands={"report": "minigpt.reports.command:report"},
    ),
    Edge(
        name="starter",
        sentence="A small English GPT-2 that comes with minigpt.",
        package="minigpt.starter",
        provides={"models": "minigpt.starter:STARTER"},
    ),
    Edge(
        name="experiments",
        sentence="Functions given in Python in place of the loss, the optimizer, the schedule and the batches.",
        package="minigpt.experiments",
        provides={"step_parts": "minigpt.experiments.step_parts:use_given"},
    ),
    Edge(
        name="pages",
        sentence="What the pages of inspection, reports, the server and an export share.",
        package="minigpt.pages",
    ),
    Edge(
        name="removal",
        sentence="Runs are removed with everything in their folders.",
        package="minigpt.removal",
        commands={"rm": "minigpt.removal.command:remove"},
    ),
    Edge(
        name="foundations",
        sentence="Attention step by step, as in the articles that minigpt grew out of.",
        package="minigpt.foundations",
    ),
)


@functools.cache
def installed_edges() -> tuple[Edge, ...]:
    """The edges that are there, those of other packages last."""
    from importlib.metadata import entry_points

    found = list(EDGES)
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            found.append(point.load())
        except Exception as error:  # another package may fail in any way
            raise ConfigError(
                f"{point.value}, which adds to minigpt, cannot be imported ({type(error).__name__}: {error}); fix or "
                f"uninstall {point.dist.name if point.dist else 'its package'}"
            ) from error
    return tuple(edge for edge in found if edge.is_installed)


@functools.cache
def provided(seam: str) -> tuple[Any, ...]:
    """What the installed edges provide at a seam, in the order of the table. It imports them."""
    return tuple(load(edge.provides[seam]) for edge in installed_edges() if seam in edge.provides)


def not_installed(seam: str) -> str:
    """Which edges of the table would provide something at a seam, and are not there; empty if all are."""
    absent = [edge for edge in EDGES if seam in edge.provides and not edge.is_installed]
    return "; ".join(f"{edge.name} is not installed: the package {edge.package} is missing" for edge in absent)


def is_installed(name: str) -> bool:
    """Whether the edge of that name is there."""
    return any(edge.name == name for edge in installed_edges())


def commands() -> dict[str, str]:
    """The commands of the installed edges: their functions, as "module:attribute", by name."""
    return {name: target for edge in installed_edges() for name, target in edge.commands.items()}


def load(target: str) -> Any:
    """The object of "module:attribute"."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)
