"""Predictions of a number, checked against what the cell has printed.

A fence above a cell whose output is hidden:

    :::{guess}
    100 words, per cent to padding | 100 words: #% | ± 5
    :::

A line for each field: what is asked for, where it stands in the output,
and how near is right. `#` is the number, `*` any other word, a space any
room. Near is `exact`, `± 5`, `± 10 %`, or `× 2`, which is within a factor.
"""

from __future__ import annotations

import html
import re
from typing import Any

from annotated.book.guesses import bounds, number_in
from press.chapters import Cell, Chapter, PressError

FENCE = re.compile(r"^(:{3,})\{guess\}[ \t]*\n(.*?)^\1[ \t]*$", re.M | re.S)


def fill(source: str, chapter: Chapter, place: int, notebook: Any) -> str:
    """A cell's prose with fields in the place of its fences."""
    if not FENCE.search(source):
        return source
    text = _hidden(chapter, place, notebook)

    def fields(match: re.Match[str]) -> str:
        if text is None:
            return ""
        rows = [
            _field(row, text, chapter.cells[place])
            for row in match[2].splitlines()
            if row.strip()
        ]
        listed = "\n".join(rows)
        return (
            '```{raw} html\n<div class="guesses" hidden>\n'
            '<p class="asked">Predict</p>\n'
            f"{listed}\n</div>\n```"
        )

    return FENCE.sub(fields, source)


def _hidden(chapter: Chapter, place: int, notebook: Any) -> str | None:
    """What the next hidden output says; None in a proof, without a run."""
    if notebook.metadata["annotated"]["seconds"] == 0:
        return None
    for row in range(place + 1, len(chapter.cells)):
        if "hide-output" in chapter.cells[row].tags:
            return "\n".join(map(_text, notebook.cells[row].outputs))
    return ""


def _text(output: Any) -> str:
    data = output.get("data", {})
    plain = output.get("text") or data.get("text/markdown")
    return str(plain or data.get("text/plain", ""))


def asked(source: str, cell: Cell) -> list[tuple[str, str, str]]:
    """What the fences of a cell ask for, where it will stand, how near
    is right. PressError if a line of them says something else.
    """
    return [
        _split(row, cell)
        for match in FENCE.finditer(source)
        for row in match[2].splitlines()
        if row.strip()
    ]


def _split(row: str, cell: Cell) -> tuple[str, str, str]:
    what, *where = [part.strip() for part in row.split("|")]
    near = where.pop() if where else ""
    pattern = "|".join(where)
    try:
        bounds(0.0, near)
        right = pattern.count("#") == 1
    except ValueError:
        right = False
    if not right:
        raise PressError(
            f"{cell.section}: a guess is written 'what | where # stands | "
            f"± 5', not {row!r}"
        )
    return what, pattern, near


def _field(row: str, text: str, cell: Cell) -> str:
    what, pattern, near = _split(row, cell)
    value = number_in(text, pattern)
    if value is None:
        raise PressError(
            f"{cell.section}: a guess asks for {pattern!r}, which the next "
            "hidden output does not have"
        )
    shown, number = value
    low, high = bounds(number, near)
    label = html.escape(what)
    label = re.sub(r"`([^`]+)`", r"<code>\1</code>", label)
    return (
        '<form class="guess" autocomplete="off"><label><span>'
        f'{label}</span> <input type="text" inputmode="decimal" size="9" '
        f'data-shown="{html.escape(shown)}" data-low="{low:.9g}" '
        f'data-high="{high:.9g}"></label> <button type="submit">Check'
        '</button> <span class="verdict" role="status"></span></form>'
    )
