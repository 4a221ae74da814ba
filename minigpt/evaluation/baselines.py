"""What simple methods make of the held-out text, in bits per byte: the figures that a model's own is read against.

All are measured as a model is: on the held-out part, having seen the training part or none of it. An end of text costs
bits and counts as no byte. Of a long text they see a sample, and say so: one that has learnt from less is not to be
taken for the method at its best. Nothing here knows a network, but for the one that a caller brings along.
"""

import lzma
import zlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from minigpt.data.corpus import Corpus
from minigpt.evaluation.ngrams import BOUNDARY, ByteModel, word_bits
from minigpt.evaluation.perplexity import evaluate
from minigpt.model.gpt import GPT
from minigpt.tokenizer.tokenizer import Tokenizer
from minigpt.tokenizer.vocabulary import END_OF_TEXT

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
_RUN_XZ_MOST, _RUN_COUNTED_MOST = 5 * 2**18, 2**22  # the same before a run, which waits for them a second each
_RUN_XZ_VALIDATION, _RUN_VALIDATION = 2**18, 2**22  # bytes of held-out text
_BLOCK, _LEAST_BLOCKS = 2**16, 8  # of a sample: bytes of each, and how many at least
_MODEL_TOKENS, _TOKEN_BYTES = 2**15, 8  # that a model brought along is measured on; bytes enough for one

Stream = bytes  # documents with a BOUNDARY behind each


@dataclass(frozen=True)
class Baseline:
    """One method's figure, and the bytes of training text that it was given and of held-out text it was measured on.

    The `whole` are the bytes of all there is of each; 0 where they are not known.
    """

    name: str
    bits_per_byte: float
    train_bytes: int
    validation_bytes: int
    whole_train_bytes: int = 0
    whole_validation_bytes: int = 0

    @property
    def meaning(self) -> str:
        """One sentence on what it is to be above or below."""
        return MEANINGS.get(self.name, "a model that has not seen your text: one below it knows your text better")

    @property
    def is_partial(self) -> bool:
        """Whether it learnt from, or was measured on, only a part of what there is: then to be below it says little."""
        return self.train_bytes < self._due or self.validation_bytes < self.whole_validation_bytes

    @property
    def label(self) -> str:
        """Its name, with how much it learnt from or was measured on where that is a part: "xz of 66 kB"."""
        if self.train_bytes < self._due:
            return f"{self.name} of {_readable(self.train_bytes)}"
        return f"{self.name} on {_readable(self.validation_bytes)}" if self.is_partial else self.name

    @property
    def _due(self) -> int:
        """The bytes that it would have learnt from, had it been given all: none where it learns from none."""
        return self.whole_train_bytes if self.train_bytes else 0


@dataclass(frozen=True)
class _Part:
    """A part of a text, or a sample of it, and how many bytes all of the part has."""

    text: Stream
    whole: int

    def sampled(self, most: int) -> "_Part":
        return _Part(sample(self.text, most), self.whole)

    @property
    def size(self) -> int:
        return _text_bytes(self.text)


def all_baselines(train: Stream, validation: Stream, whole: tuple[int, int] | None = None) -> Iterator[Baseline]:
    """Every method, the quickest first, each as it is ready; of a long training text a sample, evenly spread.

    `whole` is how many bytes the parts have where those given are samples already.
    """
    whole = whole or (_text_bytes(train), _text_bytes(validation))
    learnt, held_out = _Part(train, whole[0]), _Part(validation, whole[1])
    counted = learnt.sampled(_COUNTED_MOST)
    yield from _counting(counted, held_out, (1, 5, 7))
    yield _baseline("words", word_bits(counted.text, validation), counted, held_out)
    yield _gzip(held_out)
    yield _baseline("xz alone", 8 * _xz_size(validation), None, held_out)
    yield _xz(learnt.sampled(_XZ_MOST), held_out)


