"""Rules for the reader's sake, and where it is said that one is broken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from press.__main__ import main
from press.chapters import read_book
from press.export import export
from press.notebooks import GUESSES
from press.rules import GUESS, Reading, offences, prose, sections

from .conftest import Book, code, exported

ROOT = Path(__file__).resolve().parents[2]


def test_this_book_keeps_to_the_rules() -> None:
    assert offences(ROOT) == {}


def test_an_appendix_that_exports_is_named(book: Book) -> None:
    book.chapter("02-one", exported("ONE = 1"), module="one")
    book.chapter("A1-guide", "## Use", code("1"), code("A = 1", "export:a"))
    assert offences(book.root) == {
        "A1-guide": [
            'book/A1-guide.md, section "Use", code cell 2 (A = 1): '
            "an appendix exports nothing"
        ]
    }


def test_a_question_is_not_folded_with_the_answer_before_it(
    book: Book,
) -> None:
    book.chapter(
        "02-one",
        exported("ONE = 1"),
        code("1 + 1", "hide-output"),
        "It is two. Predict three.",
        code("1 + 2", "hide-output"),
        "It is three.\n\nPredict the next.",
        code("2 + 2", "hide-output"),
        module="one",
    )
    assert offences(book.root) == {
        "02-one": [
            'book/02-one.md, section "A title": "It is two. Predict three.…" '
            "is folded with the output above it; begin a paragraph before "
            "the next prediction"
        ]
    }


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("guess = 1", True),
        ("rate, (guess, _) = 1, (2, 3)", True),
        ("for guess in range(3):\n    print(guess)", True),
        ("def guess(what):\n    return what", True),
        ("import math as guess", True),
        ("print(guess := 3)", True),
        ("def ask():\n    global guess\n    guess = 1", True),
        ("%matplotlib inline\nguess = 1", True),
        ("def ask(guess):\n    return guess", False),
        ("print([guess for guess in range(3)])", False),
        ("print(dict(guess=1), 'guess = 1')", False),
        ("half = guess / 2", False),
    ],
)
def test_a_page_that_takes_the_name_of_guesses_is_named(
    book: Book, source: str, named: bool
) -> None:
    """A notebook's first cell makes it (press.notebooks)."""
    assert f"\n{GUESS} = " in GUESSES
    book.chapter("01-one", code("1 + 1", "hide-output"), code(source))
    found = offences(book.root)
    assert bool(found) == named
    if named:
        [line] = found["01-one"]
        assert "01-one.md" in line and "take another name" in line


# --- no idea is used before it is taught ----------------------------------


@pytest.mark.parametrize(
    "prose",
    [
        "It is two.\n\nSo it is even.",
        "It is two.\n\nThe right panel shows why.\n\nNow three.",
        "It is two.\n\nWhich is even. All curves meet there.",
        "It is two.\n\nSo is it even? It is. Predict the next.",
        "## Next\n\n:::{reading}\nIt is two.\n:::",
    ],
)
def test_what_gives_a_hidden_output_away_is_named(
    book: Book, prose: str
) -> None:
    book.chapter("01-one", code("1 + 1", "hide-output"), prose)
    [[line]] = offences(book.root).values()
    assert "reading" in line and "01-one.md" in line


@pytest.mark.parametrize(
    "prose",
    [
        ":::{reading}\nTwo.\n\nSo it is even.\n:::\n\nNow three.",
        "It is two.\n\nNow three. Predict the two curves.",
        "It is two.\n\n## Three\n\nSo much for two.",
        "It is two.",
    ],
)
def test_what_leads_on_may_stand_open(book: Book, prose: str) -> None:
    book.chapter("01-one", code("1 + 1", "hide-output"), prose)
    assert offences(book.root) == {}


