"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal

import tyro

from annotated.corpora.reading import json_of
from annotated.engine.errors import DataError, UsageError
from annotated.engine.files import replacing, write_text
from annotated.school.answers import answer_in, statements_of
from annotated.school.checks import (
    LIMIT,
    SEEDS,
    Exercise,
    TooSlow,
    examine,
    exercises,
)
from annotated.school.course import source_of
from annotated.school.examiner import Examiner, Mark, marked

__all__ = [
    "HIDDEN", "examiner", "grade", "mark_here", "cells_run", "mark_of",
    "nothing", "written", "secret", "silent_errors", "overruled",
    "graded_by", "label_of", "text_of", "lines_of", "repaired", "Classroom",
    "keep_beside", "not_understood", "notebook_at", "DIFFERS", "Graded",
    "verdict_of",
]  # fmt: skip


# E26-classroom.md: A graded cell
HIDDEN = "ANNOTATED_HIDDEN"  # names the teacher's file: a seed, and checks
examiner = cache(Examiner)  # one for this process


def grade(answer: Callable[[], Any], name: str, points: float) -> float:
    """Print the verdict on the answer to the exercise of this name; return
    its points. What is marked is its source, in this notebook's cells or
    else in the file of what answer() returns. Nothing is raised, and
    standard error stays empty: nbgrader would take either for a mistake.
    """
    exercise = exercises()[name]
    with silent_errors():
        try:
            mark = mark_here(exercise, answer)
        except (Exception, KeyboardInterrupt, SystemExit, TooSlow) as error:
            text = f"stopped · {name}: {type(error).__name__}"
            mark = Mark(0.0, "stopped", text)
    print(mark.text)
    return round(points * mark.share, 2)


def mark_here(exercise: Exercise, answer: Callable[[], Any]) -> Mark:
    """The mark of what this process has run."""
    cells = cells_run()
    if cells:
        mark = mark_of(exercise, cells)
        if mark.share or not _passes(exercise, answer):
            return mark
        more = (
            "In this notebook it passes. It is marked by itself, with what "
            "it needs of other cells: what else does it need?"
        )
        return dataclasses.replace(mark, text=f"{mark.text}\n\n{more}")
    try:
        thing = answer()
    except NameError:
        return nothing(exercise)
    if source := source_of(thing):
        return mark_of(exercise, [source])
    return marked(exercise, thing, *secret(exercise.name))  # typed


def _passes(exercise: Exercise, answer: Callable[[], Any]) -> bool:
    try:
        return examine(exercise, answer()).outcome == "passed"
    except NameError:
        return False


def cells_run() -> list[str]:
    """What the cells of this notebook were when they ran; [] elsewhere."""
    if "IPython" not in sys.modules:
        return []
    from IPython import get_ipython

    shell = get_ipython()
    if shell is None or shell.history_manager is None:
        return []
    return list(shell.history_manager.input_hist_raw)[1:]


def mark_of(
    exercise: Exercise,
    cells: Sequence[str],
    until: int | None = None,
    tried: str = "",
    hidden: Path | None = None,
) -> Mark:
    """The mark of the answer that stands in cells, those before until
    first. tried is what stands where the answer should be.
    """
    found = answer_in(cells, exercise.defines, exercise.starter, until)
    if found.cells and not found.given:
        checks, limit, seeds = secret(exercise.name, hidden)
        mark = examiner().mark(
            exercise.name, found.cells, checks, limit, seeds
        )
        if found.left:
            more = f"Not taken along: {found.left}."
            mark = dataclasses.replace(mark, text=f"{mark.text}\n\n{more}")
        return mark
    if written(tried, exercise.starter):
        text = (
            f"wrong · {exercise.name}: nothing is called "
            f"{exercise.defines} in the cell where it should be."
        )
        return Mark(0.0, "wrong", text)
    return nothing(exercise, bool(found.cells))


def nothing(exercise: Exercise, given: bool = False) -> Mark:
    """The mark of an answer that is not there, or as it was given."""
    name, defines = exercise.name, exercise.defines
    what = f"nothing is called {defines}; did its cell run?"
    if given:
        what = f"{defines} still stands as it was given."
    text = f"not attempted · {name}: {what}"
    return Mark(0.0, "not attempted", text)


def written(text: str, starter: str) -> bool:
    """Whether there is more than comments in it, and not the starter."""
    (mine, unknown), (given, _) = (
        statements_of([text]),
        statements_of([starter]),
    )
    old = {one.text for one in given}
    return bool(unknown) or any(one.text not in old for one in mine)


