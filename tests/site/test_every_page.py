"""Every page, at both widths and in both themes: what a reader sees and can
reach. A small book with one of each thing always, and site/ itself where it
is what the chapters give.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import pytest

from press.site import is_current
from tests.helpers import ROOT
from tests.press.conftest import Book
from tests.site.tabs import (
    AXE,
    CLIPPED,
    JUDGE,
    WIDTHS,
    Tab,
    served,
    started,
)

MOST = 1_000_000  # bytes of a page before its figures
SEARCH = 1_900_000  # that brings the story, and what is asked of it
LATER = "sections-more.js"  # which the first answers do not wait for
SAMPLE = 6
# paragraphs of which a line has, on average, more than 75 letters
LONG = """() => {
  const found = [];
  for (const p of document.querySelectorAll(".bd-article p")) {
    if (p.closest("table, figure") || p.querySelector("math, button")) continue;
    const tall = p.getBoundingClientRect().height;
    const lines = Math.round(tall / parseFloat(getComputedStyle(p).lineHeight));
    const letters = p.innerText.length / lines;
    if (lines > 3 && Math.round(letters) > 75)
      found.push(`${letters.toFixed(0)}: ${p.innerText.slice(0, 40)}`);
  }
  return found;
}"""
# a chapter whose first picture or number cannot be seen, 200 pixels of it or
# all, without scrolling; one in a card of the paper is not the chapter's own
LATE = """() => {
  const all = [...document.querySelectorAll(
    ".bd-article :is(figure, .cell_output, table)")];
  const first = all.find((x) => x.getBoundingClientRect().height
    && !x.closest(".admonition, details:not([open])"));
  if (!first) return ["nothing to see"];
  const { top, height } = first.getBoundingClientRect();
  const end = Math.round(top + scrollY + Math.min(height, 200));
  return end > Math.min(innerHeight, 844) ? [`${end} pixels below`] : [];
}"""
STORY = re.compile(r"[0-2]\d-")
# of the tokens of code, the first of each kind in each kind of place: axe
# judges thousands of others no better
FEWER = """() => {
  const seen = new Set();
  for (const token of document.querySelectorAll(".highlight pre span")) {
    const place = token.closest(".cell, .admonition, .output, details");
    const kind = `${token.className} in ${place?.className}`;
    if (seen.has(kind)) token.replaceWith(...token.childNodes);
    else seen.add(kind);
  }
}"""
# the other theme, as the button sets it
DARK = """() => Object.assign(document.documentElement.dataset,
  {mode: "dark", theme: "dark"})"""
Found = dict[str, dict[str, list[str]]]  # page -> check -> faults


@pytest.fixture(scope="module", params=["a small book", "this book"])
def folder(request: pytest.FixtureRequest) -> Path:
    if request.param == "this book":
        if not is_current(ROOT):
            pytest.skip("site/ is not current: run `make book` first")
        return ROOT / "site"
    book: Book = request.getfixturevalue("built")
    return book.root / "site"


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with served(folder) as where:
        yield where


def pages(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.html"))


# --- every page, at both widths and in both themes --------------------------


def at_rest(tab: Tab, name: str, folder: Path) -> Iterator[str]:
    """The faults of a page as it comes."""
    page = tab.open(name)
    yield from tab.faults
    code = page.locator("div.highlight pre").count()
    prints = page.locator(".output div.highlight pre").count()
    if page.locator("button.copybtn").count() != code - prints:
        yield "code without a button that copies it"
    if any("webfonts" in name for name in tab.loaded):
        yield "a font with all icons is loaded"
    paths = [folder / urlsplit(name).path for name in tab.loaded]
    paths = [path for path in paths if path.name != LATER]
    size = sum(path.stat().st_size for path in paths)
    if size > (SEARCH if name == "search.html" else MOST):
        yield f"{size:,} bytes before its figures"


def judged(page: Any, rules: tuple[str, ...] = ()) -> list[str]:
    """What keeps a reader out, of the gravity that axe calls serious."""
    return page.evaluate(JUDGE, rules or None)


def seen_on(names: list[str], address: str, folder: Path) -> Found:
    """Open each page in a browser of our own, once for each width: a page
    loads more slowly than it changes its theme, which only colours it. The
    reference's pages share one layout: one in SAMPLE is seen in every form.
    """
    found: Found = {}
    with started() as browser:
        wide, narrow = (
            Tab(browser, address, "light", width) for width in WIDTHS
        )
        axe = AXE.read_text("utf-8")
        for number, name in enumerate(names):
            faults = found[name] = {
                "at rest": list(at_rest(wide, name, folder))
            }
            page = wide.page
            told = folder == ROOT / "site" and STORY.match(name)
            if told:
                faults["late, wide"] = page.evaluate(LATE)
            faults["long lines"] = page.evaluate(LONG)
            wide.unfold()
            faults["cut off, wide"] = page.evaluate(CLIPPED)
            page.evaluate(FEWER)
            page.evaluate(axe)
            faults["light"] = judged(page)
            if name.startswith("annotated.") and number % SAMPLE:
                continue
            page.evaluate(DARK)
            faults["dark"] = judged(page, ("color-contrast",))
            narrow.open(name)
            faults["at rest, narrow"] = list(narrow.faults)
            if told:
                faults["late, narrow"] = narrow.page.evaluate(LATE)
            narrow.unfold()
            faults["cut off, narrow"] = narrow.page.evaluate(CLIPPED)
    return found


@pytest.fixture(scope="module")
def found(address: str, folder: Path) -> Found:
    """What is wrong with each page, by two browsers side by side."""
    names = pages(folder)
    with ThreadPoolExecutor(2) as pool:
        halves = pool.map(
            lambda half: seen_on(half, address, folder),
            (names[::2], names[1::2]),
        )
    return {name: found for half in halves for name, found in half.items()}


@pytest.mark.parametrize(
    "what",
    [
        "at rest",  # no error, no request elsewhere, no fonts of icons
        "at rest, narrow",
        "long lines",
        "cut off, wide",
        "cut off, narrow",
        "light",  # axe finds nothing serious, with everything unfolded
        "dark",
    ],
)
def test_no_page_has_a_fault(found: Found, what: str) -> None:
    seen = {name: of[what] for name, of in found.items() if what in of}
    assert {name: faults for name, faults in seen.items() if faults} == {}
    assert len(seen) > 2


def test_a_chapter_shows_its_idea_on_the_first_screen(
    found: Found, folder: Path
) -> None:
    if folder != ROOT / "site":
        pytest.skip("the small book has no ideas")
    chapters = [name for name in found if STORY.match(name)]
    late = {
        name: [*found[name]["late, wide"], *found[name]["late, narrow"]]
        for name in chapters
    }
    assert {name: told for name, told in late.items() if told} == {}
    assert len(chapters) == 28


def test_links_and_anchors_lead_somewhere(folder: Path) -> None:
    texts = {n: (folder / n).read_text("utf-8") for n in pages(folder)}
    names = {
        name: set(re.findall(r'\b(?:id|name)="([^"]+)"', text))
        for name, text in texts.items()
    }
    wrong = []
    for name, text in texts.items():
        for link in re.findall(r'<a\b[^>]*?\bhref="([^"]*)"', text):
            parts = urlsplit(urljoin(name, link.replace("&amp;", "&")))
            if parts.scheme or parts.netloc:
                continue
            target, anchor = unquote(parts.path), unquote(parts.fragment)
            if not (folder / target).exists():
                wrong.append(f"{name} -> {link}: no page")
            elif ":" in anchor:  # a figure in a certain state
                figure = f'class="moves moves-{anchor.partition(":")[0]}'
                if figure not in texts[target or name]:
                    wrong.append(f"{name} -> {link}: no figure")
            elif anchor and target in names and anchor not in names[target]:
                wrong.append(f"{name} -> {link}: no anchor")
    assert wrong == []
