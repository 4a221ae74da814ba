"""Simple methods (byte and word frequencies, n-grams, gzip, xz) measured like a model, in bits per byte.

Each is measured on the held-out part, and may learn from the training part. An end-of-text costs bits but counts as
no byte. A long text is sampled; a baseline that was trained or measured on a sample says so, because it is weaker
than the method could be.
"""

import lzma
import zlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from minigpt.baselines.even_sample import even_blocks, even_sample
from minigpt.baselines.ngrams import BOUNDARY, ByteNgramModel, word_frequency_bits
from minigpt.data.corpus import Corpus
from minigpt.evaluation.perplexity import evaluate
from minigpt.model.gpt import GPT
from minigpt.storage.run_record import BaselineRecord, RunRecord
from minigpt.tokenizer.tokenizer import Tokenizer

MEANINGS: Mapping[str, str] = {
    "bytes": "byte frequencies; a model that is not below this has learned nothing",
    "gzip": "repetitions within 32 kB of the held-out text; a model soon gets below this",
    "words": "word frequencies; a model below this has learned more than a dictionary",
    "xz alone": "repetitions anywhere in the held-out text",
    "xz": "repetitions anywhere in the training text; a useful model is below this",
    "5-gram": "the four preceding bytes; a model below this has learned words",
    "7-gram": "the six preceding bytes; a model below this uses a longer context",
}
_MODEL_MEANING = "a model that has not seen your text; a model below it knows your text better"

_XZ_MOST = 2**23  # bytes of training text; more takes a minute and a gigabyte
_NGRAM_MOST = 2**25  # bytes of training text whose n-grams are counted
_RUN_XZ_MOST, _RUN_NGRAM_MOST = 5 * 2**18, 2**22  # the same before a training run: about a second each
_RUN_XZ_VALIDATION, _RUN_VALIDATION = 2**18, 2**22  # bytes of held-out text before a training run
_WINDOW, _WINDOWS = 50, 200  # bytes of the windows of held-out text that are searched for in the training text
_BLOCK = 2**16  # bytes of the blocks of a sample
_MODEL_TOKENS, _MOST_TOKEN_BYTES = 2**15, 8  # tokens that another model is measured on; bytes enough for each

ByteStream = bytes  # documents in UTF-8, each followed by BOUNDARY


@dataclass(frozen=True, kw_only=True)
class Baseline(BaselineRecord):
    """The result of one method, as a run records it.

    Units: `train_bytes` of training text that it was given, 0 for a method that is given none; `validation_bytes` of
    held-out text that it was measured on. `whole_train_bytes` and `whole_validation_bytes` are the sizes of both parts,
    0 if not known.
    """

    @property
    def meaning(self) -> str:
        """What the method uses, and what a lower loss says about a model."""
        return MEANINGS.get(self.name, _MODEL_MEANING)

    @property
    def is_partial(self) -> bool:
        """Whether it was trained or measured on a sample: then a model below it need not be better than the method."""
        return self._has_partial_training or self.validation_bytes < self.whole_validation_bytes

    @property
    def label(self) -> str:
        """Its name, with the size of the sample if there is one: "xz (trained on 66 kB)"."""
        if self._has_partial_training:
            return f"{self.name} (trained on {_readable(self.train_bytes)})"
        return f"{self.name} (measured on {_readable(self.validation_bytes)})" if self.is_partial else self.name

    @property
    def _has_partial_training(self) -> bool:
        return 0 < self.train_bytes < self.whole_train_bytes


@dataclass(frozen=True)
class _TextPart:
    """The training part or the held-out part of a text, or a sample of it; `whole` is the size of the part in bytes."""

    text: ByteStream
    whole: int

    def sampled(self, most: int) -> "_TextPart":
        return _TextPart(even_sample(self.text, most), self.whole)

    @property
    def size(self) -> int:
        return _text_bytes(self.text)


def all_baselines(
    train: ByteStream, validation: ByteStream, whole: tuple[int, int] | None = None
) -> Iterator[Baseline]:
    """Measures every method, the fastest first; a long training text is sampled.

    `whole` are the sizes of both parts in bytes if those given are already samples.
    """
    whole = whole or (_text_bytes(train), _text_bytes(validation))
    train_part, validation_part = _TextPart(train, whole[0]), _TextPart(validation, whole[1])
    counted = train_part.sampled(_NGRAM_MOST)
    yield from _ngrams(counted, validation_part, (1, 5, 7))
    yield _baseline("words", word_frequency_bits(counted.text, validation), counted, validation_part)
    yield _gzip(validation_part)
    yield _baseline("xz alone", 8 * _xz_size(validation), None, validation_part)
    yield _xz(train_part.sampled(_XZ_MOST), validation_part)


def cheap_baselines(corpus: Corpus) -> list[Baseline]:
    """Measures the baselines that a training run is compared with, in about two seconds; none if nothing is held out.

    For a short text they equal those of `all_baselines`.
    """
    if len(corpus.validation) < 2 or not corpus.validation_bytes:
        return []
    train, validation = _decoded_parts(corpus)
    with ThreadPoolExecutor(1) as pool:
        xz = pool.submit(_xz, train.sampled(_RUN_XZ_MOST), validation.sampled(_RUN_XZ_VALIDATION))
        return [*_ngrams(train, validation, (1, 5)), _gzip(validation), xz.result()]


