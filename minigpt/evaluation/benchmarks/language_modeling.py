"""WikiText and Penn Treebank: the perplexity of a running text, by token, by word and by byte.

Source: Merity et al. 2016; Mikolov et al. 2010 (the form of Penn Treebank with 10,000 words, <unk> and N).
"""

import functools
import math
from collections.abc import Iterator
from itertools import islice

from minigpt.errors import DataError
from minigpt.evaluation.benchmarks.detokenizers import Detokenizer, detokenize_ptb, detokenize_wikitext
from minigpt.evaluation.benchmarks.files import lines, records
from minigpt.evaluation.benchmarks.results import Data, Metric, Options, Result, Run, caveats
from minigpt.evaluation.perplexity import evaluate
from minigpt.model.gpt import GPT
from minigpt.tokenizer.tokenizer import Tokenizer

_HEADING = "a heading such as ' = Robert Boulter = ' in its first lines"
_SENTENCE = "Mikolov's sentences of lower-case words, such as ' no it was n't black monday '"


def _text_lines(data: Data, key: str, blank: str) -> Iterator[tuple[str, str]]:
    """The text's lines and where they stand, from a text or from a .parquet, which holds them without their ends."""
    if data.path.suffix == ".parquet":
        for where, row in records(data, f'{{"{key}": "a line"}}'):
            if not isinstance(row.get(key), str):
                raise DataError(f"{where} has no {key!r}; expected one line of the text in each row")
            yield where, row[key].rstrip("\n") + "\n" if row[key] else blank
    else:
        for number, line in lines(data):
            yield f"{data.name}, line {number}", line


def wikitext_lines(data: Data) -> Iterator[str]:
    """The lines of WikiText, raw (wiki.test.raw) or with <unk> (wiki.test.tokens).

    Raises: DataError where it begins with no heading.
    """
    started = False
    for where, line in _text_lines(data, "text", " \n"):
        if not started and line.strip():
            if not (line.strip().startswith("= ") and line.strip().endswith(" =")):
                raise DataError(f"{where} is {line.strip()[:40]!r}, expected {_HEADING}, as WikiText has")
            started = True
        yield line
    if not started:
        raise DataError(f"{data.name} is empty; expected {_HEADING}, as WikiText has")


def ptb_lines(data: Data) -> Iterator[str]:
    """The lines of Penn Treebank, ptb.test.txt.

    Raises: DataError for a line with upper-case letters, N (a number) aside.
    """
    empty = True
    for where, line in _text_lines(data, "sentence", "\n"):
        for word in line.split():
            if word != word.lower() and word != "N" and not word.startswith("N-"):
                raise DataError(f"{where} has the word {word[:40]!r}, expected {_SENTENCE}")
        empty = empty and not line.strip()
        # The parquet leaves out the spaces around a sentence, which the file has.
        yield f" {line.strip()} \n" if data.path.suffix == ".parquet" else line
    if empty:
        raise DataError(f"{data.name} is empty; expected {_SENTENCE}")


def _run(
    name: str, detokenizer: Detokenizer, model: GPT, tokenizer: Tokenizer, files: list[Data], options: Options
) -> Result:
    """The perplexities of a text, behind an end of text, so that all of it is scored.

    Words and bytes are those of the text as it was published, whatever it is measured as.
    Raises: DataError for a file in another format; ConfigError where context or stride do not fit the model.
    """
    reader = ptb_lines if name == "ptb" else wikitext_lines
    taken = list(islice(reader(files[0]), options.limit))
    published = "".join(taken)
    text = detokenizer(published) if options.detokenize else published
    context = options.context or model.config.n_positions
    stride = options.stride or max(1, context // 2)
    measured = evaluate(
        model,
        [tokenizer.end_of_text, *tokenizer.encode(text)],
        context=context,
        stride=stride,
        batch_size=options.batch_size,
        progress=options.progress,
    )
    nats = measured.loss * measured.tokens
    words = len(published.split())
    ends = published.count("\n")
    how = f"context {context}, stride {stride}, {'de-tokenized' if options.detokenize else 'text as published'}"

    def per(count: int) -> float:
        return math.exp(min(700.0, nats / max(1, count)))

    metrics = (
        Metric(
            "perplexity_token",
            "perplexity, per token",
            measured.perplexity,
            "perplexity",
            f"{measured.tokens:,} tokens of this tokenizer ({tokenizer.name}); {how}",
        ),
        Metric(
            "perplexity_word",
            "perplexity, per word",
            per(words + ends),
            "perplexity",
            f"the same surprise over {words + ends:,} words as published, each line's end counted as one; {how}",
        ),
        Metric(
            "perplexity_word_without_ends",
            "perplexity, per word without line ends",
            per(words),
            "perplexity",
            f"the same over {words:,} words between white space, as lm-eval counts them; {how}",
        ),
        Metric(
            "bits_per_byte",
            "bits per byte",
            nats / math.log(2) / len(published.encode()),
            "bits per byte",
            f"the same over {len(published.encode()):,} bytes as published; {how}",
        ),
    )
    apart = caveats(options, len(taken), "lines")
    if name != "ptb" and "<unk>" in published:
        apart.append("the form with <unk>, not the raw text")
    return Result(name, (files[0].name,), len(taken), "lines", metrics, tuple(apart))


def _named(name: str, detokenizer: Detokenizer) -> Run:
    return functools.partial(_run, name, detokenizer)


run_wikitext2 = _named("wikitext2", detokenize_wikitext)
run_wikitext103 = _named("wikitext103", detokenize_wikitext)
run_ptb = _named("ptb", detokenize_ptb)
