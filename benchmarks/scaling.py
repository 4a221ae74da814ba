"""Small scaling experiments: the result of the runs that minigpt plans for texts, minutes and speeds of machines.

    python benchmarks/scaling.py run --texts tinyshakespeare.txt moby_dick.txt --minutes 1 --speeds 0.5 1
    python benchmarks/scaling.py fit

`run` plans a run for each text, time and speed, trains it, and appends the result to minigpt/autoplan/scaling.jsonl. It
also repeats the experiments of the table whose texts are given and whose results were deleted from it. The budget is in
steps, so that a result does not depend on the speed of the machine. `fit` computes the constants of
`minigpt/autoplan/expectation.py` from that table and prints the error of every row.
"""

import argparse
import functools
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minigpt.config import GPTConfig, TrainConfig

TABLE = Path(__file__).parents[1] / "minigpt" / "autoplan" / "scaling.jsonl"
SHAPES = {"nano": (4, 4, 128), "micro": (6, 6, 192), "milli": (6, 4, 256), "mini": (6, 6, 384)}

SETTINGS = (
    "text",
    "tokenizer",
    "shape",
    "context",
    "batch",
    "steps",
    "rate",
    "dropout",
    "bpe_dropout",
    "dtype",
    "seed",
)
OPTIONAL = {  # as in the first experiments
    "patience": 0, "eval_tokens": 1000, "eval_every": 10**9, "token_noise": 0.0, "sampled_softmax": 0,
    "spelling_features": False, "embedding_weight_decay": 0.1,
}  # fmt: skip
FLOPS = {128: 125e9, 192: 140e9, 384: 232e9, 512: 260e9, 768: 300e9}  # a second, at speed 1, by the model's width
TRAINING = 0.88  # of the minutes


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in SETTINGS)


def known() -> dict[tuple[Any, ...], dict[str, Any]]:
    if not TABLE.exists():
        return {}
    return {key(row): row for row in map(json.loads, TABLE.read_text().splitlines())}


def seconds_per_step(speed: float, model: "GPTConfig", config: "TrainConfig") -> float:
    """The seconds of a step on an invented machine; at speed 1 it is one core of a Xeon with AMX, in bfloat16."""
    assert config.context_length is not None  # the plan has chosen it
    flops = config.flops_per_token(model) * config.sequences_per_step * config.context_length
    return flops / FLOPS[min(FLOPS, key=lambda width: abs(width - model.n_embd))] / speed


def planned(path: Path, minutes: float, speed: float, seed: int) -> dict[str, Any]:
    """The settings that minigpt plans for this text and time on a machine of this speed."""
    from minigpt.autoplan.corpus_stats import CorpusStats
    from minigpt.autoplan.plan_settings import plan_preset, plan_settings
    from minigpt.autoplan.throughput import StepTimer
    from minigpt.run_options import RunOptions
    from minigpt.runs.reading import read_corpus
    from minigpt.tricks.settings import TrickSettings

    options, measure = RunOptions.of({"minutes": minutes}), functools.partial(seconds_per_step, speed)
    reading = read_corpus((str(path),), None, options.reading, None)
    try:
        while True:
            next(reading)
    except StopIteration as end:
        corpus = end.value
    stats = CorpusStats.of(corpus, [])
    timer = StepTimer(measure, ("float32",))
    preset = plan_preset(stats, "cpu", 2**34, options, timer)
    plan = plan_settings(stats, options, device_type="cpu", free_memory=2**34, preset=preset, timer=timer)
    config, tricks = plan.training, TrickSettings.of(plan.training)
    return {
        "text": path.name,
        "tokenizer": corpus.tokenizer.name,
        "shape": preset,
        "context": config.context_length,
        "batch": config.batch_size,
        "steps": max(1, int(TRAINING * 60 * minutes / plan.seconds_per_step)),
        "rate": config.learning_rate,
        "dropout": plan.model.dropout,
        "bpe_dropout": tricks.bpe_dropout,
        "token_noise": tricks.token_noise,
        "sampled_softmax": tricks.sampled_softmax,
        "spelling_features": bool(tricks.spelling_features),
        "embedding_weight_decay": config.embedding_weight_decay,
        "patience": config.patience,
        "eval_tokens": config.eval_tokens,
        "eval_every": None,
        "dtype": "bfloat16",
        "seed": seed,
        "path": str(path),
    }


