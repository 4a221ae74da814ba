"""Small files that ask for much: each is answered within 2 s and 200 MB above the start, in one line."""

import gzip
import json
import os
import pickle
import re
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import TINY, new_model, new_run
from measured import is_over

from minigpt.exporters.gguf import write_gguf
from minigpt.storage.checkpoint import save_checkpoint
from minigpt.storage.tensors import load_tensors, save_tensors
from minigpt.tokenizer.tokenizer import Tokenizer

LARGEST = 1 << 20

# One process opens every folder in turn, each in a child.
OPENER = """
import sys
from pathlib import Path
from measured import print_measured
from minigpt.data.sources import scan
from minigpt.pretrained.open_model import describe_model, load_model
from minigpt.importers import gguf
from minigpt.storage.run import Run

def open_folder(path):
    if path.name.startswith("corpus"):
        return scan(path).n_documents
    if path.name.startswith("run"):
        return list(Run.open(path).read_log())
    describe_model(path)
    return load_model(path, "cpu")

load_model(Path(sys.argv[1]), "cpu")
for name in sys.argv[2:]:
    print_measured(lambda: open_folder(Path(name)))
"""

Write = Callable[[Path], Path]
CASES: dict[str, tuple[Write, str]] = {}


def case(answer: str) -> Callable[[Write], Write]:
    """Adds a function that writes a file or a folder, and the answer to opening it."""

    def add(write: Write) -> Write:
        CASES[write.__name__] = (write, answer)
        return write

    return add


def model(folder: Path, **fields: Any) -> Path:
    return save_checkpoint(folder / "model", new_model(**fields), Tokenizer.named("bytes"))


def edit(path: Path, **changes: Any) -> Path:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return path.parent


def pickled(folder: Path, content: bytes) -> Path:
    """A model's folder whose weights are a zip of torch.save with this pickle."""
    path = model(folder)
    (path / "model.safetensors").unlink()
    with zipfile.ZipFile(path / "pytorch_model.bin", "w") as archive:
        archive.writestr("archive/data.pkl", content)
    return path


@case(r"n_layer \(1000000000\) must be at most 10000")
def a_billion_blocks(folder: Path) -> Path:
    return edit(model(folder) / "config.json", n_layer=10**9)


@case(r"n_layer \(1000000000\) must be at most 10000")
def a_billion_blocks_with_unscaled_attention(folder: Path) -> Path:
    return edit(model(folder) / "config.json", n_layer=10**9, scale_attn_weights=False)


@case("holds .* values, but a model of 10,000 blocks")
def many_blocks_with_unscaled_attention(folder: Path) -> Path:
    return edit(model(folder) / "config.json", n_layer=10_000, scale_attn_weights=False)


@case("too few for a model of 120,000 positions, whose causal mask takes 14,400,000,000 bytes")
def many_positions(folder: Path) -> Path:
    path = model(folder, n_positions=4, n_embd=1, n_head=1)
    tensors, metadata = load_tensors(path / "model.safetensors")
    tensors["transformer.wpe.weight"] = torch.zeros(120_000, 1)
    save_tensors(path / "model.safetensors", tensors, metadata)
    return edit(path / "config.json", n_positions=120_000)


@case("holds 250,001 values, but a model of 1 blocks, 250,000 features")
def one_wide_character(folder: Path) -> Path:
    arguments = {"n_layer": 1, "n_head": 1, "n_embd": 250_000, "block_size": 1, "vocab_size": 1, "bias": False}
    torch.save({"model": {"wte.weight": torch.zeros(1, 250_000), "x": torch.zeros(1)}, "model_args": arguments},
               folder / "ckpt.pt")  # fmt: skip
    (folder / "meta.pkl").write_bytes(pickle.dumps({"itos": {0: "a"}}))
    return folder / "ckpt.pt"


@case("would run builtins.bytearray when opened")
def a_bytearray_of_two_gigabytes(folder: Path) -> Path:
    return pickled(folder, b"\x80\x02cbuiltins\nbytearray\nJ\x00\x94\x35\x77\x85R.")


