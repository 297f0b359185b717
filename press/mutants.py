"""Whether the exercises' checks catch what they should, and only that."""

from __future__ import annotations

import contextlib
import io
import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy
import torch

from annotated.school.checks import (
    SEEDS,
    Exam,
    Solution,
    attempt,
    examine,
    mistakes,
    ours,
)
from annotated.school.exercises import Exercise as Carried
from press.chapters import PressError
from press.exercises import Exercise, read_exercises

SECONDS = 2.0  # of processor time, which checking our solution may take
NUMBER = re.compile(r" *-?\d+\.\d+")  # with what aligns it
ROUNDS = 3  # one of so many has to do: a machine may be busy


@dataclass
class Matrix:
    """Which check fails for which solution."""

    exercise: str
    checks: list[str]
    right: dict[str, set[str]] = field(default_factory=dict)
    wrong: dict[str, set[str]] = field(default_factory=dict)
    sentences: dict[str, str] = field(default_factory=dict)
    told: dict[str, str] = field(default_factory=dict)  # to its author
    starter: str = ""  # the outcome
    unsolved: str = "not attempted"  # what it should be
    given: list[str] = field(default_factory=list)  # for nothing
    symptom: list[str] = field(default_factory=list)  # wrong with it
    seconds: float = 0.0

    def problems(self) -> list[str]:
        caught = set().union(*self.wrong.values())
        problems = [
            *self.symptom,
            *self.given,
            *(
                f"{name} is rejected by {', '.join(sorted(failed))}"
                for name, failed in self.right.items()
                if failed
            ),
            *(
                f"{check} catches no mutant"
                for check in self.checks
                if check not in caught
            ),
        ]
        for name, failed in self.wrong.items():
            sentence, told = self.sentences[name], self.told[name]
            if not failed:
                problems.append(f"{name} survives: {sentence}")
            elif sentence not in told:
                problems.append(
                    f"the author of {name} does not read its sentence, "
                    f"but: {told}"
                )
            if _printed_alike(told):
                problems.append(
                    f"of {name}, what is wanted and what came back are "
                    f"printed alike: {told}"
                )
        if self.starter != self.unsolved:
            problems.append(
                f"the starter is '{self.starter}', not '{self.unsolved}'"
            )
        if self.seconds > SECONDS:
            problems.append(
                f"checking the reference took {self.seconds:.1f} s of "
                f"processor time, not at most {SECONDS:g}"
            )
        where = f"book/exercises/{self.exercise}.md"
        return [f"{where}: {what}" for what in problems]

    def table(self) -> str:
        """A row for each solution, a column for each check."""
        rows = [f"{self.exercise} ({self.seconds:.2f} s)"]
        rows += [
            f"  {place}  {check}"
            for place, check in enumerate(self.checks, 1)
        ]
        for name, failed in (self.right | self.wrong).items():
            marks = " ".join(
                "x" if check in failed else "·" for check in self.checks
            )
            sentence = self.sentences.get(name, "")
            rows.append(f"  {name:10} {marks}  {sentence[:60]}")
        return "\n".join(rows)


def mutants(
    root: Path, names: list[str], say: Callable[[str], None]
) -> list[str]:
    """Try the exercises of these names, or all; what is wrong."""
    chosen = [
        e
        for e in read_exercises(root)
        if not names or any(e.name.startswith(name) for name in names)
    ]
    if names and not chosen:
        raise PressError(f"no exercise is called {', '.join(names)}")
    found = []
    for exercise in chosen:
        matrix = try_out(exercise)
        say(matrix.table())
        found += matrix.problems()
    say(f"{len(chosen)} exercises")
    return found


def try_out(exercise: Exercise) -> Matrix:
    """Run every check of an exercise on every solution."""
    torch.set_num_threads(1)
    carried = Carried.unsealed(exercise.name, **exercise.given)
    checks = carried.properties(exercise.cells["hidden"])
    matrix = Matrix(exercise.name, list(checks))

    def rejecting(one: Solution, seeds: Sequence[int] = SEEDS) -> set[str]:
        return {
            name
            for name, check in checks.items()
            if any(one.trial(check, seed, 10).error for seed in seeds)
        }

    codes = {"reference": carried.reference}
    codes |= {f"variant {n}": x for n, x in enumerate(carried.variants, 1)}
    for name, code in codes.items():
        right = Solution(_answer(carried, code, name))
        matrix.right[name] = rejecting(right)
    for name, answer in _other_kinds(ours(carried).thing).items():
        matrix.right[name] = rejecting(Solution(answer), SEEDS[:1])
    matrix.given = _given(exercise, checks)
    exam = Exam(exercise.cells["hidden"])
    known = zip(carried.mutants, mistakes(carried))
    for n, ((sentence, code), mistake) in enumerate(known, 1):
        # from its source: it has to do what the one that is carried does
        name = f"mutant {n}"
        thing = _answer(carried, code, name)
        told = examine(carried, thing, exam).text
        matrix.told[name], matrix.sentences[name] = told, sentence
        # one seed shows what rejects it, where there is anything to see
        first, *others = SEEDS
        matrix.wrong[name] = rejecting(mistake, [first])
        matrix.wrong[name] |= (
            rejecting(mistake, others) if not matrix.wrong[name] else set()
        )
    caught = set().union(*matrix.wrong.values())
    if caught < set(checks):  # by another seed, perhaps
        for name, mistake in zip(matrix.wrong, mistakes(carried)):
            matrix.wrong[name] |= rejecting(mistake)
    starter = _answer(carried, carried.starter, "starter")
    verdict = examine(carried, starter)
    matrix.starter = verdict.outcome
    if exercise.symptom:
        matrix.unsolved = "wrong"
        matrix.symptom = _symptom(exercise, verdict.text)
    for _ in range(ROUNDS):
        matrix.seconds = _seconds(carried, ours(carried).thing)
        if matrix.seconds <= SECONDS:
            break
    return matrix


