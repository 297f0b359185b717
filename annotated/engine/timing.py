"""Exported from the book; edit the chapter, then run `make export`."""

import math
import time
from collections.abc import Callable

__all__ = ["seconds"]


# E3-ground.md: A stopwatch
def seconds(
    *actions: Callable[[], object], budget: float = 0.3
) -> list[float]:
    """The least processor time that each action took, in seconds.

    The actions take turns for budget seconds, at least once each after a
    call that does not count. Processor time leaves out what other
    programs take; it is the time of a run on one thread, on a CPU.
    """
    best = [math.inf] * len(actions)
    for action in actions:
        action()  # the first call pays for allocation and set-up
    end = time.perf_counter() + budget
    while math.inf in best or time.perf_counter() < end:
        for i, action in enumerate(actions):
            start = time.process_time()
            action()
            best[i] = min(best[i], time.process_time() - start)
    return best
