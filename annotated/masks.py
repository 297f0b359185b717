"""annotated.masks.

Exported from the book; edit the chapter, then run `make export`.

- 03-masks.md: Masks
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["padding_mask", "causal_mask", "window_mask", "Packing"]


# 03-masks.md: Padding
def padding_mask(ids: Tensor, pad_id: int = 0) -> Tensor:
    """Which keys are words, not padding: (batch, 1, 1, k_len) of bool.

    ids is (batch, k_len). The two axes of length 1 stand for every head
    and every query (§3.2.1; the paper leaves padding to the code).
    """
    return (ids != pad_id)[:, None, None, :]


# 03-masks.md: The future
def causal_mask(length: int, device: torch.device | None = None) -> Tensor:
    """Position i may attend to j ≤ i (§3.2.3): (length, length) of bool."""
    at = torch.arange(length, device=device)
    return at[:, None] >= at[None, :]


# 03-masks.md: A window
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


# 03-masks.md: No padding at all
class _GatherRows(torch.autograd.Function):
    """x[index], with zeros in the rows that absent lists.

    Every row of x is asked for at most once, so the gradient is a gather
    too, by the index of the way back: no scatter, no atomic addition.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        index: Tensor,
        absent: Tensor,
        back: Tensor,
        back_absent: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(index, absent, back, back_absent)
        if not len(x):  # a batch of nothing but padding
            return x.new_zeros(len(index), *x.shape[1:])
        rows = x.index_select(0, index)
        return rows.index_fill_(0, absent, 0.0) if len(absent) else rows

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        index, absent, back, back_absent = ctx.saved_tensors
        grad = _GatherRows.apply(grad, back, back_absent, index, absent)
        return grad, None, None, None, None


@dataclass(frozen=True)
class Packing:
    """Where the real tokens of a padded batch are.

    pack keeps them alone, (batch, length, …) -> (tokens, …), so that what
    works position by position wastes nothing on padding; pad goes back,
    with zeros for padding. Where there is no padding both are views.
    """

    real: Tensor  # (batch, length) of bool
    index: Tensor  # (tokens,): the place of each token, row by row
    inverse: Tensor  # (batch · length,): the token there, 0 for padding
    absent: Tensor  # the places of padding, in the order of inverse

    @classmethod
    def of(cls, real: Tensor) -> Packing:
        """The packing of a batch, from real: (batch, length) of bool."""
        flat = real.flatten()
        index, absent = flat.nonzero()[:, 0], (~flat).nonzero()[:, 0]
        inverse = torch.where(flat, flat.cumsum(0) - 1, 0)
        return cls(real, index, inverse, absent)

    @property
    def full(self) -> bool:
        """Whether no place is padding."""
        return not len(self.absent)

    @property
    def positions(self) -> Tensor:
        """The position of each token in its sentence: (tokens,)."""
        return self.index % self.real.size(1)

    @property
    def mask(self) -> Tensor | None:
        """The padding mask (batch, 1, 1, length); None if full."""
        return None if self.full else self.real[:, None, None, :]

    def pack(self, x: Tensor) -> Tensor:
        """(batch, length, …) -> (tokens, …)"""
        x = x.flatten(0, 1)
        if self.full:
            return x
        return _GatherRows.apply(
            x, self.index, self.absent[:0], self.inverse, self.absent
        )

    def pad(self, x: Tensor) -> Tensor:
        """(tokens, …) -> (batch, length, …)"""
        if not self.full:
            x = _GatherRows.apply(
                x, self.inverse, self.absent, self.index, self.absent[:0]
            )
        return x.unflatten(0, self.real.shape)
