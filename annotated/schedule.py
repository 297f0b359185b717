"""Exported from the book; edit the chapter, then run `make export`."""

from collections.abc import Iterable

import torch
from torch import nn

from annotated.engine.machine import fused_adam_works

__all__ = [
    "learning_rate", "cooldown_factor", "make_optimizer",
    "set_learning_rate",
]  # fmt: skip


# 12-optimiser.md: The learning rate
def learning_rate(
    step: int, d_model: int, warmup: int = 4000, factor: float = 1.0
) -> float:
    """The paper's schedule (§5.3, equation 3), times factor.

    step counts from 1. Raises ValueError for a step or warm-up below 1.
    """
    if step < 1 or warmup < 1:
        raise ValueError(
            f"step and warmup start at 1, not {step} and {warmup}"
        )
    return factor * d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)


# 12-optimiser.md: How it ends
def cooldown_factor(step: int, last: int, cooldown: int) -> float:
    """The factor on a step's rate that brings it down to 0 at the end: 1
    at first, then a straight line over the last cooldown steps, or over
    all steps of a shorter run. Not in the paper; with cooldown 0 it is
    always 1.
    """
    if not cooldown:
        return 1.0
    return min(1.0, max(0, last - step + 1) / min(cooldown, last))


# 12-optimiser.md: Adam by hand
def make_optimizer(
    parameters: Iterable[nn.Parameter],
    betas: tuple[float, float] = (0.9, 0.98),
    eps: float = 1e-9,
) -> torch.optim.Adam:
    """Adam with the constants of §5.3, fused where the device has it.

    The rate is set before every step; see set_learning_rate.
    """
    parameters = list(parameters)
    return torch.optim.Adam(
        parameters,
        lr=0.0,
        betas=betas,
        eps=eps,
        fused=fused_adam_works(parameters),
    )


def set_learning_rate(
    optimizer: torch.optim.Optimizer, rate: float
) -> None:
    """Use rate from the next step on."""
    for group in optimizer.param_groups:
        group["lr"] = rate
