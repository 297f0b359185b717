"""annotated.attention.

Exported from the book; edit the chapter, then run `make export`.

- 02-attention.md: Attention
- 04-multi-head.md: Many heads
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from annotated.masks import Packing, causal_mask

__all__ = [
    "attention_weights",
    "attention",
    "CPU_PLAIN_KEYS",
    "attend",
    "Projections",
    "MultiHeadAttention",
]


# 02-attention.md: Equation 1
def attention_weights(
    q: Tensor, k: Tensor, mask: Tensor | None = None
) -> Tensor:
    """How much each query attends to each key (§3.2.1, equation 1).

    q is (…, q_len, d_k), k is (…, k_len, d_k); mask broadcasts to
    (…, q_len, k_len), True = may attend. Returns (…, q_len, k_len):
    rows that sum to 1, or are 0 where nothing may be attended to.
    """
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    if mask is None:
        return scores.softmax(dim=-1)
    weights = scores.masked_fill(~mask, -math.inf).softmax(dim=-1)
    # a row of -inf alone comes out as NaN: no key, no weight
    return weights.masked_fill(~mask, 0.0)


def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Scaled dot-product attention as the paper writes it (equation 1).

    v is (…, k_len, d_v); the rest as for attention_weights.
    Returns (…, q_len, d_v).
    """
    return attention_weights(q, k, mask) @ v


# 02-attention.md: The same thing, fast
def _attend_plain(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout: float
) -> Tensor:
    # scaling q, not the scores, touches d_k numbers a row, not k_len
    scores = (q / math.sqrt(q.size(-1))) @ k.transpose(-2, -1)
    if bias is not None:
        scores = scores + bias
    weights = F.dropout(scores.softmax(dim=-1), dropout)
    return weights @ v


# keys per query up to which a CPU trains faster by plain operations than
# by one fused kernel (measured above)
CPU_PLAIN_KEYS = 96


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """Equation 1 by the fastest road that the device has.

    q (batch, heads, q_len, d_k), k (batch, heads, k_len, d_k),
    v (batch, heads, k_len, d_v); mask broadcasts to (batch, heads,
    q_len, k_len), True = may attend; causal adds the mask of §3.2.3,
    for q_len = k_len; dropout is the chance to drop a weight. Returns
    (batch, heads, q_len, d_v), 0 for a query that may attend to nothing.
    """
    q_len, k_len = q.size(-2), k.size(-2)
    plain = q.device.type == "cpu" and k_len <= CPU_PLAIN_KEYS
    if causal and (plain or mask is not None):
        may_see = q.new_ones(q_len, k_len, dtype=torch.bool).tril()
        mask = may_see if mask is None else mask & may_see
        causal = False
    if mask is None:
        if plain:
            return _attend_plain(q, k, v, None, dropout)
        return F.scaled_dot_product_attention(
            q, k, v, dropout_p=dropout, is_causal=causal
        )
    mask = torch.atleast_2d(mask)  # the fused kernel takes no (k_len,)
    # a query with no key would be 0/0: let it see everything, then erase
    alive = mask.any(dim=-1, keepdim=True)
    bias = torch.zeros_like(mask, dtype=q.dtype)
    bias.masked_fill_(~(mask | ~alive), -math.inf)
    if plain:
        mixed = _attend_plain(q, k, v, bias, dropout)
    else:
        mixed = F.scaled_dot_product_attention(
            q, k, v, attn_mask=bias, dropout_p=dropout
        )
    return mixed * alive


