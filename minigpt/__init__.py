"""minigpt: trains GPT-2 on your text, imports it, and generates text.

    plan = minigpt.plan("corpus.txt", minutes=5)        what a run would be, measured on this machine
    minigpt.show(minigpt.fit(plan))                     trains it, as `minigpt train` does
    minigpt.load("corpus").generate("Once upon a time") a continuation

Shapes, everywhere in this package:

    B  batch            T  new positions      S  attended positions    C  n_embd (width)
    H  heads            D  C / H (head width) V  vocabulary            L  layers

Names are imported when they are first used, so `import minigpt` takes no time.
"""

TYPE_CHECKING = False  # as in typing, which takes 5 ms to import
if TYPE_CHECKING:
    from minigpt.autoplan.speed_monitor import SpeedChange
    from minigpt.cli.render.training_display import show
    from minigpt.config import PRESETS, GPTConfig, SamplingConfig, TrainConfig
    from minigpt.data.corpus import Corpus
    from minigpt.errors import (
        CheckpointError,
        ConfigError,
        DataError,
        DeviceError,
        GenerationError,
        MinigptError,
        MissingPackageError,
        TokenizerError,
        TrainingError,
    )
    from minigpt.evaluation.perplexity import evaluate
    from minigpt.generation.decoding import generate
    from minigpt.generation.logits_processors import LogitsProcessor
    from minigpt.generation.sampling import Sampler
    from minigpt.generation.streaming import generate_text
    from minigpt.inspection.activations import inspect
    from minigpt.model.gpt import GPT
    from minigpt.model.kv_cache import KVCache
    from minigpt.pretrained.gpt2 import load_gpt2
    from minigpt.runs.events import Planned, Started
    from minigpt.runs.fit import fit, plan
    from minigpt.runs.load import Model, load
    from minigpt.runs.plan import Plan
    from minigpt.storage.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
    from minigpt.tokenizer.tokenizer import Tokenizer
    from minigpt.training.clock import Control
    from minigpt.training.events import Evaluation, Finished, Notice, Sample, Saved, Step
    from minigpt.training.loop import train

_HOME = {
    "autoplan.speed_monitor": "SpeedChange",
    "cli.render.training_display": "show",
    "config": "PRESETS GPTConfig SamplingConfig TrainConfig",
    "data.corpus": "Corpus",
    "errors": "CheckpointError ConfigError DataError DeviceError GenerationError MinigptError MissingPackageError "
    "TokenizerError TrainingError",
    "evaluation.perplexity": "evaluate",
    "generation.decoding": "generate",
    "generation.logits_processors": "LogitsProcessor",
    "generation.sampling": "Sampler",
    "generation.streaming": "generate_text",
    "pretrained.gpt2": "load_gpt2",
    "inspection.activations": "inspect",
    "runs.events": "Planned Started",
    "runs.fit": "fit plan",
    "runs.load": "Model load",
    "runs.plan": "Plan",
    "model.gpt": "GPT",
    "model.kv_cache": "KVCache",
    "storage.checkpoint": "Checkpoint load_checkpoint save_checkpoint",
    "tokenizer.tokenizer": "Tokenizer",
    "training.clock": "Control",
    "training.events": "Evaluation Finished Notice Sample Saved Step",
    "training.loop": "train",
}
_MODULE_OF = {name: f"minigpt.{module}" for module, names in _HOME.items() for name in names.split()}

__version__ = "0.1.0"
__all__ = [
    "GPT", "PRESETS", "Checkpoint", "CheckpointError", "ConfigError", "Control", "Corpus", "DataError", "DeviceError",
    "Evaluation", "Finished", "GPTConfig", "GenerationError", "KVCache", "LogitsProcessor", "MinigptError",
    "MissingPackageError", "Model", "Notice", "Plan", "Planned", "Sample", "Sampler", "SamplingConfig", "Saved",
    "SpeedChange", "Started", "Step", "Tokenizer", "TokenizerError", "TrainConfig", "TrainingError", "evaluate", "fit",
    "generate", "generate_text", "inspect", "load", "load_checkpoint", "load_gpt2", "plan", "save_checkpoint", "show",
    "train",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name in _MODULE_OF:
        from importlib import import_module

        value = getattr(import_module(_MODULE_OF[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'minigpt' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
