"""The benchmarks by name, each with the sources of its data and the function that runs it."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from minigpt.benchmarks import cbt, hellaswag, lambada, language_modeling
from minigpt.benchmarks.files import check_packages
from minigpt.benchmarks.results import BenchmarkFunction, BenchmarkOptions, BenchmarkResult, DataFile
from minigpt.errors import DataError
from minigpt.model.gpt import GPT
from minigpt.pretrained.hub import failure_reason, quiet_hub_logging, transport_errors
from minigpt.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class _HubFile:
    """A file of a data set on the Hugging Face hub; `member` is the file to read in a .zip."""

    repository: str
    file: str
    revision: str | None = None
    member: str | None = None


@dataclass(frozen=True)
class Benchmark:
    """How to run a benchmark.

    `hub` are its files on the hub; `patterns` find the same files in a folder, for each the best pattern first.
    `uses_stride` says whether a stride applies, `is_tokenized` whether its text can be de-tokenized.
    """

    run: BenchmarkFunction
    hub: tuple[_HubFile, ...]
    patterns: tuple[tuple[str, ...], ...]
    uses_stride: bool = False
    is_tokenized: bool = False


_WIKITEXT = (_HubFile("ggml-org/ci", "wikitext-2-raw-v1.zip", member="wikitext-2-raw/wiki.test.raw"),)
_WIKITEXT_PATTERNS = ("wiki.test.raw", "wiki.test.tokens", "*/wiki.test.raw", "*/wiki.test.tokens", "wikitext*test*")
BENCHMARKS: Mapping[str, Benchmark] = {
    "lambada": Benchmark(
        lambada.run,
        (_HubFile("EleutherAI/lambada_openai", "data/lambada_test_en.jsonl"),),
        (("lambada_test.jsonl*", "lambada_test_en.jsonl*", "lambada*test*"),),
    ),
    "hellaswag": Benchmark(
        hellaswag.run,
        (_HubFile("Rowan/hellaswag", "default/validation/0000.parquet", "refs/convert/parquet"),),
        (("hellaswag_val.jsonl*", "hellaswag*val*"),),
    ),
    # WikiText-103 and WikiText-2 have different training texts but the same test text.
    "wikitext2": Benchmark(
        language_modeling.run, _WIKITEXT, (_WIKITEXT_PATTERNS,), uses_stride=True, is_tokenized=True
    ),
    "wikitext103": Benchmark(
        language_modeling.run, _WIKITEXT, (_WIKITEXT_PATTERNS,), uses_stride=True, is_tokenized=True
    ),
    "ptb": Benchmark(
        language_modeling.run,
        (_HubFile("ptb-text-only/ptb_text_only", "penn_treebank/test/0000.parquet", "refs/convert/parquet"),),
        (("ptb.test.txt", "ptb*test*"),),
        uses_stride=True,
        is_tokenized=True,
    ),
    "cbt": Benchmark(
        cbt.run,
        tuple(_HubFile("cam-cst/cbt", f"{kind}/validation-00000-of-00001.parquet") for kind in ("CN", "NE")),
        tuple(
            (f"cbtest_{kind}_valid_2000ex.txt*", f"*/cbtest_{kind}_valid*", f"{kind}/validation*", f"cbtest_{kind}_*")
            for kind in ("CN", "NE")
        ),
        is_tokenized=True,
    ),
}


def run_benchmark(
    name: str,
    model: GPT,
    tokenizer: Tokenizer,
    options: BenchmarkOptions | None = None,
    *,
    data: str | Path | list[DataFile] | None = None,
) -> BenchmarkResult:
    """Runs the benchmark of that name; `data` is what `find_data` accepts or returns.

    Raises: DataError for data that cannot be found, is in another format or has no tokens; ConfigError if the context
    or the stride do not fit the model.
    """
    files = data if isinstance(data, list) else find_data(name, data)
    options = options or BenchmarkOptions()
    context = options.context or model.config.n_positions
    options = replace(options, context=context, stride=options.stride or max(1, context // 2))
    result = BENCHMARKS[name].run(name, model, tokenizer, files, options)
    if losses := tokenizer.losses():
        lost = f"the tokenizer ({tokenizer.name}) loses part of the text: {', '.join(losses)}"
        result = replace(result, caveats=(*result.caveats, lost))
    return result


def find_data(name: str, path: str | Path | None = None) -> list[DataFile]:
    """The data files of a benchmark: the given file, those in the given folder, or by default those on the hub.

    Raises: DataError if they cannot be found; MissingPackageError if they are .parquet and pyarrow is not installed.
    """
    benchmark = BENCHMARKS[name]
    found = _fetch(benchmark) if path is None else _find(name, benchmark, Path(path))
    check_packages(found)
    return found


def _find(name: str, benchmark: Benchmark, path: Path) -> list[DataFile]:
    """The given file, or the benchmark's files in the given folder."""
    if path.is_file():
        return [DataFile(path, str(path), benchmark.hub[0].member)]
    if not path.is_dir():
        raise DataError(f"--data {path} does not exist; pass a file of {name}, or a folder that contains it")
    found = []
    for patterns in benchmark.patterns:
        matches = [match for pattern in patterns for match in sorted(path.glob(pattern)) if match.is_file()]
        if not matches:
            raise DataError(f"{path} contains no file of {name}; expected one named {' or '.join(patterns)}")
        found.append(DataFile(matches[0], str(matches[0])))
    return found


def _fetch(benchmark: Benchmark) -> list[DataFile]:
    """The files in the hub's cache, downloaded if necessary."""
    found = []
    for wanted in benchmark.hub:
        try:
            path = _download(wanted)
        except transport_errors() as error:
            raise DataError(
                f"{wanted.file} of {wanted.repository} could not be downloaded ({failure_reason(error)}); offline, "
                f"pass {' and '.join(patterns[0].strip('*') for patterns in benchmark.patterns)}, or the folder that "
                "contains it, with --data PATH"
            ) from error
        found.append(DataFile(path, f"{wanted.repository}/{wanted.file}", wanted.member))
    return found


def _download(wanted: _HubFile) -> Path:
    """Downloads a file into the hub's cache unless it is there; fails at once if the hub cannot be reached.

    Raises: the errors of the network and of the hub's client.
    """
    from huggingface_hub import hf_hub_download  # slow to import, and used only here

    repository, file, revision = wanted.repository, wanted.file, wanted.revision
    with quiet_hub_logging():
        _check_reachable(repository, file, revision)
        return Path(hf_hub_download(repository, file, repo_type="dataset", revision=revision))


def _check_reachable(repository: str, name: str, revision: str | None) -> None:
    """Asks the hub for a file once, unless the cache has it, so that an unreachable hub is noticed at once.

    The hub's client would retry for half a minute.
    Raises: the network's errors, `transport_errors`.
    """
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError

    known = try_to_load_from_cache(repository, name, repo_type="dataset", revision=revision)
    if not constants.HF_HUB_OFFLINE and not isinstance(known, str):
        with contextlib.suppress(HfHubHTTPError):  # the hub answers; the download will report its error
            get_hf_file_metadata(hf_hub_url(repository, name, repo_type="dataset", revision=revision))
