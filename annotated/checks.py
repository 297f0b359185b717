"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

import difflib
from typing import Any

from annotated.school.checks import Exercise, examine, exercises, objection
from annotated.school.course import MILESTONES, Desk, kept, reach, source_of

__all__ = [
    "check", "hint", "solution", "progress", "reset", "milestone", "find",
]  # fmt: skip


# E21-course.md: Functions for notebooks
def check(thing: Any, exercise: str | None = None) -> None:
    """Print whether your solution is right, and if not, why. thing is the
    function or class that an exercise asks for; an answer that is neither
    needs the name of its exercise, too.
    """
    found, desk = find(thing, exercise), Desk.here()
    source = source_of(thing)
    if refused := objection(found, [source] if source else [], thing):
        print(refused.text)
        return
    verdict = examine(found, thing)
    print(verdict.text)
    facts = {"outcome": verdict.outcome, "checks": verdict.passed}
    try:
        desk.remember(found.name, **facts)
    except OSError as error:
        print(f"\nNothing is remembered: {error}")
        return
    if verdict.outcome == "passed":
        if said := kept(desk, found, thing):
            print(f"\n{said}")
        print(f'solution("{found.name}") shows ours, to compare.')


def hint(thing: Any) -> None:
    """Print a hint, and each time one more."""
    found, desk = find(thing), Desk.here()
    given = desk.state().get(found.name, {}).get("hints", 0)
    count = min(given + 1, len(found.hints))
    if not count:
        print(f"{found.name} has no hints.")
        return
    print(f"Hint {count} of {len(found.hints)}: {found.hints[count - 1]}")
    if given >= count:
        print("It is the last one. solution() shows ours.")
    desk.remember(found.name, hints=count)


def solution(thing: Any) -> None:
    """Print our solution: once yours passes, or when asked twice."""
    found, desk = find(thing), Desk.here()
    state = desk.state().get(found.name, {})
    if state.get("outcome") == "passed" or state.get("asked"):
        print(found.reference)
        if found.rubric:
            print("\nIn writing, a point for each of these:")
        for line in found.rubric:
            print(f"- {line}")
        return
    desk.remember(found.name, asked=True)
    print(
        f"{found.name} has not passed yet. hint() gives away less; ask "
        "again to see the solution."
    )


def progress() -> None:
    """Print where you stand with each exercise."""
    desk = Desk.here()
    state, mine = desk.state(), desk.parts()
    for name, one in exercises().items():
        facts = state.get(name, {})
        outcome = facts.get("outcome", "not attempted")
        mark = {"passed": "✓", "not attempted": " "}.get(outcome, "·")
        own = f"  {desk.folder / one.module}.py" if name in mine else ""
        print(f"{mark} {name:23} {one.stars:3} {outcome:13} {own}".rstrip())
    done = sum(x.get("outcome") == "passed" for x in state.values())
    print(f"{done} of {len(exercises())} passed.")


def reset(thing: Any) -> None:
    """Forget what is known of an exercise, and take it out of mine/."""
    found = find(thing)
    Desk.here().forget(found.name)
    print(f"{found.name} is as if it had never been tried.")


def milestone(number: int) -> None:
    """Run the book on your parts: 1, the model equals torch.nn's; 2, it
    learns to reverse words; 3, it copies without a mistake, stopped once;
    4, it translates; 5, Multi30k, beside the book's BLEU; 6, it parses.
    What is not yet yours is ours.
    """
    if number not in MILESTONES:
        known = ", ".join(map(str, MILESTONES))
        raise ValueError(f"milestones are {known}, not {number!r}")
    print(reach(number, Desk.here()))


def find(thing: Any, name: str | None = None) -> Exercise:
    """The exercise of a name, or the one that asks for a function or a
    class of this name. ValueError where there is none.
    """
    if name is None:
        name = thing if isinstance(thing, str) else None
    if name is None:
        name = getattr(thing, "__name__", None)
    if name is None:
        raise ValueError(
            'which exercise is this? Say check(answer, "NN-name")'
        )
    for exercise in exercises().values():
        if name in (exercise.name, exercise.defines):
            return exercise
    known = [x for e in exercises().values() for x in (e.name, e.defines)]
    near = difflib.get_close_matches(name, known, 3)
    more = f"; is it {' or '.join(near)}?" if near else ""
    raise ValueError(f"no exercise asks for {name!r}{more}")
