"""Exported from the book; edit the chapter, then run `make export`."""

import torch
from torch import Tensor

__all__ = ["padding_mask", "causal_mask", "window_mask"]


# 03-masks.md: Padding
def padding_mask(ids: Tensor, pad_id: int = 0) -> Tensor:
    """Mask that is True for keys that are not padding (§3.2.1).

    ids is (batch, k_len). Returns a boolean (batch, 1, 1, k_len) tensor,
    which broadcasts over heads and queries. The paper does not mention it.
    """
    return (ids != pad_id)[:, None, None, :]


# 03-masks.md: The future
def causal_mask(length: int, device: torch.device | None = None) -> Tensor:
    """Boolean (length, length) mask: i may attend to j ≤ i (§3.2.3)."""
    position = torch.arange(length, device=device)
    return position[:, None] >= position[None, :]


# 03-masks.md: A window
def window_mask(
    length: int, r: int, device: torch.device | None = None
) -> Tensor:
    """Mask for restricted self-attention (§4): a window of r positions.

    Position i may attend to j if |i - j| ≤ r // 2, so an even r has the
    same effect as r + 1. Returns a boolean (length, length) tensor.
    Raises ValueError if r < 1.
    """
    if r < 1:
        raise ValueError(f"window must be at least 1 position, not {r}")
    position = torch.arange(length, device=device)
    return (position[:, None] - position[None, :]).abs() <= r // 2
