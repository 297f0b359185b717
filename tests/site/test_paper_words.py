"""A reader's copy of the paper: in the cards of the reader's own pages, and
nowhere else.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from annotated.book.paper import keep, put_beside
from press.archive import archive
from tests.book.test_paper_copy import document
from tests.press.conftest import Book
from tests.site.tabs import served


@pytest.fixture
def copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """The words of an invented paper, kept as a reader would keep them."""
    monkeypatch.setenv("ANNOTATED_DATA", str(tmp_path / "data"))
    saved = tmp_path / "saved.html"
    saved.write_text(document(), "utf-8")
    keep(saved)
    yield


@pytest.fixture
def beside(built: Book, copied: None) -> Iterator[Path]:
    """A site with these words in it, until the test ends."""
    place = built.root / "site" / "_static" / "paper.js"
    before = place.read_bytes()
    put_beside(built.root / "site")
    yield place
    place.write_bytes(before)


def test_a_card_offers_both(beside: Path, browser: Any) -> None:
    page = browser.new_page()
    page.goto((beside.parents[1] / "02-one.html").as_uri())
    card = page.locator(".admonition.paper")
    ours, theirs = card.get_by_text("It says"), card.get_by_text("A baker")
    button = card.get_by_role("button")
    assert button.inner_text() == "the paper's words"
    assert ours.is_visible() and not theirs.is_visible()
    button.focus()
    page.keyboard.press("Enter")
    assert theirs.is_visible() and not ours.is_visible()
    page.keyboard.press("Enter")
    assert ours.is_visible() and not theirs.is_visible()
    page.close()


def test_without_a_copy_nothing_is_offered(
    built: Book, browser: Any
) -> None:
    page, complaints = browser.new_page(), []
    page.on("pageerror", lambda error: complaints.append(error))
    page.on("requestfailed", lambda one: complaints.append(one))
    page.goto((built.root / "site" / "02-one.html").as_uri())
    page.wait_for_load_state("networkidle")
    assert page.locator(".admonition.paper").count() == 1
    assert page.locator(".admonition.paper button").count() == 0
    assert not complaints
    page.close()


def test_the_zip_has_none_of_it(
    built: Book, beside: Path, tmp_path: Path
) -> None:
    assert "A baker" in beside.read_text("utf-8")
    archive(built.root, tmp_path / "site.zip")
    with zipfile.ZipFile(tmp_path / "site.zip") as zipped:
        for name in zipped.namelist():
            assert b"A baker" not in zipped.read(name), name


def test_served_pages_have_it_by_themselves(
    built: Book, copied: None
) -> None:
    with served(built.root / "site") as where:
        with urlopen(f"{where}_static/paper.js") as reply:
            assert b"A baker" in reply.read()
        with urlopen(f"{where}_static/search.js") as reply:
            assert b"A baker" not in reply.read()
