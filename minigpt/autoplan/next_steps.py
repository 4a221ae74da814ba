"""What a user can do after a run: whether it learned, whether it was still improving, and the commands that help."""

import math
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

from minigpt.autoplan.all_settings import all_settings
from minigpt.autoplan.corpus_stats import CorpusStats
from minigpt.autoplan.defaults import usual_learning_rate
from minigpt.autoplan.expectation import ExpectedRange, continued_range
from minigpt.autoplan.plan_settings import CANDIDATES, LEARNING, MAX_PARAMETERS
from minigpt.baselines.baselines import recorded_baselines
from minigpt.cli.render.annotations import NextStep
from minigpt.config import GPTConfig, ReadingConfig, TrainConfig
from minigpt.data.source_files import path_from_here
from minigpt.runs.find_run import LENGTH
from minigpt.runs.job import Job
from minigpt.runs.saved_state import last_state
from minigpt.storage.run_record import Result, RunRecord
from minigpt.tricks.token_counts import token_counts
from minigpt.units import count, shown_loss, size

_ROUND = (1, 2, 3, 5, 8, 10, 15, 20, 30, 45, 60, 90, 120, 180, 240, 360, 480, 720, 960, 1440)  # minutes that people say
_LONGER = 4.0  # times the length that is proposed: what the forecast covers
_SHORT_TEXT = 2_000_000  # bytes; a longer text teaches a small model more than GPT-2 brings
_ENGLISH = {"the", "of", "and", "to", "that", "it", "for", "with", "you", "my", "not", "be", "this", "his", "he"}
_MIN_ENGLISH = 0.17  # of the words of an English text: books have 0.19 to 0.3, other languages 0.06 at most, code 0.14
_LANGUAGE_SAMPLE = 100_000  # tokens
_MOST_DROPOUT = 0.5  # that is proposed
_GPT2 = "gpt2"
_LONG_COMMAND = 300  # characters of texts, from which on a command does not list them
_FREQUENCY_SAMPLE = 1_000_000  # tokens of the validation text
# Options that a new run on the same text needs again.
_OF_THE_TEXT = (*(field.name for field in fields(ReadingConfig)), "loss_on")
_FEWEST = 5  # evaluations that show a trend
_FEW_PASSES = 4  # over the text, up to which another one teaches much: three repetitions count as two new passes
_SMALL = 0.25  # parameters in the blocks per byte of text
_QUARTER = 0.75  # the trend is that of the last quarter of the steps
_IMPROVING, _WORSE = 0.005, 0.01  # the least change, as a fraction of the bits per byte
_TOO_HIGH, _TOO_LOW = 3.0, 0.1  # times the usual learning rate
_SUSPECT_GROUPS = ("Batch", "Optimization")
_HARMLESS = {"context_length", "micro_batch_size", "optimizer", "schedule", "loss_on", "distill", "distill_weight"}
_SUSPECTS = {"dropout"} | {
    name
    for name, field in TrainConfig.__dataclass_fields__.items()
    if field.metadata["group"] in _SUSPECT_GROUPS and name not in _HARMLESS
}
_FIXED_DEFAULTS = {
    name: field.default for name, field in TrainConfig.__dataclass_fields__.items() if not field.metadata["chosen"]
}


@dataclass(frozen=True)
class Trend:
    """The course of the validation loss towards the end of a run.

    `before` and `now` are bits per byte: of the best evaluation and the last one if it was `rising`, else at three
    quarters of the steps and at the end. `since` is the step of `before`.
    """

    direction: Literal["falling", "flat", "rising"]
    since: int
    before: float
    now: float


def next_steps(job: Job) -> list[NextStep]:
    """What helps next, most helpful first. Empty if no step was taken.

    It looks at where the loss is first, then compares evaluations of the log, and forecasts only where the experiments
    of the plan allow it. With too few evaluations, it goes by the passes over the text and the size of the model.
    """
    record = job.run.record
    if record.result is None or not record.result.step:
        return []
    if failed := list(_of_failure(job, record, record.result)):
        return failed
    evaluations = [
        (line["step"], line["bits_per_byte"])
        for line in record.comparable_evaluations(job.run.read_log())
        if isinstance(line.get("bits_per_byte"), int | float) and math.isfinite(line["bits_per_byte"])
    ]
    course = trend(evaluations)
    if course is None:
        return [*_without_trend(job, record, record.result), *_of_text(job, record)]
    return [*_of_trend(job, record, record.result, course), *_of_text(job, record)]


