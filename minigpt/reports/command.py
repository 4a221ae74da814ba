"""`minigpt report`: an HTML page on a run, or on two runs side by side."""

from pathlib import Path
from typing import Annotated

import typer

from minigpt.cli.options import CheckpointsOption, run_argument
from minigpt.cli.render.terminal import note, some_of, write
from minigpt.errors import ConfigError
from minigpt.pages.output_file import check_output
from minigpt.reports import REPORT


def report(
    names: Annotated[
        list[str] | None,
        run_argument(help="a run's name or folder, or two to compare [default: the newest run]", metavar="RUN"),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help=f"the file to write [default: {REPORT} in the run's folder; of two runs, report-SECOND.html]",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace an existing file that is not a report")] = False,
    checkpoints: CheckpointsOption = Path("checkpoints"),
) -> None:
    """Write an HTML page on a run: loss curves, samples, surprisal, memorization, settings and result.

    The page is a single file that opens in any browser, without a network. It also shows runs that are still training
    or were interrupted.

    Examples:

    - `minigpt report`
    - `minigpt report moby_dick moby_dick-2 --output both.html`
    """
    if names and len(names) > 2:
        raise ConfigError(f"a page compares at most two runs, not {len(names)}")

    from minigpt.pages.document import mark_of
    from minigpt.reports.run_report import KIND, write_report
    from minigpt.storage.checkpoint import find_checkpoint
    from minigpt.storage.runs import newest_run, runs_in

    if names:
        directories = [find_checkpoint(name, checkpoints) for name in names]
    elif (newest := newest_run(runs_in(checkpoints))) is not None:
        directories = [newest]
    else:
        raise ConfigError(f"there is no run in {checkpoints} to report; start one with: minigpt train corpus.txt")
    default = REPORT if len(directories) == 1 else f"report-{directories[1].resolve().name}.html"
    path = output or directories[0] / default
    target = path if output is None else check_output(output, mark_of(KIND), force=force)
    problems: list[str] = []
    write_report(directories, target, problems)
    for each in some_of(problems):
        note(f"not shown: {each}")
    write(str(path))
