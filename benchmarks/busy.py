"""Speed on a quiet machine and beside other programs: minigpt, transformers, CTranslate2, llama.cpp and nanoGPT.

    python benchmarks/busy.py --nanogpt PATH/TO/nanoGPT --json busy.json --plot busy.svg

Peers are optional: `pip install transformers ctranslate2 llama-cpp-python gguf`; a missing peer is reported and
skipped. Each round measures all engines in turn at every number of spinning processes that `--loads` gives. Every
measurement runs in a separate process, which loads the model first and then starts the spinning processes. "% of
quiet" is the ratio of two speeds of the same round.

A spinning process runs in a separate session, as a program in another terminal does: Linux then shares the cores
between sessions, not between threads (autogroups, sched(7)). `--same-session` starts them in the worker's session.

Generation uses GPT-2 small's shape with random weights, one sequence, greedy: 128 tokens after a prompt of 16, and the
first token after a prompt of 512. Training uses nanoGPT's CPU recipe and a model of 6 layers × 384, in float32.
`minigpt-minutes` has a budget in minutes, as `minigpt train` has by default: it may use fewer threads beside other
programs. `minigpt-minutes-bf16` is the same in bfloat16, which `minigpt train` uses if it is faster, and which is
measured on processors that multiply it faster. `minigpt` has a budget in steps, which fixes the number of threads.

Each measurement records how many cores all other programs used. It is repeated if that was more than a quarter of a
core, until `--attempts` are made. Figures of a machine that other programs use are no quiet figures.
"""

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import generation
import training
from measuring import (
    Shape,
    Stopwatch,
    WorkerError,
    add_options,
    available_engines,
    describe,
    draw,
    figure,
    machine,
    median,
    print_progress,
    run_job,
    spread,
    table,
    write_results,
)

TRAINING = {
    "recipe": training.SHAPES["chars-nano"],
    "6x384": Shape(6, 6, 384, context=256, batch=4, vocabulary=65),
}
WARMUP = {"recipe": 15, "6x384": 2}  # unmeasured steps
GENERATION = {
    "float32": ("minigpt-float32", "transformers-float32", "ctranslate2-float32", "llama.cpp-F32"),
    "int8": ("minigpt-int8", "ctranslate2-int8", "llama.cpp-Q8_0"),
}
BFLOAT16 = "minigpt-minutes-bf16"
CASES = dict.fromkeys(TRAINING, ("minigpt-minutes", BFLOAT16, "minigpt", "nanogpt", "transformers")) | GENERATION
SPEED, PROMPT_SPEED = "tokens_per_second", "prompt_tokens_per_second"
TOLERANCE = 0.25  # cores that other programs may use during a measurement
LIMIT = 180.0  # seconds for a worker
SPIN = """
import os, sys
print(flush=True)
while os.getppid() == int(sys.argv[1]):  # a worker that is killed cannot end it
    for _ in range(100_000):
        pass
"""


@dataclass(frozen=True)
class Question:
    """One table and one panel of the picture: a figure of a case."""

    case: str
    key: str
    title: str


QUESTIONS = (
    Question("recipe", SPEED, "training, 4 layers × 128, batch 12 × 64"),
    Question("6x384", SPEED, "training, 6 layers × 384, batch 4 × 256"),
    Question("float32", SPEED, "generation, GPT-2 small's shape, float32"),
    Question("int8", SPEED, "generation, GPT-2 small's shape, 8-bit"),
    Question("float32", PROMPT_SPEED, f"reading a prompt of {generation.N_LONG} tokens, float32"),
    Question("int8", PROMPT_SPEED, f"reading a prompt of {generation.N_LONG} tokens, 8-bit"),
)


# The worker: one engine in one process.


@contextmanager
def spinning(count: int, same_session: bool) -> Iterator[Callable[[], float]]:
    """Runs processes that each keep a core busy; yields a function that returns the CPU seconds they have used."""
    import psutil

    command = [sys.executable, "-I", "-c", SPIN, str(os.getpid())]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=not same_session) for _ in range(count)
    ]
    try:
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()  # it spins from here on
        handles = [psutil.Process(process.pid) for process in started]
        yield lambda: sum(sum(handle.cpu_times()[:2]) for handle in handles)
    finally:
        for process in started:
            with process:
                process.kill()


def generation_figures(generate: Callable[[list[int], int], Any], seconds: float) -> dict[str, float]:
    """Tokens per second of decoding and of reading the long prompt, each measured for about `seconds`."""
    _decode(generate, min(1.0, seconds))  # a warm-up
    speed = _decode(generate, seconds)
    took: list[float] = []
    while sum(took) < seconds:
        began = time.perf_counter()
        took.append(generation.times(generate(generation.LONG_PROMPT, 1), began)[0])
    return {SPEED: speed, PROMPT_SPEED: generation.N_LONG * len(took) / sum(took)}


