"""Which weights of a model are trained: all, those above frozen blocks, or those of an adapter."""

from minigpt.config import GPTConfig, TrainSettings
from minigpt.errors import ConfigError
from minigpt.lora.frozen_linear import compress_linear_layers
from minigpt.lora.layers import LoRA, add_lora
from minigpt.lora.settings import LoraSettings
from minigpt.model.gpt import GPT


def apply_fine_tuning(model: GPT, config: TrainSettings) -> None:
    """Freezes what `config` does not train, and adds its adapter, in place.

    Raises: ConfigError for settings that do not fit the model.
    """
    config = LoraSettings.of(config)
    if not (config.lora or config.freeze):
        return
    check_fine_tuning(model.config, config)
    if config.freeze:
        # The head shares the token embedding. If that were trained, all blocks would need a backward pass.
        for module in (model.token_embedding, model.position_embedding, *list(model.blocks)[: config.freeze]):
            module.requires_grad_(False)
    if config.lora and config.base_dtype != "float32":
        compress_linear_layers(model, config.base_dtype)
    if config.lora:
        add_lora(model, lora_shape(config))


def lora_shape(config: TrainSettings) -> LoRA:
    """The adapter that these settings ask for."""
    config = LoraSettings.of(config)
    return LoRA(
        rank=config.lora_rank,
        alpha=config.lora_alpha,
        dropout=config.lora_dropout,
        targets=config.adapted_layers,
        first_block=config.freeze,
        embedding=trains_embedding(config),
    )


def check_fine_tuning(model: GPTConfig, config: TrainSettings) -> None:
    """Raises ConfigError for settings of fine-tuning that do not fit a model of this shape."""
    config = LoraSettings.of(config)
    if config.freeze >= model.n_layer:
        raise ConfigError(f"freeze ({config.freeze}) must be below the model's number of blocks ({model.n_layer})")
    if config.lora and config.lora_rank > model.n_embd:
        raise ConfigError(f"lora_rank ({config.lora_rank}) must be at most the model's width ({model.n_embd})")


def trains_embedding(config: TrainSettings) -> bool:
    """Whether these settings train the token embedding, which is also the output head."""
    config = LoraSettings.of(config)
    return bool(config.lora_embedding) if config.lora else not config.freeze


def trained_parameters(model: GPTConfig, config: TrainSettings) -> int:
    """The number of weights that these settings train."""
    config, c = LoraSettings.of(config), model.n_embd
    if config.lora:
        return adapter_parameters(model, config) + model.vocab_size * c * trains_embedding(config)
    if not config.freeze:
        return model.n_parameters
    return (model.n_layer - config.freeze) * model.n_block_parameters + 2 * c


def flops_per_token(model: GPTConfig, config: TrainSettings) -> int:
    """Floating-point operations to train on one token, as `TrainConfig.flops_per_token` counts them.

    Gradients that no trained weight needs are not counted: those of frozen weights, and all in frozen blocks. An
    adapter's own products are not counted either.
    """
    whole, config = config.flops_per_token(model), LoraSettings.of(config)
    if not (config.lora or config.freeze):
        return whole
    c, upper = model.n_embd, model.n_layer - config.freeze
    blocks = 12 * upper * c * c
    sampled = getattr(config, "sampled_softmax", 0)  # a setting of the edge `tricks`
    head = c * (sampled if 0 < sampled < model.vocab_size else model.vocab_size)
    attention = 4 * upper * c * (config.context_length or model.n_positions)
    trained = (0 if config.lora else blocks) + head * trains_embedding(config)
    return whole // 3 + 2 * (blocks + head) + 2 * attention + 2 * trained


def adapter_parameters(model: GPTConfig, config: TrainSettings) -> int:
    """The number of weights that an adapter adds to the model; 0 without one."""
    config = LoraSettings.of(config)
    if not config.lora:
        return 0
    c = model.n_embd
    ends = {"qkv_proj": c + 3 * c, "out_proj": c + c, "up_proj": c + 4 * c, "down_proj": 4 * c + c}
    return (model.n_layer - config.freeze) * config.lora_rank * sum(ends[target] for target in config.adapted_layers)
