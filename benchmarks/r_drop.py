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


@register("batching", "twice")
def twice(corpus: Corpus, config: Any, epoch: int) -> list[NDArray]:
    """The paper's batches, each with itself behind it."""
    plan = corpus.plan(config.batch_tokens, config.seed, epoch)
    return [np.concatenate([pairs, pairs]) for pairs in plan]


class RDrop(torch.autograd.Function):
    """The loss of each token, both halves of the batch alike; the gradient
    is made on the way, in the memory of the probabilities."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, labels: Tensor, smoothing: float
    ) -> Tensor:
        half, each = len(logits) // 2, labels[:, None]
        logs = logits.log_softmax(dim=-1)
        share = smoothing / logits.size(-1)
        loss = logs.gather(-1, each)[:, 0].mul_(smoothing - 1)
        loss -= share * logs.sum(dim=-1)
        p = logs.exp()
        a, b = p[:half], p[half:]
        between = logs[:half].sub_(logs[half:])  # log a/b
        kl = [(a * between).sum(-1), -(b * between).sum(-1)]
        loss += ALPHA / 4 * (kl[0] + kl[1]).repeat(2)
        c = ALPHA / 2
        grad = torch.empty_like(p)
        for rows, own, other, sign, far in (
            (grad[:half], a, b, c, kl[0]), (grad[half:], b, a, -c, kl[1])
        ):  # fmt: skip
            torch.mul(between, sign, out=rows)
            rows += (1 + c - c * far)[:, None]
            rows.mul_(own).sub_(other, alpha=c)
        grad -= share
        true = torch.full_like(loss, smoothing - 1)
        grad.scatter_add_(-1, each, true[:, None])
        ctx.save_for_backward(grad)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by: Tensor) -> tuple[Tensor, None, None]:
        # the sum of both halves: a token's weight is that of its double
        (grad,) = ctx.saved_tensors
        return grad * by[:, None], None, None


@register("loss", "r-drop")
def r_drop(logits: Tensor, labels: Tensor, config: Any) -> Tensor:
    """Smoothed, and alike in both halves; on validation text, smoothed."""
    if logits.requires_grad:
        return RDrop.apply(logits, labels, config.label_smoothing)
    how = {"label_smoothing": config.label_smoothing, "reduction": "none"}
    return F.cross_entropy(logits, labels, **how)
