"""Exported from the book; edit the chapter, then run `make export`."""

import argparse
import dataclasses
import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from itertools import takewhile
from types import NoneType
from typing import (
    Annotated,
    Any,
    Literal,
    NoReturn,
    get_args,
    get_origin,
    get_type_hints,
)

import tyro

from annotated.engine.errors import UsageError, unknown

__all__ = ["Flag", "run", "parse", "given", "usage_errors"]


# E12-command-line.md: What the subcommands share
Flag = tyro.conf.FlagCreatePairsOff[bool]


def run(kind: Any, name: str, args: list[str]) -> None:
    """Do what a subcommand's options ask. UsageError if they are wrong."""
    unset = tyro.conf.DisallowNone  # only a recipe's fields take None
    parse(kind, name, args, config=(unset,)).act()


def parse(kind: Any, name: str, args: list[str], **more: Any) -> Any:
    """A dataclass, or one of several, made from its options by tyro.cli,
    whose further arguments are more. UsageError says what is wrong.
    """
    if twice := _twice(kind, args):  # of which tyro would take the last
        raise UsageError(f"{name}: {twice}")
    try:
        with redirect_stderr(io.StringIO()):  # tyro's box
            return tyro.cli(
                kind, args=args, prog=f"annotated {name}", **more
            )
    except SystemExit as stop:
        if not stop.code:  # --help
            raise
        none = "config" not in more  # run has DisallowNone in it
        wrong = _refusal(kind, args, none) or _cause(stop)
    raise UsageError(f"{name}: {wrong}")


def given(options: object, *names: str) -> dict[str, Any]:
    """The options that were given, by name."""
    values = ((name, getattr(options, name)) for name in names)
    # 0 equals False, but is a value
    return {
        n: v
        for n, v in values
        if v is not None and v is not False and v != ()
    }


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turn a ValueError into a UsageError."""
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from error


class _Checker(argparse.ArgumentParser):
    """A parser that raises what is wrong, and says it as we do."""

    def error(self, message: str) -> NoReturn:
        missing = "the following arguments are required"
        raise UsageError(message.replace(missing, "missing"))


def _several(kind: Any) -> dict[str, Any]:
    """The subcommands of a subcommand, by name; empty if it has none."""
    return {one.__name__.lower(): one for one in get_args(kind)}


def _twice(kind: Any, args: list[str]) -> str:
    """Which option is given twice, and what to do; empty if none is."""
    several, seen = _several(kind), set[str]()
    if several and not (args and args[0] in several):
        return ""
    options = dict(_options(several[args[0]] if several else kind))
    for word in takewhile(lambda word: word != "--", args):
        name = _spelt(word).partition("=")[0]
        if not name.startswith("--") or name not in options:
            continue
        settings = options[name]
        if name in seen and settings.get("action") != "append":
            many = settings.get("nargs") == "*"
            cure = f"write {name} A B" if many else "omit one"
            return f"{name} is given twice: {cure}"
        seen.add(name)
    return ""


def _refusal(kind: Any, args: list[str], none: bool) -> str:
    """What argparse finds wrong with options; empty if nothing."""
    several = _several(kind)
    if several:
        if not args:
            return f"give one of {', '.join(several)}"
        if args[0] not in several:
            return unknown("subcommand", args[0], several)
        kind, args = several[args[0]], args[1:]
    checker = _Checker(add_help=False, allow_abbrev=False)
    options = dict(_options(kind))
    for name, settings in options.items():
        checker.add_argument(name, **settings)
    words = [
        "0" if none and word == "None" else _spelt(word) for word in args
    ]
    for word in words:
        name = word.partition("=")[0]
        if name.startswith("--") and name not in options:
            return unknown("option", name, options, "see --help")
    try:
        _, rest = checker.parse_known_args(words)
    except UsageError as error:
        return str(error)
    return f"unrecognized: {' '.join(rest)}" if rest else ""


def _options(
    kind: Any, needed: bool = True
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The options of a dataclass and of those in it, for argparse."""
    hints = get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        marks: list[Any] = []
        if get_origin(hint) is Annotated:
            hint, *marks = get_args(hint)
        if dataclasses.is_dataclass(hint):
            yield from _options(hint, needed=False)
            continue
        if NoneType in get_args(hint):
            hint = get_args(hint)[0]
        named = [mark.name for mark in marks if hasattr(mark, "name")]
        name = (named or [field.name])[0].replace("_", "-")
        settings = _settings(hint)
        if tyro.conf.UseAppendAction in marks:  # one value each time
            settings = {"action": "append"}
        required = needed and field.default is dataclasses.MISSING
        if tyro.conf.Positional not in marks:
            name = f"--{name}"
            settings["required"] = required
        elif not required:
            settings.setdefault("nargs", "?")
        if tyro.conf.FlagCreatePairsOff in marks:
            settings["action"] = "store_true"
        yield name, settings


def _settings(hint: Any) -> dict[str, Any]:
    """What argparse is told of a type."""
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    if get_origin(hint) is Literal:
        return {"choices": get_args(hint)}
    if get_origin(hint) is tuple:
        kinds = get_args(hint)
        count = "*" if Ellipsis in kinds else len(kinds)
        return {"nargs": count} | _settings(kinds[0])
    return {"type": hint} if hint in (int, float) else {}


def _spelt(word: str) -> str:
    """An option with hyphens, which may be typed with underscores."""
    name, equals, value = word.partition("=")
    hyphens = name.replace("_", "-") if name.startswith("--") else name
    return hyphens + equals + value


def _cause(error: BaseException | None) -> str:
    """The message of the ValueError from which another error has come."""
    while error and not isinstance(error, ValueError):
        error = error.__context__
    return str(error or "invalid options: see --help")
