"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

import ast
import base64
import importlib.resources
import inspect
import json
import linecache
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

__all__ = ["Exercise", "exercises", "run_code", "Verdict"]


# E20-checks.md: An exercise
# there is one of each, and printing it tells no answer
@dataclass(frozen=True, eq=False, repr=False)
class Exercise:
    """One of book/exercises/, as the package carries it."""

    name: str
    title: str
    kind: str
    minutes: int
    difficulty: int
    goals: list[str]
    section: str
    needs: list[str]
    points: int
    track: str
    defines: str  # the name of what is to be written
    module: str  # the module that has it in the book
    statement: str
    starter: str
    checks: list[str]
    hints: list[str]
    reference: str  # our solution
    variants: list[str]  # others that are right
    mutants: list[list[str]]  # known mistakes: sentence and code of each
    insight: str
    rubric: list[str]  # what earns a point in what is written about it
    number: str = ""  # as its page counts it: 4.1
    symptom: str = ""  # what shows that a starter is broken

    @classmethod
    def unsealed(cls, name: str, sealed: str, **facts: Any) -> Exercise:
        """What is carried, with what tells the answer opened."""
        told = json.loads(zlib.decompress(base64.b64decode(sealed)))
        return cls(name, **facts, **told)

    @property
    def chapter(self) -> str:
        """The number of its page, as 04."""
        return self.name[:2]

    @property
    def place(self) -> tuple[int, ...]:
        """Its number, to sort by; without one it is its page's last."""
        number = self.number or f"{self.chapter}.999"
        return tuple(map(int, number.split(".")))

    @property
    def stars(self) -> str:
        return "★" * self.difficulty

    @property
    def is_part(self) -> bool:
        """Whether its answer goes into a package of one's own."""
        return self.kind == "implement"

    def properties(
        self, hidden: Sequence[str] = ()
    ) -> dict[str, Callable[[Any], object]]:
        """The checks by name, in their order; compiled once, so that what
        an answer does later to a module does not reach them.
        """
        return _compiled(self, tuple(hidden))

    def answer(self, code: str, filename: str) -> Any:
        """What code defines under the exercise's name."""
        space = {"__name__": self.name}
        run_code(code, filename, space)
        return space[self.defines]


@cache
def exercises() -> dict[str, Exercise]:
    """All, by name, in the order of the book."""
    file = importlib.resources.files("annotated") / "exercises.json"
    carried = json.loads(file.read_text(encoding="utf-8"))
    return {n: Exercise.unsealed(n, **x) for n, x in carried.items()}


@cache
def _compiled(
    exercise: Exercise, hidden: tuple[str, ...]
) -> dict[str, Callable[[Any], object]]:
    """See Exercise.properties."""
    space: dict[str, Any] = {"__name__": f"check {exercise.name}"}
    for place, code in enumerate([*exercise.checks, *hidden]):
        run_code(code, f"<check {exercise.name} {place}>", space)
    return {n: x for n, x in space.items() if n.startswith("check_")}


def run_code(code: str, filename: str, space: dict[str, Any]) -> None:
    """Execute code, as a cell that may await; a traceback will show its
    lines.
    """
    lines = [f"{line}\n" for line in code.split("\n")]
    linecache.cache[filename] = (len(code), None, lines, filename)
    waits = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    compiled = compile(code, filename, "exec", waits, dont_inherit=True)
    if compiled.co_flags & inspect.CO_COROUTINE:
        import asyncio  # which takes as long as all that a list needs

        asyncio.run(eval(compiled, space))
    else:
        exec(compiled, space)


# E20-checks.md: The verdict
@dataclass(frozen=True)
class Verdict:
    """What came out, and the text that says so."""

    exercise: str
    outcome: str  # passed, wrong, not attempted, crashed, too slow, refused
    text: str
    passed: int  # checks that passed
    of: int

    @classmethod
    def early(cls, exercise: Exercise, outcome: str, why: str) -> Verdict:
        """Where no check has been run."""
        name, of = exercise.name, len(exercise.properties())
        return cls(name, outcome, f"{outcome} · {name}: {why}", 0, of)

    def __str__(self) -> str:
        return self.text