def secret(
    name: str, hidden: Path | None = None
) -> tuple[list[str], float, list[int]]:
    """What only the teacher has for an exercise: checks, and two more
    seeds for all of them; with the limit of time between.
    """
    path = hidden or os.environ.get(HIDDEN, "")
    if not path:
        return [], LIMIT, list(SEEDS)
    kept = json_of(Path(path))
    words = [f"{kept['seed']} {name} {n}".encode() for n in range(2)]
    seeds = [int(hashlib.sha256(x).hexdigest()[:14], 16) for x in words]
    return list(kept["checks"].get(name, [])), LIMIT, [*SEEDS, *seeds]


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


# E26-classroom.md: Marks that a notebook cannot write itself
def overruled(
    notebook: dict[str, Any], hidden: Path | None = None
) -> dict[str, Any]:
    """The notebook, with our mark in each graded cell, whatever stood
    there. hidden is the teacher's file, which kernels do not know.
    """
    new = json.loads(json.dumps(notebook))
    sources = [text_of(c) for c in new["cells"]]
    code = [
        i
        for i, c in enumerate(new["cells"])
        if c["cell_type"] == "code" and not label_of(c).get("grade")
    ]
    for place, cell in enumerate(new["cells"]):
        exercise = graded_by(cell)
        if exercise is None:
            continue
        tried = [
            sources[i]
            for i in code
            if label_of(new["cells"][i]).get("grade_id") == exercise.name
        ]
        until = sum(i < place for i in code)
        own = [sources[i] for i in code]
        try:
            mark = mark_of(exercise, own, until, "\n".join(tried), hidden)
        except Exception as error:  # another answer comes after this
            why = f"stopped · {exercise.name}: {type(error).__name__}"
            mark = Mark(0.0, "stopped", f"{why}: {error}")
        text = mark.text
        said = verdict_of(cell)
        if said and said[1] not in (mark.outcome, "not run"):
            text += f"\n\n{DIFFERS} {said[1]}."
        points = round(exercise.points * mark.share, 2)
        cell["outputs"] = [
            {
                "output_type": "stream",
                "name": "stdout",
                "text": f"{text}\n",
            },
            {
                "output_type": "execute_result",
                "execution_count": cell.get("execution_count"),
                "metadata": {},
                "data": {"text/plain": str(points)},
            },
        ]
    return new


def graded_by(cell: dict[str, Any]) -> Exercise | None:
    """The exercise that a graded cell is for."""
    label = label_of(cell)
    name = str(label.get("grade_id", "")).removeprefix("grade-")
    is_code = cell["cell_type"] == "code" and label.get("grade")
    return exercises().get(name) if is_code else None


def label_of(cell: dict[str, Any]) -> dict[str, Any]:
    """How nbgrader knows a cell."""
    label = cell["metadata"].get("nbgrader", {})
    return label if isinstance(label, dict) else {}


def text_of(cell: dict[str, Any]) -> str:
    """What stands in a cell, whose source is a text or a list of lines."""
    return "".join(cell["source"])


def lines_of(text: str) -> list[str]:
    """As a notebook has them: with their ends, which are \\n alone."""
    *ended, last = text.split("\n")
    return [f"{line}\n" for line in ended] + ([last] if last else [])


