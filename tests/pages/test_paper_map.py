"""Every part of the paper is in the book, and where the map says.

book/paper.yml lists the parts, book/paper.d/*.yml says where each is
treated; the form of both is told at the head of paper.yml.
"""

from __future__ import annotations

import ast
import functools
import json
import pkgutil
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from press.chapters import headings
from press.paper import STATES, counts, paper_map
from press.references import works
from tests.helpers import environment

ROOT = Path(__file__).resolve().parents[2]
COVERAGE = (
    *("item", "chapter", "section", "symbol", "test", "state", "ledger"),
)
RUNS = "measured", "at full size"  # what a run can stand behind


# --- what a map has to fulfil ---------------------------------------------


def problems(root: Path) -> list[str]:
    """What is wrong with the map of this book, one line each."""
    items = load(root / "book" / "paper.yml")
    covered: dict[str, list[Path]] = {}
    found: list[str] = []
    for path in sorted((root / "book" / "paper.d").glob("*.yml")):
        for entry in load(path):
            covered.setdefault(entry.get("item", ""), []).append(path)
            known = entry.get("item") in {one["item"] for one in items}
            if not known:
                found.append(
                    f"{path.name}: no item is {entry.get('item')!r}"
                )
            where = f"{path.name}, {entry.get('item')}: "
            found += [
                where + what for what in wrong(entry, root, path.stem)
            ]
    for name, count in Counter(one["item"] for one in items).items():
        if count > 1:
            found.append(f"paper.yml: {name} is there {count} times")
    for one in items:
        if one["item"] not in covered:
            found.append(f"{one['item']}: not covered")
        if set(one) != {"item", "about"}:
            found.append(f"{one['item']}: has {', '.join(one)}")
    return found


def load(path: Path) -> list[dict[str, Any]]:
    return yaml.safe_load(path.read_text(encoding="utf-8")) or []


def wrong(entry: dict[str, Any], root: Path, file: str) -> Iterator[str]:
    """Where a line of coverage points at nothing."""
    if set(entry) - {"size"} != set(COVERAGE):
        yield f"has {', '.join(entry)} and not {', '.join(COVERAGE)}"
        return
    if entry["chapter"] != file:
        yield f"chapter {entry['chapter']} is not that of the file"
    chapter = root / "book" / f"{entry['chapter']}.md"
    if not chapter.is_file():
        yield f"there is no book/{chapter.name}"
    elif entry["section"] not in sections(chapter):
        yield f"{chapter.name} has no heading {entry['section']!r}"
    if entry["symbol"] is not None and not resolves(entry["symbol"]):
        yield f"{entry['symbol']} cannot be imported"
    if entry["test"] is not None and not is_test(root, entry["test"]):
        yield f"there is no test {entry['test']}"
    ledger, state = entry["ledger"], entry["state"]
    results = root / "book" / "results"
    if ledger is not None and not (results / f"{ledger}.json").is_file():
        yield f"there is no book/results/{ledger}.json"
    if state not in STATES:
        yield f"no state is {state!r}"
    if state in ("tested", "transcribed") and entry["test"] is None:
        yield f"{state} by no test"
    if state == "told" and entry["test"] is not None:
        yield "told, and yet there is a test"
    if state not in RUNS and ledger is not None:
        yield f"{state}, and yet there is a run"
    if state == "at full size" and ledger is None:
        yield "at full size by no run"
    if (state == "measured") != bool(entry.get("size")):
        yield f"{state}, and its size is {entry.get('size')!r}"


@functools.cache
def sections(chapter: Path) -> set[str]:
    """Its title and its headings."""
    text = chapter.read_text(encoding="utf-8")
    body = re.sub(r"\A---\n.*?^---\n", "", text, flags=re.S | re.M)
    return {title for _, title in headings(body)}


def resolves(symbol: str) -> bool:
    """Whether annotated.module.name, or a method of it, is there."""
    if not re.fullmatch(r"annotated(\.\w+){2,}", symbol):
        return False
    try:
        found = pkgutil.resolve_name(symbol)
    except (ImportError, AttributeError):
        return False
    return not isinstance(found, ModuleType)


def is_test(root: Path, name: str) -> bool:
    """Whether tests/test_file.py::test_name is there."""
    path, _, function = name.partition("::")
    file = root / path
    return file.is_file() and function in functions(file)


@functools.cache
def functions(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in tree.body if isinstance(node, kinds)}


# --- this book fulfils it -------------------------------------------------


