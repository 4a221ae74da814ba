"""Lists the runs and models in a folder from their records, without reading weights; imports no torch."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from minigpt.config import GPTConfig
from minigpt.errors import CheckpointError, ConfigError, reason_of
from minigpt.storage.files import modified, read_json
from minigpt.storage.names import ADAPTER_WEIGHTS, CONFIG, LAST, TRAINING, WEIGHTS
from minigpt.storage.run_record import RunRecord
from minigpt.storage.shipped_models import shipped_models

_WEIGHTS = {".safetensors", ".gguf", ".bin", ".pt", ".pth"}


@dataclass(frozen=True)
class ListedModel:
    """One folder of a checkpoints folder.

    `kind` is `run` for what `minigpt train` wrote, `shipped` for what comes with a package, `model` for any other
    model. `problems` say what is damaged; damaged parts count as not recorded. `modified` is when its weights, its
    record or its states were last written, in seconds since 1970. Units: `disk_bytes` of all files in the folder;
    `seconds` of training.
    """

    directory: Path
    kind: Literal["run", "model", "shipped"]
    modified: float
    disk_bytes: int
    parameters: int | None
    record: RunRecord
    problems: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name that the commands take."""
        return self.directory.name


def list_models(checkpoints: Path) -> list[ListedModel]:
    """The runs and models in a folder, the newest first, then those that come with packages.

    Hidden folders and folders without a model do not count, nor shipped models whose name the folder has.

    Raises: CheckpointError if the folder cannot be read.
    """
    try:
        folders = [path for path in checkpoints.iterdir() if not path.name.startswith(".") and path.is_dir()]
    except FileNotFoundError:
        folders = []
    except OSError as error:
        raise CheckpointError(f"{checkpoints} could not be read ({reason_of(error)})") from error
    found = [listed for folder in folders if (listed := _listed(folder)) is not None]
    names = {model.name for model in found}
    shipped = [_listed(model.directory) for model in shipped_models() if model.name not in names]
    return [
        *sorted(found, key=lambda model: (-model.modified, model.name)),
        *(replace(model, kind="shipped") for model in shipped if model is not None),
    ]


def model_names(checkpoints: Path) -> list[str]:
    """The names of the runs and models in a folder, sorted; empty if the folder cannot be read."""
    try:
        return sorted(path.name for path in checkpoints.iterdir() if not path.name.startswith(".") and _kind(path))
    except OSError:
        return []


def disk_bytes(folder: Path) -> int:
    """The size of all files in a folder; links count as themselves. Files that vanish meanwhile do not count."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size  # noqa: PTH118  (as in os.walk)
            except OSError:
                continue
    return total


def _kind(folder: Path) -> Literal["run", "model"] | None:
    """What a folder holds; None for neither, and for a folder without permission."""
    try:
        if (folder / TRAINING).exists():
            return "run"
        if (folder / CONFIG).exists() or (folder / WEIGHTS).exists():
            return "model"
        if folder.is_dir() and any(path.suffix in _WEIGHTS for path in folder.iterdir()):
            return "model"
    except OSError:
        return None
    return None


def _listed(folder: Path) -> ListedModel | None:
    kind = _kind(folder)
    if kind is None:
        return None
    problems: list[str] = []
    record = RunRecord()
    if kind == "run":
        try:
            record = RunRecord.from_dict(read_json(folder / TRAINING), folder / TRAINING, problems)
        except CheckpointError as error:
            problems.append(str(error))
    parameters = record.model.n_parameters if record.model is not None else _parameters(folder, problems)
    return ListedModel(folder, kind, _modified(folder), disk_bytes(folder), parameters, record, tuple(problems))


def _parameters(folder: Path, problems: list[str]) -> int | None:
    """The number of parameters that a config.json of GPT-2 says; None for another model, or without one."""
    if not (folder / CONFIG).exists():
        return None
    try:
        entries = read_json(folder / CONFIG)
        if entries.get("model_type", "gpt2") != "gpt2":
            return None
        names = ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head")
        return GPTConfig(**{name: entries[name] for name in names if name in entries}).n_parameters
    except (CheckpointError, ConfigError) as error:
        problems.append(str(error))
        return None


def _modified(folder: Path) -> float:
    """When the weights, the record or the states of a run were last written."""
    times = [modified(folder)]
    for name in (WEIGHTS, ADAPTER_WEIGHTS, TRAINING, LAST):
        try:
            times.append((folder / name).stat().st_mtime)
        except OSError:
            continue
    return max(times[1:], default=times[0])
