"""`minigpt serve`: answers HTTP requests with one or several models."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from minigpt import shell
from minigpt.cli.models import ENGINE_SETTINGS, DtypeOption, find_named, open_model, out_of_memory_as
from minigpt.cli.options import CheckpointsOption, DeviceOption, common_option, names_of, settings_options
from minigpt.cli.render.terminal import note
from minigpt.errors import CheckpointError, ConfigError
from minigpt.optional_packages import check_installed
from minigpt.server.serve_config import ServeConfig

if TYPE_CHECKING:
    from minigpt.generation.engine_settings import EngineSettings
    from minigpt.server.served_model import ServedModel

_PACKAGES = ("starlette", "uvicorn", "jinja2", "pydantic", "prometheus_client")
_KEY = "MINIGPT_API_KEY"  # environment variable
_OF_SLOTS = [name for name in names_of(ENGINE_SETTINGS) if name == "quantize"]
_SHARE_OF_MEMORY = 0.5  # of the free memory that keys and values of all slots may take


@settings_options((ServeConfig, names_of(ServeConfig)), (ENGINE_SETTINGS, _OF_SLOTS))
def serve(
    given: dict[str, Any],
    models: Annotated[
        list[str] | None,
        typer.Argument(help="runs' names, or models' files or folders [default: the newest model]", metavar="MODEL"),
    ] = None,
    every: Annotated[bool, common_option("--all", help="serve all models in --checkpoints")] = False,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    checkpoints: CheckpointsOption = Path("checkpoints"),
) -> None:
    """Answer HTTP requests as OpenAI's completions API does, with one or several models.

    Programs on this machine can use it at once. Other machines need --host 0.0.0.0 and a key.

    Examples:

    - `minigpt serve`
    - `minigpt serve moby_dick gpt2 --port 8001`
    - `MINIGPT_API_KEY=secret minigpt serve --host 0.0.0.0 --allowed-hosts me.lan`
    """
    begin = time.perf_counter()
    if "api_key" not in given and os.environ.get(_KEY):
        given["api_key"] = os.environ[_KEY]
    engine = ENGINE_SETTINGS(**{name: given.pop(name) for name in _OF_SLOTS if name in given})
    config = ServeConfig(**given)
    if models and every:
        raise ConfigError(
            f"--all serves every model in {checkpoints}; give it or names ({', '.join(models)}), not both"
        )
    check_installed("minigpt serve", *_PACKAGES)
    paths = _find(models or [], checkpoints, every=every)

    from minigpt.server.http_server import address, bind, run
    from minigpt.server.served_model import Models

    def load() -> list["ServedModel"]:
        return [
            _within_memory(name, partial(_load, name, path, config, checkpoints, device, dtype, engine))
            for name, path in paths.items()
        ]

    listening = bind(config)
    url = address(listening, config)
    note(f"{url} · loading {', '.join(paths)} · Ctrl-C ends it")

    def on_loaded(loaded: Sequence["ServedModel"]) -> None:
        for model in loaded:
            note(f"{model.name} · context of {model.context_length} tokens · {model.batch.engine.description}")
        note(f"ready after {time.perf_counter() - begin:.1f} s; open {url} in a browser, or send a request:")
        note(_example(url, config, loaded[0]), is_command=True)

    served = Models(load)
    received = run(listening, config, served, on_loaded=on_loaded, log=note)
    if received and not served.all:
        _exit_while_loading(received[0])
    if received[:1] == [signal.SIGINT]:
        raise KeyboardInterrupt


def _exit_while_loading(number: int) -> NoReturn:
    """Ends the process after a signal while a thread still loads models, for which Python would wait.

    As a daemon thread it would not be waited for, but PyTorch aborts the process if one is left at its end.
    """
    if number == signal.SIGINT:
        note("minigpt: stopped")
    sys.stderr.flush()
    os._exit(130 if number == signal.SIGINT else 0)


def _find(names: Sequence[str], checkpoints: Path, *, every: bool) -> dict[str, Path]:
    """The models' paths by the names that clients use.

    Raises: CheckpointError if there is none of a name; ConfigError if two would have the same name.
    """
    from minigpt.storage.names import ADAPTER_WEIGHTS, WEIGHTS

    if every:
        files = [path for name in (WEIGHTS, ADAPTER_WEIGHTS) for path in checkpoints.glob(f"*/{name}")]
        paths = sorted({path.parent for path in files if not path.parent.name.startswith(".")})
        if not paths:
            raise CheckpointError(f"no model in {checkpoints}; train one with `minigpt train corpus.txt`")
    else:
        paths = [find_named(name, checkpoints) for name in names] or [find_named(None, checkpoints)]
    found: dict[str, Path] = {}
    for path in paths:
        name = path.resolve().name
        if name in found:
            raise ConfigError(f"{found[name]} and {path} would both be served as {name!r}; give one of them")
        found[name] = path
    return found


def _within_memory(name: str, load: Callable[[], "ServedModel"]) -> "ServedModel":
    """The model that `load` returns.

    Raises: ConfigError if the memory is not enough; what `load` raises.
    """
    remedy = "give a smaller --max-batch, fewer models, or another --device"
    with out_of_memory_as(ConfigError(f"out of memory while loading {name}; {remedy}")):
        return load()


def _load(
    name: str, path: Path, config: ServeConfig, checkpoints: Path, device: str, dtype: str, engine: "EngineSettings"
) -> "ServedModel":
    """Loads one model with its batch.

    Raises: MinigptError if it cannot be loaded, or if the memory for its texts is missing.
    """
    from minigpt.device import avoid_cudnn_attention, free_memory
    from minigpt.generation.capacity import slot_bytes
    from minigpt.generation.resolve_engine import why_pytorch
    from minigpt.server.batching.batch import Batch
    from minigpt.server.served_model import ServedModel
    from minigpt.slots.resolve_slots import resolve_slots

    checkpoint = open_model(str(path), checkpoints, device, dtype=dtype)
    model, target = checkpoint.model, checkpoint.model.token_embedding.weight.device
    each, free = slot_bytes(model.config, model.token_embedding.weight.dtype), free_memory(target)
    fitting = int(_SHARE_OF_MEMORY * free) // each
    if fitting < config.max_batch:
        remedy = f"set --max-batch to at most {fitting}" if fitting else "serve a smaller model, or free memory"
        raise ConfigError(
            f"max_batch ({config.max_batch}) texts of {name} need {config.max_batch * each / 1e9:.1f} GB for keys and "
            f"values, but may take only {_SHARE_OF_MEMORY:.0%} of the {free / 1e9:.1f} GB that are free; {remedy}"
        )
    if reason := why_pytorch(model):
        note(f"PyTorch generates one text after another: {reason}")
    avoid_cudnn_attention()
    slots = resolve_slots(model, config.max_batch, engine.quantize)
    batch = Batch(slots, checkpoint.tokenizer, prefix_cache_bytes=config.prefix_cache * 1_000_000)
    return ServedModel(name, int(path.stat().st_mtime), batch, checkpoint.tokenizer.chat_template, path)


def _example(url: str, config: ServeConfig, model: "ServedModel") -> str:
    """A curl command to copy, with a prompt that the model's tokenizer can encode."""
    key = f"%{_KEY}%" if shell.IS_CMD else f"${_KEY}"  # which a shell replaces between double quotes
    authorized = f' -H "Authorization: Bearer {key}"' if config.api_key else ""
    prompt = "0 1 2" if model.tokenizer.name.startswith("none:") else "Once upon a time"
    body = json.dumps({"model": model.name, "prompt": prompt, "max_tokens": 50}, ensure_ascii=False)
    request = shell.join("-H", "Content-Type: application/json", "-d", body)
    return f"curl {url}/v1/completions{authorized} {request}"
