"""The report on a text: its contents, its problems, and what to fix first."""

from collections.abc import Iterator
from dataclasses import dataclass

from minigpt.baselines.baselines import Baseline
from minigpt.corpus_report.duplicates import DuplicateStats
from minigpt.corpus_report.issue_kinds import TRAILING, UNDECODABLE
from minigpt.corpus_report.issues import Issue
from minigpt.corpus_report.locations import Location
from minigpt.corpus_report.near_duplicates import NearDuplicateStats
from minigpt.corpus_report.repeats import Overlap, Repeat

# Below these, a finding is not worth fixing.
_MIN_OVERLAP_SHARE, _MIN_DUPLICATE_SHARE, _MIN_NEAR_DUPLICATE_SHARE = 0.01, 0.01, 0.02
_MIN_REPEAT = 1000  # bytes
_MIN_TEXT = 10_000  # bytes: with fewer, a model learns little but the text itself
_MIN_TRAILING_SHARE = 0.01  # of the lines


@dataclass(frozen=True)
class Passage:
    """A repeated passage: its beginning, its length in bytes, and up to two of its locations.

    Of a near-duplicate: the words around its first difference from the other, and only its own location.
    """

    text: str
    bytes: int
    locations: tuple[Location, ...]


@dataclass(frozen=True)
class Compression:
    """The bytes of the held-out text per token of a tokenizer, on average."""

    tokenizer: str
    vocab_size: int
    bytes_per_token: float


@dataclass(frozen=True)
class Finding:
    """Something worth fixing: a description with the amount, and advice."""

    what: str
    advice: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """All results for one text.

    Units: bytes are UTF-8 bytes. `repeat_bytes` is how much of the text was searched for the longest repeat.
    `validation_sample_bytes` is how much of the held-out text was compared with the training text.
    `encoding_errors` is what training would do with invalid bytes.
    """

    files: tuple[str, ...]
    encoding_errors: str
    skipped: tuple[str, ...]
    not_measured: str  # a sentence, if the packages of the extra `corpus` are missing
    text_bytes: int
    documents: int
    characters: int
    distinct_characters: int
    lines: int
    line_endings: dict[str, int]
    longest_line: int
    scripts: dict[str, float]
    languages: dict[str, float]
    issues: list[Issue]
    duplicates: list[DuplicateStats]
    near_duplicates: NearDuplicateStats
    near_duplicate_passages: tuple[Passage, ...]  # the most similar pair
    repeat: Repeat | None
    repeat_passage: Passage | None
    repeat_bytes: int
    held_out: str
    held_out_differences: tuple[str, ...]  # from the training text, as in "100% in de (training text: 50%)"
    validation_bytes: int
    validation_sample_bytes: int
    overlap: Overlap
    overlap_passage: Passage | None
    compressions: list[Compression]
    baselines: list[Baseline]

    def findings(self) -> list[Finding]:
        """The findings that are worth fixing, the most serious first."""
        return list(self._findings())

    def _findings(self) -> Iterator[Finding]:
        stops = [issue for issue in self.issues if issue.kind == UNDECODABLE and self.encoding_errors == "strict"]
        yield from map(_finding, stops)
        if self.text_bytes < _MIN_TEXT:
            yield Finding(
                f"the text has only {self.text_bytes:,} bytes",
                "half a megabyte is a good start; add more text, or fine-tune a trained model with --from",
            )
        if self.overlap.share >= _MIN_OVERLAP_SHARE:
            yield Finding(
                f"{self.overlap.share:.1%} of the held-out text also occurs in the training text",
                "the validation loss will look better than it is; remove duplicates before training",
            )
        if self.held_out_differences:
            yield Finding(
                f"the held-out text is of another kind than the training text: {', '.join(self.held_out_differences)}",
                "the validation loss says little about the rest; give a larger --validation-fraction, or cut the text "
                "into at least 20 documents, of which some from all parts are held out",
            )
        for duplicates in self.duplicates:
            share = duplicates.duplicate_bytes / self.text_bytes
            if share >= _MIN_DUPLICATE_SHARE:
                about = "about " if duplicates.sampled_fraction < 1 else ""
                yield Finding(
                    f"{about}{duplicates.duplicates:,} {duplicates.kind} are duplicates, {share:.1%} of the text",
                    "a model memorizes what it sees often; keep one of each",
                )
                break  # the lines of a duplicate paragraph are duplicates too
        for issue in self.issues:
            is_minor = issue.kind == TRAILING and issue.count < _MIN_TRAILING_SHARE * self.lines
            if issue not in stops and not is_minor:
                yield _finding(issue)
        near = self.near_duplicates
        if near.units and near.duplicates / near.units >= _MIN_NEAR_DUPLICATE_SHARE:
            yield Finding(
                f"{near.duplicates / near.units:.1%} of the long {near.kind} are near-duplicates of another",
                "keep one of each, or keep all of them on one side of the train/validation split",
            )
        if self.repeat and self.repeat.length >= _MIN_REPEAT:
            yield Finding(
                f"a passage of {self.repeat.length:,} bytes occurs twice",
                "keep one of the two, unless the repetition belongs to the text",
            )


def _finding(issue: Issue) -> Finding:
    return Finding(f"{issue.kind}, {issue.count:,} from {issue.locations[0]} on", issue.advice)
