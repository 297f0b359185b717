"""Exported from the book; edit the chapter, then run `make export`."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from annotated.attention import (
    MultiHeadAttention,
    attention,
    attention_weights,
    initialise,
)
from annotated.embeddings import (
    Embeddings,
    LearnedPositions,
    SinusoidalPositions,
)
from annotated.engine.hooks import replace
from annotated.engine.packing import PackedTransformer
from annotated.engine.parts import CachedTurned
from annotated.layers import FeedForward
from annotated.masks import causal_mask
from annotated.model import Encoder, TransformerConfig, make_positions
from annotated.search import CachedSelfAttention
from annotated.tokens import PAD

__all__ = [
    "RMSNorm", "SwiGLU", "rotate", "RotaryAttention",
    "GroupedQueryAttention", "DecoderOnly", "NoPositions", "swap",
]  # fmt: skip


# 26-since-2017.md: Norms: in the branch, and simpler
class RMSNorm(nn.Module):
    """x / RMS(x), times a learned gain (Zhang and Sennrich, 2019).

    Unlike layer norm, it neither subtracts a mean nor adds a bias.
    """

    def __init__(self, d_model: int, eps: float = 1e-5):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(d_model)), eps

    def forward(self, x: Tensor) -> Tensor:
        """(…, d_model) -> (…, d_model)"""
        mean_square = x.square().mean(dim=-1, keepdim=True)
        return self.weight * x * (mean_square + self.eps).rsqrt()


# 26-since-2017.md: Networks: smooth, then gated
class SwiGLU(nn.Module):
    """Gated feed-forward network: (silu(x W_gate) ⊙ x W_inner) W_outer,
    without biases (Shazeer, 2020).

    The hidden width is 2/3 of d_ff, so that its three matrices have as
    many parameters as the usual two.
    """

    def __init__(self, d_model: int, d_ff: int, dropout: float = 0.0):
        super().__init__()
        hidden = 2 * d_ff // 3
        self.inner = nn.Linear(d_model, hidden, bias=False)
        self.gate = nn.Linear(d_model, hidden, bias=False)
        self.outer = nn.Linear(hidden, d_model, bias=False)
        self.activation = F.silu
        self.dropout = nn.Dropout(dropout)
        for linear in (self.inner, self.gate, self.outer):
            nn.init.xavier_uniform_(linear.weight)

    def forward(self, x: Tensor) -> Tensor:
        """(…, d_model) -> (…, d_model)"""
        hidden = self.activation(self.gate(x)) * self.inner(x)
        return self.outer(self.dropout(hidden))


# 26-since-2017.md: Positions: turned, not added
def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Rotate every pair of components by an angle that depends on its
    position (Su et al., 2021).

    x (…, length, d) -> same shape; table (length, d) holds the sines and
    cosines of the angles, as returned by sinusoids.
    """
    sin, cos = table[:, 0::2], table[:, 1::2]
    a, b = x[..., 0::2], x[..., 1::2]
    turned = torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1)
    return turned.flatten(-2)


