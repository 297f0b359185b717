"""Exported from the book; edit the chapter, then run `make export`."""

import difflib
from collections.abc import Iterable
from dataclasses import fields
from typing import Any, get_args, get_type_hints

__all__ = [
    "DataError", "RunError", "UsageError", "TrainingError", "PeerError",
    "Stopped", "check_fields", "check_whole", "check_positive", "unknown",
]  # fmt: skip


# E3-ground.md: Errors that a user can correct
class DataError(ValueError):
    """Unusable data; the message says what, where, and what to do."""


class RunError(ValueError):
    """A run that cannot be started or used; the message says what to do."""


class UsageError(ValueError):
    """An invalid command line or field; the message says which."""


class TrainingError(RuntimeError):
    """Training cannot continue; the message says where and why."""


class PeerError(Exception):
    """Another process has failed and reports why; this one just exits."""


class Stopped(Exception):
    """Training was asked to stop and did, after writing a checkpoint."""

    def __init__(self, step: int, number: int):
        super().__init__(f"stopped at step {step}; continue with --resume")
        self.number = number  # the signal's


def check_fields(config: Any, below: float = float("inf")) -> None:
    """ValueError, naming the field, unless each value of a dataclass fits
    its annotation: an integer >= 1, a number in [0, below), or one of the
    choices; None if the annotation allows it.
    """
    hints = get_type_hints(type(config))
    for name in (field.name for field in fields(config)):
        kind, value = hints[name], getattr(config, name)
        choices = (True, False) if kind is bool else get_args(kind)
        if kind is float:
            wanted = f"a number in [0, {below:g})"
            fine = type(value) in (int, float) and 0 <= value < below
        elif kind is int or int in choices:
            wanted = "an integer >= 1"
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
    """UsageError unless value is an integer >= least."""
    if type(value) is not int or value < least:
        raise UsageError(
            f"{name} must be an integer >= {least}, not {value!r}"
        )


def check_positive(name: str, value: float | None) -> None:
    """UsageError unless value is positive or None."""
    if value is not None and not 0 < value < float("inf"):
        raise UsageError(f"{name} must be positive, not {value!r}")


def unknown(
    what: str, name: str, known: Iterable[str], otherwise: str = ""
) -> str:
    """What to say of a name that is not among known: those that are
    spelt like it; else otherwise, or all of them.
    """
    known = list(known)
    alike = difflib.get_close_matches(name, known)
    hint = otherwise or f"use {', '.join(known)}"
    if alike:
        hint = f"did you mean {' or '.join(alike)}?"
    return f"unknown {what} {name!r}: {hint}"
