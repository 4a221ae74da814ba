"""Tokenizes texts with datatrove, on this machine, a Slurm cluster or a Ray cluster.

    python datatrove_prepare.py web/ tokens/ && minigpt train tokens/*.ds

INPUT is a folder with .parquet, .jsonl, .warc or .wet files, also compressed, here or where fsspec reads it, such as
hf://datasets/HuggingFaceFW/fineweb/sample/10BT. OUTPUT is a folder that all nodes see. The same command continues after
an error or a kill: it runs the tasks that are not complete.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from minigpt import Tokenizer
from minigpt.cores import available_cores
from minigpt.errors import ConfigError, DataError, MinigptError, TokenizerError, first_line_of
from minigpt.large_corpora.token_files import open_token_file
from minigpt.optional_packages import optional_import
from minigpt.tokenizer.vocabulary import END_OF_TEXT

try:
    with optional_import("datatrove_prepare.py", "datatrove"):
        import dill
        from datatrove.data import Document
        from datatrove.executor import LocalPipelineExecutor, RayPipelineExecutor, SlurmPipelineExecutor
        from datatrove.io import get_datafolder
        from datatrove.pipeline.dedup import (
            MinhashDedupBuckets,
            MinhashDedupCluster,
            MinhashDedupFilter,
            MinhashDedupSignature,
        )
        from datatrove.pipeline.extractors import Trafilatura
        from datatrove.pipeline.filters import GopherQualityFilter, GopherRepetitionFilter
        from datatrove.pipeline.readers import JsonlReader, ParquetReader, WarcReader
        from datatrove.pipeline.tokens import DocumentTokenizer
        from datatrove.pipeline.writers import JsonlWriter
        from datatrove.utils.word_tokenizers import WordTokenizer
except MinigptError as missing:
    sys.exit(f"minigpt: {missing}")

dill.settings["recurse"] = True  # so that the nodes get the functions of this file with the names that they use
FORMATS = {
    "parquet": r"\.parquet$",
    "jsonl": r"\.(jsonl|jsonl?\.(gz|zst|bz2|xz))$",  # .json alone may be the description of a dataset
    "warc": r"\.warc(\.gz)?$",
    "wet": r"\.wet(\.gz)?$",
}
BUCKETS = 14  # tasks that compare signatures: FineWeb's settings, which are datatrove's defaults
EXTRACTION_SECONDS = 10  # for the text of one web page


class Words(WordTokenizer):  # type: ignore[misc]
    """The words and punctuation marks of a text; each Chinese or Japanese character is a word.

    datatrove's own splitters need packages for each language. Languages without spaces, such as Thai, need those.
    """

    def word_tokenize(self, text: str) -> list[str]:
        return re.findall(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+|[^\w\s]", text)

    def sent_tokenize(self, text: str) -> list[str]:
        return re.findall(r"[^.!?\n]+[.!?]*", text)

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        return [match.span() for match in re.finditer(r"[^.!?\n]+[.!?]*", text)]


def split_documents(data: Any, rank: int, world_size: int) -> Iterator[Any]:  # noqa: ARG001
    """Ends a document at each `<|endoftext|>` in its text and skips white space, as `minigpt train` does."""
    for document in data:
        parts = [part for part in document.text.split(END_OF_TEXT) if part.strip()]
        for number, part in enumerate(parts):
            yield Document(part, document.id if len(parts) == 1 else f"{document.id}/{number}", [], document.metadata)


def read_arguments() -> Namespace:
    parser = ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("input", help="folder with .parquet, .jsonl, .warc or .wet files")
    parser.add_argument("output", help="folder for the tokens")
    parser.add_argument("--tokenizer", default="gpt2", help="gpt2, or a folder with a tokenizer.json, such as a run's")
    parser.add_argument("--text-key", default="text", help="field or column of the text [text]")
    parser.add_argument("--quality-filters", action="store_true", help="drop what Gopher's rules for English drop")
    parser.add_argument(
        "--near-duplicates", action="store_true", help="keep one of several similar documents (MinHash)"
    )
    parser.add_argument("--executor", choices=["local", "slurm", "ray"], default="local")
    parser.add_argument("--tasks", type=int, help="parts, each of whole files [the number of files]")
    parser.add_argument("--workers", type=int, help="tasks at once [this machine's cores; all on a cluster]")
    parser.add_argument("--partition", help="of Slurm")
    parser.add_argument("--time", default="24:00:00", help="limit of a task, with Slurm [24:00:00]")
    parser.add_argument("--memory", type=int, default=2, help="GB for each task, on a cluster [2]")
    arguments = parser.parse_args()
    for name in ("tasks", "workers", "memory"):
        if (number := getattr(arguments, name)) is not None and number < 1:
            parser.error(f"--{name} ({number}) must be at least 1")
    if arguments.executor == "slurm" and not arguments.partition:
        parser.error("--executor slurm needs --partition")
    return arguments


def find_files(source: str) -> tuple[str, list[str]]:
    """The format of the files in a folder, and their paths in it."""
    if "://" not in source and not Path(source).is_dir():
        raise DataError(f"{source} is not a folder; give one with .parquet, .jsonl, .warc or .wet files")
    names = get_datafolder(source).list_files()
    found = {kind: [name for name in names if re.search(suffix, name)] for kind, suffix in FORMATS.items()}
    found = {kind: paths for kind, paths in found.items() if paths}
    if len(found) != 1:
        problem = f"files of several formats ({', '.join(found)})" if found else "no files of a known format"
        raise DataError(
            f"{source} has {problem}; give a folder with .parquet, .jsonl, .warc or .wet files, of one kind"
        )
    return next(iter(found.items()))


def find_tokenizer(name: str) -> Tokenizer:
    """The tokenizer of this name or in this folder.

    Raises: TokenizerError for one with which datatrove would give other ids than `minigpt train`.
    """
    tokenizer = Tokenizer.named(name) if name in ("gpt2", "bytes") else Tokenizer.load(name)
    tokenizer.byte_level("datatrove_prepare.py")
    if others := sorted({*tokenizer.special} - {END_OF_TEXT}):
        raise TokenizerError(
            f"the tokenizer of {name} has special tokens ({', '.join(others)}), and datatrove would read their names "
            "in texts as these; give one that has only <|endoftext|>"
        )
    return tokenizer


def begin(folder: Path, tokenizer: Tokenizer, settings: dict[str, Any]) -> None:
    """Writes what a preparation is made of to its folder: the tokenizer, the names of the files, and the settings.

    Raises: ConfigError if it was begun with other settings or files, of which complete tasks would be kept.
    """
    path = folder / "settings.json"
    if path.exists():
        known = json.loads(path.read_text(encoding="utf-8"))
        if changed := [name for name, value in settings.items() if known.get(name) != value]:
            raise ConfigError(
                f"{folder} was begun with other settings ({', '.join(changed)}); give another folder, or delete it"
            )
        return
    tokenizer.save(folder)  # datatrove and `minigpt train` read it there
    (folder / "files.txt").write_text("".join(f"{name}\n" for name in settings["files"]), encoding="utf-8")
    (folder / "settings.tmp").write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
    (folder / "settings.tmp").replace(path)


def check_queue(jobs: Path) -> None:
    """Raises ConfigError without Slurm, or if its jobs recorded in this file have not ended: others disturb them."""
    if shutil.which("sbatch") is None:
        raise ConfigError("--executor slurm needs Slurm's commands, and there is no sbatch on this machine")
    known = jobs.read_text().split() if jobs.exists() else []
    queued = subprocess.run(["squeue", "--me", "-h", "-o", "%A %F"], check=False, capture_output=True, text=True)
    if left := sorted({*known} & {*queued.stdout.split()}):
        raise ConfigError(
            f"the jobs {' '.join(left)} of {jobs.parent} have not ended; wait, or: scancel {' '.join(left)}"
        )


def stages(arguments: Namespace, kind: str, tasks: int) -> Iterator[tuple[str, list[Any], int]]:
    """The name, steps and number of tasks of each stage; a stage begins when the one before it has ended."""
    output, words = arguments.output, Words()
    source, listed = arguments.input, {"paths_file": str(output / "files.txt"), "text_key": arguments.text_key}
    match kind:
        case "parquet":
            steps: list[Any] = [ParquetReader(source, read_metadata=False, **listed)]
        case "jsonl":
            steps = [JsonlReader(source, **listed)]
        case _:
            steps = [WarcReader(source, paths_file=listed["paths_file"])]
    if kind == "warc":
        steps.append(Trafilatura(timeout=EXTRACTION_SECONDS))
    steps.append(split_documents)
    if arguments.quality_filters:
        steps += [GopherRepetitionFilter(language=words), GopherQualityFilter(language=words)]
    if arguments.near_duplicates:
        work = output / "near-duplicates"
        documents, signatures, pairs, removed = (
            str(work / name) for name in ("documents", "signatures", "pairs", "removed")
        )
        again = JsonlReader(documents, glob_pattern="*.jsonl.zst")
        yield "documents", [*steps, JsonlWriter(documents, "${rank}.jsonl.zst", "zstd")], tasks
        yield "signatures", [again, MinhashDedupSignature(signatures, language=words)], tasks
        yield "pairs", [MinhashDedupBuckets(signatures, pairs)], BUCKETS
        yield "clusters", [MinhashDedupCluster(pairs, removed)], 1
        steps = [again, MinhashDedupFilter(removed)]
    tokenizer = str(output / "tokenizer.json")
    # Not shuffled: training draws its sequences from all files in random order.
    tokens = DocumentTokenizer(str(output), tokenizer, eos_token=END_OF_TEXT, shuffle_documents=False)
    yield "tokens", [*steps, tokens], tasks


def run(arguments: Namespace, kind: str, tasks: int) -> None:
    """Runs the stages, or submits them to Slurm.

    Raises: DataError for tasks that failed.
    """
    workers, previous, jobs = arguments.workers or -1, None, arguments.output / "jobs.txt"
    if arguments.executor == "slurm":
        check_queue(jobs)
    for name, steps, n in stages(arguments, kind, tasks):
        logs = arguments.output / "logs" / name
        common = {"tasks": n, "logging_dir": str(logs)}
        match arguments.executor:
            case "local":
                executor = LocalPipelineExecutor(
                    steps, workers=min(n, arguments.workers or available_cores()), **common
                )
            case "ray":
                executor = RayPipelineExecutor(steps, workers=workers, mem_per_cpu_gb=arguments.memory, **common)
            case "slurm":
                executor = previous = SlurmPipelineExecutor(
                    steps,
                    time=arguments.time,
                    partition=arguments.partition,
                    mem_per_cpu_gb=arguments.memory,
                    workers=workers,
                    qos="",
                    job_name=f"minigpt-{name}",
                    env_command=f'export PATH="{Path(sys.executable).parent}:$PATH"',
                    sbatch_args={"kill-on-invalid-dep": "yes"},
                    depends=previous,
                    **common,
                )
        problem = ""
        try:
            executor.run()
        except Exception as error:  # of any step
            problem = f" ({first_line_of(error)})"
        if arguments.executor == "slurm" and not problem:
            with jobs.open("a") as file:
                file.write(f"{executor.job_id}\n")
        elif left := executor.get_incomplete_ranks():
            raise DataError(
                f"{len(left)} of {n} tasks of the stage {name} failed{problem}; {logs}/logs has why; the same command "
                "runs these again"
            )


def main() -> None:
    arguments = read_arguments()
    if "://" in arguments.output:
        raise ConfigError(f"{arguments.output} must be a folder that all nodes see")
    arguments.output = Path(arguments.output).resolve()
    if "://" not in arguments.input:
        arguments.input = str(Path(arguments.input).resolve())
        if Path(arguments.input) in (arguments.output, *arguments.output.parents):
            raise ConfigError(f"{arguments.output} must not be in {arguments.input}, whose files are read")
    kind, files = find_files(arguments.input)
    tasks = min(arguments.tasks or len(files), len(files))
    tokenizer = find_tokenizer(arguments.tokenizer)
    names = ("input", "text_key", "quality_filters", "near_duplicates")
    settings = {name: getattr(arguments, name) for name in names}
    begin(arguments.output, tokenizer, {**settings, "tokenizer": tokenizer.fingerprint, "tasks": tasks, "files": files})
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # each task has one core
    run(arguments, kind, tasks)
    if arguments.executor == "slurm":
        print(f"submitted; when the jobs have ended: minigpt train {arguments.output}/*.ds")
        return
    written = [path for path in sorted(arguments.output.glob("*.ds")) if path.stat().st_size]
    if not written:
        raise DataError(f"no document is left of {arguments.input}; its texts must be under {arguments.text_key!r}")
    total = sum(len(open_token_file(path).ids) for path in written)
    print(f"{total:,} tokens in {len(written)} files; train on them: minigpt train {arguments.output}/*.ds")


if __name__ == "__main__":
    try:
        main()
    except MinigptError as error:
        sys.exit(f"minigpt: {error}")
    except KeyboardInterrupt:
        sys.exit("minigpt: stopped; the same command continues")
