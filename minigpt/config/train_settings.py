"""How a model is trained, as far as no edge adds to it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from minigpt.config.gpt_config import GPTConfig
from minigpt.errors import ConfigError
from minigpt.settings import Settings, setting

_COMPILED_MINUTES, _COMPILED_STEPS = 3, 1000  # a shorter run gains less from torch.compile than the minute it takes


_length, _batch, _optimization, _saving, _machine = (
    partial(setting, group=group) for group in ("Length", "Batch", "Optimization", "Evaluation and saving", "Machine")
)


@dataclass(frozen=True, kw_only=True)
class TrainSettings(Settings):
    """The settings that training has without any edge."""

    steps: int | None = _length(None, "optimizer steps to train for", min=1, common=True)
    epochs: float | None = _length(None, "passes over the training text", above=0, max=1e12, common=True)
    minutes: float | None = _length(
        None,
        "minutes to train for; the learning rate follows the clock [default: 5 without --steps and "
        "--epochs, unless the text is tiny]",
        above=0,
        max=1e9,
        common=True,
    )
    context_length: int | None = _batch(None, "tokens per training sequence", min=1, chosen=True, common=True)
    batch_size: int = _batch(32, "sequences per optimizer step", min=1, chosen=True, common=True)
    batch_tokens: int | None = _batch(None, "tokens per optimizer step, instead of --batch-size", min=1)
    micro_batch_size: int | None = _batch(
        None, "sequences per forward pass; gradients are accumulated over the batch", min=1
    )
    optimizer: Literal["muon", "adamw"] = _optimization(
        "muon", "muon (AdamW for all but the blocks' matrices) or adamw, the default for fine-tuning", chosen=True
    )
    learning_rate: float = _optimization(3e-3, "peak learning rate", above=0, chosen=True, common=True)
    schedule: Literal["cosine", "trapezoid", "constant"] = _optimization("trapezoid", "learning rate after the warmup")
    warmup_steps: int | None = _optimization(
        None, "steps of linear warmup [default: 100, at most a tenth of the run]", min=0
    )
    cooldown: float = _optimization(
        0.5, "fraction of the run in which a trapezoid lowers the learning rate", above=0, max=1
    )
    final_learning_rate: float = _optimization(0.0, "final learning rate as a fraction of the peak", min=0, max=1)
    weight_decay: float = _optimization(0.1, "decoupled weight decay of matrices", min=0)
    embedding_weight_decay: float | None = _optimization(
        None, "decoupled weight decay of the embeddings; --weight-decay if only that is given", min=0, chosen=True
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
        on_resume="allowed",
        chosen=True,
    )
    sample_every: int | None = _saving(None, "steps between samples; 0: none [default: at most 5 samples]", min=0)
    sample_prompt: str | None = _saving(
        None,
        "prompt of the samples; empty: a new document [default: the start of a held-out sentence or question]",
    )
    save_every: int | None = _saving(None, "steps between checkpoints [default: one at every evaluation]", min=1)
    save_minutes: float = _saving(5.0, "maximum minutes between checkpoints", above=0)
    patience: int | None = _saving(
        None, "evaluations without improvement before early stopping; 0: never", min=0, chosen=True
    )
    seed: int = _machine(
        1337, "random seed of everything random in the run", min=0, max=2**63 - 1, on_resume="allowed", common=True
    )
    checkpoint_activations: Literal["auto", "on", "off"] = _machine(
        "auto", "recompute activations in the backward pass to save memory; auto: if memory is short"
    )
    device: str = _machine("auto", "auto, cpu, cuda, cuda:N or mps", common=True)
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = _machine(
        "auto",
        "dtype of matrix products; weights stay float32; auto on a CPU: bfloat16 if minigpt train "
        "measures it to be faster",
        on_resume="allowed",
    )
    compile: Literal["auto", "on", "off"] = _machine(
        "auto",
        "torch.compile, which takes about a minute; auto: on CUDA without sharding, from 3 minutes or 1,000 steps on",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [name for name in ("steps", "epochs", "minutes") if getattr(self, name) is not None]
        if len(given) > 1:
            lengths = " and ".join(f"{name} ({getattr(self, name):g})" for name in given)
            raise ConfigError(f"{lengths} cannot be combined; give one of them")

    @classmethod
    def check_given(cls, given: Mapping[str, Any]) -> None:
        """Checks which settings a user gave together, by their names, whatever their values.

        Raises: ConfigError for settings that cannot be combined.
        """
        if {"batch_size", "batch_tokens"} <= given.keys():
            raise ConfigError(
                f"batch_size ({given['batch_size']}) cannot be combined with batch_tokens ({given['batch_tokens']}); "
                "give one of the two"
            )

    def check_model(self, model: Any) -> None:
        """Checks that `train()` can train this model with these settings.

        Raises: ConfigError.
        """

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Checks that a text of this tokenizer can be trained on with these settings.

        Raises: TokenizerError.
        """

    @property
    def n_processes(self) -> int | None:
        """The number of processes on this machine that train together; None if it was not chosen."""
        return None

    def check_processes(self, processes: int) -> None:
        """Raises ConfigError if so many processes cannot train together with these settings."""

    def check_devices(self) -> None:
        """Raises ConfigError or DeviceError if this machine cannot run that number of processes."""

    def largest_dropout(self, model: GPTConfig) -> float:
        """The largest dropout probability in a run of this model."""
        return model.dropout

    def decided(self) -> dict[str, Any]:
        """The settings by name, with what training takes None for, as a resumed run compares them."""
        return self.to_dict()

    def check_base(self, base: str | None) -> None:
        """Raises ConfigError if these settings need a model to fine-tune and `base` is None."""

    @property
    def maps_base(self) -> bool:
        """Whether the weights of a model to fine-tune stay on disk until they are read, once."""
        return False

    @property
    def scored_role(self) -> str:
        """Whose turns of conversations the losses are measured on; "all" for all of the text."""
        return "all"

    @property
    def scored_text(self) -> str:
        """What the losses are measured on, if that is not all of the text: "of the assistant's turns only"."""
        return ""

    @property
    def unsharded_for(self) -> str:
        """The setting for which the weights are never sharded over several processes; empty if they may be."""
        return ""

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

    def flops_per_token(self, model: GPTConfig) -> int:
        """Floating-point operations to train `model` on one token, as `GPTConfig.flops_per_token` counts them."""
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


def scored_text_of(loss_on: str) -> str:
    """What the losses with this `loss_on` are measured on; empty for all of the text."""
    return "" if loss_on == "all" else f"of the {loss_on}'s turns only"
