"""Which cells are folded: in Jupyter, on Colab and on the pages alike."""

from __future__ import annotations

import ast
import re

from press.chapters import Cell, Chapter, PressError
from press.modules import (
    PACKAGE,
    continues,
    defined_by,
    is_import,
    target_of,
)

MOST = 4  # names in a title
LIST = re.compile(r"(?:[-*+]|\d+\.) ")
# a fence of as many paragraphs as it takes, at the head of a cell
READING = re.compile(
    r"\s*^(:{3,})\{reading\}[ \t]*\n(.*?)^\1[ \t]*$", re.M | re.S
)
NO_PROSE = re.compile(r"[#|>%]|:::|```|\$\$|---|!\[|\([\w-]+\)=")


def folded(chapter: Chapter, cell: Cell) -> bool:
    """Whether a cell shows its code only when asked.

    Tagged cells do, imports by themselves (unless tagged `show`), and what
    a page of the engine room exports.
    """
    if {"hide-input", "hide-cell"} & set(cell.tags):
        return True
    if "show" in cell.tags:
        return False
    engine = chapter.room == "engine"
    return (engine and exported(cell)) or only_imports(cell)


def exported(cell: Cell) -> bool:
    return any(tag.startswith("export") for tag in cell.tags)


def only_imports(cell: Cell) -> bool:
    try:
        body = ast.parse(cell.source).body
    except SyntaxError:  # IPython's own syntax
        return False
    return bool(body) and all(map(is_import, body))


def tags(chapter: Chapter, cell: Cell) -> list[str]:
    """A cell's tags, with `hide-input` where it is folded."""
    hide = cell.kind == "code" and folded(chapter, cell)
    extra = ["hide-input"] if hide else []
    return [*cell.tags, *(tag for tag in extra if tag not in cell.tags)]


def title(chapter: Chapter, cell: Cell) -> str:
    """What is inside a folded cell."""
    if only_imports(cell):
        place = chapter.cells.index(cell)
        above = chapter.cells[place - 1] if place else cell
        twice = exported(above) and only_imports(above)
        return "Imports of this page" if twice else "Imports"
    try:
        target = target_of(cell, chapter)
        body = ast.parse(cell.source).body
    except (PressError, SyntaxError):
        target, body = None, []
    if target is None:
        drawn = {"image", "figure"} & set(cell.metadata.get("mystnb") or {})
        if drawn:
            return "Code of this figure"
        calls = [node for node in body if isinstance(node, ast.Expr)]
        imports = [node for node in body if is_import(node)]
        alone = imports and len(imports) + len(calls) == len(body)
        return "Imports" if alone else "Code"
    names = [name for node in body for name in defined_by(node)]
    names += [
        node.name
        for node in body
        if isinstance(node, ast.ClassDef) and continues(node)
    ]
    more = " …" if len(names) > MOST else ""
    return f"{PACKAGE}.{target}: {', '.join(names[:MOST])}{more}"


def follows_hidden(chapter: Chapter, place: int) -> bool:
    """Whether the output right above a cell shows only when asked."""
    return bool(place) and "hide-output" in chapter.cells[place - 1].tags


def reading(chapter: Chapter, place: int) -> tuple[str, str]:
    """What a markdown cell says of the hidden output right above it, and
    the rest of the cell.

    It is folded with the output: a prediction is asked for, and this would
    answer it. It is what a fence `reading` encloses, or else the first
    paragraph, or list. A list that the paragraph leads to belongs to it; a
    paragraph that leads to anything else is none of it.
    """
    source = chapter.cells[place].source
    if not follows_hidden(chapter, place):
        return "", source
    if fence := READING.match(source):
        return fence[2].strip("\n"), source[fence.end() :].strip("\n")
    first, *more = re.split(r"\n\s*\n", source.strip("\n"))
    if NO_PROSE.match(first):
        return "", source
    own = [first]
    if first.endswith(":"):
        if not (more and LIST.match(more[0])):
            return "", source
        own.append(more.pop(0))
    if LIST.match(own[-1]):  # with the paragraphs of its items
        while more and (LIST.match(more[0]) or more[0][0].isspace()):
            own.append(more.pop(0))
    return "\n\n".join(own), "\n\n".join(more)


def visible(text: str) -> str:
    """The paragraph that a text begins with; "" if it begins otherwise."""
    first = re.split(r"\n\s*\n", text.strip("\n"))[0]
    return "" if NO_PROSE.match(first) else first
