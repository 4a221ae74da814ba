"""The validation loss that minigpt and nanoGPT reach in a number of steps or minutes.

    python benchmarks/time_to_quality.py recipe --nanogpt PATH/TO/nanoGPT --text tinyshakespeare.txt
    python benchmarks/time_to_quality.py budget --nanogpt PATH/TO/nanoGPT --texts tinyshakespeare.txt moby_dick.txt

Needs a checkout of nanoGPT; `--plot` needs matplotlib. Both train on the same bytes. Both are evaluated on the same
bytes: all that minigpt holds out (about 10 %; the end of a text that is one document), in non-overlapping windows of
their own context. Each seed is one round, which runs all engines in turn.

`recipe` is nanoGPT's recipe for a CPU: characters, 4 layers, 4 heads, width 128, context 64, batch 12, 2000 steps, no
dropout, learning rate 1e-3 decaying to 1e-4, beta2 0.99, warmup 100. minigpt uses the same shape, batch and steps. It
runs once with its default optimizer and learning rate, and once with AdamW at a learning rate of 3e-3, which suits
nanoGPT's code: this shows what the learning rate alone gains. minigpt's `chars` vocabulary has 257 tokens, including
all bytes; nanoGPT's has 65. The result is the lowest loss of the evaluations, one every 100 steps, whose time is
not counted.

`budget` is wall-clock time. minigpt runs `minigpt train TEXT --minutes M` with a seed; its evaluations and saves count.
nanoGPT uses the recipe's model, with characters or with GPT-2's BPE, and a complete cosine schedule, whose number of
steps follows the speed measured so far, so that it ends after M minutes. nanoGPT's four evaluations are not counted,
and the best one is its result. Starting Python, reading and tokenizing the text, and the last evaluation are not
counted for either. The raw numbers hold the time of the whole process (`process_seconds`).
"""

import argparse
import itertools
import json
import math
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measuring import (
    Point,
    Shape,
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
    run_worker,
    spread,
    table,
    write_results,
)

RECIPE = Shape(n_layer=4, n_head=4, n_embd=128, context=64, batch=12, vocabulary=65)
TUNED = 3e-3
RECIPE_ENGINES = {  # nanoGPT's peak learning rate, or minigpt's options
    "nanogpt": 1e-3,
    "nanogpt-3e-3": TUNED,
    "minigpt-adamw-3e-3": ("--optimizer", "adamw", "--learning-rate", str(TUNED)),
    "minigpt": (),
}
BUDGET_ENGINES = {"nanogpt": 1e-3, "nanogpt-3e-3": TUNED, "nanogpt-bpe": 1e-3, "nanogpt-bpe-3e-3": TUNED, "minigpt": ()}


def split_text(text: Path, cache: Path) -> tuple[str, str]:
    """The training text and the validation text, as minigpt splits them."""
    from minigpt import Corpus

    corpus = Corpus.build(text, "bytes", cache=cache)
    training, validation = (corpus.tokenizer.decode(part.tolist()) for part in (corpus.train, corpus.validation))
    return training.replace("<|endoftext|>", ""), validation.replace("<|endoftext|>", "")


def work(job: dict[str, Any]) -> dict[str, Any]:
    """The worker: trains nanoGPT for a number of steps, or for as many as fit a budget in seconds."""
    import peers
    import torch

    torch.set_num_threads(job["threads"])
    if job["steps"]:
        return {"curve": peers.nanogpt_curve(job, job["steps"], job["every"])}
    return {"curve": peers.nanogpt_curve_within(job)}


# minigpt, run as a command.


