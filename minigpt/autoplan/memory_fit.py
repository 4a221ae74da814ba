"""Fits a run into the free memory: by sharding, a smaller micro-batch, or recomputed activations."""

from minigpt.autoplan.all_settings import all_settings
from minigpt.autoplan.memory_estimates import activation_bytes, state_bytes, teacher_bytes
from minigpt.config import PRESETS, GPTConfig, TrainConfig
from minigpt.errors import ConfigError
from minigpt.lora.fine_tuning import trained_parameters

_MARGIN = 1.2  # for the activations of a usual step, over the memory that a model takes without them


class TooLargeError(ConfigError):
    """A training step does not fit into memory; `needed` is in bytes."""

    def __init__(self, message: str, needed: int) -> None:
        super().__init__(message)
        self.needed = needed


def fit_memory(
    model: GPTConfig,
    config: TrainConfig,
    free_memory: int,
    device_type: str,
    processes: int,
    notes: list[str],
    *,
    fine_tuning: bool = False,
) -> tuple[TrainConfig, int]:
    """The settings that fit into `free_memory` bytes per process, and the bytes that they need.

    Unless the user chose otherwise, the weights are first sharded over several processes, then the micro-batch is
    halved, then activations are recomputed in the backward pass. `notes` gets a sentence on each of the last two.
    Raises: TooLargeError if that is not enough; it names the options that help, or if weights and optimizer alone do
    not fit, the largest preset that does, unless a model that exists is fine-tuned.
    """
    on_cpu, context = device_type == "cpu", config.context_length or model.n_positions
    own = -(-config.sequences_per_step // processes)  # sequences per process and step
    micro_batch = min(config.micro_batch_size or own, own)
    shards = processes if all_settings(config).sharding == "on" else 1

    def needs(
        sequences: int,
        recompute: bool,
        model: GPTConfig = model,
        context: int = context,
        other: TrainConfig | None = None,
    ) -> int:
        training = other or config
        activations = activation_bytes(model, context, sequences, recompute=recompute, on_cpu=on_cpu, training=training)
        # From the second step on, accumulated gradients exist next to the buffers of the all-reduce.
        buffers = 4 * trained_parameters(model, training) if processes > 1 and shards == 1 and sequences < own else 0
        teacher = teacher_bytes(model, context, sequences) if all_settings(training).distill == "on" else 0
        state = state_bytes(model, training.optimizer, shards, training) + model.mask_bytes
        return state + buffers + activations + teacher

    may_shard = processes > 1 and all_settings(config).sharding == "auto" and not config.unsharded_for
    if may_shard and needs(1, recompute=True) > free_memory:
        if all_settings(config).spelling_features:
            notes.append("spelling features need whole weights, so they are not used")
        config, shards = config.replace(sharding="on", spelling_features=False), processes
    recompute = config.checkpoint_activations == "on"
    while (needed := needs(micro_batch, recompute)) > free_memory:
        if micro_batch > 1 and config.micro_batch_size is None:
            micro_batch = -(-micro_batch // 2)
        elif not recompute and config.checkpoint_activations == "auto":
            recompute = True
        else:
            shortest = model.replace(n_positions=1) if model.n_positions == context else model
            enough = {
                "a smaller --micro-batch-size": needs(1, recompute) <= free_memory,
                "--checkpoint-activations on": needs(micro_batch, recompute=True) <= free_memory,
                "a shorter --context-length": _MARGIN * needs(1, True, shortest, 1) <= free_memory,
            }
            if all_settings(config).lora and all_settings(config).base_dtype != "int8":
                compressed = config.replace(base_dtype="int8")
                enough["--base-dtype int8"] = needs(1, True, other=compressed) <= free_memory
            if all_settings(config).distill == "on":
                enough["--distill off"] = needs(1, True, other=config.replace(distill="off")) <= free_memory
            options = " or ".join(option for option, is_enough in enough.items() if is_enough)
            smaller = "fine-tune a smaller model" if fine_tuning else _smaller_model(config, shards, free_memory)
            advice = f"give {options}" if options else smaller
            each = " on each device" if shards > 1 else ""
            raise TooLargeError(
                f"training {model.n_parameters:,} parameters on micro-batches of {micro_batch} x {context} tokens "
                f"takes about {needed / 1e9:.1f} GB{each}, but {free_memory / 1e9:.1f} GB are free: {advice}",
                needed,
            )
    if micro_batch < own and config.micro_batch_size is None:
        config = config.replace(micro_batch_size=micro_batch)
        notes.append(f"micro-batches of {micro_batch} sequences, to fit into memory: gradients accumulate over a batch")
    if recompute and config.checkpoint_activations == "auto":
        config = config.replace(checkpoint_activations="on")
        notes.append("activations are recomputed in the backward pass, to fit into memory: steps take a third longer")
    return config, needed


def _smaller_model(config: TrainConfig, shards: int, free: int) -> str:
    """What to do if the weights and the optimizer alone do not fit into memory."""
    fitting = [name for name, shape in PRESETS.items() if state_bytes(shape, config.optimizer, shards) * _MARGIN < free]
    largest = max(fitting, key=lambda name: PRESETS[name].n_parameters, default=None)
    preset = f"the largest preset that fits is {largest}" if largest else "no preset fits"
    if config.unsharded_for:
        return preset
    several = f"more devices than {shards}" if shards > 1 else "several devices"
    return f"{preset}, or shard the weights over {several} with --devices N --sharding on"
