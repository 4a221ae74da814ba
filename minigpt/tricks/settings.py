"""The settings of sampled softmax, spelling features, BPE-dropout and token noise."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from minigpt.config.gpt_config import GPTConfig
from minigpt.config.train_settings import TrainSettings
from minigpt.errors import ConfigError
from minigpt.settings import setting

if TYPE_CHECKING:
    from minigpt.tokenizer.tokenizer import Tokenizer

_optimization = partial(setting, group="Optimization")


@dataclass(frozen=True, kw_only=True)
class TrickSettings(TrainSettings):
    """The settings of sampled softmax, spelling features, BPE-dropout and token noise."""

    token_noise: float = _optimization(
        0.0, "fraction of the training tokens replaced by random ones", min=0, below=1, chosen=True
    )
    bpe_dropout: float = _optimization(
        0.0,
        "fraction of merges dropped at random whenever training text is tokenized; falls to 0 with the learning rate",
        min=0,
        below=1,
        chosen=True,
    )
    sampled_softmax: int = _optimization(
        0,
        "mean number of tokens in the softmax of a training step, sampled again in each; 0: all",
        min=0,
        max=2**31,
        chosen=True,
    )
    spelling_features: bool | None = _optimization(
        None, "tokens of like spelling share a part of their embedding's updates", chosen=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        sharding = getattr(self, "sharding", "off")
        if self.spelling_features and sharding == "on" and not self.unsharded_for:
            raise ConfigError("spelling_features cannot be combined with sharding (on); omit one of them")

    def check_tokenizer(self, tokenizer: "Tokenizer") -> None:
        super().check_tokenizer(tokenizer)
        if self.bpe_dropout:
            from minigpt.tricks.bpe_dropout import BPEDropout

            BPEDropout.of(tokenizer)

    def samples_vocabulary(self, vocab_size: int) -> bool:
        """Whether the softmax of a training step contains a sample of a vocabulary of that size."""
        return 0 < self.sampled_softmax < vocab_size

    def flops_per_token(self, model: GPTConfig) -> int:
        """Floating-point operations to train `model` on one token; of a vocabulary that is sampled, the sample counts.

        A teacher is not counted.
        """
        if self.samples_vocabulary(model.vocab_size):
            model = model.replace(vocab_size=self.sampled_softmax)
        return super().flops_per_token(model)