class RotaryAttention(MultiHeadAttention):
    """Multi-head attention with rotary positions in self-attention;
    cross-attention is left unchanged. Raises ValueError if d_k is odd.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if self.d_k % 2:
            raise ValueError(f"d_k must be even, not {self.d_k}")
        self.angles = SinusoidalPositions(self.d_k)

    def turn(self, x: Tensor, first: int = 0) -> Tensor:
        """Rotate queries or keys (…, length, d_k) by their positions,
        which are first, first + 1, …
        """
        return rotate(x, self.angles(first + x.size(-2))[first:])

    def weights(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """As in MultiHeadAttention; nothing is rotated if memory is given
        and is not x itself.
        """
        if memory is not None and memory is not x:
            return super().weights(x, memory, mask)
        q, k = self.split(self.w_q(x)), self.split(self.w_k(x))
        return attention_weights(self.turn(q), self.turn(k), mask)

    def cache(self, memory: Tensor) -> CachedSelfAttention:
        return CachedTurned(self, memory)


# 26-since-2017.md: Heads: many ask, few are asked
class GroupedQueryAttention(MultiHeadAttention):
    """Attention in which groups of heads share keys and values (Ainslie et
    al., 2023); with one group, multi-query attention (Shazeer, 2019).

    Raises ValueError if num_groups does not divide num_heads.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        num_groups: int,
        dropout: float = 0.0,
        bias: bool = True,
    ):
        if num_groups < 1 or num_heads % num_groups:
            raise ValueError(
                f"num_groups {num_groups} does not divide num_heads "
                f"{num_heads}"
            )
        super().__init__(d_model, num_heads, None, None, dropout, bias)
        self.w_k = nn.Linear(d_model, num_groups * self.d_k, bias)
        self.w_v = nn.Linear(d_model, num_groups * self.d_v, bias)
        initialise(self.w_k, self.w_v)

    def groups(self, x: Tensor) -> Tensor:
        """(batch, length, groups · d) -> (batch, groups, length, d)"""
        return x.unflatten(-1, (-1, self.d_k)).transpose(1, 2)

    def spread(self, x: Tensor) -> Tensor:
        """Repeat each group for its heads: (batch, heads, length, d)"""
        return x.repeat_interleave(self.num_heads // x.size(1), dim=1)

    def split(self, x: Tensor) -> Tensor:
        """(batch, length, groups · d) -> (batch, heads, length, d)"""
        return self.spread(self.groups(x))

    def cache(self, memory: Tensor) -> CachedSelfAttention:
        return _CachedGroups(self, memory)


class _CachedGroups(CachedSelfAttention):
    """A KV cache that stores each group once, not once per head."""

    block: GroupedQueryAttention

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(rows, length, d_model) -> two of (rows, groups, length, d)."""
        block = self.block
        return block.groups(block.w_k(x)), block.groups(block.w_v(x))

    def attend(self, q: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend from queries (rows, heads, 1, d_k) to what is kept."""
        k, v = self.block.spread(self.k), self.block.spread(self.v)
        heads = attention(q, k, v, mask)
        return self.block.w_o(heads.transpose(1, 2).flatten(2))


class _RotaryGroups(RotaryAttention, GroupedQueryAttention):
    """Grouped-query attention with rotary positions."""

    def cache(self, memory: Tensor) -> CachedSelfAttention:
        return _CachedRotaryGroups(self, memory)


class _CachedRotaryGroups(CachedTurned, _CachedGroups):
    """Each group is stored once; its keys are turned when they come."""

    block: _RotaryGroups


# 26-since-2017.md: One stack
class DecoderOnly(nn.Module):
    """A single causal stack that reads the source, then the target.

    It has config.num_encoder_layers layers.
    """

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(
            config.src_vocab, config.tgt_vocab, config.d_model, config.tie
        )
        self.positions = make_positions(config)
        self.stack = Encoder(config)  # with a causal mask, below
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        """As in Transformer: logits (batch, tgt_len, tgt_vocab)."""
        source = self.embeddings.read_source(src)
        x = torch.cat([source, self.embeddings.read_target(tgt)], dim=1)
        padding = torch.cat([src, tgt], dim=1) == PAD
        order = padding.int().argsort(dim=1, stable=True)  # padding last
        x = _gather(x, order)
        x = self.dropout(x + self.positions(x.size(1)))
        x = self.stack(x, causal_mask(x.size(1), x.device))
        first = (src != PAD).sum(dim=1, keepdim=True)  # start of tgt
        where = first + torch.arange(tgt.size(1), device=tgt.device)
        return self.embeddings.logits(_gather(x, where))


def _gather(x: Tensor, index: Tensor) -> Tensor:
    """x (batch, length, d) at index (batch, n) -> (batch, n, d)"""
    return x.gather(1, index[..., None].expand(-1, -1, x.size(-1)))


# 26-since-2017.md: Putting them in
class NoPositions(nn.Module):
    """A stand-in for the encodings of §3.5 that adds nothing."""

    zero: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("zero", torch.zeros(1), persistent=False)

    def forward(self, length: int) -> Tensor:
        """Zero for each position: (length, 1)."""
        return self.zero.expand(length, 1)


def _drop_positions(model: nn.Module) -> None:
    """Remove the positional encodings of a model, in place."""
    for name, part in model.named_children():
        if isinstance(part, (SinusoidalPositions, LearnedPositions)):
            setattr(model, name, NoPositions())


_ELDERS: dict[str, type[nn.Module]] = {
    "RMSNorm": nn.LayerNorm,
    "SwiGLU": FeedForward,
}


def swap(model: nn.Module, *parts: str, groups: int = 1) -> nn.Module:
    """Replace parts of a plain model, in place, by newer untrained ones.

    parts are "RMSNorm", "SwiGLU", "no positions", "rotary", "grouped" (see
    groups) and "rotary grouped"; any other raises KeyError. The rotary
    parts remove other positions. Returns model. TypeError if it is packed.
    """
    if isinstance(model, PackedTransformer):
        raise TypeError("swap parts of a plain model, not of a packed one")
    c: Any = model.config
    size = c.d_model, c.num_heads
    block = {"dropout": c.attention_dropout, "bias": c.bias}
    make: dict[str, Callable[[Any], nn.Module]] = {
        "RMSNorm": lambda _: RMSNorm(c.d_model),
        "SwiGLU": lambda _: SwiGLU(c.d_model, c.d_ff, c.activation_dropout),
        "rotary": lambda _: RotaryAttention(*size, c.d_k, c.d_v, **block),
        "grouped": lambda _: GroupedQueryAttention(*size, groups, **block),
        "rotary grouped": lambda _: _RotaryGroups(*size, groups, **block),
    }
    for part in parts:
        if part == "no positions" or "rotary" in part:
            _drop_positions(model)
        if part != "no positions":
            kind = _ELDERS.get(part, MultiHeadAttention)
            replace(model, kind, make[part])
    return model
