"""Numbers by page: Figure 2.3, Exercise 2.1."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from press.chapters import Cell, Chapter

EXERCISE = re.compile(r"^(:{3,}|`{3,})\{exercise\}[ \t]*(.*)$", re.M)
LABEL = re.compile(r"^:(?:label|name):[ \t]*(\S+)[ \t]*$", re.M)


def number_of(name: str) -> str:
    """`2` for 02-attention, `A3` for A3-deviations, '' for a plain page."""
    match = re.match(r"(\d\d|[A-Z]\d+)-", name)
    if match is None:
        return ""
    return str(int(match[1])) if match[1].isdigit() else match[1]


def figure_of(cell: Cell) -> dict[str, Any] | None:
    """The cell's `mystnb: figure:` where it has a caption."""
    settings = cell.metadata.get("mystnb") or {}
    figure = settings.get("figure") or {}
    return figure if figure.get("caption") else None


def figures(chapter: Chapter) -> Iterator[tuple[Cell, str]]:
    """The cells with a caption, and `Figure 2.3`."""
    shown = [cell for cell in chapter.code if figure_of(cell)]
    for place, cell in enumerate(shown, 1):
        yield cell, f"Figure {number_of(chapter.name)}.{place}"


def exercise_title(title: str, number: str) -> str:
    """`Predict: more (★, 3 minutes)` as `Exercise 2.1 · … · ★ · 3 min`."""
    parts = [f"Exercise {number}"]
    if match := re.fullmatch(r"(.*?)\s*\(([^()]*\bminutes?)\)", title):
        title = match[1]
        facts = re.sub(r"\bminutes?$", "min", match[2])
        parts += [title, *re.split(r",\s*", facts)]
    else:
        parts.append(title)
    return " · ".join(part for part in parts if part)


def once(markdown: str) -> str:
    """`Exercise [Exercise 2.1](…)` without the first word."""
    return re.sub(r"\b(Exercise|Figure) (?=\[?\1 [\dA-Z])", "", markdown)


def labels(chapters: list[Chapter]) -> dict[str, tuple[str, str]]:
    """Label -> (chapter's file, `Figure 2.3` or `Exercise 2.1`)."""
    found: dict[str, tuple[str, str]] = {}
    for chapter in chapters:
        for cell, text in figures(chapter):
            name = (figure_of(cell) or {}).get("name")
            if name:
                found[str(name)] = (chapter.file, text)
        place = 0
        for cell in chapter.cells:
            if cell.kind != "markdown":
                continue
            for match in EXERCISE.finditer(cell.source):
                place += 1
                below = cell.source[match.end() :].split("\n\n")[0]
                if label := LABEL.search(below):
                    number = f"{number_of(chapter.name)}.{place}"
                    found[label[1]] = (chapter.file, f"Exercise {number}")
    return found
