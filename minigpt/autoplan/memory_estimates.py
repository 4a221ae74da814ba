"""Estimates of the memory of a training step."""

from minigpt.autoplan.all_settings import all_settings
from minigpt.config import GPTConfig, TrainConfig
from minigpt.lora.fine_tuning import adapter_parameters, trained_parameters, trains_embedding
from minigpt.training.loss import CUDA_HEAD_ROWS, HEAD_ROWS

# An adapter's outputs are added to the base's. On a CPU, glibc's allocator keeps the gaps that these leave: measured
# with 124M parameters, in numbers per feature and block.
_ADAPTER_GAPS = 5

# For each number of the token embedding: an update, and for the features of spelling, of which there are fewer, a
# gradient, an update and AdamW's two numbers. Compiled C code needs about half of it.
_FEATURE_NUMBERS = 4


def state_bytes(config: GPTConfig, optimizer: str, processes: int = 1, training: TrainConfig | None = None) -> int:
    """Bytes of weights, gradients and optimizer state, in float32: AdamW keeps two numbers per weight, Muon one.

    The causal mask is not counted (`GPTConfig.mask_bytes`).

    With the settings of `training`, only the weights that they train have gradients and optimizer state, and vectors of
    spelling features are counted.

    With several `processes`, over which the model is sharded (minigpt.distributed.fsdp), the main one starts with all
    weights. In a step each has its shard of everything, and the embeddings and two blocks with their gradients
    unsharded.
    """
    chosen = None if training is None else all_settings(training)
    if training is not None and chosen is not None and (chosen.lora or chosen.freeze):
        saved = {"float32": 0, "bfloat16": 2, "int8": 3}[chosen.base_dtype] if chosen.lora else 0
        expanded = 16 * config.n_embd**2 if saved else 0  # the largest matrix
        base = 4 * config.n_parameters - saved * config.n_inner_parameters + expanded
        added = 4 * adapter_parameters(config, training)
        return base + added + 12 * trained_parameters(config, training)  # with Muon a little less
    inner = config.n_inner_parameters
    outer = config.n_parameters - inner
    state = 4 * (4 * outer + (3 if optimizer == "muon" else 4) * inner)
    if chosen is not None and chosen.spelling_features:
        state += 4 * _FEATURE_NUMBERS * config.vocab_size * config.n_embd
    if processes == 1:
        return state
    gathered = 2 * 4 * (outer + 2 * inner // config.n_layer)
    return max(state // processes + gathered, 4 * config.n_parameters)


def activation_bytes(
    config: GPTConfig,
    context: int,
    sequences: int,
    *,
    recompute: bool = False,
    on_cpu: bool = True,
    training: TrainConfig | None = None,
) -> int:
    """Bytes that a micro-batch of `sequences` keeps for the backward pass, and the head's logits, in float32.

    A block keeps 16 numbers per feature: its input, both norms, Q, K, V, the attention's result, the sum after
    attention, and the MLP's 8. Dropout adds two masks and, on a CPU, the attention weights three times. With
    `recompute` every block keeps one number per feature, and one block at a time all of them. Measured by what
    autograd saves (tests/autoplan/test_memory_estimates.py). With the settings of `training`, frozen lower blocks keep
    nothing, and a frozen head has no gradient.
    """
    kept = 16.0
    if config.dropout:
        kept += 2 + (3 * config.n_head * context / config.n_embd if on_cpu else 0)
    if training is not None and all_settings(training).lora and on_cpu:
        kept += _ADAPTER_GAPS
    frozen = 0 if training is None else all_settings(training).freeze
    head_is_frozen = training is not None and not trains_embedding(training)
    layers = config.n_layer - frozen
    blocks = layers + kept if recompute else kept * layers
    features = 4 * sequences * context * config.n_embd * (blocks + 3)
    tokens = sequences * context
    rows = min(HEAD_ROWS, tokens)  # a CPU turns only a few of their logits into gradients at one time
    if not on_cpu:
        rows = min(CUDA_HEAD_ROWS, tokens) + 2 * rows  # with copies of a part of the logits
    head = 4 * config.vocab_size * (rows + (0 if head_is_frozen else config.n_embd))
    return int(features + head)


def teacher_bytes(config: GPTConfig, context: int, sequences: int) -> int:
    """Bytes of a teacher of this shape: its weights, mask, one block's activations of a micro-batch, and its logits."""
    tokens = sequences * context
    logits = config.vocab_size * (min(CUDA_HEAD_ROWS, tokens) + config.n_embd)  # and the head in the dtype of training
    return config.mask_bytes + 4 * (config.n_parameters + 8 * tokens * config.n_embd + logits)


def least_memory(model: GPTConfig, config: TrainConfig, processes: int, *, on_cpu: bool) -> int:
    """Bytes that a process of an unsharded run takes beside its weights, with micro-batches of one sequence."""
    weights, own = 4 * model.n_parameters, -(-config.sequences_per_step // processes)
    needed = state_bytes(model, config.optimizer, training=config) - weights  # which are there already
    if config.micro_batch_size is not None and config.micro_batch_size < own:
        needed += weights  # accumulated gradients are separate from the reduced ones
    return needed + activation_bytes(model, config.context_length or 1, 1, recompute=True, on_cpu=on_cpu)
