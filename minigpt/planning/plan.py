"""What a run is given where the user says nothing: measured on this machine, forecast by small experiments, and said.

The rules stand on benchmarks/scaling.py and docs/benchmarks.md ("Choosing the defaults"), measured on a CPU at up to
2.7 million parameters in the blocks; for larger models and GPUs they are carried on, not measured.
"""

import math
import time
from dataclasses import dataclass, replace
from typing import Any

from minigpt.config import PRESETS, GPTConfig, TrainConfig, preset_config
from minigpt.data.corpus import Corpus
from minigpt.errors import ConfigError, MinigptError
from minigpt.planning.scaling_law import entropy, expected_bits_per_byte
from minigpt.planning.timing import StepTimer
from minigpt.training.memory import activation_bytes, state_bytes

FINE_TUNED = "fine-tuned"  # in place of a preset's name, where the model brings its shape
_DEFAULT_MINUTES = 5.0
_LEAST_FORECAST = 300_000  # bytes of text, and bytes learnt from: below, no experiment tells
_BYTES_PER_WORD = 370  # of the text: what served best, or nearly so, at one megabyte and at three
_MEASURING = 0.1  # of a budget in minutes
_MOST_PARAMETERS = 8  # inside the blocks, for a byte of text
_CANDIDATES = ("nano", "micro", "mini", "small", "gpt2", "gpt2-medium")  # from the smallest up
_FINE_TUNING_CONTEXT = 256
_SHORT_CONTEXT, _SHORT_RUN = 64, 1_500_000  # tokens: so short a run learns more from twice as many starts
_SAMPLE = 1_000_000  # tokens: as many bytes at least
_TINY = 20_000  # tokens; fewer are gone through in seconds, so that steps and not minutes end a run
_LEAST_STEP, _LARGE_STEP = 1024, 16_384  # tokens that a step holds on a CPU, and on a GPU
_TOKENS_PER_FEATURE = 4  # in a step of Muon's on a CPU


@dataclass(frozen=True)
class CorpusStats:
    """What a plan looks at of a text: its size, the bits per byte that compressing it leaves, and whether its tokenizer
    merges bytes into words."""

    n_tokens: int
    n_bytes: int
    vocab_size: int
    entropy: float
    has_merges: bool = True

    @classmethod
    def of(cls, corpus: Corpus) -> "CorpusStats":
        """That of a corpus's training part; the entropy is that of its first megabyte."""
        beginning = corpus.tokenizer.decode(corpus.train[:_SAMPLE].tolist()).encode()
        tokenizer = corpus.tokenizer
        return cls(
            len(corpus.train), corpus.train_bytes, tokenizer.vocab_size, entropy(beginning), bool(tokenizer.merges)
        )


