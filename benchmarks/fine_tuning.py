"""Speed and memory of fine-tuning: all weights, an adapter (LoRA) over a float32 or int8 base, and peft.

    python benchmarks/fine_tuning.py --preset gpt2 --rounds 3 --json fine_tuning.json

Needs `pip install peft transformers` for the peers; a missing peer is reported and skipped.

Every measurement runs in a separate process, and each round measures all engines in turn, so compare ratios within a
round. All engines read the same file of random weights in a preset's shape, the same random tokens, and compute in
float32 with AdamW; adapters have rank 16 on all four matrices of every block. peft runs in a plain loop: forward,
backward, clipping, update.

Memory is the highest resident anonymous memory while steps are taken, sampled every 10 ms, minus that before the model
is built. Pages mapped from the file of weights do not count, because the system may drop them. "Plan" is the estimate
of `minigpt train --plan` for the same step.
"""

import argparse
import importlib.util
import json
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from measuring import (
    Stopwatch,
    WorkerError,
    add_options,
    describe,
    machine,
    print_progress,
    run_job,
    spread,
    table,
    write_results,
)

from minigpt.config import PRESETS

MINIGPT: dict[str, dict[str, Any]] = {
    "minigpt, all weights": {},
    "minigpt, upper half": {"freeze": 0.5},
    "minigpt, adapter": {"lora": True},
    # What the plan chooses where the CPU multiplies bfloat16 faster.
    "minigpt, adapter, bfloat16 products": {"lora": True, "dtype": "bfloat16"},
    "minigpt, adapter, bfloat16 base": {"lora": True, "base_dtype": "bfloat16"},
    "minigpt, adapter, int8 base": {"lora": True, "base_dtype": "int8"},
}
PEERS = {"transformers, all weights": False, "peft, adapter": True}
RANK, ALPHA, LEARNING_RATE = 16, 32, 5e-4


# The worker: one engine in one process.


def work(job: dict[str, Any]) -> dict[str, Any]:
    """Takes steps with one engine; returns steps per second, peak memory and the plan's estimate in bytes."""
    import torch

    torch.manual_seed(0)
    watch = Stopwatch(warmup=1, seconds=job["seconds"], steps=None, synchronize=lambda: None)
    run = _minigpt if job["engine"] in MINIGPT else _peer
    run(job)  # imports everything, on a tiny model
    with peak_memory() as memory:
        planned = run(job, watch)
    return {"steps_per_second": watch.measured / watch.elapsed, "memory": memory[0], "plan": planned}


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """A list that gets the highest anonymous memory in the block, minus that at its start. Unit: bytes."""
    found, done, before = [0], threading.Event(), anonymous_memory()

    def sample() -> None:
        while not done.wait(0.01):
            found[0] = max(found[0], anonymous_memory() - before)

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield found
    finally:
        done.set()
        sampler.join()


