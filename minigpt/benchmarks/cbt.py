"""Children's Book Test: which of ten words is missing from a sentence that follows twenty others.

Source: Hill et al. 2016. Scored as in Radford et al. 2019, section 3.2: by the probability of the word and the rest of
the sentence, after all text before them.
"""

import re
from dataclasses import dataclass
from itertools import islice

from minigpt.benchmarks.detokenizers import detokenize_cbt
from minigpt.benchmarks.files import read_lines, read_records
from minigpt.benchmarks.loglikelihood import argmax, encode_pair, score_continuations
from minigpt.benchmarks.results import BenchmarkOptions, BenchmarkResult, DataFile, Metric, benchmark_result
from minigpt.errors import DataError
from minigpt.model.gpt import GPT
from minigpt.tokenizer.tokenizer import Tokenizer

_BLANK = "XXXXX"
_EXPECTED = (
    "20 numbered sentences, then '21 question with XXXXX<tab>answer<tab><tab>ten|candidates', then an empty line"
)
_WORD_CLASSES = {"CN": "common nouns", "NE": "named entities", "V": "verbs", "P": "prepositions"}


@dataclass(frozen=True)
class ClozeQuestion:
    """The text before, the sentence with the blank, the candidates, and the number of the correct one."""

    before: str
    sentence: str
    candidates: tuple[str, ...]
    answer: int


def word_class(data: DataFile) -> str:
    """The word class of a file by its name, usually CN or NE; otherwise `all`."""
    found = re.findall(r"(?<![A-Za-z])(CN|NE|V|P)(?![A-Za-z])", data.name)
    return found[-1] if found else "all"


def read_questions(data: DataFile) -> list[ClozeQuestion]:
    """The questions of a file in the published text format or in .parquet.

    Raises: DataError, with the line.
    """
    found = []
    if data.path.suffix == ".parquet":
        for where, row in read_records(data, "sentences, question, answer and options"):
            try:
                found.append(_question(where, row["sentences"], row["question"], row["answer"], row["options"]))
            except (KeyError, TypeError) as error:
                raise DataError(f"{where} must have sentences, question, answer and options") from error
    else:
        sentences: list[str] = []
        for number, line in read_lines(data):
            where = f"{data.name}, line {number}"
            if not line.strip():
                if sentences:
                    raise DataError(f"{where} is empty before a question; expected {_EXPECTED}")
                continue
            count, _, rest = line.rstrip("\r\n").partition(" ")
            if count != str(len(sentences) + 1) or not rest:
                raise DataError(f"{where} must start with {len(sentences) + 1} and a space; expected {_EXPECTED}")
            if count != "21":
                sentences.append(rest)
                continue
            fields = [field for field in rest.split("\t") if field]
            if len(fields) != 3:
                raise DataError(f"{where} is not a question; expected {_EXPECTED}")
            found.append(_question(where, sentences, fields[0], fields[1], fields[2].split("|")))
            sentences = []
        if sentences:
            raise DataError(f"{data.name} ends before a question; expected {_EXPECTED}")
    if not found:
        raise DataError(f"{data.name} is empty; expected {_EXPECTED}")
    return found


def _question(where: str, sentences: list[str], question: str, answer: str, candidates: list[str]) -> ClozeQuestion:
    if _BLANK not in question:
        raise DataError(f"{where} has no {_BLANK} to fill; expected {_EXPECTED}")
    candidates = [candidate for candidate in candidates if candidate]
    if answer not in candidates:
        raise DataError(f"{where} has the answer {answer!r}, which is not among the candidates {'|'.join(candidates)}")
    return ClozeQuestion(" ".join(sentences), question, tuple(candidates), candidates.index(answer))


def run(
    name: str, model: GPT, tokenizer: Tokenizer, files: list[DataFile], options: BenchmarkOptions
) -> BenchmarkResult:
    """Measures the accuracy on each file, usually one of common nouns and one of named entities.

    Raises: DataError for a file in another format, and for a candidate without tokens.
    """
    metrics = []
    truncated: list[bool] = []
    measured = available = 0
    for data in files:
        questions = read_questions(data)
        part = questions[: options.limit]
        measured, available = measured + len(part), available + len(questions)
        pairs = []
        for question in part:
            # De-tokenized with the blank, which the rules treat as a word, like any candidate.
            text = f"{question.before} {question.sentence}"
            before, _, after = (detokenize_cbt(text) if options.detokenize else text).partition(_BLANK)
            pairs += [
                encode_pair(tokenizer, before, word + after.replace(_BLANK, word)) for word in question.candidates
            ]
        found = score_continuations(model, pairs, options)
        truncated += [each.is_truncated for each in found]
        scores = (each.log_probability for each in found)
        n_correct = sum(argmax(list(islice(scores, len(each.candidates)))) == each.answer for each in part)
        word_kind = word_class(data)
        how = "de-tokenized" if options.detokenize else "text as published"
        metrics.append(
            Metric(
                f"accuracy_{word_kind}",
                f"accuracy, {_WORD_CLASSES.get(word_kind, 'all word classes')}",
                n_correct / len(part),
                "share",
                f"the word most likely together with the rest of the sentence, {len(part):,} questions; {how}",
            )
        )
    return benchmark_result(name, files, options, (measured, available), "questions", metrics, truncated=truncated)