def test_every_part_of_the_paper_is_covered() -> None:
    found = problems(ROOT)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        (r"(abstract|[1-7](\.\d)*|acknowledgements) p\d+", 60),
        (r"3\.2\.3 point \d", 3),
        (r"(eq \d|3\.2\.2 eq|3\.5 eq)", 5),
        (r"fn \d", 5),
        (r"notice|authors|footer|references", 4),
        (r"fig \d( left| right)?", 6),  # Figure 2 is two
        (r"table \d", 4),
        (r"table 1 row .+", 4),
        (r"table 2 row .+", 10),
        (r"table 3 row .+", 20),
        (r"table 4 row .+", 12),
    ],
)
def test_the_inventory_is_complete(kind: str, count: int) -> None:
    items = [one["item"] for one in load(ROOT / "book" / "paper.yml")]
    assert sum(bool(re.fullmatch(kind, item)) for item in items) == count


def test_paragraphs_are_counted_without_a_gap() -> None:
    last: dict[str, int] = {}
    for one in load(ROOT / "book" / "paper.yml"):
        match = re.fullmatch(r"(.+) p(\d+)", one["item"])
        if match:
            section, number = match[1], int(match[2])
            assert number == last.get(section, 0) + 1, one["item"]
            last[section] = number


def test_the_map_in_the_preface_has_every_chapter() -> None:
    text = (ROOT / "book" / "00-preface.md").read_text(encoding="utf-8")
    boxes = text[text.index("\nSTACK = [") : text.index("\nAFTERNOON = ")]
    there = {p.name[:2] for p in (ROOT / "book").glob("[0-9]*.md")} - {"00"}
    assert set(re.findall(r'(?<=[" ])\d\d(?=[" ])', boxes)) == there


def test_nothing_has_been_run_at_full_size() -> None:
    """A4's figure draws it as the goal: when this fails, redraw it."""
    assert counts(json.loads(paper_map(ROOT) or "")).startswith(
        "133 parts: 0 at full size, "
    )


def test_a_row_of_results_is_no_more_than_transcribed() -> None:
    """Nobody has trained the models of Tables 2 to 4 here."""
    parts = json.loads(paper_map(ROOT) or "")
    rows = [p for p in parts if re.match(r"table [234]", p["item"])]
    assert len(rows) == 3 + 10 + 20 + 12
    assert {p["state"] for p in rows} == {"transcribed"}


def test_the_first_page_of_the_repository_counts_as_the_map_does() -> None:
    said = (ROOT / "README.md").read_text(encoding="utf-8")
    words = " ".join(said.split())
    assert counts(json.loads(paper_map(ROOT) or "")) in words


def test_the_forty_works_of_the_paper_are_listed() -> None:
    """By number, first author and title's first word, in its order."""
    pytest.importorskip("pybtex", reason="it reads references.bib")
    text = (ROOT / "book" / "A4-paper-map.md").read_text(encoding="utf-8")
    listed = re.findall(r"^(\d+)\. \{cite:t\}`(\w+)`", text, re.M)
    assert [int(number) for number, _ in listed] == list(range(1, 41))
    known = {
        work.key: f"{work.people[0]}: {work.title.split()[0].strip(':')}"
        for work in works(ROOT)
    }
    assert [known[key] for _, key in listed] == CITED


CITED = [
    *("Ba: Layer", "Bahdanau: Neural", "Britz: Massive", "Cheng: Long"),
    *("Cho: Learning", "Chollet: Xception", "Chung: Empirical"),
    *("Dyer: Recurrent", "Gehring: Convolutional", "Graves: Generating"),
    *("He: Deep", "Hochreiter: Gradient", "Hochreiter: Long"),
    *("Huang: Self-Training", "Józefowicz: Exploring", "Kaiser: Can"),
    *("Kaiser: Neural", "Kalchbrenner: Neural", "Kim: Structured"),
    *("Kingma: Adam", "Kuchaiev: Factorization", "Lin: A"),
    *("Luong: Multi-task", "Luong: Effective", "Marcus: Building"),
    *("McClosky: Effective", "Parikh: A", "Paulus: A"),
    *("Petrov: Learning", "Press: Using", "Sennrich: Neural"),
    *("Shazeer: Outrageously", "Srivastava: Dropout"),
    *("Sukhbaatar: End-To-End", "Sutskever: Sequence"),
    *("Szegedy: Rethinking", "Vinyals: Grammar", "Wu: Google's"),
    *("Zhou: Deep", "Zhu: Fast"),
]


# --- and what is wrong would be seen --------------------------------------

CHAPTER = """\
---
annotated: {module: masks}
---

# Masks

## Padding
"""
LINE = {
    "item": "3 p1",
    "chapter": "03-masks",
    "section": "Padding",
    "symbol": "annotated.masks.padding_mask",
    "test": "tests/story/test_masks.py::test_padding",
    "state": "tested",
    "ledger": None,
}


