"""How large the letters of a drawing are, on a page and on a phone."""

from __future__ import annotations

import re

# the room of a figure, in pixels: beside its caption, with the margin, and
# on a phone
COLUMN, SCREEN, PHONE = 640, 864, 358
LEAST = {"screen": 9.0, "phone": 7.5}  # pixels of a letter
# how much wider than a phone a drawing may be, which then scrolls: the
# classes are in book.css
MORE = {"": 1.0, "mid": 1.3, "wide": 1.9}
WIDE = 490  # points beyond which it always does
LETTERS = re.compile(r"font(?:-size)?: ?(?:[^;\"]*?)([\d.]+)px")
TEXT = re.compile(r"<(?:text|tspan)\b[^>]*>")
SIZE = re.compile(r'\bwidth="([\d.]+)pt"')
ROOM = re.compile(r'\bviewBox="0 0 ([\d.]+)')


def points(svg: str) -> float:
    """The width of a drawing of Matplotlib; 0 of any other."""
    found = SIZE.search(svg[:2000])
    return float(found[1]) if found else 0.0


def look(svg: str) -> str:
    """The classes with which it is legible: `broad` where the column would
    make its letters too small, and one for phones.
    """
    broad = sizes(svg, 1)["column"] < LEAST["screen"]
    return " ".join(filter(None, ["broad" * broad, on_phone(svg)]))


def on_phone(svg: str) -> str:
    """The class with which it is legible on a phone."""
    if points(svg) > WIDE:
        return "wide"
    for name, more in MORE.items():
        if sizes(svg, more)["phone"] >= LEAST["phone"]:
            return name
    return "wide"


def sizes(svg: str, more: float) -> dict[str, float]:
    """The size of its smallest letters, in pixels."""
    width, room = points(svg), ROOM.search(svg[:2000])
    texts = [LETTERS.search(text) for text in TEXT.findall(svg)]
    least = min((float(t[1]) for t in texts if t), default=float("inf"))
    if not (width and room):
        return dict.fromkeys(("column", *LEAST), float("inf"))
    own = width * 4 / 3
    return {
        "column": least * min(COLUMN, own) / float(room[1]),
        "screen": least * min(SCREEN, own) / float(room[1]),
        "phone": least * min(PHONE * more, own) / float(room[1]),
    }