def trend(evaluations: Sequence[tuple[int, float]]) -> Trend | None:
    """The trend of evaluations (step, bits per byte) in order; None for fewer than five."""
    if len(evaluations) < _FEWEST:
        return None
    last_step, now = evaluations[-1]
    best_step, best = min(evaluations, key=lambda evaluation: evaluation[1])
    if now > best * (1 + _WORSE):
        return Trend("rising", best_step, best, now)
    since, before = min(evaluations[:-1], key=lambda evaluation: abs(evaluation[0] - _QUARTER * last_step))
    return Trend("falling" if now < before * (1 - _IMPROVING) else "flat", since, before, now)


def find_suspects(
    record: RunRecord, model: GPTConfig, config: TrainConfig, *, diverged: bool
) -> tuple[str, tuple[str, ...]]:
    """A sentence on the given settings that can be why a run diverged, or else why it learned nothing, and their names.

    Both are empty if there are none.
    """
    asked = {} if record.asked is None else record.asked.to_dict()
    rate, usual = config.learning_rate, usual_learning_rate(model, config, fine_tuning=record.base is not None)
    if rate > _TOO_HIGH * usual or (not diverged and rate < _TOO_LOW * usual):
        how = "high" if rate > usual else "low"
        return f"the learning rate is too {how}: {rate:g}; runs of this size use {usual:g}", ("learning_rate",)
    changed = {name: value for name, value in asked.items() if value != _FIXED_DEFAULTS.get(name)}
    names = tuple(name for name in changed if name in _SUSPECTS or (name, asked[name]) == ("dtype", "float16"))
    if not names:
        return "", ()
    settings = ", ".join(_option(name, asked[name]) for name in names)
    return f"{settings} may be why; omit {'it' if len(names) == 1 else 'them'}", names


def _option(name: str, value: object) -> str:
    """A setting as an option of the command line."""
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    return f"--{flag} {value}"


def _of_failure(job: Job, record: RunRecord, result: Result) -> Iterator[NextStep]:
    """Names the settings to change after a run that was rolled back or learned nothing."""
    state = last_state(job.run)
    rollbacks = state.recovery.rollbacks if state is not None else 0
    frequencies, loss = _token_frequency_loss(job), result.validation_loss
    if rollbacks:
        assert state is not None
        what = (
            f"training diverged {count(rollbacks, 'time')}, and ended with {state.recovery.learning_rate_factor:g} of "
            "the learning rate"
        )
    elif frequencies is not None and loss is not None and loss >= frequencies:
        what = (
            f"the model has learned no more than how often each token occurs: its validation loss is "
            f"{shown_loss(loss)}, that of token frequencies {shown_loss(frequencies)} nats per token"
        )
    else:
        return
    suspects, names = find_suspects(record, job.model.config, job.config, diverged=bool(rollbacks))
    if suspects:
        yield NextStep(f"{what}; {suspects}:", _without(record, names))


def _without(record: RunRecord, suspects: Collection[str]) -> tuple[tuple[str, ...], ...]:
    """The command of a new run with the length and the options of this one, without the suspects."""
    texts, training = _shown_sources(record), record.training
    if texts is None or training is None or record.asked is None:
        return ()
    options = _options(record, record.asked.given - LENGTH - set(suspects))
    return (("train", *texts, *options, *_length(training)),)


def _length(training: TrainConfig) -> tuple[str, str]:
    """The option for the length of a run."""
    return next((f"--{name}", _number(value)) for name in LENGTH if (value := getattr(training, name)) is not None)


def _token_frequency_loss(job: Job) -> float | None:
    """The loss of the validation text if each token is predicted by how often it occurs in the training text.

    None if there is no validation text or the losses are of a part of it. Unit: nats per token.
    """
    validation = job.corpus.validation[1:_FREQUENCY_SAMPLE]
    if job.config.scored_role != "all" or not len(validation):
        return None
    counts = token_counts(job.corpus, job.model.config.vocab_size).numpy() + 1  # (V,)
    return float(np.log(counts.sum()) - np.log(counts)[validation].mean())