def shelf(book: Book, source: str) -> list[str]:
    """What is said where page 03 of the story exports this."""
    book.chapter("02-one", exported("ONE = 1"), module="one")
    book.chapter(
        "03-two",
        "## Here\n\n[fast](E1-fast.md) and [new](E2-new.md#x)",
        code("from annotated.late import LATE"),  # not exported: allowed
        exported(source),
        module="two",
    )
    book.chapter("04-one", exported("MORE = 1"), module="one")
    book.chapter("05-late", exported("LATE = 1"), module="late")
    book.chapter(
        "E1-fast",
        exported("""
            from annotated.engine.new import new, old

            FAST = (new, old)
        """),
        code("PLAIN = 1", "export:engine.files"),
        module="engine.fast",
    )
    book.chapter(
        "E2-new",
        exported("""
            from annotated.one import ONE


            def new() -> int:
                "New."
                from annotated.late import LATE

                return LATE + ONE


            def old() -> int:
                "Old."
                return ONE
        """),
        module="engine.new",
    )
    export(book.root)
    found = offences(book.root)
    assert found.keys() <= {"03-two"}
    return found.get("03-two", [])


FAST = (
    "annotated.engine.fast.FAST, which imports annotated.engine.new.new, "
    "which imports annotated.late.LATE, which only book/05-late.md teaches"
)
LATER = {
    "from annotated.late import LATE\n\nA = LATE": (
        "annotated.late.LATE, which only book/05-late.md teaches"
    ),
    "from annotated import late\n\nA = late": (
        "annotated.late, which only book/05-late.md teaches"
    ),
    'def f() -> object:\n    "F."\n    import annotated.late\n\n'
    "    return annotated": (
        "annotated.late, which only book/05-late.md teaches"
    ),
    "from annotated.one import MORE\n\nA = MORE": (
        "annotated.one.MORE, which only book/04-one.md teaches"
    ),
    "from annotated import one\n\nA = one": (
        "annotated.one, which only book/04-one.md teaches"
    ),
    "from annotated.engine.fast import FAST\n\nA = FAST": FAST,
    "from annotated.engine import fast\n\nA = fast": FAST.replace(
        "fast.FAST", "fast"
    ),
}


@pytest.mark.parametrize("source", LATER)
def test_what_is_used_before_it_is_taught_is_named(
    book: Book, source: str
) -> None:
    first = source.splitlines()[0]
    assert shelf(book, source) == [
        f'book/03-two.md, section "Here", code cell 2 ({first}): imports '
        + LATER[source]
    ]


@pytest.mark.parametrize(
    "source",
    [
        "from annotated.one import ONE\n\nA = ONE",
        "from annotated.engine.files import PLAIN\n\nA = PLAIN",
        "import math\n\nA = math.pi",
    ],
)
def test_what_was_taught_and_what_is_machinery_may_be_used(
    book: Book, source: str
) -> None:
    assert shelf(book, source) == []


# --- minutes --------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words", "lines"),
    [
        ("Three [short words](https://x.org/a-b) – **and** $x$", 5, 0),
        (
            ":::{admonition} Paper §3\n:class: paper\nIts *own* words.\n:::",
            5,
            0,
        ),
        ("```sh\nmake book\n\nmake test\n```", 0, 2),
        ("```{code-block} sh\n:caption: words\nmake\n```", 0, 1),
        ("```{raw} html\n<p>Not counted</p>\n```\n\nOne", 1, 0),
        ("| a | b |\n|---|---|\n| c | d e |", 5, 0),
        (
            "::::{exercise} Title\n:label: ex-a\n\n"
            ":::{note}\nInside\n:::\n::::",
            0,
            0,
        ),
    ],
)
def test_words_and_lines_are_counted_as_they_are_read(
    text: str, words: int, lines: int
) -> None:
    parts = [part for _, part in prose(text, "")]
    assert sum(parts, Reading()) == Reading(words, lines)


def test_what_stands_open_is_counted(book: Book) -> None:
    book.chapter(
        "02-one",
        "Predict.\n\nSketch.\n\n:::{exercise} Predict\nNothing.\n:::",
        exported("import math"),  # folded
        exported("A = math.pi\n\nB = A"),
        code("import math"),
        code("A\n\nB"),
        figure("{figure: {caption: One}}\ntags: [hide-input]"),
        code("import torch", "show"),
        module="one",
    )
    (page,) = read_book(book.root)
    whole = sum(sections(page).values(), Reading())
    assert whole == Reading(words=4, lines=5, figures=1, predictions=2)
    assert whole.minutes == pytest.approx(4 / 180 + 5 / 8 + 3 / 4 + 2)


