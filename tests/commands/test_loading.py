"""A command loads only what it needs: it answers at once where it can."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from functools import cache

import pytest

from annotated.cli import _MODULES, COMMANDS
from tests.helpers import environment

# what each line leaves in sys.modules, in a process that is a copy of one
# that has but read the command, or torch, too
PROBE = textwrap.dedent(
    """
    import contextlib, importlib, json, os, shlex, sys
    from annotated.cli import dispatch

    preload, *lines = sys.argv[1:]
    for name in preload.split():
        importlib.import_module(name)
    for line in lines:
        if os.fork() == 0:
            with open(os.devnull, "w") as sink:
                with contextlib.redirect_stdout(sink):
                    with contextlib.suppress(SystemExit):
                        dispatch(shlex.split(line))
            torch = "torch" in sys.modules
            ours = [n for n in sys.modules if n.startswith("annotated.")]
            print(json.dumps([line, torch, ours]))
            sys.stdout.flush()
            os._exit(0)
        os.wait()
    """
)
# those that answer without torch, and the rooms that they may enter
CHEAP = {
    "--help": "",
    "doctor --help": "commands",
    "data --help": "commands corpora pocket",
    "data prepare --help": "commands corpora pocket",
    "data list": "commands corpora pocket",
    "data show multi30k": "commands corpora pocket",
    "report --help": "commands corpora book",
    "look --help": "commands corpora book",
    "paper --help": "commands corpora book",
    "exercises --help": "checks commands school corpora",
    "exercises": "checks commands school corpora",
    "milestone --help": "checks commands school corpora",
    "questions --help": "checks commands school corpora",
    "questions": "checks commands school corpora",
}
GROUND = {"cli", "engine", "engine.errors", "engine.files"}
# rooms and modules that the others have no use for
OTHERS = {
    "recipes": "school book",
    "train copy --help": "school book",
    "translate --help": "school book exchange",
    "adapt --help": "school book exchange",
    "serve --help": "school book exchange",
    "evaluate --help": "school book exchange",
    "score --help": "school book exchange",
    "parse --help": "school book exchange",
    "treebank --help": "school book exchange",
    "average --help": "school book exchange",
    "export --help": "school book",
    "import --help": "school book",
    "sweep --help": "school exchange book.report book.look book.paper",
    "classroom --help": "exchange commands.train engine.runner",
}


@cache
def loaded(preload: str, *lines: str) -> dict[str, tuple[bool, set]]:
    """Whether torch is there, and our modules, by line."""
    if not hasattr(os, "fork"):
        pytest.skip("no fork: an interpreter each would take minutes")
    done = subprocess.run(
        [sys.executable, "-c", PROBE, preload, *lines],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    return {
        line: (torch, {n.removeprefix("annotated.") for n in ours})
        for line, torch, ours in map(json.loads, done.stdout.splitlines())
    }


@pytest.mark.parametrize("line", CHEAP)
def test_what_needs_no_torch_does_not_load_it(line: str) -> None:
    torch, ours = loaded("", *CHEAP)[line]
    assert not torch
    rooms = {name.partition(".")[0] for name in ours - GROUND}
    assert rooms <= set(CHEAP[line].split()), rooms
    pages = {name for name in ours if name.startswith("book.")}
    assert pages <= {"book.paper"}


@pytest.mark.parametrize("line", OTHERS)
def test_a_command_loads_no_room_that_it_does_not_use(line: str) -> None:
    """Neither school nor pictures train; neither do exports translate."""
    _, ours = loaded("torch", *OTHERS)[line]
    others = tuple(OTHERS[line].split())
    assert not [name for name in ours if name.startswith(others)]


def test_the_help_of_every_subcommand_is_looked_at() -> None:
    asked = {line.split()[0] for line in [*CHEAP, *OTHERS]}
    assert asked - {"--help"} == COMMANDS.keys() - {"completion"}
    placed = [name for names in _MODULES.values() for name in names]
    assert sorted(placed) == sorted(COMMANDS)
