"""Exported from the book; edit the chapter, then run `make export`."""

import torch
from torch import Tensor

__all__ = ["padding_mask", "causal_mask", "window_mask"]


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
    position = torch.arange(length, device=device)
    return position[:, None] >= position[None, :]


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
    position = torch.arange(length, device=device)
    return (position[:, None] - position[None, :]).abs() <= r // 2
