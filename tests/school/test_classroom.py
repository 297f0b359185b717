"""Exercises in a classroom: points, and nbgrader itself (E26)."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch

from annotated.cli import main
from annotated.school import classroom as room
from annotated.school.checks import Exam
from annotated.school.classroom import _HIDDEN, grade, overruled
from annotated.school.exercises import exercises
from tests.helpers import environment
from tests.school.notebooks import (
    CAUSAL,
    GOOD,
    PADDING,
    PARTLY,
    SOURCES,
    TRIED,
    answer,
    cell_of,
    damaged,
    notebook_of,
    solved,
)

FINITE = exercises()["03-fix-finite"]


def test_points_are_for_the_checks_that_pass(capsys):
    assert grade(lambda: answer(CAUSAL.reference), "03-causal", 2.0) == 2.0
    assert capsys.readouterr().out.startswith("passed · 03-causal")
    assert grade(lambda: answer(PARTLY), "03-causal", 3.0) == 2.0
    said = capsys.readouterr().out
    assert "device is ignored" in said
    assert "2 of 3 checks pass." in said
    assert grade(lambda: answer(CAUSAL.starter), "03-causal", 2.0) == 0.0
    assert "not attempted" in capsys.readouterr().out


def test_what_was_given_earns_nothing(capsys):
    """Broken code passes some of the checks as it stands."""

    def points(code):
        return grade(lambda: answer(code, FINITE), FINITE.name, 3.0)

    assert points(FINITE.starter) == 0.0
    assert 0 < points(FINITE.mutants[0][1]) < 3
    assert points(FINITE.reference) == 3.0


def test_of_several_predictions_each_has_its_points(capsys):
    answers = {"short": ..., "half": 0.368, "long": 1, "corpus": 0.5}
    assert grade(lambda: answers, "18-predict-brevity", 4.0) == 2.0
    assert "2 of 4 checks pass." in capsys.readouterr().out
    answers = dict.fromkeys(answers, ...)
    assert grade(lambda: answers, "18-predict-brevity", 4.0) == 0.0
    assert "not attempted" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("def causal_mask(n, device=None):\n    return n / 0", "crashed"),
        ("def causal_mask(n, device=None):\n    exit()", "SystemExit"),
        ("def causal_mask(n, device=None):\n    while 1: pass", "too slow"),
        (
            "def causal_mask(n, device=None):\n    raise KeyboardInterrupt",
            "stopped · 03-causal: KeyboardInterrupt",
        ),
        ("causal_mask = None", "not attempted"),
    ],
)
def test_whatever_happens_a_number_comes_back(
    code, words, capsys, monkeypatch
):
    monkeypatch.setattr(room, "_exam", lambda *given: Exam(limit=0.2))
    assert grade(lambda: answer(code), "03-causal", 2.0) == 0.0
    assert words in capsys.readouterr().out


def test_a_cell_that_is_not_there_is_not_attempted(capsys):
    def gone():
        return eval("causal_mask", {})  # as a cell would, that did not run

    assert grade(gone, "03-causal", 2.0) == 0.0
    assert "nothing is called causal_mask" in capsys.readouterr().out


def test_a_warning_costs_nothing(capfd):
    """nbgrader gives no points where one line is on standard error."""

    def warned():
        warnings.warn("soon to be removed", stacklevel=1)
        print("careful", file=sys.stderr)
        os.write(2, b"from below\n")
        return answer(CAUSAL.reference)

    assert grade(warned, "03-causal", 2.0) == 2.0
    assert capfd.readouterr().err == ""
    print("heard again", file=sys.stderr)
    assert capfd.readouterr().err == "heard again\n"


def test_hidden_checks_count_where_the_teacher_has_them(
    tmp_path, monkeypatch, capsys
):
    check = "def check_never(f):\n    'Nobody passes.'\n    assert False"
    file = tmp_path / "hidden.json"
    kept = {"seed": "s", "checks": {"03-causal": [check]}}
    file.write_text(json.dumps(kept))
    monkeypatch.setenv(_HIDDEN, str(file))
    assert (
        grade(lambda: answer(CAUSAL.reference), "03-causal", 4.0) == 2.0
    )  # and one of form
    assert "Nobody passes" in capsys.readouterr().out


def test_the_teachers_file_is_known_where_marks_are_written_and_not_in_kernels(
    course, given, monkeypatch
):
    """The settings that `make classroom` has written."""
    nbgrader = MagicMock(NbGraderPreprocessor=object)
    for name in ("nbgrader", "nbgrader.preprocessors"):
        monkeypatch.setitem(sys.modules, name, nbgrader)
    monkeypatch.setitem(sys.modules, "nbformat", MagicMock())
    monkeypatch.setenv(_HIDDEN, str(course / "hidden.json"))
    settings = course / "nbgrader_config.py"
    space = {"get_config": MagicMock(), "__file__": str(settings)}
    exec(settings.read_text("utf-8"), space)
    assert _HIDDEN not in os.environ  # which kernels inherit
    seeds = []

    def mark_of(exercise, cells, until, tried, hidden):
        seeds.extend(room._exam(exercise.name, hidden).seeds)
        return room._nothing(exercise)

    monkeypatch.setattr(room, "_mark_of", mark_of)
    work = notebook_of(graded_cell("03-causal"))
    space["Marks"]().preprocess(work, {})
    assert len(seeds) == 5
    assert _HIDDEN not in os.environ


# --- what a student gets


def test_no_assignment_has_a_line_of_a_solution_or_a_hidden_check(course):
    from tests.school.test_exercises import secrets, texts

    lines = {
        line.strip()
        for path in course.glob("source/*/*.ipynb")
        for text in texts(json.loads(path.read_text("utf-8")))
        for line in text.splitlines()
    }
    assert len(list(course.glob("source/*/*.ipynb"))) > 10
    for source in SOURCES.values():
        assert not lines & set(secrets(source)), source.name
    hidden = json.loads((course / "hidden.json").read_text("utf-8"))
    assert hidden["seed"]
    assert set(hidden["checks"]) == set(SOURCES)


def test_each_exercise_has_one_cell_to_write_and_one_that_is_graded(course):
    labels = [
        cell["metadata"]["nbgrader"]
        for path in course.glob("source/*/*.ipynb")
        for cell in json.loads(path.read_text("utf-8"))["cells"]
        if "nbgrader" in cell["metadata"] and cell["cell_type"] == "code"
    ]
    write = {x["grade_id"] for x in labels if x["solution"]}
    graded = {x["grade_id"]: x["points"] for x in labels if x["grade"]}
    assert write == set(SOURCES)
    assert graded == {
        f"grade-{name}": e.facts["points"] for name, e in SOURCES.items()
    }


# --- marks that a notebook cannot write itself

PATCH = """
import annotated.school.checks as checks
import annotated.school.classroom as room
checks.examine = room.examine = lambda *given, **more: "passed"
room._mark_of = lambda *given, **more: room.Mark(1.0, "passed", "passed · x")
"""
FORGED = {
    "output_type": "execute_result", "execution_count": 1, "metadata": {},
    "data": {"text/plain": "2.0"},
}  # fmt: skip


def forged(given, **codes):
    """A notebook whose graded cells already say that all is well."""
    new = solved(given, **codes)
    for cell in new["cells"]:
        label = cell["metadata"].get("nbgrader", {})
        if label.get("grade") and cell["cell_type"] == "code":
            name = label["grade_id"].removeprefix("grade-")
            said = {
                "output_type": "stream", "name": "stdout",
                "text": f"passed · {name}: all checks here pass.",
            }  # fmt: skip
            cell["outputs"] = [said, FORGED]
    return new


def marks(notebook):
    """Points and text of each exercise, as nbgrader will read them."""
    found = {}
    for cell in notebook["cells"]:
        label = cell["metadata"].get("nbgrader", {})
        if label.get("grade") and cell["cell_type"] == "code":
            said, points = cell["outputs"]
            name = label["grade_id"].removeprefix("grade-")
            value = float(points["data"]["text/plain"])
            found[name] = value, said["text"]
    return found


def test_an_adversary_gets_nothing_beside_three_who_are_honest(given):
    """Patches, imports, a forged output, magics, a deleted cell."""
    every = {n: e for n, e in SOURCES.items() if n[:2] == "03"}
    starters = {
        n.split("-")[-1]: e.one("starter") for n, e in every.items()
    }
    full = {n: e.facts["points"] for n, e in every.items()}
    magic = f"%matplotlib inline\n!pip list\n%%time\n{GOOD}".split("%%time")
    honest = {
        "ann": (solved(given), full),
        "bea": (
            solved(given, causal=f"{magic[0]}\n{GOOD}\n%timeit 1"),
            full,
        ),
        "cem": (
            solved(given, causal=PARTLY),
            full | {"03-causal": pytest.approx(4 / 3, abs=0.01)},
        ),
    }
    for work, wanted in honest.values():
        found = marks(overruled(work))
        assert {n: points for n, (points, _) in found.items()} == wanted
    work = forged(
        given,
        **starters
        | {
            "causal": "from annotated.masks import causal_mask",
            "padding": f"{PATCH}\npadding_mask = 3",
        },
    )
    work["cells"].insert(0, cell_of(PATCH))
    work["cells"] = [
        cell
        for cell in work["cells"]
        if cell["metadata"].get("nbgrader", {}).get("grade_id")
        != "03-fix-finite"
    ]
    found = marks(overruled(work))
    assert set(found) == set(full)
    assert not any(points for points, _ in found.values())
    for _, text in found.values():
        assert "had printed: passed." in text
    assert "the book's own causal_mask" in found["03-causal"][1]
    assert "Not taken along: “checks.examine =" in found["03-padding"][1]
    assert "still stands as it was given" in found["03-fix-polarity"][1]
    assert "nothing is called" in found["03-fix-finite"][1]


def test_patches_in_the_process_that_grades_do_not_reach_the_mark(
    monkeypatch, capsys
):
    """As in a notebook, whose cells have run before its graded cell."""
    monkeypatch.setattr(room, "examine", lambda *given: "passed")
    monkeypatch.setattr(torch, "equal", lambda *given: True)
    wrong = CAUSAL.mutants[0][1]
    assert grade(lambda: answer(wrong), "03-causal", 3.0) < 3.0
    assert "transposed" in capsys.readouterr().out
    assert grade(lambda: answer(GOOD), "03-causal", 3.0) == 3.0


def graded_cell(name, **label):
    cell = cell_of("grade()")
    label = {k: v for k, v in label.items() if v is not None}
    cell["metadata"]["nbgrader"] = {
        "grade_id": f"grade-{name}", "grade": True, **label,
    }  # fmt: skip
    return cell


def test_what_only_the_notebook_knows_is_still_told():
    """An answer that leans on what is not its own passes there alone."""
    said = f"failed · 03-causal\n\n{room._ALONE}\n"

    def told(code):
        cell = graded_cell("03-causal", points=2)
        cell["outputs"] = [{"output_type": "stream", "text": said}]
        work = overruled(notebook_of(cell_of(code), cell))
        return marks(work)["03-causal"][1]

    leaning = "def causal_mask(n, device=None):\n    return theirs(n)"
    assert told(leaning).rstrip().endswith(room._ALONE)
    assert room._ALONE not in told(GOOD)


def test_one_answer_that_cannot_be_marked_costs_no_other(
    given, monkeypatch
):
    ours = room._mark_of

    def mark_of(exercise, *more):
        if exercise is CAUSAL:
            raise RecursionError("too deep")
        return ours(exercise, *more)

    monkeypatch.setattr(room, "_mark_of", mark_of)
    work = notebook_of(
        cell_of(PADDING.reference),
        graded_cell("03-causal", points=2),
        graded_cell("03-padding", points=2),
    )
    found = marks(overruled(work))
    assert found["03-padding"][0] == 2.0
    assert found["03-causal"][0] == 0.0
    assert (
        "stopped · 03-causal: RecursionError: too deep"
        in (found["03-causal"][1])
    )


@pytest.mark.parametrize("points", [None, "2", 100, -1])
def test_points_are_those_that_were_given_not_those_handed_in(points):
    work = notebook_of(
        cell_of(GOOD), graded_cell("03-causal", points=points)
    )
    assert marks(overruled(work))["03-causal"][0] == CAUSAL.points


def test_a_syntax_error_and_an_endless_loop_are_attempts(
    given, monkeypatch
):
    monkeypatch.setattr(room, "_exam", lambda *given: Exam(limit=0.3))
    loop = "def padding_mask(ids, pad_id=0):\n    while True: pass"
    found = marks(overruled(solved(given, causal=TRIED, padding=loop)))
    assert found["03-causal"][1].startswith("crashed · 03-causal: line 1")
    assert found["03-padding"][1].startswith("too slow · 03-padding")


@pytest.mark.slow
def test_a_notebook_that_ipython_runs_has_the_marks_of_its_source():
    """grade() in a kernel, with what a student has patched there."""
    pytest.importorskip("ipykernel")
    import nbformat
    from nbclient import NotebookClient

    imports = "from annotated.school.classroom import grade"
    cells = [
        f"%time K = 1\nimport torch\n{imports}",
        "torch.equal = lambda *given: True",
        GOOD,
        'grade(lambda: causal_mask, "03-causal", 2.0)',
        PADDING.mutants[0][1],
        'grade(lambda: padding_mask, "03-padding", 2.0)',
    ]
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in cells]
    )
    NotebookClient(notebook, timeout=300).execute()
    right, wrong = notebook.cells[3].outputs, notebook.cells[5].outputs
    assert right[-1]["data"]["text/plain"] == "2.0"
    assert "Not taken along: “torch.equal =" in right[0]["text"]
    assert float(wrong[-1]["data"]["text/plain"]) < 1
    assert "True where the padding is" in wrong[0]["text"]


# --- nbgrader


def nbgrader(course, *line):
    env = environment()  # it calls alembic, which is installed beside it
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    return subprocess.run(
        [sys.executable, "-m", "nbgrader", *line],
        cwd=course, env=env, capture_output=True, text=True,
    )  # fmt: skip


LOOP = "def causal_mask(n, device=None):\n    while True: pass"
NOISY = """
import sys, warnings
import torch
warnings.warn("in the cell")
def causal_mask(length, device=None):
    warnings.warn("in the function")
    print("loud", file=sys.stderr)
    return torch.ones(length, length, device=device).tril().bool()
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not importlib.util.find_spec("nbgrader"), reason="needs nbgrader"
)
def test_nbgrader_hands_out_marks_and_gives_back(course, monkeypatch):
    """Of page 03: two to write of 2 points, one to mend of 3, one of 2."""
    done = nbgrader(course, "generate_assignment", "03", "--create")
    assert done.returncode == 0, done.stderr
    given = json.loads((course / "release/03/03.ipynb").read_text("utf-8"))
    every = sum(
        SOURCES[n].facts["points"] for n in SOURCES if n[:2] == "03"
    )
    starters = {
        n.split("-")[-1]: e.one("starter") for n, e in SOURCES.items()
    }
    of = exercises()["03-causal"]
    partly = 2 * (len(of.properties()) - 1) / len(of.properties())
    cases = {
        "right": (solved(given), every),
        "partly": (solved(given, causal=PARTLY), every - 2 + partly),
        "wrong": (
            solved(given, causal="def causal_mask(n, d=0): 1"),
            every - 2,
        ),
        "endless": (solved(given, causal=LOOP), every - 2),
        "raises": (solved(given, causal="1 / 0"), every - 2),
        "warns": (solved(given, causal=NOISY), every),
        "empty": (solved(given, **starters), 0),
        "copied": (damaged(given, CAUSAL.reference, "copied"), every),
        "deleted": (damaged(given, "", "deleted"), every - 2),
    }
    for name, (notebook, _) in cases.items():
        folder = course / "submitted" / name / "03"
        folder.mkdir(parents=True)
        (folder / "03.ipynb").write_text(json.dumps(notebook))
    monkeypatch.setattr(
        sys, "argv", ["annotated", "classroom", "repair", str(course)]
    )
    main()
    done = nbgrader(course, "autograde", "03", "--create")
    assert done.returncode == 0, done.stderr
    assert nbgrader(course, "generate_feedback", "03").returncode == 0
    assert nbgrader(course, "export").returncode == 0
    with (course / "grades.csv").open() as file:
        found = {
            r["student_id"]: float(r["score"]) for r in csv.DictReader(file)
        }
    assert found == {
        n: pytest.approx(p, abs=0.02) for n, (_, p) in cases.items()
    }
    page = course / "feedback/endless/03/03.html"
    assert "too slow · 03-causal" in page.read_text("utf-8")
