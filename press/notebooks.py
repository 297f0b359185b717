"""Write book/notebooks/*.ipynb: no outputs, the same bytes every time."""

from __future__ import annotations

import hashlib
import json
import re
from itertools import groupby
from pathlib import Path
from typing import Any

from annotated.book.guesses import HIDDEN
from press import files, fold, guess, myst, numbers, recall
from press.chapters import Cell, Chapter, read_book
from press.exercises import (
    SEEN,
    WRITTEN,
    Exercise,
    listed,
    notebook_of,
    read_exercises,
)
from press.project import Project, read_project
from press.study import Question, read_questions

SETUP_TITLE = "Install the book's package where it is missing, as on Colab"
SETUP = """\
import sys
from importlib import metadata, util


def need(name, have, *least):
    if tuple(map(int, have.split(".")[:2])) < least:
        name += " " + ".".join(map(str, least))
        raise RuntimeError(f"needs {{name}} or newer, not {{have}}")


need("Python", sys.version.split()[0], 3, 10)
if util.find_spec("torch"):  # never installed anew where it is
    need("PyTorch", metadata.version("torch"), 2, 3)
needed = ["annotated", "seaborn"]
if not all(map(util.find_spec, needed)):
    %pip install --quiet {install}"""
GUESSES = """

from annotated.book.guesses import Guesses

guess = Guesses()  # and hidden results are folded from now on"""
RUN = "Run it from the top, a cell at a time, with Shift+Enter."
GUESS = (
    f"{RUN} Before a cell whose result is hidden, write your guess first; "
    "the result opens when you ask for it."
)
BESIDE = re.compile(r"\]\((?=[\w-]+\.ipynb)")  # a link to a notebook
BADGE = "https://colab.research.google.com/assets/colab-badge.svg"


def notebooks(root: Path, check: bool = False) -> list[str]:
    """Write the notebooks (or, to check, say what has drifted)."""
    folder = root / "book" / "notebooks"
    expected = expected_notebooks(root)
    present = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".ipynb_checkpoints" not in path.parts
    ]
    if check:
        return files.drift(expected, present, root)
    return files.write(expected, present, _is_ours, root)


def expected_notebooks(root: Path) -> dict[Path, str]:
    chapters = read_book(root)
    project = read_project(root)
    index = myst.index(chapters, root, project)
    expected = {
        root / "book" / "notebooks" / f"{chapter.name}.ipynb": _text(
            chapter, project, index
        )
        for chapter in chapters
    }
    questions = read_questions(root)
    for chapter in chapters:
        if chapter.room == "story":
            path = root / "book/notebooks" / recall.notebook_of(chapter)
            expected[path] = recall_notebook(
                chapter, project, index, questions
            )
    for group in by_page(read_exercises(root)):
        path = root / notebook_of(group[0])
        expected[path] = exercise_notebook(group, project, index)
    return expected


def recall_notebook(
    chapter: Chapter,
    project: Project,
    index: myst.Index,
    questions: list[Question],
) -> str:
    """A chapter to be written from memory."""
    translator = myst.Translator(chapter.file, index)
    where = f"book/notebooks/{recall.notebook_of(chapter).as_posix()}"
    cells = [
        _markdown(
            f"[![Open in Colab]({BADGE})]({project.colab(where)})\n\nTo be "
            "written from memory, after the chapter is read: its headings, "
            "what its cells are called, and its questions. "
            f"{translator.link('The chapter', chapter.file)} has the rest."
        ),
        _folded(SETUP.format(install=project.install_book), SETUP_TITLE),
    ]
    for kind, text in recall.recalled(chapter, questions):
        if kind == "code":
            cells.append(_code(text))
        else:
            cells.append(_markdown(translator.translate(text)))
    _name_cells(f"recall {chapter.number}", _one_below(cells))
    return _notebook(cells, f"book/{chapter.file}")


def own_words(exercise: Exercise) -> str:
    """Where a student writes about what was to be investigated."""
    return (
        f"*{exercise.title}, in your own words ({len(exercise.rubric)} "
        "points): write here.*"
    )


