"""The benchmarks by name: where each one's data is found, on this machine or on the hub, and what runs it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from minigpt.errors import DataError
from minigpt.evaluation.benchmarks import cbt, hellaswag, lambada
from minigpt.evaluation.benchmarks import language_modeling as perplexities
from minigpt.evaluation.benchmarks.results import Data, Options, Result, Run
from minigpt.importers.hub import check_reachable, failure_reason, quiet_hub_logging, transport_errors
from minigpt.model.gpt import GPT
from minigpt.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class _HubFile:
    """A file of a data set on the hub; `member` is the one meant in a .zip."""

    repository: str
    file: str
    revision: str | None = None
    member: str | None = None


@dataclass(frozen=True)
class Benchmark:
    """How to run one. Its data is one file for each of `names`, which are patterns for a folder, the best first.

    `slides` says whether a stride means anything to it, `tokenized` whether its text can be de-tokenized.
    """

    run: Run
    hub: tuple[_HubFile, ...]
    names: tuple[tuple[str, ...], ...]
    slides: bool = False
    tokenized: bool = False


_WIKITEXT = (_HubFile("ggml-org/ci", "wikitext-2-raw-v1.zip", member="wikitext-2-raw/wiki.test.raw"),)
_WIKITEXT_NAMES = ("wiki.test.raw", "wiki.test.tokens", "*/wiki.test.raw", "*/wiki.test.tokens", "wikitext*test*")
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
    # WikiText-103 and WikiText-2 differ in what there is to train on; the text to test on is the same.
    "wikitext2": Benchmark(perplexities.run_wikitext2, _WIKITEXT, (_WIKITEXT_NAMES,), slides=True, tokenized=True),
    "wikitext103": Benchmark(perplexities.run_wikitext103, _WIKITEXT, (_WIKITEXT_NAMES,), slides=True, tokenized=True),
    "ptb": Benchmark(
        perplexities.run_ptb,
        (_HubFile("ptb-text-only/ptb_text_only", "penn_treebank/test/0000.parquet", "refs/convert/parquet"),),
        (("ptb.test.txt", "ptb*test*"),),
        slides=True,
        tokenized=True,
    ),
    "cbt": Benchmark(
        cbt.run,
        tuple(_HubFile("cam-cst/cbt", f"{kind}/validation-00000-of-00001.parquet") for kind in ("CN", "NE")),
        tuple(
            (f"cbtest_{kind}_valid_2000ex.txt*", f"*/cbtest_{kind}_valid*", f"{kind}/validation*", f"cbtest_{kind}_*")
            for kind in ("CN", "NE")
        ),
        tokenized=True,
    ),
}


def run_benchmark(
    name: str,
    model: GPT,
    tokenizer: Tokenizer,
    options: Options | None = None,
    *,
    data: str | Path | list[Data] | None = None,
) -> Result:
    """A model's result on the benchmark of that name, with the `data` that `find_data` takes or gives.

    Raises: DataError for data that cannot be had or is in another format; ConfigError where the context or the stride
    do not fit the model.
    """
    files = data if isinstance(data, list) else find_data(name, data)
    return BENCHMARKS[name].run(model, tokenizer, files, options or Options())


def find_data(name: str, path: str | Path | None = None) -> list[Data]:
    """The files of the benchmark of that name: the one given, its own in a folder, or by default the hub's.

    Raises: DataError where they cannot be had.
    """
    benchmark = BENCHMARKS[name]
    return _fetch(benchmark) if path is None else _find(name, benchmark, Path(path))


def _find(name: str, benchmark: Benchmark, path: Path) -> list[Data]:
    """The file itself, or the benchmark's own in a folder."""
    if path.is_file():
        return [Data(path, str(path), benchmark.hub[0].member)]
    if not path.is_dir():
        raise DataError(f"--data {path} is not there; give a file of {name}, or a folder that holds it")
    found = []
    for patterns in benchmark.names:
        matches = [match for pattern in patterns for match in sorted(path.glob(pattern)) if match.is_file()]
        if not matches:
            raise DataError(f"{path} holds no file of {name}: none is called {' or '.join(patterns)}")
        found.append(Data(matches[0], str(matches[0])))
    return found


def _fetch(benchmark: Benchmark) -> list[Data]:
    """The files in the hub's own cache, downloaded where they are not there."""
    found = []
    for wanted in benchmark.hub:
        try:
            path = _download(wanted)
        except transport_errors() as error:
            raise DataError(
                f"{wanted.file} of {wanted.repository} could not be downloaded ({failure_reason(error)}); offline, "
                f"give {' and '.join(patterns[0].strip('*') for patterns in benchmark.names)}, or the folder that "
                "holds it, with --data PATH"
            ) from error
        found.append(Data(path, f"{wanted.repository}/{wanted.file}", wanted.member))
    return found


def _download(wanted: _HubFile) -> Path:
    """The file in the hub's cache. Where it is not there and the hub cannot be reached, that is known at once.

    Raises: the errors of the network and of the hub's client.
    """
    from huggingface_hub import hf_hub_download  # slow to import, and of use here only

    repository, file, revision = wanted.repository, wanted.file, wanted.revision
    with quiet_hub_logging():
        check_reachable(repository, file, revision, repo_type="dataset")
        return Path(hf_hub_download(repository, file, repo_type="dataset", revision=revision))
