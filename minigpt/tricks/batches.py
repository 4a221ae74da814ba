"""Batches with BPE-dropout and token noise, and those of sampled softmax."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from minigpt.config import TrainConfig
from minigpt.data import batches
from minigpt.data.corpus import Corpus
from minigpt.seeds import mix_seed
from minigpt.training.step_parts import Batches, CorpusBatches, MicroBatch
from minigpt.tricks.bpe_dropout import BPEDropout
from minigpt.tricks.sampled_softmax import StepVocabulary, TokenSampler
from minigpt.tricks.settings import TrickSettings

_SPARE = 8  # tokens read after a window for BPE-dropout, which may give fewer tokens


class NoisyBatches(CorpusBatches):
    """Batches with BPE-dropout, which falls to 0 with the learning rate, and token noise.

    So a model learns last from texts cut as those that it will read. Both are pure functions of the seed, the step and
    the row. After BPE-dropout a window may end before its last tokens, which other epochs include.
    Raises: TokenizerError for BPE-dropout with a tokenizer without merges.
    """

    def __init__(self, corpus: Corpus, config: TrainConfig) -> None:
        super().__init__(corpus, config)
        settings = TrickSettings.of(config)
        self.noise, self.dropout = settings.token_noise, settings.bpe_dropout
        if self.dropout:
            self._tokenize = BPEDropout.of(corpus.tokenizer)

    def tensors(self, step: int, rows: range, height: float) -> tuple[Tensor, Tensor]:
        dropout = self.dropout * height
        if dropout:
            inputs, targets = self._tokenized_again(step, rows, dropout)
        else:
            inputs, targets = super().tensors(step, rows, height)
        if self.noise:
            inputs = add_noise(inputs, self.noise, self.corpus.tokenizer.vocab_size, step, self.size, self.seed, rows)
        return inputs, targets

    def _tokenized_again(self, step: int, rows: range, dropout: float) -> tuple[Tensor, Tensor]:
        spare = _SPARE + self.context // 8  # it is rare that a pre-token has fewer tokens than before
        whole, scored = self.corpus.windows(
            step, self.size, self.context, self.seed, rows, lookahead=1 + spare, loss_on=self.loss_on
        )
        seeds = np.uint64(mix_seed(self.seed, step)) + np.array(rows, dtype=np.uint64)
        sequences = self._tokenize(whole, seeds, dropout, self.context + 1)
        return batches.inputs_and_targets(
            sequences, None if scored is None else self._tokenize.labels(whole, sequences, scored)
        )


class SampledBatches:
    """Batches with the vocabulary of each micro-batch, which has the step's sample of all tokens."""

    def __init__(self, others: Batches, sampler: TokenSampler) -> None:
        self.others, self.sampler = others, sampler
        self._step, self._corrections = -1, torch.empty(0)  # of the last step, (V,)

    @property
    def scores_all(self) -> bool:
        return self.others.scores_all

    def read(self, step: int, rows: range, height: float) -> MicroBatch:
        if step != self._step:
            self._step, self._corrections = step, self.sampler.corrections(step)
        batch = self.others.read(step, rows, height)
        # On the CPU, because the number of its tokens would have to be read from the device.
        vocabulary = StepVocabulary.of(batch.inputs, batch.targets, self._corrections, batch.scored)
        return replace(batch, more=(*batch.more, *vocabulary))


def add_noise(
    inputs: Tensor, noise: float, vocab_size: int, step: int, size: int, seed: int, rows: range | None = None
) -> Tensor:
    """The inputs of some rows of a step, each token replaced with probability `noise` by a uniformly random id below
    `vocab_size`. The replaced tokens differ in every step, so that every epoch reads a window differently.

    Shapes: (B, T) -> (B, T).
    Source: Xie et al. 2017, "Data noising as smoothing in neural network language models", section 3.1, with a random
    token in place of the blank.
    """
    length, selected = inputs.shape[1], list(batches.select_rows(size, rows))
    generator = torch.Generator().manual_seed(mix_seed(seed, step, size))
    replaced = (torch.rand(size, length, generator=generator) < noise)[selected]  # (B, T)
    drawn = torch.randint(vocab_size, (size, length), generator=generator)[selected]  # (B, T)
    return torch.where(replaced, drawn, inputs)
