"""annotated.engine.errors.

Exported from the book; edit the chapter, then run `make export`.

- 14-training.md: Training, and the copy task
- E9-recipes.md: Recipes, their data, and runs
- E10-runner.md: A run from its first step to its last
"""

from __future__ import annotations

__all__ = [
    "TrainingError",
    "Elsewhere",
    "check_counts",
    "DataError",
    "RunError",
    "Stopped",
]


# 14-training.md: A loop that survives
class TrainingError(RuntimeError):
    """Training cannot go on; the message says where it stopped, and why."""


# 14-training.md: The trainer
class Elsewhere(Exception):
    """Process 0 has failed, and says why; the others end with it."""


# E9-recipes.md: The parts of a recipe
def check_counts(config: object, *names: str) -> None:
    """ValueError, naming the field, unless each is None or a whole number
    of at least 1.
    """
    for name in names:
        value = getattr(config, name)
        if value is None:
            continue
        if type(value) is not int or value < 1:
            raise ValueError(
                f"{name} must be a whole number, at least 1, not {value!r}"
            )


# E10-runner.md: Ground
class DataError(ValueError):
    """Data that cannot be used; it says what, where, and what to do."""


class RunError(ValueError):
    """A run that cannot begin or be used; the message says what to do."""


# E10-runner.md: Stop, and go on
class Stopped(Exception):
    """Training was asked to stop, and did, with a checkpoint written."""

    def __init__(self, step: int, number: int):
        super().__init__(f"stopped at step {step}: --resume goes on")
        self.number = number  # of the signal
