"""Exercises in a classroom: points, repairs, and nbgrader itself (E26)."""

from __future__ import annotations

import copy
import csv
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch

from annotated.cli import main
from annotated.school import classroom as room
from annotated.school.answers import answer_in
from annotated.school.checks import exercises
from annotated.school.classroom import (
    _HIDDEN,
    grade,
    overruled,
    repaired,
)
from annotated.school.examiner import Exam
from press.classroom import classroom
from press.exercises import read_exercises
from tests.helpers import ROOT, environment

PADDING, CAUSAL = exercises()["03-padding"], exercises()["03-causal"]
FINITE = exercises()["03-fix-finite"]
SOURCES = {e.name: e for e in read_exercises(ROOT)}


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """What `make classroom` writes."""
    pytest.importorskip("pybtex", reason="the press is not installed")
    folder = tmp_path_factory.mktemp("course") / "classroom"
    classroom(ROOT, folder)
    return folder


@pytest.fixture
def given(course):
    return json.loads((course / "source/03/03.ipynb").read_text("utf-8"))


def answer(code, exercise=CAUSAL):
    return exercise.answer(code, f"<student {id(code)}>")


def solved(notebook, **codes):
    """A student's notebook: code by the last part of an exercise's name."""
    new = copy.deepcopy(notebook)
    for cell in new["cells"]:
        label = cell["metadata"].get("nbgrader", {})
        if label.get("solution") and cell["cell_type"] == "code":
            name = label["grade_id"]
            code = codes.get(
                name.split("-")[-1], SOURCES[name].one("reference")
            )
            cell["source"] = code.splitlines(keepends=True)
    return new


# --- a graded cell

PARTLY = """
import torch
def causal_mask(length, device=None):
    return torch.ones(length, length, dtype=torch.bool).tril()
"""


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


# --- repairs

HELPED = """
import torch
ONE = 1
def helper(length):
    return torch.arange(length) + ONE
def causal_mask(length, device=None):
    p = helper(length)
    return p[:, None] >= p
"""


def sources_of(notebook):
    return {
        cell["metadata"]["nbgrader"]["grade_id"]: "".join(cell["source"])
        for cell in notebook["cells"]
        if cell["metadata"].get("nbgrader", {}).get("solution")
    }


def test_a_notebook_in_order_stays_as_it_is(given):
    work = solved(given, causal=HELPED)
    new, moved = repaired(work, given)
    assert not moved
    assert sources_of(new) == sources_of(work)


def damaged(given, code, how):
    """A student's notebook whose cell was split, pasted elsewhere, …"""
    work = solved(given)
    place = next(
        i
        for i, c in enumerate(work["cells"])
        if c["metadata"].get("nbgrader", {}).get("grade_id") == "03-causal"
    )
    cell = work["cells"].pop(place)
    plain = {"cell_type": "code", "metadata": {}, "outputs": []}
    lines = code.strip("\n").splitlines(keepends=True)
    if how == "deleted":
        return work
    if how == "elsewhere":
        work["cells"].append({**plain, "source": lines})
    if how == "split":
        parts = [lines[:5], lines[5:]]  # inside of a function
        work["cells"][place:place] = [
            {**plain, "source": part} for part in parts
        ]
    if how == "copied":
        work["cells"][place:place] = [
            {**cell, "source": CAUSAL.starter.splitlines(keepends=True)},
            {**cell, "source": lines},
            {**cell, "source": CAUSAL.starter.splitlines(keepends=True)},
        ]
    return work


@pytest.mark.parametrize("how", ["elsewhere", "split", "copied"])
def test_an_answer_is_put_back_by_its_name(given, how):
    new, moved = repaired(damaged(given, HELPED, how), given)
    assert moved == ["03-causal"]
    code = sources_of(new)["03-causal"]
    assert "def helper" in code
    assert "ONE = 1" in code
    assert grade(lambda: answer(code), "03-causal", 2.0) > 1
    assert sources_of(new)["03-padding"] == SOURCES["03-padding"].one(
        "reference"
    )


