"""annotated.layers.

Exported from the book; edit the chapter, then run `make export`.

- 05-layers.md: Feed-forward, residuals, normalisation
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from annotated.attention import MultiHeadAttention
from annotated.masks import Packing

__all__ = [
    "keep_mask",
    "Dropout",
    "FeedForward",
    "LayerNorm",
    "Residual",
    "EncoderLayer",
    "DecoderLayer",
]


# 05-layers.md: Dropout
def keep_mask(x: Tensor, p: float) -> Tensor:
    """What dropout multiplies x by: 0 with chance p, else 1/(1 - p)."""
    draws = torch.empty(
        (x.numel() + 3) // 4, dtype=torch.int64, device=x.device
    )
    draws.random_(-(2**63), None)  # four 16-bit draws in each
    draws = draws.view(torch.int16)[: x.numel()].view(x.shape)
    # 2^16 - 1 at most: an int16 compares with nothing larger
    kept = min(round((1 - p) * 2**16), 2**16 - 1)
    keep = draws.lt_(kept - 2**15).to(x.dtype)
    return keep.mul_(2**16 / max(kept, 1))


class Dropout(nn.Module):
    """Zero each number with chance p, scale the rest by 1/(1 - p) (§5.4).

    torch's dropout draws one random number a value, which on a CPU costs
    as much as a matrix product of the same size. Sixteen random bits are
    enough to decide: p is honoured to 1/65,536.
    """

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """x of any shape; returns the same shape. Only when training."""
        if not self.training or self.p == 0.0:
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.p)
        return x * keep_mask(x, self.p)


# 05-layers.md: The network, exported
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
        self.dropout = Dropout(dropout)
        for linear in (self.inner, self.outer):
            nn.init.xavier_uniform_(linear.weight)
            if bias:
                nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(…, d_model) -> (…, d_model)"""
        return self.outer(self.dropout(F.relu(self.inner(x))))


# 05-layers.md: Layer normalisation
class LayerNorm(nn.Module):
    """Layer normalisation (§3.1): mean 0 and variance 1 over d_model.

    The variance is the biased one and eps stands inside the root.
    """

    def __init__(self, d_model: int, eps: float = 1e-5):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """(…, d_model) -> (…, d_model)"""
        d_model = self.gain.shape
        return F.layer_norm(x, d_model, self.gain, self.bias, self.eps)


# 05-layers.md: The residual connection
class Residual(nn.Module):
    """What stands around every sub-layer (§3.1, §5.4).

    norm "post" is the paper: LayerNorm(x + Dropout(sublayer(x))); "pre"
    is what most code does today: x + Dropout(sublayer(LayerNorm(x))).
    """

    def __init__(self, d_model: int, dropout: float, norm: str = "post"):
        super().__init__()
        self.norm = LayerNorm(d_model)
        self.dropout = Dropout(dropout)
        self.pre = norm == "pre"

    def forward(
        self, x: Tensor, sublayer: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """(…, d_model) -> (…, d_model)"""
        if self.pre:
            return x + self.dropout(sublayer(self.norm(x)))
        return self.norm(x + self.dropout(sublayer(x)))


# 05-layers.md: An encoder layer
class EncoderLayer(nn.Module):
    """Self-attention, then the position-wise network (§3.1)."""

    def __init__(
        self,
        attention: MultiHeadAttention,
        feed_forward: FeedForward,
        dropout: float = 0.0,
        norm: str = "post",
    ):
        super().__init__()
        self.attention, self.feed_forward = attention, feed_forward
        d_model = feed_forward.inner.in_features
        self.around_attention = Residual(d_model, dropout, norm)
        self.around_feed_forward = Residual(d_model, dropout, norm)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        packing: Packing | None = None,
    ) -> Tensor:
        """x (batch, src_len, d_model), or (tokens, d_model) with a packing;
        mask as in MultiHeadAttention. The result has the shape of x.
        """
        x = self.around_attention(
            x, lambda x: self.attention(x, mask=mask, packing=packing)
        )
        return self.around_feed_forward(x, self.feed_forward)


# 05-layers.md: A decoder layer
class DecoderLayer(nn.Module):
    """Causal self-attention, attention over the source, network (§3.1)."""

    def __init__(
        self,
        attention: MultiHeadAttention,
        cross_attention: MultiHeadAttention,
        feed_forward: FeedForward,
        dropout: float = 0.0,
        norm: str = "post",
    ):
        super().__init__()
        self.attention, self.cross_attention = attention, cross_attention
        self.feed_forward = feed_forward
        d_model = feed_forward.inner.in_features
        self.around_attention = Residual(d_model, dropout, norm)
        self.around_cross_attention = Residual(d_model, dropout, norm)
        self.around_feed_forward = Residual(d_model, dropout, norm)

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        packing: Packing | None = None,
        memory_packing: Packing | None = None,
    ) -> Tensor:
        """x (batch, tgt_len, d_model), memory (batch, src_len, d_model), or
        (tokens, d_model) with their packings. mask is for the
        self-attention, which is causal besides; memory_mask for the
        source. The result has the shape of x.
        """
        x = self.around_attention(
            x,
            lambda x: self.attention(
                x, mask=mask, causal=True, packing=packing
            ),
        )
        x = self.around_cross_attention(
            x,
            lambda x: self.cross_attention(
                x,
                memory,
                memory_mask,
                packing=packing,
                memory_packing=memory_packing,
            ),
        )
        return self.around_feed_forward(x, self.feed_forward)
