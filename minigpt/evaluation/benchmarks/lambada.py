"""LAMBADA: the last word of a passage that needs all of it to be guessed.

Source: Paperno et al. 2016; in OpenAI's form of the text (Radford et al. 2019, section 3.3). Their accuracy leaves out
words that cannot end a sentence, by a list of stop words that was not published, so that form is not built here.
"""

import math
from itertools import islice

from minigpt.errors import DataError
from minigpt.evaluation.benchmarks.files import lines, records
from minigpt.evaluation.benchmarks.loglikelihood import encode_pair, score
from minigpt.evaluation.benchmarks.results import Data, Metric, Options, Result, caveats
from minigpt.model.gpt import GPT
from minigpt.tokenizer.tokenizer import Tokenizer

_RECORD = '{"text": "a passage"}'


def passages(data: Data) -> list[str]:
    """The passages in a .jsonl with the text under "text", or in a .txt of one a line.

    Raises: DataError, with the line.
    """
    if data.path.name.removesuffix(".gz").removesuffix(".bz2").endswith(".txt"):
        expected = "one passage"
        found = [(f"{data.name}, line {number}", line.strip()) for number, line in lines(data) if line.strip()]
    else:
        expected = _RECORD
        found = [(where, record.get("text", "")) for where, record in records(data, expected)]
    for where, text in found:
        if not isinstance(text, str) or not all(text.rpartition(" ")[::2]):
            raise DataError(f"{where} has no text that ends in a word with a space before it; expected {expected}")
    if not found:
        raise DataError(f"{data.name} is empty; expected {expected} on each line")
    return [text for _, text in found]


def run(model: GPT, tokenizer: Tokenizer, files: list[Data], options: Options) -> Result:
    """LAMBADA by the two protocols in use, and the perplexity of the last word.

    Raises: DataError for a file in another format.
    """
    texts = list(islice(passages(files[0]), options.limit))
    pairs = []
    for text in texts:
        context, _, word = text.rpartition(" ")
        pairs.append(encode_pair(tokenizer, context, f" {word}"))
    scores = score(model, pairs, context=options.context, batch_size=options.batch_size, progress=options.progress)
    count = len(scores)
    metrics = (
        Metric(
            "accuracy_last_token",
            "accuracy, last token",
            sum(each.last_greedy for each in scores) / count,
            "share",
            "the passage's last token is the likeliest after all tokens before it, those of its own word included",
        ),
        Metric(
            "accuracy_last_word",
            "accuracy, last word",
            sum(each.greedy for each in scores) / count,
            "share",
            "every token of the last word is the likeliest in its turn, as greedy decoding would write it (lm-eval's "
            "lambada_openai acc)",
        ),
        Metric(
            "perplexity_last_word",
            "perplexity, last word",
            math.exp(min(700.0, -sum(each.log_probability for each in scores) / count)),
            "perplexity",
            "exp of the mean surprise of a last word, all its tokens together (lm-eval's lambada_openai perplexity)",
        ),
    )
    cut, room = sum(each.cut for each in scores), options.context or model.config.n_positions
    apart = caveats(options, count, "passages", cut=cut, of=count, context=room)
    return Result("lambada", (files[0].name,), count, "passages", metrics, tuple(apart))
