"""Exported from the book; edit the chapter, then run `make export`."""

import difflib
from collections.abc import Collection, Iterable
from dataclasses import fields
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

__all__ = [
    "DataError", "RunError", "UsageError", "TrainingError", "PeerError",
    "Stopped", "check_fields", "check_whole", "unknown",
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


def check_fields(
    config: Any,
    zero: Collection[str] = (),
    positive: Collection[str] = (),
    below: float = float("inf"),
) -> None:
    """UsageError, naming the field, unless each value of a dataclass fits
    its annotation: an integer >= 1, or >= 0 for the fields in zero; a
    number in [0, below), or a positive one for those in positive; one of
    the choices; None where that is allowed. Other kinds are not checked.
    """
    hints = get_type_hints(type(config))
    for name in (field.name for field in fields(config)):
        kind, value = hints[name], getattr(config, name)
        union = get_origin(kind) in (Union, UnionType)
        kinds = get_args(kind) if union else (kind,)
        if value is None and type(None) in kinds:
            continue
        if int in kinds:
            check_whole(name, value, least=0 if name in zero else 1)
        elif float in kinds:
            number = type(value) in (int, float)
            if name in positive:
                wanted = "a positive number"
                fine = number and 0 < value < float("inf")
            else:
                wanted = f"a number in [0, {below:g})"
                fine = number and 0 <= value < below
            if not fine:
                raise UsageError(f"{name} must be {wanted}, not {value!r}")
        else:
            _check_choice(name, value, kinds)


def _check_choice(name: str, value: object, kinds: Iterable[Any]) -> None:
    choices: list[Any] = []
    for kind in kinds:
        if kind is bool:
            choices += (True, False)
        elif get_origin(kind) is Literal:
            choices += get_args(kind)
    if choices and not any(
        type(c) is type(value) and c == value for c in choices
    ):
        wanted = "one of " + ", ".join(map(str, choices))
        raise UsageError(f"{name} must be {wanted}, not {value!r}")


def check_whole(name: str, value: object, least: int) -> None:
    """UsageError unless value is an integer >= least."""
    if type(value) is not int or value < least:
        raise UsageError(
            f"{name} must be an integer >= {least}, not {value!r}"
        )


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
