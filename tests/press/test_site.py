"""The site: it stands alone, and says where a fault is."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from press.chapters import PressError
from press.execute import execute
from press.export import export
from press.site import site

from .conftest import Book, code, exported, make_book

BOOK = Path(__file__).resolve().parents[2] / "book"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Book:
    """A book with this book's settings, set once."""
    book = make_book(tmp_path_factory.mktemp("site"))
    for name in ("conf.py", "index.md", "references.md", "references.bib"):
        shutil.copy(BOOK / name, book.root / "book" / name)
    shutil.copytree(BOOK / "_static", book.root / "book" / "_static")
    book.chapter("00-preface", "Words.", title="Preface")
    book.chapter(
        "02-one",
        ":::{admonition} Paper §3\n:class: paper\nIt says $a$.\n:::",
        "## Section\n\nSee [the next](03-two.md).",
        "{cite}`vaswani2017attention` is cited.",
        exported("ONE = 1"),
        code(
            """
            ---
            mystnb:
              image: {alt: "A rising line"}
            ---
            import matplotlib.pyplot as plt

            plt.plot([1, 2]);
            """
        ),
        ":::{exercise} Think (1 minute)\n:label: ex-one-think\nWhy?\n:::",
        ":::{solution} ex-one-think\n:class: dropdown\n$$x^2$$\n:::",
        module="one",
        title="One",
    )
    book.chapter(
        "03-two",
        code("import sys\n!echo $((40 + 2))"),
        code(
            "from IPython.display import Markdown\n"
            "Markdown('| **a** | b |\\n|---|---|\\n| 1 | `c` |')"
        ),
        minutes=3,
    )
    export(book.root)
    assert execute(book.root, say=lambda line: None) == []
    assert site(book.root) == "site/ holds 7 pages"
    return book


def page(book: Book, name: str) -> str:
    return book.read(f"site/{name}.html")


def test_a_table_that_a_cell_makes_is_a_table(built: Book) -> None:
    table = page(built, "03-two").partition("<table")[2]
    assert "<strong>a</strong>" in table.partition("</th>")[0]


def test_a_second_run_does_nothing(built: Book) -> None:
    assert site(built.root) == "site/ is current"


def test_the_line_below_the_title_says_what_a_chapter_makes_and_takes(
    built: Book,
) -> None:
    text = page(built, "02-one")
    assert re.search(r"<h1>2 · One<", text)
    line = re.search(r'<p class="chapter-facts">(.*?)</p>', text)
    assert line is not None
    plain = re.sub(r"<[^>]+>", "", line[1])
    assert re.fullmatch(
        r"runs in \d s \(at most 1 min on two cores\)makes annotated\.one"
        r"open in Colabnotebook",
        plain,
    )
    assert "some-book/blob/main/book/notebooks/02-one.ipynb" in line[1]
    assert re.search(r"<h1>Preface<", page(built, "00-preface"))


def test_pages_hold_what_the_chapters_hold(built: Book) -> None:
    text = page(built, "02-one")
    assert 'class="paper admonition"' in text
    assert re.search(r'<img alt="A rising line"[^>]*\.svg"', text)
    assert 'href="03-two.html"' in text
    assert "references.html" in text
    assert re.search(r'class="solution dropdown admonition"', text)
    assert "_static/book.js" in text  # which folds it
    assert "tag_export" in text
    assert "42" in page(built, "03-two")
    for side, other in (
        ("left-prev", "00-preface"),
        ("right-next", "03-two"),
    ):
        assert re.search(rf'"{side}"\s+href="{other}\.html"', text)


def test_no_page_asks_another_host_for_anything(built: Book) -> None:
    loads = re.compile(
        r"<(?:script|img|iframe|source|video|audio|embed|object)\b[^>]*?"
        r"(?:src|srcset|data)\s*=\s*[\"']?(?:https?:)?//[^>]*"
        r"|<link\b(?![^>]*rel=[\"']?canonical)[^>]*?href\s*=\s*[\"']?"
        r"(?:https?:)?//[^>]*"
    )
    outside = re.compile(
        r"(?:url\(|@import)\s*[\"']?\s*(?:https?:)?//[^)]*"
    )
    found = []
    for path in (built.root / "site").rglob("*"):
        if path.suffix == ".html":
            text = path.read_text(encoding="utf-8")
            found += [(path.name, m[0]) for m in loads.finditer(text)]
            found += [(path.name, m[0]) for m in outside.finditer(text)]
        elif path.suffix == ".css":
            text = path.read_text(encoding="utf-8")
            found += [(path.name, m[0]) for m in outside.finditer(text)]
    assert found == []


def test_what_pages_load_is_there(built: Book) -> None:
    folder = built.root / "site"
    for path in folder.glob("*.html"):
        text = path.read_text(encoding="utf-8")
        for name in re.findall(
            r"<(?:script|img|link)\b[^>]*?(?:src|href)=\"([^\"#?]+)", text
        ):
            if "://" not in name and not name.startswith("data:"):
                assert (path.parent / name).is_file(), (path.name, name)
    styles = folder / "_static" / "book.css"
    for name in re.findall(r'url\("([^"]+)"\)', styles.read_text()):
        assert (styles.parent / name).is_file(), name
    assert "mathjax/tex-svg-full.js" in page(built, "02-one")


def test_prose_is_set_again_and_faults_are_told(built: Book) -> None:
    before = built.read("book/03-two.md")
    built.write(
        "book/03-two.md", before + "\n## Further\n\n[Gone](04-gone.md)\n"
    )
    for _ in range(2):  # a fault stays a fault
        with pytest.raises(PressError) as error:
            site(built.root)
        assert any(
            line.startswith('book/03-two.md, section "Further": WARNING')
            for line in error.value.problems
        )
    assert "Further" not in page(built, "03-two")
    built.write("book/03-two.md", before + "\n## Further\n\nMore.\n")
    assert "holds 7 pages" in site(built.root)
    assert "Further" in page(built, "03-two")


def test_stale_outputs_are_not_set(built: Book) -> None:
    before = built.read("book/03-two.md")
    built.write("book/03-two.md", before.replace("40 + 2", "40 + 3"))
    with pytest.raises(PressError, match="press execute 03-two"):
        site(built.root)
    built.write("book/03-two.md", before)