def experiment(setting: dict[str, Any]) -> dict[str, Any]:
    """Trains one setting; returns its row for the table."""
    import minigpt
    from minigpt.autoplan.corpus_stats import CorpusStats

    options = OPTIONAL | setting
    layers, heads, width = SHAPES[options["shape"]]
    given = {name: options[name] for name in ("steps", "tokenizer", "dropout", "bpe_dropout", "dtype", "seed")}
    given |= {name: value for name in OPTIONAL if (value := options[name]) is not None}
    with tempfile.TemporaryDirectory() as folder:
        plan = minigpt.plan(
            options["path"], checkpoints=folder, n_layer=layers, n_head=heads, n_embd=width, sample_every=0,
            context_length=options["context"], batch_size=options["batch"], learning_rate=options["rate"],
            optimizer="muon", device="cpu", **given,
        )  # fmt: skip
        for event in minigpt.fit(plan, report=False):
            last = event
    assert isinstance(last, minigpt.Finished)
    corpus = plan.corpus
    return {
        **{name: value for name, value in setting.items() if name != "path"},
        "width": width,
        "layers": layers,
        "vocabulary": corpus.tokenizer.vocab_size,
        "tokens": options["steps"] * options["batch"] * options["context"],
        "train_bytes": corpus.train_bytes,
        "bytes_per_token": corpus.train_bytes / len(corpus.train),
        "entropy": CorpusStats.of(corpus, plan.baselines).entropy,
        "steps_taken": last.step,
        "bits_per_byte": last.bits_per_byte,
        "seconds": round(last.seconds, 1),
    }


def run(settings: list[dict[str, Any]], jobs: int) -> None:
    """Runs the settings that are not in the table, each in a single-threaded process, `jobs` at a time."""
    todo = [setting for setting in settings if key(setting) not in known()]
    running: dict[subprocess.Popen[str], dict[str, Any]] = {}
    while todo or running:
        while todo and len(running) < jobs:
            setting = todo.pop(0)
            command, environment = [sys.executable, __file__, "one", json.dumps(setting)], {"OMP_NUM_THREADS": "1"}
            process = subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | environment, text=True)
            running[process] = setting
        time.sleep(0.2)
        for process in [process for process in running if process.poll() is not None]:
            setting = running.pop(process)
            output = process.communicate()[0]
            if process.returncode:
                print(f"an experiment failed: {json.dumps(setting)}", file=sys.stderr, flush=True)
                continue
            row = output.splitlines()[-1]
            with TABLE.open("a") as table:
                table.write(row + "\n")
            print(row, flush=True)


def fit() -> None:
    """Prints the constants of both fits and their errors for every row."""
    rows = [json.loads(line) for line in TABLE.read_text().splitlines()]
    fit_law([row for row in rows if "patience" not in row])
    print()
    fit_expectation(rows)


