"""An answer taken out of its notebook, and examined by itself (E29)."""

from __future__ import annotations

import json
import random
import re
import time

import pytest

from annotated import checks
from annotated.school.answers import (
    answer_in,
    borrowed,
    reaching,
    statements_of,
)
from annotated.school.checks import (
    SEEDS,
    attempt,
    difference,
    examine_source,
    exercises,
    form,
    sizes,
)
from annotated.school.classroom import _exam, _examiner, _mark_of
from annotated.school.course import Workspace, exported, redirected
from annotated.school.examiner import (
    Exam,
    Lost,
    _apart,
    _counting,
    _drawn,
    _lenient,
    _rejected,
    examined,
)
from tests.helpers import ROOT

CAUSAL = exercises()["03-causal"]
STARTER = "def f():\n    raise NotImplementedError"
EVERY = [
    (name, kind, code)
    for name, e in exercises().items()
    for kind, codes in (
        ("starter", [e.starter]),
        ("right", [e.reference, *e.variants]),
        ("wrong", [code for _, code in e.mutants[:1]]),
    )
    for code in codes
]


def run(cells):
    """What f() is, once the cells have run one after the other."""
    space = {"__name__": "test"}
    for code in cells:
        exec(compile(code, "<cell>", "exec"), space)
    return space["f"]()


# --- what cells hold besides a definition

NOTEBOOKS = {  # cells, and what f() returns there
    "a constant": (["K = 3", "def f(): return K", "print(f())"], 3),
    "an import": (["import math", "def f(): return math.floor(2.5)"], 2),
    "imports in one line": (["import os, math", "def f(): return math.e"],
                            2.718281828459045),
    "a star import": (["from math import *", "def f(): return floor(2.5)"],
                      2),
    "a guarded import": (
        ["try:\n    import nowhere as m\nexcept ImportError:\n"
         "    import math as m", "def f(): return m.floor(2.5)"], 2),
    "a table that a loop fills": (
        ["T = {}\nfor i in range(3):\n    T[i] = i * i",
         "def f(): return T"], {0: 0, 1: 1, 2: 4}),
    "a list that is appended to": (
        ["T = []", "T.append(4)", "def f(): return T"], [4]),
    "an augmented constant": (["K = 1", "K += 2", "def f(): return K"], 3),
    "a deleted name": (
        ["K = 1", "def f(): return 'K' in vars_()", "vars_ = dict",
         "del K"], False),
    "a condition": (
        ["D = False", "if D:\n    def f(): return 1\nelse:\n"
         "    def f(): return 2"], 2),
    "a lambda": (["g = lambda x: x + 1", "f = lambda: g(1)"], 2),
    "an attribute of the function": (
        ["def f(): return f.scale", "f.scale = 2"], 2),
    "a method put in later": (
        ["class A:\n    def g(self): return 1", "def g(self): return 2",
         "A.g = g", "def f(): return A().g()"], 2),
    "setattr": (
        ["class A: pass", "setattr(A, 'g', 3)", "def f(): return A.g"], 3),
    "a function that patches": (
        ["class A: g = 1", "def patch(c): c.g = 5", "patch(A)",
         "def f(): return A.g"], 5),
    "a function that counts": (
        ["N = 0\ndef more():\n    global N\n    N += 1", "more()\nmore()",
         "def f(): return N"], 2),
    "a decorator": (
        ["from functools import cache", "def twice(g): return lambda: "
         "2 * g()", "@cache\n@twice\ndef f():\n    return 2"], 4),
    "decorated later": (
        ["def f(): return 1", "def twice(g): return lambda: 2 * g()",
         "f = twice(f)"], 2),
    "a class that goes on": (
        ["class A:\n    def a(self): return 1",
         "class A(A):\n    def b(self): return self.a() + 1",
         "def f(): return A().b()"], 2),
    "several of one name": (
        ["def f(): return 1", "def g(): return 7", "def g(): return 8",
         "def f(): return g()"], 8),
    "the starter below": (["def f(): return 1", STARTER], 1),
    "the starter above": ([STARTER, "def f(): return 1"], 1),
    "cells in another order": (
        ["T = make()", "def make(): return K + 1", "K = 1",
         "def f(): return T"], 2),
    "a definition in two cells": (
        ["def f(x=1):", "    return x"], 1),
    "two statements on a line": (["a = 1; b = 2", "def f(): return b"], 2),
    "a form feed": (["K = 1\n\x0c\ndef f():\n    return K"], 1),
    "a line separator": (["K = 'a\u2028b'\ndef f(): return K"], "a\u2028b"),
    "a mark": (["\ufeffdef f(): return 1"], 1),
    "CRLF": (["def f():\r\n    return 1\r\n"], 1),
    "a walrus": (["print(K := 3)", "def f(): return K"], 3),
    "an unpacking": (["a, *b = 1, 2, 3", "def f(): return b"], [2, 3]),
    "another name for it": (
        ["T = [1]", "U = T", "U.append(2)", "def f(): return T"],
        [1, 2],
    ),
    "what a loop goes through": (
        ["T = [[1]]", "for row in T:\n    row.append(2)", "def f(): return T"],
        [[1, 2]],
    ),
    "a seed": (
        [
            "import random",
            "random.seed(3)\nK = random.random()",
            "def f(): return K",
        ],
        random.Random(3).random(),
    ),
    "a future import": (
        ["from __future__ import annotations", "def f(x: Nowhere = 1): "
         "return x"], 1),
    "a cell that does not parse": (["x = (", "def f(): return 1", "?"], 1),
    "IPython's prompt": ([">>> def f():\n...     return 1"], 1),
    "a cell that is indented": (["  def f():\n      return 1"], 1),
    "%time": (["%time K = 3", "def f(): return K"], 3),
    "%time of a value": (["K = %time 1 + 2", "def f(): return K"], 3),
    "%%time": (["%%time\nK = 3\ndef f():\n    return K"], 3),
    "%%capture": (["%%capture out\ndef f(): return 1"], 1),
    "!pip": (["!pip install x\nK = 2\n%matplotlib inline\nK?",
              "def f(): return K"], 2),
    "%run": (["%run helper.py\ndef f(): return 1"], 1),
}  # fmt: skip


