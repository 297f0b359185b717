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

from press.chapters import Cell, Chapter, PressError

FENCE = re.compile(r"^(:{3,})\{guess\}[ \t]*\n(.*?)^\1[ \t]*$", re.M | re.S)
NUMBER = r"([-+−]?(?:\d{1,3}(?:,\d{3})+|\d+)?\.?\d*(?:e[-+]?\d+)?)"
NEAR = re.compile(r"(exact)|(±) ?([\d.]+)( ?%)?|(×) ?([\d.]+)")


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


def _field(row: str, text: str, cell: Cell) -> str:
    parts = [part.strip() for part in row.split("|")]
    near = NEAR.fullmatch(parts[-1]) if len(parts) > 2 else None
    pattern = "|".join(parts[1:-1])
    if near is None or pattern.count("#") != 1:
        raise PressError(
            f"{cell.section}: a guess is written 'what | where # stands | "
            f"± 5', not {row!r}"
        )
    value = number_in(text, pattern)
    if value is None:
        raise PressError(
            f"{cell.section}: a guess asks for {pattern!r}, which the next "
            "hidden output does not have"
        )
    shown, number = value
    low, high = _bounds(number, near)
    label = html.escape(parts[0])
    label = re.sub(r"`([^`]+)`", r"<code>\1</code>", label)
    return (
        '<form class="guess" autocomplete="off"><label><span>'
        f'{label}</span> <input type="text" inputmode="decimal" size="9" '
        f'data-shown="{html.escape(shown)}" data-low="{low:.9g}" '
        f'data-high="{high:.9g}"></label> <button type="submit">Check'
        '</button> <span class="verdict" role="status"></span></form>'
    )


def number_in(text: str, pattern: str) -> tuple[str, float] | None:
    """The number that stands at the # of a pattern."""
    parts = re.split(r"(\s+|#|\*)", pattern)
    rules = {"#": NUMBER, "*": r"\S+"}
    wanted = "".join(
        rules.get(part, r"\s+" if part.isspace() else re.escape(part))
        for part in parts
    )
    # "trained" is no part of "untrained"
    for match in re.finditer(rf"(?<!\w)(?<!\d\.(?=\d)){wanted}", text):
        try:
            plain = match[1].replace(",", "").replace("−", "-")
            return match[1], float(plain)
        except ValueError:  # no digit at all
            continue
    return None


def _bounds(value: float, near: re.Match[str]) -> tuple[float, float]:
    if near[1]:
        room = 1e-6 * max(1.0, abs(value))
    elif near[2]:
        room = float(near[3]) * (abs(value) / 100 if near[4] else 1)
        room += 1e-6 * abs(value)
    else:
        factor = float(near[6])
        low, high = sorted((value / factor, value * factor))
        return low, high
    return value - room, value + room
