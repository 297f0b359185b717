from __future__ import annotations
import torch
import torch.nn.functional as F
from torch import Tensor


def smoothed_targets(labels: Tensor, vocab: int, smoothing: float) -> Tensor:
    """What label smoothing asks for (§5.4): (…, vocab), rows sum to 1.

    1 - smoothing on the label, and smoothing spread over all vocab words,
    the label among them: the form of the paper's reference [36].
    """
    even = torch.full((*labels.shape, vocab), smoothing / vocab)
    one_hot = F.one_hot(labels, vocab)
    return even + (1 - smoothing) * one_hot


class _ChunkedLoss(torch.autograd.Function):
    """Softmax, loss and gradient a few rows at a time.

    The logits of a batch are by far its largest tensor. They are wanted
    for a moment only: to compare with the labels. So each chunk of rows
    is scored, compared, turned into its own gradient and forgotten.
    """

    @staticmethod
    def forward(ctx, x, weight, labels, smoothing, rows, learn):
        vocab, narrow = len(weight), weight.to(x.dtype)
        loss = x.new_zeros((), dtype=torch.float32)
        nll = torch.zeros_like(loss)
        dx = torch.empty_like(x) if learn else None
        dw = torch.zeros_like(weight) if learn else None
        for first in range(0, len(x), rows):
            here = x[first : first + rows]
            label = labels[first : first + rows, None]
            log_p = (here @ narrow.T).float().log_softmax(dim=-1)
            own = log_p.gather(1, label).sum()
            nll -= own
            loss -= (1 - smoothing) * own + smoothing / vocab * log_p.sum()
            if learn:
                # the gradient of the logits, but for smoothing's share
                p = log_p.exp_()
                p.scatter_add_(1, label, p.new_full(label.shape, smoothing - 1))
                p = p.to(x.dtype)
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
    def backward(ctx, grad, _):
        dx, dw = ctx.saved_tensors
        return grad.to(dx.dtype) * dx, grad * dw, None, None, None, None


def smoothed_loss(
    x: Tensor, weight: Tensor, labels: Tensor, smoothing: float = 0.1
) -> tuple[Tensor, Tensor]:
    """The label-smoothed loss of softmax(x @ weight.T), summed over rows.

    x (tokens, d_model), weight (vocab, d_model), labels (tokens,).
    Returns two scalars in nats: the loss to learn from (§5.4) and the
    negative log-likelihood of the labels, whose mean's exponential is the
    perplexity of Table 3. The logits never exist all at once.
    """
    numbers = 2**20 if x.device.type == "cpu" else 2**27  # 4 and 512 MiB
    rows = max(1, numbers // len(weight))
    learn = torch.is_grad_enabled() and x.requires_grad
    return _ChunkedLoss.apply(x, weight, labels, smoothing, rows, learn)