def test_a_page_that_takes_too_long_is_named(
    book: Book, capsys: pytest.CaptureFixture[str]
) -> None:
    book.chapter("02-one", "## Short", "word " * 180, "## Long")
    path = book.root / "book/02-one.md"
    text = path.read_text()
    path.write_text(text + "word " * (44 * 180 - 4))
    assert offences(book.root) == {}
    path.write_text(text + "word " * (44 * 180 + 90))
    assert offences(book.root) == {
        "02-one": [
            'book/02-one.md, section "Long": the page takes 45.5 minutes to '
            "read, not 45; this section takes most of them, 44.5"
        ]
    }
    path.rename(path.with_name("E1-one.md"))
    book.chapter("03-two", "[engine](E1-one.md)")
    assert offences(book.root) == {}
    assert main(["--root", str(book.root), "minutes"]) == 0
    row = capsys.readouterr().out.splitlines()[5]
    assert row.split()[:3] == ["E1-one", "engine", "8194"]
    assert row.split()[-2:] == ["0", "46"]


@pytest.mark.parametrize(("name", "most"), [("02-one", 30), ("E1-one", 60)])
def test_a_cell_that_is_too_long_is_named(
    book: Book, name: str, most: int
) -> None:
    book.chapter("01-zero", "[one](E1-one.md)")
    lines = [f"print({i})" for i in range(most)]
    book.chapter(name, "## Here", code("\n\n".join(lines)))
    assert offences(book.root) == {}
    book.chapter(name, "## Here", code("\n".join([*lines, "1"])))
    assert offences(book.root) == {
        name: [
            f'book/{name}.md, section "Here", code cell 1 (print(0)): '
            f"has {most + 1} lines, not {most}"
        ]
    }


def test_a_listing_that_is_wider_than_a_page_is_named(book: Book) -> None:
    text = ":::{{solution}} x\n```python\n{}\n```\n:::\n\n" + "prose " * 40
    book.chapter("02-one", "## Here", text.format("x" * 76))
    assert offences(book.root) == {}
    book.chapter("02-one", "## Here", text.format("x" * 77))
    assert offences(book.root) == {
        "02-one": [
            f'book/02-one.md, section "Here": the line "{"x" * 40}…" of a '
            "listing has 77 columns, not 76"
        ]
    }


def test_a_page_of_the_engine_room_that_no_story_leads_to_is_named(
    book: Book,
) -> None:
    book.chapter("E1-one", "See [another](E2-two.md).", title="Fast")
    book.chapter("E2-two", "See [another](E1-one.md).", title="Large")
    book.chapter("A1-guide", "See [one](E1-one.md).")
    book.chapter("02-one", "See [two](E2-two.md#heading).")
    assert offences(book.root) == {
        "E1-one": [
            'book/E1-one.md, section "Fast": no page of the story '
            "introduces it with a link"
        ]
    }


def figure(settings: str) -> str:
    return (
        f"```{{code-cell}} ipython3\n---\nmystnb: {settings}\n---\n1\n```"
    )


def test_a_figure_without_words_is_named(book: Book) -> None:
    whole = '{image: {alt: "A line"}, figure: {caption: "It rises."}}'
    book.chapter("02-one", "## Here", figure(whole))
    assert offences(book.root) == {}
    place = 'book/02-one.md, section "Here", code cell 1 (1)'
    for settings, missing in (
        ('{image: {alt: "A line"}}', "caption"),
        ('{image: {alt: "A line"}, figure: {name: fig-a}}', "caption"),
        ('{figure: {caption: "It rises."}}', "alt text"),
    ):
        book.chapter("02-one", "## Here", figure(settings))
        assert offences(book.root) == {
            "02-one": [f"{place}: the figure has no {missing}"]
        }


