"""Opens the model that a command names, of any format, with the engine that runs it."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from minigpt.cli.options import MODEL_HELP, model_option, run_option
from minigpt.cli.render.terminal import note
from minigpt.edges import provided
from minigpt.errors import ConfigError, MinigptError
from minigpt.generation.engine_settings import EngineSettings
from minigpt.settings import combined

if TYPE_CHECKING:
    from minigpt.generation.engine import Engine
    from minigpt.model.gpt import GPT
    from minigpt.storage.checkpoint import Checkpoint

DtypeOption = Annotated[
    str,
    typer.Option(
        "--dtype",
        help="dtype of the weights: float32, bfloat16, float16; auto: bfloat16 on CUDA from Ampere on, else float32",
    ),
]
ModelOption = Annotated[str | None, model_option(help=MODEL_HELP)]
AdapterOption = Annotated[
    str | None,
    run_option(
        "--adapter",
        help="a LoRA adapter's name or folder, of minigpt or peft; it is added to --model [default: its base model]",
        rich_help_panel=None,
    ),
]
ENGINE_SETTINGS: type[EngineSettings] = combined(
    "AllEngineSettings", "How a model is run.", (EngineSettings, *provided("engine_settings"))
)


def find_named(name: str | None, checkpoints: Path) -> Path:
    """The path of the model that a command names, by default the newest; a note says if that is a shipped one."""
    from minigpt.pretrained.open_model import find_model
    from minigpt.storage.shipped_models import find_shipped

    path = find_model(name, checkpoints)
    if name is None and (shipped := find_shipped(None)) and path == shipped.directory:
        note(
            f"{checkpoints} holds no model, so this is {shipped.name}, {shipped.sentence}; for one of your own text: "
            "minigpt train corpus.txt"
        )
    return path


def loaded_line(checkpoint: "Checkpoint", engine: "Engine") -> str:
    """What a command says of the model that it runs: its name or path, its size, and how it is run."""
    from minigpt.storage.shipped_models import reference_to

    parameters = checkpoint.model.config.n_parameters
    return f"{reference_to(checkpoint.directory)} · {parameters:,} parameters · {engine.description}"


@contextmanager
def out_of_memory_as(explanation: MinigptError) -> Iterator[None]:
    """A context that raises `explanation` if memory runs out in it."""
    try:
        yield
    except MinigptError:
        raise
    except (RuntimeError, MemoryError) as error:
        from minigpt.training.memory import is_out_of_memory

        if isinstance(error, RuntimeError) and not is_out_of_memory(error):
            raise
        raise explanation from error


def open_model(
    name: str | None, checkpoints: Path, device: str, *, dtype: str = "float32", adapter: str | None = None
) -> "Checkpoint":
    """Loads the model of that name or path onto the device, and prints notes on how its format was read.

    `adapter` is the name or folder of an adapter that is added to it; without a name, to the model that it names. The
    weights stay memory-mapped, as in `from_huggingface`.
    """
    from minigpt.device import resolve_device, resolve_generation_dtype
    from minigpt.pretrained.open_model import find_adapted, load_model
    from minigpt.threads import respect_cpu_quota

    respect_cpu_quota()
    target = resolve_device(device)
    path, base = find_adapted(name, adapter, checkpoints) if adapter else (find_named(name, checkpoints), None)
    with _out_of_memory_while_loading(str(path)):
        checkpoint, notes = load_model(
            path,
            str(target),
            dtype=resolve_generation_dtype(dtype, target),
            mapped=True,
            checkpoints=checkpoints,
            base=base,
        )
    for each in notes:
        note(f"note: {each}")
    return checkpoint


def open_engine(model: "GPT", settings: EngineSettings) -> "Engine":
    """The engine for a model; prints a note if it is slower than it could be."""
    from minigpt.device import avoid_cudnn_attention
    from minigpt.generation.resolve_engine import missing_compiled_code, resolve_engine

    if slow := missing_compiled_code(model):
        note(slow)
    avoid_cudnn_attention()
    with _out_of_memory_while_loading("the model"):
        engine = resolve_engine(model, settings.quantize, compiled=settings.compile)
    if engine.slow_because:
        note(engine.slow_because)
    return engine


def _out_of_memory_while_loading(model: str) -> AbstractContextManager[None]:
    remedy = "close other programs, or give a smaller model or another --device"
    return out_of_memory_as(ConfigError(f"out of memory while loading {model}; {remedy}"))