@case("a key of a dictionary is not a plain value")
def a_tuple_of_sixty_levels_as_a_key(folder: Path) -> Path:
    return pickled(folder, b"\x80\x02})" + b"q\x00h\x00\x86" * 60 + b"K\x01s.")


@case("a key of a dictionary is not a plain value")
def integers_with_one_hash(folder: Path) -> Path:
    keys = b"".join(
        b"\x8a" + bytes([16]) + (number * (2**61 - 1)).to_bytes(16, "little") + b"K\x00" for number in range(50_000)
    )
    return pickled(folder, b"\x80\x02}(" + keys + b"u.")


@case("has more than 262,144 opcodes")
def a_pickle_of_a_million_opcodes(folder: Path) -> Path:
    return pickled(folder, b"\x80\x02" + b"N" * 300_000 + b".")


@case("would run posix.system when opened")
def a_pickle_in_text(folder: Path) -> Path:
    path = model(folder)
    (path / "model.safetensors").unlink()
    (path / "pytorch_model.bin").write_bytes(b"cposix\nsystem\n(S'true'\ntR.")
    return path


@case("n_layer must be a number, not a tuple")
def a_number_of_layers_that_is_shared_tuples(folder: Path) -> Path:
    nested: tuple[Any, ...] = ()
    for _ in range(40):
        nested = (nested, nested)
    arguments = {"n_layer": nested, "n_head": 1, "n_embd": 1, "block_size": 1, "vocab_size": 1}
    with zipfile.ZipFile(folder / "ckpt.pt", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"model": {}, "model_args": arguments}))
    return folder / "ckpt.pt"


@case("is truncated, damaged or not a file of weights .it describes a tensor of a type in another such tensor")
def types_within_types(folder: Path) -> Path:
    start = b"\x80\x02ctorch._tensor\n_rebuild_from_type_v2\nq\x00"
    return pickled(folder, start + b"h\x00N" * 3000 + b")" + b"\x87" * 3000 + b"R.")


@case("it calls a function with 130,000 arguments; the maximum is 16")
def arguments_that_a_function_copies(folder: Path) -> Path:
    shared = b"(" + b"N" * 130_000 + b"tq\x00cbuiltins\ncomplex\nq\x01"
    return pickled(folder, b"\x80\x02" + shared + b"h\x01h\x00R" * 43_000 + b".")


@case("its dictionaries have more than 262,144 items")
def items_of_many_dictionaries(folder: Path) -> Path:
    shared = b"NN\x86q\x02](" + b"h\x02" * 100_000 + b"eq\x00ccollections\nOrderedDict\nq\x01"
    return pickled(folder, b"\x80\x02" + shared + b"h\x01h\x00\x85R" * 40_000 + b".")


@case("a function is named by something else than texts")
def a_function_named_by_nested_tuples(folder: Path) -> Path:
    return pickled(folder, b"\x80\x04)" + b"q\x00h\x00\x86" * 40 + b"\x8c\x01x\x93.")


def with_added_tokens(folder: Path, names: list[str]) -> Path:
    path = model(folder)
    content = json.loads((path / "tokenizer.json").read_text())
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    content["added_tokens"] += [{"id": 257 + number, "content": name, **plain} for number, name in enumerate(names)]
    (path / "tokenizer.json").write_text(json.dumps(content))
    return path


@case("they do not belong together")  # many names that overlap, which the library reads
def periodic_added_tokens(folder: Path) -> Path:
    names = ["ab" * length + "c" * count for length in range(1, 48) for count in range(1, 20)]
    return with_added_tokens(folder, names)


@case("added tokens have .* characters; the maximum is 131,072")
def many_long_added_tokens(folder: Path) -> Path:
    return with_added_tokens(folder, [f"<{number:04}" + "ab" * 120 + ">" for number in range(2500)])


@case("the id of .* must be an integer from 0 to")
def token_ids_with_one_hash(folder: Path) -> Path:
    path = model(folder)
    content = json.loads((path / "tokenizer.json").read_text())
    content["model"]["vocab"] |= {f"x{number}": number * (2**61 - 1) for number in range(1, 20_000)}
    (path / "tokenizer.json").write_text(json.dumps(content))
    return path


