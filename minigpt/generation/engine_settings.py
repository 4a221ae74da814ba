"""How the engine of a model is chosen: the settings that all commands that generate have in common."""

from dataclasses import dataclass
from typing import Literal

from minigpt.settings import Settings

Quantization = Literal["auto", "none", "int8"]

_AUTO: Quantization = "auto"


@dataclass(frozen=True, kw_only=True)
class EngineSettings(Settings):
    """How a model is run. An edge that offers a choice declares it as a setting, at the seam `engine_settings`."""

    # Without annotations these are no fields: they become settings where an edge declares them.
    quantize = _AUTO
    compile = False