def test_what_is_used_stands_before_what_uses_it(given):
    """The last import of torch is that of a later cell."""
    new, _ = repaired(damaged(given, CAUSAL.reference, "copied"), given)
    code = sources_of(new)["03-causal"]
    assert grade(lambda: answer(code), "03-causal", 2.0) == 2.0


def test_what_was_deleted_stays_as_it_was_given(given):
    new, moved = repaired(damaged(given, HELPED, "deleted"), given)
    assert moved == ["03-causal"]
    assert "raise NotImplementedError" in sources_of(new)["03-causal"]


TRIED = "def causal_mask(length\n    return length"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (TRIED, True),
        ("mask = causal(5)", True),
        ("", False),
        ("# I do not know\n", False),
        (f"{CAUSAL.starter}\n# what now?\n", True),
    ],
)
def test_what_was_tried_stays_though_it_defines_nothing(given, text, kept):
    """It is wrong then, and not as if nobody had been there."""
    work = solved(given, causal=text)
    new, moved = repaired(work, given)
    own = sources_of(new)["03-causal"]
    assert own == (text if kept else CAUSAL.starter)
    assert moved == ([] if kept else ["03-causal"])
    assert sources_of(new)["03-padding"] == sources_of(work)["03-padding"]


def test_of_copies_the_last_that_was_tried_stays(given):
    work = damaged(given, TRIED, "copied")
    new, moved = repaired(work, given)
    assert sources_of(new)["03-causal"] == TRIED
    assert moved == ["03-causal"]


def graded_by(given, text):
    """A notebook as nbgrader leaves it, 03-causal having printed text."""
    new = copy.deepcopy(given)
    for cell in new["cells"]:
        label = cell["metadata"].get("nbgrader", {})
        if label.get("grade_id") == "grade-03-causal" and text:
            stream = {"output_type": "stream", "name": "stdout"}
            cell["outputs"] = [{**stream, "text": [text]}]
    return new


