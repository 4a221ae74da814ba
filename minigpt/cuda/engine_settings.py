"""The setting of the engine on CUDA."""

from dataclasses import dataclass

from minigpt.generation.engine_settings import EngineSettings
from minigpt.settings import setting


@dataclass(frozen=True, kw_only=True)
class CudaEngineSettings(EngineSettings):
    """The setting of the engine on CUDA."""

    compile: bool = setting(False, "on CUDA: run torch.compile first; takes a minute, for long texts")
