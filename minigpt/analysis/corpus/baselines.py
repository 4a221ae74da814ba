"""What simple methods make of the held-out text, in bits per byte: the figures that a model's own is read against.

All are measured as a model is: on the held-out part, having seen the training part or none of it. An end of text costs
bits and counts as no byte. Nothing here knows a network, but for the one that a caller brings along.
"""

import lzma
import zlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from minigpt.analysis.corpus.ngrams import BOUNDARY, ByteModel, word_bits
from minigpt.analysis.evaluation import evaluate
from minigpt.model.gpt import GPT
from minigpt.text.corpus import Corpus
from minigpt.text.tokenizer import Tokenizer
from minigpt.text.vocabulary import END_OF_TEXT

MEANINGS: Mapping[str, str] = {
    "bytes": "how often each byte occurs: a model that is not below has learnt nothing",
    "gzip": "repeats within 32 kB of the held-out text alone: a model passes it early",
    "words": "how often each word occurs: a model below has learnt more than a dictionary",
    "xz alone": "repeats anywhere in the held-out text alone",
    "xz": "repeats anywhere in the training text: a model worth its training is below",
    "5-gram": "what the four bytes before tell: a model below has learnt words",
    "7-gram": "what the six bytes before tell: a model below uses what stands farther back",
}

_XZ_MOST = 2**23  # bytes of training text, lest it take a minute and a gigabyte
_COUNTED_MOST = 2**25  # bytes of training text whose n-grams are counted
_BLOCK = 2**16  # of a sample
_XZ_RATE, _COUNTING_RATE = 1.2e6, 4e6  # bytes a second, one core of a slow machine
_MODEL_TOKENS = 2**15  # that a model brought along is measured on

Stream = bytes  # documents with a BOUNDARY behind each


@dataclass(frozen=True)
class Baseline:
    """One method's figure, and the bytes of training text that it was given and of held-out text it was measured on."""

    name: str
    bits_per_byte: float
    train_bytes: int
    validation_bytes: int

    @property
    def meaning(self) -> str:
        """One sentence on what it is to be above or below."""
        return MEANINGS.get(self.name, "a model that has not seen your text: one below it knows your text better")


def all_baselines(train: Stream, validation: Stream) -> Iterator[Baseline]:
    """Every method, the quickest first, each as it is ready; of a long training text a sample, evenly spread."""
    yield from _counting(train, validation, (1, 5, 7))
    seen = sample(train, _COUNTED_MOST)
    yield _baseline("words", word_bits(seen, validation), seen, validation)
    yield from _compressing(train, validation, _XZ_MOST)


def cheap_baselines(corpus: Corpus, seconds: float) -> list[Baseline]:
    """Those that a run is drawn against, in about so many seconds; none where nothing is held out.

    With less time they see less of the training text, evenly spread.
    """
    if len(corpus.validation) < 2:
        return []
    validation = _text(corpus.validation, corpus.tokenizer, int(0.4 * _COUNTING_RATE * seconds))
    train = _text(corpus.train, corpus.tokenizer, int(0.4 * _COUNTING_RATE * seconds))
    at_once = int(0.3 * _XZ_RATE * seconds)
    counted = list(_counting(train, validation, (1, 5)))
    compressed = _compressing(train, sample(validation, at_once // 2), at_once)
    return [*counted, *(baseline for baseline in compressed if baseline.name != "xz alone")]


def model_baseline(name: str, model: GPT, tokenizer: Tokenizer, validation: Stream) -> Baseline:
    """A model that has seen none of the text, measured on evenly spaced windows of the held-out part, half a context
    before every byte."""
    tokens: list[int] = []
    for document in validation.rstrip(bytes([BOUNDARY])).split(bytes([BOUNDARY])):
        tokens += [tokenizer.end_of_text, *tokenizer.encode(document.decode(errors="replace"))]
    measured = evaluate(
        model,
        tokens,
        token_lengths=tokenizer.token_lengths,
        stride=max(1, model.config.n_positions // 2),
        max_tokens=_MODEL_TOKENS,
    )
    return Baseline(name, measured.bits_per_byte, 0, measured.bytes)


def beaten_since(log: Iterable[Mapping[str, Any]], baselines: Mapping[str, float]) -> dict[str, int]:
    """The step of the evaluation from which on a run's log is below each baseline, for those that it ends below."""
    since: dict[str, int] = {}
    for record in log:
        measured = record.get("bits_per_byte")
        if measured is None:
            continue
        for name, figure in baselines.items():
            if measured >= figure:
                since.pop(name, None)
            else:
                since.setdefault(name, record["step"])
    return since


def sample(text: Stream, most: int) -> Stream:
    """The text, or as many of its blocks, evenly spread, as come to `most` bytes."""
    if len(text) <= most:
        return text
    return b"".join(text[start:end] for start, end in spread(len(text), most, _BLOCK))


def spread(length: int, most: int, block: int) -> Iterator[tuple[int, int]]:
    """Where the blocks of a sample begin and end, of something of this length: about `most` of it, evenly spread."""
    if length <= most:
        yield 0, length
        return
    block = min(block, max(1, most))
    count = max(1, most // block)
    for index in range(count):
        start = index * (length - block) // max(1, count - 1)
        yield start, start + block


def _text(tokens: npt.NDArray[Any], tokenizer: Tokenizer, most: int) -> Stream:
    """The text of a stream of tokens, or a sample of about `most` bytes."""
    few = max(1, most // 4)  # tokens; four bytes each is on the high side
    blocks = (tokens[start:end].tolist() for start, end in spread(len(tokens), few, _BLOCK // 4))
    return b"".join(map(tokenizer.decode_bytes, blocks)).replace(END_OF_TEXT.encode(), bytes([BOUNDARY]))


def _counting(train: Stream, validation: Stream, orders: Iterable[int]) -> Iterator[Baseline]:
    seen = sample(train, _COUNTED_MOST)
    for order in orders:
        name = "bytes" if order == 1 else f"{order}-gram"
        yield _baseline(name, ByteModel.fit(seen, order).bits(validation), seen, validation)


def _compressing(train: Stream, validation: Stream, most: int) -> Iterator[Baseline]:
    yield _baseline("gzip", 8 * len(zlib.compress(validation, 9, -zlib.MAX_WBITS)), b"", validation)
    yield _baseline("xz alone", 8 * _xz_size(validation), b"", validation)
    seen = sample(train, most)
    with ThreadPoolExecutor(2) as pool:
        before, after = pool.map(_xz_size, (seen, seen + validation))
    yield _baseline("xz", 8 * (after - before), seen, validation)


def _xz_size(text: bytes) -> int:
    """The bytes that xz leaves of a text, its headers left out; the window is the whole text."""
    window = max(2**12, 1 << (len(text) - 1).bit_length())
    coding = {"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": window}
    return len(lzma.compress(text, format=lzma.FORMAT_RAW, filters=[coding]))


def _baseline(name: str, bits: float, train: Stream, validation: Stream) -> Baseline:
    size = _text_bytes(validation)
    return Baseline(name, bits / size, _text_bytes(train), size)


def _text_bytes(stream: Stream) -> int:
    return len(stream) - stream.count(BOUNDARY)
