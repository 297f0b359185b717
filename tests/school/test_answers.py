"""An answer taken out of its notebook, and examined by itself (E29)."""

from __future__ import annotations

import random
import re

import pytest

from annotated.school.answers import (
    answer_in,
    borrowed,
    reaching,
    statements_of,
)
from annotated.school.classroom import _mark_of
from annotated.school.course import _exported, redirected
from annotated.school.exercises import exercises
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
    assert "\u2028" in _exported(code)
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
