"""How a model is trained: the settings of the spine and of the installed edges, in one class."""

from typing import TYPE_CHECKING, Any

from minigpt.config.train_settings import TrainSettings
from minigpt.edges import provided
from minigpt.settings import combined

if TYPE_CHECKING:
    # What the spine may read. An edge reads its own: `LoraSettings.of(config).lora_rank`.
    class TrainConfig(TrainSettings):
        """How a model is trained."""

        def __init__(self, **settings: Any) -> None: ...
else:
    TrainConfig = combined(
        "TrainConfig",
        """How a model is trained.

        None means that the user did not choose. `minigpt train` then chooses; `train()` uses the default in the help
        text, else the model's context length, the whole batch as one micro-batch, one process and no early stopping.
        """,
        (TrainSettings, *provided("train_settings")),
    )
