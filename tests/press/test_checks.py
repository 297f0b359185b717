"""Drift: `press check` sees every edit of a derived file."""

from __future__ import annotations

import pytest

from press.__main__ import main
from press.checks import check, samples
from press.export import export
from press.format import format_book
from press.notebooks import notebooks

from .conftest import Book, code, exported

WRITER = """
from pathlib import Path


def write_samples(folder: Path) -> None:
    '''Write one pair.'''
    (folder / "train.tsv").write_text("a\\tä\\n", encoding="utf-8")
"""


@pytest.fixture
def whole(book: Book) -> Book:
    """A book of which everything derived is there, and current."""
    book.chapter("02-one", exported("ONE = 1"), module="one")
    book.chapter(
        "03-pocket",
        exported(WRITER),
        code("CASES = 3", "export:pocket.words"),
        module="pocket",
    )
    book.write("data/pocket/tables/nouns.tsv", "german\nFrau\n")
    book.write("data/registry.toml", "[copy]\n")
    book.write("book/results/a.json", "{}")
    export(book.root)
    notebooks(book.root)
    assert samples(book.root) == ["wrote data/pocket/train.tsv"]
    assert check(book.root) == []
    return book


@pytest.mark.parametrize(
    "name",
    [
        "annotated/one.py",
        "annotated/__init__.py",
        "annotated/registry.toml",
        "annotated/book/results.json",
        "annotated/pocket/nouns.tsv",
        "book/notebooks/02-one.ipynb",
        "data/pocket/train.tsv",
    ],
)
def test_an_edit_or_a_loss_of_a_derived_file_is_told(
    whole: Book, name: str
) -> None:
    text = whole.read(name)
    whole.write(name, text + "\n")
    assert check(whole.root) == [f"{name} is not what the book says"]
    whole.write(name, text.replace("\n", "\r\n", 1))
    assert check(whole.root) == [f"{name} is not what the book says"]
    (whole.root / name).unlink()
    assert check(whole.root) == [f"{name} is missing"]


@pytest.mark.parametrize(
    "name",
    [
        "annotated/more.py",
        "annotated/inner/more.py",
        "annotated/notes.txt",
        "book/notebooks/09-more.ipynb",
        "data/pocket/more.tsv",
    ],
)
def test_a_file_that_no_chapter_makes_is_told(
    whole: Book, name: str
) -> None:
    whole.write(name, "")
    assert check(whole.root) == [f"{name} comes from no chapter"]


def test_a_stale_export_is_told_with_what_mends_it(
    whole: Book, capsys: pytest.CaptureFixture[str]
) -> None:
    whole.edit("book/02-one.md", "ONE = 1", "ONE = 2")
    assert main(["--root", str(whole.root), "check"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "annotated/one.py is not what the book says",
        "book/notebooks/02-one.ipynb is not what the book says",
        "mend it with `make export notebooks`, and commit",
    ]


def test_caches_are_no_drift(whole: Book) -> None:
    whole.write("annotated/__pycache__/one.pyc", "")
    whole.write("book/notebooks/.ipynb_checkpoints/x.ipynb", "")
    assert check(whole.root) == []


def test_samples_that_cannot_be_made_end_in_one_line(
    whole: Book, capsys: pytest.CaptureFixture[str]
) -> None:
    whole.edit("book/03-pocket.md", '"a\\tä\\n"', "1 / 0")
    export(whole.root)
    assert main(["--root", str(whole.root), "samples"]) == 2
    assert "write_samples failed: ZeroDiv" in capsys.readouterr().err


def test_without_a_grammar_there_are_no_samples(book: Book) -> None:
    assert samples(book.root) == []
    book.chapter("02-one", exported("ONE = 1"), module="pocket")
    export(book.root)
    assert samples(book.root) == []


def test_format_touches_exported_cells_only(book: Book) -> None:
    path = book.chapter(
        "02-one",
        "ONE  =  1",
        exported("ONE  =  [1,\n2]"),
        code("TWO  =  2"),
        exported("def f(:"),
        code("---\ntags: [export]\n---\n\nSIX  =  6"),
    )
    before = path.read_text()
    assert format_book(book.root) == ["formatted book/02-one.md"]
    assert path.read_text() == before.replace(
        "ONE  =  [1,\n2]", "ONE = [1, 2]"
    ).replace("SIX  =  6", "SIX = 6")
    assert format_book(book.root) == []
