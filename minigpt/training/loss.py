"""The next-token loss through the tied head without ever holding the logits of a whole batch."""

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

HEAD_ROWS = 1024  # tokens whose logits exist at one time


class _HeadAndLoss(torch.autograd.Function):
    """Mean cross entropy of `features @ weight.T`, a slice of rows at a time, the gradients made on the way.

    The gradient of the cross entropy with respect to the logits is softmax(logits) - onehot(target), so each slice
    has all it needs at once: its logits are overwritten by their gradient, multiplied out and dropped. What lives
    on is (N, C) and (V, C), never (N, V): with a vocabulary of 50,257 the latter is most of a small model's memory.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, features: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        """Shapes: features (N, C), weight (V, C), targets (N,) int64 -> ()."""
        n = features.shape[0]
        total = torch.zeros((), dtype=torch.float32, device=features.device)
        feature_gradient = torch.empty_like(features)
        weight_gradient = torch.zeros_like(weight, dtype=torch.float32)
        for start in range(0, n, HEAD_ROWS):
            rows = slice(start, start + HEAD_ROWS)
            x, wanted = features[rows], targets[rows]
            logits = (x @ weight.t()).float()  # (rows, V)
            normaliser = logits.logsumexp(dim=1, keepdim=True)  # (rows, 1)
            total += (normaliser.squeeze(1) - logits.gather(1, wanted[:, None]).squeeze(1)).sum()
            gradient = logits.sub_(normaliser).exp_()
            gradient.scatter_add_(1, wanted[:, None], torch.full_like(normaliser, -1.0))
            gradient = gradient.to(x.dtype)
            feature_gradient[rows] = gradient @ weight
            if x.dtype == weight_gradient.dtype:
                weight_gradient.addmm_(gradient.t(), x)  # adds in place: no second (V, C)
            else:
                weight_gradient += gradient.t() @ x
        ctx.save_for_backward(feature_gradient, weight_gradient)
        ctx.n = n  # type: ignore[attr-defined]
        return total / n

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        feature_gradient, weight_gradient = ctx.saved_tensors  # type: ignore[attr-defined]
        # Divided only here: float16 gradients divided before the loss scale multiplies them would vanish.
        scale = gradient / ctx.n  # type: ignore[attr-defined]
        dtype = feature_gradient.dtype
        return (feature_gradient.float() * scale).to(dtype), (weight_gradient * scale).to(dtype), None


def next_token_loss(features: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    """The mean nats per token of targets under the tied head.

    Shapes: features (B, T, C), head (V, C), targets (B, T) int64 -> ().
    """
    features, targets = features.flatten(0, 1), targets.flatten()
    if torch.is_autocast_enabled(features.device.type):
        dtype = torch.get_autocast_dtype(features.device.type)
        features, head = features.to(dtype), head.to(dtype)
    return _HeadAndLoss.apply(features, head, targets)  # type: ignore[no-untyped-call]
