"""The next-token loss through the tied head, computed without keeping the logits of a whole batch."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from minigpt.model.gpt import GPT

HEAD_ROWS = 1024  # tokens with logits in memory at one time
_CACHED_LOGITS = 2**20  # logits that a CPU turns into their gradient at one time, so that they stay in its cache
_ALIGNMENT = 64  # numbers: a matrix product writes rows a third faster if they begin at whole cache lines


class LossModel(nn.Module):
    """A model with its loss, as one module, so that DDP can wrap the forward pass of both."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model = model
        self.features: Callable[[Tensor], Tensor] = model.features  # or its compiled form

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss in nats per token: (B, T) int64 twice -> ()."""
        return next_token_loss(self.features(inputs), self.model.token_embedding.weight, targets)


def next_token_loss(features: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    """The mean loss of the targets under the tied head. Unit: nats per token.

    Shapes: features (B, T, C), head (V, C), targets (B, T) int64 -> ().
    """
    kind = features.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else features.dtype
    return _HeadAndLoss.apply(features.flatten(0, 1), head, targets.flatten(), dtype)  # type: ignore[no-untyped-call]


class _HeadAndLoss(torch.autograd.Function):
    """The mean cross entropy of `features @ weight.T`, one slice of rows at a time, with its gradients.

    The gradient of the cross entropy with respect to the logits is softmax(logits) - onehot(target). So each slice
    overwrites its logits with their gradient, multiplies it with the features and the weights, and is done. Only
    (N, C) and (V, C) are kept, never (N, V), which for 50,257 tokens is most of a small model's memory.
    Matrix products are in `dtype`; the gradient of the weights is summed in float32.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, features: Tensor, weight: Tensor, targets: Tensor, dtype: torch.dtype) -> Tensor:
        """Shapes: features (N, C), weight (V, C), targets (N,) int64 -> ()."""
        n, vocab_size = features.shape[0], weight.shape[0]
        features, head = features.to(dtype), weight.to(dtype)
        total = torch.zeros((), dtype=torch.float32, device=features.device)
        feature_gradient = torch.empty_like(features)
        weight_gradient = torch.zeros_like(weight, dtype=torch.float32)
        padded_size = -(-vocab_size // _ALIGNMENT) * _ALIGNMENT
        padded = features.new_empty(min(n, HEAD_ROWS), padded_size)  # (rows, V rounded up)
        # oneDNN's AMX kernels read past the end of a row and multiply that by 0, and 0 times NaN is NaN.
        padded[:, vocab_size:] = 0
        buffer = padded[:, :vocab_size]  # (rows, V)
        slice_rows = max(1, _CACHED_LOGITS // vocab_size) if features.device.type == "cpu" else HEAD_ROWS
        for start in range(0, n, HEAD_ROWS):
            x, target = features[start : start + HEAD_ROWS], targets[start : start + HEAD_ROWS, None]
            logits = torch.mm(x, head.t(), out=buffer[: len(x)])  # (rows, V)
            slices = zip(torch.split(logits, slice_rows), torch.split(target, slice_rows), strict=True)
            for logits_slice, target_slice in slices:
                total += _overwrite_with_gradient(logits_slice, target_slice)
            torch.mm(logits, head, out=feature_gradient[start : start + HEAD_ROWS])
            if dtype == weight_gradient.dtype:
                weight_gradient.addmm_(logits.t(), x)  # adds in place: no second (V, C)
            else:
                weight_gradient += logits.t() @ x
        ctx.gradients = feature_gradient, weight_gradient, n  # type: ignore[attr-defined]
        return total / n

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        feature_gradient, weight_gradient, n = ctx.gradients  # type: ignore[attr-defined]
        del ctx.gradients  # type: ignore[attr-defined]  # they are scaled in place: valid for one backward pass
        # Divided only here: float16 gradients divided before the loss scale multiplies them would vanish.
        scale = gradient / n
        return feature_gradient.float() * scale, weight_gradient.mul_(scale), None, None


def _overwrite_with_gradient(logits: Tensor, targets: Tensor) -> Tensor:
    """Returns the summed cross entropy of some rows, (), and overwrites their logits with its gradient.

    Shapes: logits (n, V), targets (n, 1) int64.
    """
    exact = logits.float()
    probabilities = exact.softmax(dim=1)  # (n, V)
    # The largest probability is 1 / sum(exp(logits - max(logits))), which saves a second pass of exponentials.
    normalizer = exact.amax(dim=1, keepdim=True) - probabilities.amax(dim=1, keepdim=True).log()  # (n, 1)
    loss = (normalizer - exact.gather(1, targets)).sum()
    probabilities.scatter_add_(1, targets, torch.full_like(normalizer, -1.0))
    logits.copy_(probabilities)
    return loss
