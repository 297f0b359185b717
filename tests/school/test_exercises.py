"""Exercises: what they ask, what their checks catch, what students get."""

import copy
import json
import re
from pathlib import Path

import pytest
import torch

from annotated import checks
from annotated.school.checks import (
    Exam,
    Wrong,
    _difference,
    as_given,
    drawn,
    examine,
    examine_source,
    mistakes,
    ours,
    predicted,
    same,
    same_gradients,
    untouched,
)
from annotated.school.classroom import grade
from annotated.school.course import (
    Workspace,
    _exported,
    redirected,
)
from annotated.school.examiner import examined
from annotated.school.exercises import exercises
from annotated.school.milestones import (
    reach,
)
from press.mutants import try_out
from tests.school.notebooks import ROOT, SOURCES

WEIGHTS = "02-weights"
PARTS = [name for name, e in exercises().items() if e.is_part]
BROKEN = [name for name, e in exercises().items() if e.kind == "fix"]


pytestmark = pytest.mark.usefixtures("folder")


def forget():
    """What mistakes compute is kept for a student, who does one exercise;
    not for hundreds.
    """
    for kept in ours, as_given, mistakes:
        kept.cache_clear()


@pytest.fixture(scope="module", params=SOURCES)
def name(request):
    """One exercise after the other, each with all its tests."""
    yield request.param
    forget()


@pytest.fixture(autouse=True)
def only_its_own_tests_keep_what_it_computes(request):
    yield
    if "name" not in request.fixturenames:
        forget()


@pytest.fixture
def student():
    """Runs code as a notebook would, with the verbs at hand."""

    def run(code, name=WEIGHTS):
        return exercises()[name].answer(code, f"<student {id(code)}>")

    return run


def test_the_checks_catch_each_mistake_by_name_and_pass_what_is_right(name):
    matrix = try_out(SOURCES[name])
    assert not matrix.problems(), matrix.table()


def test_an_error_planted_in_a_solution_is_seen(name):
    """It is the student's code that runs, and not ours."""
    exercise = exercises()[name]
    broken = "raise RuntimeError('planted')"
    code = re.sub(
        r"^( +)return .*$", rf"\1{broken}", exercise.reference, flags=re.M
    )
    if code == exercise.reference:
        code += f"\n\n{broken}\n"
    try:
        compile(code, name, "exec")
    except SyntaxError:  # a return of several lines
        code = f"{exercise.reference}\n\n{broken}\n"
    for verdict in (
        examine_source(exercise, code, "planted.py"),
        examined(exercise, code, "planted.py"),  # as the terminal does
    ):
        assert verdict.outcome == "crashed"
        assert "planted" in verdict.text


def test_a_wrong_solution_is_red_in_each_place(name, capsys, folder):
    """In the notebook, for nbgrader and, of a part, in the milestone."""
    exercise = exercises()[name]
    wrong = exercise.answer(exercise.mutants[0][1], f"<student {name}>")
    checks.check(wrong, name)
    told = capsys.readouterr().out.partition(" · ")[0]
    assert told in ("wrong", "crashed", "too slow")
    assert grade(lambda: wrong, name, 1.0) < 1.0
    assert not capsys.readouterr().out.startswith("passed")
    right = exercise.answer(exercise.reference, f"<student {name} 2>")
    assert grade(lambda: right, name, 1.0) == 1.0
    if exercise.is_part:
        desk = Workspace(folder / "mine")
        desk.keep(exercise, exercise.mutants[0][1])
        said = reach(1, desk)
        assert said.startswith("not reached")
        assert f"the part that fails is {name}, in {folder}" in said


# --- what a student gets


def secrets(source):
    """The lines of a solution that are not given, and hidden checks."""
    told = {  # a line of ours may stand in what another one is given
        line.strip()
        for e in SOURCES.values()
        for text in (
            e.one("statement"),
            e.one("starter"),
            *e.cells["check"],
        )
        for line in text.splitlines()
    }
    codes = [
        source.one("reference"),
        *source.cells["variant"],
        *source.cells["hidden"],
    ]
    return [
        line.strip()
        for code in codes
        for line in code.splitlines()
        if len(line.strip()) > 16
        and line.strip() not in told
        and not line.strip().startswith(("import ", "from ", "def ", '"""'))
    ]


