"""An answer examined by itself, by an examiner that is watched (E29)."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from annotated import checks
from annotated.school import examiner
from annotated.school.answers import reaching
from annotated.school.checks import (
    SEEDS,
    Exam,
    _difference,
    attempt,
    examine_source,
    form,
    mistakes,
    sizes,
)
from annotated.school.classroom import _exam, _examiner, _mark_of
from annotated.school.course import Workspace, redirected
from annotated.school.examiner import (
    _apart,
    _counting,
    _drawn,
    _lenient,
    _Lost,
    examined,
)
from annotated.school.exercises import exercises
from tests.helpers import ROOT

CAUSAL = exercises()["03-causal"]

# --- what an answer may not do

WRONG = "return torch.ones(length, length, dtype=torch.bool, device=device)"
HEAD = (
    "import os, sys, json, torch\ndef causal_mask(length, device=None):\n"
)
CHEATS = {
    "imports it": ("from annotated.masks import causal_mask", "book's own"),
    "under another name": (
        "from annotated.masks import causal_mask as c\n"
        "def causal_mask(n, device=None): return c(n, device)",
        "imported from annotated.masks",
    ),
    "through its module": (
        "import annotated.masks as m\n"
        "def causal_mask(n, device=None): return m.causal_mask(n, device)",
        "imported from annotated.masks",
    ),
    "all of a module": (
        "from annotated.masks import *",
        "nothing in the answer is called causal_mask",
    ),
    "by its name as text": (
        "from annotated import masks\n"
        "causal_mask = getattr(masks, 'causal' + '_mask')",
        "book's own",
    ),
    "wraps it": (
        "import functools\nfrom annotated.masks import causal_mask as c\n"
        "causal_mask = functools.partial(c)",
        "book's own",
    ),
    "runs the solution": (
        "from annotated.school.exercises import exercises\n"
        "exec(exercises()['03-causal'].reference)",
        "does not need “exec(",
    ),
    "takes the checks away": (
        f"{HEAD}    from annotated.school import checks as c\n"
        f"    c._difference = lambda *a: ''\n    {WRONG}",
        "does not need “from annotated.school import checks as c”",
    ),
    "takes them from sys": (
        f"{HEAD}    sys.modules['annotated.school.checks'].same = print\n"
        f"    {WRONG}",
        "sys.modules",
    ),
    "looks at the stack": (
        f"{HEAD}    sys._getframe(1).f_globals['same'] = print\n    {WRONG}",
        "_getframe",
    ),
    "patches torch": (
        f"{HEAD}    torch.equal = lambda *a: True\n    {WRONG}",
        "which changes what is imported",
    ),
    "patches it where nobody reads it": (
        f"{HEAD}    [torch][0].equal = lambda *a: True\n    {WRONG}",
        "it has changed torch.equal",
    ),
    "is equal to everything": (
        f"{HEAD}    class Yes(torch.Tensor):\n"
        "        @classmethod\n"
        "        def __torch_function__(cls, f, t, args=(), kwargs=None):\n"
        "            return True\n"
        f"    {WRONG}.as_subclass(Yes)",
        "__torch_function__",
    ),
    "answers in the examiner's place": (
        f"{HEAD}    for handle in range(3, 60):\n"
        "        try: os.write(handle, json.dumps({'share': 1.0, 'outcome':"
        " 'passed', 'text': 'passed'}).encode() + b'\\n')\n"
        "        except OSError: pass\n    os.execv('/bin/true', ['true'])",
        "answered in the examiner's place",
    ),
    "writes its mark itself": (
        f"{HEAD}    [json][0].dumps = lambda *a, **k: 'passed'\n"
        "    raise ValueError",
        "it has changed json.dumps",
    ),
    "patches it through vars": (
        f"{HEAD}    vars(torch)['equal'] = lambda *a: True\n    {WRONG}",
        "which changes what is imported",
    ),
    "patches it through its dict": (
        f"{HEAD}    torch.__dict__.update(equal=print)\n    {WRONG}",
        "which changes what is imported",
    ),
    "patches it with object": (
        f"{HEAD}    object.__setattr__(torch, 'equal', print)\n    {WRONG}",
        "which changes what is imported",
    ),
    "a module's dict": (
        "from annotated import masks as m\n"
        "causal_mask = m.__dict__['causal' + '_mask']",
        "imported from annotated.masks",
    ),
    "a name as text": (
        "import sys\ndef causal_mask(n, device=None):\n"
        "    return torch.loads('annotated' + f'.masks')(n)",
        "does not need “return torch.loads(",
    ),
    "bytes": (
        "import torch\ndef causal_mask(n, device=None):\n"
        "    return torch.loads(b'cannotated.masks\\ncausal_mask')(n)",
        "does not need “return torch.loads(",
    ),
    "runpy": (
        f"{HEAD}    import runpy\n    {WRONG}", "not need “import runpy”"
    ),
    "pickle": (
        f"{HEAD}    from pickle import loads\n"
        "    return loads(b'cannotated.masks\\ncausal_mask\\n.')(length)",
        "does not need “return loads(",
    ),
    "the inside in two parts": (
        f"{HEAD}    getattr(causal_mask, '__glob' + f'als__')\n    {WRONG}",
        "does not need “getattr(",
    ),
    "modules in two parts": (
        f"{HEAD}    getattr(sys, 'mod' + 'ules')\n    {WRONG}",
        "does not need “getattr(",
    ),
    "ends the process": (
        f"{HEAD}    os._exit(0)", "does not need “os._exit(0)”"
    ),
    "ends it where nobody reads it": (
        f"{HEAD}    os.execv('/bin/true', ['true'])",
        "it ended the process (",
    ),
    "its module by another name": (
        "from annotated import masks as m\ndef causal_mask(n, device=None):\n"
        "    own = m\n    return own.causal_mask(n, device)",
        "has no attribute 'causal_mask'",
    ),
    "a pickle put together while it runs": (
        "import pickle\ndef causal_mask(n, device=None):\n"
        "    text = ''.join(['canno', 'tated.masks\\ncausal_mask\\n.'])\n"
        "    return pickle.loads(text.encode())(n, device)",
        "causal_mask is no data",
    ),
    "the solutions by their path": (
        "import annotated as a\ndef causal_mask(n, device=None):\n"
        "    return open(a.__path__[0] + '/exercises.json').read()",
        "closed to an answer",
    ),
    "the module's file": (
        "from annotated import masks as m\ndef causal_mask(n, device=None):\n"
        "    return open(m.__file__).read()",
        "closed to an answer",
    ),
    "another program": (
        f"{HEAD}    import subprocess\n    subprocess.run(['true'])\n"
        f"    {WRONG}",
        "starts no other program",
    ),
    "the builtins by name": (
        f"{HEAD}    __builtins__['__import__']\n    {WRONG}",
        "does not need “__builtins__",
    ),
}  # fmt: skip


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheat_gets_nothing_and_is_told_why(cheat):
    code, words = CHEATS[cheat]
    mark = _mark_of(CAUSAL, [code])
    assert mark.share == 0
    assert words in mark.text
    assert mark.outcome in ("not attempted", "refused", "crashed")


def test_the_rest_of_the_module_is_there_for_an_answer():
    code = "from annotated.masks import *\nassert padding_mask\n"
    mark = _mark_of(CAUSAL, [code + CAUSAL.reference])
    assert (mark.share, mark.outcome) == (1.0, "passed")


def test_a_docstring_that_names_the_book_is_no_loan():
    code = CAUSAL.reference.replace(
        "i may attend", "annotated.masks: i may"
    )
    assert "annotated.masks" in code
    assert not reaching([code])


@pytest.mark.parametrize(
    "begins",
    [
        "import warnings\n",  # which notes a warning where the call is from
        "import torch\n@torch.compile(backend='eager')\n",
    ],
)
def test_what_warns_and_what_is_compiled_is_no_cheat(begins):
    code = (
        f"{begins}def padding_mask(ids, pad_id=0):\n"
        f"    {'warnings.warn(str(pad_id), stacklevel=2)' * ('w' in begins)}\n"
        "    return (ids != pad_id)[:, None, None, :]\n"
    )
    mark = _mark_of(exercises()["03-padding"], [code])
    assert (mark.share, mark.outcome) == (1.0, "passed"), mark.text


@pytest.mark.parametrize("begins", ["", "from os import *\n"])
def test_a_variable_may_have_the_name_of_what_is_closed(begins):
    code = "def f(x, abort=0):\n    kill = x == abort\n    return ~kill\n"
    assert bool(reaching([begins + code])) == bool(begins)
    assert reaching(["def f(x, eval=1):\n    return eval(x)\n"])
    assert reaching(["def f(x):\n    return kill(x)\n"])


def test_after_all_cheats_the_next_student_is_marked_as_before():
    mark = _mark_of(CAUSAL, [CAUSAL.reference])
    assert (mark.share, mark.outcome) == (1.0, "passed")


@pytest.mark.parametrize("but", [None, 0, 1])
def test_a_check_that_has_become_lenient_is_noticed(but, monkeypatch):
    """And one that still rejects one known mistake, and no other."""
    from annotated.school import checks as ours

    drawn = _drawn(CAUSAL)
    assert len(drawn) >= len(CAUSAL.properties())
    assert _lenient(drawn) == ""
    known = [(x, y) for x, _ in drawn for y in mistakes(CAUSAL)]
    kept = [] if but is None else [mistakes(CAUSAL)[but].thing(4).tolist()]
    usual = ours._difference

    def difference(yours, target):
        strict = yours.shape == (4, 4) and yours.tolist() in kept
        return usual(yours, target) if strict else ""

    monkeypatch.setattr(ours, "_difference", difference)
    assert _lenient(known).startswith("Entry (i, j) is True")


@pytest.mark.parametrize(
    "line",
    [
        "dataclasses.asdict",
        "json.dumps",
        "json.encoder.c_make_encoder",
        "json.JSONEncoder.iterencode",
        "examiner._changed",
        "examiner.Mark.share",
        "checks.Verdict.outcome",
    ],
)
def test_what_a_mark_passes_through_is_watched(line, monkeypatch):
    """Whatever the path by which an answer came to it."""
    import dataclasses

    from annotated.school import checks, examiner

    where, _, name = line.rpartition(".")
    space = {"json": json, "dataclasses": dataclasses,
             "checks": checks, "examiner": examiner}  # fmt: skip
    before = examiner._parts(CAUSAL, ())
    differ = examiner._changed
    assert differ(before, examiner._parts(CAUSAL, ())) == ""
    monkeypatch.setattr(eval(where, space), name, str, raising=False)
    assert differ(before, examiner._parts(CAUSAL, ())) != ""


def test_the_books_own_is_told_in_each_place(tmp_path, monkeypatch, capsys):
    """The file, the graded cell, the notebook, and the milestone's part."""
    monkeypatch.chdir(tmp_path)
    code = CHEATS["through its module"][0]
    told = "not attempted · 03-causal: this is the book's own causal_mask"
    for verdict in (
        examine_source(CAUSAL, code, "f.py"),
        examined(CAUSAL, code, "f.py"),
        _mark_of(CAUSAL, [code]),
    ):
        assert verdict.text.startswith(told)
    checks.check(CAUSAL.answer(code, "<a wrapper>"))
    assert capsys.readouterr().out.startswith(told)
    assert not list(tmp_path.glob("mine/*.py"))
    assert "mine.masks" not in (redirected(
        CHEATS["imports it"][0], "mine", set(PARTS) - {"03-causal"}
    ))  # fmt: skip


