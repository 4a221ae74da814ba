"""The next-token loss through the tied head, computed without keeping the logits of a whole batch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from minigpt.device import product_dtype
from minigpt.model.gpt import GPT
from minigpt.model.logits import logits_buffer

HEAD_ROWS = 1024  # tokens with logits in memory at one time
CUDA_HEAD_ROWS = 4096  # the same on CUDA: every slice of rows adds to all of the head's gradient, which takes time
_CACHED_LOGITS = 2**20  # logits that a CPU turns into their gradient at one time, so that they stay in its cache
_CUDA_ALIGNMENT = 128  # tokens: tensor cores multiply whole tiles, and GPT-2's 50,257 tokens are an odd number

Correct = Callable[[Tensor, Tensor], None]  # changes logits (n, V) in place, for targets (n, 1)


class LogitsGradient(Protocol):
    """`overwrite_with_gradient`, or `fused_gradient` or its compiled form, or what an edge has in their place."""

    def __call__(
        self, logits: Tensor, targets: Tensor, vocab_size: int, soft: Tensor | None = None, weight: float = 0.0, /
    ) -> Tensor:
        """Returns the summed loss of some rows and overwrites their logits with its gradient."""


class SoftTargets(Protocol):
    """A distribution of the next token that has the part `weight` of the targets, and the true token the rest."""

    weight: float

    def logits(self, dtype: torch.dtype, rows: int, width: int, /) -> Callable[[int, int], Tensor]:
        """A function for the logits of `count` rows from `start`, (count, width), which the loss may overwrite.

        A later call may overwrite the result of an earlier one.
        """


class LossModel(nn.Module):
    """A model with its loss, as one module, so that DDP can wrap the forward pass of both.

    An edge may replace `plan`, or give `soft_targets`: a module with a `model` and its `features` that returns the soft
    targets of inputs and `scored`.
    """

    features: Callable[..., Tensor]

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model = model
        self.plan = head_plan
        self.soft_targets: Any = None
        self.restore_plain()

    @property
    def _parts(self) -> list[Any]:
        """The modules with a forward pass."""
        return [self] if self.soft_targets is None else [self, self.soft_targets]

    def restore_plain(self) -> None:
        """Computes everything without torch.compile."""
        for part in self._parts:
            part.features = part.model.features
        self.logits_gradient: LogitsGradient | None = None

    def compile_forward(self) -> None:
        """Compiles the forward pass, and on CUDA also the gradient of the logits, which torch runs as nine kernels."""
        for part in self._parts:
            part.features = torch.compile(part.model.features)
        if self.model.token_embedding.weight.is_cuda:
            self.logits_gradient = torch.compile(fused_gradient)

    def forward(self, inputs: Tensor, targets: Tensor, scored: Tensor | None = None) -> Tensor:
        """The mean loss in nats per token: (B, T) int64 twice -> ().

        `scored` (N,) int64 are the positions in the flattened targets that count, by default all. Without any, it is 0.
        """
        soft = None if self.soft_targets is None else self.soft_targets(inputs, scored)
        features, targets = select_scored(self.features(inputs), targets, scored)
        return self.head_loss(features, self.model.token_embedding.weight, targets, soft)

    def head_loss(
        self,
        features: Tensor,
        head: Tensor,
        targets: Tensor,
        soft: SoftTargets | None = None,
        correct: Correct | None = None,
    ) -> Tensor:
        """`next_token_loss` by this module's plan."""
        # A compiled gradient would be compiled again for each size of a part of the vocabulary.
        compiled = self.logits_gradient if correct is None else None
        plan = self.plan(features.device.type, product_dtype(features), len(head), compiled)
        return next_token_loss(features, head, targets, plan=plan, soft=soft, correct=correct)


def select_scored(features: Tensor, targets: Tensor, scored: Tensor | None) -> tuple[Tensor, Tensor]:
    """Features and targets of the positions that count: (B, T, C), (B, T) -> (1, N, C), (1, N); None for all."""
    if scored is None:
        return features, targets
    return features.flatten(0, 1).index_select(0, scored)[None], targets.flatten().index_select(0, scored)[None]


