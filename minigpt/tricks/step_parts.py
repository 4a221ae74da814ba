"""Sampled softmax, spelling features, BPE-dropout and token noise as parts of a training step."""

from typing import Any

import torch

from minigpt.config import TrainConfig
from minigpt.edges import is_installed
from minigpt.errors import ConfigError
from minigpt.training.step_parts import StepParts
from minigpt.tricks.batches import NoisyBatches, SampledBatches
from minigpt.tricks.sampled_softmax import SampledLossModel, TokenSampler
from minigpt.tricks.settings import TrickSettings
from minigpt.tricks.spelling import SpellingFeatures
from minigpt.tricks.spelling_updates import SpellingAdamW
from minigpt.tricks.token_counts import token_counts


def use_tricks(parts: StepParts, config: TrainConfig, given: dict[str, Any]) -> None:  # noqa: ARG001
    """Replaces the batches, the loss and the optimizer of the token embedding as the settings say.

    Raises: ConfigError for spelling features with sharded weights; TokenizerError for BPE-dropout without merges.
    """
    settings, vocab_size = TrickSettings.of(config), parts.model.config.vocab_size
    if settings.bpe_dropout or settings.token_noise:
        parts.batches = NoisyBatches(parts.corpus, config)
    if settings.samples_vocabulary(vocab_size):
        sampler = TokenSampler(token_counts(parts.corpus, vocab_size), settings.sampled_softmax, config.seed)
        parts.batches, parts.loss = SampledBatches(parts.batches, sampler), SampledLossModel.of(parts.loss)
    if settings.spelling_features:
        _share_updates(parts)


def _share_updates(parts: StepParts) -> None:
    """Makes tokens of like spelling share a part of their embedding's updates."""
    if parts.world.is_sharded:
        raise ConfigError(
            "spelling_features needs unsharded weights, which do not fit into memory; give --no-spelling-features"
        )
    features = SpellingFeatures.of(parts.corpus.tokenizer, parts.model.config.vocab_size)
    adamw, *others = parts.optimizers
    if not features.count or not isinstance(adamw, torch.optim.AdamW):
        return
    kind = SpellingAdamW
    if is_installed("native"):
        from minigpt.tricks.compiled_spelling import CompiledSpellingAdamW as kind  # noqa: N813
    optimizer = kind(adamw.param_groups, parts.model.token_embedding.weight, features, fused=True)
    parts.optimizers = [optimizer, *others]
    if isinstance(parts.loss, SampledLossModel) and parts.world.size == 1:
        parts.loss.sparse_gradient = optimizer.reads_sparse_gradients
