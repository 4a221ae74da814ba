"""What a run is given where the user says nothing: a table of rules over the corpus's size and the device.

Those for a CPU stand on the experiments in docs/benchmarks.md ("Choosing the defaults"), those for a GPU on the field's
habits alone; none of them measures the machine.
"""

from dataclasses import dataclass
from typing import Any

from minigpt.config import GPTConfig, TrainConfig, preset_config
from minigpt.errors import ConfigError


@dataclass(frozen=True)
class Plan:
    """A model's shape, how it is trained, and one sentence on each thing that was chosen rather than given."""

    preset: str
    model: GPTConfig
    training: TrainConfig
    notes: tuple[str, ...]


def plan_tokenizer(n_bytes: int) -> str:
    """The tokenizer for a corpus of so many bytes: its vocabulary grows with the text that teaches it.

    Below 30 kB there is too little text to learn merges from; above 300 MB GPT-2's own 50,257 words pay.
    """
    if n_bytes < 30_000:
        return "bytes"
    for size, words in ((300_000, 512), (1_000_000, 1024), (10_000_000, 2048), (50_000_000, 4096), (300_000_000, 8192)):
        if n_bytes < size:
            return f"bpe:{words}"
    return "gpt2"


def plan_preset(n_tokens: int, device_type: str) -> str:
    """The model for so many training tokens: what the device trains well in the default time."""
    if device_type == "cpu":
        return "nano" if n_tokens < 3_000_000 else "micro"
    for size, preset in ((1_000_000, "micro"), (10_000_000, "mini"), (300_000_000, "small")):
        if n_tokens < size:
            return preset
    return "gpt2"


def plan(
    *,
    n_tokens: int,
    vocab_size: int,
    device_type: str,
    free_memory: int,
    given: dict[str, Any],
    preset: str | None = None,
    base: GPTConfig | None = None,
) -> Plan:
    """Everything a run needs, from what was `given` (GPTConfig and TrainConfig fields) and, for the rest, the rules.

    `free_memory`, in bytes, bounds the micro-batch. `base` is the shape of a model to fine-tune.
    Raises: ConfigError where what was given does not go together.
    """
    notes: list[str] = []
    shape: dict[str, Any] = {name: given[name] for name in ("n_layer", "n_head", "n_embd", "dropout") if name in given}
    training = {name: value for name, value in given.items() if name in TrainConfig.__dataclass_fields__}
    if base is not None:
        model, name = base.replace(**shape), "fine-tuned"
    else:
        name = preset or plan_preset(n_tokens, device_type)
        model = preset_config(name).replace(vocab_size=vocab_size, **shape)
    usual = model.n_positions if base is None else min(model.n_positions, 256)
    context = _context(training.get("context_length") or usual, n_tokens, notes)
    if base is None:
        model = model.replace(n_positions=context)
    elif context > base.n_positions:
        raise ConfigError(f"context_length ({context}) must be at most the model's own ({base.n_positions})")
    training["context_length"] = context
    defaults = _training_rules(model, n_tokens, device_type, training, fine_tuning=base is not None)
    config = TrainConfig(**(defaults | training))
    if config.micro_batch_size is None:
        at_once = _sequences_at_once(model, context, free_memory)
        if at_once < config.sequences_per_step:
            config = config.replace(micro_batch_size=at_once)
            notes.append(f"{at_once} sequences pass through the model at once, the rest of a batch accumulates")
    if "dropout" not in shape and base is None and device_type != "cpu" and n_tokens < 10_000_000:
        model = model.replace(dropout=0.2)  # a GPU passes over a small corpus many times
    return Plan(name, model, config, tuple(notes))


def _context(wanted: int, n_tokens: int, notes: list[str]) -> int:
    """The context that is wanted, or a shorter one where the corpus is shorter than that."""
    if n_tokens > wanted:
        return wanted
    shorter = max(1, n_tokens - 1)
    notes.append(
        f"the training text has only {n_tokens} tokens, so the context length shrinks from {wanted} to {shorter}"
    )
    return shorter


def _sequences_at_once(model: GPTConfig, context: int, free_memory: int) -> int:
    """How many sequences fit into half the free memory, at about 20 numbers a feature that every block keeps."""
    per_sequence = 4 * 20 * context * model.n_embd * (model.n_layer + 1)  # bytes, in float32
    return max(1, free_memory // 2 // per_sequence)


def _training_rules(
    model: GPTConfig, n_tokens: int, device_type: str, given: dict[str, Any], *, fine_tuning: bool
) -> dict[str, Any]:
    """Batch, rate and length of the run. A step holds ~2 k tokens on a CPU and ~16 k on a GPU, fewer for a corpus
    that would be a handful of steps; wider models take a smaller rate."""
    context = given["context_length"]
    step_tokens = min(2048 if device_type == "cpu" else 16_384, max(context, n_tokens // 8))
    rules: dict[str, Any] = {"batch_size": max(1, round(step_tokens / context))}
    rules["learning_rate"] = 5e-5 if fine_tuning else round(3e-3 * (128 / max(128, model.n_embd)) ** 0.75, 5)
    if not {"steps", "epochs", "minutes"} & given.keys():
        if n_tokens < 20_000:
            rules["steps"] = 300
        else:
            rules["minutes"] = 5.0 if n_tokens < 100_000_000 or device_type == "cpu" else 60.0
    rules["eval_tokens"] = 20_000 if device_type == "cpu" else 200_000
    rules["patience"] = 5 if n_tokens < 20_000_000 else 0
    return rules
