"""Slides: what a class sees of a chapter, from one file."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import pytest

from press.__main__ import main
from press.chapters import PressError, read_book
from press.numbers import labels
from press.posters import EMPTY
from press.site import _unexecuted
from press.slides import _Deck, _sentence, slides

from .conftest import BOOK, Book

STORY = {c.name: c for c in read_book(BOOK.parent) if c.room == "story"}
LABELS = labels(read_book(BOOK.parent))


@pytest.fixture(scope="module")
def made(built: Book, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("slides")
    options = ["--root", str(built.root), "slides", "--out", str(out)]
    assert main(options) == 0
    return out


def sections(page: str) -> list[str]:
    return re.findall(r"<section>\n(.*?)\n</section>", page, re.S)


def test_each_page_of_the_story_is_a_deck(made: Path) -> None:
    names = sorted(path.name for path in made.iterdir())
    assert names == ["00-preface.html", "02-one.html", "03-two.html"]


def test_a_deck_has_the_title_the_figures_and_the_questions(
    made: Path,
) -> None:
    page = (made / "02-one.html").read_text("utf-8")
    title, section, line, answer = sections(page)
    assert "<h1>2 · One</h1>" in title
    assert (
        "<h2>Section</h2><p>See the next, moved, and Figure 2.1.</p>"
        in section
    )
    assert 'alt="A rising line"' in line
    assert "<strong>Figure 2.1.</strong> A line that <em>rises" in line
    assert "<details>" not in line
    # what the page hides is asked for first, and folded
    asked, folded = answer.split("<details>")
    assert "How large is a <em>score</em>?" in asked
    assert 'alt="A falling line"' in folded
    assert "<img" not in asked
    assert "Exercises" not in page


def test_formulas_are_set_and_tables_are_left_out(made: Path) -> None:
    page = (made / "03-two.html").read_text("utf-8")
    wide = sections(page)[2]
    assert "<h2>What is wide</h2>" in wide
    assert wide.count("<math") == 1
    assert "<table" not in page


def test_a_deck_asks_nobody_for_anything(made: Path) -> None:
    for path in made.iterdir():
        page = path.read_text("utf-8")
        addresses = re.findall(r'(?:src|href)="([^"]*)"', page)
        assert all(a.startswith("data:image/") for a in addresses)
        assert "<link" not in page
        assert page.replace("url(data:font/", "").count("url(") == 0


def test_pages_that_have_not_run_are_told(book: Book) -> None:
    book.chapter("02-one", "## A\n\nText.", title="One")
    with pytest.raises(PressError, match="press execute 02-one"):
        slides(book.root, ["02"], book.root / "slides")


class Text(HTMLParser):
    """The words of a page, without formulas and code."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.within = "", 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.within += tag in ("math", "code", "style", "script")

    def handle_endtag(self, tag: str) -> None:
        self.within -= tag in ("math", "code", "style", "script")

    def handle_data(self, data: str) -> None:
        self.words += "" if self.within else data


@pytest.mark.parametrize("name", STORY)
def test_of_every_chapter_nothing_is_left_in_markdown(name: str) -> None:
    chapter = STORY[name]
    notebook = nbformat.writes(_unexecuted(chapter))
    page = _Deck(BOOK.parent, chapter, notebook, LABELS).page()
    text = Text()
    text.feed(page)
    assert not re.findall(r"\$|\]\(|:::|\{\w+\}|\*\*|\ue000", text.words)
    assert page.count("<section>") >= 5


def test_questions_and_exercises_of_a_chapter_are_there() -> None:
    chapter = STORY["02-attention"]
    notebook = nbformat.writes(_unexecuted(chapter))
    found = sections(_Deck(BOOK.parent, chapter, notebook, LABELS).page())
    *_, question, exercises = found
    assert question.count("<details>") >= 3
    assert "<p>2.1 · Attention weights, 15 minutes</p>" in exercises


def test_of_a_figure_to_be_drawn_the_axes_are_seen_first() -> None:
    axes = plt.subplots()[1]
    axes.plot([1, 2], gid="curve")
    file = io.StringIO()
    plt.savefig(file, format="svg")
    plt.close()
    chapter = STORY["02-attention"]
    notebook = _unexecuted(chapter)
    for cell, origin in zip(notebook.cells, chapter.cells, strict=True):
        if "poster" in origin.tags:
            data = {"image/svg+xml": file.getvalue()}
            cell.outputs = [nbformat.v4.new_output("display_data", data)]
    text = nbformat.writes(notebook)
    found = sections(_Deck(BOOK.parent, chapter, text, LABELS).page())
    hidden = [one for one in found if EMPTY in one]
    posters = ["poster" in origin.tags for origin in chapter.cells]
    assert len(hidden) == sum(posters) > 1
    for one in hidden:
        drawings = re.findall(r"base64,([^\"]+)", one)
        empty, whole = (base64.b64decode(x).decode() for x in drawings)
        assert 'id="curve"' in whole
        assert 'id="curve"' not in empty
        assert one.index(EMPTY) < one.index("<details>")


def test_the_first_sentence_is_of_the_text() -> None:
    prose = (
        "## A\n\n:::{admonition} Card\nNo. Never.\n:::\n\n$$x$$\n\n"
        "- a list\n\nThis leads to code:\n\n*Words* come. Then more."
    )
    assert _sentence(prose) == "*Words* come."