PARTS = [name for name, e in exercises().items() if e.is_part]


def test_an_import_of_its_own_name_never_leads_back_to_mine(tmp_path):
    workspace = Workspace(tmp_path / "mine")
    code = f"{CHEATS['imports it'][0]}\n\n\n{CAUSAL.reference}"
    workspace.keep(CAUSAL, code)
    assert "from mine" not in (tmp_path / "mine/masks.py").read_text()
    assert examine_source(CAUSAL, code, "f.py").outcome == "passed"


# --- a process of its own


def test_every_solution_of_ours_has_full_marks_where_answers_are_marked():
    """What is compared afterwards is what honest answers leave alone."""
    for name in ("03-causal", "12-adam", "16-greedy", "18-predict-brevity"):
        mark = _mark_of(exercises()[name], [exercises()[name].reference])
        assert mark.share == 1.0, mark.text


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", exercises())
def test_all_solutions_of_ours_have_full_marks(name):
    exercise = exercises()[name]
    for code in (exercise.reference, *exercise.variants):
        mark = _mark_of(exercise, [code])
        assert mark.share == 1.0, mark.text
    assert _mark_of(exercise, [exercise.mutants[0][1]]).share < 1


def test_an_examiner_that_was_killed_is_started_again():
    right = _examiner().mark(CAUSAL, [CAUSAL.reference], Exam())
    _examiner().process.kill()
    _examiner().process.wait()
    assert _examiner().mark(CAUSAL, [CAUSAL.reference], Exam()) == right


