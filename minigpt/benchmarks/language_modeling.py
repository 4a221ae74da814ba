"""WikiText and Penn Treebank: the perplexity of a text per token and per word, and its bits per byte.

Source: Merity et al. 2016; Mikolov et al. 2010 (the form of Penn Treebank with 10,000 words, <unk> and N).
"""

import math
from collections.abc import Iterator
from itertools import islice

from minigpt.benchmarks.detokenizers import detokenize_ptb, detokenize_wikitext
from minigpt.benchmarks.files import read_lines, read_records
from minigpt.benchmarks.results import (
    BenchmarkOptions,
    BenchmarkResult,
    DataFile,
    Metric,
    benchmark_result,
)
from minigpt.errors import DataError
from minigpt.evaluation.breakdown import break_down
from minigpt.evaluation.perplexity import perplexity, resolve_protocol
from minigpt.model.gpt import GPT
from minigpt.tokenizer.tokenizer import Tokenizer

_HEADING = "a heading such as ' = Robert Boulter = ' in its first lines"
_SENTENCE = "Mikolov's sentences of lower-case words, such as ' no it was n't black monday '"


def _text_lines(data: DataFile, key: str, blank: str) -> Iterator[tuple[str, str]]:
    """The location and text of each line, of a text file or of a .parquet file, which has them without line endings."""
    if data.path.suffix == ".parquet":
        for where, row in read_records(data, f'{{"{key}": "a line"}}'):
            if not isinstance(row.get(key), str):
                raise DataError(f"{where} has no {key!r}; expected one line of the text in each row")
            yield where, row[key].rstrip("\n") + "\n" if row[key] else blank
    else:
        for number, line in read_lines(data):
            yield f"{data.name}, line {number}", line


def read_wikitext(data: DataFile) -> Iterator[str]:
    """The lines of WikiText, raw (wiki.test.raw) or with <unk> (wiki.test.tokens).

    Raises: DataError if it does not begin with a heading.
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


def read_ptb(data: DataFile) -> Iterator[str]:
    """The lines of Penn Treebank, ptb.test.txt.

    Raises: DataError for a line with upper-case letters other than N (a number).
    """
    empty = True
    for where, line in _text_lines(data, "sentence", "\n"):
        for word in line.split():
            if word != word.lower() and word != "N" and not word.startswith("N-"):
                raise DataError(f"{where} has the word {word[:40]!r}, expected {_SENTENCE}")
        empty = empty and not line.strip()
        # The text file has spaces around a sentence, the parquet file does not.
        yield f" {line.strip()} \n" if data.path.suffix == ".parquet" else line
    if empty:
        raise DataError(f"{data.name} is empty; expected {_SENTENCE}")


def run(
    name: str, model: GPT, tokenizer: Tokenizer, files: list[DataFile], options: BenchmarkOptions
) -> BenchmarkResult:
    """Measures the perplexities of a text, after an end-of-text, so that every token is scored.

    Words and bytes are counted in the published text, even if it is de-tokenized.
    Raises: DataError for a file in another format; ConfigError if context or stride do not fit the model.
    """
    reader, detokenizer = (read_ptb, detokenize_ptb) if name == "ptb" else (read_wikitext, detokenize_wikitext)
    lines = reader(files[0])
    selected = list(islice(lines, options.limit))
    has_more = next(lines, None) is not None
    published = "".join(selected)
    text = detokenizer(published) if options.detokenize else published
    context, stride = resolve_protocol(model.config, options.context, options.stride)
    measured = break_down(
        model,
        [tokenizer.start_of_text, *tokenizer.encode(text)],
        end_of_text=tokenizer.end_of_text,
        token_lengths=tokenizer.token_lengths,
        context=context,
        stride=stride,
        batch_size=options.batch_size,
        progress=options.progress,
    ).whole
    nats = measured.loss * measured.tokens
    words = len(published.split())
    ends = published.count("\n")
    how = f"context {context}, stride {stride}, {'de-tokenized' if options.detokenize else 'text as published'}"

    def per(count: int) -> float:
        return perplexity(nats / max(1, count))

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
            f"the total loss divided by {words + ends:,} words as published, each line ending counted as one; {how}",
        ),
        Metric(
            "perplexity_word_without_ends",
            "perplexity, per word without line ends",
            per(words),
            "perplexity",
            f"the total loss divided by {words:,} words separated by white space, as in lm-eval; {how}",
        ),
        Metric(
            "bits_per_byte",
            "bits per byte",
            nats / math.log(2) / len(published.encode()),
            "bits per byte",
            f"the total loss divided by {len(published.encode()):,} bytes as published; {how}",
        ),
    )
    caveats = ["the text with <unk>, not the raw text"] if name != "ptb" and "<unk>" in published else []
    examples = len(selected), len(selected) + has_more
    return benchmark_result(name, files, options, examples, "lines", metrics, caveats=caveats)