@dataclass(frozen=True)
class Plan:
    """A model's shape, how it is trained, and one sentence on each thing that was chosen rather than given.

    `seconds_per_step` was measured here, and `why_dtype` says what that told of the arithmetic, where it was not given;
    `expected` are the bits per byte in the end, None where no experiment tells; `memory` is an estimate of the peak in
    bytes, beside what torch takes for itself.
    """

    preset: str
    model: GPTConfig
    training: TrainConfig
    seconds_per_step: float
    why_dtype: str
    expected: float | None
    memory: int
    notes: tuple[str, ...]

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one optimizer step learns from."""
        return self.training.sequences_per_step * (self.training.context_length or 0)

    def steps(self, n_tokens: int) -> float:
        """How many steps the budget comes to over a text of so many tokens."""
        training = self.training
        if training.minutes is not None:
            return 60 * training.minutes / self.seconds_per_step
        if training.epochs is not None:
            return training.epochs * n_tokens / self.tokens_per_step
        return float(training.steps or 0)


def plan_tokenizer(text_bytes: int) -> str:
    """The tokenizer for a text of so many bytes: a word for every 370 of them or so, as a power of two.

    A small model knows most of what it knows by its words, and they cost it only their rows in the head. Below 30 kB
    there is too little text to learn merges from; above 300 MB GPT-2's own 50,257 words pay.
    """
    if text_bytes < 30_000:
        return "bytes"
    if text_bytes >= 300_000_000:
        return "gpt2"
    return f"bpe:{min(16_384, max(512, 2 ** round(math.log2(text_bytes / _BYTES_PER_WORD))))}"


def plan_preset(
    survey: CorpusStats, device_type: str, free_memory: int, given: dict[str, Any], clock: StepTimer, processes: int = 1
) -> str:
    """The size that is forecast to end with the fewest bits per byte in the time, or the steps, that there are.

    Sizes are measured from the smallest up, until one is forecast to end worse than the one before, has many times the
    parameters that the text has bytes (no experiment tells of those), takes the steps longer than a run by default, or
    cannot be planned at all, most likely for lack of memory; or until measuring has taken a tenth of the minutes.
    """
    best, least, began = _CANDIDATES[0], math.inf, time.perf_counter()
    for name in _CANDIDATES:
        if least < math.inf and PRESETS[name].n_inner_parameters > _MOST_PARAMETERS * survey.n_bytes:
            break
        try:
            made = plan(
                survey, device_type=device_type, free_memory=free_memory, given=given, preset=name, clock=clock,
                processes=processes,
            )  # fmt: skip
        except MinigptError:  # of the smallest too, it is raised again where the plan is made
            break
        seconds = made.steps(survey.n_tokens) * made.seconds_per_step
        too_slow = made.training.minutes is None and seconds > 60 * _DEFAULT_MINUTES and least < math.inf
        if made.expected is None or made.expected >= least or too_slow:
            break
        best, least = name, made.expected
        if time.perf_counter() - began > _MEASURING * 60 * (made.training.minutes or math.inf):
            break
    return best


def plan(
    survey: CorpusStats,
    *,
    device_type: str,
    free_memory: int,
    given: dict[str, Any],
    preset: str,
    base: GPTConfig | None = None,
    clock: StepTimer,
    processes: int = 1,
) -> Plan:
    """Everything a run needs, from what was `given` (GPTConfig and TrainConfig fields) and, for the rest, the rules.

    `free_memory`, in bytes for each process, bounds what passes through the model at once. `base` is the shape of a
    model to fine-tune; `processes` share every batch.
    Raises: ConfigError where what was given does not go together, or does not fit into the memory; whatever the clock's
    measuring does.
    """
    notes: list[str] = []
    shape: dict[str, Any] = {name: given[name] for name in ("n_layer", "n_head", "n_embd", "dropout") if name in given}
    training = {name: value for name, value in given.items() if name in TrainConfig.__dataclass_fields__}
    model = base.replace(**shape) if base else preset_config(preset).replace(vocab_size=survey.vocab_size, **shape)
    usual = model.n_positions if base is None else min(model.n_positions, _FINE_TUNING_CONTEXT)
    context = _context(training.get("context_length") or usual, survey.n_tokens, notes)
    if base is None:
        model = model.replace(n_positions=context)
    elif context > base.n_positions:
        raise ConfigError(f"context_length ({context}) must be at most the model's own ({base.n_positions})")
    training["context_length"] = context
    if training.get("bpe_dropout") and not survey.has_merges:
        raise ConfigError(
            f"bpe_dropout ({training['bpe_dropout']:g}) needs a tokenizer that merges bytes into words, bpe:N or gpt2, "
            "and this one does not; give 0"
        )
    rules = _rules(model, survey.n_tokens, device_type, training, fine_tuning=base is not None)
    rules["batch_size"] = max(processes, rules["batch_size"])
    config = TrainConfig(**(rules | training))
    if {"batch_size", "batch_tokens"} & given.keys() and config.sequences_per_step > max(1, survey.n_tokens // context):
        raise ConfigError(
            f"a batch of {config.sequences_per_step} sequences of {context} tokens is larger than the training text "
            f"({survey.n_tokens} tokens); give a --batch-size of at most {max(1, survey.n_tokens // context)}"
        )
    config, memory = _fit_memory(model, config, free_memory, device_type, processes, notes)
    timing = clock(model, config)
    config = config.replace(dtype=timing.dtype)
    made = Plan(preset, model, config, timing.seconds, timing.why, None, memory, tuple(notes))
    seen = made.steps(survey.n_tokens) * made.tokens_per_step  # tokens
    if base is None and "context_length" not in given and context > _SHORT_CONTEXT and seen < _SHORT_RUN:
        return plan(
            survey, device_type=device_type, free_memory=free_memory, given={**given, "context_length": _SHORT_CONTEXT},
            preset=preset, clock=clock, processes=processes,
        )  # fmt: skip
    if "eval_tokens" not in training:
        made = replace(made, training=config.replace(eval_tokens=_eval_tokens(seen)))
    if base is None:
        made = _kept_from_memorizing(made, survey, seen, given)
    text_seen = seen * survey.n_bytes / survey.n_tokens  # bytes
    if base is None and min(text_seen, survey.n_bytes) >= _LEAST_FORECAST:
        expected = expected_bits_per_byte(model, text_seen, survey.n_bytes, survey.entropy)
        made = replace(made, expected=expected)
    return made


def _context(wanted: int, n_tokens: int, notes: list[str]) -> int:
    """The context that is wanted, or a shorter one where the corpus is shorter than that."""
    if n_tokens > wanted:
        return wanted
    shorter = max(1, n_tokens - 1)
    notes.append(
        f"the training text has only {n_tokens} tokens, so the context length shrinks from {wanted} to {shorter}"
    )
    return shorter


def _rules(
    model: GPTConfig, n_tokens: int, device_type: str, given: dict[str, Any], *, fine_tuning: bool
) -> dict[str, Any]:
    """Batch, optimizer, rate, length and patience of the run. A step holds ~1 k tokens on a CPU and ~16 k on a GPU,
    fewer for a corpus that would be a handful of steps; wider models take a smaller rate. With Muon on a CPU it
    holds four tokens for each feature at least: orthogonalizing takes time by width^3, the gradients by width^2 and
    tokens, so that in a wide model's small step there would be more of the former than of the latter. A fine-tune
    takes 5e-5 at GPT-2 small's width, the field's habit, and 7e-4 at 128, where 1e-3 was the best of four measured
    (docs/benchmarks.md): in between by a power of the width."""
    context = given["context_length"]
    optimizer = given.get("optimizer", "adamw" if fine_tuning else "muon")
    wanted = _LEAST_STEP if device_type == "cpu" else _LARGE_STEP
    if device_type == "cpu" and optimizer == "muon":
        wanted = max(wanted, _TOKENS_PER_FEATURE * model.n_embd)
    step_tokens = min(wanted, max(context, n_tokens // 8))
    rules: dict[str, Any] = {"batch_size": max(1, round(step_tokens / context)), "optimizer": optimizer}
    if fine_tuning:
        rate = min(1e-3, 5e-5 * (768 / model.n_embd) ** 1.5)
    else:
        peak, power = (8e-3, 0.5) if optimizer == "muon" else (3e-3, 0.75)
        rate = peak * (128 / max(128, model.n_embd)) ** power
    rules["learning_rate"] = float(f"{rate:.3g}")
    if not {"steps", "epochs", "minutes"} & given.keys():
        rules |= {"steps": 300} if n_tokens < _TINY else {"minutes": _DEFAULT_MINUTES}
    rules["patience"] = 5 if n_tokens < 20_000_000 else 0
    return rules


def _eval_tokens(seen: float) -> int:
    """As many tokens that twenty evaluations take about 3 % of the time: one costs a third of training on the same."""
    return int(min(200_000, max(4096, 0.0045 * seen)))


def _kept_from_memorizing(made: Plan, survey: CorpusStats, seen: float, given: dict[str, Any]) -> Plan:
    """The plan with what keeps a text that is seen often from being learnt by heart, where that was not given: words in
    other tokens each time, noise where the tokens are no merges that could be left out, and dropout."""
    model, training, epochs = made.model, made.training, seen / survey.n_tokens
    if "bpe_dropout" not in given and survey.has_merges:
        training = training.replace(bpe_dropout=_bpe_dropout(epochs))
    if "token_noise" not in given and not survey.has_merges:
        training = training.replace(token_noise=_token_noise(epochs))
    if "dropout" not in given:
        noisy = training.token_noise > 0 or training.bpe_dropout > 0
        model = model.replace(dropout=_dropout(model, seen, survey, noisy=noisy))
    return replace(made, model=model, training=training)


def _bpe_dropout(epochs: float) -> float:
    """More of it the oftener a text is seen: learning it by heart is put off then, which in few passes is no danger."""
    return 0.0 if epochs < 3.5 else 0.03 if epochs < 8 else 0.05


def _token_noise(epochs: float) -> float:
    """A tenth where a text is seen often whose tokens are no merges that could be left out."""
    return 0.1 if epochs >= 5 else 0.0


def _dropout(model: GPTConfig, seen: float, survey: CorpusStats, *, noisy: bool) -> float:
    """More of it the oftener a text is seen, and the more parameters there are for each of its bytes; less of it beside
    noise, which is better than dropout at what has been measured, and worse together with it."""
    repetition = seen / survey.n_tokens * model.n_inner_parameters / survey.n_bytes
    if noisy:
        return 0.0 if repetition < 50 else 0.1
    return 0.0 if repetition < 10 else 0.1 if repetition < 50 else 0.2


def _fit_memory(
    model: GPTConfig, config: TrainConfig, free_memory: int, device_type: str, processes: int, notes: list[str]
) -> tuple[TrainConfig, int]:
    """The settings that fit into the memory: the weights in parts on several processes first, as far as that may be,
    then fewer sequences at once, then fewer activations kept.

    Raises: ConfigError where the weights and the optimizer alone do not fit, naming the largest preset that does.
    """
    on_cpu, context = device_type == "cpu", config.context_length or model.n_positions
    own = -(-config.sequences_per_step // processes)  # sequences of a batch that one process takes
    at_once = min(config.micro_batch_size or own, own)
    parts = processes if config.sharding == "on" else 1

    def needs(sequences: int, checkpointing: bool) -> int:
        kept = activation_bytes(model, context, sequences, checkpointing=checkpointing, on_cpu=on_cpu)
        # Gradients that accumulate lie beside the buffers in which processes' meet, in the second step at least.
        beside = 4 * model.n_parameters if processes > 1 and parts == 1 and sequences < own else 0
        return state_bytes(model, config.optimizer, parts) + beside + kept

    if config.sharding == "auto" and needs(1, checkpointing=True) > free_memory and processes > 1:
        config, parts = config.replace(sharding="on"), processes
    checkpointing = config.checkpoint_activations == "on"
    while needs(at_once, checkpointing) > free_memory:
        if at_once > 1 and config.micro_batch_size is None:
            at_once = -(-at_once // 2)
        elif not checkpointing and config.checkpoint_activations == "auto":
            checkpointing = True
        else:
            needed = needs(at_once, checkpointing)
            raise ConfigError(_too_large(model, config.optimizer, parts, needed, free_memory))
    if at_once < own and config.micro_batch_size is None:
        config = config.replace(micro_batch_size=at_once)
        notes.append(f"{at_once} sequences pass through the model at once, the rest of a batch accumulates")
    if checkpointing and config.checkpoint_activations == "auto":
        config = config.replace(checkpoint_activations="on")
        notes.append("activations are computed again in the backward pass: that fits the memory for a third more time")
    return config, needs(at_once, checkpointing)


def _too_large(model: GPTConfig, optimizer: str, parts: int, needed: int, free: int) -> str:
    fitting = [name for name, shape in PRESETS.items() if state_bytes(shape, optimizer, parts) * 1.2 < free]
    largest = max(fitting, key=lambda name: PRESETS[name].n_parameters, default=None)
    mend = f"the largest preset that fits is {largest}" if largest else "no preset fits"
    each, several = (" on each device", f"more devices than {parts}") if parts > 1 else ("", "several devices")
    return (
        f"training {model.n_parameters:,} parameters takes about {needed / 1e9:.1f} GB{each}, but {free / 1e9:.1f} GB "
        f"are free: {mend}, or share the weights out over {several} with --devices N --sharding on"
    )