# 04-multi-head.md: One layer, h heads
class Projections(nn.Module):
    """q, k and v of every head: the lower half of Figure 2, right.

    The projections of all heads are rows of one matrix: first those of
    the queries, then the keys', then the values'. Head i of the paper's
    W_i^Q is rows i·d_k to (i+1)·d_k.
    """

    def __init__(
        self, d_model: int, num_heads: int, d_k: int, d_v: int, bias: bool
    ):
        super().__init__()
        self.num_heads, self.d_k, self.d_v = num_heads, d_k, d_v
        self.sizes = [num_heads * d for d in (d_k, d_k, d_v)]
        self.projection = nn.Linear(d_model, sum(self.sizes), bias)
        # each block as if it were a layer of its own
        for block in self.projection.weight.split(self.sizes):
            nn.init.xavier_uniform_(block)
        if bias:
            nn.init.zeros_(self.projection.bias)

    def heads(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        packing: Packing | None = None,
        memory_packing: Packing | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v of every head, each (batch, heads, length, d)."""
        if memory is None:
            mixed = self.projection(x)
            if packing is not None:
                mixed = packing.pad(mixed)
            q, k, v = mixed.split(self.sizes, dim=-1)
            return self.split(q), self.split(k), self.split(v)
        q = self.queries(x)
        k, v = self.keys_values(memory)
        if packing is not None:
            q = packing.pad(q)
        if memory_packing is not None:
            k, v = memory_packing.pad(k), memory_packing.pad(v)
        return self.split(q), self.split(k), self.split(v)

    def queries(self, x: Tensor) -> Tensor:
        """(…, d_model) -> (…, h·d_k): every head's query, side by side."""
        return self._project(x, slice(0, self.sizes[0]))

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(…, d_model) -> (…, h·d_k) and (…, h·d_v)."""
        both = self._project(x, slice(self.sizes[0], None))
        k, v = both.split(self.sizes[1:], dim=-1)
        return k, v

    def _project(self, x: Tensor, rows: slice) -> Tensor:
        bias = self.projection.bias
        return F.linear(
            x,
            self.projection.weight[rows],
            None if bias is None else bias[rows],
        )

    def split(self, x: Tensor) -> Tensor:
        """(batch, length, h·d) -> (batch, heads, length, d)."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


class MultiHeadAttention(Projections):
    """Multi-head attention (§3.2.2).

    d_k and d_v default to d_model / num_heads; dropout is on the weights
    (the paper has none). Raises ValueError where the default is needed
    and num_heads does not divide d_model.
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
        if None in (d_k, d_v) and d_model % num_heads:
            raise ValueError(
                f"num_heads {num_heads} does not divide d_model {d_model}: "
                "give d_k and d_v"
            )
        each = d_model // num_heads
        super().__init__(d_model, num_heads, d_k or each, d_v or each, bias)
        self.dropout = dropout
        self.output = nn.Linear(self.sizes[2], d_model, bias)
        nn.init.xavier_uniform_(self.output.weight)
        if bias:
            nn.init.zeros_(self.output.bias)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        causal: bool = False,
        packing: Packing | None = None,
        memory_packing: Packing | None = None,
    ) -> Tensor:
        """x (batch, q_len, d_model) looks at memory (batch, k_len,
        d_model), or at itself where memory is None; mask broadcasts to
        (batch, heads, q_len, k_len), True = may attend; causal as in
        attend. With a packing x is (tokens, d_model), and so is memory
        with its own; padding still needs its mask. Returns the shape of x.
        """
        q, k, v = self.heads(x, memory, packing, memory_packing)
        dropout = self.dropout if self.training else 0.0
        mixed = attend(q, k, v, mask, causal=causal, dropout=dropout)
        mixed = mixed.transpose(1, 2).flatten(2)  # (batch, q_len, h·d_v)
        if packing is not None:
            mixed = packing.pack(mixed)
        return self.output(mixed)

    def weights(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        causal: bool = False,
        packing: Packing | None = None,
        memory_packing: Packing | None = None,
    ) -> Tensor:
        """The attention weights that forward uses, to be looked at:
        (batch, heads, q_len, k_len). Arguments as for forward.
        """
        q, k, _ = self.heads(x, memory, packing, memory_packing)
        if causal:
            may_see = causal_mask(q.size(-2), q.device)
            mask = may_see if mask is None else mask & may_see
        return attention_weights(q, k, mask)