def test_a_paper_that_the_references_lack_is_named(book: Book) -> None:
    listed = (
        "@article{one2017,\n  title = {One},\n  eprint = {1706.00001}\n}"
    )
    book.write("book/references.bib", f"{listed}\n")
    at = "https://arxiv.org"
    text = f"[One]({at}/abs/1706.00001), [two]({at}/pdf/1706.00002)."
    book.chapter("01-one", "## Read more", text)
    assert offences(book.root) == {
        "01-one": [
            'book/01-one.md, section "Read more": '
            "arXiv 1706.00002 is not in references.bib"
        ]
    }


def test_a_label_that_is_taken_is_named(book: Book) -> None:
    line = '{{image: {{alt: "A"}}, figure: {{caption: "B", name: {}}}}}'
    exercise = ":::{{exercise}} Think\n:label: {}\nWhy?\n:::"
    first = figure(line.format("fig-a"))
    book.chapter("02-one", "## Here", first, exercise.format("ex-a"))
    book.chapter("03-two", "## There", figure(line.format("fig-b")))
    assert offences(book.root) == {}
    book.chapter(
        "03-two", "## There", first, exercise.format("ex-a"), first
    )
    there = 'book/03-two.md, section "There"'
    here = 'book/02-one.md, section "Here"'
    assert offences(book.root) == {
        "03-two": [
            f"{there}, code cell 1 (1): the label fig-a is taken: "
            f"{here}, code cell 1 (1)",
            f"{there}: the label ex-a is taken: {here}",
            f"{there}, code cell 2 (1): the label fig-a is taken: "
            f"{here}, code cell 1 (1)",
        ]
    }


def test_rules_are_told_by_page_and_for_all(
    book: Book, capsys: pytest.CaptureFixture[str]
) -> None:
    book.chapter("A1-one", code("A = 1", "export:a"))
    book.chapter("A2-two", code("B = 1", "export:b"))

    def told(*names: str) -> list[str]:
        press = ["--root", str(book.root), "rules", *names]
        assert main(press) == 1
        return [line[5:11] for line in capsys.readouterr().err.splitlines()]

    assert told() == ["A1-one", "A2-two"]
    assert told("A1") == ["A1-one"]
    assert told("A1", "A2-two") == ["A1-one", "A2-two"]
    assert main(["--root", str(book.root), "rules", "A3"]) == 2
    main(["--root", str(book.root), "export"])
    main(["--root", str(book.root), "notebooks"])
    capsys.readouterr()
    assert main(["--root", str(book.root), "check"]) == 1
    assert capsys.readouterr().err.startswith("book/A1-one.md, section")


# --- what a hidden output prints ------------------------------------------


@pytest.mark.parametrize(
    ("below", "told"),
    [
        ("Half of the 96.4 per cent are new.", "96.4"),
        ("With 12,345 of them we go on.", "12345"),
        ("Now for 7 others, and for 50 steps.", ""),  # 50 stands above
        ("Now for 196.4 others.", ""),
        ("It has 96.4.\n\nNow go on.", ""),  # folded with the output
    ],
)
def test_numbers_of_a_hidden_output_are_not_told(
    book: Book, below: str, told: str
) -> None:
    if "\n\n" not in below:
        below = f"What it means.\n\n{below}"
    source = "print(right)"
    path = book.chapter(
        "02-one", "How many are right after 50 steps?",
        code(source, "hide-output"), below,
    )  # fmt: skip
    [chapter] = read_book(book.root)
    assert chapter.name == path.stem
    ran = {
        "cell_type": "code",
        "source": source,
        "outputs": [{"text": "right: 96.4 of 12345, in 50, 7"}],
    }
    executed = {"cells": [ran]}
    book.write("build/executed/02-one.ipynb", json.dumps(executed))
    found = [
        line
        for line in offences(book.root).get("02-one", [])
        if "its numbers" in line
    ]
    assert [line.rpartition(": ")[2] for line in found] == (
        [told] if told else []
    )
    # what has not run as it stands is not judged
    ran["source"] = "1"
    book.write("build/executed/02-one.ipynb", json.dumps(executed))
    assert "02-one" not in offences(book.root)
