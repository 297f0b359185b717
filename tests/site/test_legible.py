"""No figure has letters too small to read, on a page or on a phone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from press.letters import LEAST, MORE, look, on_phone, sizes

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "build" / "executed").glob("*.ipynb"))


def drawing(size: float, width: float) -> str:
    return (
        f'<svg width="{width}pt" height="9pt" viewBox="0 0 {width} 9">'
        f"<text style=\"font: {size}px 'DejaVu Sans'\">a</text></svg>"
    )


def test_sizes_are_those_on_the_page() -> None:
    assert sizes(drawing(9, 300), 1) == pytest.approx(
        {"column": 12, "screen": 12, "phone": 9 * 358 / 300}
    )
    small = sizes(drawing(6, 720), MORE["wide"])
    assert all(small[where] < LEAST[where] for where in LEAST)


def test_what_would_be_small_on_a_phone_scrolls() -> None:
    assert on_phone(drawing(9, 300)) == ""
    assert on_phone(drawing(8, 450)) == "mid"
    assert on_phone(drawing(5.5, 450)) == "wide"
    assert on_phone(drawing(30, 500)) == "wide"


def test_what_would_be_small_in_the_column_has_the_margin_too() -> None:
    assert look(drawing(8, 560)) == "wide"
    assert look(drawing(7.5, 560)) == "broad wide"
    assert (
        look(drawing(6.9, 400)) == "mid"
    )  # its own size makes it no larger
    assert look("<svg><text>a drawing of another kind</text></svg>") == ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_letters_can_be_read(page: Path) -> None:
    small = {}
    for cell in json.loads(page.read_text(encoding="utf-8"))["cells"]:
        settings = cell["metadata"].get("mystnb") or {}
        name = (settings.get("figure") or {}).get("name", cell.get("id"))
        for output in cell.get("outputs", []):
            svg = "".join(output.get("data", {}).get("image/svg+xml", ""))
            found = sizes(svg, MORE[on_phone(svg)])
            if any(found[where] < LEAST[where] - 0.01 for where in LEAST):
                small[name] = found
    assert small == {}
