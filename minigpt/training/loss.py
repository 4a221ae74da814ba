"""The next-token loss through the tied head, computed without keeping the logits of a whole batch."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from minigpt.device import product_dtype
from minigpt.model.gpt import GPT
from minigpt.model.logits import logits_buffer
from minigpt.native import operations
from minigpt.training.world import is_sharded_tensor
from minigpt.tricks.sampled_softmax import StepVocabulary, correct_, select_rows

HEAD_ROWS = 1024  # tokens with logits in memory at one time
CUDA_HEAD_ROWS = 4096  # the same on CUDA: every slice of rows adds to all of the head's gradient, which takes time
_CACHED_LOGITS = 2**20  # logits that a CPU turns into their gradient at one time, so that they stay in its cache
_CUDA_ALIGNMENT = 128  # tokens: tensor cores multiply whole tiles, and GPT-2's 50,257 tokens are an odd number


class LogitsGradient(Protocol):
    """`overwrite_with_gradient`, `fused_gradient` or its compiled form, or `cross_entropy_` in C."""

    def __call__(
        self, logits: Tensor, targets: Tensor, vocab_size: int, teacher: Tensor | None = None, weight: float = 0.0, /
    ) -> Tensor:
        """Returns the summed loss of some rows and overwrites their logits with its gradient."""


@dataclass(frozen=True, eq=False)
class SoftTargets:
    """What a teacher predicts for the targets, and the `weight` of that in the loss, from 0 to 1.

    Shapes: features (N, C) and head (V, C) of the teacher, whose width may be another than the student's.
    """

    features: Tensor
    head: Tensor
    weight: float

    def of_tokens(self, ids: Tensor) -> "SoftTargets":
        """The same for a part of the vocabulary."""
        return replace(self, head=self.head.index_select(0, ids))


class LossModel(nn.Module):
    """A model with its loss, as one module, so that DDP can wrap the forward pass of both.

    With a `teacher`, the model learns from its predictions too: they have the weight `teacher_weight` in the loss. The
    teacher reads the same tokens, is not trained and has no dropout.
    """

    def __init__(self, model: GPT, teacher: GPT | None = None, teacher_weight: float = 0.0) -> None:
        super().__init__()
        self.model = model
        self.teacher = teacher
        self.teacher_weight = teacher_weight
        self.sparse_gradient = False  # of the token embedding, where a step reads only some of its rows
        if teacher is not None:
            teacher.requires_grad_(False)
            teacher.zero_grad(set_to_none=True)  # what its training left
        self.restore_plain()

    def train(self, mode: bool = True) -> Self:
        """Switches dropout on or off; the teacher never has any."""
        super().train(mode)
        if self.teacher is not None:
            self.teacher.eval()
        return self

    def restore_plain(self) -> None:
        """Computes everything without torch.compile."""
        self.features: Callable[..., Tensor] = self.model.features
        self.teacher_features = None if self.teacher is None else self.teacher.features
        self.logits_gradient: LogitsGradient | None = None

    def compile_forward(self) -> None:
        """Compiles the forward pass, and on CUDA also the gradient of the logits, which torch runs as nine kernels."""
        self.features = torch.compile(self.model.features)
        if self.teacher is not None:
            self.teacher_features = torch.compile(self.teacher.features)
        if self.model.token_embedding.weight.is_cuda:
            self.logits_gradient = torch.compile(fused_gradient)

    def forward(
        self, inputs: Tensor, targets: Tensor, scored: Tensor | None = None, vocabulary: StepVocabulary | None = None
    ) -> Tensor:
        """The mean loss in nats per token: (B, T) int64 twice -> ().

        `scored` (N,) int64 are the positions in the flattened targets that count, by default all. Without any, it is 0.
        With a sample of the `vocabulary`, made from the same arguments, the loss is that of a sampled softmax.
        """
        soft = self._soft_targets(inputs, scored)
        if scored is not None:
            targets = targets.flatten().index_select(0, scored)[None]
        corrections = None
        if vocabulary is None:
            features, head = self.features(inputs), self.model.token_embedding.weight
        else:
            features, head = self._features_and_rows(inputs, vocabulary)
            targets, corrections = vocabulary.targets, vocabulary.corrections
            soft = soft and soft.of_tokens(vocabulary.ids)
        if scored is not None:
            features = features.flatten(0, 1).index_select(0, scored)[None]  # (1, N, C)
        return next_token_loss(
            features, head, targets, compiled_gradient=self.logits_gradient, soft=soft, corrections=corrections
        )

    def _features_and_rows(self, inputs: Tensor, step: StepVocabulary) -> tuple[Tensor, Tensor]:
        """The features of the inputs, and the rows of the head for the tokens of a step: (B, T, C), (S, C)."""
        if is_sharded_tensor(self.model.token_embedding.weight):  # `features` gathers it
            features = self.features(inputs)
            return features, select_rows(self.model.token_embedding.weight, step.ids)
        rows = select_rows(self.model.token_embedding.weight, step.ids, sparse=self.sparse_gradient)  # (S, C)
        return self.features(inputs, vectors=F.embedding(step.inputs, rows)), rows

    def _soft_targets(self, inputs: Tensor, scored: Tensor | None) -> SoftTargets | None:
        """What the teacher predicts after each position, or after the scored ones; None without a teacher."""
        if self.teacher is None or self.teacher_features is None:
            return None
        with torch.no_grad():
            features = self.teacher_features(inputs).flatten(0, 1)  # (N, C)
            if scored is not None:
                features = features.index_select(0, scored)
        return SoftTargets(features, self.teacher.token_embedding.weight, self.teacher_weight)


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
        if device_type == "cpu" and compiled_gradient is None and operations.are_faster(dtype):
            return HeadPlan(HEAD_ROWS, HEAD_ROWS, pads_vocabulary=False, gradient=operations.cross_entropy_)
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
    compiled_gradient: LogitsGradient | None = None,
    plan: HeadPlan | None = None,
    soft: SoftTargets | None = None,
    corrections: Tensor | None = None,
) -> Tensor:
    """The mean loss of the targets under the tied head. Unit: nats per token.

    `plan` is by default that of `head_plan` for the features' device. With `soft` targets it is the cross entropy
    against a mixture of the true token, with the weight 1 - w, and the teacher's distribution, with the weight w. Its
    gradient is that of (1 - w) cross entropy + w KL(teacher, student), from which it differs by a constant.
    `corrections`, as from `TokenSampler`, are added to the logits, except to those of the targets. The loss is then an
    estimate: on average, the sum of its exponentials is that over the vocabulary.
    Source: Hinton et al. 2015, "Distilling the knowledge in a neural network", at temperature 1; Jean et al. 2015, "On
    using very large target vocabulary for neural machine translation", section 3 (the sample).

    Shapes: features (B, T, C), head (V, C), targets (B, T) int64, corrections (V,) -> ().
    """
    kind, dtype = features.device.type, product_dtype(features)
    # A compiled gradient would be compiled again for each sample's size.
    plan = plan or head_plan(kind, dtype, len(head), compiled_gradient if corrections is None else None)
    flat, flat_targets = features.flatten(0, 1), targets.flatten()
    return _HeadAndLoss.apply(flat, head, flat_targets, dtype, plan, soft, corrections)  # type: ignore[no-untyped-call]


class _HeadAndLoss(torch.autograd.Function):
    """The mean cross entropy of `features @ weight.T`, one slice of rows at a time, with its gradients.

    The gradient of the cross entropy with respect to the logits is softmax(logits) - onehot(target). So each slice
    overwrites its logits with their gradient, multiplies it with the features and the weights, and is done. Only
    (N, C) and (V, C) are kept, never (N, V), which for 50,257 tokens is most of a small model's memory. A frozen head
    has no gradient. A teacher's logits exist for the same rows at the same time.
    Matrix products are in `dtype`; the gradient of the weights is summed in float32.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, features: Tensor, weight: Tensor, targets: Tensor, dtype: torch.dtype, plan: HeadPlan,
        soft: SoftTargets | None, corrections: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """Shapes: features (N, C), weight (V, C), targets (N,) int64, corrections (V,) -> ()."""
        trains_head = ctx.needs_input_grad[1]  # type: ignore[attr-defined]
        n, vocab_size = features.shape[0], weight.shape[0]
        features, head = features.to(dtype), weight.to(dtype)
        if plan.pads_vocabulary:
            head = F.pad(head, (0, 0, 0, -vocab_size % _CUDA_ALIGNMENT))  # V rounded up, in all shapes below
        teacher = None if soft is None else _TeacherLogits(soft, dtype, min(n, plan.rows), len(head))
        total = torch.zeros((), dtype=torch.float32, device=features.device)
        feature_gradient = torch.empty_like(features)
        weight_gradient = torch.zeros_like(head, dtype=torch.float32) if trains_head else None
        buffer = logits_buffer(features, min(n, plan.rows), len(head))  # (rows, V)
        for start in range(0, n, plan.rows):
            x, target = features[start : start + plan.rows], targets[start : start + plan.rows, None]
            logits = torch.mm(x, head.t(), out=buffer[: len(x)])  # (rows, V)
            soft_logits = None if teacher is None else teacher.of_rows(start, len(x))  # (rows, V)
            if corrections is not None:
                correct_(logits[:, :vocab_size], target, corrections)
                if soft_logits is not None:
                    correct_(soft_logits[:, :vocab_size], target, corrections)
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


