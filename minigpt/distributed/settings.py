"""The settings of training by several processes."""

from dataclasses import dataclass
from functools import partial
from typing import Literal

from minigpt.config.train_settings import TrainSettings
from minigpt.errors import ConfigError
from minigpt.settings import setting

_machine = partial(setting, group="Machine")


@dataclass(frozen=True, kw_only=True)
class DistributedSettings(TrainSettings):
    """The settings of training by several processes."""

    devices: int | None = _machine(None, "processes on this machine: one per GPU, or several that share the CPU", min=1)
    sharding: Literal["auto", "on", "off"] = _machine(
        "auto", "shard weights, gradients and optimizer state over the devices (FSDP); auto: if they do not fit"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sharding == "on" and self.unsharded_for:
            raise ConfigError(f"{self.unsharded_for} cannot be combined with sharding (on); omit one of them")

    @property
    def n_processes(self) -> int | None:
        return self.devices

    def check_devices(self) -> None:
        from minigpt.distributed.devices import check_count  # imports torch

        super().check_devices()
        check_count(self.devices or 1, self.device)

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