def _one_below(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Links to other notebooks, from a folder inside theirs."""
    for cell in cells:
        if cell["cell_type"] == "markdown":
            text = BESIDE.sub("](../", "".join(cell["source"]))
            cell["source"] = text.splitlines(keepends=True)
    return cells


def by_page(exercises: list[Exercise]) -> list[list[Exercise]]:
    pages = sorted(exercises, key=lambda e: e.chapter)  # stable
    return [list(g) for _, g in groupby(pages, lambda e: e.chapter)]


def exercise_notebook(
    exercises: list[Exercise],
    project: Project,
    index: myst.Index,
    solved: bool = False,
) -> str:
    """The exercises of a page, to be written and checked; or solved, with
    the reference in place of what is to be written.
    """
    first = exercises[0]
    translator = myst.Translator(first.path.name, index)
    colab = project.colab(notebook_of(first))
    cells = [
        _markdown(
            f"[![Open in Colab]({BADGE})]({colab})\n\n# Exercises for "
            f"chapter {first.chapter}\n\nWrite what is asked for, run the "
            "cell, then the one below it: it says whether your answer is "
            "right and, if not, why."
        ),
        _folded(SETUP.format(install=project.install), SETUP_TITLE),
        _code("from annotated.checks import check, hint, solution"),
    ]
    for exercise in exercises:
        facts = exercise.facts
        stars = "★" * facts["difficulty"]
        text = (
            f"## {exercise.title}\n\n{facts['kind'].capitalize()} · "
            f"{stars} · {facts['minutes']} minutes · chapter "
            f"{facts['section']}\n\n{exercise.one('statement')}"
        )
        cells.append(_markdown(translator.translate(text)))
        cells.append(
            _code(exercise.one("reference" if solved else "starter"))
        )
        if exercise.symptom and not solved:
            cells.append(_markdown(SEEN))
            cells.append(_code(exercise.symptom))
        asked = f'"{exercise.name}"'
        cells.append(_code(f"check({exercise.checked})"))
        if exercise.cells["hint"] and not solved:
            cells.append(_code(f"# hint({asked})"))
        if exercise.rubric and not solved:
            cells.append(_markdown(own_words(exercise)))
        if solved:
            insight = translator.translate(exercise.one("insight"))
            cells.append(_markdown(insight))
        if exercise.rubric and solved:
            points = translator.translate(listed(exercise.rubric))
            cells.append(_markdown(f"{WRITTEN}\n\n{points}"))
    _name_cells(f"exercises {first.chapter}", _one_below(cells))
    return _notebook(cells, f"book/exercises/{first.path.name}")


def _text(chapter: Chapter, project: Project, index: myst.Index) -> str:
    translator = myst.Translator(chapter.file, index)
    figures = {id(cell): text for cell, text in numbers.figures(chapter)}
    waits = any("hide-output" in cell.tags for cell in chapter.cells)
    setup = SETUP.format(install=project.install_book)
    how = GUESS if waits else RUN
    cells = [
        _markdown(f"{_header(chapter, project)}\n\n{how}"),
        _folded(setup + GUESSES if waits else setup, SETUP_TITLE),
    ]
    for place, cell in enumerate(chapter.cells):
        if "skip-execution" in cell.tags:  # "run all" shall not run it
            cells.append(_markdown(f"```python\n{cell.source}\n```"))
        elif cell.kind == "code":
            cells.append(_code_of(chapter, cell))
        else:
            if text := _prose(chapter, place, translator):
                cells.append(_markdown(text))
            if asked := guess.asked(cell.source, cell):
                cells.append(_code("\n".join(map(_called, asked))))
        if figure := figures.get(id(cell)):
            caption = cell.metadata["mystnb"]["figure"]["caption"]
            text = translator.translate(f"**{figure}.** {caption}")
            cells.append(_markdown(text))
    _name_cells(chapter.name, cells)
    return _notebook(cells, f"book/{chapter.file}")


def _called(asked: tuple[str, str, str]) -> str:
    """A guess to be written, on the page a field with a button."""
    what, at, near = [
        json.dumps(text, ensure_ascii=False) for text in asked
    ]
    return f"guess({what}, ...,\n      at={at}, near={near})"


def _notebook(cells: list[dict[str, Any]], source: str) -> str:
    notebook = {
        "cells": cells,
        "metadata": {
            "annotated": {"source": source},
            "kernelspec": {
                "display_name": "Python 3",
                "language": "python",
                "name": "python3",
            },
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(notebook, ensure_ascii=False, indent=1) + "\n"


def _header(chapter: Chapter, project: Project) -> str:
    source = project.source(f"book/{chapter.file}")
    colab = project.colab(f"book/notebooks/{chapter.name}.ipynb")
    return (
        f"[![Open in Colab]({BADGE})]({colab}) · "
        f"made from [book/{chapter.file}]({source}): edit it there"
    )


def _prose(chapter: Chapter, place: int, to: myst.Translator) -> str:
    """A markdown cell; what would give away a hidden output is folded."""
    reading, rest = fold.reading(chapter, place)
    parts = [to.translate(reading), to.translate(rest)]
    if parts[0]:
        parts[0] = myst.details("What this shows", parts[0])
    return "\n\n".join(filter(None, parts))


def _markdown(text: str) -> dict[str, Any]:
    return {
        "cell_type": "markdown",
        "id": "",
        "metadata": {},
        "source": text.splitlines(keepends=True),
    }


def _code_of(chapter: Chapter, cell: Cell) -> dict[str, Any]:
    """A cell folded as on its page, for Jupyter and for Colab."""
    tags = fold.tags(chapter, cell)
    source = cell.source
    if "hide-output" in tags:
        source += f"\n{HIDDEN}"
    if {"hide-input", "hide-cell"} & set(tags):
        new = _folded(source, fold.title(chapter, cell))
    else:
        new = _code(source)
    metadata = new["metadata"]
    if tags:
        metadata["tags"] = tags
    if "hide-cell" in tags:
        metadata["collapsed"] = True
        metadata.setdefault("jupyter", {})["outputs_hidden"] = True
    return new


def _folded(source: str, title: str) -> dict[str, Any]:
    """Jupyter shows the first line alone, Colab a form of this title."""
    if source.startswith("%%"):  # a cell's magic comes first
        new = _code(source)
    else:
        new = _code(f"#@title {title}\n{source}")
        new["metadata"]["cellView"] = "form"
    new["metadata"]["jupyter"] = {"source_hidden": True}
    return new


def _code(source: str) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "execution_count": None,
        "id": "",
        "metadata": {},
        "outputs": [],
        "source": source.splitlines(keepends=True),
    }


def _name_cells(name: str, cells: list[dict[str, Any]]) -> None:
    """Ids from content: they move with a cell, and change with it only."""
    seen: dict[str, int] = {}
    for cell in cells:
        text = "".join(cell["source"])
        key = "\0".join((name, cell["cell_type"], text))
        seen[key] = seen.get(key, 0) + 1
        data = f"{key}\0{seen[key]}".encode()
        cell["id"] = hashlib.sha256(data).hexdigest()[:16]


def _is_ours(path: Path) -> bool:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return "source" in data["metadata"]["annotated"]
    except (ValueError, KeyError, TypeError):
        return False
