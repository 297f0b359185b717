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
from functools import cache, cached_property
from typing import Any

__all__ = ["Exercise", "exercises", "run_code", "Verdict"]


# E20-checks.md: An exercise
@dataclass(frozen=True, eq=False)  # there is one of each
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
    sealed: str
    number: str = ""  # as its page counts it: 4.1
    symptom: str = ""  # what shows that a starter is broken

    @cached_property
    def _unsealed(self) -> dict[str, Any]:
        packed = base64.b64decode(self.sealed)
        return dict(json.loads(zlib.decompress(packed)))

    @property
    def reference(self) -> str:
        return str(self._unsealed["reference"])

    @property
    def variants(self) -> list[str]:
        return list(self._unsealed["variants"])

    @property
    def mutants(self) -> list[tuple[str, str]]:
        """Sentence and code of each."""
        return [(m[0], m[1]) for m in self._unsealed["mutants"]]

    @property
    def insight(self) -> str:
        return str(self._unsealed["insight"])

    @property
    def rubric(self) -> list[str]:
        """What earns a point in what is written about it."""
        return list(self._unsealed.get("rubric", []))

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
        if tuple(hidden) not in self._compiled:
            space: dict[str, Any] = {"__name__": f"check {self.name}"}
            for place, code in enumerate([*self.checks, *hidden]):
                run_code(code, f"<check {self.name} {place}>", space)
            self._compiled[tuple(hidden)] = {
                name: value
                for name, value in space.items()
                if name.startswith("check_")
            }
        return self._compiled[tuple(hidden)]

    @cached_property
    def _compiled(
        self,
    ) -> dict[tuple[str, ...], dict[str, Callable[[Any], object]]]:
        return {}

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
    return {
        name: Exercise(name, **facts) for name, facts in carried.items()
    }


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