@case("config.json is not JSON .it is nested more than 64 levels deep")
def deep_json(folder: Path) -> Path:
    path = model(folder)
    (path / "config.json").write_text("[" * 500_000)
    return path


@case("config.json is not JSON .it has [0-9,]+ values; the maximum is 1,048,576")
def many_values(folder: Path) -> Path:
    path = model(folder)
    (path / "config.json").write_text('{"a": [' + "[]," * 1_100_000 + "0]}")
    return path


PIPE = "it is a pipe or a device, not a regular file"


def with_pipe(path: Path, name: str) -> Path:
    """The model's folder, in which this file is a pipe without a writer."""
    (path / name).unlink()
    os.mkfifo(path / name)
    return path


@case(PIPE)
def a_config_that_is_a_pipe(folder: Path) -> Path:
    return with_pipe(model(folder), "config.json")


@case(PIPE)
def weights_that_are_a_pipe(folder: Path) -> Path:
    return with_pipe(model(folder), "model.safetensors")


@case(f"tokenizer.json cannot be read .{PIPE}")
def a_tokenizer_that_is_a_pipe(folder: Path) -> Path:
    return with_pipe(model(folder), "tokenizer.json")


@case(PIPE)
def a_config_without_end(folder: Path) -> Path:
    path = model(folder)
    (path / "config.json").unlink()
    (path / "config.json").symlink_to("/dev/zero")
    return path


@case("it claims 8,000,000 strings")
def a_gguf_of_eight_million_strings(folder: Path) -> Path:
    name = b"tokenizer.ggml.tokens"
    start = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", len(name)) + name
    path = folder / "model.gguf"
    path.write_bytes(start + struct.pack("<IIQ", 9, 8, 8_000_000) + bytes(LARGEST))
    return path


@case("read")
def a_gguf_that_is_whole(folder: Path) -> Path:
    path = folder / "whole.gguf"
    with path.open("wb") as file:
        write_gguf(file, new_model(), Tokenizer.named("bytes"))
    return path


@case("line 1 is not JSON .it is nested more than 64 levels deep.")
def a_deep_line_of_a_corpus(folder: Path) -> Path:
    path = folder / "corpus.jsonl"
    path.write_text('{"text": "a", "b": ' + "[" * 100_000 + "]" * 100_000 + "}\n")
    return path


@case("line 1 is not JSON .it has .* values|line 1 has more than 67,108,864 bytes")
def a_compressed_line_of_lists(folder: Path) -> Path:
    path = folder / "corpus.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "a", "b": [' + b"[]," * 10_000_000 + b"0]}\n"))
    return path


@case("has more than 33,554,432 characters of white space")
def a_compressed_file_of_spaces(folder: Path) -> Path:
    path = folder / "corpus.txt.gz"
    path.write_bytes(gzip.compress(b" " * (40 << 20)))
    return path


@case("log.jsonl, line 1 is not JSON .it is nested more than 64 levels deep")
def a_deep_line_of_a_log(folder: Path) -> Path:
    run = new_run(folder / "run")
    run.log_path.write_text("[" * 100_000 + "]" * 100_000 + "\n")
    return run.directory


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from Linux's /proc")
def test_a_small_file_is_answered_within_its_budget(tmp_path: Path) -> None:
    paths = []
    for name, (write, _) in CASES.items():
        folder = tmp_path / name
        folder.mkdir()
        paths.append(str(write(folder)))
    small = save_checkpoint(tmp_path / "small", new_model(**TINY), Tokenizer.named("bytes"))
    done = subprocess.run(
        [sys.executable, "-c", OPENER, str(small), *paths], capture_output=True, text=True, timeout=300,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    answers = dict(zip(CASES, done.stdout.splitlines(), strict=True))
    assert {name: line for name, line in answers.items() if is_over(line)} == {}
    wrong = {name: line for name, line in answers.items() if not re.search(CASES[name][1], line)}
    assert wrong == {}
