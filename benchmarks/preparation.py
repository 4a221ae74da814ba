"""Tokenizes a large text with minigpt, as nanoGPT, litgpt and datatrove do, one after the other: MB/s and memory.

    python benchmarks/preparation.py make 2000 corpus.jsonl TEXT...        # MB of text, from real texts
    python benchmarks/preparation.py measure corpus.jsonl [--rounds 2] [--others PYTHON] [--only NAME]
    python benchmarks/preparation.py interrupt corpus.jsonl [--kills 5]

`make` writes documents of random paragraphs of the texts, in which every paragraph has a number, so that nothing
repeats exactly. `measure` tokenizes with GPT-2's tokenizer on all cores; the programs take turns. The others need
`pip install datasets litdata tiktoken tokenizers datatrove orjson`, in the environment of the Python that --others
names. Memory is the sum of the proportional set sizes (PSS) of the program and its children without their mapped files,
looked at five times a second. `interrupt` kills a preparation by SIGKILL after random times, continues it, and compares
the tokens with those of one that was not killed.
"""

import argparse
import base64
import hashlib
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path

import psutil

# nanoGPT's data/openwebtext/prepare.py, with local files in place of the downloads of the text and the tokenizer.
NANOGPT = """
import base64, os, sys
import numpy as np, tiktoken
from datasets import load_dataset
corpus, out, ranks_file = sys.argv[1:]
num_proc = len(os.sched_getaffinity(0))
ranks = {base64.b64decode(line): rank for rank, line in enumerate(open(ranks_file, "rb"))}
pattern = r"'(?:[sdmt]|ll|ve|re)| ?\\p{L}++| ?\\p{N}++| ?[^\\s\\p{L}\\p{N}]++|\\s++$|\\s+(?!\\S)|\\s"
enc = tiktoken.Encoding("gpt2", pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256})
dataset = load_dataset("json", data_files=corpus, split="train", cache_dir=out)
def process(example):
    ids = enc.encode_ordinary(example["text"])
    ids.append(enc.eot_token)
    return {"ids": ids, "len": len(ids)}
tokenized = dataset.map(process, remove_columns=["text"], num_proc=num_proc)
arr_len = np.sum(tokenized["len"], dtype=np.uint64)
arr = np.memmap(os.path.join(out, "train.bin"), dtype=np.uint16, mode="w+", shape=(int(arr_len),))
idx, total_batches = 0, 1024
for batch_idx in range(min(total_batches, len(tokenized))):
    batch = tokenized.shard(num_shards=min(total_batches, len(tokenized)), index=batch_idx, contiguous=True)
    arr_batch = np.concatenate(batch.with_format("numpy")["ids"])
    arr[idx : idx + len(arr_batch)] = arr_batch
    idx += len(arr_batch)
arr.flush()
print(idx)
"""

# litgpt's way (litgpt/data/openwebtext.py): litdata's optimize with the tokenizer of the library tokenizers.
LITGPT = """
import os, sys
import torch
from datasets import load_dataset
from litdata import TokensLoader, optimize
from tokenizers import Tokenizer
corpus, out, tokenizer_file = sys.argv[1:]
os.environ["DATA_OPTIMIZER_CACHE_FOLDER"] = out + "/cache"
dataset = load_dataset("json", data_files=corpus, split="train", cache_dir=out)
def tokenize(index):
    global tokenizer
    try:
        tokenizer
    except NameError:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        tokenizer = Tokenizer.from_file(tokenizer_file)
    yield torch.tensor(tokenizer.encode(dataset[index]["text"]).ids + [50256], dtype=torch.int32)
if __name__ == "__main__":
    optimize(fn=tokenize, inputs=list(range(len(dataset))), output_dir=out + "/optimized", chunk_bytes="64MB",
             num_workers=len(os.sched_getaffinity(0)), item_loader=TokensLoader())
"""

# datatrove alone. A task reads whole files, so the corpus is cut into one for each core first.
DATATROVE = """
import os, sys
os.environ["TOKENIZERS_PARALLELISM"] = "false"
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer
corpus, out, tokenizer_file = sys.argv[1:]
tasks = len(os.sched_getaffinity(0))
if __name__ == "__main__":
    os.mkdir(out + "/parts")
    parts = [open(f"{out}/parts/{task}.jsonl", "wb") for task in range(tasks)]
    with open(corpus, "rb") as file:
        for number, line in enumerate(file):
            parts[number % tasks].write(line)
    for part in parts:
        part.close()
    write = DocumentTokenizer(out + "/tokens", tokenizer_file, eos_token="<|endoftext|>", shuffle_documents=False)
    LocalPipelineExecutor([JsonlReader(out + "/parts"), write], tasks=tasks, logging_dir=out + "/logs").run()
"""


def make(megabytes: int, out: Path, texts: list[Path]) -> None:
    """Writes about that many megabytes of documents of random paragraphs, each with its number."""
    paragraphs = [
        paragraph.strip()
        for path in texts
        for paragraph in path.read_text(encoding="utf-8").replace("\r", "").split("\n\n")
        if len(paragraph.strip()) > 100
    ]
    numbers, written, count = random.Random(0), 0, 0
    with out.open("w", encoding="utf-8") as file:
        while written < megabytes * 10**6:
            chosen = [
                f"{count}.{n} {each}" for n, each in enumerate(numbers.choices(paragraphs, k=numbers.randint(2, 9)))
            ]
            written += file.write(json.dumps({"text": "\n\n".join(chosen)}, ensure_ascii=False) + "\n")
            count += 1
    print(f"{count:,} documents of {len(paragraphs):,} paragraphs, {out.stat().st_size / 1e6:,.0f} MB")