@dataclass(frozen=True)
class HeadPlan:
    """How the head's logits are computed: `rows` tokens at a time, which `gradient` reads in slices of `slice_rows`.

    With `pads_vocabulary` the products are of a multiple of 128 tokens. The additional ones have weights, logits and
    gradients of 0 and no probability, so that neither the loss nor the model contains them.
    """

    rows: int
    slice_rows: int
    pads_vocabulary: bool
    gradient: LogitsGradient


def head_plan(
    device_type: str, dtype: torch.dtype, vocab_size: int, compiled_gradient: LogitsGradient | None = None
) -> HeadPlan:
    """The plan for a device. A compiled gradient reads all rows at once, because it makes no copies of the logits."""
    gradient = compiled_gradient or overwrite_with_gradient
    if device_type != "cuda":
        slice_rows = max(1, _CACHED_LOGITS // vocab_size) if device_type == "cpu" else HEAD_ROWS
        return HeadPlan(HEAD_ROWS, slice_rows, pads_vocabulary=False, gradient=gradient)
    # A float16 sum over more rows could overflow in the gradient of a frequent token.
    rows = HEAD_ROWS if dtype == torch.float16 else CUDA_HEAD_ROWS
    return HeadPlan(rows, rows if compiled_gradient else HEAD_ROWS, pads_vocabulary=True, gradient=gradient)


def next_token_loss(
    features: Tensor,
    head: Tensor,
    targets: Tensor,
    *,
    plan: HeadPlan | None = None,
    soft: SoftTargets | None = None,
    correct: Correct | None = None,
) -> Tensor:
    """The mean loss of the targets under the tied head. Unit: nats per token.

    `plan` is by default that of `head_plan` for the features' device. With `soft` targets it is the cross entropy
    against their mixture with the true tokens. `correct` changes all logits, those of the soft targets too, before
    their gradient is computed.

    Shapes: features (B, T, C), head (V, C), targets (B, T) int64 -> ().
    """
    dtype = product_dtype(features)
    plan = plan or head_plan(features.device.type, dtype, len(head))
    flat, flat_targets = features.flatten(0, 1), targets.flatten()
    return _HeadAndLoss.apply(flat, head, flat_targets, dtype, plan, soft, correct)  # type: ignore[no-untyped-call]


class _HeadAndLoss(torch.autograd.Function):
    """The mean cross entropy of `features @ weight.T`, one slice of rows at a time, with its gradients.

    The gradient of the cross entropy with respect to the logits is softmax(logits) - onehot(target). So each slice
    overwrites its logits with their gradient, multiplies it with the features and the weights, and is done. Only
    (N, C) and (V, C) are kept, never (N, V), which for 50,257 tokens is most of a small model's memory. A frozen head
    has no gradient. The logits of soft targets exist for the same rows at the same time.
    Matrix products are in `dtype`; the gradient of the weights is summed in float32.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, features: Tensor, weight: Tensor, targets: Tensor, dtype: torch.dtype, plan: HeadPlan,
        soft: SoftTargets | None, correct: Correct | None,
    ) -> Tensor:  # fmt: skip
        """Shapes: features (N, C), weight (V, C), targets (N,) int64 -> ()."""
        trains_head = ctx.needs_input_grad[1]  # type: ignore[attr-defined]
        n, vocab_size = features.shape[0], weight.shape[0]
        features, head = features.to(dtype), weight.to(dtype)
        if plan.pads_vocabulary:
            head = F.pad(head, (0, 0, 0, -vocab_size % _CUDA_ALIGNMENT))  # V rounded up, in all shapes below
        soft_logits_of = None if soft is None else soft.logits(dtype, min(n, plan.rows), len(head))
        total = torch.zeros((), dtype=torch.float32, device=features.device)
        feature_gradient = torch.empty_like(features)
        weight_gradient = torch.zeros_like(head, dtype=torch.float32) if trains_head else None
        buffer = logits_buffer(features, min(n, plan.rows), len(head))  # (rows, V)
        for start in range(0, n, plan.rows):
            x, target = features[start : start + plan.rows], targets[start : start + plan.rows, None]
            logits = torch.mm(x, head.t(), out=buffer[: len(x)])  # (rows, V)
            soft_logits = None if soft_logits_of is None else soft_logits_of(start, len(x))  # (rows, V)
            if correct is not None:
                correct(logits[:, :vocab_size], target)
                if soft_logits is not None:
                    correct(soft_logits[:, :vocab_size], target)
            for begin in range(0, len(x), plan.slice_rows):
                rows = slice(begin, begin + plan.slice_rows)
                if soft is None or soft_logits is None:
                    total += plan.gradient(logits[rows], target[rows], vocab_size)
                else:
                    total += plan.gradient(logits[rows], target[rows], vocab_size, soft_logits[rows], soft.weight)
            torch.mm(logits, head, out=feature_gradient[start : start + plan.rows])
            if weight_gradient is None:
                continue
            if dtype == weight_gradient.dtype:
                weight_gradient.addmm_(logits.t(), x)  # adds in place: no second (V, C)
            else:
                weight_gradient += logits.t() @ x
        if weight_gradient is not None:
            weight_gradient = weight_gradient[:vocab_size]
        ctx.gradients = feature_gradient, weight_gradient, n  # type: ignore[attr-defined]
        return total / max(1, n)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        feature_gradient, weight_gradient, n = ctx.gradients  # type: ignore[attr-defined]
        del ctx.gradients  # type: ignore[attr-defined]  # they are scaled in place: valid for one backward pass
        # Divided only here: float16 gradients divided before the loss scale multiplies them would vanish.
        scale = gradient / max(1, n)
        head = None if weight_gradient is None else weight_gradient.mul_(scale)
        return feature_gradient.float() * scale, head, None, None, None, None, None


def overwrite_with_gradient(
    logits: Tensor, targets: Tensor, vocab_size: int, soft: Tensor | None = None, weight: float = 0.0
) -> Tensor:
    """Returns the summed cross entropy of some rows, (), and overwrites their logits with its gradient.

    With the logits of `soft` targets, these have this `weight` in the targets. Columns from `vocab_size` on are
    padding: they keep their logits, which are 0.
    Shapes: logits and soft (n, V), targets (n, 1) int64.
    """
    logits = logits[:, :vocab_size]
    exact = logits.float()
    probabilities = exact.softmax(dim=1)  # (n, V)
    # The largest probability is 1 / sum(exp(logits - max(logits))), which saves a second pass of exponentials.
    normalizer = exact.amax(dim=1, keepdim=True) - probabilities.amax(dim=1, keepdim=True).log()  # (n, 1)
    loss = (normalizer - (1 - weight) * exact.gather(1, targets)).sum()
    if soft is not None:
        goal = soft[:, :vocab_size].float().softmax(dim=1)  # (n, V)
        probabilities.sub_(goal, alpha=weight)
        loss -= weight * goal.mul_(exact).sum()
    probabilities.scatter_add_(1, targets, torch.full_like(normalizer, weight - 1.0))
    logits.copy_(probabilities)
    return loss


def fused_gradient(
    logits: Tensor, targets: Tensor, vocab_size: int, soft: Tensor | None = None, weight: float = 0.0
) -> Tensor:
    """`overwrite_with_gradient` in operations that torch.compile fuses: no copy of the logits is written to memory.

    It reads whole padded rows, whose length lets a GPU load several numbers at once.
    """
    columns = torch.arange(logits.shape[1], device=logits.device)  # (V,)
    padding = columns >= vocab_size
    exact = logits.float().masked_fill(padding, -torch.inf)  # (n, V)
    normalizer = exact.logsumexp(dim=1, keepdim=True)  # (n, 1)
    goal = (1 - weight) * (columns == targets).float()  # (n, V)
    loss = (normalizer - (1 - weight) * exact.gather(1, targets)).sum()
    if soft is not None:
        mixed = weight * soft.float().masked_fill(padding, -torch.inf).softmax(dim=1)  # (n, V)
        goal = goal + mixed
        loss = loss - (mixed * logits).sum()
    logits.copy_((exact - normalizer).exp() - goal)
    return loss
