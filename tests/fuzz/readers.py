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
import random
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minigpt.storage.tensors import TensorSource

ROOT = Path(__file__).parents[2]
SHARED = ROOT / "tests" / "shared"
FINDINGS = Path(__file__).parent / "findings"
_HANG = 600  # seconds by the clock after which libFuzzer ends an input that Python cannot interrupt
LARGEST = 1 << 16  # bytes of an input of the fuzzer
MEGABYTE = 1 << 20


@dataclasses.dataclass(frozen=True)
class Target:
    """A reader: `files` are damaged in turn; `read` opens one of them, or what they are parts of.

    Those with `markup` are also damaged by moving and repeating their tags and words.
    """

    files: tuple[Path, ...]
    read: Callable[[Path], object]
    markup: bool = False

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
        "tags": b"<p>" * (MEGABYTE // 3),
        "attributes": b"<p " + b" ".join(b"a%d=1" % number for number in range(110_000)) + b">",
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
    from minigpt.pretrained.open_model import load_model

    load_model(path, "cpu")


def _read_all(tensors: "TensorSource") -> None:
    for name in tensors.shapes:
        tensors.read(name, reuse_buffer=True)
    tensors.close()


def safetensors(folder: Path) -> Target:
    from minigpt.pretrained.huggingface import open_sharded
    from minigpt.storage.tensors import TensorFile, load_tensors

    model = _model(folder)
    weights, index = model / "model.safetensors", model / "model.safetensors.index.json"
    small = weights.rename(model / "model-00001-of-00001.safetensors")
    names = load_tensors(small)[0]
    index.write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(names, small.name)}))

    def read(_: Path) -> None:
        with TensorFile(small) as file:
            _read_all(file)
        _read_all(open_sharded(index, TensorFile))

    return Target((small, index), read)


def pickled(folder: Path) -> Target:
    import torch

    from minigpt.importers.plain_pickle import read_plain_pickle
    from minigpt.importers.torch_file import open_torch, torch_tensors
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
            _read_all(torch_tensors(path, content))

    return Target((new, old, meta), read)


def gguf(folder: Path) -> Target:
    from minigpt.exporters.gguf import write_gguf
    from minigpt.pretrained.open_model import load_model

    model, path = load_model(_model(folder), "cpu").checkpoint, folder / "model.gguf"
    with path.open("wb") as file:
        write_gguf(file, model.model, model.tokenizer)
    return Target((path,), _load)


def tensorflow(folder: Path) -> Target:
    from tensorflow_checkpoints import openai_tensors, save_checkpoint, write_hparams, write_vocabulary

    from minigpt.importers import tensor_bundle
    from minigpt.pretrained.open_model import load_model

    model = load_model(_model(folder), "cpu").checkpoint
    bundle = folder / "tensorflow"
    bundle.mkdir()
    save_checkpoint(bundle, openai_tensors(model.model))
    write_hparams(bundle, model.model.config)
    write_vocabulary(bundle, model.tokenizer)
    # A wrong checksum would hide everything after it from the fuzzer.
    vars(tensor_bundle).update(has_checksum=lambda *_: True)
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
            "measured": [
                {
                    "name": "gzip",
                    "bits_per_byte": 2.5,
                    "train_bytes": 5,
                    "validation_bytes": 5,
                    "whole_train_bytes": 5,
                    "whole_validation_bytes": 5,
                }
            ],
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


def _document(path: Path) -> str:
    from minigpt.documents.read import read_document

    return read_document(path, path.name)


def _packed(path: Path, parts: dict[str, str]) -> Target:
    """A document that is a zip file; its parts are damaged before they are packed, and so is the file."""
    folder = path.parent / "parts"
    for name, text in parts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")

    def pack(to: Path) -> None:
        with zipfile.ZipFile(to, "w") as file:
            for name in parts:
                file.writestr(zipfile.ZipInfo(name), (folder / name).read_bytes())

    def read(damaged: Path) -> None:
        if damaged == path:
            _document(path)
        else:
            pack(folder / path.name)
            _document(folder / path.name)

    pack(path)
    return Target((*(folder / name for name in parts), path), read, markup=True)


