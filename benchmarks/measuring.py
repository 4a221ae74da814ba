"""Shared parts of the benchmarks: worker processes, a stopwatch, medians, tables and a description of the machine.

It does not import torch, so that the parent process stays small and each worker measures its own peak memory.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from minigpt.config import GPTConfig

Point = tuple[int, float, float]  # steps, seconds of training, total nats of the validation text


@dataclass(frozen=True)
class Shape:
    """The shape of a model and of its training batch."""

    n_layer: int
    n_head: int
    n_embd: int
    context: int
    batch: int
    vocabulary: int
    cuda_only: bool = False

    @property
    def tokens(self) -> int:
        """Tokens per optimizer step."""
        return self.batch * self.context

    @property
    def flops_per_token(self) -> int:
        """Floating-point operations per training token, forward and backward, as `GPTConfig` counts them."""
        return self.config.flops_per_token(self.context)

    @property
    def config(self) -> GPTConfig:
        """minigpt's model of this shape."""
        return GPTConfig(
            vocab_size=self.vocabulary,
            n_positions=self.context,
            n_layer=self.n_layer,
            n_head=self.n_head,
            n_embd=self.n_embd,
        )


class Stopwatch:
    """Times a training loop, which calls `step()` after every optimizer step until it returns True.

    The first `warmup` steps are not measured. Then `steps` steps are measured, or, without `steps`, at least three and
    as many as start within `seconds`. `synchronize` waits for the device.
    """

    def __init__(self, *, warmup: int, seconds: float, steps: int | None, synchronize: Callable[[], object]) -> None:
        self.warmup, self.seconds, self.steps, self.synchronize = max(1, warmup), seconds, steps, synchronize
        self.done, self.elapsed, self.first_step = 0, 0.0, 0.0
        self.began = time.perf_counter()

    def step(self) -> bool:
        """Counts one step; returns whether it was the last."""
        self.done += 1
        if self.done == 1:
            self.first_step = self._since_began()  # compilation included
        if self.done == self.warmup:
            self.synchronize()
            self.began = time.perf_counter()
        if self.done <= self.warmup:
            return False
        if self.steps is not None:
            over = self.measured >= self.steps
        else:
            over = self.measured >= 3 and time.perf_counter() - self.began >= self.seconds
        if over:
            self.elapsed = self._since_began()
        return over

    @property
    def measured(self) -> int:
        """Number of steps measured so far."""
        return self.done - self.warmup

    def _since_began(self) -> float:
        self.synchronize()
        return time.perf_counter() - self.began


class WorkerError(Exception):
    """A worker failed; the message is the last line of its stderr. `stdout` is what it had printed before."""

    def __init__(self, message: str, stdout: str = "") -> None:
        super().__init__(message)
        self.stdout = stdout


