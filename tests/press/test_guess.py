"""A number to predict is checked against what the cell has printed."""

from __future__ import annotations

import re

import nbformat
import pytest

from annotated.book.guesses import HIDDEN, bounds, number_in
from press.chapters import PressError, read_book
from press.execute import executed_path
from press.guess import fill
from press.notebooks import expected_notebooks

from .conftest import Book

PRINTED = """untrained  7.5 8.6
trained    1.1 1.2
 5 words: 19% to padding
1 heads: 1,050,624 parameters, loss -0.25
big: 2.3e+19 operations
"""


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("trained #", ("1.1", 1.1)),
        ("untrained * #", ("8.6", 8.6)),
        ("5 words: #%", ("19", 19.0)),
        ("heads: # parameters", ("1,050,624", 1_050_624.0)),
        ("loss #", ("-0.25", -0.25)),
        ("big: #", ("2.3e+19", 2.3e19)),
        ("small: #", None),
    ],
)
def test_a_number_is_where_the_pattern_says(
    pattern: str, found: tuple[str, float] | None
) -> None:
    assert number_in(PRINTED, pattern) == found


@pytest.mark.parametrize(
    ("near", "low", "high"),
    [
        ("exact", 39.9, 40.1),
        ("± 5", 35, 45),
        ("± 10 %", 36, 44),
        ("× 2", 20, 80),
    ],
)
def test_how_near_is_right(near: str, low: float, high: float) -> None:
    assert bounds(40, near) == pytest.approx((low, high), rel=0.003)


def test_the_page_has_the_field_and_a_notebook_the_question(
    built: Book,
) -> None:
    text = built.read("site/03-two.html")
    [form] = re.findall(r"<form class=\"guess\".*?</form>", text, re.S)
    assert "<code>dots</code> in all" in form
    assert 'data-shown="42" data-low="36.99' in form
    assert '<div class="guesses" hidden>' in text  # a script shows it
    path = built.root / "book/notebooks/03-two.ipynb"
    notebook = nbformat.reads(expected_notebooks(built.root)[path], 4)
    [place] = [
        row
        for row, cell in enumerate(notebook.cells)
        if cell.source.startswith("guess(")
    ]
    before, asked, result = notebook.cells[place - 1 : place + 2]
    assert before.source.endswith("How many dots?")
    assert asked.source == (
        'guess("`dots` in all", ...,\n      at="about # dots", near="± 5")'
    )
    assert result.source.endswith(f"\n{HIDDEN}")
    assert notebook.cells[1].source.endswith("folded from now on")


def test_what_is_not_printed_or_misspelt_is_told(built: Book) -> None:
    chapter = next(c for c in read_book(built.root) if c.number == "03")
    notebook = nbformat.read(executed_path(built.root, chapter), 4)
    [place] = [
        row for row, c in enumerate(chapter.cells) if "{guess}" in c.source
    ]
    for row, what in (
        ("dots | about # lines | exact", "does not have"),
        ("dots | about # dots", "is written"),
        ("dots | about 42 dots | exact", "is written"),
        ("dots | about # dots | nearly", "is written"),
    ):
        with pytest.raises(PressError, match=what):
            fill(f":::{{guess}}\n{row}\n:::", chapter, place, notebook)
