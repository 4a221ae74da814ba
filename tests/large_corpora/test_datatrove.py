"""docs/launchers/datatrove_prepare.py: datatrove's tokens are those of minigpt, and a killed preparation continues."""

import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from builders import bytes_ending_in
from scripts import ROOT

from minigpt.data.corpus import Corpus
from minigpt.large_corpora.token_files import find_token_files
from minigpt.large_corpora.token_tokenizer import tokenizer_of
from minigpt.tokenizer.tokenizer import Tokenizer

SCRIPT = ROOT / "docs" / "launchers" / "datatrove_prepare.py"
NUMBERS = random.Random(0)
WORDS = [
    *("".join(NUMBERS.choices("abcdefghijklmnopqrstuvwxyz", k=NUMBERS.randint(3, 8))) for _ in range(2000)),
    *["the", "of", "and", "that", "with", "to"] * 80,
]
ODD = [
    "a <|endoftext|> b",
    "<|endoftext|>",
    " \n",
    "Ünïcödé 漢字 🦊\r\nline\n",
    "<|im_start|>\0",
    "\ufeffx<|endoftext|>",
]
with_datatrove = pytest.mark.skipif(find_spec("datatrove") is None, reason="datatrove is not installed")


def document(n_words: int = 120) -> str:
    return " ".join(NUMBERS.choices(WORDS, k=n_words))


def command(*arguments: object) -> list[str]:
    return [sys.executable, str(SCRIPT), *map(str, arguments)]


def prepare(*arguments: object) -> str:
    """Runs the script; returns the last line that it prints."""
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()[-1]


def refusal(*arguments: object) -> str:
    """Runs the script, which must fail; returns what it writes to stderr."""
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr


def write_jsonl(path: Path, texts: Iterable[str]) -> None:
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    if path.suffix == ".zst":
        zstandard = pytest.importorskip("zstandard")
        lines = zstandard.compress(lines)
    path.write_bytes(lines)


def write_parquet(path: Path, texts: Sequence[str]) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    write_table(pyarrow.table({"url": ["x"] * len(texts), "text": texts}), path)


def write_warc(path: Path, texts: Iterable[str]) -> None:
    """Pages of HTML as a crawler stores them."""
    records = []
    for number, text in enumerate(texts):
        page = f"<html><body><nav>Menu</nav><article><p>{text}</p></article></body></html>"
        answer = f"HTTP/1.0 200 OK\r\nContent-Type: text/html\r\n\r\n{page}".encode()
        head = (
            f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Record-ID: <urn:uuid:{number}>\r\n"
            f"WARC-Target-URI: https://example.com/{number}\r\nWARC-Date: 2026-01-01T00:00:00Z\r\n"
            f"Content-Type: application/http; msgtype=response\r\nContent-Length: {len(answer)}\r\n\r\n"
        )
        records.append(gzip.compress(head.encode() + answer + b"\r\n\r\n"))
    path.write_bytes(b"".join(records))


def opened(folder: Path) -> Corpus:
    """The corpus of the files of tokens in a folder, with nothing held out."""
    from minigpt.large_corpora.corpora import of_tokens

    files = find_token_files([str(folder / "*.ds")])
    tokenizer, characters = tokenizer_of(files, None)
    return of_tokens([files], (), tokenizer, characters, cache=folder / "cache", validation_fraction=0.0)


def texts_in(folder: Path) -> list[str]:
    corpus = opened(folder)
    return [text.decode() for text in corpus.tokenizer.document_bytes(corpus.train[:]) if text]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.ds*")}


@with_datatrove
@pytest.mark.parametrize("kind", ["parquet", "jsonl.zst"])
def test_the_tokens_are_those_of_minigpt(tmp_path: Path, kind: str) -> None:
    source, tokenizer = tmp_path / "web", "gpt2"
    source.mkdir()
    texts = [[document() for _ in range(20)] + ODD for _ in range(3)]
    if kind == "parquet":
        Tokenizer.train(texts[0], "bpe:400").save(tmp_path / "tokenizer")
        tokenizer = str(tmp_path / "tokenizer")
    for number, each in enumerate(texts):
        (write_parquet if kind == "parquet" else write_jsonl)(source / f"{number}.{kind}", each)
    line = prepare(source, tmp_path / "tokens", "--tokenizer", tokenizer, "--workers", 2)
    corpus = opened(tmp_path / "tokens")
    given = Tokenizer.named("gpt2") if tokenizer == "gpt2" else Tokenizer.load(tokenizer)
    own = Corpus.build(sorted(source.iterdir()), given, cache=tmp_path / "cache", validation_fraction=0.0)
    assert np.array_equal(corpus.train[:], own.train)
    assert corpus.n_documents == own.n_documents
    assert corpus.tokenizer.fingerprint == own.tokenizer.fingerprint
    assert line == f"{len(own.train):,} tokens in 3 files; train on them: minigpt train {tmp_path / 'tokens'}/*.ds"
    ends = [np.fromfile(path, "<u8") for path in sorted((tmp_path / "tokens").glob("*.ds.index"))]
    assert sum(map(len, ends)) == own.n_documents


