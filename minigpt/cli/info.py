"""`minigpt info`: a model's shape and size, and how it was trained."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minigpt.cli.models import find_named
from minigpt.cli.options import CheckpointsOption, JsonOption, ModelArgument
from minigpt.cli.render.terminal import note, some_of, write
from minigpt.errors import CheckpointError
from minigpt.units import count, duration, shown_loss, size

if TYPE_CHECKING:
    from minigpt.storage.run_record import CorpusRecord, Result, RunRecord

_MOST_TEXTS = 10  # named, of the texts of a run
_UNITS = {  # of the settings
    setting: unit
    for unit, settings in {
        "step": "steps warmup_steps eval_every sample_every save_every",
        "epoch": "epochs",
        "minute": "minutes save_minutes",
        "token": "context_length batch_tokens eval_tokens",
        "sequence": "batch_size micro_batch_size",
        "evaluation": "patience",
        "standard deviation": "spike_threshold",
    }.items()
    for setting in settings.split()
}
_ENDS = {
    "length": "at its full length",
    "early stop": "early: the validation loss no longer improved",
    "diverged": "early: training diverged",
}


def info(
    model: ModelArgument = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="check the tensors of every .safetensors file against their checksums")
    ] = False,
    as_json: JsonOption = False,
    checkpoints: CheckpointsOption = Path("checkpoints"),
) -> None:
    """Show a model's shape and size, how it was trained, and the result.

    Examples:

    - `minigpt info`
    - `minigpt info gpt2 --json`
    - `minigpt info letters --verify`
    """
    from minigpt.cli.render.console import console, facts, model_facts
    from minigpt.pretrained.open_model import describe_model
    from minigpt.storage.adapters import adapter_format, is_adapter
    from minigpt.storage.checkpoint import TRAINING, WEIGHTS
    from minigpt.storage.names import ADAPTER_WEIGHTS
    from minigpt.storage.shipped_models import reference_to

    directory = find_named(model, checkpoints)
    verified = _verified(directory) if verify else {}
    config, tokenizer, notes = describe_model(directory, checkpoints)
    for each in notes:
        note(f"note: {each}")
    training, run = _record(directory / TRAINING)
    adapted = is_adapter(directory)
    file = directory if directory.is_file() else directory / (ADAPTER_WEIGHTS if adapted else WEIGHTS)
    weights = file.stat().st_size if file.exists() else 0
    if as_json:
        record = {"directory": str(directory), "config": config.to_dict(), "parameters": config.n_parameters}
        record |= {"tokenizer": tokenizer.name, "weights_bytes": weights, "training": training or None}
        record |= {"adapter": adapter_format().facts(directory)[0]} if adapted else {}
        record |= {"verified": verified} if verify else {}
        write(json.dumps(record))
        return
    out = console(stderr=False)
    rows = model_facts(config, tokenizer, weights)
    if adapted:
        adapter, kind = adapter_format().facts(directory)
        rows = {"adapter": f"{kind}, of {_short_path(reference_to(adapter['base'] or 'an unnamed model'))}"} | rows
        if adapter["replaced"]:
            rows["adapter"] += f"; it replaces the base's {', '.join(some_of(adapter['replaced']))}"
        rows["parameters"] += f" with the base model, {adapter['parameters']:,} of them the adapter's"
    if verify:
        intact = [f"{name}: {count(number, 'tensor')}" for name, number in verified.items() if number]
        rows["intact"] = "; ".join(intact) or "not known: no file has checksums"
        if unknown := [name for name, number in verified.items() if not number] if intact else []:
            rows["intact"] += f"; without checksums: {', '.join(some_of(unknown))}"
    out.print(facts(_short_path(reference_to(directory)), rows))
    if run is None:
        return
    settings = run.training.to_dict() if run.training else {}
    for title, rows in {
        "training": _run_rows(run) | (_corpus_rows(run.corpus) if run.corpus else {}),
        "result": _result_rows(run.result, run.training.scored_text if run.training else "") if run.result else {},
        "settings": {name: _setting(name, value) for name, value in settings.items() if value not in (None, "", [])},
    }.items():
        if rows:
            out.print()
            out.print(facts(title, rows))


def _verified(path: Path) -> dict[str, int]:
    """The .safetensors files of a model, and how many of their tensors have a checksum; a damaged one is an error."""
    from minigpt.storage.tensors import TensorFile

    found = {}
    for file in sorted(path.rglob("*.safetensors")) if path.is_dir() else [path]:
        if file.suffix == ".safetensors":
            with TensorFile(file) as tensors:
                found[str(file.relative_to(path)) if path.is_dir() else file.name] = tensors.verify()
    return found


def _record(path: Path) -> "tuple[dict[str, Any], RunRecord | None]":
    """The entries of a training.json and the record in them, without its damaged parts, which are noted."""
    from minigpt.storage.files import read_json
    from minigpt.storage.run_record import RunRecord

    if not path.exists():
        return {}, None
    problems: list[str] = []
    try:
        entries = read_json(path)
    except CheckpointError as error:  # the model can be shown without it
        entries, problems = {}, [str(error)]
    record = RunRecord.from_dict(entries, path, problems) if entries else None
    for each in some_of(problems):
        note(f"not shown: {each}")
    return entries, record


def _run_rows(run: "RunRecord") -> dict[str, str]:
    entries = {
        "started": run.started,
        "minigpt": run.minigpt,
        "torch": run.torch,
        "device": run.device,
        "fine-tuned from": run.base and _short_path(run.base),
        "preset": run.preset,
        "texts": ", ".join(map(_short_path, run.sources[:_MOST_TEXTS]))
        + (f" and {others:,} more" if (others := len(run.sources) - _MOST_TEXTS) > 0 else ""),
    }
    return {name: text for name, text in entries.items() if text}


def _corpus_rows(corpus: "CorpusRecord") -> dict[str, str]:
    rows = {"training text": f"{size(corpus.train_bytes)}, {count(corpus.train_tokens, 'token')}"}
    if corpus.validation_bytes and corpus.validation_tokens:
        rows["validation text"] = f"{size(corpus.validation_bytes)}, {count(corpus.validation_tokens, 'token')}"
    if corpus.path:
        rows["tokenized text"] = _short_path(corpus.path)
    return rows | {"fingerprint": corpus.fingerprint}


def _result_rows(result: "Result", scored_text: str) -> dict[str, str]:
    loss, bits = result.validation_loss, result.bits_per_byte
    entries = {
        "steps": None if result.step is None else f"{result.step:,}",
        "ended": _ENDS.get(result.reason or "", result.reason),
        "best weights": None if result.best_step is None else f"step {result.best_step:,}",
        "validation loss": None if loss is None else f"{shown_loss(loss)} nats per token",
        "bits per byte": None if bits is None else f"{shown_loss(bits)} {scored_text}".rstrip(),
        "time": None if result.seconds is None else duration(result.seconds),
    }
    return {name: text for name, text in entries.items() if text}


def _short_path(path: str) -> str:
    """A path as one would type it here: relative to the working directory if it is inside it, else with ~ for home.

    What is no absolute path, such as the name of a model or `-`, stays unchanged.
    """
    home = Path(os.path.expanduser("~"))  # noqa: PTH111  (Path.home raises an error if it is unknown)
    for folder, sign in ((Path.cwd(), ""), (home, "~")):
        if Path(path).is_absolute() and Path(path).is_relative_to(folder) and folder != Path(folder.anchor):
            return str(Path(sign, Path(path).relative_to(folder)))
    return path


def _setting(name: str, value: Any) -> str:
    unit = _UNITS.get(name)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    shown = f"{value:.6g}" if isinstance(value, float) else str(value) if name == "seed" else f"{value:,}"
    return shown if unit is None else f"{shown} {unit if value == 1 else unit + 's'}"
