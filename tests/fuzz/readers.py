"""Fuzzes every reader of files, guided by coverage: `python tests/fuzz/readers.py [--seconds 60] [NAME...]`.

It needs atheris: `pip install -e '.[test,fuzz]'`.
Each input replaces one file of a small real model or run, which is then opened as a user would. It must be read, or
refused with a MinigptError of one line. Anything else is a finding: another exception, more than 2 s, or more than
200 MB above the start. Findings are written to `tests/fuzz/findings/`.
"""

import argparse
import contextlib
import dataclasses
import functools
import importlib.util
import itertools
import json
import os
import pickle
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minigpt.storage.huggingface import TensorSource

ROOT = Path(__file__).parents[2]
SHARED = ROOT / "tests" / "shared"
FINDINGS = Path(__file__).parent / "findings"
_HANG = 600  # seconds by the clock after which libFuzzer ends an input that Python cannot interrupt
LARGEST = 1 << 16  # bytes of an input of the fuzzer
MEGABYTE = 1 << 20


@dataclasses.dataclass(frozen=True)
class Target:
    """A reader: `files` are damaged in turn; `read` opens one of them, or the folder that they are in."""

    files: tuple[Path, ...]
    read: Callable[[Path], object]

    def seeds(self) -> list[bytes]:
        """The whole files, each after the number that chooses it."""
        return [bytes([index]) + path.read_bytes() for index, path in enumerate(self.files)]


class SlowError(Exception):
    """An input took too long."""


def run_input(target: Target, whole: dict[Path, bytes], content: bytes) -> str:
    """Opens the folder with one damaged file; returns `read` or `refused`."""
    from minigpt.errors import MinigptError

    path = target.files[content[0] % len(target.files)] if content else target.files[0]
    path.write_bytes(content[1:])
    try:
        target.read(path)
    except MinigptError as error:
        assert "\n" not in str(error), f"an error of several lines: {error}"
        return "refused"
    finally:
        path.write_bytes(whole[path])
    return "read"


def large_inputs(file: bytes) -> dict[str, bytes]:
    """Inputs of a megabyte for a reader, by the name of what is wrong with them."""
    many = b",".join(b'"%d":%d' % (number, number) for number in range(60_000))
    end = file.rstrip().removesuffix(b"}")
    return {
        "zeros": bytes(MEGABYTE),
        "ones": b"\xff" * MEGABYTE,
        "digits": b"9" * MEGABYTE,
        "brackets": b"[" * MEGABYTE,
        "lists": b"[" + b"[]," * (MEGABYTE // 3 - 1) + b"0]",
        "keys": b"{" + many + b"}",
        "a number more": end + b',"x":' + b"9" * MEGABYTE + b"}",
        "lists more": end + b',"x":[' + b"[]," * (MEGABYTE // 3) + b"0]}",
        "keys more": end + b"," + many + b"}",
        "a line": file.rstrip() + b" " * MEGABYTE,
        "repeated": file * (MEGABYTE // max(1, len(file))),
        "longer": file + bytes(MEGABYTE - len(file)),
    }


def measure_large(names: list[str], folder: Path, every: int) -> None:
    """Opens every file of every target with inputs of a megabyte, or every n-th of them; prints what each took."""
    from measured import print_measured

    numbers = itertools.count()
    for name in names:
        (folder / name).mkdir()
        target = TARGETS[name](folder / name)
        whole = contents(target)
        for index, path in enumerate(target.files):
            target.read(path)
            for kind, content in large_inputs(whole[path]).items():
                if next(numbers) % every:
                    continue
                print(f"{name}, {path.name}, {kind}: ", end="")
                print_measured(functools.partial(run_input, target, whole, bytes([index]) + content))
                path.write_bytes(whole[path])  # the child may have been killed


def contents(target: Target) -> dict[Path, bytes]:
    """The content of each of the files that are damaged."""
    return {path: path.read_bytes() for path in target.files}


# The readers. Each function writes a small model or run into a folder.


def _model(folder: Path) -> Path:
    from builders import new_model

    from minigpt.storage.checkpoint import save_checkpoint
    from minigpt.tokenizer.tokenizer import Tokenizer

    model = new_model(n_positions=8, n_embd=4, n_layer=1, n_head=1)
    return save_checkpoint(folder / "model", model, Tokenizer.named("bytes"))


def _load(path: Path) -> None:
    from minigpt.importers.open_model import load_model

    load_model(path, "cpu")


def _read_all(tensors: "TensorSource") -> None:
    for name in tensors.shapes:
        tensors.read(name, reuse_buffer=True)
    tensors.close()


def safetensors(folder: Path) -> Target:
    from minigpt.importers.sharded import ShardedTensors
    from minigpt.storage.tensors import TensorFile, load_tensors

    model = _model(folder)
    weights, index = model / "model.safetensors", model / "model.safetensors.index.json"
    small = weights.rename(model / "model-00001-of-00001.safetensors")
    names = load_tensors(small)[0]
    index.write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(names, small.name)}))

    def read(_: Path) -> None:
        with TensorFile(small) as file:
            _read_all(file)
        _read_all(ShardedTensors(index, TensorFile))

    return Target((small, index), read)