def minigpt_run(arguments: list[str], text: Path, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Runs `minigpt train`; evaluates its best weights on the whole validation part, and returns the loss curve too.

    The seconds of the curve count training steps only, those of a teacher too. A step that follows an evaluation or a
    save is counted as one median step.
    """
    from minigpt import Corpus, evaluate, load_checkpoint

    # The cache is an empty folder too, so that every run tokenizes its text.
    command = [sys.executable, "-m", "minigpt", "train", str(text), "--checkpoints", str(folder), "--name", "run"]
    began = time.perf_counter()
    device = [] if given.device == "auto" else ["--device", given.device]
    run_worker([*command, *arguments, *device], given.threads, MINIGPT_CACHE=str(folder / "cache"))
    process_seconds = time.perf_counter() - began
    record = json.loads((folder / "run" / "training.json").read_text(encoding="utf-8"))
    log, of_teacher = read_log(folder / "run" / "log.jsonl"), read_log(folder / "run" / "teacher" / "log.jsonl")
    corpus = Corpus.load(record["corpus"]["path"])
    model = load_checkpoint(folder / "run", given.device).model
    context = record["training"]["context_length"]
    lengths = corpus.tokenizer.token_lengths
    measured = evaluate(model, corpus.validation, token_lengths=lengths, context=context)
    return {
        "nats": measured.loss * measured.tokens,
        "bits_per_byte": measured.bits_per_byte,
        "curve": training_curve(log, measured.tokens, sum(seconds_of_steps(of_teacher))),
        "process_seconds": process_seconds,
        "result": record["result"],
        "training": {name: record["training"][name] for name in ("dtype", "distill", "bpe_dropout")},
        "model": record["model"],
        "tokenizer": record["tokenizer"],
    }


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a run's log; none if there is no such file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def seconds_of_steps(log: list[dict[str, Any]]) -> list[float]:
    """The seconds of each step in a minigpt log; a step that follows something else counts as one median step."""
    own = {b["step"]: b["seconds"] - a["seconds"] for a, b in itertools.pairwise(log) if "loss" in a and "loss" in b}
    usual = median(own.values()) or 0.0
    return [own.get(line["step"], usual) for line in log if "loss" in line]


def training_curve(log: list[dict[str, Any]], tokens: int, before: float = 0.0) -> list[Point]:
    """The evaluations in a minigpt log, each with the seconds that the steps until then took, and those `before`."""
    steps = iter(seconds_of_steps(log))
    curve: list[Point] = []
    seconds = before
    for line in log:
        if "loss" in line:
            seconds += next(steps)
        elif "validation_loss" in line:
            curve.append((line["step"], seconds, line["validation_loss"] * tokens))
    return curve


# Both engines.


class Bench:
    """Runs the engines on one text and holds the files that they read."""

    def __init__(self, given: argparse.Namespace, text: Path, folder: Path) -> None:
        self.given, self.text, self.folder = given, text, folder
        self.parts = split_text(text, folder / "corpus")

    def run(self, engine: str, seed: int, recipe: Any, *, steps: int = 0, minutes: float = 0.0) -> dict[str, Any]:
        """One engine's result: `bits_per_byte`, `nats_per_character`, `seconds`, `curve` and more for minigpt."""
        characters = len(self.parts[1]) - 1  # the first character is not predicted
        about = {"text": self.text.name, "engine": engine, "seed": seed, "minutes": minutes}
        if engine.startswith("minigpt"):
            found = self._minigpt(seed, recipe, steps, minutes)
        else:
            found = self._nanogpt(engine, seed, recipe, steps, minutes)
        found["curve"] = [(step, seconds, nats / characters) for step, seconds, nats in found["curve"]]
        seconds = found["curve"][-1][1] if found["curve"] else None
        return about | {"nats_per_character": found["nats"] / characters, "seconds": seconds} | found

    def _minigpt(self, seed: int, options: Any, steps: int, minutes: float) -> dict[str, Any]:
        arguments = [*options, "--seed", str(seed)]
        if steps:
            every = ["--eval-every", str(self.given.every), "--eval-tokens", str(10**9), "--sample-every", "0"]
            arguments += ["--steps", str(steps), "--patience", "0", "--tokenizer", "chars", "--dropout", "0", *every]
            shape = (("layer", RECIPE.n_layer), ("head", RECIPE.n_head), ("embd", RECIPE.n_embd))
            arguments += [part for name, size in shape for part in (f"--n-{name}", str(size))]
            arguments += ["--context-length", str(RECIPE.context), "--batch-size", str(RECIPE.batch)]
        else:
            arguments += ["--minutes", str(minutes)]
        with tempfile.TemporaryDirectory() as folder:
            return minigpt_run(arguments, self.text, Path(folder), self.given)

    def _nanogpt(self, engine: str, seed: int, rate: float, steps: int, minutes: float) -> dict[str, Any]:
        import numpy as np
        import peers

        bpe = "bpe" in engine
        train, validation, vocabulary, scored_bytes = peers.nanogpt_tokens(*self.parts, bpe=bpe)
        job = {"threads": self.given.threads, "device": self.given.device, "nanogpt": str(self.given.nanogpt)}
        job |= {"seed": seed, "rate": rate, "steps": steps, "every": self.given.every, "seconds": 60 * minutes}
        for name, tokens in (("train", train), ("validation", validation)):
            job[name] = str(self.folder / f"{name}.bin")
            np.array(tokens, dtype=np.uint16).tofile(job[name])
        began = time.perf_counter()
        answer = run_job(__file__, job | {"shape": vars(RECIPE) | {"vocabulary": vocabulary}}, self.given.threads)
        nats = min(nats for _, _, nats in answer["curve"])
        bits = nats / math.log(2) / scored_bytes
        return {"nats": nats, "bits_per_byte": bits, "process_seconds": time.perf_counter() - began, **answer}


def reached(curve: list[Point], loss: float) -> Point | None:
    """The first point of a curve at or below this loss."""
    return next((point for point in curve if point[2] <= loss), None)


def select(results: list[dict[str, Any]], **wanted: Any) -> list[dict[str, Any]]:
    """The results with these values."""
    return [result for result in results if all(result[key] == value for key, value in wanted.items())]


def recipe_report(results: list[dict[str, Any]]) -> str:
    """The recipe's table, and the part of the gain that comes from the learning rate alone."""
    rows: list[list[str]] = []
    losses: dict[str, float] = {}
    for engine in RECIPE_ENGINES:
        there, shares, steps = select(results, engine=engine), [], []
        if not there:
            continue
        losses[engine] = statistics.median(result["nats_per_character"] for result in there)
        for result in there:
            for base in select(results, engine="nanogpt", seed=result["seed"]):
                point = reached(result["curve"], base["nats_per_character"])
                shares.append(point[1] / base["seconds"] if point else None)
                steps.append(point[0] if point else None)
        figures = (("nats_per_character", ".4f"), ("bits_per_byte", ".4f"), ("seconds", ".0f"))
        columns = [spread([result[key] for result in there], form) for key, form in figures]
        rows.append([engine, *columns, spread(shares, ".0%"), spread(steps)])
    header = [
        "engine",
        "nats per character",
        "bits per byte",
        "training, s",
        "time to nanoGPT's final loss, % of its time",
    ]
    text = table([*header, "at step"], rows) + "\n"
    first, last = losses.get("nanogpt"), losses.get("minigpt")
    if first and last and last < first:
        parts = [f"{name} {(first - losses[name]) / (first - last):.0%}" for name in losses if "3e-3" in name]
        text += f"\nminigpt gains {first - last:.3f} nats; the learning rate 3e-3 alone gains: {', '.join(parts)}.\n"
    return text


def budget_report(results: list[dict[str, Any]]) -> str:
    """A row for each text and budget: bits per byte of each engine, and minigpt compared with the best other engine."""
    engines = [engine for engine in BUDGET_ENGINES if select(results, engine=engine)]
    rows = []
    for text, minutes in dict.fromkeys((result["text"], result["minutes"]) for result in results):
        bits = {e: [r["bits_per_byte"] for r in select(results, engine=e, text=text, minutes=minutes)] for e in engines}
        others = [statistics.median(values) for engine, values in bits.items() if engine != "minigpt" and values]
        own = median(bits.get("minigpt", []))
        gain = f"{own / min(others) - 1:+.1%}" if own and others else "–"
        rows.append([text, f"{minutes:g}", *(spread(bits[engine], ".3f") for engine in engines), gain])
    return table(["text", "minutes", *engines, "minigpt vs. the best other"], rows) + "\n"


def recipe_picture(results: list[dict[str, Any]], path: Path) -> None:
    """Validation loss over seconds of training, one line per run."""
    drawing, (axes,) = figure(1)
    for number, engine in enumerate(RECIPE_ENGINES):
        for turn, result in enumerate(select(results, engine=engine)):
            points = [(seconds, nats) for step, seconds, nats in result["curve"] if step]
            axes.plot(*zip(*points, strict=True), color=f"C{number}", linewidth=1, label=None if turn else engine)
    axes.set_xscale("log")
    axes.set_xlabel("seconds of training")
    axes.set_ylabel("validation, nats per character")
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    drawing.savefig(path, dpi=120)


def budget_picture(results: list[dict[str, Any]], path: Path) -> None:
    """Bits per byte over the budget, one panel per text."""
    texts = list(dict.fromkeys(result["text"] for result in results))
    drawing, panels = figure(len(texts))
    for axes, text in zip(panels, texts, strict=True):
        for number, engine in enumerate(BUDGET_ENGINES):
            there = select(results, text=text, engine=engine)
            budgets = sorted({result["minutes"] for result in there})
            bits = [median(r["bits_per_byte"] for r in select(there, minutes=minutes)) for minutes in budgets]
            axes.plot(budgets, bits, color=f"C{number}", marker="o", label=engine)
        axes.set_xscale("log")
        axes.set_title(text)
        axes.set_xlabel("minutes")
        axes.set_ylabel("bits per byte")
        axes.grid(alpha=0.3, which="both")
    panels[0].legend()
    drawing.savefig(path, dpi=120)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("recipe", "budget"), nargs="?")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--text", "--texts", type=Path, nargs="+", help="text files; recipe takes one", metavar="PATH")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1337, 1, 2], help="seeds, one round each [1337 1 2]")
    parser.add_argument("--engines", nargs="+", choices=sorted(RECIPE_ENGINES | BUDGET_ENGINES))
    parser.add_argument(
        "--minutes", type=float, nargs="+", default=[1.0, 3.0, 10.0], help="budgets in minutes [1 3 10]"
    )
    parser.add_argument("--steps", type=int, default=2000, help="the recipe's steps [2000]")
    parser.add_argument("--every", type=int, default=100, help="steps between the recipe's evaluations [100]")
    add_options(parser)
    given = parser.parse_args()
    if not given.worker and (given.part is None or not given.text or (given.part == "recipe" and len(given.text) > 1)):
        parser.error("give a part and its texts: recipe --text PATH, or budget --texts PATH ...")
    return given


