"""How a model is trained."""

from dataclasses import dataclass
from functools import partial
from typing import Literal

from minigpt.config.gpt_config import GPTConfig
from minigpt.errors import ConfigError
from minigpt.settings import Settings, setting

_COMPILED_MINUTES, _COMPILED_STEPS = 3, 1000  # a shorter run gains less from torch.compile than the minute it takes
LORA_TARGETS = ("qkv_proj", "out_proj", "up_proj", "down_proj")  # the linear layers of a block


_length, _batch, _optimization, _fine_tuning, _saving, _machine = (
    partial(setting, group=group)
    for group in ("Length", "Batch", "Optimization", "Fine-tuning", "Evaluation and saving", "Machine")
)


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Settings):
    """How a model is trained.

    None means that the user did not choose. `minigpt train` then chooses; `train()` uses the default in the help text,
    else the model's context length, the whole batch as one micro-batch, one process and no early stopping.
    """

    steps: int | None = _length(None, "optimizer steps to train for", min=1)
    epochs: float | None = _length(None, "passes over the training text", above=0, max=1e12)
    minutes: float | None = _length(
        None,
        "minutes to train for; the learning rate follows the clock [default: 5 without --steps and "
        "--epochs, unless the text is tiny]",
        above=0,
        max=1e9,
    )
    context_length: int | None = _batch(None, "tokens per training sequence", min=1)
    batch_size: int = _batch(32, "sequences per optimizer step", min=1)
    batch_tokens: int | None = _batch(None, "tokens per optimizer step, instead of --batch-size", min=1)
    micro_batch_size: int | None = _batch(
        None, "sequences per forward pass; gradients are accumulated over the batch", min=1
    )
    optimizer: Literal["muon", "adamw"] = _optimization(
        "muon", "muon (AdamW for all but the blocks' matrices) or adamw, the default for fine-tuning"
    )
    learning_rate: float = _optimization(3e-3, "peak learning rate", above=0)
    schedule: Literal["cosine", "trapezoid", "constant"] = _optimization("trapezoid", "learning rate after the warmup")
    warmup_steps: int | None = _optimization(
        None, "steps of linear warmup [default: 100, at most a tenth of the run]", min=0
    )
    cooldown: float = _optimization(
        0.5, "fraction of the run in which a trapezoid lowers the learning rate", above=0, max=1
    )
    final_learning_rate: float = _optimization(0.0, "final learning rate as a fraction of the peak", min=0, max=1)
    loss_on: Literal["all", "system", "user", "assistant"] = _optimization(
        "all", "measure the loss of a chat log on all turns, or on those of one role"
    )
    distill: Literal["auto", "on", "off"] = _optimization(
        "auto",
        "train a teacher first, then a model that learns from it and from the text; auto: with "
        "--minutes, for a text that is read many times",
    )
    distill_weight: float = _optimization(0.5, "weight of the teacher's predictions in the loss", above=0, max=1)
    lora: bool | None = _fine_tuning(
        None,
        "with --from: train an adapter (LoRA) and keep the model's weights [default: only if training "
        "all weights does not fit into memory]",
    )
    lora_rank: int = _fine_tuning(16, "rank of the adapter's matrices", min=1, max=65536)
    lora_alpha: float = _fine_tuning(32.0, "the adapter's factor, divided by its rank", above=0, max=1e6)
    lora_dropout: float = _fine_tuning(0.0, "dropout of the adapter's inputs", min=0, below=1)
    lora_targets: str = _fine_tuning(
        "all", f"layers with an adapter, separated by commas: {', '.join(LORA_TARGETS)}, or all"
    )
    lora_embedding: bool | None = _fine_tuning(
        None,
        "with --lora: also train the token embedding [default: in models narrower than 256, without "
        "--freeze, if it fits into memory]",
    )
    freeze: int = _fine_tuning(0, "with --from: number of lower blocks to freeze, with the embeddings", min=0)
    base_dtype: Literal["float32", "bfloat16", "int8"] = _fine_tuning(
        "float32", "with --lora: dtype of the blocks' frozen matrices in memory"
    )
    token_noise: float = _optimization(0.0, "fraction of the training tokens replaced by random ones", min=0, below=1)
    bpe_dropout: float = _optimization(
        0.0,
        "fraction of merges dropped at random whenever training text is tokenized; falls to 0 with the learning rate",
        min=0,
        below=1,
    )
    sampled_softmax: int = _optimization(
        0, "mean number of tokens in the softmax of a training step, sampled again in each; 0: all", min=0, max=2**31
    )
    spelling_features: bool | None = _optimization(
        None, "tokens of like spelling share a part of their embedding's updates"
    )
    weight_decay: float = _optimization(0.1, "decoupled weight decay of matrices", min=0)
    embedding_weight_decay: float | None = _optimization(
        None, "decoupled weight decay of the embeddings; --weight-decay if only that is given", min=0
    )
    beta1: float = _optimization(0.9, "AdamW's beta1", min=0, below=1)
    beta2: float = _optimization(0.99, "AdamW's beta2", min=0, below=1)
    momentum: float = _optimization(0.9, "Muon's momentum", min=0, below=1)
    grad_clip: float = _optimization(1.0, "maximum gradient norm; 0 disables clipping", min=0)
    spike_threshold: float = _optimization(
        8.0,
        "skip a step whose loss is this many standard deviations above recent losses; 0: only if its "
        "loss or gradient is NaN or infinite",
        min=0,
    )
    eval_every: int | None = _saving(None, "steps between evaluations [default: at most 20 evaluations]", min=1)
    eval_tokens: int = _saving(
        50_000,
        "validation tokens per evaluation; the last one uses all, or as many as fit into a tenth of --minutes",
        min=1,
    )
    sample_every: int | None = _saving(None, "steps between samples; 0: none [default: at most 5 samples]", min=0)
    sample_prompt: str = _saving(
        "", "prompt of the samples [default: the start of a document, or a held-out question of a chat log]"
    )
    save_every: int | None = _saving(None, "steps between checkpoints [default: one at every evaluation]", min=1)
    save_minutes: float = _saving(5.0, "maximum minutes between checkpoints", above=0)
    patience: int | None = _saving(None, "evaluations without improvement before early stopping; 0: never", min=0)
    seed: int = _machine(1337, "random seed of everything random in the run", min=0, max=2**63 - 1)
    checkpoint_activations: Literal["auto", "on", "off"] = _machine(
        "auto", "recompute activations in the backward pass to save memory; auto: if memory is short"
    )
    devices: int | None = _machine(None, "processes on this machine: one per GPU, or several that share the CPU", min=1)
    sharding: Literal["auto", "on", "off"] = _machine(
        "auto", "shard weights, gradients and optimizer state over the devices (FSDP); auto: if they do not fit"
    )
    device: str = _machine("auto", "auto, cpu, cuda, cuda:N or mps")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = _machine(
        "auto",
        "dtype of matrix products; weights stay float32; auto on a CPU: bfloat16 if minigpt train "
        "measures it to be faster",
    )
    compile: Literal["auto", "on", "off"] = _machine(
        "auto",
        "torch.compile, which takes about a minute; auto: on CUDA without sharding, from 3 minutes or 1,000 steps on",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [name for name in ("steps", "epochs", "minutes") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ConfigError(
                f"{' and '.join(given[:-1])} cannot be combined with {given[-1]}; give one of steps, epochs and minutes"
            )

        for target in self.lora_targets.split(","):
            if target not in ("all", *LORA_TARGETS) or (target == "all" and self.lora_targets != "all"):
                raise ConfigError(
                    f"lora_targets ({self.lora_targets!r}) must be all, or some of {', '.join(LORA_TARGETS)}"
                )
        if self.lora_embedding and self.freeze:
            raise ConfigError(
                f"lora_embedding (on) cannot be combined with freeze ({self.freeze}): a trained embedding needs the "
                "backward pass of every block; omit one of them"
            )
        for name, value in (("lora", self.lora and "on"), ("freeze", self.freeze)):
            if self.distill == "on" and value:
                raise ConfigError(f"distill (on) cannot be combined with {name} ({value}); omit one of them")
        unsharded = self.unsharded_for or ("spelling_features" if self.spelling_features else "")
        if self.sharding == "on" and unsharded:
            raise ConfigError(f"{unsharded} cannot be combined with sharding (on); omit one of them")

    @property
    def unsharded_for(self) -> str:
        """The setting for which the weights are never sharded, and its value; empty if they may be.

        Spelling features need unsharded weights too, but the same model can be trained without them.
        """
        settings = {"lora": self.lora, f"freeze ({self.freeze})": self.freeze, "distill (on)": self.distill == "on"}
        return next((setting for setting, is_given in settings.items() if is_given), "")

    @property
    def adapted_layers(self) -> tuple[str, ...]:
        """The linear layers of a block that get an adapter, in the order of computation."""
        given = self.lora_targets.split(",")
        return LORA_TARGETS if given == ["all"] else tuple(each for each in LORA_TARGETS if each in given)

    @property
    def scored_text(self) -> str:
        """What the losses are measured on, if that is not all of the text: "of the assistant's turns only"."""
        return scored_text_of(self.loss_on)

    def compiles(self, device_type: str, *, sharded: bool) -> bool:
        """Whether the model is compiled: if `compile` says so, or with "auto" if the run is long enough to gain."""
        if self.compile != "auto":
            return self.compile == "on"
        is_long = (
            self.minutes >= _COMPILED_MINUTES
            if self.minutes is not None
            else self.steps is None or self.steps >= _COMPILED_STEPS
        )
        return device_type == "cuda" and not sharded and is_long

    def samples_vocabulary(self, vocab_size: int) -> bool:
        """Whether the softmax of a training step contains a sample of a vocabulary of that size."""
        return 0 < self.sampled_softmax < vocab_size

    def flops_per_token(self, model: GPTConfig) -> int:
        """Floating-point operations to train `model` on one token, as `GPTConfig.flops_per_token` counts them.

        Of a vocabulary that is sampled, only the sample counts. A teacher is not counted.
        """
        if self.samples_vocabulary(model.vocab_size):
            model = model.replace(vocab_size=self.sampled_softmax)
        return model.flops_per_token(self.context_length or model.n_positions)

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

    def check_processes(self, processes: int) -> None:
        """Raises ConfigError if a batch has fewer sequences than there are processes to compute it."""
        if self.sequences_per_step >= processes:
            return
        if self.batch_tokens is None:
            raise ConfigError(
                f"batch_size ({self.batch_size}) must be at least the number of processes ({processes}): each computes "
                "at least one sequence of every batch"
            )
        raise ConfigError(
            f"batch_tokens ({self.batch_tokens}) must be at least {processes * (self.context_length or 1)} for "
            f"{processes} processes: each computes at least one sequence of {self.context_length} tokens of every batch"
        )


def scored_text_of(loss_on: str) -> str:
    """What the losses with this `loss_on` are measured on; empty for all of the text."""
    return "" if loss_on == "all" else f"of the {loss_on}'s turns only"
