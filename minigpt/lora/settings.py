"""The settings of adapters and frozen weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from minigpt.config.gpt_config import GPTConfig
from minigpt.config.train_settings import TrainSettings
from minigpt.errors import ConfigError
from minigpt.settings import setting

if TYPE_CHECKING:
    from minigpt.model.gpt import GPT

LORA_TARGETS = ("qkv_proj", "out_proj", "up_proj", "down_proj")  # the linear layers of a block
_OF_LORA = {"lora_rank", "lora_alpha", "lora_dropout", "lora_targets", "lora_embedding", "base_dtype"}

_fine_tuning = partial(setting, group="Fine-tuning")


@dataclass(frozen=True, kw_only=True)
class LoraSettings(TrainSettings):
    """The settings of adapters and frozen weights."""

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

    def __post_init__(self) -> None:
        super().__post_init__()
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

    @classmethod
    def check_given(cls, given: Mapping[str, Any]) -> None:
        super().check_given(given)
        if (of_lora := sorted(_OF_LORA & given.keys())) and not given.get("lora"):
            name = of_lora[0]
            raise ConfigError(f"{name} ({given[name]}) needs --lora, the adapter that it is a setting of")

    def check_model(self, model: "GPT") -> None:
        super().check_model(model)
        if not (self.lora or self.freeze):
            return
        from minigpt.lora.layers import lora_of  # imports torch, which the settings do not need

        lower = list(model.blocks)[: self.freeze]
        missing = "lora (on)" if self.lora and lora_of(model) is None else ""
        if any(parameter.requires_grad for block in lower for parameter in block.parameters()):
            missing = missing or f"freeze ({self.freeze})"
        if missing:
            raise ConfigError(
                f"{missing} is not applied to the model; call minigpt.lora.fine_tuning.apply_fine_tuning(model, "
                "config) before train()"
            )

    def largest_dropout(self, model: GPTConfig) -> float:
        return max(super().largest_dropout(model), self.lora_dropout if self.lora else 0.0)

    def decided(self) -> dict[str, Any]:
        return super().decided() | {"lora": bool(self.lora), "lora_embedding": bool(self.lora_embedding)}

    def check_base(self, base: str | None) -> None:
        super().check_base(base)
        for name in ("lora", "freeze"):
            if base is None and getattr(self, name):
                raise ConfigError(f"{name} ({getattr(self, name)}) needs --from: the model to fine-tune")

    @property
    def maps_base(self) -> bool:
        # Weights that are compressed are read once, so they need not be copied into memory before.
        return super().maps_base or self.base_dtype != "float32"

    @property
    def unsharded_for(self) -> str:
        """The setting for which the weights are never sharded, and its value."""
        frozen = f"freeze ({self.freeze})" if self.freeze else ""
        return "lora (on)" if self.lora else frozen or super().unsharded_for

    @property
    def adapted_layers(self) -> tuple[str, ...]:
        """The linear layers of a block that get an adapter, in the order of computation."""
        given = self.lora_targets.split(",")
        return LORA_TARGETS if given == ["all"] else tuple(each for each in LORA_TARGETS if each in given)