def texts(value):
    """Every string in a JSON file."""
    if isinstance(value, str):
        yield value
    for part in value if isinstance(value, list) else ():
        yield from texts(part)
    for part in value.values() if isinstance(value, dict) else ():
        yield from texts(part)


def test_no_file_of_a_student_has_a_line_of_a_solution():
    paths = sorted((ROOT / "book/notebooks/exercises").glob("*.ipynb"))
    assert paths
    lines = {
        line.strip(): path.name
        for path in [ROOT / "annotated/exercises.json", *paths]
        for text in texts(json.loads(path.read_text("utf-8")))
        for line in text.splitlines()
    }
    for source in SOURCES.values():
        kept = secrets(source)
        assert kept
        assert not {line: lines[line] for line in kept if line in lines}


def test_hidden_checks_are_with_the_teacher_alone():
    (hidden,) = SOURCES[WEIGHTS].cells["hidden"]
    name = re.search(r"def (check_\w+)", hidden)[1]
    exercise = exercises()[WEIGHTS]
    assert name not in exercise.properties()
    assert name in exercise.properties([hidden])
    assert name not in json.dumps(vars(exercise))


# --- outcomes

RIGHT = """
import math
def attention_weights(q, k, mask=None):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    if mask is None:
        return scores.softmax(dim=-1)
    return helper(scores.masked_fill(~mask, -math.inf).softmax(dim=-1), mask)
def helper(weights, mask):
    return weights.masked_fill(~mask, 0.0)
"""
OUTCOMES = {
    "passed": (RIGHT, "all 8 checks here pass"),
    "not attempted": ("attention_weights = None", "still stands as it was"),
    "crashed": (
        "def attention_weights(q, k, mask=None):\n    return q @ k",
        "line 2, in attention_weights: return q @ k",
    ),
    "wrong": (
        "def attention_weights(q, k, mask=None):\n"
        "    scores = q @ k.transpose(-1, -2) / k.size(-1)\n"
        "    if mask is None:\n"
        "        return scores.softmax(-1)\n"
        '    scores = scores.masked_fill(~mask, -float("inf"))'
        ".softmax(-1)\n"
        "    return scores.nan_to_num(0.0)",
        "You divide by d_k itself",
    ),
}


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_each_outcome_is_told_as_what_it_is(outcome, student):
    code, words = OUTCOMES[outcome]
    verdict = examine(exercises()[WEIGHTS], student(code))
    assert verdict.outcome == outcome
    assert words in verdict.text
    assert verdict.text.startswith(outcome)


def test_an_endless_loop_is_ended_even_where_exceptions_are_caught(student):
    f = student(
        "def attention_weights(q, k, mask=None):\n"
        "    while True:\n"
        "        try:\n"
        "            q + 1\n"
        "        except Exception:\n"
        "            pass"
    )
    verdict = examine(exercises()[WEIGHTS], f, Exam(limit=0.3))
    assert verdict.outcome == "too slow"


@pytest.mark.parametrize(
    ("code", "outcome", "words"),
    [
        (
            "",
            "not attempted",
            "f.py is empty",
        ),
        (
            "x = 1",
            "not attempted",
            "nothing in f.py is called attention_weights",
        ),
        ("x = (", "crashed", "line 1 of f.py does not parse"),
        ("import nowhere", "crashed", "an import of f.py fails"),
        ("1 / 0", "crashed", "line 1 of f.py raises ZeroDivisionError"),
        ("raise SystemExit(0)", "crashed", "raises SystemExit"),
        (RIGHT, "passed", "all 8 checks"),
    ],
)
def test_what_does_not_run_is_told_and_never_passes(code, outcome, words):
    verdict = examine_source(exercises()[WEIGHTS], code, "f.py")
    assert verdict.outcome == outcome
    assert words in verdict.text


