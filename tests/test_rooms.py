"""The rooms of the package: how large each may be, and who may know whom;
and that a file of tests can be read.

The numbers and the arrows are in pyproject.toml, [tool.annotated.rooms].
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
ROOMS: dict[str, Any] = PROJECT["tool"]["annotated"]["rooms"]
PACKAGE = ROOT / "annotated"
PLAIN = ["attention", "masks", "layers", "embeddings", "model"]
DOORS = {"checks", "cli", "__main__"}  # to school and commands


def room_of(module: str) -> str:
    """The room of engine.packing is engine; of attention, the story."""
    first = module.partition(".")[0]
    return first if (PACKAGE / first).is_dir() else "story"


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


MODULES = {module_of(p): p for p in sorted(PACKAGE.rglob("*.py"))}


def imports(code: str) -> Iterator[str]:
    """The package's modules that code imports, wherever it does."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names = [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{name.name}" for name in node.names]
        else:
            continue
        for name in names:
            top, _, inside = name.partition(".")
            while top == "annotated" and inside:
                if inside in MODULES:
                    yield inside
                    break
                inside = inside.rpartition(".")[0]


def offences(module: str, code: str) -> list[str]:
    """What a module imports that its room may not know."""
    if module in DOORS:
        return []
    room = room_of(module)
    knows = {room, *ROOMS[room]["knows"]}
    return [
        other
        for other in imports(code)
        if not {other, room_of(other)} & knows
    ]


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_its_room_may_know(module: str) -> None:
    assert offences(module, MODULES[module].read_text("utf-8")) == []


@pytest.mark.parametrize(
    ("module", "code", "found"),
    [
        (
            "engine.trainer",
            "import annotated.school.checks",
            "school.checks",
        ),
        ("model", "from annotated.book import plots", "book.plots"),
        (
            "corpora.pairs",
            "from annotated.engine.runs import Run",
            "engine.runs",
        ),
        ("corpora.pairs", "from annotated.engine.errors import X", ""),
        (
            "engine.search",
            "def f():\n    import annotated.book.look",
            "book.look",
        ),
        (
            "school.course",
            "from annotated.commands import train",
            "commands",
        ),
        ("cli", "import annotated.school.checks", ""),
        ("engine.runs", "import torch, annotated.model", ""),
    ],
)
def test_an_arrow_that_points_back_is_found(
    module: str, code: str, found: str
) -> None:
    told = offences(module, code)
    assert [name.startswith(found) for name in told] == [True] * bool(found)


def test_every_room_has_its_row_and_every_row_its_room() -> None:
    assert {room_of(module) for module in MODULES} == set(ROOMS)
    assert set(PROJECT["tool"]["annotated"]["about"]) == set(ROOMS)


def public(path: Path) -> list[str]:
    """The names in a module's __all__."""
    for node in ast.parse(path.read_text("utf-8")).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                return list(ast.literal_eval(value))
    return []


def lines(path: Path) -> int:
    return path.read_text("utf-8").count("\n")


def names(path: Path) -> int:
    """How many names a module makes public."""
    return len(public(path))


@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("count", [lines, names])
def test_a_room_is_no_larger_than_its_row_says(
    room: str, count: Any
) -> None:
    paths = [p for name, p in MODULES.items() if room_of(name) == room]
    assert sum(map(count, paths)) <= ROOMS[room][count.__name__]


def test_a_name_is_made_public_by_one_module() -> None:
    homes: dict[str, list[str]] = {}
    for module, path in MODULES.items():
        for name in public(path):
            homes.setdefault(name, []).append(module)
    twice = {name: where for name, where in homes.items() if len(where) > 1}
    assert set(twice) <= set(PROJECT["tool"]["annotated"]["twice"])


def test_the_plain_model_is_read_in_an_hour() -> None:
    assert sum(lines(MODULES[name]) for name in PLAIN) <= 600


def test_a_file_of_tests_has_at_most_600_lines() -> None:
    files = [*(ROOT / "tests").rglob("*.py")]
    long = {str(p.relative_to(ROOT)): lines(p) for p in files}
    assert {name: n for name, n in long.items() if n > 600} == {}