def cheap_baselines(corpus: Corpus) -> list[Baseline]:
    """Those that a run is drawn against, in two seconds or so at most; none where nothing is held out.

    They are those of `all_baselines` where a text is not long: how long the run will be has no part in it.
    """
    if len(corpus.validation) < 2:
        return []
    train = _part(corpus.train, corpus.train_bytes, corpus.tokenizer, _RUN_COUNTED_MOST)
    validation = _part(corpus.validation, corpus.validation_bytes, corpus.tokenizer, _RUN_VALIDATION)
    with ThreadPoolExecutor(1) as pool:
        xz = pool.submit(_xz, train.sampled(_RUN_XZ_MOST), validation.sampled(_RUN_XZ_VALIDATION))
        return [*_counting(train, validation, (1, 5)), _gzip(validation), xz.result()]


def model_baseline(
    name: str, model: GPT, tokenizer: Tokenizer, validation: Stream, whole: int | None = None
) -> Baseline:
    """A model that has seen none of the text, measured on evenly spaced windows of the held-out part, half a context
    before every byte; of a long text a sample is encoded.

    `whole` is how many bytes the held-out part has where that given is a sample already.
    """
    tokens: list[int] = []
    few = sample(validation, _TOKEN_BYTES * _MODEL_TOKENS)
    for document in few.rstrip(bytes([BOUNDARY])).split(bytes([BOUNDARY])):
        tokens += [tokenizer.end_of_text, *tokenizer.encode(document.decode(errors="ignore"))]  # characters cut
    measured = evaluate(
        model,
        tokens,
        token_lengths=tokenizer.token_lengths,
        stride=max(1, model.config.n_positions // 2),
        max_tokens=_MODEL_TOKENS,
    )
    whole = whole or _text_bytes(validation)
    return Baseline(name, measured.bits_per_byte, 0, measured.bytes, 0, whole)


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
    block = min(block, max(1, most // _LEAST_BLOCKS))
    count = max(1, most // block)
    for index in range(count):
        start = index * (length - block) // max(1, count - 1)
        yield start, start + block


def _part(tokens: npt.NDArray[Any], size: int, tokenizer: Tokenizer, most: int) -> _Part:
    """The text of a stream of tokens that has so many bytes, or a sample of about `most` of them."""
    per_token = size / len(tokens)
    few = len(tokens) if size <= most else int(most / per_token)
    places = spread(len(tokens), few, max(1, int(_BLOCK / per_token)))
    blocks = (tokenizer.decode_bytes(tokens[start:end].tolist()) for start, end in places)
    text = b"".join(blocks).replace(END_OF_TEXT.encode(), bytes([BOUNDARY]))
    return _Part(text, size if size > most else _text_bytes(text))


def _counting(train: _Part, validation: _Part, orders: Iterable[int]) -> Iterator[Baseline]:
    for order in orders:
        name = "bytes" if order == 1 else f"{order}-gram"
        yield _baseline(name, ByteModel.fit(train.text, order).bits(validation.text), train, validation)


def _gzip(validation: _Part) -> Baseline:
    return _baseline("gzip", 8 * len(zlib.compress(validation.text, 9, -zlib.MAX_WBITS)), None, validation)


def _xz(train: _Part, validation: _Part) -> Baseline:
    with ThreadPoolExecutor(2) as pool:
        before, after = pool.map(_xz_size, (train.text, train.text + validation.text))
    return _baseline("xz", 8 * (after - before), train, validation)


def _xz_size(text: bytes) -> int:
    """The bytes that xz leaves of a text, its headers left out; the window is the whole text."""
    window = max(2**12, 1 << (len(text) - 1).bit_length())
    coding = {"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": window}
    return len(lzma.compress(text, format=lzma.FORMAT_RAW, filters=[coding]))


def _baseline(name: str, bits: float, train: _Part | None, validation: _Part) -> Baseline:
    learnt, whole = (train.size, train.whole) if train else (0, 0)
    return Baseline(name, bits / validation.size, learnt, validation.size, whole, validation.whole)


def _text_bytes(stream: Stream) -> int:
    return len(stream) - stream.count(BOUNDARY)


def _readable(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 999_500 else f"{size / 1e3:.0f} kB" if size >= 1000 else f"{size} B"
