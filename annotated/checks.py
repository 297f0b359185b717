"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

from typing import Any

from annotated.school.course import Workspace, named, source_of
from annotated.school.exercises import Exercise, exercises

__all__ = ["check", "hint", "solution", "progress", "reset", "milestone"]


# E21-course.md: Functions for notebooks
def check(thing: Any, exercise: str | None = None) -> None:
    """Print whether your solution is right, and if not, why. thing is the
    function or class that an exercise asks for; an answer that is neither
    needs the name of its exercise, too.
    """
    from annotated.school.checks import examine, examine_source, objection

    asked, workspace = _find(thing, exercise), Workspace.here()
    source = source_of(thing)
    if refused := objection(asked, [source] if source else [], thing):
        print(refused.text)
        return
    verdict = examine(asked, thing)
    print(verdict.text)
    known = workspace.record(asked, verdict, source, examine_source)
    if known and verdict.outcome == "passed":
        print(f'solution("{asked.name}") shows ours, to compare.')


def hint(thing: Any) -> None:
    """Print a hint, and each time one more."""
    asked, workspace = _find(thing), Workspace.here()
    given = workspace.state().get(asked.name, {}).get("hints", 0)
    count = min(given + 1, len(asked.hints))
    if not count:
        print(f"{asked.name} has no hints.")
        return
    print(f"Hint {count} of {len(asked.hints)}: {asked.hints[count - 1]}")
    if given >= count:
        print("It is the last one. solution() shows ours.")
    workspace.remember(asked.name, hints=count)


def solution(thing: Any) -> None:
    """Print our solution: once yours passes, or when asked twice, or
    where nothing can be remembered.
    """
    asked, workspace = _find(thing), Workspace.here()
    state = workspace.state().get(asked.name, {})
    due = state.get("outcome") == "passed" or state.get("asked")
    if not due and workspace.remember(asked.name, asked=True):
        print(
            f"{asked.name} has not passed yet. hint() gives away less; ask "
            "again to see the solution."
        )
        return
    print(asked.reference)
    if asked.rubric:
        print("\nIn writing, a point for each of these:")
    for line in asked.rubric:
        print(f"- {line}")


def progress() -> None:
    """Print where you stand with each exercise."""
    print(Workspace.here().listed(exercises().values()))


def reset(thing: Any) -> None:
    """Forget what is known of an exercise, and take it out of mine/."""
    asked = _find(thing)
    Workspace.here().forget(asked.name)
    print(f"{asked.name} is as if it had never been tried.")


def milestone(number: int) -> None:
    """Run the book on your parts: 1, the model equals torch.nn's; 2, it
    learns to reverse words; 3, it copies without a mistake, stopped once;
    4, it translates; 5, Multi30k, beside the book's BLEU; 6, it parses.
    What is not yet yours is ours. ValueError where there is no such one.
    """
    from annotated.school.milestones import MILESTONES, reach

    if number not in MILESTONES:
        known = ", ".join(map(str, MILESTONES))
        raise ValueError(f"milestones are {known}, not {number!r}")
    print(reach(number, Workspace.here()))


def _find(thing: Any, name: str | None = None) -> Exercise:
    """The exercise of a name, or the one that asks for a function or a
    class of this name. ValueError where there is none.
    """
    if name is None and isinstance(thing, str):
        name = thing
    name = name or getattr(thing, "__name__", None)
    if name is None:
        raise ValueError(
            'which exercise is this? Say check(answer, "NN-name")'
        )
    return named(name)
