"""The name, type, default, bounds and help text of every setting."""

import codecs
import difflib
import math
import types
from collections.abc import Mapping
from dataclasses import dataclass
from encodings.aliases import aliases
from typing import Literal

from minigpt.errors import ConfigError
from minigpt.settings import Settings, setting


@dataclass(frozen=True, kw_only=True)
class GPTConfig(Settings):
    """The shape of a GPT-2 style model; the field names are config.json's own."""

    vocab_size: int = setting(50257, "vocabulary size in tokens", min=1, group="Model")
    n_positions: int = setting(1024, "context length in tokens", min=1, group="Model")
    n_embd: int = setting(768, "width of the model: features per token", min=1, group="Model")
    n_layer: int = setting(12, "number of transformer blocks", min=1, max=10_000, group="Model")
    n_head: int = setting(12, "attention heads per block", min=1, group="Model")
    dropout: float = setting(0.0, "dropout probability in training", min=0, below=1, group="Model")
    layer_norm_epsilon: float = setting(
        1e-5, "epsilon added to the variance in every layer norm", above=0, group="Model"
    )
    activation_function: Literal["gelu_new", "gelu"] = setting(
        "gelu_new",
        "activation function of the MLP: gelu_new (GPT-2's tanh form of GELU) or gelu (exact)",
        group="Model",
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
        """Number of parameters; the head shares the token embedding's."""
        c = self.n_embd
        attention = (c * 3 * c + 3 * c) + (c * c + c)
        mlp = (c * 4 * c + 4 * c) + (4 * c * c + c)
        norms = 2 * (2 * c)
        return (self.vocab_size + self.n_positions) * c + self.n_layer * (attention + mlp + norms) + 2 * c

    @property
    def n_inner_parameters(self) -> int:
        """Number of weights in the matrices of the blocks."""
        return 12 * self.n_layer * self.n_embd**2

    def flops_per_token(self, context: int) -> int:
        """Floating-point operations to train on one token, forward and backward: 6 N + 12 L C T.

        N is the number of parameters without the position embedding, which is not used in a matrix product. The second
        term is attention's scores and weighted sums, counted as if the upper triangle were computed too.
        Source: Chowdhery et al. 2022 (PaLM), appendix B.
        """
        parameters = self.n_parameters - self.n_positions * self.n_embd
        return 6 * parameters + 12 * self.n_layer * self.n_embd * context


# The last four are for a laptop's CPU. nano and micro learn from a text of a few megabytes in minutes; mini and small
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
    """The model configuration of that name.

    Raises: ConfigError, listing the presets.
    """
    if name not in PRESETS:
        raise ConfigError(f"preset ({name!r}) must be one of {', '.join(PRESETS)}")
    return PRESETS[name]


# Python's text encodings that no file has: parts of host names, source code, and the settings of one machine.
_NOT_OF_FILES = {"idna", "punycode", "undefined", "unicode-escape", "raw-unicode-escape", "mbcs", "oem"}
_OWN_NAMES = {name: name for name in ("utf_8", "latin_1", *set(aliases.values()))}


@dataclass(frozen=True, kw_only=True)
class ReadingConfig(Settings):
    """How files are read as documents, and how many documents are held out for validation."""

    text_key: str = setting("text", "field of a .jsonl line that holds the text or the conversation", group="Text")
    encoding: str = setting(
        "utf-8", "encoding of the text files, such as utf-8, latin-1, windows-1252 or utf-16", group="Text"
    )
    encoding_errors: Literal["strict", "replace"] = setting(
        "strict",
        "handling of bytes that are not valid in the encoding: strict (stop) or replace (insert U+FFFD)",
        group="Text",
    )
    validation_fraction: float | None = setting(
        None,
        "fraction of the text held out for validation; by default 10 %, at most 2 MB",
        min=0,
        max=0.5,
        group="Text",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.text_key:
            raise ConfigError(f"text_key ({self.text_key!r}) must name a field")
        _check_encoding(self.encoding)


def _check_encoding(name: str) -> None:
    """Raises ConfigError for a name that is not an encoding of text files, with a suggestion."""
    try:
        known = codecs.lookup(name)
    except (LookupError, ValueError):  # the latter for a name with a zero byte
        known = None
    if known is not None and known._is_text_encoding and known.name not in _NOT_OF_FILES:
        return
    names = {each.replace("_", "-"): target.replace("_", "-") for each, target in {**aliases, **_OWN_NAMES}.items()}
    names = {each: target for each, target in names.items() if target not in _NOT_OF_FILES}
    close = difflib.get_close_matches(name.lower().replace("_", "-"), sorted(names), n=1)
    hint = f"did you mean {names[close[0]]}?" if close else "such as utf-8, latin-1, windows-1252 or utf-16"
    raise ConfigError(f"encoding ({name!r}) is not the name of a text encoding; {hint}")


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Settings):
    """How a model is trained.

    None means that the user did not choose. `minigpt train` then chooses; `train()` uses the default in the help text,
    else the model's context length, the whole batch as one micro-batch, one process and no early stopping.
    """

    steps: int | None = setting(None, "optimizer steps to train for", min=1, group="Length")
    epochs: float | None = setting(None, "passes over the training text", above=0, max=1e12, group="Length")
    minutes: float | None = setting(
        None,
        "minutes to train for, with a learning-rate schedule that follows the clock; by default 5 without --steps and "
        "--epochs, unless the text is tiny",
        above=0,
        max=1e9,
        group="Length",
    )
    context_length: int | None = setting(None, "tokens per training sequence", min=1, group="Batch")
    batch_size: int = setting(32, "sequences per optimizer step", min=1, group="Batch")
    batch_tokens: int | None = setting(None, "tokens per optimizer step, instead of --batch-size", min=1, group="Batch")
    micro_batch_size: int | None = setting(
        None, "sequences per forward pass; gradients are accumulated over the batch", min=1, group="Batch"
    )
    optimizer: Literal["muon", "adamw"] = setting(
        "muon",
        "muon (AdamW for parameters other than the blocks' matrices) or adamw, the default for fine-tuning",
        group="Optimization",
    )
    learning_rate: float = setting(3e-3, "peak learning rate", above=0, group="Optimization")
    schedule: Literal["cosine", "trapezoid", "constant"] = setting(
        "trapezoid", "learning-rate schedule after the warmup: cosine, trapezoid or constant", group="Optimization"
    )
    warmup_steps: int | None = setting(
        None, "steps of linear warmup; by default 100, at most a tenth of the run", min=0, group="Optimization"
    )
    cooldown: float = setting(
        0.5,
        "fraction of the run in which the trapezoid schedule lowers the learning rate",
        above=0,
        max=1,
        group="Optimization",
    )
    final_learning_rate: float = setting(
        0.0, "final learning rate as a fraction of the peak", min=0, max=1, group="Optimization"
    )
    loss_on: Literal["all", "system", "user", "assistant"] = setting(
        "all",
        "on a chat log: whose turns the loss is measured on: all, or those of one role, such as assistant",
        group="Optimization",
    )
    token_noise: float = setting(
        0.0,
        "fraction of the training tokens replaced by random tokens",
        min=0,
        below=1,
        group="Optimization",
    )
    bpe_dropout: float = setting(
        0.0,
        "BPE-dropout: fraction of merges dropped at random each time training text is tokenized",
        min=0,
        below=1,
        group="Optimization",
    )
    weight_decay: float = setting(0.1, "decoupled weight decay of matrices", min=0, group="Optimization")
    beta1: float = setting(
        0.9, "AdamW's beta1: decay of the gradient's running mean", min=0, below=1, group="Optimization"
    )
    beta2: float = setting(
        0.99, "AdamW's beta2: decay of the squared gradient's running mean", min=0, below=1, group="Optimization"
    )
    momentum: float = setting(0.9, "Muon's momentum", min=0, below=1, group="Optimization")
    grad_clip: float = setting(1.0, "maximum gradient norm; 0 disables clipping", min=0, group="Optimization")
    spike_threshold: float = setting(
        8.0,
        "skip a step whose loss is this many standard deviations above recent losses; 0 disables skipping",
        min=0,
        group="Optimization",
    )
    eval_every: int | None = setting(
        None,
        "steps between evaluations; by default at most 20 evaluations per run",
        min=1,
        group="Evaluation and saving",
    )
    eval_tokens: int = setting(
        50_000,
        "maximum number of validation tokens per evaluation; the final evaluation uses all of them, or as many as fit "
        "into a tenth of --minutes",
        min=1,
        group="Evaluation and saving",
    )
    sample_every: int | None = setting(
        None,
        "steps between samples; by default at most 5 samples per run; 0 disables samples",
        min=0,
        group="Evaluation and saving",
    )
    sample_prompt: str = setting(
        "",
        "prompt of the samples; by default the start of a document, or a held-out question of a chat log",
        group="Evaluation and saving",
    )
    save_every: int | None = setting(
        None, "steps between checkpoints; by default one at every evaluation", min=1, group="Evaluation and saving"
    )
    save_minutes: float = setting(5.0, "maximum minutes between checkpoints", above=0, group="Evaluation and saving")
    patience: int | None = setting(
        None,
        "evaluations without improvement before early stopping; 0 disables it",
        min=0,
        group="Evaluation and saving",
    )
    seed: int = setting(
        1337,
        "random seed of the initial weights, the batches, token noise, BPE-dropout and dropout",
        min=0,
        max=2**63 - 1,
        group="Machine",
    )
    checkpoint_activations: Literal["auto", "on", "off"] = setting(
        "auto",
        "save memory by computing each block's activations again in the backward pass: auto (if memory is short), on "
        "or off",
        group="Machine",
    )
    devices: int | None = setting(
        None,
        "processes to train with on this machine: one per GPU, or several that share the CPU",
        min=1,
        group="Machine",
    )
    sharding: Literal["auto", "on", "off"] = setting(
        "auto",
        "shard weights, gradients and optimizer state over the devices (FSDP): auto (if they do not fit), on or off",
        group="Machine",
    )
    device: str = setting("auto", "auto, cpu, cuda, cuda:N or mps", group="Machine")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = setting(
        "auto",
        "dtype of matrix products: auto, float32 (TF32 on CUDA), bfloat16 or float16; weights stay float32; on a CPU, "
        "auto is bfloat16 if minigpt train measures it to be faster (train() in Python uses float32)",
        group="Machine",
    )
    compile: Literal["auto", "on", "off"] = setting(
        "auto", "compile the model with torch.compile: auto (on CUDA without sharding), on or off", group="Machine"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [name for name in ("steps", "epochs", "minutes") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ConfigError(
                f"{' and '.join(given[:-1])} cannot be combined with {given[-1]}; give one of steps, epochs and minutes"
            )

    @property
    def scored_text(self) -> str:
        """What the losses are measured on, if that is not all of the text: "of the assistant's turns only"."""
        return scored_text_of(self.loss_on)

    @property
    def sequences_per_step(self) -> int:
        """Sequences per optimizer step: `batch_size`, or `batch_tokens` in sequences (rounded, at least one).

        Raises: ConfigError for `batch_tokens` without `context_length`.
        """
        if self.batch_tokens is None:
            return self.batch_size
        if self.context_length is None:
            raise ConfigError("batch_tokens needs context_length")
        return max(1, round(self.batch_tokens / self.context_length))


def scored_text_of(loss_on: str) -> str:
    """What the losses with this `loss_on` are measured on; empty for all of the text."""
    return "" if loss_on == "all" else f"of the {loss_on}'s turns only"


@dataclass(frozen=True, kw_only=True)
class SamplingConfig(Settings):
    """How text is generated.

    A token's score is its logit. Penalties, biases and bans change the scores first; then temperature, top_k, top_p,
    min_p and typical_p are applied in this order.
    """

    max_new_tokens: int = setting(200, "maximum number of tokens to generate", min=1, group="Sampling")
    min_new_tokens: int = setting(0, "minimum number of tokens before the end of text", min=0, group="Sampling")
    temperature: float = setting(
        0.8, "sampling temperature: 0 is greedy, higher is more random", min=0, group="Sampling"
    )
    top_k: int | None = setting(None, "sample only from the k most likely tokens", min=1, group="Sampling")
    top_p: float = setting(
        0.95, "sample only from the most likely tokens with this total probability", above=0, max=1, group="Sampling"
    )
    min_p: float = setting(
        0.0, "sample only tokens with at least this fraction of the highest probability", min=0, max=1, group="Sampling"
    )
    typical_p: float = setting(
        1.0,
        "sample only from the tokens with this total probability whose surprisal is nearest the entropy",
        above=0,
        max=1,
        group="Sampling",
    )
    repetition_penalty: float = setting(
        1.0, "divisor of the scores of tokens that the text already contains; 1 disables it", above=0, group="Sampling"
    )
    frequency_penalty: float = setting(
        0.0, "subtracted from a token's score for each time it was generated", group="Sampling"
    )
    presence_penalty: float = setting(
        0.0, "subtracted from a token's score if it was generated at least once", group="Sampling"
    )
    no_repeat_ngram_size: int = setting(
        0,
        "never repeat a sequence of this many tokens, including the prompt's; 0 disables this",
        min=0,
        group="Sampling",
    )
    logit_bias: tuple[str, ...] = setting(
        (),
        "number to add to a token's score: TEXT=NUMBER, as in ' word=2.5', or #ID=NUMBER, as in '#318=-100'; may be "
        "given several times",
        group="Sampling",
    )
    bad_words: tuple[str, ...] = setting(
        (),
        "text that is never generated, with or without a space before it; may be given several times",
        group="Sampling",
    )
    beams: int = setting(
        1,
        "number of beams; more than 1 searches for the most likely text instead of sampling, without temperature, "
        "top-k, top-p, min-p, typical-p and seed",
        min=1,
        group="Sampling",
    )
    length_penalty: float = setting(
        1.0,
        "with beams, rank texts by log-probability / length ** this; above 0 favors longer texts, below 0 shorter ones",
        group="Sampling",
    )
    seed: int | None = setting(
        None,
        "random seed; the same seed gives the same text on one machine",
        min=0,
        max=2**63 - 1,
        group="Sampling",
    )
    samples: int = setting(1, "number of texts to generate", min=1, group="Sampling")
    best_of: int = setting(
        1,
        "generate this many texts in parallel and keep the most likely: those with the highest log-probability per "
        "byte",
        min=1,
        group="Sampling",
    )
    stop: tuple[str, ...] = setting((), "text to stop before; may be given several times")
    until: Literal["sentence", "paragraph", "line"] | None = setting(
        None, "stop after the first complete sentence, paragraph or line"
    )
    token_healing: bool = setting(
        True,
        "generate the white space at the end of a prompt again, together with what follows, as the tokenizer splits "
        "text",
    )
    allow_invalid_utf8: bool = setting(False, "allow tokens that break a character, which then becomes U+FFFD")
    context: str = setting(
        "slide",
        "what the model reads of a text longer than its context: slide (the end) or keep-first:N (the first N tokens "
        "and the end)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_new_tokens > self.max_new_tokens:
            raise ConfigError(
                f"min_new_tokens ({self.min_new_tokens}) must be at most max_new_tokens ({self.max_new_tokens})"
            )
        if self.beams > 1 and self.samples > self.beams:
            raise ConfigError(f"samples ({self.samples}) must be at most beams ({self.beams})")
        if self.best_of > 1:
            self._check_best_of()
        if "" in self.bad_words:
            raise ConfigError("bad_words contains an empty text (''); give a text that must not be generated")
        for entry in self.logit_bias:
            parse_logit_bias(entry)
        _ = self.keep_first

    def _check_best_of(self) -> None:
        if self.samples > self.best_of:
            raise ConfigError(f"samples ({self.samples}) must be at most best_of ({self.best_of})")
        if self.beams > 1:
            raise ConfigError(
                f"beams ({self.beams}) cannot be combined with best_of ({self.best_of}): both look for a likely text"
            )
        if self.temperature == 0:
            raise ConfigError(f"best_of ({self.best_of}) needs a temperature above 0: at 0 all the texts are the same")

    @property
    def texts_per_prompt(self) -> int:
        """The number of texts that are drawn for each prompt; of these, `samples` are kept."""
        return max(self.samples, self.best_of)

    @property
    def keep_first(self) -> int:
        """The number of tokens at the start of the text that the model always reads.

        Raises: ConfigError if `context` is neither slide nor keep-first:N.
        """
        name, _, count = self.context.partition(":")
        if self.context == "slide":
            return 0
        if name == "keep-first" and count.isdecimal() and len(count) < 19:
            return int(count)
        raise ConfigError(f"context ({self.context!r}) must be slide or keep-first:N, as in keep-first:32")


def parse_logit_bias(entry: str) -> tuple[str, float]:
    """Splits a `--logit-bias` at its last "=" into the token, a text or `#ID`, and the number.

    Raises: ConfigError if it has another form, or if the text consists of digits and could be meant as an id.
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
            f"logit_bias ({entry!r}) could mean an id or a text; give '#{entry}' for the token with that id, or "
            "#ID=NUMBER with the id of the text's token"
        )
    return token, bias