# E26-classroom.md: Answers back into their cells
def repaired(
    submitted: dict[str, Any], given: dict[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """The notebook as it was given, with the answers of the submitted one,
    and the names of those that stood elsewhere.
    """
    new, moved = json.loads(json.dumps(given)), []
    own = [c for c in submitted["cells"] if _is_code(c)]
    for cell in new["cells"]:
        label = label_of(cell)
        if not label.get("solution"):
            continue
        exercise = exercises().get(label["grade_id"])
        if cell["cell_type"] == "markdown" or exercise is None:
            said = _longest(label["grade_id"], submitted)  # in words
            cell["source"] = said or cell["source"]
            continue
        code, here = _answer(exercise, own, submitted)
        cell["source"] = lines_of(code)
        if here != [code]:
            moved.append(exercise.name)
    new["cells"] += _others(submitted, given, new)
    return new, moved


def _is_code(cell: dict[str, Any]) -> bool:
    """Whether a student's code may stand in a cell: not in a graded one;
    in one whose type was changed by accident, yes.
    """
    label = label_of(cell)
    if cell["cell_type"] != "code":
        return label.get("grade_id") in exercises()
    return not label.get("grade")


def _answer(
    exercise: Exercise, own: list[dict[str, Any]], notebook: dict[str, Any]
) -> tuple[str, list[str]]:
    """What goes into the cell of an exercise, and what stands there."""
    sources = [text_of(cell) for cell in own]
    labels = [label_of(cell).get("grade_id") for cell in own]
    places = [i for i, name in enumerate(labels) if name == exercise.name]
    here = [sources[i] for i in places]
    graded = [graded_by(cell) for cell in notebook["cells"]]
    until = None
    if exercise in graded:
        before = notebook["cells"][: graded.index(exercise)]
        until = sum(map(_is_code, before))
    found = answer_in(sources, exercise.defines, exercise.starter, until)
    if found.cells and not found.given:
        alone = len(places) == 1 and found.places == set(places)
        return here[0] if alone else found.text, here
    tried = [text for text in here if written(text, exercise.starter)]
    if len(here) == 1 and found.given and found.places == set(places):
        return here[0], here
    return (tried or [exercise.starter])[-1], here


def _longest(name: str, notebook: dict[str, Any]) -> list[str]:
    """The longest that stands in the cells of a label."""
    found = [
        text_of(cell)
        for cell in notebook["cells"]
        if label_of(cell).get("grade_id") == name
    ]
    return lines_of(max(found, key=len, default=""))


def _others(
    submitted: dict[str, Any], given: dict[str, Any], new: dict[str, Any]
) -> list[dict[str, Any]]:
    """The cells of a student that are not in the new notebook, as cells
    without a label.
    """
    known = [text_of(cell).strip() for cell in new["cells"]]
    known += [text_of(cell).strip() for cell in given["cells"]]
    found: list[dict[str, Any]] = []
    for cell in submitted["cells"]:
        text = text_of(cell).strip()
        locked = label_of(cell).get("grade") and not (
            label_of(cell).get("solution")
        )
        if locked or any(text in other for other in known):
            continue
        data = {
            k: v for k, v in cell["metadata"].items() if k != "nbgrader"
        }
        more = {"id": f"own-{len(found)}"} if "id" in cell else {}
        found.append(cell | {"metadata": data} | more)
    return found


# E26-classroom.md: A folder of notebooks
@dataclasses.dataclass(frozen=True)
class Classroom:
    """Repair submitted notebooks whose cells were copied, cut or deleted;
    or, once they are graded, count the mistakes.

    repair: each answer goes back into the cell that it was given in, found
    by the name that it defines. What was submitted is kept beside it.
    Exit code 2: a notebook could not be read; its row says why.
    """

    what: tyro.conf.Positional[Literal["repair", "mistakes"]]
    course: tyro.conf.Positional[Path]  # the folder of `make classroom`

    def act(self) -> None:
        if self.what == "mistakes":
            graded = Graded()
            lost = self.each("autograded", graded.add)
            graded.tell()
        else:
            lost = self.each("submitted", self.mend)
        if lost:
            more = f" (and {len(lost) - 1} more)" if lost[1:] else ""
            raise DataError(f"{lost[0]}{more}: left as it was")

    def each(self, folder: str, work: Callable[[Path], str]) -> list[str]:
        """Do work on every notebook, and print a row for each; why some
        could not be worked on.
        """
        lost = []
        for path in self.notebooks(folder):
            try:
                row = work(path)
            except Exception as error:  # another student comes after this
                row = str(error)
                if not isinstance(error, DataError):
                    row = f"{path}: {type(error).__name__}: {error}"
                lost.append(row)
                row = f"NOT READ: {row}"
            if row:
                print(f"{path.relative_to(self.course)}: {row}")
        return lost

    def notebooks(self, folder: str) -> list[Path]:
        """Those of all students, and what stands in a notebook's place;
        UsageError where there is no folder.
        """
        top = self.course / folder
        if not top.is_dir():
            raise UsageError(f"{top} is no folder")
        found = set(top.glob("*/*/*.ipynb")) | set(top.glob("*/*.ipynb"))
        used = {path.parent for path in found}
        found |= {
            p for p in top.glob("*/*") if p.is_dir() and p not in used
        }
        return sorted(found)

    def mend(self, path: Path) -> str:
        """Put one notebook right; what there is to say about it."""
        if path.parent.parent.name == "submitted" or path.is_dir():
            raise DataError(
                f"{path}: a notebook belongs to submitted/NAME/ASSIGNMENT/"
            )
        given = self.course / "release" / path.parent.name / path.name
        template = notebook_at(given)
        raw = path.read_bytes()
        submitted = notebook_at(path)
        new, moved = repaired(submitted, template)
        labels = [label_of(c).get("grade_id") for c in submitted["cells"]]
        every = [label_of(c).get("grade_id") for c in template["cells"]]
        said = list(moved)
        if not all(labels.count(x) == 1 for x in every if x):
            said.append("graded cells")
        if not _is_json(raw):
            said.append("written as UTF-8")
        if said:
            kept = keep_beside(path, raw)
            write_text(path, json.dumps(new, ensure_ascii=False, indent=1))
            said[-1] += f" (what was submitted is in {kept.name})"
        row = ", ".join(said) or "nothing to mend"
        for cell, reason in not_understood(submitted):
            row += f"\n    not understood: cell {cell}: {reason}"
        return row


def keep_beside(path: Path, raw: bytes) -> Path:
    """Keep what was submitted, beside what may have been kept before."""
    count = 1
    while True:
        kept = path.with_suffix(
            ".as-submitted" if count == 1 else f".as-submitted-{count}"
        )
        if not kept.exists():
            with replacing(kept) as fresh:
                fresh.write_bytes(raw)
        if kept.read_bytes() == raw:
            return kept
        count += 1


def not_understood(notebook: dict[str, Any]) -> list[tuple[int, str]]:
    """Cells, counted from 1, in which something is not understood."""
    places = [i for i, c in enumerate(notebook["cells"], 1) if _is_code(c)]
    sources = [text_of(c) for c in notebook["cells"] if _is_code(c)]
    _, unknown = statements_of(sources)
    return [(places[i], reason) for i, reason in unknown.items()]


def _is_json(raw: bytes) -> bool:
    """Whether nbgrader can read it, too: UTF-8 without a mark."""
    try:
        json.loads(raw.decode("utf-8"))
    except ValueError:
        return False
    return True


def notebook_at(path: Path) -> dict[str, Any]:
    """A notebook of format 4. DataError with the reason where there is
    none.
    """
    data = json_of(path)
    if not isinstance(data, dict):
        kind = type(data).__name__
        raise DataError(f"{path} is no notebook: it is a {kind}")
    if "worksheets" in data:
        raise DataError(
            f"{path} is a notebook of format 3: open it in a Jupyter of "
            "today and save it"
        )
    if not isinstance(data.get("cells"), list):
        raise DataError(f"{path} is no notebook: it has no cells")
    for place, cell in enumerate(data["cells"], 1):
        try:
            fine = isinstance(cell["metadata"], dict)
            fine &= cell["cell_type"] in ("code", "markdown", "raw")
            text_of(cell)
        except (TypeError, KeyError):
            fine = False
        if not fine:
            raise DataError(f"{path} is no notebook: cell {place} is none")
    return data


DIFFERS = "In the notebook it was:"


class Graded:
    """The outcomes of each exercise, and how often each known mistake was
    made.
    """

    def __init__(self) -> None:
        self.outcomes: dict[str, Counter[str]] = {}
        self.known: dict[str, Counter[str]] = {}

    def add(self, path: Path) -> str:
        """Count one notebook."""
        cells = notebook_at(path)["cells"]
        for name, outcome, text in filter(None, map(verdict_of, cells)):
            self.outcomes.setdefault(name, Counter())[outcome] += 1
            known = self.known.setdefault(name, Counter())
            known.update(
                sentence
                for sentence, _ in exercises()[name].mutants
                if sentence in text
            )
            known.update(
                ["the notebook said so itself"] * (DIFFERS in text)
            )
        return ""

    def tell(self) -> None:
        """The most frequent first."""
        for name, counts in self.outcomes.items():
            told = ", ".join(f"{n} {o}" for o, n in counts.most_common())
            print(f"{name}: {told}")
            for sentence, count in self.known[name].most_common():
                print(f"  {count:3}  {sentence}")


def verdict_of(cell: dict[str, Any]) -> tuple[str, str, str] | None:
    """Exercise, outcome and text that a graded cell has printed; None of
    any other cell.
    """
    exercise = graded_by(cell)
    if exercise is None:
        return None
    text = "".join(
        "".join(out.get("text", "")) for out in cell.get("outputs", [])
    )
    head = text.partition("\n")[0]
    outcome = head.partition(" · ")[0] if " · " in head else "not run"
    return exercise.name, outcome, text