def copied_share(corpus: Corpus) -> float:
    """About how much of the held-out text also occurs in the training text, as the fraction of some windows of 50 bytes
    that do; both texts are sampled like for `cheap_baselines`."""
    if not corpus.validation_bytes:
        return 0.0
    train, validation = (part.text for part in _decoded_parts(corpus))
    starts = range(0, len(validation) - _WINDOW + 1, max(1, len(validation) // _WINDOWS))
    windows = [window for start in starts if BOUNDARY not in (window := validation[start : start + _WINDOW])]
    return sum(window in train for window in windows) / len(windows) if windows else 0.0


def model_baseline(
    name: str, model: GPT, tokenizer: Tokenizer, validation: ByteStream, whole: int | None = None
) -> Baseline:
    """Measures a model that has not seen the text, in evenly spaced windows that overlap by half the context.

    `whole` is the size of the held-out part in bytes if `validation` is already a sample.
    """
    tokens: list[int] = []
    sample = even_sample(validation, _MOST_TOKEN_BYTES * _MODEL_TOKENS)
    for document in sample.rstrip(bytes([BOUNDARY])).split(bytes([BOUNDARY])):
        # A sample may cut a character in two: its bytes are ignored.
        tokens += [tokenizer.start_of_text, *tokenizer.encode(document.decode(errors="ignore"))]
    measured = evaluate(
        model,
        tokens,
        token_lengths=tokenizer.token_lengths,
        stride=max(1, model.config.n_positions // 2),
        max_tokens=_MODEL_TOKENS,
    )
    return Baseline(
        name=name,
        bits_per_byte=measured.bits_per_byte,
        train_bytes=0,
        validation_bytes=measured.bytes,
        whole_validation_bytes=whole or _text_bytes(validation),
    )


def beaten_since(log: Iterable[Mapping[str, Any]], baselines: Mapping[str, float]) -> dict[str, int]:
    """The step from which on a run stays below each baseline, without the baselines that it ends above.

    `baselines` are bits per byte by label.
    """
    since: dict[str, int] = {}
    for record in log:
        measured = record.get("bits_per_byte")
        if measured is None:
            continue
        for label, bits_per_byte in baselines.items():
            if measured >= bits_per_byte:
                since.pop(label, None)
            else:
                since.setdefault(label, record["step"])
    return since


def recorded_baselines(record: RunRecord) -> list[Baseline]:
    """The baselines that a run measured, the worst first; none if it measured none, or changed its text since, or
    measures its loss on a part of the text only, as baselines do not.
    """
    kept, corpus = record.baselines, record.corpus
    if record.training is not None and record.training.scored_role != "all":
        return []
    if kept is None or corpus is None or kept.fingerprint != corpus.fingerprint:
        return []
    found = [Baseline(**vars(measured)) for measured in kept.measured]
    return sorted(found, key=lambda baseline: -baseline.bits_per_byte)


def _decoded_parts(corpus: Corpus) -> tuple[_TextPart, _TextPart]:
    """The training part and the held-out part, sampled if they are long."""
    return (
        _decoded_part(corpus.train, corpus.train_bytes, corpus.tokenizer, _RUN_NGRAM_MOST),
        _decoded_part(corpus.validation, corpus.validation_bytes, corpus.tokenizer, _RUN_VALIDATION),
    )


def _decoded_part(tokens: npt.NDArray[Any], size: int, tokenizer: Tokenizer, most: int) -> _TextPart:
    """The text of a stream of tokens with `size` bytes, or a sample of about `most` bytes."""
    per_token = size / len(tokens)
    most_tokens = len(tokens) if size <= most else int(most / per_token)
    blocks = even_blocks(len(tokens), most_tokens, max(1, int(_BLOCK / per_token)))
    boundary = bytes([BOUNDARY])
    text = b"".join(boundary.join(tokenizer.document_bytes(tokens[start:end])) for start, end in blocks)
    return _TextPart(text, size if size > most else _text_bytes(text))


def _ngrams(train: _TextPart, validation: _TextPart, orders: Iterable[int]) -> Iterator[Baseline]:
    for order in orders:
        name = "bytes" if order == 1 else f"{order}-gram"
        yield _baseline(name, ByteNgramModel.fit(train.text, order).bits(validation.text), train, validation)


def _gzip(validation: _TextPart) -> Baseline:
    return _baseline("gzip", 8 * len(zlib.compress(validation.text, 9, -zlib.MAX_WBITS)), None, validation)


def _xz(train: _TextPart, validation: _TextPart) -> Baseline:
    with ThreadPoolExecutor(2) as pool:
        before, after = pool.map(_xz_size, (train.text, train.text + validation.text))
    return _baseline("xz", 8 * (after - before), train, validation)


def _xz_size(text: bytes) -> int:
    """The size of the text compressed by xz, without headers, in bytes; the dictionary covers the whole text."""
    dictionary = max(2**12, 1 << (len(text) - 1).bit_length())
    coding = {"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": dictionary}
    return len(lzma.compress(text, format=lzma.FORMAT_RAW, filters=[coding]))


def _baseline(name: str, bits: float, train: _TextPart | None, validation: _TextPart) -> Baseline:
    return Baseline(
        name=name,
        bits_per_byte=bits / validation.size,
        train_bytes=train.size if train else 0,
        validation_bytes=validation.size,
        whole_train_bytes=train.whole if train else 0,
        whole_validation_bytes=validation.whole,
    )


def _text_bytes(stream: ByteStream) -> int:
    return len(stream) - stream.count(BOUNDARY)


def _readable(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 999_500 else f"{size / 1e3:.0f} kB" if size >= 1000 else f"{size} B"