def test_what_a_cell_prints_or_raises_does_not_stop_the_next():
    cells = ["print('passed')\nK = 1 / 0", CAUSAL.reference, "1 / 0"]
    mark = _examiner().mark(CAUSAL, cells, Exam())
    assert mark.outcome == "passed"


def test_a_child_that_says_nothing_is_lost():
    with pytest.raises(_Lost, match="stopped after 0.2 s"):
        _apart(lambda: time.sleep(9), wall=0.2)
    assert _apart(lambda: {"a": 1}) == {"a": 1}


# --- hidden checks

SECRET = 2**40 + 977  # torch's generator takes the lowest 32 bits of it


def seen(exercise, check, seeds):
    """What our solution returns in a check."""
    thing = exercise.answer(exercise.reference, "<ours>")
    return [attempt(check, thing, seed).seen for seed in seeds]


@pytest.fixture
def teacher(tmp_path, monkeypatch):
    file = tmp_path / "hidden.json"
    file.write_text(json.dumps({"seed": "a", "checks": {}}))
    monkeypatch.setenv("ANNOTATED_HIDDEN", str(file))
    return file


def test_a_teachers_seed_gives_each_exercise_seeds_of_its_own(teacher):
    one, other = _exam("03-causal").seeds, _exam("03-padding").seeds
    assert one[:3] == other[:3] == list(SEEDS)
    assert len({*one, *other}) == 7
    assert min(one[3:]) > 2**32
    teacher.write_text(json.dumps({"seed": "b", "checks": {}}))
    assert _exam("03-causal").seeds != one


