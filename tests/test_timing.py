"""Timing: the least time of an action."""

from contextlib import nullcontext

from annotated.engine.timing import seconds


def test_the_slower_action_takes_more_seconds():
    slow, fast = seconds(
        lambda: sum(range(200_000)), nullcontext, budget=0.02
    )
    assert slow > fast >= 0
