"""Exported from the book; edit the chapter, then run `make export`."""

import torch.nn.functional as F
from torch import Tensor

from annotated.tokens import PAD

__all__ = ["smoothed_targets", "smoothed_loss"]


# 13-regularisation.md: What a smoothed label asks for
def smoothed_targets(
    labels: Tensor, vocab: int, smoothing: float
) -> Tensor:
    """What label smoothing asks for (§5.4): (…, vocab), rows sum to 1.

    1 - smoothing on the label, and smoothing spread over all vocab words,
    the label included, as in the paper's reference [36].
    """
    return (1 - smoothing) * F.one_hot(labels, vocab) + smoothing / vocab


# 13-regularisation.md: The loss
def smoothed_loss(
    logits: Tensor, labels: Tensor, smoothing: float = 0.1
) -> tuple[Tensor, Tensor]:
    """The label-smoothed loss (§5.4), summed over the real tokens.

    logits (…, vocab), labels (…) with PAD where there is none. Returns two
    scalars in nats: the loss to learn from, and the negative
    log-likelihood of the labels. The exponential of its mean is the
    perplexity of Table 3.
    """
    log_p = logits.log_softmax(dim=-1)  # (…, vocab)
    nll = -log_p.gather(-1, labels[..., None])[..., 0]  # (…)
    loss = (1 - smoothing) * nll
    if smoothing:  # else a word of probability 0 would make this NaN
        loss = loss - smoothing * log_p.mean(dim=-1)
    real = labels != PAD
    return loss[real].sum(), nll[real].sum()