def _decode(generate: Callable[[list[int], int], Any], seconds: float) -> float:
    """Tokens per second after the first token, over texts of 128 tokens until `seconds` have passed."""
    tokens, spent, began = 0, 0.0, time.perf_counter()
    while not tokens or time.perf_counter() - began < seconds:
        left = began + seconds - time.perf_counter()
        at = generation.times(generate(generation.PROMPT, generation.N_NEW), time.perf_counter(), left)
        tokens, spent = tokens + len(at) - 1, spent + at[-1] - at[0]
    return tokens / spent


def training_figures(job: dict[str, Any]) -> dict[str, float]:
    """Tokens per second of training."""
    import torch

    shape = Shape(**job["shape"])
    torch.manual_seed(1)
    timing = {"warmup": job["warmup"], "seconds": job["seconds"], "steps": None, "synchronize": lambda: None}
    stopwatch = functools.partial(Stopwatch, **timing)
    clock = training.measure_engine(
        job["engine"], shape, Path(job["data"]), torch.device("cpu"), stopwatch, job["nanogpt"]
    )
    return {SPEED: clock.measured * shape.tokens / clock.elapsed}


def work(job: dict[str, Any]) -> dict[str, Any]:
    """Runs one measurement in this process."""
    import torch

    from minigpt.shared_cores.load_monitor import OtherPrograms

    measure: Callable[[], dict[str, float]]
    if job["case"] in TRAINING:
        torch.set_num_threads(job["threads"])
        training.import_modules(job["engine"])
        measure = functools.partial(training_figures, job)
    else:
        generate = generation.load_engine(job, job["seconds"])
        measure = functools.partial(generation_figures, generate, job["seconds"])
    with spinning(job["load"], job["same_session"]) as used:
        others, began, before = OtherPrograms(), time.perf_counter(), used()
        figures = measure()
        elsewhere = others.cores() - (used() - before) / (time.perf_counter() - began)
    return figures | {"other_cores": max(0.0, elsewhere)}


# The report.


def by_round(results: Iterable[dict[str, Any]], case: str, engine: str, load: int, key: str) -> dict[int, float]:
    """One figure of an engine beside `load` spinning processes: the round -> the figure."""
    wanted = (case, engine, load)
    return {r["round"]: r[key] for r in results if (r["case"], r["engine"], r["load"]) == wanted and key in r}


def engines_of(results: Iterable[dict[str, Any]], case: str) -> list[str]:
    """The engines that were measured, in the order of CASES."""
    there = {result["engine"] for result in results if result["case"] == case}
    return [engine for engine in CASES[case] if engine in there]


def beside(load: int) -> str:
    """A number of spinning processes as text."""
    return {0: "quiet", 1: "beside one process", 2: "beside two"}.get(load, f"beside {load}")


def section(results: list[dict[str, Any]], question: Question, loads: Sequence[int]) -> str:
    """The table of one question: speeds, and their share of the quiet speed of the same round."""
    rows = []
    for engine in engines_of(results, question.case):
        row, quiet = [engine], by_round(results, question.case, engine, 0, question.key)
        for load in loads:
            speeds = by_round(results, question.case, engine, load, question.key)
            middle = median(speeds.values()) or 0.0
            row.append(spread(speeds.values(), ",.0f" if middle >= 100 else ".1f"))
            if load:
                row.append(spread([100 * speeds[turn] / quiet[turn] for turn in speeds if turn in quiet], ".0f"))
        rows.append(row)
    header = ["engine"]
    for load in loads:
        header += [f"{beside(load)}, tokens/s", *(["% of quiet"] if load else [])]
    return f"**{question.title.capitalize()}**\n\n{table(header, rows)}\n"


def report(results: list[dict[str, Any]], loads: Sequence[int]) -> str:
    """All tables, and how busy the machine was otherwise."""
    there = {result["case"] for result in results}
    parts = [section(results, question, loads) for question in QUESTIONS if question.case in there]
    others = spread([result.get("other_cores") for result in results], ".2f")
    failures = [f"{r['case']}, {r['engine']}, {beside(r['load'])}: {r['error']}" for r in results if "error" in r]
    parts.append(f"Cores that other programs used during a measurement: {others}.")
    return "\n".join([*parts, *(f"\nFailed: {failure}." for failure in failures)])