def run_worker(command: Sequence[str], threads: int, limit: float | None = None, **environment: str) -> str:
    """Runs a command with this number of threads, and for at most `limit` seconds; returns its stdout.

    The command ends with this process, if that is interrupted or terminated.
    Raises: WorkerError.
    """
    count = str(threads)
    variables = os.environ | {"OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count} | environment
    # Files, since the end of a pipe comes only when the worker's own children have ended too.
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        process = subprocess.Popen(command, stdout=stdout, stderr=stderr, env=variables, start_new_session=True)
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                _kill_all(process)
            signal.signal(signal.SIGTERM, before)
        stdout.seek(0)
        stderr.seek(0)
        printed, lines = stdout.read(), [line.strip() for line in stderr if line.strip()]
    if code is None:
        raise WorkerError(f"stopped at its limit of {limit:.0f} s", printed)
    if code:
        raise WorkerError(lines[-1] if lines else f"exit code {code}", printed)
    return printed


def _kill_all(process: subprocess.Popen[bytes]) -> None:
    """Kills a process that leads a session, and all processes that it has started, in other sessions too."""
    started: list[psutil.Process] = []
    with suppress(psutil.Error):
        started = psutil.Process(process.pid).children(recursive=True)
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:  # Windows
        process.kill()
    for each in started:
        with suppress(psutil.Error):
            each.kill()
    process.wait()


def run_job(script: str, job: dict[str, Any], threads: int, limit: float | None = None) -> dict[str, Any]:
    """Runs `script --worker JOB`, for at most `limit` seconds; returns the JSON in the last line of its stdout.

    Raises: WorkerError.
    """
    command = [sys.executable, script, "--worker", json.dumps(job)]
    return json.loads(run_worker(command, threads, limit).splitlines()[-1])


def missing_peers(nanogpt: Path | None) -> dict[str, str]:
    """The peers that cannot run here: the prefix of their engines' names -> the reason in one sentence."""
    missing = {}
    if nanogpt is None or not (nanogpt / "model.py").is_file():
        missing["nanogpt"] = "nanoGPT needs a checkout of github.com/karpathy/nanoGPT, given by --nanogpt PATH"
    if importlib.util.find_spec("transformers") is None:
        missing["transformers"] = "transformers is not installed (pip install transformers)"
        missing["trainer"] = missing["transformers"]
    elif importlib.util.find_spec("accelerate") is None:
        missing["trainer"] = "the Trainer of transformers needs accelerate (pip install accelerate)"
    for engine, package, project in (
        ("ctranslate2", "ctranslate2", "ctranslate2"),
        ("llama.cpp", "llama_cpp", "llama-cpp-python"),
        ("llama.cpp", "gguf", "gguf"),
    ):
        if importlib.util.find_spec(package) is None:
            missing.setdefault(engine, f"{package} is not installed (pip install {project})")
    return missing


def available_engines(engines: Iterable[str], nanogpt: Path | None) -> list[str]:
    """The engines that can run here; prints one line on stderr for each that cannot, with the reason."""
    missing, kept = missing_peers(nanogpt), []
    for engine in engines:
        reason = next((why for start, why in missing.items() if engine.startswith(start)), None)
        if reason:
            print_progress(f"{engine} is skipped: {reason}")
        else:
            kept.append(engine)
    return kept


def print_progress(text: str) -> None:
    """Prints one line of progress on stderr; stdout is for tables."""
    print(text, file=sys.stderr, flush=True)


def cores() -> int:
    """Number of logical processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def c_code() -> str:
    """The instruction set of minigpt's C code, or why it is not used: then minigpt is slower."""
    from minigpt.native import compiled

    library = compiled.library()
    return f"C code for {compiled.selected(library)}" if library else f"no C code: {compiled.why_unavailable()}"


def machine(threads: int) -> dict[str, Any]:
    """The machine, the versions and the date, which go above each table."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text(encoding="utf-8").splitlines() if information.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    versions = {}
    for package in ("torch", "transformers", "accelerate", "ctranslate2", "llama_cpp_python"):
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    try:
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        gpu = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        gpu = None
    return {
        "cpu": models[0] if models else platform.processor() or platform.machine(),
        "cores": cores(),
        "threads": threads,
        "gpu": gpu,
        "python": platform.python_version(),
        "c_code": c_code(),
        "versions": versions,
        "date": time.strftime("%Y-%m-%d"),
    }


def describe(machine: dict[str, Any]) -> str:
    """The machine in one line of Markdown."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    gpu = f", {machine['gpu']}" if machine["gpu"] else ""
    return (
        f"**Machine.** {machine['cpu']}, {machine['cores']} logical cores, {machine['threads']} threads{gpu}; "
        f"Python {machine['python']}, {versions}; {machine['c_code']}; {machine['date']}."
    )


def median(values: Iterable[float | None]) -> float | None:
    """The median of the values that are not None; None if all are."""
    there = [value for value in values if value is not None]
    return statistics.median(there) if there else None


def spread(values: Iterable[float | None], form: str = ",.0f") -> str:
    """The median with the lowest and highest value in brackets, "120 (110–130)"; a dash if there are no values."""
    there = [value for value in values if value is not None]
    if not there:
        return "–"
    middle = format(statistics.median(there), form)
    return middle if len(there) == 1 else f"{middle} ({min(there):{form}}–{max(there):{form}})"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_results(path: Path | None, machine: dict[str, Any], results: list[dict[str, Any]]) -> None:
    """Writes the raw numbers so far if a file is given."""
    if path is not None:
        record = {"command": " ".join(sys.argv), "machine": machine, "results": results}
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def add_options(parser: argparse.ArgumentParser, *, device: bool = True) -> None:
    """Adds the options that every benchmark has; `--device` only if it can run on another device than the CPU."""
    parser.add_argument("--nanogpt", type=Path, help="a checkout of github.com/karpathy/nanoGPT")
    parser.add_argument("--threads", type=int, default=cores(), help="number of threads for every engine [all cores]")
    if device:
        parser.add_argument("--device", default="auto", help="auto, cpu or cuda [auto]")
    parser.add_argument("--json", type=Path, help="write the raw numbers to this file")
    parser.add_argument("--plot", type=Path, help="draw a picture (.svg or .png; needs matplotlib)")


def figure(columns: int, height: float = 4.0, rows: int = 1) -> tuple[Any, list[Any]]:
    """A matplotlib figure and its axes, row by row; `height` is that of a row.

    Raises: ModuleNotFoundError if matplotlib is not installed.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(max(6.0, 4.2 * columns), height * rows), layout="constrained")
    FigureCanvasAgg(drawing)
    return drawing, list(drawing.subplots(rows, columns, squeeze=False).flat)


def draw(path: Path | None, picture: Callable[[Path], None]) -> None:
    """Draws the picture if a file is given; prints a note if matplotlib is not installed."""
    if path is None:
        return
    try:
        picture(path)
    except ModuleNotFoundError:
        print_progress(f"{path} was not drawn: it needs matplotlib (pip install matplotlib)")