def test_the_mistakes_of_a_class_are_counted(
    given, tmp_path, monkeypatch, capsys
):
    sentences = [text for text, _ in CAUSAL.mutants]
    said = {
        "ada": "passed · 03-causal: all 3 checks here pass.",
        "bob": f"wrong · 03-causal, check 1 of 3\n{sentences[0]}\n",
        "cem": f"wrong · 03-causal, check 1 of 3\n{sentences[1]}\n",
        "dan": f"wrong · 03-causal, check 1 of 3\n{sentences[1]}\n",
        "eve": "",
    }
    for name, text in said.items():
        folder = tmp_path / "autograded" / name / "03"
        folder.mkdir(parents=True)
        notebook = json.dumps(graded_by(given, text))
        (folder / "03.ipynb").write_text(notebook)
    line = ["annotated", "classroom", "mistakes", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", line)
    main()
    out = capsys.readouterr().out
    assert "03-causal: 3 wrong, 1 passed, 1 not run\n" in out
    assert "03-padding: 5 not run\n" in out
    assert out.index(f"    2  {sentences[1]}\n") < out.index(
        f"    1  {sentences[0]}\n"
    )
    (tmp_path / "autograded/ada/03/03.ipynb").write_text("[]")
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    out, error = capsys.readouterr()
    assert "ada/03/03.ipynb is not a notebook: it is a list" in error
    assert "03-causal: 3 wrong, 1 not run\n" in out  # all who come after


def test_cells_that_do_not_parse_cost_no_other_answer():
    sources = [
        "x = (",
        "def f():\n    return g()",
        "def g():\n  return 1",
        "?",
    ]
    starter = "def f():\n    raise NotImplementedError"
    code = answer_in(sources, "f", starter).text
    assert "return g()" in code
    assert "return 1" in code


def test_a_folder_is_repaired_and_what_was_submitted_is_kept(
    course, given, tmp_path, monkeypatch, capsys
):
    for place, notebook in (
        ("release/03", given),
        ("submitted/ada/03", damaged(given, HELPED, "split")),
        ("submitted/bob/03", solved(given)),
    ):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "03.ipynb").write_text(json.dumps(notebook))
    line = ["annotated", "classroom", "repair", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", line)
    main()
    said = capsys.readouterr().out
    assert "submitted/ada/03/03.ipynb: 03-causal" in said
    assert "submitted/bob/03/03.ipynb: nothing to mend" in said
    kept = sorted(p.parent.parent.name for p in tmp_path.rglob("*.as-sub*"))
    assert kept == ["ada"]
    monkeypatch.setattr(
        sys, "argv", [*line[:-1], str(tmp_path / "release")]
    )
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2


def cell_of(text, label=None, kind="code"):
    """A cell, with the label of a cell to write in."""
    metadata = {}
    if label:
        metadata["nbgrader"] = {
            "grade_id": label, "solution": True, "grade": False,
            "locked": False, "schema_version": 3,
        }  # fmt: skip
    return {"cell_type": kind, "metadata": metadata, "source": [text]}


def notebook_of(*cells):
    cells = [dict(c, id=f"c{n}") for n, c in enumerate(cells)]
    return {
        "cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5,
    }  # fmt: skip


GOOD = CAUSAL.reference
RELEASED = notebook_of(
    cell_of(PADDING.starter, "03-padding"),
    cell_of(CAUSAL.starter, "03-causal"),
)
MOVED = notebook_of(cell_of(GOOD))  # whose graded cells are gone
BOB = "submitted/bob/03/03.ipynb: 03-padding, 03-causal"
UPLOADS = {  # what is submitted, and what is said of it
    "a mark": (b"\xef\xbb\xbf" + json.dumps(MOVED).encode(), "03-causal"),
    "a mark, in order": (
        b"\xef\xbb\xbf" + json.dumps(RELEASED).encode(),
        "written as UTF-8",
    ),
    "not UTF-8": (
        json.dumps(
            notebook_of(cell_of(f"# L\u00f6sung\n{GOOD}")),
            ensure_ascii=False,
        ).encode("cp1252", "replace"),
        "NOT READ",
    ),
    "cut off": (json.dumps(MOVED).encode()[:50], "NOT READ"),
    "empty": (b"", "NOT READ"),
    "a list": (b"[]", "not a notebook: it is a list"),
    "no cells": (b"{}", "it has no cells"),
    "cells that are none": (b'{"cells": [1]}', "cell 1 is not a cell"),
    "format 3": (b'{"worksheets": [], "nbformat": 3}', "format 3"),
    "deep": (b"[" * 10**5, "NOT READ"),
    "a form feed": (
        json.dumps(notebook_of(cell_of(f"x = 1\n\x0c\n{GOOD}"))).encode(),
        "03-causal",
    ),
    "U+2028": (
        json.dumps(
            notebook_of(cell_of(f"s = 'a\u2028c'\n{GOOD}"))
        ).encode(),
        "03-causal",
    ),
    "no text": (
        json.dumps(notebook_of(cell_of(GOOD) | {"source": None})).encode(),
        "cell 1 is not a cell",
    ),
}


@pytest.fixture
def handed_in(tmp_path, monkeypatch, capsys):
    """Puts notebooks in, repairs them; exit code, output, and error."""

    def repair(**uploads):
        (tmp_path / "release/03").mkdir(parents=True, exist_ok=True)
        release = tmp_path / "release/03/03.ipynb"
        release.write_text(json.dumps(RELEASED))
        for name, raw in uploads.items():
            folder = tmp_path / "submitted" / name / "03"
            folder.mkdir(parents=True, exist_ok=True)
            if not isinstance(raw, bytes):
                raw = json.dumps(raw).encode()
            (folder / "03.ipynb").write_bytes(raw)
        line = ["annotated", "classroom", "repair", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", line)
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code
        return code, *capsys.readouterr()

    return repair


@pytest.mark.parametrize("what", UPLOADS)
def test_each_notebook_has_its_row_and_the_work_goes_on(
    what, handed_in, tmp_path
):
    raw, words = UPLOADS[what]
    code, out, error = handed_in(ann=raw, bob=MOVED)
    assert words in out.split("submitted/bob")[0]
    assert BOB in out
    file = tmp_path / "submitted/ann/03/03.ipynb"
    kept = file.with_suffix(".as-submitted")
    lost = "NOT READ" in out
    assert code == (2 if lost else 0)
    if lost:
        assert file.read_bytes() == raw
        assert str(file) in error and "left as it was" in error
    else:
        assert kept.read_bytes() == raw
        json.loads(file.read_text("utf-8"))


def test_what_is_no_notebook_in_its_place_has_a_row(handed_in, tmp_path):
    (tmp_path / "submitted/ann/03").mkdir(parents=True)
    (tmp_path / "submitted/ann/03/answer.txt").write_text("here")
    (tmp_path / "submitted/cem").mkdir()
    (tmp_path / "submitted/cem/03.ipynb").write_text(json.dumps(MOVED))
    code, out, _ = handed_in(bob=MOVED)
    assert code == 2
    assert out.count("belongs to submitted/NAME/ASSIGNMENT/") == 2
    assert BOB in out


def test_an_answer_below_the_starter_is_not_lost(given):
    """The starter was left as it was, and another graded cell is gone."""
    work = solved(given, causal=CAUSAL.starter)
    work["cells"].append(cell_of(GOOD))
    work["cells"] = [
        cell
        for cell in work["cells"]
        if cell["metadata"].get("nbgrader", {}).get("grade_id")
        != "grade-03-padding"
    ]
    new, moved = repaired(work, given)
    assert moved == ["03-causal"]
    assert "position[:, None] >= position" in sources_of(new)["03-causal"]


@pytest.mark.parametrize(
    "text", [f"%%time\n{GOOD}", f"!pip install x\n{GOOD}", f"{GOOD}\nx = ("]
)
def test_a_cell_without_its_label_keeps_what_is_in_it(text, handed_in):
    """Whether it is understood or not."""
    pytest.importorskip("IPython")
    work = notebook_of(
        cell_of(PADDING.starter, "03-padding"), cell_of(text)
    )
    new, moved = repaired(work, RELEASED)
    assert moved == ["03-causal"]
    assert ">= position[None, :]" in sources_of(new)["03-causal"]
    _, out, _ = handed_in(ann=work)
    assert ("not understood: cell 2: line" in out) == ("x = (" in text)


def test_nothing_that_was_written_is_left_out_of_the_new_notebook():
    notes = [
        cell_of("my notes", kind="markdown"),
        cell_of("plot = 1"),
        cell_of("%%bash\nls"),
        cell_of("x = (", kind="raw"),
    ]
    work = notebook_of(*notes, cell_of(GOOD))
    new, _ = repaired(work, RELEASED)
    texts = ["".join(cell["source"]) for cell in new["cells"]]
    for note in notes:
        assert note["source"][0] in texts
    assert len({cell["id"] for cell in new["cells"]}) == len(texts)
    again, moved = repaired(new, RELEASED)
    assert not moved
    assert sources_of(again) == sources_of(new)


def test_what_was_submitted_first_and_later_is_both_kept(
    handed_in, tmp_path
):
    folder = tmp_path / "submitted/ann/03"
    handed_in(ann=MOVED)
    first = (folder / "03.as-submitted").read_bytes()
    later = notebook_of(cell_of(f"# again\n{GOOD}"))
    handed_in(ann=later)
    assert (folder / "03.as-submitted").read_bytes() == first
    kept = (folder / "03.as-submitted-2").read_bytes()
    assert json.loads(kept) == later
    assert "nothing to mend" in handed_in()[1]


def test_a_cell_whose_type_was_changed_still_has_the_answer():
    work = copy.deepcopy(RELEASED)
    work["cells"][1] = cell_of(GOOD, "03-causal", kind="raw")
    new, _ = repaired(work, RELEASED)
    assert sources_of(new)["03-causal"] == GOOD


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


# --- strangers' code

CONTAINED = ROOT / "press/contained.sh"
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin:/bin")
ATTACKS = {
    "loop": ("while True: pass", ""),
    "fork": (
        "import os, time\n"
        "for n in range(1000):\n"
        "    try:\n"
        "        if os.fork() == 0: time.sleep(99); os._exit(0)\n"
        "    except OSError: print('stopped'); break\n"
        "else: print('a thousand')",
        "stopped",
    ),
    "memory": (  # which is asked for, and not touched
        "import mmap\n"
        "x = []\n"
        "try:\n"
        "    for n in range(99): x.append(mmap.mmap(-1, 2**30))\n"
        "except OSError: print('stopped', 8 <= len(x) < 10)",
        "stopped True",
    ),
    "delete": (
        "import os\n"
        "try: os.remove('../precious')\n"
        "except OSError as error: print(error.strerror)",
        "Read-only file system",
    ),
    "network": (
        "import socket\n"
        "own = socket.create_server(('127.0.0.1', 0))\n"
        "socket.create_connection(own.getsockname(), 5)\n"
        "try: socket.create_connection(('192.0.2.1', 80), 5)\n"
        "except OSError as error: print(error.strerror)",
        "Network is unreachable",
    ),
}


@pytest.fixture(scope="module")
def prison():
    """A course that anybody may write, and a file beside it."""
    probe = ["unshare", "--user", "--map-root-user", "--net", "--mount"]
    drop = NOBODY if hasattr(os, "getuid") and os.getuid() == 0 else []
    try:
        done = subprocess.run([*drop, *probe, "true"], capture_output=True)
    except OSError:
        done = None
    if done is None or done.returncode or PYTHON is None:
        pytest.skip("this system has no namespaces for users")
    with tempfile.TemporaryDirectory() as name:
        top, course = Path(name), Path(name) / "classroom"
        course.mkdir()
        shutil.copy(CONTAINED, course / "contained")
        (top / "precious").write_text("kept")
        for path, mode in (
            (top, 0o777), (course, 0o777), (top / "precious", 0o666),
        ):  # fmt: skip
            path.chmod(mode)

        def run(code, **env):
            return subprocess.run(
                [*drop, "sh", "contained", PYTHON, "-c", code],
                cwd=course, env=os.environ | env, timeout=120,
                capture_output=True, text=True,
            )  # fmt: skip

        yield run, top


@pytest.mark.parametrize("attack", ATTACKS)
def test_strangers_code_can_do_little_harm(attack, prison):
    run, top = prison
    code, words = ATTACKS[attack]
    done = run(code, SECONDS_OF_CPU="1")
    if attack == "loop":  # its processor time is over
        assert done.returncode != 0
    else:
        assert done.stdout.strip() == words, done.stderr
        assert done.returncode == 0
    assert (top / "precious").read_text() == "kept"
    assert "can be written" not in done.stderr


def test_a_course_can_be_written_from_inside(prison):
    run, top = prison
    done = run("open('grades', 'w').write('1'); print('done')")
    assert done.stdout == "done\n", done.stderr
    assert (top / "classroom/grades").read_text() == "1"


def test_a_course_has_the_command_for_strangers_code(course):
    assert (course / "contained").read_text() == CONTAINED.read_text()


# --- what is written in words


def test_what_is_asked_for_in_words_is_marked_by_a_person(course):
    path = course / "source/24/24.ipynb"
    given = json.loads(path.read_text("utf-8"))
    (cell,) = (
        cell
        for cell in given["cells"]
        if cell["metadata"].get("nbgrader", {}).get("grade_id", "")[:5]
        == "words"
    )
    label = cell["metadata"]["nbgrader"]
    rubric = SOURCES["24-investigate-rules"].rubric
    assert cell["cell_type"] == "markdown"
    assert label["grade"] and label["solution"]
    assert label["points"] == len(rubric) == 3
    assert not any(line in json.dumps(given) for line in rubric)
    work = copy.deepcopy(given)
    for one in work["cells"]:
        if one["metadata"].get("nbgrader") == label:
            one["source"] = ["I have scored a tree."]
            one["metadata"]["nbgrader"] = dict(label)
    new, _ = repaired(work, given)
    assert ["I have scored a tree."] in [c["source"] for c in new["cells"]]


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
