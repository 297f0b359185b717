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


def test_only_tried_mutants_count_and_only_told_survivors_are_explained(
    mutation: ModuleType, tmp_path: Path
) -> None:
    ends = ["killed", "timeout", "survived", "untested", None, "survived"]
    told = []
    for number, end in enumerate(ends):
        one: dict[str, Any] = {"function": "f", "was": "x"}
        one["now"] = f"y{number}"
        one |= {"digest": "new", "number": number}
        told.append(one)
        if end is None:
            continue
        (tmp_path / "loss.jsonl").open("a").write(
            json.dumps(one | {"end": end, "commit": "abc"}) + "\n"
        )
    (tmp_path / "loss.all.json").write_text(json.dumps(told))
    # of an older function, and of a survivor that was tried again
    with (tmp_path / "loss.jsonl").open("a") as file:
        old = told[4] | {
            "digest": "old",
            "end": "survived",
            "commit": "abc",
        }
        new = told[5] | {"end": "killed", "commit": "abd"}
        file.write(f"{json.dumps(old)}\n{json.dumps(new)}\n")
    reasons = {("loss", "f", "y2"): "nobody can tell"}
    results = mutation.results(tmp_path, "loss")
    found = mutation.count("loss", results, reasons)
    assert (found["mutants"], found["tried"]) == (6, 5)
    assert (found["killed"], found["by_time"]) == (3, 1)
    assert (found["survived"], found["explained"]) == (2, 1)
    assert [one["why"] for one in found["survivors"]] == [
        "nobody can tell",
        None,
    ]
    assert found["commits"] == ["abc", "abd"]


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


def test_the_ledger_keeps_modules_that_a_run_knows_nothing_of(
    mutation: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    package = tmp_path / "annotated"
    package.mkdir()
    code = (
        'def f(x):\n    """Add."""\n    return x + 1\n\n\n'
        "class A:\n    @property\n    def g(self):\n        return 3\n"
    )
    for module in ("loss", "masks", "layers", "tokens"):
        (package / f"{module}.py").write_text(code)
    monkeypatch.setattr(mutation, "ROOT", tmp_path)

    def one(commit: str, now: str) -> dict[str, Any]:
        return {
            "commits": [commit],
            "digest": mutation.digest(package / "loss.py"),
            "mutants": 2,
            "tried": 1,
            "explained": 0,
            "survivors": [{"function": "f", "was": "x", "now": now}],
        }

    ledger = tmp_path / "mutation.json"
    first = {name: one("a", "old") for name in ("loss", "masks", "layers")}
    entry = mutation.as_entry(ledger, first, {})
    assert set(entry["metrics"]["modules"]) == set(first)
    ledger.write_text(json.dumps(entry))
    # words may change, code may not
    said = code.replace("Add.", "Plus.")
    said = said.replace("    return x", "    # 1\n    return x")
    (package / "masks.py").write_text(said)
    (package / "layers.py").write_text(code.replace("3", "4"))
    again = {name: one("b", "new") for name in ("loss", "tokens")}
    reasons = {("masks", "f", "old"): "the same"}
    found = mutation.as_entry(ledger, again, reasons)
    modules = found["metrics"]["modules"]
    assert list(modules) == ["masks", "tokens", "loss"]
    assert modules["loss"] == again["loss"]
    assert modules["masks"]["explained"] == 1
    assert modules["masks"]["survivors"][0]["why"] == "the same"
    assert found["metrics"]["incomplete"] == list(modules)
    assert "layers" in found["metrics"]["not_begun"]
    assert found["commit"] == "a, b"
    assert "layers has changed" in capsys.readouterr().out


@pytest.mark.parametrize(
    "change",
    [
        ("x + 1", "x - 1"),
        ("    @property\n", ""),
        ("def f", "def h"),
        ("class A", "class B"),
    ],
)
def test_a_change_of_a_function_changes_its_digest(
    mutation: ModuleType, tmp_path: Path, change: tuple[str, str]
) -> None:
    code = "def f(x):\n    return x + 1\n"
    code += "class A:\n    @property\n    def g(self):\n        return 3\n"
    path = tmp_path / "module.py"
    path.write_text(code)
    before = mutation.digest(path)
    path.write_text("import os\n\n" + code)
    assert mutation.digest(path) == before
    path.write_text(code.replace(*change))
    assert mutation.digest(path) != before


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
    assert not set(reasons) - told, "explained, but no survivor"
    assert metrics["incomplete"] == [
        name for name, one in begun.items() if one["tried"] < one["mutants"]
    ]
    assert set(metrics["not_begun"]) == set(mutation.TESTS) - set(begun)
