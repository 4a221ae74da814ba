"""AdamW for a token embedding whose tokens learn from each other where their spellings have something in common.

A token that is rare in the text has few gradients, and learns little but the places where it was seen. Most rare tokens
are spelled like others: " Walked" has the word of " walked", the beginning of " walks", the ending of " talked".
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim.adamw import adamw

from minigpt.tricks.spelling import SpellingFeatures

FEATURE_STATES = ("feature_exp_avg", "feature_exp_avg_sq")  # of an optimizer's state, (F, C) each


class SpellingAdamW(torch.optim.AdamW):
    """AdamW for the token embedding (V, C) and other parameters, with updates that tokens of like spelling share.

    Think of a token's vector as its own vector plus one for each of its features, E + M Z with the features' sparse
    (V, F) matrix M and their vectors Z (F, C). Adam trains both: the gradient of Z is M^T times that of the embedding.
    The sum is all that a model needs, so only the sum is stored, and the model is a GPT-2 at every step.
    Source: Bojanowski et al. 2017, "Enriching word vectors with subword information", section 3.2 (the sum); Kingma and
    Ba 2015, algorithm 1 (both updates).
    """

    def __init__(self, params: Iterable[Any], embedding: Tensor, features: SpellingFeatures, **settings: Any) -> None:
        super().__init__(params, **settings)
        self.embedding, device = embedding, embedding.device
        self._of_tokens = _Rows(features.features, features.token_starts, device)
        self._of_features = _Rows(features.tokens, features.feature_starts, device)
        self.n_features = features.count

    @property
    def reads_sparse_gradients(self) -> bool:
        """Whether the embedding's gradient may be a sparse tensor, by rows."""
        return False

    def additional_states(self, parameter: Tensor) -> dict[str, Tensor]:
        """What the optimizer keeps for a parameter beside AdamW's states, by name, as tensors of the same shapes."""
        if parameter is not self.embedding:
            return {}
        return dict.fromkeys(FEATURE_STATES, torch.empty(self.n_features, parameter.shape[1], device="meta"))

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Updates the parameters that have a gradient."""
        gradient = self.embedding.grad
        if gradient is not None and gradient.is_sparse:  # the number of threads has changed: C uses one without OpenMP
            gradient = self.embedding.grad = gradient.to_dense()
        loss = super().step(closure)
        if gradient is not None:
            self._step_features(gradient)
        return loss

    def _step_features(self, gradient: Tensor) -> None:
        """Adds the features' update to the embedding, whose gradient is (V, C) and whose own update is done."""
        group, state = self._group, self.state[self.embedding]
        summed = self._of_features.sum(gradient)  # (F, C)
        for name in FEATURE_STATES:
            if name not in state:
                state[name] = torch.zeros_like(summed)
        mean, square = (state[name] for name in FEATURE_STATES)
        update, (beta1, beta2) = torch.zeros_like(summed), group["betas"]  # (F, C)
        adamw(
            [update], [summed], [mean], [square], [], [state["step"] - 1],  # which adamw adds again
            fused=group["fused"], amsgrad=False, beta1=beta1, beta2=beta2, lr=group["lr"], weight_decay=0.0,
            eps=group["eps"], maximize=False,
        )  # fmt: skip
        self.embedding.add_(self._of_tokens.sum(update))

    @property
    def _group(self) -> dict[str, Any]:
        """The parameter group of the embedding."""
        return next(group for group in self.param_groups if any(each is self.embedding for each in group["params"]))


class _Rows:
    """A sparse matrix of zeros and ones by its rows, (n, m).

    Row i has ones in `columns[starts[i] : starts[i + 1]]`. Shapes: columns (N,) and starts (n + 1,), int64.
    """

    def __init__(self, columns: Any, starts: Any, device: torch.device) -> None:
        self.columns = torch.from_numpy(columns).to(device)
        self.starts = torch.from_numpy(np.append(starts, len(columns))).to(device)

    def sum(self, vectors: Tensor) -> Tensor:
        """The product with vectors, the sum of those in each row: (m, C) -> (n, C)."""
        return F.embedding_bag(self.columns, vectors, self.starts[:-1], mode="sum")
