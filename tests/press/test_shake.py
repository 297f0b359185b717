"""What pages claim: run with the page, tried on false results, shown never."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest
import torch
import yaml

from press.chapters import read_book
from press.execute import executed_path
from press.notebooks import notebooks
from press.rules import offences
from press.shake import shake
from press.shaken import MARK, hold
from press.unproved import EXCEPTIONS, MOST, Trains, exceptions
from press.worlds import WORLDS, worlds

from .conftest import Book, code

ROOT = Path(__file__).resolve().parents[2]
RUNS = [{"heads": 1, "right": 0.5}, {"heads": 2, "right": 1.0}]
PAGE = {
    "loss": 1.2,
    "hardly": 1 / 150,
    "right": {1: 0.53, 2: 0.99},
    "runs": RUNS,
    "losses": torch.tensor([2.0, 1.0, 0.5]),
    "said": "noitnetta",
    "steps": [400, 800],
    "learned": True,
}


def tried(
    source: str, capsys: pytest.CaptureFixture[str]
) -> dict[str, list[str]]:
    hold(source, dict(PAGE))
    line = capsys.readouterr().out.strip()
    found = json.loads(line.removeprefix(MARK))
    return {claim["says"]: claim["red"] for claim in found}


@pytest.mark.parametrize(
    ("claim", "red"),
    [
        ("loss < 1.5", "twice"),
        ("loss > 1", "half"),
        ("hardly < 0.15", "the rest"),
        ("right[2] > right[1]", "labels swapped"),
        ("right[2] > 1.5 * right[1]", "all alike"),
        ("losses[0] > losses[-1]", "labels swapped"),
        ("said == 'noitnetta'", "other words"),
        ("learned", "mirrored"),
        (
            "all((run['right'] > 0.9) == (run['heads'] > 1) for run in runs)",
            "labels swapped",
        ),
    ],
)
def test_a_claim_is_red_where_what_it_says_is_false(
    claim: str, red: str, capsys: pytest.CaptureFixture[str]
) -> None:
    [[shakes]] = [tried(f"assert {claim}", capsys).values()]
    assert red in shakes


@pytest.mark.parametrize(
    "claim",
    [
        "loss > -1000",
        "len(runs) == 2",
        "loss == loss",
        "right[1] in (0.53, 9)",
    ],
)
def test_a_band_for_every_result_claims_nothing(
    claim: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = tried(f"assert {claim}", capsys)
    expected = claim.startswith("right")  # that one is a real claim
    assert bool(found[claim]) == expected


def test_each_comparison_has_to_be_seen_red_by_itself(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = tried(
        "most = max(right.values())\nassert -99 < loss < 2 < 9 and most > 0.9",
        capsys,
    )
    assert [bool(red) for red in found.values()] == [
        False,
        True,
        False,
        True,
    ]


def test_a_false_claim_says_what_the_results_are() -> None:
    page = dict(PAGE)
    with pytest.raises(
        AssertionError, match=r"loss > 2, where loss = 1\.2"
    ):
        hold("twice = 2 * loss\nassert loss > 2", page)
    assert page.keys() == PAGE.keys()  # what it names stays its own


def test_a_claim_in_a_loop_is_tried_in_every_round(
    capsys: pytest.CaptureFixture[str],
) -> None:
    loop = "for heads, share in right.items():\n    "
    found = tried(
        f"{loop}assert 0.4 * heads < share and heads > -99", capsys
    )
    assert [bool(red) for red in found.values()] == [True, False]
    with pytest.raises(
        AssertionError, match="share < 0.9, where .* = 0.99"
    ):
        hold(f"{loop}assert share < 0.9", dict(PAGE))


def test_a_claim_that_is_never_reached_claims_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = tried("for loss in ():\n    assert loss < 1.5", capsys)
    assert found == {"loss < 1.5": []}


TRAINED = """
import torch

weight = torch.nn.Parameter(torch.tensor(3.0))
adam = torch.optim.SGD([weight], lr=0.1)
for _ in range(50):
    adam.zero_grad()
    (weight - 1).square().backward()
    adam.step()
