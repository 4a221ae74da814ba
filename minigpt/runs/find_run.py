"""The name of a run, and the run that `--resume` continues: by its name, by its texts, or the newest."""

import re
from pathlib import Path

from minigpt.data.find_files import is_pipe
from minigpt.data.source_files import absolute_path, without_compression
from minigpt.errors import CheckpointError, ConfigError
from minigpt.run_options import Request, RunOptions
from minigpt.runs.changes import asked_by
from minigpt.storage.checkpoint import TRAINING
from minigpt.storage.files import exists
from minigpt.storage.run import read_record
from minigpt.storage.runs import newest_run, runs_in
from minigpt.tokenizer.display import plain_name

LENGTH = {"steps", "epochs", "minutes"}  # the options that give a run's length


def run_name(request: Request) -> str:
    """The name given, or else one from the first text: `data/moby_dick.txt.gz` is moby_dick, a pipe is stdin."""
    first, _ = request.options.reading.parted(request.sources[0]) if request.sources else ("", "")
    if request.name or is_pipe(first):
        return request.name or "stdin"
    path = absolute_path(first)
    plain = path.with_name(without_compression(path.name) or path.name) if path.name else path  # the root has none
    stem = plain.name if plain.is_dir() else plain.stem
    return plain_name(stem.strip("*?[].")) or plain_name(path.parent.name) or "run"


def absolute_sources(request: Request) -> tuple[str, ...]:
    """The texts by absolute path; `-` for a pipe, which cannot be read again."""
    return tuple(
        "-" if is_pipe(path) else str(absolute_path(path)) + weight
        for path, weight in map(request.options.reading.parted, request.sources)
    )


def find_run(request: Request, *, restarted: bool = False) -> Path | None:
    """The folder of the run to resume; None if it does not exist yet and there is a text to begin it with.

    A given name is that of the run. If a launcher has `restarted` a command, the run is the one that this command
    began: with the same options and the same length. Its name may have a number, because the name was taken.

    Raises: ConfigError if there is neither such a run nor a text.
    """
    checkpoints = request.checkpoints
    if request.name is None and not request.sources:
        newest = newest_run(runs_in(checkpoints))
        if newest is None:
            raise ConfigError(f"there is no run in {checkpoints} to resume; begin one with minigpt train corpus.txt")
        return newest
    if restarted:
        return _run_of_texts(request, restarted=True)
    directory = (None if request.name else _run_of_texts(request)) or checkpoints / run_name(request)
    if exists(directory / TRAINING):
        return directory
    if request.sources:
        return None
    names = ", ".join(run.name for run in runs_in(checkpoints))
    existing = f"there are: {names}" if names else "there is none"
    raise ConfigError(f"there is no run {run_name(request)!r} in {checkpoints}; {existing}")


def _run_of_texts(request: Request, *, restarted: bool = False) -> Path | None:
    """The newest run of these texts with these options and this length, else with these options, else with any.

    A command that was `restarted` began a run with its default name, which may have a number; so did one that read a
    pipe, and all pipes have the same source. None if the texts have no run or have moved; for a command that was
    `restarted`, also if no run has exactly these options and this length.
    """
    any_name = not restarted and "-" not in request.sources
    asked = RunOptions.of(asked_by(request)).to_dict()
    length = {name: value for name, value in request.options.to_dict().items() if name in LENGTH}
    of_texts, same_options, same_length = [], [], []
    for folder in runs_in(request.checkpoints):
        if not any_name and not re.fullmatch(re.escape(run_name(request)) + r"(-\d+)?", folder.name):
            continue
        try:
            record = read_record(folder)
        except CheckpointError:  # reported if this is the run that is opened
            continue
        if record.sources != absolute_sources(request):
            continue
        of_texts.append(folder)
        recorded = record.asked.to_dict() if record.asked else {}
        if record.asked and (asked == recorded if restarted else asked.items() <= recorded.items()):
            same_options.append(folder)
            if record.training and length.items() <= record.training.to_dict().items():
                same_length.append(folder)
    return newest_run(same_length if restarted else same_length or same_options or of_texts)
