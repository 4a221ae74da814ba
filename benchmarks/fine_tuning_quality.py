"""The bits per byte that a model reaches on an author's text: all weights, adapters (LoRA), and transformers' Trainer.

    minigpt train don_quixote.txt moby_dick.txt --preset nano --tokenizer bpe:2048 --steps 3500 --name base
    python benchmarks/fine_tuning_quality.py checkpoints/base --text own.txt --held-out elsewhere.txt --steps 400

Needs `pip install peft transformers[torch]` for the peers; a missing peer is reported and skipped.

All engines start from the same weights and read the same text with the same tokenizer, the same number of sequences per
step, and as many steps. The result is measured on the held-out text by `minigpt.evaluate`, on the weights that each
engine ends with. minigpt holds out a tenth of its text, ends with the weights that are best on it, and may stop early;
the peers train on all of it. minigpt chooses its learning rate;
the peers have the rates of `--peer-rates`, in turn: 5e-5 is the Trainer's default, 2e-4 is usual for adapters. The
Trainer reads 128-token blocks in random order, decays linearly, and clips at norm 1, as its example `run_clm.py` does.

Seconds are those of training, with minigpt's evaluations and saves; memory is the highest anonymous memory of the
process, minus that before the model is loaded, and includes what each engine imports.
"""

