"""The pages in a browser: what a reader sees, hears and can reach.

A small book with one of each thing always, and site/ itself where it is
what the chapters give.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import pytest

from press.serve import Quiet
from press.site import is_current

from .conftest import Book

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed"
)

ROOT = Path(__file__).resolve().parents[2]
AXE = Path(__file__).parent / "vendor" / "axe.min.js"
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
WIDTHS = (1366, 390)
MOST = 1_000_000  # bytes of a page before its figures
SEARCH = 3_200_000  # that brings the text of all pages
SAMPLE = 6

# what is cut off, or sticks out of the window with no way to reach it
CLIPPED = """() => {
  const found = [], page = document.documentElement;
  if (page.scrollWidth > innerWidth + 1)
    found.push(`the page is ${page.scrollWidth} wide`);
  const moves = (box) => /auto|scroll/.test(getComputedStyle(box).overflowX);
  for (const box of document.querySelectorAll(".bd-article *")) {
    if (box.closest("math, svg, .visually-hidden, .copybtn")) continue;
    if (box.tagName === "INPUT") continue;  // its text scrolls
    const edge = box.getBoundingClientRect();
    if (!edge.width || !edge.height) continue;
    let inside = box;
    while (inside && !moves(inside)) inside = inside.parentElement;
    const name = `${box.tagName}.${box.className}: `
      + box.textContent.trim().slice(0, 40);
    if (!inside && edge.right > innerWidth + 1) found.push(`out: ${name}`);
    const hides = /hidden|clip/.test(getComputedStyle(box).overflowX);
    if (hides && box.scrollWidth > box.clientWidth + 1)
      found.push(`cut: ${name}`);
  }
  return found.slice(0, 8);
}"""
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
JUDGE = """async (rules) => {
  const how = {resultTypes: ["violations"], preload: false,
    rules: {region: {enabled: false}}};  // slow, and never serious
  const result = await axe.run(rules ? {...how, runOnly: rules} : how);
  return result.violations
    .filter((rule) => /serious|critical/.test(rule.impact))
    .map((rule) => `${rule.id} ${rule.nodes.length}: `
      + rule.nodes.slice(0, 3).map((node) =>
        `${node.html.slice(0, 150)} | `
        + node.any.concat(node.all).map((x) => x.message).join(" "))
        .join(" || "));
}"""


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


def _program() -> str | None:
    named = os.environ.get("CHROMIUM")
    return named or next(filter(None, map(shutil.which, PROGRAMS)), None)


@contextmanager
def started() -> Iterator[Any]:
    """A browser; each thread needs its own."""
    with sync_api.sync_playwright() as driver:
        path = _program() or driver.chromium.executable_path
        if not Path(path).exists():
            pytest.skip("no Chromium here (CHROMIUM=… may name one)")
        # a container's root has no sandbox
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = driver.chromium.launch(executable_path=path, args=options)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started() as browser:
        yield browser


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
    handler = partial(Quiet, directory=str(folder))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def pages(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.html"))


class Tab:
    """One page at one width in one theme, and what went wrong with it."""

    def __init__(
        self,
        browser: Any,
        address: str,
        theme: str,
        width: int,
        **more: Any,
    ) -> None:
        self.address = address
        self.faults: list[str] = []
        self.loaded: list[str] = []
        self.context = browser.new_context(
            viewport={"width": width, "height": 850},
            reduced_motion="reduce",
            **more,
        )
        self.context.add_init_script(
            f"localStorage.mode = localStorage.theme = '{theme}'"
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(
            120_000
        )  # a busy machine is no failure
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda e: self.faults.append(str(e)))
        self.page.on("request", self._request)
        self.page.on("response", self._response)

    def _console(self, message: Any) -> None:
        if message.type == "error":
            self.faults.append(f"console: {message.text}")

    def _request(self, request: Any) -> None:
        if not request.url.startswith((self.address, "data:", "blob:")):
            self.faults.append(f"asks {request.url}")

    def _response(self, response: Any) -> None:
        if response.status >= 400:
            self.faults.append(f"{response.status} {response.url}")
        elif response.request.resource_type not in {"image", "other"}:
            self.loaded.append(response.url.removeprefix(self.address))

    def open(self, name: str) -> Any:
        self.faults.clear()
        self.loaded.clear()
        self.page.goto(self.address + name, wait_until="load")
        self.page.evaluate("() => document.fonts.ready.then(() => 0)")
        return self.page

    def unfold(self) -> None:
        """All that is folded, even what closes its neighbours."""
        self.page.evaluate(
            "() => document.querySelectorAll('.bd-article details').forEach("
            "(x) => { x.removeAttribute('name'); x.open = true; })"
        )
        self.page.evaluate(
            "() => new Promise((done) => requestAnimationFrame("
            "() => requestAnimationFrame(done)))"
        )


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


# --- the small book, which has one of each thing ----------------------------


@pytest.fixture
def small(browser: Any, built: Book) -> Iterator[Tab]:
    handler = partial(Quiet, directory=str(built.root / "site"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    where = f"http://127.0.0.1:{server.server_port}/"
    tab = Tab(browser, where, "light", WIDTHS[0])
    yield tab
    tab.context.close()
    server.shutdown()
    server.server_close()


def test_a_choice_answers_and_closes_the_other(small: Tab) -> None:
    page = small.open("02-one.html")
    wrong, right = page.locator(".choices > details").all()
    wrong.locator("summary").focus()
    page.keyboard.press("Enter")
    assert "Not so: the variance" in wrong.inner_text()
    right.locator("summary").click()
    assert "Right: the root of" in right.inner_text()
    assert "variance" not in wrong.inner_text()


def test_the_first_choice_of_each_question_is_counted(small: Tab) -> None:
    page = small.open("03-two.html")
    said = page.locator(".tally [role=status]")
    choices = page.locator("#questions .choices summary")
    assert said.inner_text() == ""
    choices.nth(0).focus()
    page.keyboard.press("Enter")  # wrong
    choices.nth(1).click()  # right, but too late
    assert "1 of 2 answered, 0 right" in said.inner_text()
    choices.nth(3).click()
    assert "2 of 2 answered, 1 right" in said.inner_text()
    page = small.open("03-two.html")
    assert "2 of 2 answered, 1 right" in said.inner_text()
    again = page.get_by_role("button", name="Once more")
    again.focus()
    page.keyboard.press("Enter")
    assert said.inner_text() == ""
    assert not again.is_visible()
    assert page.locator("#questions details[open]").count() == 0
    page.get_by_role("button", name="open all answers").click()
    choices.nth(0).click()  # what all can see is no answer
    assert said.inner_text() == ""
    assert small.faults == []


def test_a_number_is_judged_and_kept(small: Tab) -> None:
    page = small.open("03-two.html")
    field = page.get_by_label("dots in all")
    verdict = page.locator("form.guess .verdict")
    for said, wanted in (
        ("7", "Too low."),
        ("1,000", "Too high."),
        ("many", "Write a number."),
        ("40", "Right: 42."),
    ):
        field.fill(said)
        field.press("Enter")
        assert verdict.inner_text() == wanted
    assert small.faults == []
    small.open("02-one.html")
    page = small.open("03-two.html")
    assert page.get_by_label("dots in all").input_value() == "40"
    assert page.locator("form.guess .verdict").inner_text() == "Right: 42."


def test_all_answers_open_for_a_second_reading(small: Tab) -> None:
    page = small.open("02-one.html")
    closed = page.locator(
        ".choices > details:not([open]), .answer:not([open])"
    )
    count = closed.count()
    assert count >= 4
    button = page.get_by_role("button", name="open all answers")
    button.focus()
    page.keyboard.press("Enter")
    assert closed.count() == 0
    page = small.open("02-one.html")  # remembered
    assert closed.count() == 0
    page.get_by_role("button", name="open all answers").click()
    assert closed.count() == count
    # one choice closes the other again
    page.locator(".choices summary").first.click()
    page.locator(".choices summary").nth(1).click()
    assert page.locator(".choices > details[open]").count() == 1


def test_on_paper_answers_are_open_and_solutions_at_the_end(
    small: Tab,
) -> None:
    page = small.open("02-one.html")
    article = page.locator(".bd-article")
    before = article.evaluate("x => x.innerHTML")
    page.emulate_media(media="print")
    page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    for words in ("no longer hidden", "the root of", "variance is"):
        assert page.get_by_text(words).last.is_visible(), words
    for words in ("import math", "plt.plot([2, 1])"):  # of a figure
        assert not page.get_by_text(words).last.is_visible(), words
    assert page.get_by_text("ONE =").last.is_visible()  # of the package
    solution = page.locator(".bd-article .solution")
    assert solution.is_visible()
    order = "x => x.querySelector('.printed-solutions').nextSibling"
    assert article.evaluate(order) is None
    assert page.locator(".printed-solutions .solution").count() == 1
    page.evaluate("() => dispatchEvent(new Event('afterprint'))")
    assert article.evaluate("x => x.innerHTML") == before


def test_a_page_whose_foot_was_seen_is_marked_as_read(small: Tab) -> None:
    page = small.open("02-one.html")
    assert page.locator(".read-mark").count() == 0
    page.locator(".prev-next-area").scroll_into_view_if_needed()
    page.wait_for_function(
        "() => localStorage['attention-annotated'].includes('read')"
    )
    page = small.open("03-two.html")
    marked = page.locator(".bd-sidebar-primary a:has(.read-mark)")
    assert marked.count() == 1
    assert "02-one.html" in marked.get_attribute("href")


@pytest.mark.parametrize("script", [True, False])
def test_the_reference_is_folded_but_on_its_own_pages(
    browser: Any, small: Tab, script: bool
) -> None:
    """So is the engine room: by a click, by a key, without a script."""
    context = browser.new_context(java_script_enabled=script)
    page = context.new_page()
    page.goto(small.address + "02-one.html")
    link = page.get_by_role("link", name="Index of names").first
    label = page.locator(".bd-sidebar-primary summary", has_text="package")
    assert label.is_visible() and not link.is_visible()
    label.focus()
    page.keyboard.press("Enter")
    assert link.is_visible()
    for name in ("api-story", "annotated.one"):
        page.goto(f"{small.address}{name}.html")
        assert link.is_visible(), name
    context.close()


def test_the_page_itself_is_in_view_in_the_sidebar(small: Tab) -> None:
    page = small.open("02-one.html")
    page.set_viewport_size({"width": WIDTHS[0], "height": 260})
    page.evaluate("() => scrollTo(0, 9999)")  # the theme keeps the place
    page = small.open("api-names.html")
    here = page.locator(".bd-sidebar-primary .current > a")
    box = here.bounding_box()
    assert box["y"] >= 0 and box["y"] + box["height"] <= 260


def test_an_answer_is_hidden_until_asked_for(small: Tab) -> None:
    page = small.open("02-one.html")
    answer = page.get_by_text("no longer hidden", exact=True).last
    assert not answer.is_visible()
    page.get_by_text("Show what happens").first.click()
    assert answer.is_visible()


def test_what_is_said_of_it_is_hidden_with_it(small: Tab) -> None:
    page = small.open("02-one.html")
    said = (
        page.get_by_text("This is what it means"),
        page.get_by_text("anot"),
    )
    assert [text.is_visible() for text in said] == [False, False]
    assert page.get_by_text("Go on.").is_visible()
    page.get_by_text("Show what happens").last.click()
    assert [text.is_visible() for text in said] == [True, True]


def test_arrows_turn_the_page_but_not_inside_a_field(small: Tab) -> None:
    page = small.open("02-one.html")
    page.keyboard.press("ArrowRight")
    page.wait_for_url("**/03-two.html")
    page.keyboard.press("Control+k")
    page.locator("#pst-search-dialog input").fill("one")
    page.keyboard.press("ArrowLeft")
    page.wait_for_timeout(300)
    assert page.url.endswith("03-two.html")
    page.keyboard.press("Escape")
    page.locator("#pst-search-dialog").wait_for(state="hidden")
    page.keyboard.press("ArrowLeft")
    page.wait_for_url("**/02-one.html")


@pytest.mark.parametrize("how", ["http", "file"])
def test_search_finds_sections(small: Tab, built: Book, how: str) -> None:
    if how == "file":  # as the site is opened that one has downloaded
        small.address = (built.root / "site").as_uri() + "/"
    page = small.open("search.html?q=columns+alike")
    assert page.get_by_role("status").inner_text().startswith("1 section ")
    found = page.locator("#search-results li")
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


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_words_in_many_columns_fit(
    browser: Any, small: Tab, theme: str
) -> None:
    """They take the room of the contents; on a phone each row is a card."""
    tab = Tab(browser, small.address, theme, WIDTHS[0])
    page = tab.open("03-two.html")
    table = page.locator("#words-in-many-columns table")
    box = table.locator("xpath=..")
    spare = "x => x.clientWidth - x.scrollWidth"
    assert box.evaluate(spare) >= 0
    assert table.bounding_box()["width"] > 900
    table.scroll_into_view_if_needed()
    page.wait_for_function(  # they fold into their heading
        "() => document.querySelector('.bd-sidebar-secondary')"
        ".getBoundingClientRect().bottom < 100"
    )
    page.set_viewport_size({"width": WIDTHS[1], "height": 850})
    assert box.evaluate(spare) >= 0
    rows = table.locator("tbody tr").all_inner_texts()
    for row in rows:
        words = row.split()
        for number in range(1, 7):
            assert f"head{number}" in words
    tab.context.close()


def test_what_scrolls_can_be_reached_with_the_keyboard(small: Tab) -> None:
    page = small.open("03-two.html")
    assert page.locator(".bd-article [tabindex='0']").count() >= 3
    style = "(x) => getComputedStyle(x).outlineStyle"
    page.keyboard.press("Tab")
    for _ in range(12):
        page.keyboard.press("Tab")
        at = page.locator(":focus")
        assert at.evaluate(style) == "solid", at.evaluate(
            "x => x.outerHTML"
        )


def test_everything_can_be_read_without_a_script(
    browser: Any, built: Book
) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((built.root / "site" / "02-one.html").as_uri())
    for label in page.locator(".bd-article summary").all():
        if not label.locator("xpath=..").get_attribute("open"):
            label.click()
    for words in ("print(1)", "no longer hidden", "Look at Exercise 2.1"):
        assert page.get_by_text(words).last.is_visible(), words
    assert page.get_by_text("the root of").is_visible()
    context.close()
