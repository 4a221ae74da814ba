"""Small scaling experiments: the loss of models of several sizes after different amounts of text.

    python benchmarks/scaling.py run --texts tinyshakespeare.txt moby_dick.txt --jobs 2
    python benchmarks/scaling.py fit

`run` trains every setting of the grid that is not in minigpt/planning/scaling.jsonl yet and appends the result. The
budget is in steps, so that a result does not depend on the speed of the machine. `fit` computes the constants of
`minigpt/planning/scaling_law.py` from that table and prints the error for every row.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

TABLE = Path(__file__).parents[1] / "minigpt" / "planning" / "scaling.jsonl"
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

NEW = [  # experiments to add to the table
    ("tinyshakespeare.txt", "bpe:4096", "nano", 64, 488, 0.0),
    ("war_and_peace.txt", "bpe:16384", "nano", 64, 488, 0.0),
    ("moby_dick.txt", "bpe:4096", "nano", 64, 488, 0.0),
    ("tinyshakespeare.txt", "bpe:4096", "nano", 128, 1953, 0.03),
    ("war_and_peace.txt", "bpe:16384", "nano", 128, 1953, 0.0),
    ("tinyshakespeare.txt", "bpe:4096", "micro", 128, 1953, 0.03),
    ("war_and_peace.txt", "bpe:16384", "micro", 64, 977, 0.0),
    ("tinyshakespeare.txt", "bpe:4096", "nano", 128, 3906, 0.05),
]


def key(row: dict) -> tuple:
    return tuple(row[name] for name in SETTINGS)


def known() -> dict[tuple, dict]:
    if not TABLE.exists():
        return {}
    return {key(row): row for row in map(json.loads, TABLE.read_text().splitlines())}


def experiment(setting: dict) -> dict:
    """Trains one setting; returns its row for the table."""
    import torch

    from minigpt import GPT, Corpus, GPTConfig, TrainConfig, train
    from minigpt.planning.scaling_law import entropy
    from minigpt.training.events import Finished

    corpus = Corpus.build([setting["path"]], setting["tokenizer"])
    layers, heads, width = SHAPES[setting["shape"]]
    shape = GPTConfig(
        vocab_size=corpus.tokenizer.vocab_size, n_positions=setting["context"], n_layer=layers, n_head=heads,
        n_embd=width, dropout=setting["dropout"],
    )  # fmt: skip
    config = TrainConfig(
        steps=setting["steps"], batch_size=setting["batch"], learning_rate=setting["rate"], eval_every=10**9,
        eval_tokens=1000, sample_every=0, seed=setting["seed"], device="cpu", dtype=setting["dtype"],
        bpe_dropout=setting["bpe_dropout"], patience=0,
    )  # fmt: skip
    torch.manual_seed(setting["seed"])
    for event in train(GPT(shape), corpus, config):
        last = event
    assert isinstance(last, Finished)
    tokens = setting["steps"] * setting["batch"] * setting["context"]
    return {
        **{name: value for name, value in setting.items() if name != "path"},
        "width": width,
        "layers": layers,
        "vocabulary": corpus.tokenizer.vocab_size,
        "tokens": tokens,
        "train_bytes": corpus.train_bytes,
        "bytes_per_token": corpus.train_bytes / len(corpus.train),
        "entropy": entropy(Path(setting["path"]).read_bytes()),
        "bits_per_byte": last.bits_per_byte,
        "seconds": round(last.seconds, 1),
    }


def run(settings: list[dict], jobs: int) -> None:
    """Runs the settings that are not in the table, each in a single-threaded process, `jobs` at a time."""
    todo = [setting for setting in settings if key(setting) not in known()]
    running: list[subprocess.Popen] = []
    while todo or running:
        while todo and len(running) < jobs:
            command = [sys.executable, __file__, "one", json.dumps(todo.pop(0))]
            running.append(
                subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}, text=True)
            )
        time.sleep(0.2)
        for process in [process for process in running if process.poll() is not None]:
            running.remove(process)
            output = process.communicate()[0]
            if process.returncode:
                print(f"an experiment failed: {process.args[-1]}", file=sys.stderr, flush=True)
                continue
            row = output.splitlines()[-1]
            with TABLE.open("a") as table:
                table.write(row + "\n")
            print(row, flush=True)


def grid(paths: dict[str, str]) -> list[dict]:
    """The settings of the table and the new ones, if their texts are available."""
    settings = [{name: row[name] for name in SETTINGS} for row in known().values()]
    for text, tokenizer, shape, context, steps, bpe_dropout in NEW:
        settings.append(
            {"text": text, "tokenizer": tokenizer, "shape": shape, "context": context, "batch": 1024 // context,
             "steps": steps, "rate": round(8e-3 * (128 / SHAPES[shape][2]) ** 0.5, 5), "dropout": 0.0,
             "bpe_dropout": bpe_dropout, "dtype": "bfloat16", "seed": 1}
        )  # fmt: skip
    return [{**setting, "path": paths[setting["text"]]} for setting in settings if setting["text"] in paths]


def fit() -> None:
    """Prints the constants of the law: exponents and repeats by grid search, the others by least squares.

    A text can be harder or easier than its compressed size suggests, so each text gets its own factor in the fit. A new
    text has no factor; the spread of the factors is the uncertainty of a prediction.
    """
    import numpy as np

    from minigpt.config import GPTConfig
    from minigpt.planning.scaling_law import effective_bytes

    rows = [json.loads(line) for line in TABLE.read_text().splitlines()]
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


def main() -> None:
    if sys.argv[1:2] == ["one"]:
        print(json.dumps(experiment(json.loads(sys.argv[2]))))
        return
    if sys.argv[1:] == ["fit"]:
        fit()
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["run", "fit"])
    parser.add_argument("--texts", nargs="+", type=Path, required=True, help="text files whose names are in the table")
    parser.add_argument("--jobs", type=int, default=2, help="number of single-threaded processes at a time")
    options = parser.parse_args()
    run(grid({path.name: str(path.resolve()) for path in options.texts}), options.jobs)


if __name__ == "__main__":
    main()
