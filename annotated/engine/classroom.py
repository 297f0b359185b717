"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

import ast
import dataclasses
import io
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import tyro

from annotated.engine.checks import (
    SEEDS,
    Exercise,
    TooSlow,
    attempt,
    examine,
    exercises,
)
from annotated.engine.errors import DataError, UsageError
from annotated.engine.files import write_text

__all__ = [
    "HIDDEN", "grade", "hidden_checks", "silent_errors", "marked",
    "holding", "Block", "blocks_of", "grafted", "repaired", "Classroom",
    "verdict_of",
]  # fmt: skip


# E26-classroom.md: A graded cell
HIDDEN = "ANNOTATED_HIDDEN"  # names the teacher's file of hidden checks


def grade(answer: Callable[[], Any], name: str, points: float) -> float:
    """Print the verdict on what answer() returns, for the exercise of this
    name; return its points. Nothing is raised, and standard error stays
    empty: nbgrader would take either for a mistake.
    """
    exercise = exercises()[name]
    with silent_errors():
        try:
            share, text = marked(exercise, answer, hidden_checks(name))
        except (Exception, KeyboardInterrupt, SystemExit, TooSlow) as error:
            share, text = 0.0, f"stopped · {name}: {type(error).__name__}"
    print(text)
    return round(points * share, 2)


def hidden_checks(name: str) -> list[str]:
    """The checks of an exercise that no student has, where they are."""
    path = os.environ.get(HIDDEN, "")
    if not path:
        return []
    return list(json.loads(Path(path).read_text("utf-8")).get(name, []))


@contextmanager
def silent_errors() -> Iterator[None]:
    """Let nothing reach standard error, from Python or from below it."""
    sys.stderr.flush()
    above, sys.stderr = sys.stderr, io.StringIO()
    below, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(below, 2)
        os.close(below)
        os.close(nowhere)
        sys.stderr = above


def marked(
    exercise: Exercise, answer: Callable[[], Any], hidden: Sequence[str]
) -> tuple[float, str]:
    """The share of the points, from 0 to 1, and the verdict."""
    try:
        thing = answer()
    except NameError:
        return 0.0, (
            f"not attempted · {exercise.name}: nothing is called "
            f"{exercise.defines}; did its cell run?"
        )
    verdict = examine(exercise, thing, hidden)
    if verdict.outcome == "passed":
        return 1.0, verdict.text
    if verdict.outcome in ("not attempted", "too slow"):
        return 0.0, verdict.text
    held = holding(exercise, thing, hidden)
    given = 0
    if not exercise.is_part:  # code that was given passes some of them
        starter = exercise.answer(exercise.starter, "<starter>")
        given = holding(exercise, starter, hidden)
    share = max(0.0, (held - given) / (verdict.of - given))
    return share, f"{verdict.text}\n\n{held} of {verdict.of} checks pass."


def holding(exercise: Exercise, thing: Any, hidden: Sequence[str]) -> int:
    """How many checks pass, each by itself."""
    count = 0
    for check in exercise.properties(hidden).values():
        errors = [attempt(check, thing, seed).error for seed in SEEDS]
        if any(isinstance(error, TooSlow) for error in errors):
            break
        count += all(error is None for error in errors)
    return count


