"""What a reader looks for in the small book, and where the results lead."""

from __future__ import annotations

from typing import Any

import pytest

from tests.press.conftest import Book
from tests.site.tabs import AXE, CLIPPED, JUDGE, WIDTHS, Tab


@pytest.mark.parametrize("how", ["http", "file"])
def test_search_finds_sections(small: Tab, built: Book, how: str) -> None:
    if how == "file":  # as the site is opened that one has downloaded
        small.address = (built.root / "site").as_uri() + "/"
    page = small.open("search.html?q=columns+alike")
    assert page.get_by_role("status").inner_text().startswith("1 section ")
    found = page.locator("#search-results li").first
    link = found.get_by_role("link")
    assert link.inner_text() == "3 · Two › Words in many columns"
    marks = found.locator("mark").all_inner_texts()
    assert marks == ["Columns", "alike"]
    assert len(found.locator("p").inner_text()) < 250
    page.keyboard.press("Tab")  # from the field, which has the focus
    page.keyboard.press("Enter")
    page.wait_for_url("**/03-two.html*#words-in-many-columns")
    marked = page.locator(".bd-article span.highlighted:visible")
    marked.first.wait_for()  # others may lie in folded code
    assert small.faults == []


def test_the_best_result_comes_first(small: Tab) -> None:
    page = small.open("search.html?q=wide")
    links = page.locator("#search-results a")
    assert links.first.inner_text() == "3 · Two › What is wide"  # a title
    small.open("search.html?q=imprt")  # misspelt, and in code alone
    assert "No section has all" in page.get_by_role("status").inner_text()
    assert (
        "import" in page.locator("#search-results mark").all_inner_texts()
    )
    small.open("search.html?q=xyzzyx")
    assert "Nothing has" in page.get_by_role("status").inner_text()
    assert links.count() == 0


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_results_keep_nobody_out(
    browser: Any, built: Book, small: Tab, theme: str
) -> None:
    tab = Tab(browser, small.address, theme, WIDTHS[1], bypass_csp=True)
    page = tab.open("search.html?q=one+rises")
    assert page.locator("#search-results li").count()
    page.add_script_tag(path=str(AXE))
    assert page.evaluate(JUDGE) == []
    assert page.evaluate(CLIPPED) == []
    tab.context.close()


def test_what_was_searched_is_in_view(small: Tab) -> None:
    page = small.open("search.html?q=look")  # it is in a hint, folded
    page.locator("#search-results li a").first.click()
    page.wait_for_url("**/02-one.html#exercises")
    mark = page.locator("span.highlighted").first
    mark.wait_for(state="visible")
    top = "x => x.getBoundingClientRect().top"
    assert 0 < mark.evaluate(top) < page.viewport_size["height"]
