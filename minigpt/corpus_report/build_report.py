"""Builds the report on a text, in bounded memory."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from minigpt.baselines.baselines import Baseline, ByteStream, all_baselines, model_baseline
from minigpt.baselines.even_sample import even_sample
from minigpt.baselines.ngrams import BOUNDARY
from minigpt.corpus_report.characters import Characters
from minigpt.corpus_report.duplicates import find_duplicates, find_examples
from minigpt.corpus_report.issues import Issue, find_issues
from minigpt.corpus_report.languages import differences, language_shares
from minigpt.corpus_report.locations import Location, find_passages
from minigpt.corpus_report.near_duplicates import Excerpt, first_difference
from minigpt.corpus_report.repeats import MOST_BYTES, Overlap, find_overlap, find_repeat
from minigpt.corpus_report.report import Compression, Passage, Report
from minigpt.data.sources import BLOCK_SIZE, Piece, Scan
from minigpt.data.split import ValidationSplit
from minigpt.errors import MissingPackageError
from minigpt.model.gpt import GPT
from minigpt.optional_packages import check_installed
from minigpt.tokenizer.bpe_training import requested_vocab_size
from minigpt.tokenizer.tokenizer import Tokenizer
from minigpt.tokenizer.vocabulary import END_OF_TEXT

StageProgress = Callable[[str, int, int], None]  # the current stage, bytes done, bytes in total

_MOST_TRAIN, _MOST_VALIDATION = 2**25, 2**24  # bytes of each part kept in memory
_TOKENIZER_TRAIN, _TOKENIZER_TEXT = 2**23, 2**20  # bytes that tokenizers are trained on, and measured on
_TOKENIZER_CHUNK = 2**16  # bytes; Hugging Face's trainer needs a hundred times the memory of each text
_EXAMPLE_LENGTH = 160  # characters of a duplicate
_MOST_PASSAGE = 2000  # bytes of a passage that are searched for
_N_BASELINES = 7


def build_report(
    found: Scan,
    *,
    encoding_errors: str = "strict",
    validation_fraction: float | None = None,
    tokenizers: Sequence[str] = ("gpt2", "bytes", "chars"),
    model: tuple[str, GPT, Tokenizer] | None = None,
    progress: StageProgress = lambda *_: None,
) -> Report:
    """Builds the report on a text; results from a sample of a large text say so.

    `found` is a scan with `encoding_errors="replace"`, so that invalid bytes do not end it; `encoding_errors` is what
    training would use. The text is split as training would split it. `model` (name, model, tokenizer) is measured
    in addition to the baselines; it must not have seen the text.
    Without the packages of the extra `corpus`, it has no languages, repeats and leakage, and says so.
    Raises: ConfigError and TokenizerError for invalid settings.
    """
    for spec in tokenizers:
        requested_vocab_size(spec)
    issues, characters = _read_characters(found, progress)
    duplicates, near = find_duplicates(_pieces(found, "finding duplicates", progress), found.n_documents)
    validation_split = ValidationSplit.plan(found, validation_fraction)
    split = _SplitText(found, validation_split, progress)
    not_measured, overlap, repeat = _missing_packages(), Overlap(), None
    searched = even_sample(split.all, MOST_BYTES)
    if not not_measured:
        parts = validation_split.apply(_pieces(found, "comparing the two parts", progress))
        train = (_byte_stream(text) for part, text in parts if part == "train")
        overlap = find_overlap(split.validation, train, BOUNDARY)
        progress("finding the longest repeat", 0, 1)
        repeat = find_repeat(searched)
    repeated = searched[repeat.first : repeat.first + repeat.length] if repeat else b""
    shared = split.validation[overlap.start : overlap.start + overlap.length]
    hashes = {*near.examples, *(each.example_hash for each in duplicates if each.example_hash is not None)}
    texts = find_examples(_pieces(found, "finding examples", progress), hashes)
    examples = ["" if each.example_hash is None else _longest_line(texts[each.example_hash]) for each in duplicates]
    pair = [texts[each] for each in near.examples]
    excerpts = first_difference(*pair) if pair else ()
    lines = [excerpt.line for excerpt in excerpts]
    locations = find_passages(found, [*examples, *lines, _beginning(repeated), _beginning(shared)])
    return Report(
        files=tuple(file.name for file in found.files),
        encoding_errors=encoding_errors,
        skipped=found.skipped,
        not_measured=not_measured,
        text_bytes=found.text_bytes,
        documents=found.n_documents,
        characters=characters.total,
        distinct_characters=characters.distinct,
        lines=characters.lines,
        line_endings=characters.line_endings,
        longest_line=characters.longest_line,
        scripts=characters.scripts(),
        languages=language_shares(split.all),
        issues=issues,
        duplicates=[
            replace(each, example=line, locations=tuple(locations.get(line, ())))
            for each, line in zip(duplicates, examples, strict=True)
        ],
        near_duplicates=near,
        near_duplicate_passages=tuple(_near_duplicate_passages(excerpts, pair, locations)),
        repeat=repeat,
        repeat_passage=_passage(repeated, locations),
        repeat_bytes=len(searched),
        held_out=validation_split.description if split.validation_bytes else "nothing",
        held_out_differences=tuple(differences(split.train, split.validation)),
        validation_bytes=split.validation_bytes,
        validation_sample_bytes=len(split.validation),
        overlap=overlap,
        overlap_passage=_passage(shared, locations),
        compressions=list(_compressions(tokenizers, split, progress)),
        baselines=list(_baselines(split, model, progress)),
    )


def _missing_packages() -> str:
    """A sentence on the packages that are missing and on what is not measured without them, or nothing."""
    try:
        check_installed("measuring languages, repeated passages and leakage", "py3langid", "pydivsufsort")
    except MissingPackageError as error:
        return str(error)
    return ""


class _Sample:
    """Keeps the first block of a text of about `size` bytes and evenly spaced others, about `most` bytes in total.

    A block is a piece of the text, or a part of a long piece.
    """

    def __init__(self, size: float, most: int) -> None:
        self._fraction, self._offered, self.text = min(1.0, most / max(1.0, size)), 0, bytearray()

    def offer(self, piece: bytes) -> None:
        for start in range(0, len(piece), BLOCK_SIZE):
            block = piece[start : start + BLOCK_SIZE]
            self._offered += len(block)
            if not self.text or len(self.text) + len(block) <= self._fraction * self._offered:
                self.text += block


class _SplitText:
    """All of the text, its training part and its held-out part, each sampled if it is long."""

    def __init__(self, found: Scan, validation_split: ValidationSplit, progress: StageProgress) -> None:
        everything = _Sample(found.text_bytes, MOST_BYTES)
        train = _Sample(found.text_bytes, _MOST_TRAIN)
        validation = _Sample(validation_split.fraction * found.text_bytes, _MOST_VALIDATION)
        self.train_bytes = self.validation_bytes = 0

        def pieces() -> Iterator[Piece]:
            for piece, ends_document in _pieces(found, "splitting", progress):
                everything.offer(piece.encode() + bytes([BOUNDARY]) * ends_document)
                yield piece, ends_document

        for part, text in validation_split.apply(pieces()):
            stream = _byte_stream(text)
            size = len(stream) - stream.count(BOUNDARY)
            if part == "train":
                train.offer(stream)
                self.train_bytes += size
            else:
                validation.offer(stream)
                self.validation_bytes += size
        self.all, self.train, self.validation = bytes(everything.text), bytes(train.text), bytes(validation.text)


def _read_characters(found: Scan, progress: StageProgress) -> tuple[list[Issue], Characters]:
    done, total = 0, sum(file.path.stat().st_size for file in found.files)

    def advance(size: int) -> None:
        nonlocal done
        done += size
        progress("reading", done, max(done, total))  # a compressed file holds more than its size

    return find_issues(found, advance)


def _pieces(found: Scan, stage: str, progress: StageProgress) -> Iterator[Piece]:
    """Reads the text again, as one stage of the report."""
    done = 0
    for piece, ends_document in found.pieces():
        yield piece, ends_document
        done += len(piece.encode())
        progress(stage, done, max(done, found.text_bytes))


def _byte_stream(text: str) -> ByteStream:
    return text.encode().replace(END_OF_TEXT.encode(), bytes([BOUNDARY]))


def _plain_text(stream: ByteStream) -> str:
    return stream.replace(bytes([BOUNDARY]), b"").decode(errors="ignore")


def _compressions(specs: Sequence[str], split: _SplitText, progress: StageProgress) -> Iterator[Compression]:
    """Measures each tokenizer on the held-out part, after training it on the training part if it is a trained one.

    With nothing held out, all are measured on the training part.
    """
    train = even_sample(split.train, _TOKENIZER_TRAIN)
    text = _plain_text(even_sample(split.validation or split.train, _TOKENIZER_TEXT))
    texts = [_plain_text(train[start : start + _TOKENIZER_CHUNK]) for start in range(0, len(train), _TOKENIZER_CHUNK)]
    names = set()
    for number, spec in enumerate(specs):
        progress("tokenizing", number, len(specs))
        tokenizer = Tokenizer.named(spec) if spec in ("gpt2", "bytes") else Tokenizer.train(texts, spec)
        if tokenizer.name in names:  # a short text yields fewer tokens than requested
            continue
        names.add(tokenizer.name)
        count = len(tokenizer.encode_array(text))
        yield Compression(tokenizer.name, tokenizer.vocab_size, len(text.encode()) / max(1, count))


def _baselines(
    split: _SplitText, model: tuple[str, GPT, Tokenizer] | None, progress: StageProgress
) -> Iterator[Baseline]:
    if not split.validation_bytes:
        return
    measured = all_baselines(split.train, split.validation, (split.train_bytes, split.validation_bytes))
    for number, baseline in enumerate(measured, 1):
        progress("measuring baselines", number, _N_BASELINES)
        yield baseline
    if model is not None:
        progress(f"measuring {model[0]}", 0, 1)
        yield model_baseline(*model, split.validation, split.validation_bytes)


def _longest_line(text: str) -> str:
    """The longest line at the beginning of a duplicate: line endings between lines may differ in its file."""
    return max(text[:_EXAMPLE_LENGTH].splitlines(), key=len, default="").strip()


def _beginning(passage: bytes) -> str:
    """The beginning of a passage's first document, which is shown and searched for."""
    first = next(filter(None, passage.split(bytes([BOUNDARY]))), b"")
    return first[:_MOST_PASSAGE].decode(errors="ignore")


def _passage(passage: bytes, locations: Mapping[str, Sequence[Location]]) -> Passage | None:
    beginning = _beginning(passage)
    return Passage(beginning, len(passage), tuple(locations[beginning])) if beginning else None


def _near_duplicate_passages(
    excerpts: Sequence[Excerpt], texts: Sequence[str], locations: Mapping[str, Sequence[Location]]
) -> Iterator[Passage]:
    """One location for each of the two, although the line of one may also occur in the other."""
    found = [list(locations[excerpt.line]) for excerpt in excerpts]
    for number, (excerpt, text) in enumerate(zip(excerpts, texts, strict=True)):
        own, other = found[number], {(location.file, location.line) for location in found[1 - number]}
        only_own = [location for location in own if (location.file, location.line) not in other]
        chosen = only_own or own[min(number, len(own) - 1) :]
        yield Passage(excerpt.words, len(text.encode()), tuple(chosen[:1]))
