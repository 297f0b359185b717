"""Figures under a finger and on a phone: letters that can be read, fields
that do not make a page jump, a focus that stays.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import ROOT
from tests.site.moving import CASES, Window, press, write

# what is written in letters of fewer pixels than these
SMALL = """(least) => {
  const found = new Set(), walk = document.createTreeWalker(
    document.querySelector(".fx"), NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    const box = node.parentElement;
    if (!node.textContent.trim() || !box.getClientRects().length) continue;
    if (box.closest("style, option")) continue;
    const scale = box.ownerSVGElement ? box.getScreenCTM().a : 1;
    const size = parseFloat(getComputedStyle(box).fontSize) * scale;
    if (size < least) found.add(`${size.toFixed(1)}: ${node.textContent}`);
  }
  return [...found].slice(0, 8);
}"""
FIELDS = """() => [...document.querySelectorAll(
  ".fx select, .fx input:not([type=range], [type=checkbox])")]
  .filter((x) => parseFloat(getComputedStyle(x).fontSize) < 16)
  .map((x) => x.outerHTML)"""


@pytest.fixture
def phone(windows: Callable[..., Window]) -> Window:
    return windows(width=390, has_touch=True, is_mobile=True)


@pytest.mark.parametrize("name", sorted(CASES))
def test_letters_can_be_read_on_a_phone(
    phone: Window, tmp_path: Path, name: str
) -> None:
    page = phone.open(write(tmp_path, name, "page", "light"))
    page.locator(".fx").wait_for()
    page.evaluate(
        "document.querySelectorAll('details').forEach(x => x.open = true)"
    )
    assert page.evaluate(SMALL, 9) == []
    if name == "beam":
        for _ in range(3):
            page.get_by_role("button", name="Next word").click()
            assert page.evaluate(SMALL, 9) == []
    assert page.evaluate(FIELDS) == []  # a smaller one makes iOS zoom
    assert phone.faults == []


def touch(session: Any, kind: str, *points: tuple[float, float]) -> None:
    where = [{"x": x, "y": y} for x, y in points]
    session.send(
        "Input.dispatchTouchEvent", {"type": kind, "touchPoints": where}
    )


# whatever has been done to the page has been drawn
DRAWN = """() => new Promise((done) => requestAnimationFrame(
  () => requestAnimationFrame(done)))"""


def drag(page: Any, start: tuple[float, float], by: float) -> float:
    """Drag a finger up, and return where the page was scrolled before."""
    session = page.context.new_cdp_session(page)
    before = page.evaluate("scrollY")
    touch(session, "touchStart", start)
    for part in range(1, 9):
        touch(session, "touchMove", (start[0], start[1] - by * part / 8))
    touch(session, "touchEnd")
    page.evaluate(DRAWN)
    return float(before)


def test_a_finger_drags_a_tip_and_scrolls_beside_it(
    phone: Window, tmp_path: Path
) -> None:
    page = phone.open(write(tmp_path, "lookup", "page", "light"))
    plane = page.locator(".fx svg").first
    plane.scroll_into_view_if_needed()
    page.evaluate("document.body.style.paddingBottom = '900px'")
    box = plane.bounding_box()
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    unit = box["width"] * 220 / 256 / 5
    # a finger is no pointer: it begins 8 px beside the tip
    start = middle[0] + 1.41 * unit + 8, middle[1] + 4
    before = drag(page, start, 2 * unit)
    assert page.evaluate("scrollY") == before
    assert page.get_by_role("slider", name="up").input_value() >= "1.9"
    beside = page.locator(".fx-say").bounding_box()
    before = drag(page, (60, min(880, beside["y"] + 5)), 120)
    page.wait_for_function("(y) => scrollY - y > 60", arg=before)
    assert phone.faults == []


# pressing these loads, trains, or goes elsewhere by intention
@pytest.mark.parametrize("name", sorted(set(CASES) - {"learn"}))
def test_what_is_pressed_keeps_the_focus(
    window: Window, tmp_path: Path, name: str
) -> None:
    page = window.open(write(tmp_path, name, "page", "light"))
    page.locator(".fx").wait_for()
    if name == "translate":
        page.get_by_role("button", name="Load the model").click()
        page.get_by_role("button", name="Translate").wait_for()
    count = page.locator(".fx button:enabled:visible").count()
    for i in range(count):
        button = page.locator(".fx button:enabled:visible").nth(i)
        if not button.count():
            break
        button.focus()
        press(page, "Enter", "Enter")
        page.evaluate(DRAWN)
        assert page.evaluate(
            "document.querySelector('.fx').contains(document.activeElement)"
        ), i
    assert window.faults == []


STILL = """<!doctype html><html lang="en"><head><title>t</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="{css}"><style>.cell_output
{{overflow-x: auto}}</style></head><body><main class="bd-article">
<div class="cell_output"><svg width="{wide}" height="60"
style="max-width:none"></svg></div></main><script src="{js}"></script>
</body></html>"""


@pytest.mark.parametrize("wide", [900, 200])
def test_a_wide_still_says_that_there_is_more(
    phone: Window, tmp_path: Path, wide: int
) -> None:
    static = ROOT / "book" / "_static"
    css, js = ((static / f"book.{x}").as_uri() for x in ("css", "js"))
    (tmp_path / "still.html").write_text(
        STILL.format(css=css, js=js, wide=wide)
    )
    page = phone.open((tmp_path / "still.html").as_uri())
    box = page.locator(".cell_output")
    page.wait_for_load_state("load")
    cue = "getComputedStyle(document.querySelector('.cell_output'), '::after')"
    assert ("wider than" in page.evaluate(f"{cue}.content")) == (wide > 390)
    shown = "(x) => x.classList.contains('more')"
    assert box.evaluate(shown) == (wide > 390)
    box.evaluate("(x) => { x.scrollLeft = 900; }")
    page.wait_for_function(  # this is the end of it
        "() => !document.querySelector('.cell_output.more')"
    )
