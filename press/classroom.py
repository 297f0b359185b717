"""Write a course for nbgrader: what students get, and what they do not.

classroom/source/NN/NN.ipynb are the assignments. They hold no solution and
no hidden check, so nbgrader has nothing to take out of them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import secrets
from pathlib import Path
from typing import Any

from press import files, myst
from press.chapters import read_book
from press.exercises import Exercise, read_exercises
from press.notebooks import by_page, exercise_notebook, own_words
from press.project import read_project

CONFIG = '''\
"""Settings of this course for nbgrader. Written by `make classroom`."""

import os
from pathlib import Path

from nbformat import from_dict
from nbgrader.preprocessors import (
    CheckCellMetadata,
    Execute,
    LimitOutput,
    NbGraderPreprocessor,
    SaveAutoGrades,
)

from annotated.school.classroom import overruled

here = Path(__file__).resolve().parent
os.environ.pop("ANNOTATED_HIDDEN", None)  # it is not for students' kernels
os.environ.setdefault("OMP_NUM_THREADS", "1")


class Marks(NbGraderPreprocessor):
    """The marks of the answers by themselves, not of the notebook."""

    def preprocess(self, nb, resources):
        return from_dict(overruled(nb, here / "hidden.json")), resources


c = get_config()  # noqa: F821
c.Autograde.autograde_preprocessors = [
    Execute, Marks, LimitOutput, SaveAutoGrades, CheckCellMetadata,
]  # fmt: skip
c.CourseDirectory.root = str(here)
c.CourseDirectory.course_id = "attention-annotated"
c.ClearSolutions.enabled = False  # there are none, and starters stay
c.ClearHiddenTests.enabled = False
c.OverwriteCells.add_missing_cells = True
c.Execute.timeout = 300
c.Execute.interrupt_on_timeout = True
'''
WRITTEN = "written.json"  # the hashes of the files, as they were written
CONTAINED = Path(__file__).with_name("contained.sh")
GRADE = """\
from annotated.school.classroom import grade

grade(lambda: {defines}, "{name}", {points:.1f})"""


def classroom(root: Path, out: Path, seed: str = "") -> list[str]:
    """Write the course; what has been written. seed is the teacher's, from
    which the hidden checks are drawn; without one it is that of the course
    that is there, or a new one. What a teacher has changed in a file, and
    any other settings or hidden checks, are kept in the folder `kept`.
    """
    exercises = read_exercises(root)
    project = read_project(root)
    index = myst.index(read_book(root), root, project)
    expected = {
        out / "nbgrader_config.py": CONFIG,
        out / "contained": CONTAINED.read_text(encoding="utf-8"),
        out / "hidden.json": _json(
            {
                "seed": seed or _seed_of(out) or secrets.token_hex(8),
                "checks": {e.name: e.cells["hidden"] for e in exercises},
            }
        ),
    }
    for group in by_page(exercises):
        page = group[0].chapter
        student = json.loads(exercise_notebook(group, project, index))
        solved = exercise_notebook(group, project, index, solved=True)
        expected[out / "source" / page / f"{page}.ipynb"] = _json(
            assignment(student, group)
        )
        expected[out / "solutions" / f"{page}.ipynb"] = solved
    told, last = [], _hashes_of(out)
    for path, text in expected.items():
        name = path.relative_to(out).as_posix()
        before = path.read_bytes() if path.is_file() else text.encode()
        unchanged = path.parent != out and last.get(name) == _hash(before)
        if before != text.encode() and not unchanged:
            old = _kept(out / "kept" / name, before)
            told.append(f"kept what {path} was as {old.relative_to(out)}")
        files.replace(path, text)
        last[name] = _hash(text.encode())
    files.replace(out / WRITTEN, _json(last))
    return [*(f"wrote {path}" for path in expected), *told]


def _kept(path: Path, data: bytes) -> Path:
    """Put data there, or beside it where something else is kept."""
    for n in itertools.count(1):
        place = path if n == 1 else path.with_name(f"{n}-{path.name}")
        if not place.exists() or place.read_bytes() == data:
            break
    files.replace(place, data)
    return place


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _hashes_of(out: Path) -> dict[str, str]:
    """What was written last, by the names of the files; or nothing."""
    try:
        return dict(json.loads((out / WRITTEN).read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def _seed_of(out: Path) -> str:
    """The seed of a course that has been written before; or ""."""
    try:
        text = (out / "hidden.json").read_text("utf-8")
        return str(json.loads(text)["seed"])
    except (OSError, ValueError, KeyError):
        return ""


def assignment(
    notebook: dict[str, Any], exercises: list[Exercise]
) -> dict[str, Any]:
    """A student's notebook, with nbgrader's labels and graded cells."""
    starters = {e.one("starter"): e for e in exercises}
    asked = {own_words(e): e for e in exercises if e.rubric}
    cells: list[dict[str, Any]] = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        exercise = starters.get(source)
        if cell["cell_type"] == "code" and exercise is not None:
            _label(cell, exercise.name, solution=True)
            last = exercise
        if source in asked:  # marked by a person
            _label(
                cell,
                f"words-{asked[source].name}",
                grade=True,
                solution=True,
                points=len(asked[source].rubric),
            )
        cells.append(cell)
        if source.startswith("check(") and cell["cell_type"] == "code":
            text = GRADE.format(name=last.name, **last.facts)
            graded: dict[str, Any] = {
                "cell_type": "code",
                "execution_count": None,
                "id": f"{cell['id'][:12]}-g",
                "metadata": {},
                "outputs": [],
                "source": text.splitlines(keepends=True),
            }
            _label(
                graded,
                f"grade-{last.name}",
                grade=True,
                locked=True,
                points=last.facts["points"],
            )
            cells.append(graded)
    return notebook | {"cells": cells}


def _label(cell: dict[str, Any], name: str, **facts: Any) -> None:
    """How nbgrader knows a cell."""
    plain = {
        "schema_version": 3,
        "grade_id": name,
        "grade": False,
        "solution": False,
        "locked": False,
        "task": False,
    }
    cell["metadata"]["nbgrader"] = plain | facts


def _json(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, indent=1) + "\n"
