"""A browser, and in it the small book of the press's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.press.conftest import Book, book, built
from tests.site.moving import Window
from tests.site.tabs import WIDTHS, Tab, served, started

__all__ = ["book", "built"]  # fixtures


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started() as browser:
        yield browser


@pytest.fixture
def small(browser: Any, built: Book) -> Iterator[Tab]:
    with served(built.root / "site") as where:
        tab = Tab(browser, where, "light", WIDTHS[0])
        yield tab
        tab.context.close()


@pytest.fixture(scope="module")
def windows(browser: Any) -> Iterator[Callable[..., Window]]:
    """Windows, by what they are: each is opened once and used by test after
    test, of which most want a page in it and nothing else.
    """
    made: dict[str, Window] = {}

    def used(**how: Any) -> Window:
        name = repr(sorted(how.items()))
        if name not in made:
            made[name] = Window(browser, **how)
        window = made[name]
        window.page.goto("about:blank")  # what ran there has ended
        window.page.mouse.move(0, 0)
        window.faults.clear()
        return window

    yield used
    for one in made.values():
        one.context.close()


@pytest.fixture
def window(windows: Callable[..., Window]) -> Window:
    return windows()


@pytest.fixture
def new_window(browser: Any) -> Iterator[Window]:
    """One that nobody else will use, to be changed."""
    made = Window(browser)
    yield made
    made.context.close()
