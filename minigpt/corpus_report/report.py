"""Everything there is to know of a text before a model is trained on it, and what to mend first; it mends nothing."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from minigpt.corpus_report.characters import Characters
from minigpt.corpus_report.duplicates import Copies, Excerpt, NearCopies, find_copies, first_difference, texts_of
from minigpt.corpus_report.issue_kinds import TRAILING, UNDECODABLE
from minigpt.corpus_report.issues import Trouble, find_troubles
from minigpt.corpus_report.languages import language_shares
from minigpt.corpus_report.locations import Place, find_passages
from minigpt.corpus_report.overlap import MOST_BYTES, Overlap, Repeat, find_overlap, find_repeat
from minigpt.data.sources import Piece, Scan
from minigpt.data.split import ValidationSplit
from minigpt.evaluation.baselines import Baseline, Stream, all_baselines, model_baseline, sample
from minigpt.evaluation.ngrams import BOUNDARY
from minigpt.model.gpt import GPT
from minigpt.tokenizer.tokenizer import Tokenizer, requested_vocab_size
from minigpt.tokenizer.vocabulary import END_OF_TEXT

Progress = Callable[[str, int, int], None]  # what is being done, bytes done, bytes in all

_MOST_TRAIN, _MOST_VALIDATION = 2**25, 2**24  # bytes of each part kept in memory
_TOKENIZER_TRAIN, _TOKENIZER_TEXT = 2**23, 2**20  # bytes that tokenizers learn from, and are measured on
_TRAINING_CHUNK = 2**16  # bytes; Hugging Face's trainer needs a hundred times the memory of each text
_SHOWN = 2000  # bytes of a passage by which it is found again
_MUCH_OVERLAP, _MANY_COPIES, _MANY_NEAR = 0.01, 0.01, 0.02  # shares from which on they are worth mending
_LONG_REPEAT = 1000  # bytes
_MANY_TRAILING = 0.01  # of the lines


@dataclass(frozen=True)
class Passage:
    """A passage that stands where another does, its beginning, and two places of it where they were found.

    Of a near copy: the words where it first differs from the other, and its own place.
    """

    text: str
    bytes: int
    places: tuple[Place, ...]


@dataclass(frozen=True)
class Compression:
    """How many bytes of the held-out text a token of some tokenizer stands for, on average."""

    tokenizer: str
    vocab_size: int
    bytes_per_token: float


@dataclass(frozen=True)
class Finding:
    """Something worth mending: what it is, how much of it, and what to do."""

    what: str
    advice: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """What an examination found.

    Units: bytes are UTF-8's. `repeat_bytes` is how much of the text the longest repeat was looked for in.
    """

    files: tuple[str, ...]
    encoding_errors: str
    skipped: tuple[str, ...]
    text_bytes: int
    documents: int
    characters: int
    different_characters: int
    lines: int
    line_ends: dict[str, int]
    longest_line: int
    scripts: dict[str, float]
    languages: dict[str, float]
    troubles: list[Trouble]
    copies: list[Copies]
    near: NearCopies
    near_passages: tuple[Passage, ...]  # the two most alike
    copy_places: dict[str, tuple[Place, ...]]  # by an example's text
    repeat: Repeat | None
    repeat_passage: Passage | None
    repeat_bytes: int
    held_out: str
    validation_bytes: int
    validation_looked_at: int
    overlap: Overlap
    overlap_passage: Passage | None
    compressions: list[Compression]
    baselines: list[Baseline]

    def findings(self) -> list[Finding]:
        """What is worth mending, the gravest first."""
        stops = [
            trouble for trouble in self.troubles if trouble.kind == UNDECODABLE and self.encoding_errors == "strict"
        ]
        found = [_finding(trouble) for trouble in stops]
        if self.overlap.share >= _MUCH_OVERLAP:
            found.append(
                Finding(
                    f"{self.overlap.share:.1%} of the held-out text stands in the training text too",
                    "validation will look better than it is; remove copies before you train",
                )
            )
        for copies in self.copies:
            share = copies.copied_bytes / copies.looked_at / self.text_bytes
            if share >= _MANY_COPIES:
                found.append(
                    Finding(
                        f"{copies.copies:,} {copies.kind} are copies, {share:.1%} of the text",
                        "a model learns by heart what it sees often; keep one of each",
                    )
                )
                break  # the lines of a paragraph that is a copy are copies too
        for trouble in self.troubles:
            few = trouble.kind == TRAILING and trouble.count < _MANY_TRAILING * self.lines
            if trouble not in stops and not few:
                found.append(_finding(trouble))
        if self.near.units and self.near.copies / self.near.units >= _MANY_NEAR:
            share = self.near.copies / self.near.units
            found.append(
                Finding(
                    f"{share:.1%} of the {self.near.kind} are nearly copies of another",
                    "keep one of each, or at least all of them on one side of the held-out part",
                )
            )
        if self.repeat and self.repeat.length >= _LONG_REPEAT:
            found.append(
                Finding(
                    f"a passage of {self.repeat.length:,} bytes stands twice",
                    "keep one of the two, unless it belongs to the text",
                )
            )
        return found


def examine(
    found: Scan,
    *,
    encoding_errors: str = "strict",
    validation_fraction: float | None = None,
    tokenizers: Sequence[str] = ("gpt2", "bytes", "chars"),
    model: tuple[str, GPT, Tokenizer] | None = None,
    progress: Progress = lambda *_: None,
) -> Report:
    """Examines a text in bounded memory; what is looked at in part only says in how much of it.

    `found` is a scan that replaces what is no UTF-8, lest it end there; `encoding_errors` is what training would do
    about that. The parts are those that training would hold out and train on. `model` is one that has not seen the
    text, with its name and tokenizer.
    Raises: ConfigError and TokenizerError for settings that are none.
    """
    for spec in tokenizers:
        requested_vocab_size(spec)
    troubles, characters = _read(found, progress)
    copies, near = find_copies(_told(found.pieces(), "comparing", found.text_bytes, progress), found.n_documents)
    split = ValidationSplit.plan(found, validation_fraction)
    parts = _Parts(found, split, progress)
    overlap = find_overlap(parts.validation, _train_pieces(found, split, progress), BOUNDARY)
    progress("looking for repeats", 0, 1)
    whole = sample(parts.whole, MOST_BYTES)
    repeat = find_repeat(whole)
    repeated = whole[repeat.first : repeat.first + repeat.length] if repeat else b""
    shared = parts.validation[overlap.start : overlap.start + overlap.length]
    examples = [example for unit in copies if (example := search_key(unit.example))]
    alike = texts_of(_told(found.pieces(), "finding again", found.text_bytes, progress), near)
    excerpts = first_difference(*alike) if alike else ()
    lines = [excerpt.line for excerpt in excerpts]
    places = find_passages(found, [*examples, *lines, _beginning(repeated), _beginning(shared)])
    return Report(
        files=tuple(file.name for file in found.files),
        encoding_errors=encoding_errors,
        skipped=found.skipped,
        text_bytes=found.text_bytes,
        documents=found.n_documents,
        characters=characters.total,
        different_characters=int((characters.counts > 0).sum()),
        lines=characters.lines,
        line_ends=characters.line_ends,
        longest_line=characters.longest_line,
        scripts=characters.scripts(),
        languages=language_shares(parts.whole),
        troubles=troubles,
        copies=copies,
        near=near,
        near_passages=tuple(_near_passages(excerpts, alike or (), places)),
        copy_places={key: tuple(places[key]) for key in examples},
        repeat=repeat,
        repeat_passage=_passage(repeated, places),
        repeat_bytes=len(whole),
        held_out=split.kind if parts.validation_bytes else "nothing",
        validation_bytes=parts.validation_bytes,
        validation_looked_at=len(parts.validation),
        overlap=overlap,
        overlap_passage=_passage(shared, places),
        compressions=list(_compressions(tokenizers, parts, progress)),
        baselines=list(_baselines(parts, model, progress)),
    )


class _Kept:
    """The pieces of a text of about so many bytes that are kept: all, or every so many-th, `most` bytes in all."""

    def __init__(self, size: float, most: int) -> None:
        self.share, self.due, self.text = min(1.0, most / max(1.0, size)), 0.0, bytearray()

    def offer(self, piece: bytes) -> None:
        self.due += self.share
        if self.due >= 1:
            self.due -= 1
            self.text += piece


class _Parts:
    """What training would train on and hold out, and the whole, each a sample where it is long."""

    def __init__(self, found: Scan, split: ValidationSplit, progress: Progress) -> None:
        whole = _Kept(found.text_bytes, MOST_BYTES)
        train = _Kept(found.text_bytes, _MOST_TRAIN)
        validation = _Kept(split.fraction * found.text_bytes, _MOST_VALIDATION)
        self.train_bytes = self.validation_bytes = 0

        def tapped() -> Iterator[Piece]:
            for piece, ends in _told(found.pieces(), "dividing", found.text_bytes, progress):
                whole.offer(piece.encode() + bytes([BOUNDARY]) * ends)
                yield piece, ends

        for part, text in split.apply(tapped()):
            stream = _stream(text)
            size = len(stream) - stream.count(BOUNDARY)
            if part == "train":
                train.offer(stream)
                self.train_bytes += size
            else:
                validation.offer(stream)
                self.validation_bytes += size
        self.whole, self.train, self.validation = bytes(whole.text), bytes(train.text), bytes(validation.text)


def _read(found: Scan, progress: Progress) -> tuple[list[Trouble], Characters]:
    done, total = 0, sum(file.path.stat().st_size for file in found.files)

    def advance(size: int) -> None:
        nonlocal done
        done += size
        progress("reading", done, max(done, total))  # a zipped file holds more than it has

    return find_troubles(found, advance)


def _told(pieces: Iterable[Piece], what: str, total: int, progress: Progress) -> Iterator[Piece]:
    done = 0
    for piece, ends in pieces:
        yield piece, ends
        done += len(piece)
        progress(what, done, max(done, total))


def _train_pieces(found: Scan, split: ValidationSplit, progress: Progress) -> Iterator[bytes]:
    told = _told(found.pieces(), "looking for leaks", found.text_bytes, progress)
    return (_stream(text) for part, text in split.apply(told) if part == "train")


def _stream(text: str) -> Stream:
    return text.encode().replace(END_OF_TEXT.encode(), bytes([BOUNDARY]))


def _plain(stream: Stream) -> str:
    return stream.replace(bytes([BOUNDARY]), b"").decode(errors="ignore")


def _compressions(specs: Sequence[str], parts: _Parts, progress: Progress) -> Iterator[Compression]:
    """Each tokenizer, trained where it is one that is, on the held-out part or, where there is none, on the other."""
    seen = sample(parts.train, _TOKENIZER_TRAIN)
    text = _plain(sample(parts.validation or parts.train, _TOKENIZER_TEXT))
    texts = [_plain(seen[start : start + _TRAINING_CHUNK]) for start in range(0, len(seen), _TRAINING_CHUNK)]
    names = set()
    for number, spec in enumerate(specs):
        progress("tokenizing", number, len(specs))
        tokenizer = Tokenizer.named(spec) if spec in ("gpt2", "bytes") else Tokenizer.train(texts, spec)
        if tokenizer.name in names:  # a short text has fewer words than are asked for
            continue
        names.add(tokenizer.name)
        count = len(tokenizer.encode_array(text))
        yield Compression(tokenizer.name, tokenizer.vocab_size, len(text.encode()) / max(1, count))


def _baselines(parts: _Parts, model: tuple[str, GPT, Tokenizer] | None, progress: Progress) -> Iterator[Baseline]:
    if not parts.validation_bytes:
        return
    measured = all_baselines(parts.train, parts.validation, (parts.train_bytes, parts.validation_bytes))
    for number, baseline in enumerate(measured, 1):
        progress("measuring baselines", number, 7)
        yield baseline
    if model is not None:
        progress(f"measuring {model[0]}", 0, 1)
        yield model_baseline(*model, parts.validation, parts.validation_bytes)


def _finding(trouble: Trouble) -> Finding:
    return Finding(f"{trouble.kind}, {trouble.count:,} at or after {trouble.places[0]}", trouble.advice)


def _beginning(passage: bytes) -> str:
    """What is shown of a passage, and found again: the beginning, of its first document."""
    first = next(filter(None, passage.split(bytes([BOUNDARY]))), b"")
    return first[:_SHOWN].decode(errors="ignore")


def search_key(example: str) -> str:
    """A line of an example by which it can be found in its file, whose line ends and white space may be others."""
    return max(example.splitlines(), key=len, default="").strip()


def _passage(passage: bytes, places: Mapping[str, Sequence[Place]]) -> Passage | None:
    beginning = _beginning(passage)
    return Passage(beginning, len(passage), tuple(places[beginning])) if beginning else None


def _near_passages(
    excerpts: Sequence[Excerpt], texts: Sequence[str], places: Mapping[str, Sequence[Place]]
) -> Iterator[Passage]:
    """One place for each of two near copies, though the line of one may stand in the other too."""
    found = [list(places[excerpt.line]) for excerpt in excerpts]
    for number, (excerpt, text) in enumerate(zip(excerpts, texts, strict=True)):
        own, other = found[number], {(place.file, place.line) for place in found[1 - number]}
        alone = [place for place in own if (place.file, place.line) not in other] or own[min(number, len(own) - 1) :]
        yield Passage(excerpt.words, len(text.encode()), tuple(alone[:1]))