def pickled(folder: Path) -> Target:
    import torch

    from minigpt.importers.plain_pickle import read_plain_pickle
    from minigpt.importers.torch_file import TorchTensors, open_torch
    from minigpt.storage.tensors import load_tensors

    model = _model(folder)
    tensors, _ = load_tensors(model / "model.safetensors")
    new, old, meta = folder / "new.bin", folder / "old.bin", folder / "meta.pkl"
    torch.save(tensors, new)
    torch.save(tensors, old, _use_new_zipfile_serialization=False)
    meta.write_bytes(pickle.dumps({"itos": {0: "a", 1: "b"}, "stoi": {"a": 0, "b": 1}, "vocab_size": 2}))

    def read(path: Path) -> None:
        if path == meta:
            read_plain_pickle(meta.read_bytes(), meta)
        elif isinstance(content := open_torch(path), dict):
            _read_all(TorchTensors(path, content))

    return Target((new, old, meta), read)


def gguf(folder: Path) -> Target:
    from minigpt.exporters.gguf import write_gguf
    from minigpt.importers.open_model import load_model

    model, path = load_model(_model(folder), "cpu").checkpoint, folder / "model.gguf"
    with path.open("wb") as file:
        write_gguf(file, model.model, model.tokenizer)
    return Target((path,), _load)


def tensorflow(folder: Path) -> Target:
    from tensorflow_checkpoints import openai_tensors, save_checkpoint, write_hparams, write_vocabulary

    from minigpt.importers import tensor_bundle
    from minigpt.importers.open_model import load_model

    model = load_model(_model(folder), "cpu").checkpoint
    bundle = folder / "tensorflow"
    bundle.mkdir()
    save_checkpoint(bundle, openai_tensors(model.model))
    write_hparams(bundle, model.model.config)
    write_vocabulary(bundle, model.tokenizer)
    # A wrong checksum would hide everything after it from the fuzzer.
    vars(tensor_bundle).update(crc32c=lambda _: 0, unmask=lambda _: 0)
    names = ("model.ckpt.index", "hparams.json", "checkpoint")

    def read(path: Path) -> None:
        if path.suffix != ".index":
            _load(bundle)
            return
        found = tensor_bundle.TensorBundle(path.with_suffix(""))
        try:
            found.check(found.entries)
            for name in found.entries:
                found.read(name, reuse_buffer=True)
        finally:
            found.close()

    return Target(tuple(bundle / name for name in names), read)


def tokenizer(folder: Path) -> Target:
    from minigpt.tokenizer.tokenizer import Tokenizer

    tokenizer = Tokenizer.train(["the theme of the thesis, the the"], "bpe:262")
    new, old = folder / "new", folder / "old"
    tokenizer.save(new)
    tokenizer.save(old)
    (old / "tokenizer.json").unlink()
    (new / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "<|endoftext|>"}}))
    (new / "added_tokens.json").write_text(json.dumps({"<b>": 263}))

    def read(path: Path) -> None:
        found = Tokenizer.load(path.parent)
        assert found.decode(found.encode("the <b> ß")) == "the <b> ß"

    names = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
    return Target((*(new / name for name in names), old / "merges.txt", old / "vocab.json"), read)


