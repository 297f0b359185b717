"""What a reader does on a page of the small book, which has one of each thing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.press.conftest import Book
from tests.site.tabs import WIDTHS, Tab

IN_VIEW = """() => {
  const { top, bottom } = document.querySelector(".fx").getBoundingClientRect();
  return top < innerHeight && bottom > 0;
}"""


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
        ("126/3", "Right: you said 126/3, it is 42."),
        ("1/3", "Too low."),
        ("40", "Right: you said 40, it is 42."),
    ):
        field.fill(said)
        field.press("Enter")
        assert verdict.inner_text() == wanted
    assert small.faults == []
    small.open("02-one.html")
    page = small.open("03-two.html")
    assert page.get_by_label("dots in all").input_value() == "40"
    said = page.locator("form.guess .verdict").inner_text()
    assert said == "Right: you said 40, it is 42."


@pytest.mark.parametrize(
    ("asked", "low", "high", "right", "wrong"),
    [
        ("a share", "0.3", "0.36", ("1/3", "0.33", "33 %", ".33"), ("33",)),
        ("a rate", "0.1", "0.15", ("0,125", "0.125"), ("125", "1,125")),
        ("words, per cent", "30", "36", ("1/3", "33", "33 %"), ("0.33",)),
    ],
)
def test_a_share_is_judged_however_it_is_written(
    small: Tab,
    asked: str,
    low: str,
    high: str,
    right: tuple[str, ...],
    wrong: tuple[str, ...],
) -> None:
    page = small.open("03-two.html")
    page.evaluate(
        """([asked, low, high]) => {
          const form = document.querySelector("form.guess");
          form.querySelector("label span").textContent = asked;
          Object.assign(form.querySelector("input").dataset, {low, high});
        }""",
        [asked, low, high],
    )
    field = page.locator("form.guess input")
    for said in (*right, *wrong):
        field.fill(said)
        field.press("Enter")
        verdict = page.locator("form.guess .verdict").inner_text()
        assert verdict.startswith("Right: ") == (said in right), said


def test_all_answers_open_for_a_second_reading(small: Tab) -> None:
    page = small.open("02-one.html")
    closed = page.locator(
        ".choices > details:not([open]), .answer:not([open])"
    )
    count = closed.count()
    assert count >= 3
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
    for words in ("import math", "plt.plot([2, 1])", "ONE ="):  # folded
        assert not page.get_by_text(words).last.is_visible(), words
    solution = page.locator(".bd-article .solution")
    assert solution.is_visible()
    order = "x => x.querySelector('.printed-solutions').nextSibling"
    assert article.evaluate(order) is None
    assert page.locator(".printed-solutions .solution").count() == 1
    page.evaluate("() => dispatchEvent(new Event('afterprint'))")
    assert article.evaluate("x => x.innerHTML") == before


def test_paper_leaves_open_what_was_opened_for_a_second_reading(
    small: Tab,
) -> None:
    page = small.open("02-one.html")
    page.get_by_role("button", name="open all answers").click()
    for event in ("beforeprint", "afterprint"):
        page.evaluate("(name) => dispatchEvent(new Event(name))", event)
    assert page.locator(".choices > details:not([open])").count() == 0


def test_a_state_put_into_the_address_of_an_open_page_is_shown(
    small: Tab,
) -> None:
    page = small.open("03-two.html")
    after = page.locator(".fx-say", has_text="After 1 steps")
    page.locator(".fx-say", has_text="After 0 steps").wait_for()
    page.evaluate("location.hash = '#film:step=1'")
    after.wait_for()
    assert page.evaluate(IN_VIEW)
    # back to where one has been, the page stays as it was left
    page.get_by_role("button", name="Earlier").click()
    page.wait_for_function("location.hash === '#film:step=0'")
    page.evaluate("window.same = true; location.hash = '#what-is-wide'")
    page.go_back()
    page.wait_for_function("location.hash.startsWith('#film:')")
    page.evaluate("() => new Promise((go) => setTimeout(go, 50))")
    assert page.evaluate("window.same") and not after.count()
    assert small.faults == []


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


READ = """localStorage["attention-annotated"] =
  JSON.stringify({"02-one.html": {read: true}})"""
LINK = ".bd-sidebar-primary a[href*='02-one']"
MARKS = f"{LINK} .read-mark"


def test_back_shows_what_has_been_read_since(small: Tab) -> None:
    """A browser that goes back may show the page as it was left."""
    page = small.open("03-two.html")
    assert page.locator(MARKS).count() == 0
    page.evaluate(READ)
    for _ in range(2):
        page.evaluate(
            "dispatchEvent("
            "new PageTransitionEvent('pageshow', {persisted: true}))"
        )
        assert page.locator(MARKS).count() == 1
    assert small.faults == []


def test_a_page_that_a_browser_has_saved_says_nothing_twice(
    small: Tab,
) -> None:
    page = small.open("03-two.html")
    page.evaluate(READ)
    page = small.open("03-two.html")
    text = page.evaluate("document.documentElement.outerHTML")
    page.route(
        "**/saved.html",
        lambda route: route.fulfill(body=text, content_type="text/html"),
    )
    page = small.open("saved.html")
    assert page.locator(MARKS).count() == 1
    assert page.locator(LINK).text_content().count("(read)") == 1
    assert page.locator(".tally").count() == 1
    page.locator("#questions .choices summary").nth(0).click()
    said = page.locator(".tally [role=status]")
    assert "1 of 2 answered" in said.inner_text()
    assert small.faults == []


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


def test_the_search_answers_as_one_types(small: Tab) -> None:
    page = small.open("02-one.html")
    loaded = len(small.loaded)
    page.keyboard.press("Control+k")
    page.keyboard.type("ONE", delay=30)
    found = page.locator("#pst-search-dialog .found li a")
    found.first.wait_for()
    names = [name.partition("?")[0] for name in small.loaded[loaded:]]
    assert "_static/sections.js" in names  # not before it is asked for
    # the reference comes with the second file, behind the story
    page.wait_for_function(
        """() => [...document.querySelectorAll(".found li a")]
          .some((link) => link.href.includes("annotated.one"))"""
    )
    assert "02-one.html" in found.first.get_attribute("href")
    page.keyboard.type(" wxyz", delay=30)
    page.get_by_text("No section has all of “ONE wxyz”").wait_for()
    page.keyboard.press("Enter")
    page.wait_for_url("**/search.html?q=ONE+wxyz")
    page.locator("#search-results li").first.wait_for()
    page.keyboard.press("Control+a")
    page.keyboard.type("ONE", delay=30)
    page.get_by_text("with “ONE”.").wait_for()
    assert small.faults == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_first_visit_takes_the_scheme_of_the_system(
    browser: Any, small: Tab, scheme: str
) -> None:
    context = browser.new_context(color_scheme=scheme)
    page, said = context.new_page(), []
    page.on("console", lambda message: said.append(message.type))
    page.goto(small.address + "02-one.html", wait_until="commit")
    page.wait_for_selector("h1")
    theme = "document.documentElement.dataset.theme"
    assert page.evaluate(theme) == scheme
    page.wait_for_load_state()
    assert page.evaluate(theme) == scheme
    assert "error" not in said
    context.close()


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
