"""Exported from the book; edit the chapter, then run `make export`.

- 05-layers.md: Feed-forward, residuals, normalisation
"""

import torch.nn.functional as F
from torch import Tensor, nn

from annotated.attention import MultiHeadAttention

__all__ = ["FeedForward", "EncoderLayer", "DecoderLayer"]


# 05-layers.md: The feed-forward network computes
class FeedForward(nn.Module):
    """Two linear maps with a ReLU between, at each position (§3.3, eq. 2).

    dropout is on the hidden units (the paper has none there).
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
    """Self-attention, then the position-wise network (§3.1).

    norm "post" is the paper: LayerNorm(x + Dropout(sublayer(x))); "pre"
    is what most code does today: x + Dropout(sublayer(LayerNorm(x))).
    """

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

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x (batch, src_len, d_model) -> the same shape; mask as for
        MultiHeadAttention.
        """
        if self.pre_norm:
            x = x + self.dropout(self.attention(self.norm1(x), mask=mask))
            return x + self.dropout(self.feed_forward(self.norm2(x)))
        x = self.norm1(x + self.dropout(self.attention(x, mask=mask)))
        return self.norm2(x + self.dropout(self.feed_forward(x)))


# 05-layers.md: A decoder layer
class DecoderLayer(nn.Module):
    """Masked self-attention, attention over the source, network (§3.1)."""

    def __init__(
        self,
        attention: MultiHeadAttention,
        cross_attention: MultiHeadAttention,
        feed_forward: FeedForward,
        dropout: float = 0.0,
        norm: str = "post",
    ):
        super().__init__()
        d_model = feed_forward.inner.in_features
        self.attention, self.cross_attention = attention, cross_attention
        self.feed_forward = feed_forward
        self.norm1, self.norm2, self.norm3 = (
            nn.LayerNorm(d_model) for _ in range(3)
        )
        self.dropout = nn.Dropout(dropout)
        self.pre_norm = norm == "pre"

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        """x (batch, tgt_len, d_model), memory (batch, src_len, d_model)
        -> the shape of x. mask says what the target sees of itself,
        memory_mask what it sees of the source.
        """
        drop = self.dropout
        if self.pre_norm:
            x = x + drop(self.attention(self.norm1(x), mask=mask))
            y = self.cross_attention(self.norm2(x), memory, memory_mask)
            x = x + drop(y)
            return x + drop(self.feed_forward(self.norm3(x)))
        x = self.norm1(x + drop(self.attention(x, mask=mask)))
        y = self.cross_attention(x, memory, memory_mask)
        x = self.norm2(x + drop(y))
        return self.norm3(x + drop(self.feed_forward(x)))