@pytest.mark.parametrize("what", NOTEBOOKS)
def test_an_answer_has_all_that_it_depends_on(what):
    cells, wanted = NOTEBOOKS[what]
    if "%" in what or "IPython" in what or "!" in what:
        pytest.importorskip("IPython")
    answer = answer_in(cells, "f", STARTER)
    assert not answer.given
    assert run(answer.cells) == wanted
    assert run([answer.text]) == wanted  # as repair puts it into one cell
    assert "print(f())" not in answer.text


def test_scratch_and_tests_of_ones_own_are_no_part_of_an_answer():
    cells = [
        "from annotated.masks import causal_mask as theirs",
        CAUSAL.reference,
        "def compare(a, b):\n    assert (a(5) == b(5)).all()",
        "compare(causal_mask, theirs)",
        "check(causal_mask)",
        "x = torch.zeros(10**12)",
    ]
    answer = answer_in(cells, "causal_mask", CAUSAL.starter)
    assert answer.places == {1}
    assert not borrowed(answer.cells, "causal_mask")


def test_patches_of_what_is_imported_are_left_and_told():
    patch = "torch.isclose = lambda *a, **k: torch.tensor(True)"
    cells = ["import torch", patch, CAUSAL.reference]
    answer = answer_in(cells, "causal_mask", CAUSAL.starter)
    assert patch not in answer.text
    assert answer.left.startswith(f"“{patch}”")