_PAGE = """<?xml version="1.0" encoding="utf-8"?><html><head><title>No</title></head><body hidden><h1 class="a">A</h1>
<p>One <b>two</b><br/>&amp;&nbsp;3 <ruby>希<rp>(</rp><rt>の</rt><rb>美</rb></ruby><![CDATA[<4]]><!-- no --></p><pre> 5
</pre><ul><li>6</li></ul><table><tr><td>7</td><td style="display: none">no</td></tr></table><script>no</script>
<math><msup><mi>c</mi><mn>2</mn></msup><mfrac><mn>1</mn><mrow><mi>a</mi></mrow></mfrac></math><textarea>8</textarea>"""


def page(folder: Path) -> Target:
    paths = folder / "a.html", folder / "a.xhtml"
    for path in paths:
        path.write_text(_PAGE, encoding="utf-8")
    return Target(paths, _document, markup=True)


def epub(folder: Path) -> Target:
    items = "".join(f'<item id="{name}" href="{name}.xhtml" properties="x"/>' for name in "ab")
    spine = '<itemref idref="a"/><itemref idref="b"/>'
    parts = {
        "META-INF/container.xml": '<container><rootfiles><rootfile full-path="b/b.opf"/></rootfiles></container>',
        "META-INF/encryption.xml": '<encryption><CipherReference URI="a.otf"/></encryption>',
        "b/b.opf": f"<package><manifest>{items}</manifest><spine>{spine}</spine></package>",
        "b/a.xhtml": _PAGE,
        "b/b.xhtml": '<meta charset="gbk"><p>b',
    }
    return _packed(folder / "a.epub", parts)


def word(folder: Path) -> Target:
    space = "http://schemas.openxmlformats.org/"
    names = f'xmlns:w="{space}wordprocessingml/2006/main" xmlns:m="{space}officeDocument/2006/math"'
    names += f' xmlns:mc="{space}markup-compatibility/2006"'
    relation = f'<Relationship Type="{space}officeDocument/2006/relationships'
    run = "<w:r><w:rPr><w:vanish/><w:rStyle w:val='a'/></w:rPr><w:t>a</w:t><w:tab/><w:br/><w:sym w:char='F0E0'/></w:r>"
    marks = [f'<w:fldChar w:fldCharType="{kind}"/>' for kind in ("begin", "separate", "end")]
    body = f"""<w:p><w:pPr><w:pStyle w:val="a"/><w:framePr w:dropCap="drop"/></w:pPr>{run}<w:del>{run}</w:del>
    <w:r><w:ruby><w:rt>{run}</w:rt><w:rubyBase>{run}</w:rubyBase></w:ruby>{marks[0]}{marks[1]}<w:t>b</w:t>{marks[2]}
    <w:footnoteReference w:id="1"/><mc:AlternateContent><mc:Choice/><mc:Fallback><w:txbxContent><w:p>{run}</w:p>
    </w:txbxContent></mc:Fallback></mc:AlternateContent></w:r><m:oMath><m:d><m:e><m:r><m:t>c</m:t></m:r></m:e></m:d>
    <m:f><m:num/><m:den><m:r><m:t>d</m:t></m:r></m:den></m:f><m:nary><m:sub/><m:e/></m:nary></m:oMath></w:p>
    <w:tbl><w:tr><w:tc><w:p>{run}</w:p></w:tc></w:tr></w:tbl><w:sdt><w:sdtContent><w:p>{run}</w:p></w:sdtContent></w:sdt>"""
    styles = '<w:style w:type="paragraph" w:styleId="a"><w:basedOn w:val="b"/><w:rPr><w:vanish/></w:rPr></w:style>'
    parts = {
        "_rels/.rels": f'<Relationships>{relation}/officeDocument" Target="w/d.xml"/></Relationships>',
        "w/_rels/d.xml.rels": "<Relationships>"
        + "".join(f'{relation}/{part}" Target="{part}"/>' for part in ("styles", "footnotes"))
        + "</Relationships>",
        "w/d.xml": f"<w:document {names}><w:body>{body}</w:body></w:document>",
        "w/styles": f"<w:styles {names}>{styles}</w:styles>",
        "w/footnotes": f'<w:footnotes {names}><w:footnote w:id="1"><w:p>{run}</w:p></w:footnote></w:footnotes>',
    }
    return _packed(folder / "a.docx", parts)


