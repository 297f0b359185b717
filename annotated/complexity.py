"""Exported from the book; edit the chapter, then run `make export`."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from annotated.attention import attention
from annotated.seq2seq import RNN

__all__ = [
    "Recurrent", "Convolution", "SeparableConvolution", "SelfAttention",
    "RestrictedSelfAttention", "path_length",
]  # fmt: skip


# 09-why-self-attention.md: The layers
class Recurrent(RNN):
    """A plain recurrent layer of width d (Table 1).

    Like every layer here it maps (batch, n, d) to (batch, n, d).
    """

    def __init__(self, d: int):
        super().__init__(d, d)

    def operations(self, n: int) -> int:
        return n * self.linear.weight.numel()


class Convolution(nn.Module):
    """A convolution over positions (Table 1): each output reads k inputs,
    dilation apart, the last of them at its own position.

    If it is not causal, it reads as many on its right as on its left, and
    k must be odd. groups as for nn.Conv1d.
    """

    def __init__(
        self,
        d: int,
        k: int,
        dilation: int = 1,
        groups: int = 1,
        causal: bool = True,
    ):
        super().__init__()
        self.conv = nn.Conv1d(
            d, d, k, dilation=dilation, groups=groups, bias=False
        )
        reach = (k - 1) * dilation
        self.zeros = (reach, 0) if causal else (reach // 2, reach // 2)

    def forward(self, x: Tensor) -> Tensor:
        channels = F.pad(x.transpose(1, 2), self.zeros)  # (batch, d, …)
        return self.conv(channels).transpose(1, 2)

    def operations(self, n: int) -> int:
        return n * self.conv.weight.numel()


class SeparableConvolution(nn.Module):
    """A convolution of each feature, then a map of the features (§4)."""

    def __init__(self, d: int, k: int):
        super().__init__()
        self.depthwise = Convolution(d, k, groups=d)
        self.pointwise = nn.Linear(d, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.pointwise(self.depthwise(x))

    def operations(self, n: int) -> int:
        mixing = n * self.pointwise.weight.numel()
        return self.depthwise.operations(n) + mixing


class SelfAttention(nn.Module):
    """Equation 1 with each position as query, key and value (Table 1)."""

    def __init__(self, d: int):
        super().__init__()
        self.d = d

    def forward(self, x: Tensor) -> Tensor:
        return attention(x, x, x)

    def operations(self, n: int) -> int:
        return 2 * n**2 * self.d


def _restricted_attention(
    q: Tensor, k: Tensor, v: Tensor, r: int
) -> Tensor:
    """Attention to the r positions around each one (§4), which computes
    only their scores.

    q, k (…, n, d_k) and v (…, n, d_v) -> (…, n, d_v), as attention with
    window_mask(n, r): an even r reaches as far as r + 1.
    """
    half = r // 2

    def windows(x: Tensor) -> Tensor:  # (…, n, d) -> (…, n, d, width)
        return F.pad(x, (0, 0, half, half)).unfold(-2, 2 * half + 1, 1)

    scores = q.unsqueeze(-2) @ windows(k) / math.sqrt(q.size(-1))
    inside = windows(torch.ones_like(k[..., :1])) > 0  # not beyond an end
    weights = scores.masked_fill(~inside, -math.inf).softmax(dim=-1)
    return (weights @ windows(v).transpose(-2, -1)).squeeze(-2)


class RestrictedSelfAttention(nn.Module):
    """Self-attention within a window of r positions (Table 1)."""

    def __init__(self, d: int, r: int):
        super().__init__()
        self.d, self.r = d, r

    def forward(self, x: Tensor) -> Tensor:
        return _restricted_attention(x, x, x, self.r)

    def operations(self, n: int) -> int:
        return 2 * (2 * (self.r // 2) + 1) * n * self.d


# 09-why-self-attention.md: How far apart
def _dependence(
    layer: Callable[[Tensor], Tensor], n: int, d: int
) -> Tensor:
    """Which outputs depend on which inputs: (n, n) of bool, by gradient.

    Row i is output i, column j input j; d is the width of the layer.
    """
    x = torch.randn(n, d).expand(n, n, d).clone().requires_grad_()
    out = layer(x)
    out.diagonal(dim1=0, dim2=1).sum().backward()  # output i of the i-th
    assert x.grad is not None
    return x.grad.abs().sum(dim=-1) > 0


def path_length(
    layer_at: Callable[[int], Callable[[Tensor], Tensor]],
    wanted: Tensor,
    d: int,
) -> int:
    """How many layers it takes to connect all pairs that are wanted.

    layer_at(0), layer_at(1), … are the layers of width d, from the
    bottom up; wanted is (n, n) of bool, outputs by inputs. Raises
    ValueError where n layers are not enough.
    """
    n = len(wanted)
    reached = torch.eye(n)
    for layers in range(n + 1):
        if (reached > 0)[wanted].all():
            return layers
        depends = _dependence(layer_at(layers), n, d).float()
        reached = (depends @ reached).sign()
    raise ValueError(f"{n} layers do not connect all {n} positions")


def _one_step(layer: Recurrent, states: Tensor) -> Tensor:
    """One step of all cells at once: each takes its own vector as input
    and its left neighbour's as the state before. The shape of states.
    """
    before = F.pad(states, (0, 0, 1, 0))[:, :-1]
    return layer.step(states, before)
