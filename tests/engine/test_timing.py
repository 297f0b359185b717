"""Timing: the least time of an action."""

import time
from contextlib import nullcontext

import pytest

from annotated.engine.timing import seconds


def test_the_slower_action_takes_more_seconds():
    slow, fast = seconds(
        lambda: sum(range(200_000)), nullcontext, budget=0.02
    )
    assert slow > fast > 0


@pytest.mark.parametrize("tick", [1 / 64, 1e-3])
def test_a_clock_with_coarse_ticks_is_not_used(monkeypatch, tick):
    """Windows counts processor time in ticks of 1/64 of a second."""
    fine = time.process_time
    coarse = lambda: fine() // tick * tick  # noqa: E731
    monkeypatch.setattr(time, "process_time", coarse)
    short = lambda: sum(range(200))  # noqa: E731
    long = lambda: sum(range(20_000))  # noqa: E731
    one, other = seconds(short, long, budget=0.05)
    assert 0 < 20 * one < other


def test_a_clock_that_stands_still_for_a_moment_gives_no_zero(monkeypatch):
    """Seen in a virtual machine with more threads than processors."""
    real, seen = time.process_time, [0.0]

    def stuck():
        """Every fifth reading is the one before it."""
        seen.append(real() if len(seen) % 5 else seen[-1])
        return seen[-1]

    monkeypatch.setattr(time, "process_time", stuck)
    assert min(seconds(lambda: sum(range(200)), budget=0.2)) > 0


def test_each_action_is_called_though_it_takes_longer_than_the_budget():
    calls = []

    def slow(name):
        calls.append(name)
        time.sleep(0.02)

    one, other = seconds(
        lambda: slow("one"), lambda: slow("other"), budget=0.001
    )
    assert calls == ["one", "one", "other", "other", "one", "other"]
    assert one > 0 and other > 0
