"""What `minigpt generate` does with `--beams` and `--best-of`."""

from dataclasses import dataclass

from minigpt.cli.generate_settings import GenerateSettings
from minigpt.config import SamplingConfig
from minigpt.errors import ConfigError
from minigpt.search.settings import SearchSettings


@dataclass(frozen=True, kw_only=True)
class FitOfBeams(GenerateSettings):
    """Fits beams into the context, and says what the best texts were chosen from."""

    def check_together(self, config: SamplingConfig, *, as_json: bool) -> None:
        super().check_together(config, as_json=as_json)
        if self.alternatives is not None and SearchSettings.of(config).beams > 1:
            raise ConfigError(
                f"--alternatives {self.alternatives} cannot be combined with --beams: beam search gives no "
                "probabilities of its tokens"
            )

    def fitted(self, config: SamplingConfig, n_prompt: int, context: int, *, may_shorten: bool) -> SamplingConfig:
        config = super().fitted(config, n_prompt, context, may_shorten=may_shorten)
        if SearchSettings.of(config).beams == 1:
            return config
        from minigpt.search.beam_search import check_room

        if may_shorten and (room := context - n_prompt) > 0:
            config = config.replace(max_new_tokens=min(config.max_new_tokens, room))
        check_room(n_prompt, config.max_new_tokens, context)
        return config

    def chosen(self, config: SamplingConfig, n_texts: int) -> str:
        best_of = SearchSettings.of(config).best_of
        if best_of == 1:
            return super().chosen(config, n_texts)
        kept = "the most likely" if config.samples == 1 else f"the {config.samples:,} most likely"
        each = "" if n_texts == config.samples else " for each prompt"
        return f"{kept} of {best_of:,} texts{each}"