class _TeacherLogits:
    """The logits of a teacher for some rows at a time, in one buffer; `width` is that of the student's logits."""

    def __init__(self, soft: SoftTargets, dtype: torch.dtype, rows: int, width: int) -> None:
        self.features = soft.features.to(dtype)
        self.head = F.pad(soft.head.to(dtype), (0, 0, 0, width - len(soft.head)))
        self.buffer = logits_buffer(self.features, rows, width)

    def of_rows(self, start: int, count: int) -> Tensor:
        """The logits of `count` rows from `start`, which the next call overwrites: (count, width)."""
        return torch.mm(self.features[start : start + count], self.head.t(), out=self.buffer[:count])


def overwrite_with_gradient(
    logits: Tensor, targets: Tensor, vocab_size: int, teacher: Tensor | None = None, weight: float = 0.0
) -> Tensor:
    """Returns the summed cross entropy of some rows, (), and overwrites their logits with its gradient.

    With the logits of a `teacher`, its distribution has this `weight` in the targets. Columns from `vocab_size` on are
    padding: they keep their logits, which are 0.
    Shapes: logits and teacher (n, V), targets (n, 1) int64.
    """
    logits = logits[:, :vocab_size]
    exact = logits.float()
    probabilities = exact.softmax(dim=1)  # (n, V)
    # The largest probability is 1 / sum(exp(logits - max(logits))), which saves a second pass of exponentials.
    normalizer = exact.amax(dim=1, keepdim=True) - probabilities.amax(dim=1, keepdim=True).log()  # (n, 1)
    loss = (normalizer - (1 - weight) * exact.gather(1, targets)).sum()
    if teacher is not None:
        soft = teacher[:, :vocab_size].float().softmax(dim=1)  # (n, V)
        probabilities.sub_(soft, alpha=weight)
        loss -= weight * soft.mul_(exact).sum()
    probabilities.scatter_add_(1, targets, torch.full_like(normalizer, weight - 1.0))
    logits.copy_(probabilities)
    return loss


def fused_gradient(
    logits: Tensor, targets: Tensor, vocab_size: int, teacher: Tensor | None = None, weight: float = 0.0
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
    if teacher is not None:
        soft = weight * teacher.float().masked_fill(padding, -torch.inf).softmax(dim=1)  # (n, V)
        goal = goal + soft
        loss = loss - (soft * logits).sum()
    logits.copy_((exact - normalizer).exp() - goal)
    return loss