def picture(path: Path, results: list[dict[str, Any]], loads: Sequence[int]) -> None:
    """A panel for every question: the median tokens per second of each engine at every load."""
    there = {result["case"] for result in results}
    questions = [question for question in QUESTIONS if question.case in there]
    columns = min(2, len(questions))
    drawing, panels = figure(columns, 2.6, -(-len(questions) // columns))
    styles = {"minigpt": "tab:orange", "nanogpt": "tab:green", "transformers": "tab:blue"}
    styles |= {"ctranslate2": "tab:purple", "llama.cpp": "tab:gray"}
    for axes, question in zip(panels, questions, strict=False):
        for engine in engines_of(results, question.case):
            middles = [median(by_round(results, question.case, engine, load, question.key).values()) for load in loads]
            color = styles[engine.partition("-")[0]]
            line = {"minigpt": "o--", BFLOAT16: "o:"}.get(engine, "o-")
            axes.plot(range(len(loads)), middles, line, color=color, label=engine, markersize=3)
        axes.set_xticks(range(len(loads)), [beside(load) for load in loads])
        axes.set_ylim(bottom=0)
        axes.set_title(question.title, fontsize=9)
        axes.set_ylabel("tokens/s")
        axes.legend(fontsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    drawing.savefig(path)


# The parent process.


def measure_undisturbed(job: dict[str, Any], attempts: int) -> dict[str, Any]:
    """Runs a measurement, again if other programs used the machine; the one they disturbed least, or the error."""
    tried: list[dict[str, Any]] = []
    for _ in range(attempts):
        try:
            tried.append(run_job(__file__, job, job["threads"], LIMIT))
        except WorkerError as error:
            return {"error": str(error)}
        if tried[-1]["other_cores"] <= TOLERANCE:
            break
    return min(tried, key=lambda result: result["other_cores"])


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    engines = list(dict.fromkeys(engine for case in CASES.values() for engine in case))
    add_options(parser, device=False)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="CASE", help="[all]")
    parser.add_argument("--engines", nargs="+", choices=engines, default=engines, metavar="ENGINE", help="[all]")
    parser.add_argument("--loads", nargs="+", type=int, default=[0, 1, 2], help="spinning processes [0 1 2]")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each engine at each load [3]")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a measurement in seconds [4]")
    parser.add_argument(
        "--attempts", type=int, default=3, help="measurements until one is not disturbed by other programs [3]"
    )
    parser.add_argument(
        "--same-session", action="store_true", help="start the spinning processes in the session of the worker"
    )
    parser.add_argument("--models", type=Path, help="keep the models in this folder and use those in it [temporary]")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    return parser.parse_args()


def jobs(given: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """The jobs of one round; writes the tokens that training needs."""
    shared = {name: getattr(given, name) for name in ("threads", "seconds", "same_session")}
    shared |= {"folder": str(folder), "nanogpt": str(given.nanogpt)}
    for case in given.cases:
        if case in TRAINING:
            shape = TRAINING[case]
            data = folder / f"{shape.vocabulary}.bin"
            training.random_tokens(data, shape.vocabulary)
            shared |= {"shape": vars(shape), "data": str(data), "warmup": WARMUP[case]}
        for load in given.loads:
            for engine in CASES[case]:
                if engine in given.engines:
                    yield shared | {"case": case, "load": load, "engine": engine}


def main() -> None:
    given = options()
    if given.worker:
        print(json.dumps(work(given.worker)))
        return
    from minigpt.device import multiplies_bfloat16_faster

    here = machine(given.threads) | {"gpu": None}
    wanted = [engine for case in given.cases for engine in CASES[case] if engine in given.engines]
    given.engines = available_engines(dict.fromkeys(wanted), given.nanogpt)
    if BFLOAT16 in given.engines and not multiplies_bfloat16_faster():
        given.engines.remove(BFLOAT16)
        print_progress(f"{BFLOAT16} is skipped: this processor multiplies bfloat16 no faster than float32")
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.models or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        generating = [engine for case in given.cases if case in GENERATION for engine in CASES[case]]
        make = [engine for engine in generating if engine in given.engines]
        if make and not (folder / "model").exists():
            run_job(generation.__file__, {"folder": str(folder), "make": make}, given.threads)
        for turn in range(given.rounds):
            for job in jobs(given, folder):
                about = {name: job[name] for name in ("case", "load", "engine")} | {"round": turn}
                results.append(about | measure_undisturbed(job, given.attempts))
                write_results(given.json, here, results)
                print_progress(json.dumps(results[-1]))
    print(f"{describe(here)}\n\n{report(results, given.loads)}")
    draw(given.plot, lambda path: picture(path, results, given.loads))


if __name__ == "__main__":
    main()
