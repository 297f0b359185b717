"""R-Drop (Liang et al., 2021) for `annotated train`, as parts of one's own.

    annotated train multi30k --out run --import benchmarks/r_drop.py \
        --batching twice --loss r-drop

Every sentence is in its batch twice, with two draws of dropout, and the loss
asks that both predict alike: beside the smoothed loss of either, the mean of
the two divergences, ALPHA times. As in the paper's own code, ALPHA is 5 for
translation, and one batch with itself behind it takes the place of two
passes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from annotated.batches import Corpus
from annotated.engine.parts import register

ALPHA = 5.0
ROWS = 16  # of each half, at a time, on a processor


@register("batching", "twice")
def twice(corpus: Corpus, config: Any, epoch: int) -> list[NDArray]:
    """The paper's batches, each with itself behind it."""
    plan = corpus.plan(config.batch_tokens, config.seed, epoch)
    return [np.concatenate([pairs, pairs]) for pairs in plan]


class RDrop(torch.autograd.Function):
    """The loss of each token, both halves of the batch alike; the gradient
    is made on the way, a few rows at a time, in the processor's cache."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, labels: Tensor, smoothing: float
    ) -> Tensor:
        halves = logits.unflatten(0, (2, -1))
        grad, loss = torch.empty_like(halves), halves[..., 0].clone()
        each = labels.unflatten(0, (2, -1))[..., None]
        rows = ROWS if logits.device.type == "cpu" else len(logits)
        parts = (
            one.split(rows, dim=1) for one in (halves, each, grad, loss)
        )
        for x, true, slope, value in zip(*parts):
            alike(x, true, slope, value, smoothing)
        ctx.save_for_backward(grad.flatten(0, 1))
        return loss.flatten()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by: Tensor) -> tuple[Tensor, None, None]:
        # the sum of both halves: a token's weight is that of its double
        (grad,) = ctx.saved_tensors
        return grad.mul_(by[:, None]), None, None


def alike(
    logits: Tensor,
    each: Tensor,
    grad: Tensor,
    loss: Tensor,
    smoothing: float,
) -> None:
    """Write loss and gradient of some rows (2, rows, tokens)."""
    logs = logits.log_softmax(dim=-1)
    p = logs.exp()
    share, c = smoothing / logits.size(-1), ALPHA / 2
    between = logs[0] - logs[1]  # log a/b
    torch.stack([between, -between], out=grad)
    kl = (p * grad).sum(dim=-1)
    torch.mul(logs.gather(-1, each)[..., 0], smoothing - 1, out=loss)
    loss -= share * logs.sum(dim=-1)
    loss += c / 2 * kl.sum(dim=0)
    grad.mul_(c).add_((1 + c - c * kl)[..., None])
    grad.mul_(p).sub_(p.flip(0), alpha=c).sub_(share)
    grad.scatter_add_(
        -1, each, torch.full_like(logs[..., :1], smoothing - 1)
    )


@register("loss", "r-drop")
def r_drop(logits: Tensor, labels: Tensor, config: Any) -> Tensor:
    """Smoothed, and alike in both halves; on validation text, smoothed."""
    if logits.requires_grad:
        return RDrop.apply(logits, labels, config.label_smoothing)
    how = {"label_smoothing": config.label_smoothing, "reduction": "none"}
    return F.cross_entropy(logits, labels, **how)