def test_ctrl_c_goes_through(student):
    f = student(
        "def attention_weights(q, k, mask=None):\n"
        "    raise KeyboardInterrupt"
    )
    with pytest.raises(KeyboardInterrupt):
        examine(exercises()[WEIGHTS], f)


def test_checking_leaves_the_random_numbers_alone(student):
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    examine(exercises()[WEIGHTS], student(RIGHT))
    assert torch.equal(torch.rand(3), wanted)


def test_what_is_set_for_all_of_torch_reaches_no_check(student):
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    try:
        verdict = examine(exercises()[WEIGHTS], student(RIGHT))
        assert torch.get_default_dtype() == torch.float64
        assert not torch.is_grad_enabled()
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_grad_enabled(True)
    assert verdict.outcome == "passed", verdict.text


# --- what is to be mended


@pytest.mark.parametrize("fix", BROKEN)
def test_what_is_broken_is_wrong_as_it_is_given_and_no_part(
    fix, capsys, folder
):
    exercise = exercises()[fix]
    broken = exercise.answer(exercise.starter, f"<starter {fix}>")
    checks.check(broken)
    assert capsys.readouterr().out.startswith(f"wrong · {fix}, check ")
    checks.check(exercise.answer(exercise.reference, f"<mended {fix}>"))
    said = capsys.readouterr().out
    assert said.startswith(f"passed · {fix}: all")
    assert "Kept" not in said
    assert not list(folder.glob("mine/*.py"))


def test_a_symptom_that_is_not_shown_or_stays_is_told(monkeypatch):
    source = copy.deepcopy(SOURCES["11-fix-targets"])
    (statement,) = source.cells["statement"]
    source.cells["statement"] = [statement.replace("loss 0.0", "loss 0.2")]
    problems = try_out(source).symptom
    assert "the statement does not show" in problems[0]
    assert "loss 0.0" in problems[0]
    source.cells["symptom"] = ["print('the same')"]
    assert "the symptom is still there" in try_out(source).symptom[1]


# --- what is to be predicted

SPREAD = {"raw": 8, "scaled": 1, "wide": 16, "loud": 4}


def guessed(**answers):
    """The verdict on right answers, and these in place of some."""
    return examine(exercises()["02-predict-spread"], SPREAD | answers)


@pytest.mark.parametrize(
    ("answers", "outcome", "words"),
    [
        ({}, "passed", "all 4 checks"),
        ({"raw": torch.tensor(8.1)}, "passed", "all 4 checks"),
        ({"raw": 7}, "wrong", "'raw' is too small.\n  yours   7\n"),
        ({"raw": 64}, "wrong", "You forgot the square root."),
        ({"raw": 62.9}, "wrong", "You forgot the square root."),
        ({"raw": 90}, "wrong", "too large, by a factor of ten or more"),
        ({"raw": -8}, "wrong", "'raw' is too small"),
        ({"raw": float("nan")}, "wrong", "'raw' is no finite number"),
        ({"raw": "eight"}, "wrong", "'raw' is a str, not a number"),
        ({"loud": ...}, "wrong", "'loud' has no answer yet"),
        (dict.fromkeys(SPREAD, ...), "not attempted", "as it was given"),
    ],
)
def test_a_prediction_is_right_wrong_or_known(answers, outcome, words):
    verdict = guessed(**answers)
    assert verdict.outcome == outcome
    assert words in verdict.text
    if outcome == "wrong":
        assert not re.search(r"\b8(\.|\b)", verdict.text.replace("-8", ""))


def test_a_shape_and_a_yes_are_predicted_exactly():
    answers = {"shape": [2, 3], "learns": True, "size": 6}
    predicted(answers, "shape", (2, 3))
    predicted(answers, "learns", True)
    for name, target in (("shape", (3, 2)), ("learns", False)):
        with pytest.raises(Wrong, match="is not so"):
            predicted(answers, name, target)
    with pytest.raises(Wrong, match="too small"):
        predicted(answers, "size", 7, within=0)


