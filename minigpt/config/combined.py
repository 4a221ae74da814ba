"""`TrainConfig`, `ReadingConfig`, `SamplingConfig`: the settings of the spine and of the installed edges together."""

from typing import TYPE_CHECKING, Any

from minigpt.config.reading_settings import ReadingSettings
from minigpt.config.sampling_settings import SamplingSettings
from minigpt.config.train_settings import TrainSettings
from minigpt.edges import provided
from minigpt.settings import combined

if TYPE_CHECKING:
    # What the spine may read. An edge reads its own: `LoraSettings.of(config).lora_rank`.
    class TrainConfig(TrainSettings):
        """How a model is trained."""

        def __init__(self, **settings: Any) -> None: ...

    class ReadingConfig(ReadingSettings):
        """How files are read as documents, and how many documents are held out for validation."""

        def __init__(self, **settings: Any) -> None: ...

    class SamplingConfig(SamplingSettings):
        """How text is generated."""

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
    ReadingConfig = combined(
        "ReadingConfig",
        """How files are read as documents, and how many documents are held out for validation.""",
        (ReadingSettings, *provided("reading_settings")),
    )
    SamplingConfig = combined(
        "SamplingConfig",
        """How text is generated.

        A token's score is its logit. Penalties, biases and bans change the scores first; then temperature, top_k,
        top_p, min_p and typical_p are applied in this order.
        """,
        (SamplingSettings, *provided("sampling_settings")),
    )