def _of_trend(job: Job, record: RunRecord, result: Result, course: Trend) -> Iterator[NextStep]:
    """Continues a run that was still improving; else proposes more text, and more dropout if the run got worse."""
    change = f"{shown_loss(course.before)} to {shown_loss(course.now)} bits per byte"
    if course.direction == "falling" and result.reason != "early stop":
        yield NextStep(f"still improving at the end: {change} in the last quarter of the steps")
        yield _continuation(job, record, result)
        return
    if course.direction == "falling":
        decay = ", while the learning rate decayed" if job.config.schedule == "trapezoid" else ""
        worse = (
            f"validation stopped improving, so the run ended early: {change} in the last quarter of the steps{decay}; "
            "more minutes alone will not help"
        )
    elif course.direction == "rising":
        worse = f"validation got worse after step {course.since:,}: {change}; the best weights are kept"
    else:
        worse = f"no longer improving: {change} since step {course.since:,}; more minutes alone will not help"
    yield NextStep(worse)
    texts = _shown_sources(record)
    if texts is None:
        return
    base = ("--from", record.base) if record.base else ()
    options = _options(record, _OF_THE_TEXT)
    suspects, names = find_suspects(record, job.model.config, job.config, diverged=True)
    if course.direction == "rising" and names == ("learning_rate",):
        yield NextStep(f"{suspects}:", _without(record, names))
    yield NextStep("more text of the same kind helps most:", (("train", *texts, _more(options), *options, *base),))
    if course.direction == "rising" and record.base is None and (dropout := _more_dropout(job)):
        yield NextStep("against overfitting on this text:", (("train", *texts, *options, *dropout),))


def _more_dropout(job: Job) -> tuple[str, ...]:
    """Options with more dropout than the run had; empty if it had as much as is proposed."""
    has = {"--dropout": job.model.config.dropout}
    more = {"--dropout": has["--dropout"] + 0.2}
    if job.corpus.tokenizer.merges:
        has["--bpe-dropout"] = all_settings(job.config).bpe_dropout
        more["--bpe-dropout"] = max(0.1, 2 * has["--bpe-dropout"])
    proposed = {option: max(has[option], min(_MOST_DROPOUT, value)) for option, value in more.items()}
    if proposed == has:
        return ()
    return tuple(text for option, value in proposed.items() for text in (option, _number(value)))


def _number(value: float) -> str:
    """A number as an option takes it, to six digits: an option of whole numbers takes no exponent."""
    return str(value) if isinstance(value, int) else np.format_float_positional(float(f"{value:.6g}"), trim="-")


def _without_trend(job: Job, record: RunRecord, result: Result) -> Iterator[NextStep]:
    """Goes by how often the text was read, and by the size of the model for it."""
    assert result.step is not None
    passes, n_bytes = result.step * job.tokens_per_step / len(job.corpus.train), job.corpus.train_bytes
    times = f"{passes:.0%} of it once" if passes < 1 else f"all of it {passes:.1f} times"
    read = f"the training text has {size(n_bytes)}, and the run has read {times}"
    texts, options = _shown_sources(record), _options(record, _OF_THE_TEXT)
    longer = passes < _FEW_PASSES and result.reason != "early stop"
    if longer:
        yield NextStep(f"{read}: training longer helps most")
        yield _continuation(job, record, result)
    elif texts is None:
        yield NextStep(f"{read}: more text of the same kind helps most")
    else:
        base = ("--from", record.base) if record.base else ()
        command = ("train", *texts, _more(options), *options, *base)
        yield NextStep(f"{read}: more text of the same kind helps most:", (command,))
    if texts is None or record.base or not n_bytes or record.preset not in CANDIDATES:
        return
    options = (*options, *_length(job.config), "--preset")
    place, per_byte = CANDIDATES.index(record.preset), job.model.config.n_inner_parameters / n_bytes
    if per_byte > MAX_PARAMETERS and place:
        what = f"the model is large for the text, with {per_byte:.1f} parameters per byte in its blocks; a smaller one:"
        yield NextStep(what, (("train", *texts, *options, CANDIDATES[place - 1]),))
    elif not longer and per_byte < _SMALL and place + 1 < len(CANDIDATES):
        what = f"the model is small for the text, with {per_byte:.2f} parameters per byte in its blocks; a larger one:"
        yield NextStep(what, (("train", *texts, *options, CANDIDATES[place + 1]),))


