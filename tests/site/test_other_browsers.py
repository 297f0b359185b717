"""The small book and every figure in Firefox and in WebKit, where Playwright
has installed them: `python -m playwright install firefox webkit`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.press.conftest import Book
from tests.site.moving import CASES, Window, stands
from tests.site.tabs import CLIPPED, WIDTHS, Tab, started

pytestmark = pytest.mark.exhaustive


@pytest.fixture(scope="module", params=["firefox", "webkit"])
def browser(request: pytest.FixtureRequest) -> Iterator[Any]:
    with started(request.param) as browser:
        yield browser


@pytest.mark.parametrize("form", ["page", "notebook"])
@pytest.mark.parametrize("name", sorted(CASES))
def test_a_figure_stands_in_the_place_of_its_still(
    window: Window, tmp_path: Path, name: str, form: str
) -> None:
    stands(window, tmp_path, name, form)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_page_has_a_fault_or_is_cut_off(
    browser: Any, small: Tab, built: Book, theme: str, width: int
) -> None:
    tab = Tab(browser, small.address, theme, width)
    for path in sorted((built.root / "site").glob("*.html")):
        page = tab.open(path.name)
        tab.unfold()
        assert page.evaluate(CLIPPED) == [], path.name
        assert tab.faults == [], path.name
    tab.context.close()
