"""HellaSwag: which of four endings continues a text, by the likelihood of each ending after the text.

Source: Zellers et al. 2019; the prepared form of lm-evaluation-harness, and the raw form of build-nanogpt and llm.c.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minigpt.benchmarks.files import read_lines, read_records
from minigpt.benchmarks.loglikelihood import (
    ContinuationScore,
    Pair,
    argmax,
    encode_apart,
    encode_pair,
    score_continuations,
)
from minigpt.benchmarks.results import BenchmarkOptions, BenchmarkResult, DataFile, Metric, benchmark_result
from minigpt.errors import DataError
from minigpt.model.gpt import GPT
from minigpt.tokenizer.tokenizer import Tokenizer

_PUBLISHED = 10_042  # questions of the validation part
_EXPECTED = '{"activity_label": "…", "ctx_a": "…", "ctx_b": "…", "ctx": "…", "endings": [four texts], "label": 0 to 3}'
_EXPECTED_TEXT = "six lines per question: the text, the number of the correct ending (0 to 3), and four endings"


@dataclass(frozen=True)
class HellaSwagExample:
    """A text, its possible endings, and the number of the correct one."""

    context: str
    endings: tuple[str, ...]
    label: int


def _cleaned(text: str) -> str:
    """lm-eval's preprocessing: remains of WikiHow's markup become a full stop or are removed."""
    return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")


def _prepared_form(record: dict[str, Any]) -> HellaSwagExample:
    context = f"{record['activity_label']}: {record['ctx_a']} {record['ctx_b'].capitalize()}"
    return HellaSwagExample(_cleaned(context), tuple(map(_cleaned, record["endings"])), int(record["label"]))


def _raw_form(record: dict[str, Any]) -> HellaSwagExample:
    return HellaSwagExample(record["ctx"], tuple(record["endings"]), int(record["label"]))


def read_questions(data: DataFile) -> tuple[list[HellaSwagExample], list[HellaSwagExample]]:
    """The questions of a file in lm-eval's prepared form and in the raw form; llama.cpp's .txt has no raw form.

    Raises: DataError, with the line.
    """
    if data.is_text:
        return _text_questions(data), []
    prepared, raw = [], []
    for where, record in read_records(data, _EXPECTED):
        if "endings" in record and record.get("label") in ("", None):
            raise DataError(f"{where} has no label, like the test part; use the validation part, hellaswag_val.jsonl")
        try:
            prepared.append(_prepared_form(record))
            raw.append(_raw_form(record))
            is_valid = 0 <= raw[-1].label < 4 == len(raw[-1].endings)
            is_valid = is_valid and all(map(str.strip, (raw[-1].context, *raw[-1].endings)))
        except (KeyError, TypeError, ValueError, AttributeError):
            is_valid = False
        if not is_valid:
            raise DataError(f"{where} is not a question of HellaSwag; expected {_EXPECTED}")
    if not raw:
        raise DataError(f"{data.name} is empty; expected one line for each question: {_EXPECTED}")
    return prepared, raw


def _text_questions(data: DataFile) -> list[HellaSwagExample]:
    found = []
    rows: list[str] = []
    for number, line in read_lines(data):
        row = line.strip()
        if len(rows) == 1 and row not in ("0", "1", "2", "3"):
            raise DataError(f"{data.name}, line {number} is {row[:40]!r}, expected the correct ending's number, 0 to 3")
        if not row:
            raise DataError(f"{data.name}, line {number} is empty; expected {_EXPECTED_TEXT}")
        rows.append(row)
        if len(rows) == 6:
            found.append(HellaSwagExample(rows[0], tuple(rows[2:]), int(rows[1])))
            rows = []
    if rows or not found:
        raise DataError(f"{data.name} ends within a question; expected {_EXPECTED_TEXT}")
    return found


def run(
    name: str, model: GPT, tokenizer: Tokenizer, files: list[DataFile], options: BenchmarkOptions
) -> BenchmarkResult:
    """Measures the accuracy on HellaSwag, by the total likelihood of the endings and by that per unit of length.

    Raises: DataError for a file in another format, and for an ending without tokens.
    """
    questions = read_questions(files[0])
    prepared, raw = (form[: options.limit] for form in questions)
    pairs = [encode_pair(tokenizer, each.context, f" {ending}") for each in prepared for ending in each.endings]
    pairs += [encode_apart(tokenizer, each.context, f" {ending}") for each in raw for ending in each.endings]
    scores = score_continuations(model, pairs, options)
    split = 4 * len(prepared)
    form = "lm-eval's text: activity label first, brackets removed" if raw else "the file's text"
    metrics = [
        *_metrics("", form, prepared, pairs[:split], scores[:split], ("character", "byte", "token")),
        *_metrics("raw_", "raw text, as in build-nanogpt", raw, pairs[split:], scores[split:], ("token",)),
    ]
    return benchmark_result(
        name,
        files,
        options,
        (len(prepared), len(questions[0])),
        "questions",
        metrics,
        caveats=[] if raw else ["text as prepared in llama.cpp's .txt"],
        published=_PUBLISHED,
        truncated=[each.is_truncated for each in scores],
    )


def _metrics(
    prefix: str,
    form: str,
    questions: list[HellaSwagExample],
    pairs: list[Pair],
    scores: list[ContinuationScore],
    units: tuple[str, ...],
) -> list[Metric]:
    """The accuracies on one form of the questions; each question has four pairs and scores, in order."""
    if not questions:
        return []
    endings = [ending for question in questions for ending in question.endings]
    lengths = {
        "character": [len(ending) for ending in endings],
        "byte": [len(ending.encode()) for ending in endings],
        "token": [len(continuation) for _, continuation in pairs],
    }

    def accuracy(length: Sequence[int]) -> float:
        values = [each.log_probability / max(1, size) for each, size in zip(scores, length, strict=True)]
        chosen = [argmax(values[start : start + 4]) for start in range(0, len(values), 4)]
        return sum(choice == question.label for choice, question in zip(chosen, questions, strict=True)) / len(
            questions
        )

    title = "accuracy, raw text" if prefix else "accuracy"
    total = accuracy([1] * len(endings))
    found = [Metric(f"{prefix}accuracy", title, total, "share", f"the most likely ending; {form}")]
    for unit in units:
        protocol = f"the ending with the highest log-probability per {unit}; {form}"
        name = f"{prefix}accuracy_per_{unit}"
        found.append(Metric(name, f"{title}, per {unit}", accuracy(lengths[unit]), "share", protocol))
    return found