def main() -> None:
    given = options()
    if given.worker:
        print(json.dumps(work(given.worker)))
        return
    is_recipe = given.part == "recipe"
    known = RECIPE_ENGINES if is_recipe else BUDGET_ENGINES
    engines = available_engines([name for name in known if name in (given.engines or known)], given.nanogpt)
    report, picture = (recipe_report, recipe_picture) if is_recipe else (budget_report, budget_picture)
    here, results = machine(given.threads), []
    for text in given.text:
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(given, text, Path(folder))
            for seed, minutes in itertools.product(given.seeds, [0.0] if is_recipe else given.minutes):
                for engine in list(engines):
                    length = {"steps": given.steps} if is_recipe else {"minutes": minutes}
                    try:
                        result = bench.run(engine, seed, known[engine], **length)
                    except WorkerError as error:
                        engines.remove(engine)
                        print_progress(f"{engine} failed and is skipped: {error}")
                        continue
                    results.append(result)
                    write_results(given.json, here, results)
                    nats, bits = result["nats_per_character"], result["bits_per_byte"]
                    budget = "" if is_recipe else f", {minutes:g} min"
                    figures = f"{nats:.4f} nats per character, {bits:.4f} bits per byte, {result['seconds']:.0f} s"
                    print_progress(f"{text.name}{budget}, seed {seed}, {engine}: {figures}")
    print(f"{describe(here)}\n\n{report(results)}")
    if results:
        draw(given.plot, lambda path: picture(results, path))


if __name__ == "__main__":
    main()
