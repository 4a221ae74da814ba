"""The updates of a token embedding with spelling features in compiled C code."""

from typing import Any

import torch
from torch import Tensor

from minigpt.native import weight_updates
from minigpt.tricks.spelling_updates import FEATURE_STATES, SpellingAdamW


class CompiledSpellingAdamW(SpellingAdamW):
    """`SpellingAdamW`; in C where that is faster than PyTorch."""

    @property
    def reads_sparse_gradients(self) -> bool:
        return weight_updates.update_fits(self.embedding)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        gradient = self.embedding.grad
        if gradient is None or not self.reads_sparse_gradients:
            return super().step(closure)
        self.embedding.grad = None
        loss = super().step(closure)
        self.embedding.grad = gradient
        self._step_embedding(gradient)
        return loss

    def _step_embedding(self, gradient: Tensor) -> None:
        """Updates the embedding, whose gradient is (V, C), and its features in compiled C code."""
        group, state = self._group, self.state[self.embedding]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(self.embedding), torch.zeros_like(self.embedding)
        for name in FEATURE_STATES:
            if name not in state:
                state[name] = self.embedding.new_zeros(self.n_features, self.embedding.shape[1])
        state["step"] += 1
        rows = self._rows_of(gradient)
        beta1, beta2 = group["betas"]
        adam = weight_updates.adam(group["lr"], beta1, beta2, group["eps"], int(state["step"]))
        mean, square = (state[name] for name in FEATURE_STATES)
        updates = weight_updates.adam_of_features(
            mean, square, rows, self._of_features.columns, self._of_features.starts, adam
        )
        weight_updates.adam_of_tokens_(
            self.embedding, state["exp_avg"], state["exp_avg_sq"], rows, updates, self._of_tokens.columns,
            self._of_tokens.starts, 1 - group["lr"] * group["weight_decay"], adam,
        )  # fmt: skip

    def _rows_of(self, gradient: Tensor) -> weight_updates.RowGradient:
        """The rows of the embedding's gradient, (V, C)."""
        if not gradient.is_sparse:
            return weight_updates.RowGradient(gradient.contiguous(), torch.arange(len(gradient)))
        gradient = gradient.coalesce()
        (ids,), rows = gradient.indices(), gradient.values()
        positions = torch.full((len(gradient),), -1)
        positions[ids] = torch.arange(len(ids))
        return weight_updates.RowGradient(rows, positions)
