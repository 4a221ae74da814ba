"""The cost of importing a model: seconds compared with reading the file, peak memory compared with the weights.

    python benchmarks/importing.py [--shape gpt2-xl] [--folder /tmp]

Writes seeded random weights of the shape as a safetensors file and in the two formats of torch.save, and deletes them
at the end. Every figure comes from a separate process and excludes importing torch and minigpt. The files are in the
page cache. On a busy machine processor seconds say more than wall-clock seconds. Peak memory is Linux's VmHWM.
"""

import argparse
import json
import math
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import measuring

FORMS = ("model.safetensors", "pytorch_model.bin", "old/pytorch_model.bin")


def write(folder: Path, shape: str) -> dict[str, float]:
    """Writes the model as safetensors, and a tiny model in every format; returns the size of the weights in bytes."""
    import torch

    from minigpt.config import preset_config
    from minigpt.storage.checkpoint import CONFIG
    from minigpt.storage.files import atomic_write, json_bytes
    from minigpt.storage.huggingface import PREFIX, config_to_huggingface, stored_tensors
    from minigpt.storage.tensors import save_tensors

    config = preset_config(shape)
    torch.manual_seed(0)
    scratch = torch.empty(max(math.prod(stored.shape) for stored in stored_tensors(config))).normal_(std=0.02)
    # All tensors are views of one: the file is complete, but memory holds only the largest tensor.
    tensors = {
        PREFIX + stored.stored_name: scratch[: math.prod(stored.shape)].view(stored.shape)
        for stored in stored_tensors(config)
    }
    values = config_to_huggingface(config, end_of_text=config.vocab_size - 1, dtype=torch.float32)
    atomic_write(folder / CONFIG, json_bytes(values))
    save_tensors(folder / "model.safetensors", tensors)
    atomic_write(folder / "old" / CONFIG, json_bytes(values))
    write_tiny(folder / "tiny")
    return {"bytes": sum(tensor.nbytes for tensor in tensors.values())}


def write_pickled(folder: Path, name: str) -> None:
    """Writes the same weights with torch.save, which needs them all in memory."""
    import torch

    from minigpt.storage.tensors import load_tensors

    tensors, _ = load_tensors(folder / "model.safetensors")
    torch.save(tensors, folder / name, _use_new_zipfile_serialization=not name.startswith("old"))


def measure_one(path: Path, warm: Path, way: str) -> dict[str, float]:
    """Runs one measurement: seconds, and the rise of peak memory in bytes."""
    import torch

    from minigpt.pretrained.open_model import load_model

    load_model(warm, "cpu")  # triggers late imports
    before, began, worked = peak(), time.perf_counter(), time.process_time()
    if way == "read":
        buffer = torch.empty(path.stat().st_size, dtype=torch.uint8)
        with path.open("rb") as file:
            file.readinto(buffer.numpy().data)
    else:
        load_model(path, "cpu", mapped=way == "map")
    figures = {"seconds": time.perf_counter() - began, "processor": time.process_time() - worked}
    return figures | {"bytes": peak() - before}


def peak() -> float:
    """The peak memory of this process so far, in bytes."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024.0 * int(status.partition("VmHWM:")[2].split()[0])


def work(job: dict[str, str]) -> dict[str, float]:
    """Runs one job in this process."""
    folder = Path(job["folder"])
    if job["task"] == "write":
        return write(folder, job["shape"])
    if job["task"] == "pickle":
        write_pickled(folder, job["form"])
        return {}
    return measure_one(folder / job["form"], folder / "tiny" / job["form"], job["task"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--shape", default="gpt2", help="a preset, gpt2 to gpt2-xl [gpt2]")
    parser.add_argument("--folder", type=Path, help="where to write the files [the system's temporary folder]")
    parser.add_argument("--repeats", type=int, default=5, help="number of processes per figure [5]")
    parser.add_argument("--forms", nargs="*", default=list(FORMS), choices=FORMS, help="the files to import [all]")
    measuring.add_options(parser)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(work(json.loads(options.worker))))
        return
    machine = measuring.machine(options.threads)
    folder = Path(tempfile.mkdtemp(prefix="minigpt-importing-", dir=options.folder))
    try:
        rows, results = measure(folder, options)
    finally:
        shutil.rmtree(folder)
    measuring.write_results(options.json, machine, results)
    print(measuring.describe(machine), end="\n\n")
    print(
        measuring.table(("file", "method", "processor, s", "× reading", "wall clock, s", "peak memory / weights"), rows)
    )


def measure(folder: Path, options: argparse.Namespace) -> tuple[list[list[str]], list[dict[str, Any]]]:
    """Returns the rows of the table and all measurements."""

    def run(task: str, form: str = "") -> dict[str, Any]:
        job = {"task": task, "folder": str(folder), "form": form, "shape": options.shape}
        return job | measuring.run_job(__file__, job, options.threads)

    measuring.print_progress(f"writing {options.shape} in {folder} …")
    size = run("write")["bytes"]
    rows: list[list[str]] = []
    results: list[dict[str, Any]] = []
    for form in options.forms:
        ways = ["read", "import"]
        if form == "model.safetensors":
            ways.append("map")
        else:
            run("pickle", form)
        # In turn, so that other load on the machine affects all of them.
        done = [run(way, form) for _ in range(options.repeats) for way in ways]
        results += done
        reading = statistics.median(each["processor"] for each in done if each["task"] == "read")
        for way in ways:
            taken = [each for each in done if each["task"] == way]
            processor = [each["processor"] for each in taken]
            seconds, most = [each["seconds"] for each in taken], max(each["bytes"] for each in taken)
            ratio = f"{statistics.median(processor) / reading:.2f}"
            row = [form, way, measuring.spread(processor, ".2f"), ratio, measuring.spread(seconds, ".2f")]
            rows.append([*row, f"{most / size:.2f}"])
            measuring.print_progress(" · ".join(rows[-1]))
        if form != "model.safetensors":
            (folder / form).unlink()
    return rows, results


def write_tiny(folder: Path) -> None:
    """Writes a tiny model in every format."""
    from minigpt.config import GPTConfig
    from minigpt.model.gpt import GPT
    from minigpt.storage.checkpoint import save_checkpoint
    from minigpt.tokenizer.tokenizer import Tokenizer

    model = GPT(GPTConfig(n_embd=4, n_layer=1, n_head=1, n_positions=4))
    save_checkpoint(folder, model, Tokenizer.named("gpt2"))
    (folder / "old").mkdir()
    for name in FORMS[1:]:
        write_pickled(folder, name)
    shutil.copy(folder / "config.json", folder / "old")


if __name__ == "__main__":
    main()
