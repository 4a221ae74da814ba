"""`minigpt corpus`: reports what a text contains, what is wrong with it, and which baselines a model should beat."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minigpt.cli.models import open_model, out_of_memory_as
from minigpt.cli.options import CheckpointsOption, DeviceOption, JsonOption, model_option, settings_options
from minigpt.cli.render.terminal import note, write
from minigpt.config import ReadingConfig
from minigpt.errors import ConfigError

if TYPE_CHECKING:
    from minigpt.corpus_report.report import Report

_LARGER = 4  # how many times larger the second BPE vocabulary is than the one that training would choose


@settings_options((ReadingConfig, ("text_key", "me", "encoding", "encoding_errors", "validation_fraction")))
def corpus(
    given: dict[str, Any],
    texts: Annotated[
        list[str], typer.Argument(help="text files, folders or globs, or - for standard input", metavar="TEXT")
    ],
    model: Annotated[
        str | None, model_option(help="also measure this model, which must not have seen the text")
    ] = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
    checkpoints: CheckpointsOption = Path("checkpoints"),
) -> None:
    """Check texts before training on them: encoding issues, duplicates, leakage, tokenizers, and baselines to beat.

    No file is changed. Results from a sample of a large text say so.

    Examples:

    - `minigpt corpus book.txt`
    - `minigpt corpus letters/ --model gpt2`
    - `minigpt corpus web.jsonl.gz --text-key content --json`
    """
    reading = ReadingConfig(**given)

    from minigpt.cli.render.console import console, progress_bar
    from minigpt.corpus_report.build_report import build_report
    from minigpt.corpus_report.drawing import report_parts
    from minigpt.data.sources import scan

    notes = console()
    other = None
    if model is not None:
        checkpoint = open_model(model, checkpoints, device)
        checkpoint.tokenizer.encode("a text")  # a model without a tokenizer is an error before the text is read
        other = (model, checkpoint.model, checkpoint.tokenizer)
    with progress_bar(notes, "scanning …", amounts=False) as report_progress:
        found = scan(texts, **given | {"encoding_errors": "replace"})
        for each in found.notes:
            note(each)
        with out_of_memory_as(ConfigError("out of memory; close other programs, or omit --model")):
            report = build_report(
                found,
                encoding_errors=reading.encoding_errors,
                validation_fraction=reading.validation_fraction,
                tokenizers=_tokenizers(found.text_bytes),
                model=other,
                progress=lambda stage, done, total: report_progress(done, total, f"{stage} …"),
            )
    if as_json:
        write(json.dumps(_record(report)))
        return
    out = console(stderr=False)
    for part in report_parts(report):
        out.print(part, soft_wrap=isinstance(part, str))


def _tokenizers(text_bytes: int) -> list[str]:
    """The tokenizers to compare: bytes, characters, the BPE that training would choose, a larger one, and GPT-2's."""
    from minigpt.tokenizer.bpe_training import default_tokenizer, requested_vocab_size

    size = requested_vocab_size(default_tokenizer(text_bytes)) or (512 if text_bytes < 2**20 else 16_384)
    return ["bytes", "chars", f"bpe:{size}", f"bpe:{_LARGER * size}", "gpt2"]


def _record(report: "Report") -> dict[str, Any]:
    from minigpt.corpus_report.drawing import verdict

    record: dict[str, Any] = asdict(report)
    record["overlap"]["share"] = report.overlap.share
    for entry, baseline in zip(record["baselines"], report.baselines, strict=True):
        entry |= {"meaning": baseline.meaning, "label": baseline.label, "is_partial": baseline.is_partial}
    record["findings"] = [asdict(finding) for finding in report.findings()]
    record["verdict"] = verdict(report)
    return record