def subtitles(folder: Path) -> Target:
    first, second = folder / "a.srt", folder / "a.vtt"
    first.write_text("1\n00:00:01,000 --> 00:00:02,000\n<i>A</i>\n- {\\an8}b\n\n2\n0:00:03,0 -> 0:00:04,0\nc\n\n")
    second.write_text(
        "WEBVTT\n\nNOTE a\n\nb\n00:01.000 --> 00:02.000\n<v A>b<rt>c</rt>&amp;<00:00:01.000><c> d\n\n00:03 --> 00:04"
    )
    return Target((first, second), _document, markup=True)


def pdf(folder: Path) -> Target:
    path = folder / "a.pdf"
    stream = b"BT /F1 12 Tf 72 700 Td (A) Tj [(b) 20 (c)] TJ ET /X Do"
    objects = (
        b"<</Type /Catalog /Pages 2 0 R>>",
        b"<</Type /Pages /Kids [ 3 0 R ] /Count 1 >>",
        b"<</Type /Page /Parent 2 0 R /Resources <</Font <</F1 5 0 R >> /XObject <</X 6 0 R >> >> /Contents 4 0 R >>",
        b"<</Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
        b"<</Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        b"<</Type /XObject /Subtype /Form /BBox [ 0 0 9 9 ] /Length 12 >>\nstream\nBT (d) Tj ET\nendstream",
    )
    body = b"".join(b"%d 0 obj\n%s\nendobj\n" % (number, each) for number, each in enumerate(objects, 1))
    path.write_bytes(b"%PDF-1.4\n" + body + b"trailer\n<</Size 7 /Root 1 0 R >>\nstartxref\n0\n%%EOF\n")
    return Target((path,), _document, markup=True)


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
        subtitles,
    )
}
TARGETS |= {
    each.__name__: each
    for each, package in (
        (zst, "backports"),
        (parquet, "pyarrow"),
        (page, "lxml"),
        (epub, "lxml"),
        (word, "lxml"),
        (pdf, "pypdf"),
    )
    if importlib.util.find_spec(package) is not None
}


def fuzz(name: str, folder: Path, arguments: list[str]) -> None:
    """Runs libFuzzer on one target in this process, which libFuzzer ends."""
    import atheris
    from damage import rearrange
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

    def mutated(content: bytes, longest: int, seed: int) -> bytes:
        draw = random.Random(seed)
        if draw.random() < 0.5:
            return bytes(atheris.Mutate(content, longest))
        return content[:1] + rearrange(content[1:], draw, longest - 1)

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    limits = [f"-timeout={_HANG}", f"-rss_limit_mb={used + MEGABYTES}", f"-malloc_limit_mb={MEGABYTES}"]
    options = [*limits, f"-max_len={LARGEST}", f"-artifact_prefix={FINDINGS}/{name}-", "-print_final_stats=1"]
    options.append("-len_control=100")  # short inputs first, also with our mutator: 2,000 pages a second instead of 30
    mutator = {"custom_mutator": mutated} if target.markup else {}
    atheris.Setup([sys.argv[0], *options, *arguments, str(seeds)], one, **mutator)
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
