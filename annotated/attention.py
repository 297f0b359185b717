"""Exported from the book; edit the chapter, then run `make export`."""

import math

import torch
from torch import Tensor, nn

__all__ = [
    "attention_weights", "attention", "MultiHeadAttention", "initialise",
]  # fmt: skip


# 02-attention.md: Equation 1
def attention_weights(
    q: Tensor, k: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Attention weights of each query over all keys (§3.2.1, equation 1).

    q is (…, q_len, d_k), k is (…, k_len, d_k); mask broadcasts to
    (…, q_len, k_len), True = may attend. Returns (…, q_len, k_len); each
    row sums to 1, or is all zeros if its query may not attend to any key.
    TypeError for a mask of numbers.
    """
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    if mask is None:
        return scores.softmax(dim=-1)
    if mask.dtype != torch.bool:
        raise TypeError(f"the mask has to be boolean, not {mask.dtype}")
    weights = scores.masked_fill(~mask, -math.inf).softmax(dim=-1)
    # softmax turns a row of only -inf into NaN: make its weights zero
    return weights.masked_fill(~mask, 0.0)


def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Scaled dot-product attention (§3.2.1, equation 1).

    v is (…, k_len, d_v); other arguments as for attention_weights.
    Returns (…, q_len, d_v).
    """
    return attention_weights(q, k, mask) @ v


# 04-multi-head.md: One layer, h heads
class MultiHeadAttention(nn.Module):
    """Multi-head attention (§3.2.2). d_k and d_v default to d_model //
    num_heads; dropout is applied to the weights (not in §5.4).
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_k: int | None = None,
        d_v: int | None = None,
        dropout: float = 0.0,
        bias: bool = True,
    ):
        super().__init__()
        self.num_heads = num_heads
        self.d_k = d_k or d_model // num_heads
        self.d_v = d_v or d_model // num_heads
        self.w_q = nn.Linear(d_model, num_heads * self.d_k, bias)
        self.w_k = nn.Linear(d_model, num_heads * self.d_k, bias)
        self.w_v = nn.Linear(d_model, num_heads * self.d_v, bias)
        self.w_o = nn.Linear(num_heads * self.d_v, d_model, bias)
        self.dropout = nn.Dropout(dropout)
        initialise(self.w_q, self.w_k, self.w_v, self.w_o)

    def split(self, x: Tensor) -> Tensor:
        """(batch, length, heads · d) -> (batch, heads, length, d)"""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def weights(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Attention weights (batch, heads, q_len, k_len); see forward."""
        memory = x if memory is None else memory
        q = self.split(self.w_q(x))  # (batch, heads, q_len, d_k)
        k = self.split(self.w_k(memory))  # (batch, heads, k_len, d_k)
        return attention_weights(q, k, mask)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Let x (batch, q_len, d_model) attend to memory (batch, k_len,
        d_model), or to itself if memory is None -> the shape of x. mask
        broadcasts to (batch, heads, q_len, k_len), True = may attend.
        """
        v = self.split(self.w_v(x if memory is None else memory))
        weights = self.dropout(self.weights(x, memory, mask))
        heads = weights @ v  # (batch, heads, q_len, d_v)
        heads = heads.transpose(1, 2).flatten(2)  # side by side again
        return self.w_o(heads)  # (batch, q_len, d_model)


def initialise(*linears: nn.Linear) -> None:
    """Xavier's uniform weights, and biases of zero (not in the paper)."""
    for linear in linears:
        nn.init.xavier_uniform_(linear.weight)
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)