# E26-classroom.md: Answers back into their cells
@dataclasses.dataclass(frozen=True)
class Block:
    """A statement at the top of a cell, what it defines, what it uses."""

    text: str
    defines: frozenset[str]
    uses: frozenset[str]

    @classmethod
    def of(cls, node: ast.stmt, source: str) -> Block:
        names = {
            n.id for n in ast.walk(node) if isinstance(n, ast.Name)
        }  # the bases of a class and the types of a signature, too
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            own = {a.asname or a.name.split(".")[0] for a in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            own = {node.name}
        else:
            own = {
                n.id
                for n in ast.walk(node)
                if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
            }
        first = node.lineno
        for above in getattr(node, "decorator_list", []):
            first = min(first, above.lineno)
        lines = source.splitlines()[first - 1 : node.end_lineno]
        return cls("\n".join(lines), frozenset(own), frozenset(names - own))


def blocks_of(sources: Sequence[str]) -> list[Block]:
    """The statements of cells; a cell that does not parse by itself is
    tried together with those after it.
    """
    found: list[Block] = []
    rest = list(sources)
    while rest:
        for count in range(1, len(rest) + 1):
            text = "\n".join(rest[:count])
            try:
                body = ast.parse(text).body
            except (SyntaxError, ValueError):
                continue
            found += [Block.of(node, text) for node in body]
            del rest[:count]
            break
        else:
            del rest[0]
    return found


def grafted(name: str, sources: Sequence[str], starter: str) -> str | None:
    """The code of the last definition of a name, with what it uses; None
    where there is none but the starter's.
    """
    given = {ast.unparse(node) for node in ast.parse(starter).body}
    blocks = [
        block
        for block in blocks_of(sources)
        if block.defines
        and (
            name not in block.defines
            or ast.unparse(ast.parse(block.text)) not in given
        )
    ]
    order: list[int] = []
    seen: set[str] = set()

    def take(one: str) -> None:
        """One definition, behind those that it uses."""
        places = [i for i, b in enumerate(blocks) if one in b.defines]
        if one in seen or not places:
            return
        seen.add(one)
        for used in sorted(blocks[places[-1]].uses):
            take(used)
        if places[-1] not in order:
            order.append(places[-1])

    take(name)
    if name not in seen:
        return None
    return "\n\n\n".join(blocks[i].text for i in order)


def repaired(
    submitted: dict[str, Any], given: dict[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """The notebook as it was given, with the answers of the submitted one,
    and the names of those that stood elsewhere.
    """
    new, moved = json.loads(json.dumps(given)), []
    cells = [c for c in submitted["cells"] if c["cell_type"] == "code"]
    own = [c for c in cells if not _label(c).get("grade")]
    sources = ["".join(c["source"]) for c in own]
    for cell in new["cells"]:
        label = _label(cell)
        if not label.get("solution"):
            continue
        if cell["cell_type"] == "markdown":  # in words, for a person
            said = _text_of(label["grade_id"], submitted)
            cell["source"] = said or cell["source"]
            continue
        exercise = exercises()[label["grade_id"]]
        here = [
            text
            for text, c in zip(sources, own)
            if _label(c).get("grade_id") == exercise.name
        ]
        code = here[0] if len(here) == 1 else None
        if code is None or not _has(code, exercise.defines):
            code = grafted(exercise.defines, sources, exercise.starter)
        if code is None:  # what was tried, though it defines nothing
            tried = [x for x in here if _is_code(x, exercise.starter)]
            code = tried[-1] if tried else exercise.starter
        cell["source"] = code.splitlines(keepends=True)
        if here != [code]:
            moved.append(exercise.name)
    return new, moved


def _text_of(name: str, notebook: dict[str, Any]) -> list[str]:
    """The longest that stands in the cells of a label."""
    found = [
        list(cell["source"])
        for cell in notebook["cells"]
        if _label(cell).get("grade_id") == name
    ]
    return max(found, key=lambda lines: len("".join(lines)), default=[])


def _is_code(text: str, starter: str) -> bool:
    """Whether there is more than comments in it, and not the starter."""
    try:
        given = ast.unparse(ast.parse(starter))
        return ast.unparse(ast.parse(text)) not in ("", given)
    except (SyntaxError, ValueError):
        return True


def _label(cell: dict[str, Any]) -> dict[str, Any]:
    return dict(cell.get("metadata", {}).get("nbgrader", {}))


def _has(code: str, name: str) -> bool:
    return any(name in block.defines for block in blocks_of([code]))


# E26-classroom.md: A folder of notebooks
@dataclasses.dataclass(frozen=True)
class Classroom:
    """Repair submitted notebooks whose cells were copied, cut or deleted;
    or, once they are graded, count the mistakes.

    repair: each answer goes back into the cell that it was given in, found
    by the name that it defines. What was submitted is kept beside it.
    """

    what: tyro.conf.Positional[Literal["repair", "mistakes"]]
    course: tyro.conf.Positional[Path]  # the folder of `make classroom`

    def act(self) -> None:
        if self.what == "mistakes":
            self.count()
            return
        for path in self.notebooks("submitted"):
            given = self.course / "release" / path.parent.name / path.name
            if not given.is_file():
                raise UsageError(f"{given} is not there: generate it first")
            old = path.read_text("utf-8")
            try:
                moved = self.mend(path, old, given)
            except (ValueError, KeyError, TypeError, AttributeError):
                raise DataError(f"{path} is no notebook") from None
            what = ", ".join(moved) if moved else "nothing to mend"
            print(f"{path.relative_to(self.course)}: {what}")

    def notebooks(self, folder: str) -> list[Path]:
        """Those of all students; UsageError where there is no folder."""
        if not (self.course / folder).is_dir():
            raise UsageError(f"{self.course / folder} is no folder")
        return sorted(self.course.glob(f"{folder}/*/*/*.ipynb"))

    def mend(self, path: Path, old: str, given: Path) -> list[str]:
        """Put one notebook right; what had to be moved."""
        template = json.loads(given.read_text("utf-8"))
        submitted = json.loads(old)
        new, moved = repaired(submitted, template)
        labels = [_label(c).get("grade_id") for c in submitted["cells"]]
        every = [_label(c).get("grade_id") for c in template["cells"]]
        if not moved and all(labels.count(x) == 1 for x in every if x):
            return []
        write_text(path.with_suffix(".as-submitted"), old)
        write_text(path, json.dumps(new, ensure_ascii=False, indent=1))
        return moved or ["graded cells"]

    def count(self) -> None:
        """Print, for each exercise, the outcomes, and how often each known
        mistake was made, the most frequent first.
        """
        outcomes: dict[str, Counter[str]] = {}
        known: dict[str, Counter[str]] = {}
        for path in self.notebooks("autograded"):
            try:
                cells = json.loads(path.read_text("utf-8"))["cells"]
                said = [one for c in cells if (one := verdict_of(c))]
            except (ValueError, KeyError, TypeError, AttributeError):
                raise DataError(f"{path} is no notebook") from None
            for name, outcome, text in said:
                outcomes.setdefault(name, Counter())[outcome] += 1
                known.setdefault(name, Counter()).update(
                    sentence
                    for sentence, _ in exercises()[name].mutants
                    if sentence in text
                )
        for name, counts in outcomes.items():
            told = ", ".join(f"{n} {o}" for o, n in counts.most_common())
            print(f"{name}: {told}")
            for sentence, count in known[name].most_common():
                print(f"  {count:3}  {sentence}")


def verdict_of(cell: dict[str, Any]) -> tuple[str, str, str] | None:
    """Exercise, outcome and text that a graded cell has printed; None of
    any other cell.
    """
    name = str(_label(cell).get("grade_id", "")).removeprefix("grade-")
    if not _label(cell).get("grade") or name not in exercises():
        return None
    text = "".join(
        "".join(out.get("text", "")) for out in cell.get("outputs", [])
    )
    head = text.partition("\n")[0]
    outcome = head.partition(" · ")[0] if " · " in head else "not run"
    return name, outcome, text
