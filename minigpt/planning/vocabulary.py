"""Chooses the tokenizer of a new model, from the size of the text and how often the model will read it.

docs/experiments.md has the measurements.
"""

import math
import sys

from minigpt.errors import ConfigError
from minigpt.planning.corpus_stats import CorpusStats
from minigpt.planning.defaults import READ_OFTEN, SAMPLE
from minigpt.planning.plan import SHORT_CONTEXT, SMALLEST_PRESET, plan_settings
from minigpt.planning.throughput import Measure, StepTimer
from minigpt.run_options import RunOptions

_IF_OFTEN, _IF_SELDOM = 370, 185  # bytes of text for each token of the vocabulary, if the text is read so often
_LEAST, _MOST = 512, 16_384  # tokens of the vocabulary
_BYTES_PER_TOKEN, _VOCABULARY = 4.0, 8192  # of the text, before it has a tokenizer


def plan_tokenizer(text_bytes: int, passes: float = math.inf) -> str:
    """The tokenizer for a text of that size that is read so often: one token per 370 bytes of text, or per 185 if it is
    read less than seven times, rounded to a power of two.

    A small model gets much of its knowledge from its vocabulary, but memorizes rare tokens of a text that it reads
    often. Below 30 kB there is too little text to learn merges from; above 300 MB the 50,257 tokens of GPT-2 are
    best.
    """
    if text_bytes < 30_000:
        return "bytes"
    if text_bytes >= 300_000_000:
        return "gpt2"
    per_token = _IF_OFTEN if passes >= READ_OFTEN else _IF_SELDOM
    return f"bpe:{min(_MOST, max(_LEAST, 2 ** round(math.log2(text_bytes / per_token))))}"


def choose_tokenizer(text_bytes: int, options: RunOptions, device_type: str, dtype: str, measure: Measure) -> str:
    """The tokenizer for a text of that size and the length of the run, which trains in `dtype`.

    Measures the speed of the machine if the choice depends on it.
    Raises: what `measure` raises.
    """
    choices = {plan_tokenizer(text_bytes, passes) for passes in (1, math.inf)}
    if len(choices) == 1:
        return choices.pop()
    return plan_tokenizer(text_bytes, expected_passes(text_bytes, options, device_type, dtype, measure))


def expected_passes(text_bytes: int, options: RunOptions, device_type: str, dtype: str, measure: Measure) -> float:
    """About how often the preset that the user gave, else the smallest one, reads a text of that size.

    Infinite for options that cannot be combined; the plan of the run, which knows the tokens, then says why.
    """
    if options.training.epochs is not None:
        return options.training.epochs
    given: dict[str, object] = {"distill": "off", "dtype": dtype}
    usual = {"context_length": SHORT_CONTEXT, "sampled_softmax": SAMPLE if device_type == "cpu" else 0}
    given |= {name: value for name, value in usual.items() if name not in options.given}
    stats = CorpusStats(round(text_bytes / _BYTES_PER_TOKEN), text_bytes, _VOCABULARY, entropy=None)
    try:
        planned = plan_settings(
            stats, options.with_training(**given), device_type=device_type, free_memory=sys.maxsize,
            preset=options.preset or SMALLEST_PRESET, timer=StepTimer(measure),
        )  # fmt: skip
    except ConfigError:
        return math.inf
    return planned.tokens_seen / stats.n_tokens
