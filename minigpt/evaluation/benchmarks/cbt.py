"""Children's Book Test: which of ten words was taken out of the sentence that follows twenty others.

Source: Hill et al. 2016; scored as Radford et al. 2019, section 3.2: the probability of a word and of the rest of its
sentence, after all that comes before.
"""

import re
from dataclasses import dataclass
from itertools import islice

from minigpt.errors import DataError
from minigpt.evaluation.benchmarks.detokenizers import detokenize_cbt
from minigpt.evaluation.benchmarks.files import lines, records
from minigpt.evaluation.benchmarks.hellaswag import best
from minigpt.evaluation.benchmarks.loglikelihood import encode_pair, score
from minigpt.evaluation.benchmarks.results import Data, Metric, Options, Result, caveats
from minigpt.model.gpt import GPT
from minigpt.tokenizer.tokenizer import Tokenizer

_BLANK = "XXXXX"
_EXPECTED = (
    "20 numbered sentences, then '21 question with XXXXX<tab>answer<tab><tab>ten|candidates', then an empty line"
)
_KINDS = {"CN": "common nouns", "NE": "named entities", "V": "verbs", "P": "prepositions"}


@dataclass(frozen=True)
class Question:
    """What comes before, the sentence with the blank, the candidates, and the number of the right one."""

    before: str
    sentence: str
    candidates: tuple[str, ...]
    answer: int


def kind_of(data: Data) -> str:
    """Which part of the test a file holds by its name, `CN` or `NE` as a rule; else `all`."""
    found = re.findall(r"(?<![A-Za-z])(CN|NE|V|P)(?![A-Za-z])", data.name)
    return found[-1] if found else "all"


def questions(data: Data) -> list[Question]:
    """The questions of a file as the test was published, or of a .parquet.

    Raises: DataError, with the line.
    """
    found = []
    if data.path.suffix == ".parquet":
        for where, row in records(data, "sentences, question, answer and options"):
            try:
                found.append(_question(where, row["sentences"], row["question"], row["answer"], row["options"]))
            except (KeyError, TypeError) as error:
                raise DataError(f"{where} must have sentences, question, answer and options") from error
    else:
        sentences: list[str] = []
        for number, line in lines(data):
            where = f"{data.name}, line {number}"
            if not line.strip():
                if sentences:
                    raise DataError(f"{where} is empty before a question; expected {_EXPECTED}")
                continue
            count, _, rest = line.rstrip("\n").partition(" ")
            if count != str(len(sentences) + 1) or not rest:
                raise DataError(f"{where} must start with {len(sentences) + 1} and a space; expected {_EXPECTED}")
            if count != "21":
                sentences.append(rest)
                continue
            fields = [field for field in rest.split("\t") if field]
            if len(fields) != 3:
                raise DataError(f"{where} is no question; expected {_EXPECTED}")
            found.append(_question(where, sentences, fields[0], fields[1], fields[2].split("|")))
            sentences = []
        if sentences:
            raise DataError(f"{data.name} ends before a question; expected {_EXPECTED}")
    if not found:
        raise DataError(f"{data.name} is empty; expected {_EXPECTED}")
    return found


def _question(where: str, sentences: list[str], question: str, answer: str, candidates: list[str]) -> Question:
    if _BLANK not in question:
        raise DataError(f"{where} has no {_BLANK} to fill; expected {_EXPECTED}")
    candidates = [candidate for candidate in candidates if candidate]
    if answer not in candidates:
        raise DataError(f"{where} has the answer {answer!r}, which is not among the candidates {'|'.join(candidates)}")
    return Question(" ".join(sentences), question, tuple(candidates), candidates.index(answer))


def run(model: GPT, tokenizer: Tokenizer, files: list[Data], options: Options) -> Result:
    """The accuracy on each file, one of common nouns and one of named entities as a rule.

    Raises: DataError for a file in another format.
    """
    metrics = []
    cut = total = asked = 0
    for data in files:
        part = list(islice(questions(data), options.limit))
        pairs = []
        for question in part:
            # The blank is a word to the rules, so that it stands in the text as any candidate will.
            text = f"{question.before} {question.sentence}"
            before, _, after = (detokenize_cbt(text) if options.detokenize else text).partition(_BLANK)
            pairs += [
                encode_pair(tokenizer, before, word + after.replace(_BLANK, word)) for word in question.candidates
            ]
        scores = iter(
            score(model, pairs, context=options.context, batch_size=options.batch_size, progress=options.progress)
        )
        right = 0
        for question in part:
            own = list(islice(scores, len(question.candidates)))
            right += best([each.log_probability for each in own]) == question.answer
            cut += sum(each.cut for each in own)
        kind = kind_of(data)
        how = "de-tokenized" if options.detokenize else "text as published"
        metrics.append(
            Metric(
                f"accuracy_{kind}",
                f"accuracy, {_KINDS.get(kind, 'all kinds')}",
                right / len(part),
                "share",
                f"the word most probable together with the rest of its sentence, {len(part):,} questions; {how}",
            )
        )
        total += len(pairs)
        asked += len(part)
    room = options.context or model.config.n_positions
    apart = caveats(options, asked, "questions", cut=cut, of=total, context=room)
    return Result("cbt", tuple(data.name for data in files), asked, "questions", tuple(metrics), tuple(apart))
