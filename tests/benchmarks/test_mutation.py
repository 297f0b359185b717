"""The ledger of mutants, and what may be said of survivors."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.helpers import ROOT, benchmark

# --- mutation.py ------------------------------------------------------------


@pytest.fixture(scope="module")
def mutation() -> Iterator[ModuleType]:
    with benchmark("mutation") as module:
        yield module


def test_every_module_and_test_file_of_the_mutations_is_there(
    mutation: ModuleType,
) -> None:
    for module, tests in mutation.TESTS.items():
        assert (ROOT / "annotated" / f"{module}.py").is_file(), module
        for name in tests.split():
            assert mutation.file_of_tests(ROOT, name).is_file()


def mutants(digest: str, count: int) -> list[dict[str, Any]]:
    """Those of a function f, as mutants.py lists them."""
    same = {"function": "f", "digest": digest, "was": "x"}
    return [same | {"number": i, "now": f"y{i}"} for i in range(count)]


def add(path: Path, *lines: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.writelines(f"{json.dumps(line)}\n" for line in lines)


def test_only_tried_mutants_count_and_only_told_survivors_are_explained(
    mutation: ModuleType, tmp_path: Path
) -> None:
    ends = ["killed", "timeout", "survived", "untested", None, "survived"]
    told, path = mutants("new", 6), tmp_path / "loss.jsonl"
    for one, end in zip(told, ends, strict=True):
        if end is not None:
            add(path, one | {"end": end, "commit": "abc"})
    # of an older function, and of a survivor that was tried again
    old = told[4] | {"digest": "old", "end": "survived", "commit": "abc"}
    add(path, old, told[5] | {"end": "killed", "commit": "abd"})
    found = mutation.count("loss", mutation.results(path, told))
    reasons = {("loss", "f", "y2"): "nobody can tell"}
    mutation.explain("loss", found, reasons)
    assert (found["mutants"], found["tried"]) == (6, 5)
    assert (found["killed"], found["by_time"]) == (3, [["f", 1]])
    assert (found["survived"], found["explained"]) == (2, 1)
    assert [one["why"] for one in found["survivors"]] == [
        "nobody can tell",
        None,
    ]
    assert found["commits"] == ["abc", "abd"]
    assert found["functions"] == {}  # one of f's is still to be tried


def test_explanations_are_by_module_function_and_new_line(
    mutation: ModuleType, tmp_path: Path
) -> None:
    path = tmp_path / "survivors.toml"
    assert mutation.explanations(path) == {}
    path.write_text(
        '[[survivor]]\nmodule = "loss"\nfunction = "f"\n'
        'now = ["x", "z"]\nwhy = "y"\n'
    )
    assert mutation.explanations(path) == {
        ("loss", "f", "x"): "y",
        ("loss", "f", "z"): "y",
    }


def test_what_the_ledger_knows_of_functions_that_are_the_same_is_kept(
    mutation: ModuleType, tmp_path: Path
) -> None:
    ends = ["killed", "timeout", "survived", "killed"]
    told, path = mutants("same", 4), tmp_path / "loss.jsonl"
    for one, end in zip(told, ends, strict=True):
        add(path, one | {"end": end, "commit": "abc"})
    known = mutation.count("loss", mutation.results(path, told))
    known = json.loads(json.dumps(known))  # as it is read from a file
    # on another machine, where one mutant has been tried since
    there = tmp_path / "again.jsonl"
    add(there, told[2] | {"end": "killed", "commit": "abd"})
    changed = [one | {"function": "g"} for one in mutants("other", 2)]
    mutation.inherit(there, told + changed, known)
    again = mutation.count("loss", mutation.results(there, told + changed))
    assert (again["mutants"], again["tried"]) == (6, 4)
    assert (again["killed"], again["survived"]) == (4, 0)
    assert again["by_time"] == [["f", 1]]
    assert again["functions"] == {"f": "same"}
    assert again["commits"] == ["abc", "abd"]
    mutation.inherit(there, told, known)  # a second time adds nothing
    assert len(there.read_text().splitlines()) == 4
    # another f: all of its mutants are to be tried
    other = tmp_path / "other.jsonl"
    mutation.inherit(other, mutants("other", 4), known)
    assert other.read_text() == ""


def test_the_ledger_says_which_modules_are_not_finished(
    mutation: ModuleType,
) -> None:
    one = {"commits": ["a", "b"], "mutants": 2, "tried": 2}
    found = {"loss": one, "masks": one | {"tried": 1, "commits": ["c"]}}
    found["layers"] = one | {"tried": 0, "commits": []}
    entry = mutation.as_entry(found)
    assert list(entry["metrics"]["modules"]) == ["masks", "loss"]
    assert entry["metrics"]["incomplete"] == ["masks"]
    assert "layers" in entry["metrics"]["not_begun"]
    assert entry["commit"] == "a, b, c"


def functions_of(module: str) -> set[str]:
    """The functions and methods of a module of the package."""
    tree = ast.parse(
        (ROOT / "annotated" / f"{module}.py").read_text("utf-8")
    )
    kinds = ast.FunctionDef, ast.AsyncFunctionDef
    return {one.name for one in tree.body if isinstance(one, kinds)} | {
        f"{one.name}.{part.name}"
        for one in tree.body
        if isinstance(one, ast.ClassDef)
        for part in one.body
        if isinstance(part, kinds)
    }


def test_the_ledger_of_mutants_is_of_this_package_and_each_survivor_told(
    mutation: ModuleType,
) -> None:
    file = ROOT / "book" / "results" / "mutation.json"
    metrics = json.loads(file.read_text("utf-8"))["metrics"]
    reasons = mutation.explanations(ROOT / "benchmarks" / "survivors.toml")
    begun, told = metrics["modules"], set()
    for module, found in begun.items():
        gone = set(found["functions"]) - functions_of(module)
        assert not gone, f"{module} has no {gone}: run the mutants again"
        assert found["tried"] == found["killed"] + found["survived"]
        assert found["survived"] == len(found["survivors"])
        for one in found["survivors"]:
            key = module, one["function"], one["now"]
            assert one["why"] == reasons.get(key), key
            # a module that is not finished is counted, and no more
            if found["tried"] == found["mutants"]:
                assert key in reasons, f"no test, and no word why: {key}"
            told.add(key)
    for module, function, now in set(reasons) - told:
        # a function that has changed since is still to be tried
        functions = begun.get(module, {"functions": ()})["functions"]
        assert function in functions_of(module), (module, function)
        assert function not in functions, f"no such survivor: {now}"
    assert metrics["incomplete"] == [
        name for name, one in begun.items() if one["tried"] < one["mutants"]
    ]
    assert set(metrics["not_begun"]) == set(mutation.TESTS) - set(begun)