def test_what_comes_after_the_graded_cell_counts_where_nothing_is_before():
    cells = ["def f(): return 1", "def f(): return 2"]
    assert run(answer_in(cells, "f", STARTER, until=1).cells) == 1
    assert run(answer_in([STARTER, cells[1]], "f", STARTER, 1).cells) == 2


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("def f(x\n    return x", "does not parse"),
        ("def f():\n  x = 1\n x = 2", "does not parse"),
        ("x = '\0'  # f", "null bytes"),
        ("%%bash\necho f", "%%bash is no cell of Python"),
        ("%%writefile f.py\ndef f(): return 1", "%%writefile"),
    ],
)
def test_what_is_not_understood_is_named_and_no_empty_cell(cell, reason):
    pytest.importorskip("IPython")
    answer = answer_in(["K = 1", cell], "f", STARTER)
    assert not answer.given
    assert answer.cells == [cell]
    assert reason in answer.unknown[1]


def test_a_file_that_is_run_is_named_and_the_rest_of_its_cell_understood():
    pytest.importorskip("IPython")
    cells = ["%run helper.py\nK = 1", "def f(): return K"]
    answer = answer_in(cells, "f", STARTER)
    assert run(answer.cells) == 1
    assert answer.unknown == {0: "%run helper.py: that file is not here"}


def test_every_solution_known_to_us_is_understood_and_needs_nothing_closed():
    """Right, wrong, and as they are given."""
    assert len(EVERY) > 300
    for name, kind, code in EVERY:
        exercise = exercises()[name]
        answer = answer_in([code], exercise.defines, exercise.starter)
        assert answer.cells and not answer.unknown, (name, code)
        assert not reaching([code]), (name, reaching([code]))
        assert not borrowed([code], exercise.defines), name
        assert answer.given == (kind == "starter"), (name, code)


def test_lines_of_what_a_student_wrote_end_at_line_feeds_alone():
    """Every place in the package that cuts source into lines."""
    cuts = re.compile(r"(code|source)\.splitlines\(")
    for path in (ROOT / "annotated/school").glob("*.py"):
        if path.stem in ("answers", "examiner", "classroom", "course"):
            assert not cuts.search(path.read_text("utf-8")), path
    code = "K = 'a\u2028b'\n\x0c\nfrom annotated.masks import causal_mask\n"
    assert "\u2028" in exported(code)
    assert "from mine.masks" in redirected(code, "mine", {"03-causal"})


MEMO = """table = {}
def causal_mask(length, device=None):
    if length not in table:
        ones = torch.ones(length, length, dtype=torch.bool, device=device)
        table[length] = ones.tril()
    return table[length].to(device).clone()"""
TRIALS = {  # what stands beside an honest answer that remembers something
    "nothing": "",
    "check": "check(causal_mask)",
    "the module of check": "from annotated import checks\n"
    "checks.check(causal_mask)",
    "check, imported": "from annotated.checks import check as c\n"
    "print(c(causal_mask))",
    "another answer": "def padding_mask(): return table\n"
    "from annotated.checks import check\ncheck(padding_mask)",
    "a comparison": "from annotated.masks import causal_mask as theirs\n"
    "assert torch.equal(causal_mask(3), theirs(3))",
    "a test": "from annotated.masks import causal_mask as theirs\n"
    "def test(): assert torch.equal(causal_mask(3), theirs(3))\ntest()",
}


@pytest.mark.parametrize("trial", TRIALS)
def test_an_answer_that_remembers_is_marked_without_its_trials(trial):
    cells = ["import torch\nfrom annotated.checks import check", MEMO,
             TRIALS[trial]]  # fmt: skip
    answer = answer_in(cells, "causal_mask", CAUSAL.starter)
    assert "annotated" not in answer.text
    assert _mark_of(CAUSAL, cells).outcome == "passed"


def test_a_number_that_is_only_counted_up_keeps_its_first_value():
    cells = ["calls = 0", "def f():\n    global calls\n    calls += 1\n"
             "    return 7"]  # fmt: skip
    assert run(answer_in(cells, "f", STARTER).cells) == 7