def _more(options: Collection[str]) -> str:
    """What stands for more text in a command."""
    return "MORE_TEXT=1" if "--mix" in options else "MORE_TEXT"


def _continuation(job: Job, record: RunRecord, result: Result) -> NextStep:
    """The command for a longer run, and what to expect of it where that can be said."""
    config, times, option = job.config, _LONGER, "--steps"
    if config.minutes is not None:
        minutes = max((each for each in _ROUND if each <= _LONGER * config.minutes), default=0)
        minutes = minutes if minutes > config.minutes else math.ceil(_LONGER * config.minutes)
        times, option, value, shown = minutes / config.minutes, "--minutes", f"{minutes}", count(minutes, "minute")
    elif config.epochs is not None:
        option, value = "--epochs", f"{_LONGER * config.epochs:g}"
        shown = f"{value} epochs"
    else:
        steps = round(_LONGER * (result.step or 0))
        value, shown = f"{steps}", count(steps, "step")
    expected = _forecast(job, record, result, times)
    said = f"; 4 of 5 such runs end at {expected} bits per byte" if expected else ""
    command = ("train", "--resume", "--name", job.run.directory.name, option, value)
    return NextStep(f"continue to {shown} in total{said}:", (command,))


def _forecast(job: Job, record: RunRecord, result: Result, times: float) -> ExpectedRange | None:
    """What `times` the tokens are expected to bring; None for a run with settings that no experiment had."""
    if record.base is not None or record.asked is None or record.asked.given & LEARNING or record.changes:
        return None
    if result.bits_per_byte is None or result.step is None:
        return None
    stats = CorpusStats.of(job.corpus, recorded_baselines(record))
    tokens = result.step * job.tokens_per_step
    return continued_range(result.bits_per_byte, job.model.config, tokens, times * tokens, stats)


def _of_text(job: Job, record: RunRecord) -> Iterator[NextStep]:
    texts = _shown_sources(record)
    if record.base is not None or texts is None or not job.corpus.has_text or job.corpus.train_bytes > _SHORT_TEXT:
        return
    words = re.findall(r"\w+", job.corpus.tokenizer.decode(job.corpus.train[:_LANGUAGE_SAMPLE].tolist()).lower())
    if sum(word in _ENGLISH for word in words) < _MIN_ENGLISH * max(1, len(words)):
        return
    fine_tune = ("train", *texts, *_options(record, _OF_THE_TEXT), "--from", _GPT2, "--epochs", "3")
    is_here = (job.run.directory.parent / _GPT2).is_dir()
    yield NextStep(
        "the text is short and English: GPT-2, which has read 40 GB of English, can be fine-tuned on it (0.5 GB to "
        "download; hours on a laptop's CPU):",
        (fine_tune,) if is_here else (("load-gpt2",), fine_tune),
    )


def _shown_sources(record: RunRecord) -> tuple[str, ...] | None:
    """The texts as a user here would type them, or TEXTS for many; None if one came through a pipe."""
    if not record.sources or "-" in record.sources:
        return None
    texts = tuple(map(path_from_here, record.sources))
    return texts if sum(map(len, texts)) <= _LONG_COMMAND else ("TEXTS",)


def _options(record: RunRecord, names: Collection[str]) -> tuple[str, ...]:
    """The options with these names, as they were given."""
    asked = {} if record.asked is None else record.asked.to_dict()
    options: list[str] = []
    for name in filter(names.__contains__, asked):
        value, option = asked.get(name), "--" + name.replace("_", "-")
        if value is True:
            options.append(option)
        elif value is not None and value is not False:
            options += option, str(value)
    return tuple(options)
