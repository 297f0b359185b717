"""Figures that move, in Chromium: from a folder, as pages and notebooks
carry them, with the keyboard alone, on a phone, and without a script.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from annotated.book.colors import MOVING
from tests.site.moving import CASES, Window, press, stands, write
from tests.site.tabs import AXE, CLIPPED, JUDGE

# what is read out as the heading of a column and says nothing
NAMELESS = """() => [...document.querySelectorAll(".fx th")]
  .filter((cell) => !cell.textContent.trim()).map((cell) => cell.outerHTML)"""
# a clipboard that takes all, and a browser that has none
TAKES = """Object.defineProperty(navigator, "clipboard", {value: {
  writeText: async (text) => { window.taken = text; }}})"""
HAS_NONE = (
    'Object.defineProperty(navigator, "clipboard", {value: undefined})'
)


@pytest.mark.parametrize("form", ["page", "notebook"])
@pytest.mark.parametrize("name", sorted(CASES))
def test_it_stands_in_the_place_of_its_still(
    window: Window, tmp_path: Path, name: str, form: str
) -> None:
    page = stands(window, tmp_path, name, form)
    assert page.locator(".fx").count() == 1
    assert page.locator(".moves > img, .moves > svg").count() == 1


@pytest.mark.parametrize("form", ["page", "notebook"])
@pytest.mark.parametrize("name", sorted(CASES))
def test_without_a_script_the_still_remains(
    windows: Callable[..., Window], tmp_path: Path, name: str, form: str
) -> None:
    window = windows(java_script_enabled=False)
    page = window.open(write(tmp_path, name, form, "light"))
    assert page.locator(".moves > img, .moves > svg").is_visible()
    assert page.locator(".fx").count() == 0


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", sorted(CASES))
def test_it_keeps_nobody_out_and_fits_a_phone(
    windows: Callable[..., Window], tmp_path: Path, name: str, theme: str
) -> None:
    window = windows(width=390, bypass_csp=True)
    page = window.open(write(tmp_path, name, "page", theme))
    page.locator(".fx").wait_for()
    page.evaluate(
        "document.querySelectorAll('details').forEach(x => x.open = true)"
    )
    assert page.evaluate(CLIPPED) == []
    assert page.evaluate(NAMELESS) == []
    page.add_script_tag(path=str(AXE))
    # the theme changes colours alone
    rules = ["color-contrast"] if theme == "dark" else None
    assert page.evaluate(JUDGE, rules) == []
    assert window.faults == []


def test_film_moves_with_the_keyboard(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "film", "page", "light"))
    assert window.said().startswith(
        "After 0 steps it writes nothing: 0 of 2"
    )
    page.get_by_role("slider").focus()
    press(page, "ArrowRight", "ArrowRight")
    assert window.said() == (
        "After 2 steps it writes “ba”: 2 of 2 letters in the right place, "
        "at a loss of 2.50. 100 % of its attention is on the right letter."
    )
    page.locator("[role=gridcell]").first.focus()
    press(page, "ArrowRight")
    told = "While it writes b, it gives b (place 2) 1.00."
    assert page.get_by_text(told).is_visible()
    page.get_by_role("button", name="Earlier").focus()
    press(page, "Enter")
    assert "“bb”: 1 of 2" in window.said()
    page.wait_for_function("location.hash === '#film:step=1'")
    press(page, "Enter")
    page.wait_for_function("location.hash === '#film:step=0'")
    assert window.faults == []


def test_the_address_has_the_state(window: Window, tmp_path: Path) -> None:
    address = write(tmp_path, "film", "page", "light")
    page = window.open(f"{address}#film:step=1")
    page.locator(".fx").wait_for()
    assert window.said().startswith("After 1 steps")


def test_a_notebook_keeps_its_own_address(
    new_window: Window, tmp_path: Path
) -> None:
    new_window.page.clock.install()
    page = new_window.open(write(tmp_path, "film", "notebook", "light"))
    page.get_by_role("button", name="Later").click()
    page.clock.run_for(5000)  # a page's address would have it by now
    assert "#" not in page.url


def test_a_broken_address_breaks_no_figure(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(f"{write(tmp_path, 'cost', 'page', 'light')}#50%")
    page.locator(".fx").wait_for()
    assert "takes 12 hours and 27 kWh" in window.said()
    assert window.faults == []


@pytest.mark.parametrize("name", sorted(CASES))
def test_an_address_that_asks_for_nonsense_breaks_no_figure(
    window: Window, tmp_path: Path, name: str
) -> None:
    """Of every name that its module has: some of them are asked for."""
    address = write(tmp_path, name, "page", "light")
    names = set(
        re.findall(r"[a-z]\w*", (MOVING / f"{name}.mjs").read_text())
    )
    for value in ("abc", "-1.5", "constructor"):
        asked = "&".join(f"{one}={value}" for one in sorted(names))
        window.page.goto("about:blank")
        page = window.open(f"{address}#{name}:{asked}")
        page.locator(".fx").wait_for(timeout=20_000)
        text = page.locator(".fx").inner_text()
        assert not re.search("NaN|undefined|Infinity", text)
        assert window.faults == []


def test_what_is_said_of_a_cell_follows_its_number(
    window: Window, tmp_path: Path
) -> None:
    page = window.open(write(tmp_path, "film", "page", "light"))
    cells = page.locator("[role=gridcell]")
    cells.nth(4).click()
    told = page.get_by_text("While it writes a, it gives b (place 2)")
    assert told.inner_text().endswith(" 0.30.")
    page.get_by_role("button", name="Later").click()
    assert told.inner_text().endswith(" 0.60.")
    # Tab comes to one cell alone, the one that had the focus last
    cells.nth(4).focus()
    press(page, "ArrowRight")
    inside = page.locator("[role=gridcell][tabindex='0']")
    assert inside.count() == 1
    assert inside.evaluate("x => x === document.activeElement")


def test_a_link_to_its_state_can_be_copied(
    new_window: Window, tmp_path: Path
) -> None:
    new_window.context.add_init_script(TAKES)
    page = new_window.open(write(tmp_path, "film", "page", "light"))
    page.get_by_role("button", name="Later").click()
    page.get_by_role("button", name="Copy link").click()
    told = page.locator(".fx-link [role=status]")
    told.get_by_text("Copied.").wait_for()
    taken = page.evaluate("taken")
    assert taken == f"{page.url.partition('#')[0]}#film:step=1"
    page.get_by_role("button", name="Later").click()
    assert told.inner_text() == ""  # the link leads to another state now
    page.goto("about:blank")
    new_window.open(taken)
    assert new_window.said().startswith("After 1 steps")
    assert new_window.faults == []


@pytest.mark.parametrize("form", ["page", "notebook"])
def test_a_page_that_a_browser_has_saved_moves_again(
    window: Window, tmp_path: Path, form: str
) -> None:
    """Ctrl+S writes what stands on the page: the figure, but no script's
    hold on it.
    """
    page = stands(window, tmp_path, "film", form)
    page.get_by_role("button", name="Later").click()
    saved = tmp_path / "saved.html"
    saved.write_text(
        page.evaluate("document.documentElement.outerHTML"), "utf-8"
    )
    page.goto("about:blank")
    page = window.open(saved.as_uri())
    assert page.locator(".fx").count() == 1
    assert window.said().startswith("After 0 steps")
    page.get_by_role("button", name="Later").click()
    assert window.said().startswith("After 1 steps")
    assert not page.locator(".moves > img, .moves > svg").is_visible()
    assert page.locator("#fx-look").count() == 1
    assert window.faults == []


def test_a_link_that_cannot_be_copied_is_selected(
    new_window: Window, tmp_path: Path
) -> None:
    new_window.context.add_init_script(HAS_NONE)
    page = new_window.open(write(tmp_path, "film", "page", "light"))
    page.locator(".fx").wait_for()
    assert not page.locator(".fx-link").is_visible()  # nothing to keep yet
    page.get_by_role("button", name="Later").click()
    page.get_by_role("button", name="Copy link").click()
    assert page.evaluate("getSelection().toString()").endswith(
        "#film:step=1"
    )
    assert page.evaluate("document.activeElement.tagName") == "INPUT"
    assert new_window.faults == []
