"""How text is generated: the settings of the spine and of the installed edges, in one class."""

from typing import TYPE_CHECKING, Any

from minigpt.config.sampling_settings import SamplingSettings
from minigpt.edges import provided
from minigpt.settings import combined

if TYPE_CHECKING:
    # What the spine may read. An edge reads its own: `PenaltySettings.of(config).bad_words`.
    class SamplingConfig(SamplingSettings):
        """How text is generated."""

        def __init__(self, **settings: Any) -> None: ...
else:
    SamplingConfig = combined(
        "SamplingConfig",
        """How text is generated.

        A token's score is its logit. Penalties, biases and bans change the scores first; then temperature, top_k,
        top_p, min_p and typical_p are applied in this order.
        """,
        (SamplingSettings, *provided("sampling_settings")),
    )