def test_a_prediction_is_checked_by_its_name_and_is_no_part(capsys, folder):
    with pytest.raises(ValueError, match='Say check\\(answer, "NN-name"'):
        checks.check(SPREAD)
    checks.check(SPREAD, "02-predict-spread")
    said = capsys.readouterr().out
    assert said.startswith("passed · 02-predict-spread")
    assert "Kept" not in said
    assert not list(folder.glob("mine/*.py"))


# --- the parts of a message


@pytest.mark.parametrize(
    ("yours", "target", "words"),
    [
        (None, torch.zeros(2), "returned None"),
        ([1.0], torch.zeros(1), "a list, not a tensor"),
        (
            torch.zeros(2, 3),
            torch.zeros(3, 2),
            "shape is (2, 3), not (3, 2)",
        ),
        (torch.zeros(1).double(), torch.zeros(1), "dtype is float64"),
        (
            torch.tensor([torch.nan]),
            torch.zeros(1),
            "1 of its values are NaN",
        ),
        (torch.tensor([1.01]), torch.tensor([1.0]), "values differ"),
        (torch.tensor([1.000001]), torch.tensor([1.0]), ""),
        ((1, [2, 3]), (1, [2, 4]), "in entry 1, in entry 1, the values"),
        ([1, 2], [1], "2 entries, not 1"),
        (0.5, 0.25, "it is 0.5, not 0.25"),
        ("a", 1, "a str, not an int"),
        (True, 1, "a bool, not an int"),
        ({"a": torch.ones(2)}, {"a": torch.ones(2)}, ""),
        ({"a": torch.ones(2)}, {"a": torch.zeros(2)}, "at 'a', the values"),
        ({"a": 1, "b": 2}, {"a": 1}, "keys are ['a', 'b'], not ['a']"),
        ({"a": 1}, [1], "a dict, not a list"),
    ],
)
def test_a_difference_is_named(yours, target, words):
    found = _difference(yours, target)
    assert words in found
    assert bool(found) == bool(words)


def test_of_a_large_tensor_the_matrix_that_differs_is_shown():
    target = torch.zeros(2, 3, 5, 7)
    yours = target.clone()
    yours[1, 2, 3, 4] = 1
    with pytest.raises(Wrong) as raised:
        same(yours, target)
    assert raised.value.shown["at"] == [1, 2]
    assert raised.value.shown["yours"].shape == (5, 7)


def test_a_matrix_stands_row_below_row():
    assert drawn(torch.tensor([[1.0, 0.25], [10.0, 2.0]])) == (
        "   1 0.25\n  10    2"
    )
    assert drawn(torch.tensor([True, False])) == "1 ·"


def test_a_changed_input_and_a_lost_gradient_are_seen():
    with pytest.raises(Wrong, match="argument 0 is not what it was"):
        untouched(lambda x: x.add_(1), torch.zeros(2))
    with pytest.raises(Wrong, match="the output has no gradient"):
        same_gradients(lambda x: x.detach(), lambda x: x, torch.ones(2))
    with pytest.raises(Wrong, match="the gradient of argument 0"):
        same_gradients(lambda x: 2 * x, lambda x: x, torch.ones(2))


# --- the verbs, and what is kept


def test_what_passes_is_kept_and_what_does_not_is_not(
    capsys, student, folder
):
    wrong = OUTCOMES["wrong"][0]
    checks.check(student(wrong))
    assert not (folder / "mine/attention.py").exists()
    checks.check(student(RIGHT))
    assert "Kept in mine" in capsys.readouterr().out
    assert "def helper" in (folder / "mine/attention.py").read_text()
    checks.progress()
    assert re.search("✓ +2.1 +02-weights", capsys.readouterr().out)
    checks.reset(WEIGHTS)
    assert not Workspace.here().parts()
    checks.progress()
    assert "✓" not in capsys.readouterr().out


def test_what_needs_another_cell_is_not_kept(capsys, student):
    f = student(RIGHT.partition("def helper")[0])
    f.__globals__["helper"] = lambda w, mask: w.masked_fill(~mask, 0.0)
    checks.check(f)
    said = capsys.readouterr().out
    assert said.startswith("passed")
    assert "Not kept: by itself" in said


