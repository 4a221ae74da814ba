"""The loss curve and the report of a run that has ended."""

from collections.abc import Iterable

from minigpt.errors import MissingPackageError
from minigpt.evaluation.recorded_baselines import recorded_baselines
from minigpt.storage.run import Run


def write_pages(run: Run, *, report: bool = True) -> Iterable[str]:
    """Draws the loss curve and writes the report of a run that has ended; yields a sentence on each.

    A run that is trained and saved does not fail because a page about it cannot be made.
    """
    from minigpt.reports import REPORT, loss_curve, run_report

    path = run.directory / "loss.png"
    try:
        known = {baseline.label: baseline.bits_per_byte for baseline in recorded_baselines(run.record)}
        loss_curve.draw_loss_curve(run.read_log(), path, known)
        yield f"loss curve: {path}"
    except MissingPackageError as error:
        yield f"no loss curve was drawn: {error}"
    except Exception as error:  # of any kind: training has ended and is saved
        yield f"no loss curve was drawn: {type(error).__name__}: {error}"
    if not report:
        return
    path = run.directory / REPORT
    try:
        run_report.write_report([run.directory], path)
        yield f"report: {path}"
    except Exception as error:
        yield f"no report was written: {type(error).__name__}: {error}"
