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

import pytest

from annotated.cli import main
from annotated.engine import classroom as room
from annotated.engine.answers import answer_in
from annotated.engine.checks import exercises
from annotated.engine.classroom import HIDDEN, grade, repaired
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
    monkeypatch.setattr(room, "LIMIT", 0.2)
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
    monkeypatch.setenv(HIDDEN, str(file))
    assert grade(lambda: answer(CAUSAL.reference), "03-causal", 4.0) == 3.0
    assert "Nobody passes" in capsys.readouterr().out


# --- what a student gets


def test_no_assignment_has_a_line_of_a_solution_or_a_hidden_check(course):
    from tests.test_exercises import secrets, texts

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
    (tmp_path / "autograded/eve/03/03.ipynb").write_text("[]")
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code != 0
    assert "eve/03/03.ipynb is no notebook" in capsys.readouterr().err


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
