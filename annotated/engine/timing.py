"""Exported from the book; edit the chapter, then run `make export`."""

import math
import time
from collections.abc import Callable

__all__ = ["seconds"]


# E3-ground.md: A stopwatch
_SHORTEST = 1e-3  # seconds that a measurement takes at least
_COARSE = 1e-4  # seconds: a clock whose ticks are longer will not do


def seconds(
    *actions: Callable[[], object], budget: float = 0.3
) -> list[float]:
    """The minimum processor time of each action, in seconds.

    The actions take turns for budget seconds, at least once each after a
    warm-up; a short one is repeated within its turn. Processor time
    excludes other programs; it equals the running time on one thread of a
    CPU. Where the system counts it in coarse ticks (Windows: 1/64 s), the
    time is that of the clock on the wall.
    """
    clock = _clock()
    repeats = [_repeats(action) for action in actions]
    best = [math.inf] * len(actions)
    end = time.perf_counter() + budget
    while math.inf in best or time.perf_counter() < end:
        for i, (action, number) in enumerate(zip(actions, repeats)):
            spent = _spent(clock, action, number)
            if spent > 0:  # some clocks stand still for a moment
                best[i] = min(best[i], spent / number)
    return best


def _spent(
    clock: Callable[[], float], action: Callable[[], object], number: int
) -> float:
    """The seconds that so many calls take by this clock."""
    start = clock()
    for _ in range(number):
        action()
    return clock() - start


def _repeats(action: Callable[[], object]) -> int:
    """How many calls the shortest measurement needs, a power of 2."""
    number = 1
    action()  # the first call pays for allocation and set-up
    while _spent(time.perf_counter, action, number) < _SHORTEST:
        number *= 2
    return number


def _clock() -> Callable[[], float]:
    """Processor time, where its ticks are fine enough."""
    start = now = time.process_time()
    while now == start:
        now = time.process_time()
    return time.process_time if now - start < _COARSE else time.perf_counter
