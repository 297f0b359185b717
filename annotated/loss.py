"""annotated.loss.

Exported from the book; edit the chapter, then run `make export`.

- 13-regularisation.md: Regularisation
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["smoothed_targets", "smoothed_loss"]


# 13-regularisation.md: What a smoothed label asks for
def smoothed_targets(
    labels: Tensor, vocab: int, smoothing: float
) -> Tensor:
    """What label smoothing asks for (§5.4): (…, vocab), rows sum to 1.

    1 - smoothing on the label, and smoothing spread over all vocab words,
    the label among them: the form of the paper's reference [36].
    """
    return (1 - smoothing) * F.one_hot(labels, vocab) + smoothing / vocab


# 13-regularisation.md: The loss without the logits
class _ChunkedLoss(torch.autograd.Function):
    """Softmax, loss and gradient a few rows at a time.

    The logits of a batch are by far its largest tensor. They are wanted
    for a moment only: to compare with the labels. So each chunk of rows
    is scored, compared, turned into its own gradient and forgotten.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        labels: Tensor,
        smoothing: float,
        rows: int,
        learn: bool,
    ) -> tuple[Tensor, Tensor]:
        vocab, narrow = len(weight), weight.to(x.dtype)
        wide = torch.promote_types(x.dtype, torch.float32)
        loss = x.new_zeros((), dtype=wide)
        nll = torch.zeros_like(loss)
        dx = torch.empty_like(x if learn else x[:0])
        dw = torch.zeros_like(weight if learn else weight[:0])
        for first in range(0, len(x), rows):
            here = x[first : first + rows]
            label = labels[first : first + rows, None]
            log_p = (here @ narrow.T).to(wide).log_softmax(dim=-1)
            own = log_p.gather(1, label).sum()
            nll -= own
            loss -= (1 - smoothing) * own + smoothing / vocab * log_p.sum()
            if learn:
                # the gradient of the logits, but for smoothing's share
                p = log_p.exp_()
                less = p.new_full(label.shape, smoothing - 1)
                p = p.scatter_add_(1, label, less).to(x.dtype)
                torch.mm(p, narrow, out=dx[first : first + rows])
                if p.dtype == dw.dtype:
                    dw.addmm_(p.T, here)
                else:
                    dw += p.T @ here
        if learn:
            # smoothing takes the same share off every word's gradient
            share = smoothing / vocab
            dx -= share * narrow.sum(dim=0)
            dw -= share * x.sum(dim=0, dtype=dw.dtype)
            ctx.save_for_backward(dx, dw)
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
        dx, dw = ctx.saved_tensors
        return grad.to(dx.dtype) * dx, grad * dw, None, None, None, None


def smoothed_loss(
    x: Tensor,
    weight: Tensor,
    labels: Tensor,
    smoothing: float = 0.1,
    rows: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The label-smoothed loss of softmax(x @ weight.T), summed over rows.

    x (tokens, d_model), weight (vocab, d_model), labels (tokens,).
    Returns two scalars in nats: the loss to learn from (§5.4) and the
    negative log-likelihood of the labels, whose mean's exponential is the
    perplexity of Table 3. The logits exist for rows tokens at a time; by
    default for as many as fit well into the device's memory.
    """
    if rows is None:
        # 4 and 512 MiB of logits
        numbers = 2**20 if x.device.type == "cpu" else 2**27
        rows = max(1, numbers // len(weight))
    learn = torch.is_grad_enabled() and (
        x.requires_grad or weight.requires_grad
    )
    return _ChunkedLoss.apply(x, weight, labels, smoothing, rows, learn)
