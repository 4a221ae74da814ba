"""Every setting's name, type, default, bounds and help text; it knows neither torch nor the command line."""

import difflib
import math
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from minigpt.errors import ConfigError
from minigpt.settings import Settings, setting


@dataclass(frozen=True, kw_only=True)
class GPTConfig(Settings):
    """The shape of a GPT-2 style model; the field names are config.json's own."""

    vocab_size: int = setting(50257, "words in the vocabulary", min=1, group="Model")
    n_positions: int = setting(1024, "context length: the most tokens attended at once", min=1, group="Model")
    n_embd: int = setting(768, "width: features per token", min=1, group="Model")
    n_layer: int = setting(12, "number of blocks", min=1, group="Model")
    n_head: int = setting(12, "attention heads per block", min=1, group="Model")
    dropout: float = setting(0.0, "share of activations dropped in training", min=0, below=1, group="Model")
    layer_norm_epsilon: float = setting(1e-5, "added to the variance in every layer norm", above=0, group="Model")
    activation_function: Literal["gelu_new", "gelu"] = setting(
        "gelu_new", "between the MLP's projections: GPT-2's tanh form of GELU, or its exact form", group="Model"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_embd % self.n_head:
            raise ConfigError(f"n_embd ({self.n_embd}) must be divisible by n_head ({self.n_head})")

    @property
    def head_width(self) -> int:
        """D = C / H, the features of one head."""
        return self.n_embd // self.n_head

    @property
    def n_parameters(self) -> int:
        """Parameters of the model, the tied head counted once."""
        c = self.n_embd
        attention = (c * 3 * c + 3 * c) + (c * c + c)
        mlp = (c * 4 * c + 4 * c) + (4 * c * c + c)
        norms = 2 * (2 * c)
        return (self.vocab_size + self.n_positions) * c + self.n_layer * (attention + mlp + norms) + 2 * c

    @property
    def n_inner_parameters(self) -> int:
        """Weights of the matrices inside the blocks."""
        return 12 * self.n_layer * self.n_embd**2

    def flops_per_token(self, context: int) -> int:
        """Floating-point operations of one training token, forwards and backwards: 6 N + 12 L C T.

        N are the parameters without the positions, which no matrix product touches; the second term is attention's
        scores and sums, counted as if the upper triangle were computed too.
        Source: Chowdhery et al. 2022 (PaLM), appendix B.
        """
        parameters = self.n_parameters - self.n_positions * self.n_embd
        return 6 * parameters + 12 * self.n_layer * self.n_embd * context


# The last four are for a laptop's CPU: the first two of them learn from a text of some megabytes in minutes, the others
# take longer.
PRESETS: Mapping[str, GPTConfig] = types.MappingProxyType(
    {
        "gpt2": GPTConfig(),
        "gpt2-medium": GPTConfig(n_embd=1024, n_layer=24, n_head=16),
        "gpt2-large": GPTConfig(n_embd=1280, n_layer=36, n_head=20),
        "gpt2-xl": GPTConfig(n_embd=1600, n_layer=48, n_head=25),
        "nano": GPTConfig(n_positions=128, n_embd=128, n_layer=4, n_head=4),
        "micro": GPTConfig(n_positions=128, n_embd=192, n_layer=6, n_head=6),
        "mini": GPTConfig(n_positions=256, n_embd=384, n_layer=6, n_head=6),
        "small": GPTConfig(n_positions=512, n_embd=512, n_layer=8, n_head=8),
    }
)


def preset_config(name: str) -> GPTConfig:
    """The shape of that name.

    Raises: ConfigError, listing the names there are.
    """
    if name not in PRESETS:
        raise ConfigError(f"preset ({name!r}) must be one of {', '.join(PRESETS)}")
    return PRESETS[name]


@dataclass(frozen=True, kw_only=True)
class ReadingConfig(Settings):
    """How texts become documents, and how many of them are held out."""

    text_key: str = setting("text", "the field of a .jsonl line that holds the text", group="Text")
    encoding_errors: Literal["strict", "replace"] = setting(
        "strict", "what to do about bytes that are not UTF-8: strict stops, replace goes on", group="Text"
    )
    validation_fraction: float | None = setting(
        None, "share of the text held out; by default 10 %, at most 2 MB", min=0, max=0.5, group="Text"
    )


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Settings):
    """How a model is trained.

    None means: not given. `minigpt train` then plans what is to be; `train()` takes what the help text says, or the
    plainest there is: the model's whole context, the whole batch at once, one process, no early stop.
    """

    steps: int | None = setting(None, "optimizer steps to take", min=1, group="Length")
    epochs: float | None = setting(None, "passes over the training text to take", above=0, group="Length")
    minutes: float | None = setting(
        None,
        "minutes to train for; the schedule follows the clock; by default 5, where no length is given and the text is "
        "not tiny",
        above=0,
        group="Length",
    )
    context_length: int | None = setting(None, "tokens in one training sequence", min=1, group="Batch")
    batch_size: int = setting(32, "sequences per optimizer step", min=1, group="Batch")
    batch_tokens: int | None = setting(None, "tokens per optimizer step, instead of --batch-size", min=1, group="Batch")
    micro_batch_size: int | None = setting(
        None, "sequences per forward pass; the rest of the batch is accumulated", min=1, group="Batch"
    )
    optimizer: Literal["muon", "adamw"] = setting(
        "muon",
        "muon (for the matrices in the blocks, AdamW for the rest) or adamw, the default for fine-tuning",
        group="Optimization",
    )
    learning_rate: float = setting(3e-3, "the peak learning rate", above=0, group="Optimization")
    schedule: Literal["cosine", "trapezoid", "constant"] = setting(
        "trapezoid", "shape of the learning rate after the warmup: cosine, trapezoid or constant", group="Optimization"
    )
    warmup_steps: int | None = setting(
        None, "steps of linear warmup; by default 100, or a tenth of a shorter run", min=0, group="Optimization"
    )
    cooldown: float = setting(
        0.5, "share of the run that a trapezoid cools down over", above=0, max=1, group="Optimization"
    )
    final_learning_rate: float = setting(
        0.0, "the schedule's floor, as a share of the peak", min=0, max=1, group="Optimization"
    )
    token_noise: float = setting(
        0.0,
        "share of the tokens read in training that are replaced by random ones",
        min=0,
        below=1,
        group="Optimization",
    )
    bpe_dropout: float = setting(
        0.0,
        "share of the merges left out, others each time, where a word read in training is cut into tokens",
        min=0,
        below=1,
        group="Optimization",
    )
    weight_decay: float = setting(0.1, "decoupled weight decay, on matrices only", min=0, group="Optimization")
    beta1: float = setting(0.9, "AdamW's decay of the gradient's mean", min=0, below=1, group="Optimization")
    beta2: float = setting(0.99, "AdamW's decay of the gradient's square", min=0, below=1, group="Optimization")
    momentum: float = setting(0.9, "Muon's momentum", min=0, below=1, group="Optimization")
    grad_clip: float = setting(1.0, "largest norm of the gradient; 0 is no clipping", min=0, group="Optimization")
    spike_threshold: float = setting(
        8.0,
        "leave out a step whose loss is so many standard deviations above the recent ones; 0 is never",
        min=0,
        group="Optimization",
    )
    eval_every: int | None = setting(
        None, "steps between evaluations; by default at most 20 in a run", min=1, group="Evaluation and saving"
    )
    eval_tokens: int = setting(
        50_000,
        "most validation tokens read in one evaluation during the run; the last reads them all, or as many as a tenth "
        "of the minutes is enough for",
        min=1,
        group="Evaluation and saving",
    )
    sample_every: int | None = setting(
        None, "steps between samples; by default at most 5 in a run; 0 is none", min=0, group="Evaluation and saving"
    )
    sample_prompt: str = setting(
        "", "what samples start from; by default the start of a document", group="Evaluation and saving"
    )
    save_every: int | None = setting(
        None, "steps between saves; by default at every evaluation", min=1, group="Evaluation and saving"
    )
    save_minutes: float = setting(
        5.0, "most minutes between saves, whatever the steps take", above=0, group="Evaluation and saving"
    )
    patience: int | None = setting(
        None,
        "evaluations without improvement before stopping early; 0 is never",
        min=0,
        group="Evaluation and saving",
    )
    seed: int = setting(
        1337,
        "seed of everything random in training: the initial weights, the batches, the noise and the dropouts",
        min=0,
        max=2**63 - 1,
        group="Machine",
    )
    checkpoint_activations: Literal["auto", "on", "off"] = setting(
        "auto",
        "keep only what enters each block and compute the rest again in the backward pass: auto (where memory is "
        "short), on or off",
        group="Machine",
    )
    devices: int | None = setting(
        None, "processes to train with on this machine, one per GPU, or per share of a CPU", min=1, group="Machine"
    )
    sharding: Literal["auto", "on", "off"] = setting(
        "auto",
        "with several devices, let each hold a part of the weights (FSDP): auto (where they do not fit), on or off",
        group="Machine",
    )
    device: str = setting("auto", "auto, cpu, cuda, cuda:N or mps", group="Machine")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = setting(
        "auto",
        "arithmetic in the matrices: auto (on a CPU bfloat16 where minigpt train measures it to be faster; train() in "
        "Python takes float32), float32 (TF32 on CUDA), bfloat16 or float16; weights stay float32",
        group="Machine",
    )
    compile: Literal["auto", "on", "off"] = setting(
        "auto", "torch.compile the model: auto (on CUDA, where no weights are in parts), on or off", group="Machine"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [name for name in ("steps", "epochs", "minutes") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(given)} contradict one another; give one of steps, epochs and minutes")

    @property
    def sequences_per_step(self) -> int:
        """Sequences per optimizer step, from `batch_tokens` where that is given (rounded, at least one)."""
        if self.batch_tokens is None:
            return self.batch_size
        if self.context_length is None:
            raise ConfigError("batch_tokens needs context_length to be known")
        return max(1, round(self.batch_tokens / self.context_length))


@dataclass(frozen=True, kw_only=True)
class SamplingConfig(Settings):
    """How text is drawn from a model.

    A token's score is its logit; the filters act in the order in which they stand here, temperature first, on the
    scores that penalties and bans have changed.
    """

    max_new_tokens: int = setting(200, "most tokens to generate", min=1, group="Sampling")
    min_new_tokens: int = setting(0, "no end of text before this many new tokens", min=0, group="Sampling")
    temperature: float = setting(0.8, "0 is greedy; below 1 is safer, above 1 is wilder", min=0, group="Sampling")
    top_k: int | None = setting(None, "draw only from the k likeliest tokens", min=1, group="Sampling")
    top_p: float = setting(
        0.95, "draw only from the likeliest tokens that hold this much probability", above=0, max=1, group="Sampling"
    )
    min_p: float = setting(
        0.0, "draw only tokens at least this many times as likely as the likeliest", min=0, max=1, group="Sampling"
    )
    typical_p: float = setting(
        1.0,
        "draw only from the tokens that hold this much probability and whose surprise is nearest the expected one",
        above=0,
        max=1,
        group="Sampling",
    )
    repetition_penalty: float = setting(
        1.0, "divides the scores of tokens in the prompt or the text so far; 1 is none", above=0, group="Sampling"
    )
    frequency_penalty: float = setting(
        0.0, "taken from a token's score for each time it has been generated", group="Sampling"
    )
    presence_penalty: float = setting(
        0.0, "taken from a token's score if it has been generated at all", group="Sampling"
    )
    no_repeat_ngram_size: int = setting(
        0, "let no run of this many tokens come twice, the prompt's included; 0 is any", min=0, group="Sampling"
    )
    logit_bias: tuple[str, ...] = setting(
        (),
        "added to one token's score: TEXT=NUMBER, as in ' word=2.5', or #ID=NUMBER, as in '#318=-100'; may be given "
        "several times",
        group="Sampling",
    )
    bad_words: tuple[str, ...] = setting(
        (), "never write this, nor with a space before it; may be given several times", group="Sampling"
    )
    beams: int = setting(
        1,
        "search for the likeliest text along this many at once instead of drawing; temperature, top-k, top-p, min-p, "
        "typical-p and seed then do nothing",
        min=1,
        group="Sampling",
    )
    length_penalty: float = setting(
        1.0,
        "with beams: rank texts by log-probability / length ** this; above 0 favours longer ones, below 0 shorter",
        group="Sampling",
    )
    seed: int | None = setting(
        None,
        "seed of the draw; the same seed gives the same text on one machine",
        min=0,
        max=2**63 - 1,
        group="Sampling",
    )
    samples: int = setting(1, "how many continuations to draw at once", min=1, group="Sampling")
    stop: tuple[str, ...] = setting((), "stop before this text; may be given several times")
    until: Literal["sentence", "paragraph", "line"] | None = setting(
        None, "stop after the first whole sentence, paragraph or line"
    )
    context: str = setting(
        "slide",
        "what is seen of a text longer than the context length: slide (its end), or keep-first:N (its first N tokens "
        "and its end)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_new_tokens > self.max_new_tokens:
            raise ConfigError(
                f"min_new_tokens ({self.min_new_tokens}) must be at most max_new_tokens ({self.max_new_tokens})"
            )
        if self.beams > 1 and self.samples > self.beams:
            raise ConfigError(f"samples ({self.samples}) must be at most beams ({self.beams}): each is one of them")
        if "" in self.bad_words:
            raise ConfigError("a bad word is empty (''); give the text that must not come")
        for entry in self.logit_bias:
            parse_logit_bias(entry)
        _ = self.keep_first

    @property
    def keep_first(self) -> int:
        """The tokens at the beginning that stay in sight however long the text grows.

        Raises: ConfigError where `context` says neither slide nor keep-first:N.
        """
        name, _, count = self.context.partition(":")
        if self.context == "slide":
            return 0
        if name == "keep-first" and count.isdecimal():
            return int(count)
        raise ConfigError(f"context ({self.context!r}) must be slide or keep-first:N, as in keep-first:32")


def parse_logit_bias(entry: str) -> tuple[str, float]:
    """The token, as a text or `#ID`, and the number of one `--logit-bias`: all before the last "=", and all after.

    Raises: ConfigError where it is no such pair, or the text has digits only and might be meant as an id.
    """
    token, _, number = entry.rpartition("=")
    try:
        bias = float(number)
    except ValueError:
        bias = math.nan
    if not token or not math.isfinite(bias):
        raise ConfigError(f"logit_bias ({entry!r}) must be TEXT=NUMBER or #ID=NUMBER, as in ' word=2.5' or '#318=-100'")
    if token.isdecimal():
        raise ConfigError(
            f"logit_bias ({entry!r}) could mean an id or a text; give '#{entry}' for the token of that id, and a text "
            "by its own token's id"
        )
    return token, bias


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options that a user gave for a training run. `given` names them; every other field has its default.

    `base` is the option `from`: the model to fine-tune. The shape's fields are None where they were not given.
    """

    preset: str | None = None
    tokenizer: str | None = None
    base: str | None = None
    n_layer: int | None = None
    n_head: int | None = None
    n_embd: int | None = None
    dropout: float | None = None
    training: TrainConfig = field(default_factory=TrainConfig)
    reading: ReadingConfig = field(default_factory=ReadingConfig)
    given: frozenset[str] = frozenset()

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "RunOptions":
        """The options by their names: `preset`, `tokenizer`, `from`, or a setting. None means that one was not given.

        Raises: ConfigError for an unknown name, a value out of bounds, and values that contradict each other.
        """
        given = {name: value for name, value in options.items() if value is not None}
        for name in given.keys() - OPTION_NAMES:
            close = difflib.get_close_matches(name, OPTION_NAMES, n=1)
            hint = f"did you mean {close[0]!r}?" if close else "see minigpt train --help for the settings"
            raise ConfigError(f"unknown setting {name!r}; {hint}")
        if {"batch_size", "batch_tokens"} <= given.keys():
            raise ConfigError(
                f"batch_size ({given['batch_size']}) and batch_tokens ({given['batch_tokens']}) contradict each other; "
                "give one of them"
            )
        shape = {name: given[name] for name in SHAPE_NAMES if name in given}
        for name, value in shape.items():
            GPTConfig.check(name, value)
        if {"n_embd", "n_head"} <= shape.keys():
            GPTConfig(**shape)
        return cls(
            preset=given.get("preset"),
            tokenizer=given.get("tokenizer"),
            base=given.get("from"),
            **shape,
            training=TrainConfig(**{name: value for name, value in given.items() if name in _TRAINING_NAMES}),
            reading=ReadingConfig(**{name: value for name, value in given.items() if name in _READING_NAMES}),
            given=frozenset(given),
        )

    def to_dict(self) -> dict[str, Any]:
        """The options that were given, by their names; the inverse of `of`."""
        values = {"preset": self.preset, "tokenizer": self.tokenizer, "from": self.base, **self.shape}
        values |= self.reading.to_dict() | self.training.to_dict()
        return {name: value for name, value in values.items() if name in self.given}

    @property
    def shape(self) -> dict[str, Any]:
        """The model's settings that were given."""
        return {name: value for name in SHAPE_NAMES if (value := getattr(self, name)) is not None}


SHAPE_NAMES = ("n_layer", "n_head", "n_embd", "dropout")
_TRAINING_NAMES, _READING_NAMES = (
    frozenset(TrainConfig.__dataclass_fields__),
    frozenset(ReadingConfig.__dataclass_fields__),
)
OPTION_NAMES = frozenset({"preset", "tokenizer", "from", *SHAPE_NAMES, *_TRAINING_NAMES, *_READING_NAMES})
