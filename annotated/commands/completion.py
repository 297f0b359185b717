"""Exported from the book; edit the chapter, then run `make export`."""

import dataclasses
from contextlib import suppress
from typing import Annotated, Any, Literal, Union

import tyro

from annotated.cli import COMMANDS, load
from annotated.commands.train import Train
from annotated.engine.recipes import RECIPES

__all__ = ["Completion"]


# E12-command-line.md: Completion
@dataclasses.dataclass(frozen=True)
class Completion:
    """Print a script by which a shell completes annotated."""

    shell: tyro.conf.Positional[Literal["bash", "zsh", "fish"]]

    def act(self) -> None:
        kinds = {name: load(name) for name in COMMANDS} | {
            "train": _one_of(dict.fromkeys(RECIPES, Train)),
            "doctor": dataclasses.make_dataclass("Doctor", []),
        }
        every = _one_of(kinds)
        asked = ["--tyro-write-completion", self.shell, "-"]
        with suppress(SystemExit):  # after it has printed the script
            tyro.cli(every, args=asked, prog="annotated")


def _one_of(kinds: dict[str, Any]) -> Any:
    """The type of a choice between subcommands, by their names."""
    named = [
        Annotated[kind, tyro.conf.subcommand(name)]
        for name, kind in kinds.items()
    ]
    return Union[tuple(named)]  # noqa: UP007 (as many as there are)
