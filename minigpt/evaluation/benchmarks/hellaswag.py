"""HellaSwag: which of four endings goes on with a text, as completions: each ending's likelihood after the text.

Source: Zellers et al. 2019; the two forms are lm-evaluation-harness's and that of build-nanogpt and llm.c.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from minigpt.errors import DataError
from minigpt.evaluation.benchmarks.files import lines, records
from minigpt.evaluation.benchmarks.loglikelihood import Pair, Score, encode_pair, score
from minigpt.evaluation.benchmarks.results import Data, Metric, Options, Result, caveats
from minigpt.model.gpt import GPT
from minigpt.tokenizer.tokenizer import Tokenizer

_EXPECTED = '{"activity_label": "…", "ctx_a": "…", "ctx_b": "…", "ctx": "…", "endings": [four texts], "label": 0 to 3}'
_EXPECTED_TEXT = "six lines a question: the text, the number of the right ending (0 to 3), and four endings"


@dataclass(frozen=True)
class Question:
    """A text to go on with, its endings, and the number of the right one."""

    context: str
    endings: tuple[str, ...]
    label: int


def _cleaned(text: str) -> str:
    """lm-eval's preprocessing: what WikiHow's markup left behind becomes a full stop or nothing."""
    return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")


def _harness_form(record: dict[str, Any]) -> Question:
    context = f"{record['activity_label']}: {record['ctx_a']} {record['ctx_b'].capitalize()}"
    return Question(_cleaned(context), tuple(map(_cleaned, record["endings"])), int(record["label"]))


def _raw_form(record: dict[str, Any]) -> Question:
    return Question(record["ctx"], tuple(record["endings"]), int(record["label"]))


def questions(data: Data) -> tuple[list[Question], list[Question]]:
    """The questions of a file in lm-eval's form and in the raw one; a .txt, as llama.cpp reads it, has no raw form.

    Raises: DataError, with the line.
    """
    if data.path.name.removesuffix(".gz").removesuffix(".bz2").endswith(".txt"):
        return _text_questions(data), []
    harness, raw = [], []
    for where, record in records(data, _EXPECTED):
        if "endings" in record and record.get("label") in ("", None):
            raise DataError(f"{where} has no label, as in the test part; give the validation part, hellaswag_val.jsonl")
        try:
            harness.append(_harness_form(record))
            raw.append(_raw_form(record))
            ok = 0 <= raw[-1].label < 4 == len(raw[-1].endings)
            ok = ok and all(map(str.strip, (raw[-1].context, *raw[-1].endings)))
        except (KeyError, TypeError, ValueError, AttributeError):
            ok = False
        if not ok:
            raise DataError(f"{where} is not a question of HellaSwag; expected {_EXPECTED}")
    if not raw:
        raise DataError(f"{data.name} is empty; expected a line {_EXPECTED} for each question")
    return harness, raw


def _text_questions(data: Data) -> list[Question]:
    found = []
    rows: list[str] = []
    for number, line in lines(data):
        row = line.strip()
        if len(rows) == 1 and row not in ("0", "1", "2", "3"):
            raise DataError(f"{data.name}, line {number} is {row[:40]!r}, expected the right ending's number, 0 to 3")
        if not row:
            raise DataError(f"{data.name}, line {number} is empty; expected {_EXPECTED_TEXT}")
        rows.append(row)
        if len(rows) == 6:
            found.append(Question(rows[0], tuple(rows[2:]), int(rows[1])))
            rows = []
    if rows or not found:
        raise DataError(f"{data.name} ends within a question; expected {_EXPECTED_TEXT}")
    return found


def best(values: Sequence[float]) -> int:
    """The index of the largest value, the first of equal ones."""
    return max(range(len(values)), key=values.__getitem__)


def run(model: GPT, tokenizer: Tokenizer, files: list[Data], options: Options) -> Result:
    """HellaSwag's accuracy, by the endings' whole likelihood and by what is left when their lengths are divided out.

    Raises: DataError for a file in another format.
    """
    harness, raw = (list(islice(form, options.limit)) for form in questions(files[0]))
    pairs = [encode_pair(tokenizer, each.context, f" {ending}") for each in harness for ending in each.endings]
    for each in raw:
        context = tuple(tokenizer.encode(each.context))
        pairs += [(context, tuple(tokenizer.encode(f" {ending}"))) for ending in each.endings]
    scores = score(model, pairs, context=options.context, batch_size=options.batch_size, progress=options.progress)
    split = 4 * len(harness)
    form = "lm-eval's text: activity label before, brackets removed" if raw else "the file's own text"
    metrics = [
        *_metrics("", form, harness, pairs[:split], scores[:split], ("character", "byte", "token")),
        *_metrics("raw_", "raw text, as build-nanogpt", raw, pairs[split:], scores[split:], ("token",)),
    ]
    cut, room = sum(each.cut for each in scores), options.context or model.config.n_positions
    apart = caveats(options, len(harness), "questions", cut=cut, of=len(scores), context=room)
    if not raw:
        apart.append("the text as llama.cpp's .txt has it")
    return Result("hellaswag", (files[0].name,), len(harness), "questions", tuple(metrics), tuple(apart))


def _metrics(
    prefix: str, form: str, asked: list[Question], pairs: list[Pair], scores: list[Score], units: tuple[str, ...]
) -> list[Metric]:
    """The accuracies over one form of the questions, whose four pairs and scores each stand in order."""
    if not asked:
        return []
    endings = [ending for question in asked for ending in question.endings]
    lengths = {
        "character": [len(ending) for ending in endings],
        "byte": [len(ending.encode()) for ending in endings],
        "token": [len(continuation) for _, continuation in pairs],
    }

    def accuracy(length: Sequence[int]) -> float:
        values = [each.log_probability / max(1, size) for each, size in zip(scores, length, strict=True)]
        chosen = [best(values[start : start + 4]) for start in range(0, len(values), 4)]
        return sum(choice == question.label for choice, question in zip(chosen, asked, strict=True)) / len(asked)

    title = "accuracy, raw text" if prefix else "accuracy"
    whole = accuracy([1] * len(endings))
    found = [Metric(f"{prefix}accuracy", title, whole, "share", f"the likeliest ending; {form}")]
    for unit in units:
        said = f"the ending likeliest per {unit} of its own; {form}"
        name = f"{prefix}accuracy_per_{unit}"
        found.append(Metric(name, f"{title}, per {unit}", accuracy(lengths[unit]), "share", said))
    return found
