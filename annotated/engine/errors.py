"""annotated.engine.errors.

Exported from the book; edit the chapter, then run `make export`.

- 14-training.md: Training, and the copy task
- 18-multi30k.md: Multi30k and IWSLT: real sentences
"""

from __future__ import annotations

__all__ = ["TrainingError", "Elsewhere", "DataError", "RunError", "Stopped"]


# 14-training.md: A loop that survives
class TrainingError(RuntimeError):
    """Training cannot go on; the message says where it stopped, and why."""


# 14-training.md: The trainer
class Elsewhere(Exception):
    """Process 0 has failed, and says why; the others end with it."""


# 18-multi30k.md: Where corpora come from
class DataError(ValueError):
    """Data that cannot be used; it says what, where, and what to do."""


# 18-multi30k.md: A run and its folder
class RunError(ValueError):
    """A run that cannot begin or be used; the message says what to do."""


# 18-multi30k.md: Stop, and go on
class Stopped(Exception):
    """Training was asked to stop, and did, with a checkpoint written."""

    def __init__(self, step: int, number: int):
        super().__init__(f"stopped at step {step}: --resume goes on")
        self.number = number  # of the signal
