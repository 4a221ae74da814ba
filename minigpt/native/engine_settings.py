"""The setting of the engines of decode.c."""

from dataclasses import dataclass
from typing import Literal

from minigpt.generation.engine_settings import EngineSettings
from minigpt.settings import setting


@dataclass(frozen=True, kw_only=True)
class NativeEngineSettings(EngineSettings):
    """The setting of the engines of decode.c."""

    quantize: Literal["auto", "none", "int8"] = setting(
        "auto", "int8 weights on a CPU; auto: from 50 million parameters on"
    )
