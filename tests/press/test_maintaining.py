"""Whoever follows MAINTAINING.md by the letter has a page that holds."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from press.exercises import read_exercises
from press.export import expected_package
from press.mutants import try_out
from press.rules import offences
from press.study import read_questions
from tests.helpers import ROOT

TEXT = (ROOT / "MAINTAINING.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_new_page_of_the_walk_through_holds(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "book", "data/registry.toml"):
        source, copy = ROOT / name, tmp_path / name
        if source.is_dir():
            shutil.copytree(source, copy, ignore=lambda *_: {"notebooks"})
        else:
            copy.parent.mkdir(exist_ok=True)
            shutil.copy(source, copy)
    pages = tmp_path / "book"
    page, exercise, questions = re.findall(
        r"^`````\n(.*?)^`````$", TEXT, re.M | re.S
    )
    (pages / "28-sharpness.md").write_text(page, "utf-8")
    (pages / "exercises/28-entropy.md").write_text(exercise, "utf-8")
    [card] = re.findall(r"^```yaml\n(.*?)^```$", TEXT, re.M | re.S)
    edit(pages / "cards.yml", "\nA7-", f"\n{card}A7-")
    edit(
        pages / "A2-study-guide.md",
        "## Essay topics",
        f"{questions}\n## Essay topics",
    )
    edit(pages / "A7-teaching.md", "25 26 27 |", "25 26 27 28 |")
    [box] = re.findall(r"^```text\n(.*?)\n```$", TEXT, re.M | re.S)
    last = '("27", "real weights", APART, 7.9),'
    edit(pages / "00-preface.md", last, f"{last}\n    {box}")

    made = expected_package(tmp_path)[tmp_path / "annotated/sharpness.py"]
    exec(made, module := {})
    [test] = re.findall(r"^```python\n(.*?)^```$", TEXT, re.M | re.S)
    test = test.replace("from annotated.sharpness import entropy\n", "")
    exec(test, module)
    for name in [name for name in module if name.startswith("test_")]:
        module[name]()
    assert {"00-preface", "28-sharpness"} & offences(
        tmp_path
    ).keys() == set()
    [exercise] = [
        e for e in read_exercises(tmp_path) if e.name == "28-entropy"
    ]
    assert try_out(exercise).problems() == []
    asked = [q for q in read_questions(tmp_path) if q.chapter == "28"]
    assert len(asked) == 3 and len({q.right for q in asked}) == 3


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, old
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_what_it_tells_to_run_is_there() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"`make ([^`$]+)`|^make ([a-z -]+)", TEXT, re.M)
    names = {name for pair in targets for name in "".join(pair).split()} - {
        "&&",
        "make",
    }
    assert len(names) > 8
    assert all(re.search(f"^{n}:", makefile, re.M) for n in names), names
    for path in re.findall(
        r"`((?:benchmarks|book|tests|\.github)/[\w./-]+)`", TEXT
    ):
        if "28" not in path and "sharpness" not in path:
            assert (ROOT / path).exists(), path
