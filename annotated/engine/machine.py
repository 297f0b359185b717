"""annotated.engine.machine.

Exported from the book; edit the chapter, then run `make export`.

- E3-ground.md: The ground floor
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from annotated.engine.errors import RunError

__all__ = [
    "evaluating",
    "cores",
    "pick_device",
    "matmul_speed",
    "memory_bytes",
]


# E3-ground.md: The machine
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


def cores() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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


def matmul_speed(
    device: str, precision: str = "float32", budget: float = 0.5
) -> float:
    """Operations per second in a large matrix product, at best."""
    kind = torch.bfloat16 if precision == "bfloat16" else torch.float32
    gpu = torch.device(device).type == "cuda"
    n = 8192 if gpu else 1024
    a = torch.randn(n, n, device=device).to(kind)
    best, end = math.inf, time.perf_counter() + budget
    while True:
        start = time.perf_counter()
        (a @ a)[0, 0].item()  # waits for the device
        now = time.perf_counter()
        best = min(best, now - start)
        if now > end:
            return 2 * n**3 / best


def memory_bytes(device: str) -> float:
    """The memory of a device; of a CPU, this process's share of it."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):  # not on every system
        return math.inf
    return whole / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