def test_the_books_own_function_is_not_an_attempt(capsys):
    from annotated.attention import attention_weights

    checks.check(attention_weights)
    assert "not attempted" in capsys.readouterr().out


def test_hints_come_one_by_one_and_the_solution_when_asked_twice(capsys):
    for count in (1, 2, 3, 3):
        checks.hint(WEIGHTS)
        assert f"Hint {count} of 3" in capsys.readouterr().out
    checks.solution(WEIGHTS)
    assert "def attention_weights" not in capsys.readouterr().out
    checks.solution(WEIGHTS)
    assert "def attention_weights" in capsys.readouterr().out


def test_a_name_that_no_exercise_has_is_refused_with_the_nearest():
    with pytest.raises(
        ValueError, match="did you mean .*attention_weights"
    ):
        checks.hint("attention_weight")
    with pytest.raises(ValueError, match="which exercise"):
        checks.hint({"a": 1})


@pytest.mark.parametrize("damage", ["{", "[1]", '{"02-weights": 1}'])
def test_a_damaged_progress_file_costs_no_solution(
    student, folder, capsys, damage
):
    checks.check(student(RIGHT))
    (folder / "mine/progress.json").write_text(damage)
    checks.progress()
    assert "mine/attention.py" in capsys.readouterr().out
    assert list(Workspace.here().parts()) == [WEIGHTS]


@pytest.mark.parametrize("damage", ["{", "[1]", '{"02-weights": 1}'])
def test_a_damaged_progress_file_is_set_aside(
    student, folder, capsys, damage
):
    path = folder / "mine/progress.json"
    path.parent.mkdir()
    path.write_text(damage)
    checks.check(student(RIGHT))
    assert path.with_name("damaged-progress.json").read_text() == damage
    assert WEIGHTS in json.loads(path.read_text())


def test_progress_that_notepad_saved_is_read(student, folder, capsys):
    checks.check(student(RIGHT))
    path = folder / "mine/progress.json"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    checks.progress()
    assert "1 of 76 passed" in capsys.readouterr().out


def test_progress_that_may_not_be_read_is_neither_needed_nor_lost(
    student, folder, capsys, monkeypatch
):
    checks.check(student(RIGHT))
    path = folder / "mine/progress.json"
    before = path.read_bytes()
    read = Path.read_text

    def refused(self, *how):
        if self.name == path.name:
            raise PermissionError(13, "Permission denied", str(self))
        return read(self, *how)

    monkeypatch.setattr(Path, "read_text", refused)
    checks.check(student(RIGHT))
    told = capsys.readouterr().out
    assert "Nothing is remembered" in told and "Permission denied" in told
    assert path.read_bytes() == before


def test_hints_and_solutions_come_where_nothing_can_be_written(
    folder, capsys
):
    """Asked once, for a second time would not be known as one."""
    (folder / "mine").write_text("in the way")
    checks.hint(WEIGHTS)
    out = capsys.readouterr().out
    assert out.startswith("Hint 1 of")
    assert "Nothing is remembered" in out
    checks.solution(WEIGHTS)
    out = capsys.readouterr().out
    assert "Nothing is remembered" in out
    assert exercises()[WEIGHTS].reference in out


def test_of_a_cell_definitions_are_kept_and_calls_are_not():
    cell = (
        "import math\nx: int = 1\nprint(x)\n\n@decorated\ndef f():\n"
        "    pass\n\ncheck(f)\n"
    )
    assert _exported(cell) == (
        "import math\nx: int = 1\n\n\n@decorated\ndef f():\n    pass\n"
    )


def test_an_import_of_what_is_solved_leads_to_it_line_for_line():
    code = (
        "from annotated.attention import (\n    attention_weights,\n"
        "    attention,\n)\nx = 1\n"
    )
    new = redirected(code, "mine", {WEIGHTS})
    assert new.splitlines()[0] == (
        "from mine.attention import attention_weights; "
        "from annotated.attention import attention"
    )
    assert new.splitlines()[4] == "x = 1"
    assert "mine" not in redirected(new, "mine", set())
