"""The words of the glossary, book/A1-notation.md, row by row."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

GLOSSARY = "A1-notation"  # the page
ROWS = "## Words, by chapter"


def rows(text: str) -> Iterator[tuple[str, list[str]]]:
    """The target above a table, `words-02`, and the cells of each row."""
    target, head = "", False
    for line in text.partition(ROWS)[2].splitlines():
        if match := re.match(r"\((words-\w+)\)=", line):
            target, head = match[1], True
        cells = re.split(r"(?<!\\) \| ", line.strip("| "))
        if not line.startswith("| ") or len(cells) < 5:
            continue
        if not head:
            yield target, cells
        head = False


def as_html(text: str) -> str:
    """Markdown of a table's cell as HTML."""
    text = html.escape(text, quote=False)
    for mark, to in (
        (r"\[([^\]]*)\]\([^)]*\)", r"\1"),
        (r"`([^`]+)`", r"<code>\1</code>"),
        (r"\*([^*]+)\*", r"<em>\1</em>"),
    ):
        text = re.sub(mark, to, text)
    return text