def anonymous_memory() -> int:
    """The resident memory of this process that no file backs (Linux). Unit: bytes."""
    status = Path("/proc/self/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("RssAnon:")]
    return 1024 * int(line.split()[1])


def _minigpt(job: dict[str, Any], watch: Stopwatch | None = None) -> int:
    import torch

    from minigpt.autoplan.memory_estimates import activation_bytes, state_bytes
    from minigpt.config import GPTConfig, TrainConfig
    from minigpt.lora.fine_tuning import apply_fine_tuning
    from minigpt.model.gpt import GPT
    from minigpt.storage.checkpoint import load_checkpoint
    from minigpt.training.step import TrainStep
    from minigpt.training.step_parts import build_step_parts

    tiny = GPTConfig(vocab_size=64, n_positions=8, n_embd=16, n_layer=2, n_head=2)
    settings = dict(MINIGPT[job["engine"]])
    mapped = settings.get("base_dtype") is not None
    model = load_checkpoint(job["folder"], "cpu", mapped=mapped).model if watch else GPT(tiny)
    shape = model.config.replace(dropout=0.0)
    settings["freeze"] = int(settings.get("freeze", 0) * shape.n_layer)
    config = TrainConfig(
        batch_size=job["batch"], context_length=min(job["context"], shape.n_positions), optimizer="adamw", steps=1,
        learning_rate=LEARNING_RATE, lora_rank=RANK, lora_alpha=ALPHA, **settings,
    )  # fmt: skip
    model = GPT.from_tensors(shape, model.state_dict())
    apply_fine_tuning(model, config)

    class Tokens:  # adapters ask for nothing but batches
        def scores_all(self, _: str) -> bool:
            return True

        def batch(self, step: int, size: int, length: int, *_: Any) -> tuple[Any, Any]:
            ids = torch.randint(shape.vocab_size, (size, length + 1), generator=torch.Generator().manual_seed(step))
            return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    dtype = torch.bfloat16 if config.dtype == "bfloat16" else torch.float32
    parts = build_step_parts(model, cast(Any, Tokens()), config, dtype)
    step = TrainStep(parts, config, torch.device("cpu"), dtype)
    number = 0
    while step.step(number, LEARNING_RATE) and watch and not watch.step():
        number += 1
    kept = activation_bytes(shape, config.context_length or 1, config.batch_size, training=config)
    return state_bytes(shape, "adamw", training=config) + kept


def _peer(job: dict[str, Any], watch: Stopwatch | None = None) -> None:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    zero: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    if watch:
        model: Any = GPT2LMHeadModel.from_pretrained(job["folder"], **zero)
    else:
        model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=8, n_embd=16, n_layer=2, n_head=2, **zero))
    vocabulary, context = model.config.vocab_size, min(job["context"], model.config.n_positions)
    if PEERS[job["engine"]]:
        from peft import LoraConfig, get_peft_model

        targets = ["c_attn", "c_proj", "c_fc"]
        model = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=targets, fan_in_fan_out=True))
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, fused=True)
    number = 0
    while True:
        generator = torch.Generator().manual_seed(number)
        ids = torch.randint(vocabulary, (job["batch"], context), generator=generator)
        model(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        number += 1
        if watch is None or watch.step():
            return


# The parent.


def save_base(preset: str, folder: Path) -> Path:
    """A folder with random weights in a preset's shape, written by another process, so that this one stays small."""
    import torch

    from minigpt.config import preset_config
    from minigpt.model.gpt import GPT
    from minigpt.storage.checkpoint import save_checkpoint
    from minigpt.tokenizer.tokenizer import Tokenizer

    torch.manual_seed(0)
    return save_checkpoint(folder / "base", GPT(preset_config(preset)), Tokenizer.named("gpt2"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, device=False)
    parser.add_argument("--preset", choices=sorted(PRESETS), default="gpt2", help="shape of the model [gpt2]")
    parser.add_argument(
        "--engines",
        nargs="*",
        choices=[*MINIGPT, *PEERS],
        default=[*MINIGPT, *PEERS],
        help="the engines to measure [all]",
    )
    parser.add_argument("--context", type=int, default=256, help="tokens per sequence [256]")
    parser.add_argument("--batch", type=int, default=4, help="sequences per step [4]")
    parser.add_argument("--rounds", type=int, default=3, help="rounds over all engines [3]")
    parser.add_argument("--seconds", type=float, default=8.0, help="of measured steps, at least three [8]")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        if "base" in given.worker:
            save_base(given.worker["preset"], Path(given.worker["base"]))
        print(json.dumps({} if "base" in given.worker else work(given.worker)))
        return
    about, results = machine(given.threads), []
    engines = [each for each in given.engines if each in MINIGPT or importlib.util.find_spec("peft")]
    with tempfile.TemporaryDirectory() as folder:
        run_job(__file__, {"base": folder, "preset": given.preset}, given.threads)
        job = {"folder": f"{folder}/base", "context": given.context, "batch": given.batch, "seconds": given.seconds}
        for round_number in range(given.rounds):
            for engine in engines:
                began = time.perf_counter()
                try:
                    found = run_job(__file__, job | {"engine": engine}, given.threads)
                except WorkerError as error:
                    print_progress(f"{engine}: {error}")
                    continue
                print_progress(f"round {round_number + 1}, {engine}: {time.perf_counter() - began:.0f} s, {found}")
                results.append(found | {"engine": engine, "round": round_number})
                write_results(given.json, about, results)
    print(report(results, given))
    print(describe(about))


def report(results: list[dict[str, Any]], given: argparse.Namespace) -> str:
    """The table: speed, speed relative to training all weights in the same round, memory and the plan's estimate."""
    rows = []
    whole = {each["round"]: each for each in results if each["engine"] == "minigpt, all weights"}
    for engine in dict.fromkeys(each["engine"] for each in results):
        own = [each for each in results if each["engine"] == engine]
        pairs = [(each, whole[each["round"]]) for each in own if each["round"] in whole]
        ratios = [each["steps_per_second"] / base["steps_per_second"] for each, base in pairs]
        plan = own[0]["plan"]
        memory = max(each["memory"] for each in own)
        rows.append(
            (
                engine,
                spread([each["steps_per_second"] for each in own], ".3f"),
                spread(ratios, ".2f"),
                f"{memory / 1e9:.2f}",
                "–" if plan is None else f"{plan / 1e9:.2f} ({plan / memory - 1:+.0%})",
            )
        )
    header = ("engine", "steps/s", "to all weights", "memory, GB", "plan, GB")
    return f"{given.preset}, {given.batch} x {given.context} tokens\n\n" + table(header, rows)


if __name__ == "__main__":
    main()
