"""LAMBADA: predicting the last word of a passage, which requires the whole passage.

Source: Paperno et al. 2016, in OpenAI's form of the text (Radford et al. 2019, section 3.3). OpenAI's accuracy excludes
words that cannot end a sentence, by an unpublished list of stop words, so it cannot be reproduced here.
"""

from minigpt.benchmarks.files import read_lines, read_records
from minigpt.benchmarks.loglikelihood import encode_pair, score_continuations
from minigpt.benchmarks.results import BenchmarkOptions, BenchmarkResult, DataFile, Metric, benchmark_result
from minigpt.errors import DataError
from minigpt.evaluation.perplexity import perplexity
from minigpt.model.gpt import GPT
from minigpt.tokenizer.tokenizer import Tokenizer

_PUBLISHED = 5153  # passages of the test part
_RECORD = '{"text": "a passage"}'


def read_passages(data: DataFile) -> list[str]:
    """The passages of a .jsonl file with the key "text", or of a .txt file with one passage per line.

    Raises: DataError, with the line.
    """
    if data.is_text:
        expected = "one passage"
        found = [(f"{data.name}, line {number}", line.strip()) for number, line in read_lines(data) if line.strip()]
    else:
        expected = _RECORD
        found = [(where, record.get("text", "")) for where, record in read_records(data, expected)]
    for where, text in found:
        if not isinstance(text, str) or not all(text.rpartition(" ")[::2]):
            raise DataError(f"{where} has no text that ends in a space and a word; expected {expected}")
    if not found:
        raise DataError(f"{data.name} is empty; expected {expected} on each line")
    return [text for _, text in found]


def run(
    name: str, model: GPT, tokenizer: Tokenizer, files: list[DataFile], options: BenchmarkOptions
) -> BenchmarkResult:
    """Measures LAMBADA by the two protocols in use, and the perplexity of the last word.

    Raises: DataError for a file in another format, and for a word without tokens.
    """
    passages = read_passages(files[0])
    texts = passages[: options.limit]
    split = (text.rpartition(" ")[::2] for text in texts)
    pairs = [encode_pair(tokenizer, context, f" {word}") for context, word in split]
    scores = score_continuations(model, pairs, options)
    count = len(scores)
    metrics = (
        Metric(
            "accuracy_last_token",
            "accuracy, last token",
            sum(each.is_last_greedy for each in scores) / count,
            "share",
            "the passage's last token is the most likely one after all tokens before it, also those of the same word",
        ),
        Metric(
            "accuracy_last_word",
            "accuracy, last word",
            sum(each.is_greedy for each in scores) / count,
            "share",
            "every token of the last word is the most likely one, so greedy decoding produces the word (lm-eval's "
            "lambada_openai acc)",
        ),
        Metric(
            "perplexity_last_word",
            "perplexity, last word",
            perplexity(-sum(each.log_probability for each in scores) / count),
            "perplexity",
            "exp of the mean loss of a last word, summed over its tokens (lm-eval's lambada_openai perplexity)",
        ),
    )
    lower_case = "the text is all lower case, as in lm-eval's lambada_standard, not lambada_openai"
    return benchmark_result(
        name,
        files,
        options,
        (count, len(passages)),
        "passages",
        metrics,
        caveats=[lower_case] if "\n".join(passages).islower() else [],
        published=_PUBLISHED,
        truncated=[each.is_truncated for each in scores],
    )
