"""What a page says: its cards, cells and descriptions."""

from __future__ import annotations

import ast
import re
from typing import Any

from press.chapters import read_chapter
from tests.helpers import ROOT

BOOK = ROOT / "book"


def cells(block: str) -> list[list[str]]:
    """The rows of a block, blank cells as empty strings."""
    rows = [line.split("|") for line in block.strip().splitlines()]
    return [
        ["" if cell.strip() == "-" else cell.strip() for cell in row]
        for row in rows
    ]


def number(cell: str) -> float | None:
    return float(cell) if cell else None


def card(page: str, title: str) -> str:
    """What a page's card of this title holds."""
    text = (BOOK / f"{page}.md").read_text(encoding="utf-8")
    after = text[text.index(f"{{admonition}} {title}\n") :]
    return after[: after.index("\n:::\n")]


def numbers(page: str, title: str) -> list[str]:
    """Those that a card has, but for that of its section."""
    said = card(page, title).partition("[§")[0]
    return re.findall(r"\d+(?:[.,]\d+)*", said.partition("\n")[2])


def literal(page: str, name: str) -> Any:
    """What a cell of a page gives this name, typed there."""
    text = (BOOK / f"{page}.md").read_text(encoding="utf-8")
    for cell in re.findall(r"^```{code-cell}.*?^```$", text, re.S | re.M):
        if found := re.search(rf"^{name} = (.*?[}})])$", cell, re.S | re.M):
            return ast.literal_eval(found[1])
    raise AssertionError(f"{page} has no {name}")


def described(page: str, words: str) -> str:
    """The description of the figure that has these words."""
    text = (BOOK / f"{page}.md").read_text(encoding="utf-8")
    (alt,) = (a for a in re.findall(r'alt: "(.*)"', text) if words in a)
    return alt


def decimals(text: str) -> list[str]:
    """The numbers with a point, in order."""
    return re.findall(r"(?<![\d.])\d+\.\d+(?!\d|\.\d)", text)


def cell(page: str, words: str) -> str:
    """The code of a page's only cell that has these words."""
    code = read_chapter(BOOK / f"{page}.md").code
    (found,) = (one.source for one in code if words in one.source)
    return found
