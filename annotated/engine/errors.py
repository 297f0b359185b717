"""annotated.engine.errors.

Exported from the book; edit the chapter, then run `make export`.

- 14-training.md: Training, and the copy task
- E10-runner.md: A run from its first step to its last
"""

from __future__ import annotations

__all__ = [
    "TrainingError",
    "Elsewhere",
    "DataError",
    "RunError",
    "check_whole",
    "Stopped",
]


# 14-training.md: A loop that survives
class TrainingError(RuntimeError):
    """Training cannot go on; the message says where it stopped, and why."""


# 14-training.md: The trainer
class Elsewhere(Exception):
    """Process 0 has failed, and says why; the others end with it."""


# E10-runner.md: Ground
class DataError(ValueError):
    """Data that cannot be used; it says what, where, and what to do."""


class RunError(ValueError):
    """A run that cannot begin or be used; the message says what to do."""


def check_whole(name: str, value: object, least: int) -> None:
    """ValueError, naming the field, unless value is a whole number that
    is at least least.
    """
    if type(value) is not int or value < least:
        raise ValueError(
            f"{name} must be a whole number, at least {least}, "
            f"not {value!r}"
        )


# E10-runner.md: Stop, and go on
class Stopped(Exception):
    """Training was asked to stop, and did, with a checkpoint written."""

    def __init__(self, step: int, number: int):
        super().__init__(f"stopped at step {step}: --resume goes on")
        self.number = number  # of the signal
