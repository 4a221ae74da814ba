"""Small scaling experiments: what a model of each size comes to after so much text, the table that plans are made from.

    python benchmarks/scaling.py run --texts tinyshakespeare.txt moby_dick.txt --jobs 2
    python benchmarks/scaling.py fit

`run` trains every setting of the grid that the table does not hold yet, by `minigpt.train` with a budget in steps, so
that a row does not depend on how fast the machine is, and appends it to minigpt/training/scaling.jsonl. `fit` makes the
constants of `minigpt/training/forecast.py` from the table and prints how far they are off.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

TABLE = Path(__file__).parents[1] / "minigpt" / "training" / "scaling.jsonl"
SHAPES = {"nano": (4, 4, 128), "micro": (6, 6, 192), "milli": (6, 4, 256), "mini": (6, 6, 384)}


def key(row: dict) -> tuple:
    return tuple(row[name] for name in ("text", "tokenizer", "shape", "context", "batch", "steps", "dropout", "rate"))


def known() -> dict[tuple, dict]:
    if not TABLE.exists():
        return {}
    return {key(row): row for row in map(json.loads, TABLE.read_text().splitlines())}


def experiment(setting: dict) -> dict:
    """Trains one setting; returns its row of the table."""
    import torch

    from minigpt import GPT, Corpus, GPTConfig, TrainConfig, train
    from minigpt.training.events import Finished
    from minigpt.training.forecast import entropy

    corpus = Corpus.build([setting["path"]], setting["tokenizer"])
    layers, heads, width = SHAPES[setting["shape"]]
    shape = GPTConfig(
        vocab_size=corpus.tokenizer.vocab_size, n_positions=setting["context"], n_layer=layers, n_head=heads,
        n_embd=width, dropout=setting["dropout"],
    )  # fmt: skip
    config = TrainConfig(
        steps=setting["steps"], batch_size=setting["batch"], learning_rate=setting["rate"], eval_every=10**9,
        eval_tokens=1000, sample_every=0, seed=setting["seed"], device="cpu",
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
        "entropy": entropy(Path(setting["path"]).read_bytes()[:1_000_000]),
        "bits_per_byte": last.bits_per_byte,
        "seconds": round(last.seconds, 1),
    }


def run(settings: list[dict], jobs: int) -> None:
    """Runs the settings that are not known yet, each in a process of one thread, `jobs` at a time."""
    todo = [setting for setting in settings if key(setting) not in known()]
    running: list[subprocess.Popen] = []
    while todo or running:
        while todo and len(running) < jobs:
            command = [sys.executable, __file__, "one", json.dumps(todo.pop(0))]
            running.append(
                subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}, text=True)
            )
        done = running.pop(0)
        output = done.communicate()[0]
        if done.returncode == 0:
            with TABLE.open("a") as table:
                table.write(output.splitlines()[-1] + "\n")
            print(output.splitlines()[-1], flush=True)


def main() -> None:
    if sys.argv[1] == "one":
        print(json.dumps(experiment(json.loads(sys.argv[2]))))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", help="a file of one JSON setting a line")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    run([json.loads(line) for line in Path(options.settings).read_text().splitlines()], options.jobs)


if __name__ == "__main__":
    main()