end = weight.item()
torch.manual_seed(0)
drawn = torch.rand(()).item()
end
"""
READING = ":::{reading}\nIt ends at one.\n:::\n\nNext."
CLAIM = "assert 0.99 < end < 1.01 and drawn < 0.5"


@pytest.fixture(scope="module")
def shaken(tmp_path_factory: pytest.TempPathFactory) -> Book:
    from .conftest import make_book

    book = make_book(tmp_path_factory.mktemp("shaken"))
    book.chapter(
        "02-one",
        code(TRAINED, "hide-output"),
        code(f"{CLAIM}\nassert end > -100", "claims"),
        READING,
        code("1 + 1"),
    )
    return book


def test_claims_run_with_the_page_and_are_no_part_of_it(
    shaken: Book,
) -> None:
    said: list[str] = []
    [line] = shake(shaken.root, ["02"], said.append)
    assert "end > -100 holds whatever the results are" in line
    assert said[-1] == "4 claims, 3 seen red"
    assert offences(shaken.root) == {}  # the reading is folded, as before

    [chapter] = read_book(shaken.root)
    path = executed_path(shaken.root, chapter)
    executed = nbformat.read(path, as_version=4)
    sources = [c.source for c in executed.cells if c.cell_type == "code"]
    assert sources == [cell.source for cell in chapter.code]
    notebooks(shaken.root)
    assert "assert" not in shaken.read("book/notebooks/02-one.ipynb")


def test_a_world_in_which_a_claim_is_false_is_red_and_resumed(
    shaken: Book,
) -> None:
    said: list[str] = []
    problems = [
        line
        for world in ("seed-200", "seed-200")
        for line in worlds(shaken.root, world, [], said.append)
    ]
    assert len(problems) == 2 and problems[0] == problems[1]
    assert "drawn < 0.5, where drawn = " in problems[0]
    assert "02-one.md" in problems[0]
    done = [line for line in said if "pages to do" in line]
    assert done == [f"seed-200: {n} of 1 pages to do" for n in (1, 0)]


def test_worlds_have_names_of_their_own() -> None:
    assert len({world.name for world in WORLDS}) == len(WORLDS)


# --- sentences with nothing behind them -----------------------------------


def test_a_sentence_about_training_needs_a_claim(book: Book) -> None:
    book.chapter("02-one", code(TRAINED, "hide-output"), READING)
    [[line]] = offences(book.root).values()
    assert "It ends at one" in line and EXCEPTIONS in line

    book.write(
        EXCEPTIONS, "- {page: 02-one, says: ends at one, why: it does}\n"
    )
    assert offences(book.root) == {}


@pytest.mark.parametrize(
    "cells",
    [
        (code("end = 3\nend", "hide-output"), READING),  # not trained
        (code(TRAINED, "hide-output"), "Look at it."),  # says nothing
        (code(TRAINED), code("end = 2\nend", "hide-output"), READING),
    ],
)
def test_what_is_not_trained_or_says_nothing_needs_none(
    book: Book, cells: tuple[str, ...]
) -> None:
    book.chapter("02-one", *cells)
    assert offences(book.root) == {}


def test_training_is_found_behind_a_function_of_the_package(
    book: Book,
) -> None:
    book.write("annotated/__init__.py", "")
    book.write("annotated/deep.py", f"def learn():\n    {'torch.optim'}\n")
    book.write(
        "annotated/near.py",
        "from annotated.deep import learn\n\n\ndef fit(model):\n    learn()\n",
    )
    assert ("annotated.near", "fit") in Trains(book.root).names
    book.chapter(
        "02-one",
        code("from annotated.near import fit"),
        code("model = 1\nfit(model)"),
        code("shown = model\nshown", "hide-output"),
        READING,
    )
    [[line]] = offences(book.root).values()
    assert "It ends at one" in line


def test_exceptions_are_few_and_each_says_why() -> None:
    found = exceptions(ROOT)
    pages = {chapter.name for chapter in read_book(ROOT)}
    assert all(entry["page"] in pages and entry["why"] for entry in found)
    assert len(found) <= MOST
    text = (ROOT / EXCEPTIONS).read_text(encoding="utf-8")
    assert yaml.safe_load(text) == found
