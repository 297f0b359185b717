from __future__ import annotations
from dataclasses import dataclass

import torch
from torch import Tensor


def padding_mask(ids: Tensor, pad_id: int = 0) -> Tensor:
    """Which keys are words, not padding: (batch, 1, 1, k_len) of bool.

    ids is (batch, k_len). The two axes of length 1 stand for every head
    and every query (§3.2.1; the paper leaves padding to the code).
    """
    return (ids != pad_id)[:, None, None, :]


def causal_mask(length: int, device: torch.device | None = None) -> Tensor:
    """Position i may attend to j ≤ i (§3.2.3): (length, length) of bool."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


def window_mask(
    length: int, r: int, device: torch.device | None = None
) -> Tensor:
    """Restricted self-attention (§4): the r positions around each one.

    Position i may attend to j where |i - j| ≤ r // 2; an even r reaches
    as far as r + 1. Returns (length, length) of bool. Raises ValueError
    where r < 1.
    """
    if r < 1:
        raise ValueError(f"window must be at least 1 position, not {r}")
    at = torch.arange(length, device=device)
    return (at[:, None] - at[None, :]).abs() <= r // 2


class _GatherRows(torch.autograd.Function):
    """x[index], where a row of index that is -1 stands for zeros.

    Every row of x is asked for at most once, so the gradient is a gather
    too, by the inverse index: no scatter, no atomic addition.
    """

    @staticmethod
    def forward(ctx, x, index, inverse):
        ctx.save_for_backward(index, inverse)
        return _rows(x, index)

    @staticmethod
    def backward(ctx, grad):
        index, inverse = ctx.saved_tensors
        return _GatherRows.apply(grad, inverse, index), None, None


def _rows(x: Tensor, index: Tensor) -> Tensor:
    rows = x.index_select(0, index.clamp(min=0))
    absent = (index < 0).nonzero().squeeze(1)
    return rows.index_fill_(0, absent, 0.0) if len(absent) else rows


@dataclass(frozen=True)
class Packing:
    """Where the real tokens of a padded batch are.

    pack keeps them alone, (batch, length, …) -> (tokens, …), so that what
    works position by position wastes nothing on padding; pad goes back,
    with zeros for padding. Where there is no padding both are views.
    """

    real: Tensor  # (batch, length) of bool
    index: Tensor  # (tokens,): the place of each token, row by row
    inverse: Tensor  # (batch · length,): the token there, -1 for padding

    @classmethod
    def of(cls, real: Tensor) -> Packing:
        """The packing of a batch, from real: (batch, length) of bool."""
        flat = real.flatten()
        index = flat.nonzero().squeeze(1)
        inverse = torch.where(flat, flat.cumsum(0) - 1, -1)
        return cls(real, index, inverse)

    @property
    def full(self) -> bool:
        """Whether no place is padding."""
        return self.index.numel() == self.real.numel()

    @property
    def positions(self) -> Tensor:
        """The position of each token in its sentence: (tokens,)."""
        return self.index % self.real.size(1)

    @property
    def mask(self) -> Tensor | None:
        """The padding mask (batch, 1, 1, length), None where all is real."""
        return None if self.full else self.real[:, None, None, :]

    def pack(self, x: Tensor) -> Tensor:
        """(batch, length, …) -> (tokens, …)"""
        x = x.flatten(0, 1)
        if self.full:
            return x
        return _GatherRows.apply(x, self.index, self.inverse)

    def pad(self, x: Tensor) -> Tensor:
        """(tokens, …) -> (batch, length, …)"""
        if not self.full:
            x = _GatherRows.apply(x, self.inverse, self.index)
        return x.unflatten(0, self.real.shape)
