"""The recall edition: a chapter without what is to be remembered."""

from __future__ import annotations
import __future__

import ast
import json
import re
import sys
import types
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from press.chapters import read_book, read_chapter
from press.notebooks import notebooks
from press.recall import PREDICTION, stubs

from .conftest import Book, code, exported

ROOT = Path(__file__).resolve().parents[2]
STORY = [c for c in read_book(ROOT) if c.room == "story"]
FLAG = __future__.annotations.compiler_flag


def cells_of(name: str, kind: str) -> list[str]:
    path = ROOT / "book/notebooks/recall" / f"{name}.ipynb"
    return [
        "".join(cell["source"])
        for cell in json.loads(path.read_text("utf-8"))["cells"]
        if cell["cell_type"] == kind
    ]


def bodies(source: str) -> set[str]:
    """The lines of functions, but for signatures and docstrings."""
    lines, found = source.splitlines(), set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            rest = node.body[ast.get_docstring(node) is not None :]
            for part in rest:
                rows = lines[part.lineno - 1 : part.end_lineno]
                found |= {row.strip() for row in rows}
    return {line for line in found if len(line.partition("#")[0]) > 12}


@pytest.mark.parametrize("chapter", STORY, ids=lambda c: c.name)
def test_names_are_there_and_bodies_are_not(chapter) -> None:
    """And it can be run from top to bottom as it is."""
    plt.switch_backend("agg")
    own = [c for c in chapter.code if "export" in str(c.tags)]
    module = sys.modules["recalled"] = types.ModuleType("recalled")
    space = module.__dict__
    written = []
    for source in cells_of(chapter.name, "code")[1:]:
        exec(compile(source, chapter.name, "exec", FLAG), space)
        written.append(source)
    text = "\n".join(written)
    for cell in own:
        for node in ast.parse(cell.source).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                assert node.name in space, node.name
    kept = {line.strip() for line in text.splitlines()}
    for cell in own:
        lost = bodies(cell.source) - bodies(stubs(cell))
        fields = {  # a method may begin as a field does
            line
            for line in lost & kept
            if re.match(r"(from|import) |\w+: ", line)
        }
        assert not lost & kept - fields, lost & kept
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert ast.unparse(node.body[-1]) in (
                "raise NotImplementedError",
                "...",
            ), node.name


@pytest.mark.parametrize("chapter", STORY, ids=lambda c: c.name)
def test_nothing_of_the_prose_is_left(chapter) -> None:
    """Headings and questions are; what is said of the choices is not."""
    given = "\n".join(cells_of(chapter.name, "markdown"))
    prose = reasons = ""
    for cell in chapter.cells:
        if cell.kind == "markdown":
            prose += PREDICTION.sub("", cell.source) + "\n"
            for match in PREDICTION.finditer(cell.source):
                reasons += match[2]
    lines = [x for x in prose.splitlines() if len(x) > 60]
    assert lines and not [x for x in lines if x in given]
    told = [x.partition(" — ")[2] for x in reasons.splitlines()]
    assert not [x for x in told if len(x) > 20 and x in given]
    assert "✓" not in given
    for heading in re.findall(r"^## .+", prose, re.M):
        apart = heading[3:] in ("Exercises", "What to read next")
        assert (heading in given) is not apart, heading


def test_of_a_chapter_signatures_and_questions_are_left(book: Book) -> None:
    book.chapter(
        "02-one",
        "Prose that says how.\n\n## A part\n\nMore of it.",
        exported(
            '''
            LIMIT = 7


            def plus(a: int, b: int = 2) -> int:
                """Their sum."""
                return a + b  # at last


            class Pair:
                """Two numbers."""

                first: int = 1  # of them

                @property
                def both(self) -> int:
                    return plus(self.first)
            '''
        ),
        ":::{admonition} Predict: how much?\n:class: predict\n"
        "Of one and one.\n\n- 2 — ✓ so it is.\n- 3 — too much.\n:::",
        code("plus(1, 1)"),
        "## What to read next\n\nNothing.",
        module="one",
    )
    notebooks(book.root)
    path = book.root / "book/notebooks/recall/02-one.ipynb"
    cells = json.loads(path.read_text("utf-8"))["cells"][2:]
    assert ["".join(cell["source"]) for cell in cells] == [
        "# A title\n\n## A part",
        'LIMIT = ...\n\n\ndef plus(a: int, b: int = 2) -> int:\n    """Their '
        'sum."""\n    raise NotImplementedError\n\n\nclass Pair:\n    """Two '
        'numbers."""\n    first: int = 1  # of them\n\n    @property\n    '
        "def both(self) -> int:\n        raise NotImplementedError",
        "**Predict: how much?** Of one and one.\n\n- 2\n- 3",
    ]
    chapter = read_chapter(book.root / "book/02-one.md")
    assert stubs(chapter.code[1]) == ""
