"""The study guide and the page for teachers take from the book what can
be taken from it.
"""

from __future__ import annotations

import json
import re

import pytest

from press.chapters import PressError, read_book, read_chapter
from press.export import expected_package
from press.notebooks import expected_notebooks
from press.site import _Book, _unexecuted
from press.study import parts_of, read_questions, reading

from .conftest import BOOK, Book

GLOSSARY = """## Words, by chapter

(words-02)=
### 02 One

| word | symbol, shape | built | in the paper | what it means |
|---|---|---|---|---|
| key | $k$ | here | – | what a *value* is found by |
"""
QUESTION = """:::{question} Two keys
Twice the same?

- No — it is
  another.
- Yes — ✓ it is.
- Perhaps — it is not.
:::"""
OUTLINE = ":::{outline} 02\n:::"


@pytest.fixture
def taught(book: Book) -> Book:
    """A chapter of two sections, a glossary, and a guide."""
    book.chapter(
        "02-one",
        f"## First\n\n{'word ' * 360}\n\n### More\n\n{'word ' * 180}",
        f"## Second\n\n{'word ' * 180}",
        "## Exercises\n\n:::{exercise} Predict: x (★, 7 minutes)\n"
        ":label: ex-one\nWhat?\n:::\n\n"
        "::::{exercise} Investigate: y (★★★, an evening)\n"
        ":label: ex-two\nHow?\n::::",
        title="One",
    )
    book.chapter("A1-notation", GLOSSARY, title="Glossary")
    book.chapter("A2-study-guide", OUTLINE, QUESTION, title="Guide")
    return book


def text_of(book: Book, name: str) -> str:
    page = read_chapter(book.root / "book" / f"{name}.md")
    return "\n".join(cell.source for cell in page.cells)


def test_an_outline_has_the_heading_the_parts_and_the_words(
    taught: Book,
) -> None:
    text = text_of(taught, "A2-study-guide")
    assert "(guide-02)=\n## 02 · One" in text
    assert "Outline: 4 minutes to read" in text
    assert "- [First](02-one.md#first), 3 minutes" in text
    assert "- [Second](02-one.md#second), 1 minute\n" in text
    assert "Exercises" not in text
    card = "<summary>key</summary><p>what a <em>value</em> is found by</p>"
    assert card in text


def test_a_question_is_a_prediction_on_the_page_and_data_in_the_package(
    taught: Book,
) -> None:
    text = text_of(taught, "A2-study-guide")
    assert ":::{admonition} 2a · Two keys\n:class: predict\n" in text
    assert "- Yes — ✓ it is." in text
    carried = expected_package(taught.root)
    path = taught.root / "annotated" / "questions.json"
    assert json.loads(carried[path]) == {
        "2a": {
            "chapter": "02",
            "title": "Two keys",
            "text": "Twice the same?",
            "choices": [
                ["No", "it is another."],
                ["Yes", "it is."],
                ["Perhaps", "it is not."],
            ],
            "right": 1,
        }
    }
    name = taught.root / "book/notebooks/A2-study-guide.ipynb"
    notebook = expected_notebooks(taught.root)[name]
    assert "2a · Two keys" in str(notebook)
    assert ":::" not in str(notebook)


def test_the_line_above_a_chapter_leads_to_its_questions(
    taught: Book,
) -> None:
    chapters = read_book(taught.root)
    shown = {c.name: _unexecuted(c) for c in chapters}
    whole = _Book(taught.root, chapters, shown)
    link = '<a href="A2-study-guide.html#guide-02">questions</a>'
    assert link in whole.facts(chapters[0])
    del shown["A2-study-guide"]
    alone = _Book(taught.root, chapters, shown)
    assert "questions" not in alone.facts(chapters[0])


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ((QUESTION,), "'Two keys' stands before any outline"),
        ((":::{outline} 07\n:::",), "no chapter has the number '07'"),
        (
            (OUTLINE, QUESTION.replace("✓ ", "")),
            "2a: a question has 3 choices or more, and one of them is",
        ),
        (
            (OUTLINE, QUESTION.replace("- Perhaps — it is not.\n", "")),
            "2a: a question has 3 choices or more",
        ),
        (
            (OUTLINE, QUESTION.replace(" — it is not", "")),
            "2a: 'Perhaps.' has no reason",
        ),
        ((":::{plan} slow\n02 | x\n:::",), "'fast' or 'all', not 'slow'"),
    ],
)
def test_what_is_wrong_with_a_fence_is_told(
    taught: Book, cells: tuple[str, ...], words: str
) -> None:
    taught.chapter("A2-study-guide", *cells, title="Guide")
    with pytest.raises(PressError, match=re.escape(words)):
        text_of(taught, "A2-study-guide")


def test_a_plan_adds_up_what_there_is_to_read(taught: Book) -> None:
    plan = ":::{plan} all\n02 | one thing | 1\n02 | another\n:::"
    taught.chapter("A7-teaching", plan, ":::{inventory}\n:::")
    text = text_of(taught, "A7-teaching")
    first = "| 1 | [02](02-one.md) | – | 0.1 | one thing; **milestone 1** |"
    assert first in text
    assert "| 2 | [02](02-one.md) | – | 0.1 | another |" in text
    row = "| [02 One](02-one.md) | 4 min | – | 2: 7 min |"
    assert row in text


# --- this book's own ---


def test_every_chapter_has_questions_and_no_place_is_always_right() -> None:
    questions = read_questions(BOOK.parent)
    pages = [path.name[:2] for path in sorted(BOOK.glob("[0-9][0-9]-*"))]
    assert list(dict.fromkeys(q.chapter for q in questions)) == pages
    for page in pages:
        assert sum(q.chapter == page for q in questions) >= 3, page
    places = [q.right for q in questions]
    for place in range(3):  # who always takes the first is not right
        assert len(places) / 5 < places.count(place) < len(places) / 2
    titles = [q.title for q in questions]
    assert len(set(titles)) == len(titles)


def test_the_longest_choice_is_not_the_right_one_too_often() -> None:
    questions = read_questions(BOOK.parent)
    longest = sum(
        max(range(len(q.choices)), key=lambda i: len(q.choices[i][0]))
        == q.right
        for q in questions
    )
    assert longest < 0.6 * len(questions), (longest, len(questions))


def test_the_plan_for_a_semester_reads_the_whole_book() -> None:
    text = (BOOK / "A7-teaching.md").read_text(encoding="utf-8")
    plans = re.findall(r":::\{plan\} \w+\n((?:.*\n)*?):::", text)
    weeks = [
        [row.split("|")[0].split() for row in plan.splitlines()]
        for plan in plans
    ]
    assert [len(plan) for plan in weeks] == [3, 6, 14]
    for plan in weeks:
        pages = [page for week in plan for page in week]
        assert pages == sorted(set(pages))
    every = [path.name[:2] for path in sorted(BOOK.glob("[0-9][0-9]-*"))]
    assert [page for week in weeks[2] for page in week] == every


def test_the_parts_of_a_chapter_are_no_more_than_the_chapter() -> None:
    chapter = read_chapter(BOOK / "12-optimiser.md")
    parts = parts_of(chapter)
    assert "How it ends" not in [part.title for part in parts]
    assert sum(part.minutes for part in parts) <= reading(chapter)
