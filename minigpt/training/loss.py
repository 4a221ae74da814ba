"""The next-token loss through the tied head without ever holding the logits of a whole batch."""

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

HEAD_ROWS = 1024  # tokens whose logits exist at one time
_IN_CACHE = 2**20  # logits that a CPU turns into their gradient at one time, lest they go to memory and back each pass
_ALIGNED = 64  # numbers: a matrix product writes rows a third faster that begin at whole cache lines


class _HeadAndLoss(torch.autograd.Function):
    """Mean cross entropy of `features @ weight.T`, a slice of rows at a time, the gradients made on the way.

    The gradient of the cross entropy with respect to the logits is softmax(logits) - onehot(target), so each slice
    has all it needs at once: its logits are overwritten by their gradient, multiplied out and forgotten. What lives
    on is (N, C) and (V, C), never (N, V): with a vocabulary of 50,257 the latter is most of a small model's memory.
    Products are in `dtype`; the gradient of the weights adds up in float32 and stays it.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, features: Tensor, weight: Tensor, targets: Tensor, dtype: torch.dtype) -> Tensor:
        """Shapes: features (N, C), weight (V, C), targets (N,) int64 -> ()."""
        n, words = features.shape[0], weight.shape[0]
        features, head = features.to(dtype), weight.to(dtype)
        total = torch.zeros((), dtype=torch.float32, device=features.device)
        feature_gradient = torch.empty_like(features)
        weight_gradient = torch.zeros_like(weight, dtype=torch.float32)
        aligned = features.new_empty(min(n, HEAD_ROWS), -(-words // _ALIGNED) * _ALIGNED)  # (rows, V rounded up)
        # oneDNN's AMX kernels read past a row's end and multiply what is there by 0, and 0 times NaN is NaN.
        aligned[:, words:] = 0
        room = aligned[:, :words]  # (rows, V)
        at_once = max(1, _IN_CACHE // words) if features.device.type == "cpu" else HEAD_ROWS
        for start in range(0, n, HEAD_ROWS):
            x, wanted = features[start : start + HEAD_ROWS], targets[start : start + HEAD_ROWS, None]
            logits = torch.mm(x, head.t(), out=room[: len(x)])  # (rows, V)
            for some, their in zip(torch.split(logits, at_once), torch.split(wanted, at_once), strict=True):
                total += _become_gradient(some, their)
            torch.mm(logits, head, out=feature_gradient[start : start + HEAD_ROWS])
            if dtype == weight_gradient.dtype:
                weight_gradient.addmm_(logits.t(), x)  # adds in place: no second (V, C)
            else:
                weight_gradient += logits.t() @ x
        ctx.made = feature_gradient, weight_gradient, n  # type: ignore[attr-defined]
        return total / n

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        feature_gradient, weight_gradient, n = ctx.made  # type: ignore[attr-defined]
        del ctx.made  # type: ignore[attr-defined]  # scaled in place, so good for one backward pass
        # Divided only here: float16 gradients divided before the loss scale multiplies them would vanish.
        scale = gradient / n
        return feature_gradient.float() * scale, weight_gradient.mul_(scale), None, None


def _become_gradient(logits: Tensor, wanted: Tensor) -> Tensor:
    """The summed cross entropy of some rows, (), whose logits are overwritten by its gradient.

    Shapes: logits (n, V), wanted (n, 1) int64.
    """
    exact = logits.float()
    chances = exact.softmax(dim=1)  # (n, V)
    # The largest chance is 1 / sum(exp(logits - the largest of them)), which spares a second pass of exponentials.
    normaliser = exact.amax(dim=1, keepdim=True) - chances.amax(dim=1, keepdim=True).log()  # (n, 1)
    loss = (normaliser - exact.gather(1, wanted)).sum()
    chances.scatter_add_(1, wanted, torch.full_like(normaliser, -1.0))
    logits.copy_(chances)
    return loss


def next_token_loss(features: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    """The mean nats per token of targets under the tied head.

    Shapes: features (B, T, C), head (V, C), targets (B, T) int64 -> ().
    """
    kind = features.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else features.dtype
    return _HeadAndLoss.apply(features.flatten(0, 1), head, targets.flatten(), dtype)  # type: ignore[no-untyped-call]