def _other_kinds(answer: Any) -> dict[str, Any]:
    """A right prediction in other kinds: what comes of numpy or torch is
    as good as what is typed.
    """
    if not isinstance(answer, dict):
        return {}

    def turned(value: Any, number: Callable[[Any], Any]) -> Any:
        if isinstance(value, bool):
            return value
        if isinstance(value, tuple):
            return list(value)
        return number(value)

    kinds: dict[str, Callable[[Any], Any]] = {
        "in torch": lambda x: torch.tensor(x, dtype=torch.float64),
        "in numpy": numpy.float64,
        "as fractions": Fraction,
    }
    return {
        name: {key: turned(x, kind) for key, x in answer.items()}
        for name, kind in kinds.items()
    }


def _given(exercise: Exercise, checks: dict[str, Any]) -> list[str]:
    """Which checks of substance hold for who has done nothing."""
    right = ours(Carried.unsealed(exercise.name, **exercise.given)).thing
    if exercise.facts["kind"] != "implement" or isinstance(right, type):
        return []
    return [
        f"{name} holds for an answer that {what}: it is one of form (@form)"
        for name, check in checks.items()
        for what, idle in _idle().items()
        if not getattr(check, "form", False)
        and attempt(check, idle, SEEDS[0], 5).error is None
    ]


def _idle() -> dict[str, Callable[..., Any]]:
    """Answers of who has done nothing."""

    def refuse(*given: Any, **named: Any) -> None:
        raise ValueError("no")

    return {
        "returns None": lambda *given, **named: None,
        "returns its argument": lambda *given, **named: given[0],
        "returns 0": lambda *given, **named: 0.0,
        "returns nothing": lambda *given, **named: [],
        "refuses": refuse,
    }


def _printed_alike(told: str) -> bool:
    """Whether a counter-example shows two values as the same."""
    parts = re.split(r"^  (?=\S)", told, flags=re.M)
    shown = {
        name: part.removeprefix(name).split()
        for part in parts
        for name in ("wanted", "yours")
        if part.startswith(f"{name} ")
    }
    return len(shown) == 2 and shown["wanted"] == shown["yours"]


def _symptom(exercise: Exercise, told: str) -> list[str]:
    """What is wrong with the symptom of a broken starter: the statement
    shows what it prints, the reference prints something else, and no check
    says at once what the fault is.
    """
    found = []
    printed = {
        name: _printed(f"{exercise.one(name)}\n{exercise.symptom}")
        for name in ("starter", "reference")
    }
    if not _shown(printed["starter"], exercise.one("statement")):
        found.append(
            "the statement does not show what the symptom prints:\n"
            f"{printed['starter']}"
        )
    if printed["starter"] == printed["reference"]:
        found.append("once it is mended, the symptom is still there")
    found += [
        f"what the starter's author reads gives it away: {m.sentence}"
        for m in exercise.mutants
        if m.sentence in told
    ]
    return found


def _shown(printed: str, statement: str) -> bool:
    """Whether the last ```text of a statement is what was printed, up to
    what processors round differently: of many numbers, which a training
    has made, a third may have gone another way.
    """
    shown = statement.rpartition("```text\n")[2].partition("\n```")[0]
    words, told = (NUMBER.split(x.strip()) for x in (printed, shown))
    pairs = list(zip(*(NUMBER.findall(x) for x in (printed, shown))))
    near = sum(
        math.isclose(float(x), float(y), rel_tol=0.1, abs_tol=0.06)
        for x, y in pairs
    )
    enough = len(pairs) if len(pairs) < 12 else 2 * len(pairs) / 3
    return words == told and near >= enough


def _printed(code: str) -> str:
    """What a script prints."""
    out = io.StringIO()
    generator = torch.get_rng_state()
    try:
        with contextlib.redirect_stdout(out):
            exec(compile(code, "<symptom>", "exec"), {"__name__": "seen"})
    finally:
        torch.set_rng_state(generator)
    return out.getvalue()


def _answer(carried: Carried, code: str, name: str) -> Any:
    try:
        return carried.answer(code, f"<{name} of {carried.name}>")
    except Exception as error:
        raise PressError(
            f"book/exercises/{carried.name}.md: {name} cannot be run: "
            f"{type(error).__name__}: {error}"
        ) from None


def _seconds(carried: Carried, thing: Any) -> float:
    before = time.process_time()
    examine(carried, thing)
    return time.process_time() - before