def command(name: str, corpus: Path, out: Path, others: str) -> list[str]:
    """The command that tokenizes a corpus with a program."""
    if name == "minigpt":
        arguments = ["train", str(corpus), "--tokenizer", "gpt2", "--prepare"]
        return [sys.executable, "-m", "minigpt", *arguments]
    script = out / f"prepare_{name}.py"
    script.write_text({"nanogpt": NANOGPT, "litgpt": LITGPT, "datatrove": DATATROVE}[name])
    from minigpt.tokenizer.tokenizer import Tokenizer

    tokenizer = Tokenizer.named("gpt2")
    if name == "nanogpt":
        ranks = out / "ranks"
        ranks.write_bytes(b"".join(base64.b64encode(tokenizer.token_bytes(rank)) + b"\n" for rank in range(50256)))
        return [others, str(script), str(corpus), str(out), str(ranks)]
    tokenizer.save(out)
    return [others, str(script), str(corpus), str(out), str(out / "tokenizer.json")]


def anonymous_memory(process: psutil.Process) -> int:
    """The bytes of memory of a process and its children that are not mapped files."""
    total = 0
    for each in [process, *process.children(recursive=True)]:
        try:
            rollup = Path(f"/proc/{each.pid}/smaps_rollup").read_text()
        except OSError:
            continue
        fields = dict(line.split(":", 1) for line in rollup.splitlines()[1:])
        total += 1024 * int(fields.get("Pss_Anon", "0 kB").split()[0])
    return total


def run(name: str, corpus: Path, out: Path, others: str, limit: float | None = None) -> dict[str, float]:
    """Runs a program in an empty folder; its seconds and the most memory at once, also in the first and last third."""
    environment = {**os.environ, "MINIGPT_CACHE": str(out / "cache"), "HF_HOME": str(out), "HF_HUB_OFFLINE": "1"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[1]) if name == "minigpt" else ""
    environment["TIKTOKEN_CACHE_DIR"] = os.environ.get("TIKTOKEN_CACHE_DIR", "")
    began = time.perf_counter()
    with (out / "log").open("w") as log:
        process = psutil.Popen(command(name, corpus, out, others), env=environment, stdout=log, stderr=log)
        seen = []
        while process.poll() is None:
            seen.append(anonymous_memory(process))
            if limit and time.perf_counter() - began > limit:
                process.kill()
            time.sleep(0.2)
    seconds = time.perf_counter() - began
    if process.returncode and not limit:
        print((out / "log").read_text()[-2000:], file=sys.stderr)
        raise SystemExit(f"{name} failed")
    third = max(1, len(seen) // 3)
    return {"seconds": seconds, "peak": max(seen), "early": max(seen[:third]), "late": max(seen[-third:])}


def measure(corpus: Path, rounds: int, others: str, only: list[str], folder: Path) -> None:
    """Prints a row for each program and round."""
    megabytes = sum(len(json.loads(line)["text"].encode()) for line in corpus.open(encoding="utf-8")) / 1e6
    print(f"{megabytes:,.0f} MB of text, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
    print("| program | round | s | MB/s | peak MB | first third | last third |\n|---|---|---|---|---|---|---|")
    for number in range(rounds):
        for name in only:
            with tempfile.TemporaryDirectory(dir=folder) as out:
                found = run(name, corpus, Path(out), others)
            memory = " | ".join(f"{found[each] / 1e6:,.0f}" for each in ("peak", "early", "late"))
            print(
                f"| {name} | {number + 1} | {found['seconds']:.1f} | {megabytes / found['seconds']:.1f} | {memory} |",
                flush=True,
            )


def token_hashes(cache: Path) -> dict[str, str]:
    """The hash of every file of tokens."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(cache.rglob("*.bin"))}


def interrupt(corpus: Path, kills: int, folder: Path) -> None:
    """Kills a preparation several times, and compares the result with an uninterrupted one."""
    with tempfile.TemporaryDirectory(dir=folder) as whole, tempfile.TemporaryDirectory(dir=folder) as killed:
        took = run("minigpt", corpus, Path(whole), "")["seconds"]
        numbers, spent = random.Random(0), 0.0
        for _ in range(kills):
            spent += run("minigpt", corpus, Path(killed), "", limit=numbers.uniform(0.1, 0.9) * took / kills)["seconds"]
        spent += run("minigpt", corpus, Path(killed), "")["seconds"]
        same = token_hashes(Path(whole)) == token_hashes(Path(killed))
        print(f"uninterrupted {took:.1f} s; killed {kills} times {spent:.1f} s in all; the same tokens: {same}")


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="for what is written")
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make")
    making.add_argument("megabytes", type=int)
    making.add_argument("out", type=Path)
    making.add_argument("texts", type=Path, nargs="+")
    measuring = commands.add_parser("measure")
    measuring.add_argument("corpus", type=Path)
    measuring.add_argument("--rounds", type=int, default=2)
    measuring.add_argument("--others", default=sys.executable)
    measuring.add_argument("--only", nargs="+", default=["minigpt", "nanogpt", "litgpt", "datatrove"])
    interrupting = commands.add_parser("interrupt")
    interrupting.add_argument("corpus", type=Path)
    interrupting.add_argument("--kills", type=int, default=5)
    given = parser.parse_args()
    if given.command == "make":
        make(given.megabytes, given.out, given.texts)
    elif given.command == "measure":
        measure(given.corpus, given.rounds, given.others, given.only, given.folder)
    else:
        interrupt(given.corpus, given.kills, given.folder)


if __name__ == "__main__":
    main()
