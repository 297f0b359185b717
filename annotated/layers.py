"""Exported from the book; edit the chapter, then run `make export`."""

from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from annotated.attention import MultiHeadAttention

__all__ = ["FeedForward", "EncoderLayer", "DecoderLayer"]


# 05-layers.md: The feed-forward network computes
class FeedForward(nn.Module):
    """Position-wise feed-forward network with a ReLU (§3.3, equation 2).

    dropout is applied to the hidden units (not in the paper).
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        dropout: float = 0.0,
        bias: bool = True,
    ):
        super().__init__()
        self.inner = nn.Linear(d_model, d_ff, bias)
        self.outer = nn.Linear(d_ff, d_model, bias)
        self.dropout = nn.Dropout(dropout)
        for linear in (self.inner, self.outer):
            nn.init.xavier_uniform_(linear.weight)
            if bias:
                nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(…, d_model) -> (…, d_model)"""
        return self.outer(self.dropout(F.relu(self.inner(x))))


# 05-layers.md: An encoder layer
class EncoderLayer(nn.Module):
    """Self-attention followed by a feed-forward network (§3.1)."""

    def __init__(
        self,
        attention: MultiHeadAttention,
        feed_forward: FeedForward,
        dropout: float = 0.0,
        norm: str = "post",
    ):
        super().__init__()
        d_model = feed_forward.inner.in_features
        self.attention, self.feed_forward = attention, feed_forward
        self.norm1, self.norm2 = (nn.LayerNorm(d_model) for _ in range(2))
        self.dropout = nn.Dropout(dropout)
        self.pre_norm = norm == "pre"

    def residual(self, x: Tensor, norm: nn.Module, sublayer: Any) -> Tensor:
        """Add the output of sublayer, a callable, to x; same shape as x."""
        if self.pre_norm:  # as in most code today
            return x + self.dropout(sublayer(norm(x)))
        return norm(x + self.dropout(sublayer(x)))  # as in the paper

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x (batch, src_len, d_model) -> same shape; mask for attention."""
        heads = partial(self.attention, mask=mask)
        x = self.residual(x, self.norm1, heads)
        return self.residual(x, self.norm2, self.feed_forward)


# 05-layers.md: A decoder layer
class DecoderLayer(EncoderLayer):
    """Masked self-attention, cross-attention, feed-forward (§3.1)."""

    def __init__(
        self,
        attention: MultiHeadAttention,
        cross_attention: MultiHeadAttention,
        *others: Any,
    ):
        """others as for EncoderLayer: feed_forward, dropout, norm."""
        super().__init__(attention, *others)
        self.cross_attention = cross_attention
        self.norm3 = nn.LayerNorm(self.feed_forward.inner.in_features)

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        memory: Tensor,
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        """x (batch, tgt_len, d_model), memory (batch, src_len, d_model)
        -> the shape of x. mask applies to self-attention, memory_mask to
        cross-attention.
        """
        own = partial(self.attention, mask=mask)
        across = partial(
            self.cross_attention, memory=memory, mask=memory_mask
        )
        return self.sublayers(x, own, across)

    def sublayers(self, x: Tensor, own: Any, across: Any) -> Tensor:
        """forward, with own and across as the two attention callables."""
        x = self.residual(x, self.norm1, own)
        x = self.residual(x, self.norm2, across)
        return self.residual(x, self.norm3, self.feed_forward)