HUGE = {
    "a chain": "x = a" + ".b" * 1500,
    "a sum": "x = " + " + ".join(["1"] * 1200),
    "a sum after a command": "!ls\nx = " + " + ".join(["1"] * 1200),
    "a number": f"x = {'9' * 5000}",
    "a number in base 16": f"x = 0x{'9' * 5000}",
    "brackets": f"x = {'(' * 500}1{')' * 500}",
}


@pytest.mark.parametrize("what", HUGE)
@pytest.mark.parametrize("defines", [False, True])
def test_a_cell_that_is_too_much_costs_no_other_answer(what, defines):
    pytest.importorskip("IPython")
    cells = [HUGE[what], "def f(): return 1"]
    if defines:
        cells[0] = cells[0].replace("x = ", "f = ")
    assert answer_in(cells, "f", STARTER).cells[-1] == cells[1]


def test_a_cell_of_a_thousand_lines_is_read_once(monkeypatch):
    """And cells that are broken are joined with few of the others."""

    def never(*given):
        raise AssertionError

    monkeypatch.setattr("ast.get_source_segment", never)
    code = "\n".join(f"x{n} = 'ä'; y = {n}" for n in range(1000))
    found, unknown = statements_of([code])
    assert [one.text for one in found[:2]] == ["x0 = 'ä'", "y = 0"]
    assert len(found) == 2000 and not unknown
    assert not statements_of([*"((((", "))))"])[1]
    assert statements_of([*"(((((", ")))))"])[1]


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
    "all of a module": ("from annotated.masks import *", "book's own"),
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
        "from annotated.school.checks import exercises\n"
        "exec(exercises()['03-causal'].reference)",
        "does not need “exec(",
    ),
    "takes the checks away": (
        f"{HEAD}    from annotated.school import checks as c\n"
        f"    c.difference = lambda *a: ''\n    {WRONG}",
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
}  # fmt: skip


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheat_gets_nothing_and_is_told_why(cheat):
    code, words = CHEATS[cheat]
    mark = _mark_of(CAUSAL, [code])
    assert mark.share == 0
    assert words in mark.text
    assert mark.outcome in ("not attempted", "refused", "crashed")


def test_a_docstring_that_names_the_book_is_no_loan():
    code = CAUSAL.reference.replace(
        "i may attend", "annotated.masks: i may"
    )
    assert "annotated.masks" in code
    assert not reaching([code])


def test_after_all_cheats_the_next_student_is_marked_as_before():
    mark = _mark_of(CAUSAL, [CAUSAL.reference])
    assert (mark.share, mark.outcome) == (1.0, "passed")


@pytest.mark.parametrize("but", [None, 0, 1])
def test_a_check_that_has_become_lenient_is_noticed(but, monkeypatch):
    """And one that still rejects one known mistake, and no other."""
    from annotated.school import checks as ours

    each = _rejected("03-causal")
    known = [pair for pairs in each for pair in pairs]
    assert _lenient(known) == ""
    assert all(set(pairs) & set(_drawn(each)) for pairs in each)
    kept = [] if but is None else [CAUSAL.mistakes[but].thing(4).tolist()]
    usual = ours.difference

    def difference(yours, target):
        strict = yours.shape == (4, 4) and yours.tolist() in kept
        return usual(yours, target) if strict else ""

    monkeypatch.setattr(ours, "difference", difference)
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
    with pytest.raises(Lost, match="stopped after 0.2 s"):
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
            map(difference, hidden, usual)
        )
    for code in (exercise.reference, *exercise.variants):
        thing = exercise.answer(code, "<ours>")
        for check in exercise.properties().values():
            trial = attempt(check, thing, SECRET)
            assert trial.error is None, (name, check.__name__, trial.error)
    return other


GRADED = [n for n, e in exercises().items() if e.kind != "predict"]


@pytest.mark.parametrize("name", ["02-weights", "16-beam"])
def test_a_secret_seed_shows_a_check_other_things(name):
    assert varies(name)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", GRADED)
def test_a_secret_seed_shows_every_exercise_other_things(name):
    assert varies(name)