def fit_law(rows: list[dict[str, Any]]) -> None:
    """Prints the constants of the law: exponents and repeats by grid search, the others by least squares.

    A text can be harder or easier than its 5-gram entropy suggests, so each text gets its own factor in the fit. Only
    the experiments that compare models, vocabularies and lengths on the same text can tell it from the rest.
    """
    import numpy as np

    from minigpt.autoplan.expectation import effective_bytes
    from minigpt.config import GPTConfig

    shapes = [GPTConfig(n_layer=row["layers"], n_embd=row["width"], n_head=1) for row in rows]
    inner = np.array([shape.n_inner_parameters / 1e6 for shape in shapes])
    vocabulary_bits = np.array([np.log2(row["vocabulary"]) for row in rows])
    texts = sorted({row["text"] for row in rows})
    of_text = np.array([texts.index(row["text"]) for row in rows])
    best = None
    for repeats in (0.5, 1, 1.5, 2, 3, 5, 8):
        seen = [row["tokens"] * row["bytes_per_token"] for row in rows]
        data = np.array([effective_bytes(s, r["train_bytes"], repeats) for s, r in zip(seen, rows, strict=True)])
        for alpha, beta in itertools.product(np.arange(0.1, 0.8, 0.05), np.arange(0.1, 1.5, 0.05)):
            terms = np.stack([np.ones_like(inner), inner**-alpha, (data / 1e6) ** -beta, -vocabulary_bits], axis=1)
            factors = np.ones(len(texts))
            for _ in range(20):
                wanted = np.array([row["bits_per_byte"] / row["entropy"] for row in rows]) / factors[of_text]
                constants, *_ = np.linalg.lstsq(terms / wanted[:, None], np.ones_like(wanted), rcond=None)
                off = terms @ constants / wanted - 1
                factors *= [1 / (1 + off[of_text == text].mean()) for text in range(len(texts))]
                factors /= np.exp(np.log(factors).mean())
            score = float((off**2).mean())
            if (constants > 0).all() and (best is None or score < best[0]):
                best = score, constants, alpha, beta, repeats, off, factors
    assert best is not None
    score, (floor, width, data_factor, per_vocabulary_bit), alpha, beta, repeats, off, factors = best
    print(f"FLOOR, WIDTH, ALPHA, DATA, BETA = {floor:.4f}, {width:.4f}, {alpha:.2f}, {data_factor:.4f}, {beta:.2f}\n"
          f"VOCABULARY, REPEATS = {per_vocabulary_bit:.4f}, {repeats:.1f}")  # fmt: skip
    print("factor of each text:", ", ".join(f"{text} {own:.3f}" for text, own in zip(texts, factors, strict=True)))
    for row, error in zip(rows, off, strict=True):
        print(f"{row['text']:24} {row['shape']:6} {row['tokenizer']:10} {row['tokens']:>10,} tokens  "
              f"{row['bits_per_byte']:.3f} bits per byte, predicted {error:+.1%}")  # fmt: skip


