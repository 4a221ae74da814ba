"""What `minigpt train` prints after a run: what to do next, or how to resume it."""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import chain, takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from minigpt.cli.options import command_line
from minigpt.cli.render.terminal import note, write

if TYPE_CHECKING:
    from minigpt.cli.render.annotations import Annotations
    from minigpt.data.corpus import Corpus
    from minigpt.runs.job import Job
    from minigpt.storage.run import Run


# An example of a prompt.
_TOKENS = 20_000  # of the text that is searched
_WORDS, _SHORTEST, _LONGEST = 4, 12, 40  # words of a prompt; characters of one
_LONGEST_WORD = 25  # characters for each space of a line
_WITHOUT_SPACES = 10  # characters of a prompt in a script that puts no spaces between words
_LINE = 40  # characters of a line that is long enough to continue
_REPLACEMENT = "\ufffd"


def print_next_steps(job: "Job", checkpoints: Path, annotations: "Sequence[Annotations]") -> None:
    """What would make the model better, and a command that tries it, by default with words of the training text."""
    for step in chain.from_iterable(each.next_steps(job) for each in annotations):
        note(step.text)
        for command in step.commands:
            note(f"  {command_line(*command, checkpoints=checkpoints)}", is_command=True)
    if first := next(filter(None, (each.first_try(job) for each in annotations)), None):
        note(first.text)
        for command in first.commands:
            write(command_line(*command, checkpoints=checkpoints))
        return
    prompt, name = example_prompt(job.corpus), job.run.directory.name
    note("try it with:")
    words = [] if prompt is None else [prompt]
    reading = job.run.record.reading
    if words and reading is not None and reading.special_tokens:
        words.append("--special-tokens")
    write(command_line("generate", *words, "--model", name, checkpoints=checkpoints))


def example_prompt(corpus: "Corpus") -> str | None:
    """The first words of a long line of the held-out text, or of the training text if nothing was held out.

    It is one line of printable characters that does not begin like an option. None if the text has no such line. A line
    that begins with words is preferred to one of a table or a drawing.
    """
    tokens = corpus.validation if len(corpus.validation) > 1 else corpus.train
    text = b"\n".join(corpus.tokenizer.document_bytes(tokens[:_TOKENS])).decode(errors="replace")

    def rank(line: str) -> tuple[bool, int]:
        words = _first_words(line)
        is_prose = 2 * sum(map(str.isalpha, words)) > sum(not character.isspace() for character in words)
        return is_prose, min(len(line), _LINE)

    best = max(_beginnings(text), key=rank, default=None)
    return None if best is None else _first_words(best)


def _beginnings(text: str) -> Iterator[str]:
    """The lines of a text, then the sentences of its first line, up to the first character that is not printable.

    The first line comes last, because the held-out part may begin within it.
    """
    first, *lines = text.split("\n")
    sentences = re.split(r"(?<=[.!?])\s+|(?<=[。！？])", first)
    for line in [*lines, *sentences[1:], sentences[0]]:
        found = "".join(takewhile(lambda each: each.isprintable() and each != _REPLACEMENT, line.strip())).strip()
        if found and not found.startswith("-") and any(map(str.isalpha, found)):
            yield found


def _first_words(line: str) -> str:
    """The first words of a line, without the space after them; of a script without spaces, the first characters."""
    end = min(len(line), _WITHOUT_SPACES)
    if line.count(" ") >= len(line) / _LONGEST_WORD:  # in Chinese, Japanese and Thai it is not
        ends = [match.end() for match in re.finditer(r"\S+", line) if match.end() <= _LONGEST]
        enough = [end for end in ends[_WORDS - 1 :] if end >= _SHORTEST]
        end = (enough or ends[-1:] or [_LONGEST])[0]
    while end < len(line) and unicodedata.combining(line[end]):
        end += 1
    return line[:end]


def print_how_to_resume(job: "Job", checkpoints: Path) -> None:
    saved, command = how_to_resume(job.run, checkpoints)
    note(f"stopped: {saved}; continue with:")
    note(command, is_command=True)


def how_to_resume(run: "Run", checkpoints: Path, *options: str) -> tuple[str, str]:
    """What is saved of a run that ended early, and the command that continues from it with these options."""
    from minigpt.runs.job import stage_state
    from minigpt.runs.saved_state import last_state, weights_without_state

    directory, command = run.directory, ("--resume", "--name", run.directory.name)
    if (step := weights_without_state(run)) is not None:
        saved, command = (
            f"only the weights of step {step:,} are saved in {directory}",
            ("TEXT", "--from", directory.name),
        )
    elif (stage := stage_state(run)) is not None and stage.saved:
        saved = f"{stage.saved} is saved in {directory}"
    elif (state := last_state(run)) is not None:
        saved = f"step {state.step:,} is saved in {directory}"
    else:
        saved = "nothing was saved yet"
    return saved, command_line("train", *command, *options, checkpoints=checkpoints)