def test_sizes_are_as_usual_or_others_as_different():
    kept = []

    def check(f):
        kept.append(sizes(3, 5, 5, 1, 4))

    attempt(check, None, 0)
    attempt(check, None, SECRET)
    usual, other = kept
    assert usual == [3, 5, 5, 1, 4]
    assert other[3] == 1 and other[1] == other[2]
    assert len(set(other)) == 4 and min(other) == 1
    assert all(a > b for a, b in zip(other[:3], usual))


def test_a_check_of_form_counts_once_the_others_hold():
    exercise = exercises()["03-causal"]
    names = list(exercise.properties())
    held = dict.fromkeys(names, True)
    assert _counting(exercise, held) == len(names)
    device = exercise.properties()["check_device"]
    form(device)
    try:
        assert _counting(exercise, held | {"check_entries": False}) == 1
        assert _counting(exercise, held | {"check_device": False}) == 2
    finally:
        vars(device).clear()


def varies(name):
    """Whether a secret seed shows some check of an exercise other things,
    and our solutions pass all the same.
    """
    exercise, other = exercises()[name], False
    for check in exercise.properties().values():
        usual, hidden = seen(exercise, check, (0, SECRET))
        other |= len(usual) != len(hidden) or any(
            map(_difference, hidden, usual)
        )
    for code in (exercise.reference, *exercise.variants):
        thing = exercise.answer(code, "<ours>")
        for check in exercise.properties().values():
            trial = attempt(check, thing, SECRET)
            assert trial.error is None, (name, check.__name__, trial.error)
    return other


# what these ask for is an example, without arguments: the checks look at
# what it does, and there is nothing that could be another
EXAMPLES = {
    "16-investigate-wider",
    "20-investigate-flag",
    "24-investigate-rules",
}
GRADED = [
    name
    for name, exercise in exercises().items()
    if exercise.kind != "predict" and name not in EXAMPLES
]


@pytest.mark.parametrize("name", ["02-weights", "16-beam"])
def test_a_secret_seed_shows_a_check_other_things(name):
    assert varies(name)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", GRADED)
def test_a_secret_seed_shows_every_exercise_other_things(name):
    assert varies(name)


LOOP = "def causal_mask(*a, **k):\n    while True: pass\n"


def test_a_loop_without_end_ends_where_there_is_no_timer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on Windows, in a notebook: the commonest mistake there is."""
    monkeypatch.delattr("signal.setitimer")
    assert (
        examine_source(CAUSAL, LOOP, "x.py", limit=0.3).outcome
        == "too slow"
    )


TRACED = """
import sys
from annotated.school.checks import TooSlow, _watched

try:
    with _watched({limit}):
        sum(range(10**7)) + sum(range(10**7))
except TooSlow:
    print("too slow")

def note(*_):
    return note

sys.settrace(note)  # as a debugger does
(lambda: abs(-1))()
"""


@pytest.mark.parametrize(("limit", "said"), [(60, ""), (0, "too slow\n")])
def test_a_debugger_goes_on_after_a_check_that_a_thread_watched(
    limit: float, said: str
) -> None:
    """Python 3.11 stood still at the first line if the exception had been
    taken back, asked for or not."""
    done = subprocess.run(
        [sys.executable, "-c", TRACED.format(limit=limit)],
        capture_output=True, text=True, timeout=60, cwd=ROOT,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (said, "")


@pytest.mark.slow
def test_where_there_is_no_fork_a_new_interpreter_examines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(examiner, "_FORKS", False)
    right = examined(CAUSAL, CAUSAL.reference, "x.py")
    assert right.outcome == "passed"
    gone = examined(CAUSAL, "import os; os._exit(3)", "x.py")
    assert gone.outcome == "crashed" and "exit code 3" in gone.text
    monkeypatch.setattr(examiner, "_IMPORTS", 0.0)
    late = examined(CAUSAL, LOOP, "x.py", wall=0.1)
    assert late.outcome == "too slow"