import argparse
import importlib.util
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from fine_tuning import peak_memory
from measuring import (
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

MINIGPT: dict[str, dict[str, Any]] = {
    "minigpt, all weights": {},
    "minigpt, all weights, Muon": {"optimizer": "muon"},
    "minigpt, upper half": {"freeze": 0.5},
    "minigpt, adapter, rank 4": {"lora": True, "lora_rank": 4},
    "minigpt, adapter, rank 16": {"lora": True},
    "minigpt, adapter, rank 64": {"lora": True, "lora_rank": 64},
    "minigpt, adapter, rank 16, without the embedding": {"lora": True, "lora_embedding": False},
    "minigpt, adapter, rank 16, Muon": {"lora": True, "optimizer": "muon"},
    "minigpt, adapter, rank 16, int8 base": {"lora": True, "base_dtype": "int8"},
}
PEERS: dict[str, dict[str, Any] | None] = {  # the options of peft's adapter, if there is one
    "Trainer, all weights": None,
    "peft and Trainer, rank 16": {"modules_to_save": ["wte", "lm_head"], "ensure_weight_tying": True},
    "peft and Trainer, rank 16, without the embedding": {},
}
RANK, ALPHA = 16, 32


def work(job: dict[str, Any]) -> dict[str, Any]:
    """Trains with one engine in this process; returns bits per byte, seconds and bytes of memory."""
    import torch

    torch.set_num_threads(job["threads"])
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result"
        with peak_memory() as memory:
            seconds = (_minigpt if job["engine"] in MINIGPT else _peer)(job, result)
        return {"bits_per_byte": held_out(job, result), "seconds": seconds, "memory": memory[0]}


def held_out(job: dict[str, Any], folder: Path | str) -> float:
    """Bits per byte of the held-out text, by the model in a folder."""
    from minigpt import Corpus, evaluate
    from minigpt.pretrained.open_model import load_model

    opened = load_model(Path(folder), "cpu").checkpoint
    tokenizer = opened.tokenizer
    corpus = Corpus.build(job["held_out"], tokenizer, validation_fraction=0.0)
    lengths = tokenizer.token_lengths
    return evaluate(opened.model, corpus.train, token_lengths=lengths, context=job["context"]).bits_per_byte


def _minigpt(job: dict[str, Any], result: Path) -> float:
    import minigpt

    settings: dict[str, Any] = {"steps": job["steps"], "batch_size": job["batch"], "context_length": job["context"]}
    settings |= {"seed": job["seed"], "sample_every": 0} | MINIGPT[job["engine"]]
    if "freeze" in settings:
        layers = json.loads((Path(job["base"]) / "config.json").read_text(encoding="utf-8"))["n_layer"]
        settings["freeze"] = int(settings["freeze"] * layers)
    events = minigpt.fit(job["text"], name=result.name, checkpoints=result.parent, base=job["base"], report=False,
                         **settings)  # fmt: skip
    *_, finished = events
    assert isinstance(finished, minigpt.Finished)
    return finished.seconds


def _peer(job: dict[str, Any], result: Path) -> float:
    import torch
    from transformers import GPT2LMHeadModel, Trainer, TrainingArguments

    from minigpt import load_checkpoint

    tokenizer = load_checkpoint(job["base"], "cpu").tokenizer
    ids = tokenizer.encode(Path(job["text"]).read_text(encoding="utf-8"))
    starts = range(0, len(ids) - job["context"], job["context"])
    blocks = [{"input_ids": block, "labels": block} for block in (ids[i : i + job["context"]] for i in starts)]
    torch.manual_seed(job["seed"])
    model: Any = GPT2LMHeadModel.from_pretrained(job["base"])
    if (options := PEERS[job["engine"]]) is not None:
        from peft import LoraConfig, get_peft_model

        targets = ["c_attn", "c_proj", "c_fc"]
        shape: dict[str, Any] = {"r": RANK, "lora_alpha": ALPHA, "target_modules": targets, "fan_in_fan_out": True}
        model = get_peft_model(model, LoraConfig(**shape, **options))
    arguments = TrainingArguments(
        output_dir=str(result.parent / "trainer"), max_steps=job["steps"], per_device_train_batch_size=job["batch"],
        learning_rate=job["rate"], seed=job["seed"], save_strategy="no", logging_strategy="no", report_to="none",
        use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(model=model, args=arguments, train_dataset=blocks)
    began = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - began
    if options is not None:
        model = model.merge_and_unload()
    model.save_pretrained(result)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt"):
        source = Path(job["base"]) / name
        if source.is_file():
            (result / name).write_bytes(source.read_bytes())
    return seconds


# The parent.


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, device=False)
    parser.add_argument("base", type=Path, nargs="?", help="the folder of the model to start from")
    parser.add_argument("--text", type=Path, help="the text to train on")
    parser.add_argument("--held-out", type=Path, help="another text by the same author")
    parser.add_argument("--engines", nargs="*", choices=[*MINIGPT, *PEERS], default=[*MINIGPT, *PEERS], help="[all]")
    parser.add_argument("--steps", type=int, default=400, help="optimizer steps [400]")
    parser.add_argument("--context", type=int, default=128, help="tokens per sequence [128]")
    parser.add_argument("--batch", type=int, default=8, help="sequences per step [8]")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="each is one round [1 2 3]")
    parser.add_argument("--peer-rates", type=float, nargs="+", default=[5e-5, 2e-4, 1e-3], help="[5e-5 2e-4 1e-3]")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        print(json.dumps(work(given.worker)))
        return
    if not (given.base and given.text and given.held_out):
        parser.error("a base, --text and --held-out are needed")
    has_peers = importlib.util.find_spec("peft") and importlib.util.find_spec("accelerate")
    engines = [engine for engine in given.engines if engine in MINIGPT or has_peers]
    for engine in sorted(set(given.engines) - set(engines)):
        print_progress(f"{engine}: skipped; it needs pip install peft transformers[torch]")
    job = {"base": str(given.base.resolve()), "text": str(given.text.resolve()), "steps": given.steps}
    job |= {"held_out": str(given.held_out.resolve()), "context": given.context, "batch": given.batch}
    job |= {"threads": given.threads}
    about, results = machine(given.threads), []
    print(f"the base: {held_out(job, given.base):.4f} bits per byte")
    for seed in given.seeds:
        for engine in engines:
            for rate in [None] if engine in MINIGPT else given.peer_rates:
                name = engine if rate is None else f"{engine}, {rate:g}"
                try:
                    found = run_job(__file__, job | {"engine": engine, "seed": seed, "rate": rate}, given.threads)
                except WorkerError as error:
                    print_progress(f"{name}: {error}")
                    continue
                print_progress(f"seed {seed}, {name}: {found}")
                results.append(found | {"engine": name, "seed": seed})
                write_results(given.json, about, results)
    print(report(results))
    print(describe(about))


def report(results: list[dict[str, Any]]) -> str:
    """The table: bits per byte of every engine, relative to training all weights, its seconds and its memory."""
    rows = []
    whole = {each["seed"]: each["bits_per_byte"] for each in results if each["engine"] == "minigpt, all weights"}
    for engine in dict.fromkeys(each["engine"] for each in results):
        own = [each for each in results if each["engine"] == engine]
        ratios = [100 * (each["bits_per_byte"] / whole[each["seed"]] - 1) for each in own if each["seed"] in whole]
        rows.append(
            (
                engine,
                spread([each["bits_per_byte"] for each in own], ".3f"),
                spread(ratios, "+.1f"),
                spread([each["seconds"] for each in own], ".0f"),
                f"{max(each['memory'] for each in own) / 1e6:.0f}",
            )
        )
    header = ("engine", "bits per byte", "to all weights, %", "seconds", "memory, MB")
    return table(header, rows)


if __name__ == "__main__":
    main()
