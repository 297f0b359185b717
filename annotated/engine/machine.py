"""Exported from the book; edit the chapter, then run `make export`."""

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from annotated.engine.errors import RunError
from annotated.engine.timing import seconds

__all__ = [
    "evaluating", "cores", "pick_device", "HALF", "matmul_speed",
    "memory_bytes", "pick_precision", "bfloat16_speedup", "allow_tf32",
]  # fmt: skip


# E3-ground.md: The machine
@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Disable dropout and gradients within the block; restore after it."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


def cores() -> int:
    """The number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def pick_device(name: str | None = None) -> str:
    """name if given, else a GPU if there is one: cuda, then mps. RunError
    if the device is not available.
    """
    if name is None:
        apple = torch.backends.mps.is_available()
        name = "mps" if apple else "cpu"
        name = "cuda" if torch.cuda.is_available() else name
    try:
        if torch.device(name).type not in ("cpu", "cuda", "mps"):
            raise RuntimeError("only cpu, cuda and mps are supported")
        torch.empty(1, device=name)
    except (AssertionError, RuntimeError) as error:
        reason = str(error).split("\n")[0]
        raise RunError(f"no {name!r} device here: {reason}") from None
    return name


HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def matmul_speed(
    device: str, precision: str = "float32", budget: float = 0.5
) -> float:
    """The best speed of a large matrix product, in operations/second."""
    kind = HALF.get(precision, torch.float32)
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
    """A device's memory in bytes; on a CPU, this process's share of it."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):  # not on every system
        return math.inf
    return whole / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def pick_precision(device: str) -> tuple[str, str]:
    """float32, bfloat16 or float16, whichever trains fastest on this
    device, and the reason.
    """
    kind = torch.device(device).type
    if kind == "cuda":
        name = torch.cuda.get_device_name(device)
        generation, _ = torch.cuda.get_device_capability(device)
        if generation >= 8:
            return "bfloat16", f"{name} has tensor cores for it"
        if generation == 7:
            return "float16", f"{name} has no bfloat16 tensor cores"
        return "float32", f"{name} has no tensor cores"
    if kind == "mps":
        return "float32", "bfloat16 has not been measured on Apple GPUs"
    ratio = bfloat16_speedup(64)
    if ratio >= 0.1:  # not emulated
        ratio = bfloat16_speedup(512)
    best = "bfloat16" if ratio >= 1.3 else "float32"
    return best, f"bfloat16 products run at {ratio:.2g} × float32 speed"


def bfloat16_speedup(n: int) -> float:
    """How much faster a CPU multiplies n × n matrices in bfloat16 than in
    float32.
    """
    full = torch.ones(n, n)
    half = full.bfloat16()
    slow, fast = seconds(lambda: full @ full, lambda: half @ half)
    return slow / fast


def allow_tf32(device: str) -> None:
    """Let a GPU round the factors of float32 products to 10 fraction bits
    (TF32), for its tensor cores; sums stay in float32.
    """
    if torch.device(device).type == "cuda":
        torch.set_float32_matmul_precision("high")
