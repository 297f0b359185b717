"""Exported from the book; edit the chapter, then run `make export`."""

from dataclasses import fields
from typing import Any, get_args, get_type_hints

__all__ = [
    "DataError", "RunError", "UsageError", "TrainingError", "PeerError",
    "Stopped", "check_fields", "check_whole", "check_positive",
]  # fmt: skip


# E3-ground.md: Errors that a user can correct
class DataError(ValueError):
    """Data that cannot be used; it says what, where, and what to do."""


class RunError(ValueError):
    """A run that cannot begin or be used; the message says what to do."""


class UsageError(ValueError):
    """A command line, or a field, that cannot be; it says which."""


class TrainingError(RuntimeError):
    """Training cannot go on; the message says where it stopped, and why."""


class PeerError(Exception):
    """Another process has failed, and says why; this one ends with it."""


class Stopped(Exception):
    """Training was asked to stop, and did, with a checkpoint written."""

    def __init__(self, step: int, number: int):
        super().__init__(f"stopped at step {step}: --resume goes on")
        self.number = number  # of the signal


def check_fields(config: Any, below: float = float("inf")) -> None:
    """ValueError, naming the field, where a value of a dataclass is not
    what its annotation says: a whole number of at least 1, a number in
    [0, below), one of some choices; None where that is among them.
    """
    hints = get_type_hints(type(config))
    for name in (field.name for field in fields(config)):
        kind, value = hints[name], getattr(config, name)
        choices = (True, False) if kind is bool else get_args(kind)
        if kind is float:
            wanted = f"a number in [0, {below:g})"
            fine = type(value) in (int, float) and 0 <= value < below
        elif kind is int or int in choices:
            wanted = "a whole number, at least 1"
            fine = type(value) is int and value >= 1
            fine = fine or (value is None and kind is not int)
        else:
            wanted = "one of " + ", ".join(map(str, choices))
            fine = any(
                type(c) is type(value) and c == value for c in choices
            )
        if not fine:
            raise ValueError(f"{name} must be {wanted}, not {value!r}")


def check_whole(name: str, value: object, least: int) -> None:
    """UsageError unless value is a whole number and at least least."""
    if type(value) is not int or value < least:
        raise UsageError(
            f"{name} must be a whole number, at least {least}, "
            f"not {value!r}"
        )


def check_positive(name: str, value: float | None) -> None:
    """UsageError unless value is above 0 or None."""
    if value is not None and not value > 0:
        raise UsageError(f"{name} must be above 0, not {value!r}")