@pytest.fixture
def book(tmp_path: Path) -> Path:
    """A small book with one item, which is covered."""
    (tmp_path / "book" / "paper.d").mkdir(parents=True)
    (tmp_path / "tests" / "story").mkdir(parents=True)
    (tmp_path / "book" / "03-masks.md").write_text(CHAPTER)
    test = "def test_padding():\n    assert True\n"
    (tmp_path / "tests" / "story" / "test_masks.py").write_text(test)
    inventory(tmp_path, {"item": "3 p1", "about": "the model"})
    cover(tmp_path)
    return tmp_path


def inventory(root: Path, *items: dict[str, str]) -> None:
    (root / "book" / "paper.yml").write_text(yaml.safe_dump(list(items)))


def cover(root: Path, **changes: str | None) -> None:
    path = root / "book" / "paper.d" / "03-masks.yml"
    path.write_text(yaml.safe_dump([LINE | changes]))


def test_a_map_that_holds_has_no_problem(book: Path) -> None:
    assert problems(book) == []


def test_a_line_may_do_without_symbol_and_test(book: Path) -> None:
    cover(book, symbol=None, test=None, state="told")
    assert problems(book) == []


def test_a_measured_line_names_a_run_or_leaves_it_to_the_page(
    book: Path,
) -> None:
    measured = {"test": None, "state": "measured", "size": "40 steps"}
    cover(book, **measured)
    assert problems(book) == []
    cover(book, **measured, ledger="masks-cpu")
    assert "book/results/masks-cpu.json" in problems(book)[0]
    (book / "book" / "results").mkdir()
    (book / "book" / "results" / "masks-cpu.json").write_text("{}")
    assert problems(book) == []


def test_an_item_that_nobody_treats_is_missed(book: Path) -> None:
    (book / "book" / "paper.d" / "03-masks.yml").unlink()
    assert problems(book) == ["3 p1: not covered"]


def test_no_item_is_exempt(book: Path) -> None:
    inventory(book, {"item": "3 p1", "about": "", "planned": "04"})
    assert problems(book) == ["3 p1: has about, item, planned"]


def test_an_item_is_listed_once(book: Path) -> None:
    inventory(book, *[{"item": "3 p1", "about": "the model"}] * 2)
    assert problems(book) == ["paper.yml: 3 p1 is there 2 times"]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"item": "3 p9"}, "no item is '3 p9'"),
        ({"chapter": "03-maps"}, "there is no book/03-maps.md"),
        ({"chapter": "04-masks"}, "chapter 04-masks is not that of the"),
        ({"section": "The past"}, "has no heading 'The past'"),
        ({"symbol": "annotated.masks.mask_all"}, "cannot be imported"),
        ({"symbol": "annotated.ghosts.Ghost"}, "cannot be imported"),
        ({"symbol": "padding_mask"}, "cannot be imported"),
        (
            {"test": "tests/story/test_masks.py::test_ghost"},
            "there is no test",
        ),
        ({"test": "tests/test_ghost.py::test_padding"}, "there is no test"),
        ({"page": "12"}, "and not item, chapter, section, symbol, test"),
        ({"state": "built"}, "no state is 'built'"),
        ({"test": None}, "tested by no test"),
        ({"test": None, "state": "transcribed"}, "transcribed by no test"),
        ({"state": "told"}, "told, and yet there is a test"),
        ({"ledger": "x", "state": "tested"}, "there is no book/results/x"),
        ({"state": "measured"}, "measured, and its size is None"),
        ({"size": "one step"}, "tested, and its size is 'one step'"),
        ({"state": "at full size"}, "at full size by no run"),
    ],
)
def test_a_line_that_points_at_nothing_is_named(
    book: Path, changes: dict[str, str], complaint: str
) -> None:
    cover(book, **changes)
    found = problems(book)
    assert any(complaint in problem for problem in found), found


# --- each claim's test depends on its code --------------------------------


def claims() -> dict[str, set[str]]:
    """The tests that the map names for each symbol."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "book" / "paper.d").glob("*.yml")):
        for entry in load(path):
            if entry["symbol"] and entry["test"]:
                found.setdefault(entry["symbol"], set()).add(entry["test"])
    return found


@pytest.mark.exhaustive
@pytest.mark.parametrize("symbol", sorted(claims()))
def test_a_claim_fails_where_its_code_is_broken(symbol: str) -> None:
    tests = sorted(claims()[symbol])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.broken", "-q"]
        + ["-p", "no:cacheprovider", "--tb=no", "-rfE", *tests],
        env=environment(BROKEN=symbol),
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    said = [line.split() for line in done.stdout.splitlines()]
    red = {
        words[1].partition("[")[0]
        for words in said
        if words[:1] in (["FAILED"], ["ERROR"])
    }
    # a test module that cannot even be imported fails with all its tests
    idle = {t for t in tests if not red & {t, t.partition("::")[0]}}
    assert not idle, done.stdout