def fit_expectation(rows: list[dict[str, Any]]) -> None:
    """Prints the constants of the expected range: a robust fit in the logarithm, every text with the same weight.

    The error of a row is that of a fit to the other texts.
    """
    import numpy as np

    from minigpt.config import GPTConfig

    def figures(row: dict[str, Any]) -> list[float]:
        trained = (row["tokens"] / 1e6) ** -0.5 / row["entropy"]
        sampled = float(bool(row.get("sampled_softmax")))
        return [1.0, math.log(row["entropy"]), -math.log(row["train_bytes"] / 1e6), trained, sampled]

    texts = sorted({row["text"] for row in rows})
    of_text = np.array([texts.index(row["text"]) for row in rows])
    terms, bits = np.array([figures(row) for row in rows]), np.log([row["bits_per_byte"] for row in rows])
    of_row = 1 / np.bincount(of_text)[of_text]

    def solve(chosen: Any) -> Any:
        weight = np.sqrt(of_row[chosen])[:, None]
        for _ in range(20):  # Huber's weights: an error above 6 % counts in proportion, not squared
            constants, *_ = np.linalg.lstsq(terms[chosen] * weight, bits[chosen] * weight[:, 0], rcond=None)
            far = abs(terms[chosen] @ constants - bits[chosen])
            weight = np.sqrt(of_row[chosen] * np.minimum(1, 0.06 / np.maximum(far, 1e-9)))[:, None]
        return constants

    off = np.empty(len(rows))
    for text in range(len(texts)):
        is_text = of_text == text
        off[is_text] = terms[is_text] @ solve(~is_text) - bits[is_text]
    scale, entropy, text_size, trained, sampled = solve(np.ones(len(rows), bool))
    print(f"SCALE, ENTROPY, TEXT, TRAINED = {math.exp(scale):.3f}, {entropy:.3f}, {text_size:.3f}, {trained:.3f}\n"
          f"SAMPLED = {math.exp(sampled):.3f}")  # fmt: skip
    order = np.argsort(abs(off))
    share = np.cumsum(of_row[order]) / len(texts)
    within = {part: abs(off)[order][np.searchsorted(share, part)] for part in (0.5, 0.8, 0.9)}
    print(f"of {len(texts)} texts, without having seen the text: "
          + ", ".join(f"{part:.0%} within {error:.3f}" for part, error in within.items()))  # fmt: skip
    fit_continuation(rows, trained)
    bounds = {
        "entropy": [row["entropy"] for row in rows],
        "tokens": [row["tokens"] / 1e6 for row in rows],
        "text": [row["train_bytes"] / 1e6 for row in rows],
        "passes": [row["tokens"] * row["bytes_per_token"] / row["train_bytes"] for row in rows],
        "size": [
            GPTConfig(n_layer=row["layers"], n_embd=row["width"], n_head=1).n_inner_parameters / 1e6 for row in rows
        ],
    }
    for name, values in bounds.items():
        print(f"{name}: from {min(values):.3g} to {max(values):.3g}")
    for row, error in zip(rows, off, strict=True):
        print(f"{row['text']:26} {row['shape']:6} {row['tokenizer']:10} {row['tokens']:>10,} tokens  "
              f"{row['bits_per_byte']:.3f} bits per byte, expected {error:+.1%}")  # fmt: skip


def fit_continuation(rows: list[dict[str, Any]], trained: float) -> None:
    """Prints how far the change by training longer is from `trained`, for pairs of runs that differ in their length."""
    same = ("text", "tokenizer", "shape", "dropout")
    pairs = [
        (short, long)
        for short, long in itertools.permutations(rows, 2)
        if all(short[name] == long[name] for name in same) and 1 < long["tokens"] / short["tokens"] <= 4.1
    ]
    off = sorted(
        abs(
            math.log(long["bits_per_byte"] / short["bits_per_byte"])
            - trained * ((long["tokens"] / 1e6) ** -0.5 - (short["tokens"] / 1e6) ** -0.5) / long["entropy"]
        )
        for short, long in pairs
    )
    texts = len({short["text"] for short, _ in pairs})
    print(
        f"of {len(pairs)} pairs of {texts} texts: 90% within {off[math.ceil(0.9 * len(off)) - 1]:.3f} (LONGER_SPREAD)"
    )


def main() -> None:
    if sys.argv[1:2] == ["one"]:
        print(json.dumps(experiment(json.loads(sys.argv[2]))))
        return
    if sys.argv[1:] == ["fit"]:
        fit()
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["run", "fit"])
    parser.add_argument("--texts", nargs="+", type=Path, required=True, help="text files or folders")
    parser.add_argument("--minutes", nargs="*", type=float, default=[], help="times to plan for")
    parser.add_argument("--speeds", nargs="+", type=float, default=[1.0], help="speeds of machines to plan for")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="number of single-threaded processes at a time")
    options = parser.parse_args()
    paths = {path.name: str(path.resolve()) for path in options.texts}
    settings = [
        {**{name: row[name] for name in (*SETTINGS, *OPTIONAL) if name in row}, "path": paths[row["text"]]}
        for row in known().values()
        if row["text"] in paths
    ]
    for path, minutes, speed in itertools.product(options.texts, options.minutes, options.speeds):
        settings.append(planned(path.resolve(), minutes, speed, options.seed))
    run(settings, options.jobs)


if __name__ == "__main__":
    main()