@with_datatrove
def test_web_pages_become_their_text(tmp_path: Path) -> None:
    (tmp_path / "web").mkdir()
    texts = [f"{document(60).capitalize()}." for _ in range(5)]
    write_warc(tmp_path / "web" / "crawl.warc.gz", texts)
    prepare(tmp_path / "web", tmp_path / "tokens")
    assert [text.strip() for text in texts_in(tmp_path / "tokens")] == texts


@with_datatrove
def test_one_of_several_similar_documents_is_kept_and_bad_ones_are_dropped(tmp_path: Path) -> None:
    (tmp_path / "web").mkdir()
    texts = [document(200) for _ in range(20)]
    similar = texts[3].replace(texts[3].split()[50], "changed", 1)
    files = [texts[:10], [*texts[10:], similar, texts[4], "spam " * 300], ["short"]]
    for number, each in enumerate(files):
        write_jsonl(tmp_path / "web" / f"{number}.jsonl", each)
    line = prepare(tmp_path / "web", tmp_path / "tokens", "--near-duplicates", "--quality-filters")
    assert "tokens in 2 files" in line
    kept = texts_in(tmp_path / "tokens")
    assert len(kept) == len(texts)
    assert ({*texts} - {*kept}, {*kept} - {*texts}) in (({texts[3]}, {similar}), (set(), set()))
    assert kept.count(texts[4]) == 1


@with_datatrove
@pytest.mark.skipif(os.name == "nt", reason="Windows has no groups of processes to kill")
@pytest.mark.parametrize("stage", ["documents", "tokens"])
def test_a_killed_preparation_continues_with_the_tasks_that_are_not_complete(tmp_path: Path, stage: str) -> None:
    (tmp_path / "web").mkdir()
    texts = [document() for _ in range(200)]
    for number in range(4):
        write_jsonl(tmp_path / "web" / f"{number}.jsonl", NUMBERS.choices(texts, k=2000))
    options = ["--near-duplicates", "--workers", 1] if stage == "documents" else ["--workers", 1]
    prepare(tmp_path / "web", tmp_path / "whole", *options)
    process = subprocess.Popen(
        command(tmp_path / "web", tmp_path / "killed", *options), stderr=subprocess.DEVNULL, start_new_session=True
    )
    complete = tmp_path / "killed" / "logs" / stage / "completions"
    while not (complete / "00000").exists():
        assert process.poll() is None
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    first = (complete / "00000").stat().st_mtime_ns
    assert len(list(complete.iterdir())) < 4
    prepare(tmp_path / "web", tmp_path / "killed", *options)
    assert (complete / "00000").stat().st_mtime_ns == first
    whole, killed = contents(tmp_path / "whole"), contents(tmp_path / "killed")
    for files, name in ((whole, "whole"), (killed, "killed")):  # a file's metadata has the path of its tokenizer
        files |= {key: value.replace(f"/{name}/".encode(), b"//") for key, value in files.items() if "meta" in key}
    assert whole == killed


@with_datatrove
def test_what_cannot_be_prepared_is_refused_in_a_sentence(tmp_path: Path) -> None:
    web = tmp_path / "web"
    assert refusal(web, tmp_path / "x") == (
        f"minigpt: {web} is not a folder; give one with .parquet, .jsonl, .warc or .wet files\n"
    )
    web.mkdir()
    (web / "README.md").touch()
    assert "web has no files of a known format; give a folder" in refusal(web, tmp_path / "x")
    write_jsonl(web / "a.jsonl", ["one two"])
    (web / "b.parquet").touch()
    assert "web has files of several formats (parquet, jsonl); give" in refusal(web, tmp_path / "x")
    (web / "b.parquet").unlink()
    assert "no document is left" in refusal(web, tmp_path / "y", "--text-key", "content").splitlines()[-1]
    assert "was begun with other settings (text_key); give another folder" in refusal(web, tmp_path / "y")
    write_jsonl(web / "b.jsonl", ["three"])
    assert "other settings (tasks, files)" in refusal(web, tmp_path / "y", "--text-key", "content")
    assert refusal(web, web / "tokens") == f"minigpt: {web / 'tokens'} must not be in {web}, whose files are read\n"
    bytes_ending_in("</s>").save(tmp_path / "other")
    assert "special tokens (</s>), and datatrove would" in refusal(
        web, tmp_path / "z", "--tokenizer", tmp_path / "other"
    )
    if shutil.which("sbatch") is None:
        assert "there is no sbatch" in refusal(web, tmp_path / "z", "--executor", "slurm", "--partition", "normal")


def test_the_missing_package_is_named_with_the_command_that_installs_it(tmp_path: Path) -> None:
    program = (
        f"import runpy, sys; sys.modules['datatrove'] = None; runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", program, "web", "tokens"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "minigpt: datatrove_prepare.py needs datatrove, which is not installed; run: "
        'pip install "minigpt-lm[datatrove]"\n'
    )