def other_tokenizers(folder: Path) -> Target:
    from minigpt.tokenizer.tokenizer import Tokenizer

    for name in ("wordpiece", "sentencepiece", "prefixed"):
        (folder / name).mkdir()
    (folder / "wordpiece" / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n##me\nt\n##h\n##e\n")
    (folder / "sentencepiece" / "spiece.model").write_bytes(_sentencepiece_model())
    pair = folder / "prefixed"
    Tokenizer.train(["the theme of the thesis, the the"], "bpe:262").save(pair)
    (pair / "tokenizer.json").unlink()
    (pair / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": True, "eos_token": "<|endoftext|>"}))

    def read(path: Path) -> None:
        found = Tokenizer.load(path.parent)
        assert isinstance(found.decode(found.encode("the theme ß")), str)

    files = ("wordpiece/vocab.txt", "sentencepiece/spiece.model", "prefixed/vocab.json", "prefixed/merges.txt")
    return Target(tuple(folder / file for file in files), read)


def _sentencepiece_model() -> bytes:
    """A Unigram model in the form of SentencePiece's file: a protocol-buffers message with one field 1 per piece."""
    unknown, control, ordinary = 2, 3, 1
    pieces = [("<unk>", 0.0, unknown), ("<s>", 0.0, control), ("</s>", 0.0, control)]
    pieces += [
        (text, -float(number), ordinary) for number, text in enumerate(("\u2581the", "me", "\u2581", *"theisof"))
    ]
    content = b""
    for text, score, kind in pieces:
        name = text.encode()
        piece = b"\x0a" + bytes([len(name)]) + name + b"\x15" + struct.pack("<f", score) + b"\x18" + bytes([kind])
        content += b"\x0a" + bytes([len(piece)]) + piece
    return content


def config(folder: Path) -> Target:
    model = _model(folder)
    return Target((model / "config.json",), lambda _: _load(model))


def _run(folder: Path) -> Path:
    from builders import new_run

    entries = {
        "sources": ["/tmp/a.txt"],
        "corpus": {"fingerprint": "00", "train_bytes": 5, "train_tokens": 5},
        "baselines": {
            "fingerprint": "00",
            "measured": [{"name": "gzip", "bits_per_byte": 2.5, "train_bytes": 5, "validation_bytes": 5}],
        },
        "changes": [{"step": 1, "option": "seed", "from": 1, "to": 2}],
        "result": {"step": 2, "reason": "length", "validation_loss": 2.0, "bits_per_byte": 3.0},
    }
    run = new_run(folder / "run", record=entries)
    run.log({"step": 1, "loss": 2.5, "learning_rate": 0.1, "seconds": 1.5})
    run.log({"step": 1, "validation_loss": 2.5, "bits_per_byte": 3.5, "passage": [1, 2], "surprise": [0.5]})
    run.log({"step": 1, "prompt": "a", "sample": "b", "copied_spans": [[0, 1]]})
    return run.directory


def record(folder: Path) -> Target:
    from minigpt.storage.run import Run

    directory = _run(folder)
    return Target((directory / "training.json",), lambda _: Run.open(directory).record.to_dict())


def log(folder: Path) -> Target:
    from minigpt.storage.run import Run

    run = Run.open(_run(folder))
    return Target((run.log_path,), lambda _: list(run.read_log()))


def corpus(folder: Path) -> Target:
    from minigpt.data.sources import scan

    path = folder / "corpus.jsonl"
    path.write_text('{"text": "one"}\n{"text": "two\\ud83d\\ude00", "more": [1, {"a": null}]}\n')
    return Target((path,), lambda _: list(scan(path).pieces()))


def zst(folder: Path) -> Target:
    from minigpt.data.sources import scan
    from minigpt.data.zstd import _module

    path = folder / "corpus.jsonl.zst"
    path.write_bytes(_module("it").compress(b'{"text": "one two three"}\n' * 20))
    return Target((path,), lambda _: list(scan(path).pieces()))


def parquet(folder: Path) -> Target:
    import pyarrow
    from pyarrow.parquet import write_table

    from minigpt.data.sources import scan

    path = folder / "corpus.parquet"
    write_table(pyarrow.table({"text": ["one two three", "four"] * 20, "id": list(range(40))}), path)
    return Target((path,), lambda _: list(scan(path).pieces()))


def cache(folder: Path) -> Target:
    from minigpt.data.corpus import Corpus

    text = folder / "text.txt"
    text.write_text("one two three four five\n" * 20)
    built = Corpus.build(text, "bytes", cache=folder / "cache")
    files = tuple(sorted(path for path in built.path.iterdir() if path.is_file()))

    def read(_: Path) -> None:
        found = Corpus.load(built.path)
        found.train.sum() + found.validation.sum()

    return Target(files, read)


def shards(folder: Path) -> Target:
    from minigpt.data.sharded.store import Store
    from minigpt.data.source_files import SourceFile
    from minigpt.tokenizer.tokenizer import Tokenizer

    text = folder / "text.txt"
    text.write_text("one two three four five\n" * 20)
    made = Store.create(folder / "cache", [SourceFile(text, text.name)], "text", Tokenizer.named("bytes"))
    return Target((made.folder / "store.jsonl",), lambda path: Store(path.parent))


TARGETS: dict[str, Callable[[Path], Target]] = {
    each.__name__: each
    for each in (
        safetensors,
        pickled,
        gguf,
        tensorflow,
        tokenizer,
        other_tokenizers,
        config,
        record,
        log,
        corpus,
        cache,
        shards,
    )
}
TARGETS |= {
    each.__name__: each
    for each, package in ((zst, "backports"), (parquet, "pyarrow"))
    if importlib.util.find_spec(package) is not None
}


def fuzz(name: str, folder: Path, arguments: list[str]) -> None:
    """Runs libFuzzer on one target in this process, which libFuzzer ends."""
    import atheris
    from measured import MEGABYTES, SECONDS

    with atheris.instrument_imports(include=["minigpt"]):
        target = TARGETS[name](folder)
        for path in target.files:
            target.read(path)
    whole = contents(target)
    seeds = folder / "seeds"
    seeds.mkdir()
    for index, seed in enumerate(target.seeds()):
        (seeds / str(index)).write_bytes(seed[:LARGEST])
    signal.signal(signal.SIGPROF, _too_slow)

    def one(content: bytes) -> None:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            run_input(target, whole, content)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    limits = [f"-timeout={_HANG}", f"-rss_limit_mb={used + MEGABYTES}", f"-malloc_limit_mb={MEGABYTES}"]
    options = [*limits, f"-max_len={LARGEST}", f"-artifact_prefix={FINDINGS}/{name}-", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *options, *arguments, str(seeds)], one)
    atheris.Fuzz()


def _too_slow(*_: object) -> None:
    raise SlowError("an input takes too long")


def main(names: list[str], seconds: int) -> int:
    """Fuzzes each target in a separate process; prints a row for each, and returns how many have findings."""
    FINDINGS.mkdir(exist_ok=True)
    failed = 0
    print("| reader | inputs | seconds | findings |\n|---|---|---|---|")
    for name in names:
        with tempfile.TemporaryDirectory(prefix="minigpt-fuzz-", dir=_memory_folder()) as folder:
            command = [sys.executable, __file__, "--one", folder, "--seconds", str(seconds), name]
            done = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace", env=_environment())
        count = re.search(r"number_of_executed_units: (\d+)", done.stderr)
        failed += done.returncode != 0
        print(f"| {name} | {int(count[1]) if count else 0:,} | {seconds} | {int(done.returncode != 0)} |", flush=True)
        if done.returncode:
            print(done.stderr[-3000:], file=sys.stderr)
    return failed


def _memory_folder() -> str | None:
    """The folder for the damaged files: in memory, where the system has one."""
    folder = Path("/dev/shm")
    return str(folder) if folder.is_dir() else None


def _environment() -> dict[str, str]:
    paths = os.pathsep.join([str(ROOT), str(SHARED)])
    return os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}


@contextlib.contextmanager
def ready(name: str, folder: Path) -> Iterator[tuple[Target, dict[Path, bytes]]]:
    """A target and its whole files, for a test that needs no atheris."""
    from minigpt.importers import tensor_bundle

    before = dict(vars(tensor_bundle))
    target = TARGETS[name](folder)
    try:
        yield target, contents(target)
    finally:
        vars(tensor_bundle).update(before)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"readers to fuzz, by default all: {', '.join(TARGETS)}"
    )
    parser.add_argument("--seconds", type=int, default=60, help="time for each reader")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--large", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--every", type=int, default=1, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.large:
        measure_large(given.names or list(TARGETS), given.large, given.every)
    elif given.one:
        fuzz(given.names[0], given.one, [f"-max_total_time={given.seconds}"])
    else:
        sys.exit(main(given.names or list(TARGETS), given.seconds))
