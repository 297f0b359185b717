"""Exported from the book; edit the chapter, then run `make export`."""

import torch.nn.functional as F
from torch import Tensor, nn

from annotated.attention import MultiHeadAttention, initialise

__all__ = ["FeedForward", "EncoderLayer", "DecoderLayer"]


# 05-layers.md: The feed-forward network computes
class FeedForward(nn.Module):
    """Position-wise feed-forward network (§3.3, equation 2).

    dropout is applied to the hidden units (not in the paper); activation
    is "relu", as in the paper, "silu" or "gelu".
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        dropout: float = 0.0,
        bias: bool = True,
        activation: str = "relu",
    ):
        super().__init__()
        self.inner = nn.Linear(d_model, d_ff, bias)
        self.outer = nn.Linear(d_ff, d_model, bias)
        self.activation = getattr(F, activation)
        self.dropout = nn.Dropout(dropout)
        initialise(self.inner, self.outer)

    def forward(self, x: Tensor) -> Tensor:
        """(…, d_model) -> (…, d_model)"""
        hidden = self.activation(self.inner(x))  # (…, d_ff)
        return self.outer(self.dropout(hidden))


# 05-layers.md: An encoder layer
class EncoderLayer(nn.Module):
    """Self-attention followed by a feed-forward network (§3.1)."""

    def __init__(
        self,
        attention: MultiHeadAttention,
        feed_forward: FeedForward,
        dropout: float = 0.0,
        pre_norm: bool = False,
    ):
        super().__init__()
        d_model = feed_forward.inner.in_features
        self.attention = attention
        self.feed_forward = feed_forward
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)
        self.pre_norm = pre_norm

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x (batch, src_len, d_model) -> same shape; mask for attention."""
        if self.pre_norm:  # as in most code today
            x = x + self.dropout(self.attention(self.norm1(x), mask=mask))
            return x + self.dropout(self.feed_forward(self.norm2(x)))
        # as in the paper
        x = self.norm1(x + self.dropout(self.attention(x, mask=mask)))
        return self.norm2(x + self.dropout(self.feed_forward(x)))


# 05-layers.md: A decoder layer
class DecoderLayer(nn.Module):
    """Masked self-attention, cross-attention, feed-forward (§3.1)."""

    def __init__(
        self,
        attention: MultiHeadAttention,
        cross_attention: MultiHeadAttention,
        feed_forward: FeedForward,
        dropout: float = 0.0,
        pre_norm: bool = False,
    ):
        super().__init__()
        d_model = feed_forward.inner.in_features
        self.attention = attention
        self.cross_attention = cross_attention
        self.feed_forward = feed_forward
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.norm3 = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)
        self.pre_norm = pre_norm

    def forward(
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
        if self.pre_norm:
            x = x + self.dropout(self.attention(self.norm1(x), mask=mask))
            heads = self.cross_attention(self.norm2(x), memory, memory_mask)
            x = x + self.dropout(heads)
            return x + self.dropout(self.feed_forward(self.norm3(x)))
        x = self.norm1(x + self.dropout(self.attention(x, mask=mask)))
        heads = self.cross_attention(x, memory, memory_mask)
        x = self.norm2(x + self.dropout(heads))
        return self.norm3(x + self.dropout(self.feed_forward(x)))
