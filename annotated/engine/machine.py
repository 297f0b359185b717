"""annotated.engine.machine.

Exported from the book; edit the chapter, then run `make export`.

- 14-training.md: Training, and the copy task
- 18-multi30k.md: Multi30k and IWSLT: real sentences
- E6-search.md: A faster search: a cache that stays where it is
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from annotated.engine.errors import RunError

__all__ = ["evaluating", "pick_device", "cores"]


# 14-training.md: Looking without touching
@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """No dropout and no gradients inside the with; after it, as before."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


# 18-multi30k.md: Stop, and go on
def pick_device(name: str | None = None) -> str:
    """name, or a GPU where there is one. RunError where it is not there."""
    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        if torch.device(name).type not in ("cpu", "cuda"):
            raise RuntimeError("only cpu and cuda are supported")
        torch.empty(1, device=name)
    except (AssertionError, RuntimeError) as error:
        reason = str(error).split("\n")[0]
        raise RunError(f"no device {name!r}: {reason}") from None
    return name


# E6-search.md: A batch for each core
def cores() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
