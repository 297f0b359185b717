"""On a slow line and a slow processor a page is soon there, and stays where
it is. It takes minutes, and is a matter of the machine: `make test-long`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from press.site import is_current
from tests.helpers import ROOT
from tests.site.tabs import served, started

pytestmark = pytest.mark.exhaustive

# the first page, chapters with much and with little, the map, an engine page
# and the search
PAGES = (
    "index", "00-preface", "02-attention", "08-transformer", "14-training",
    "19-pocket-german", "25-heads", "A4-paper-map", "E5-trainer", "search",
)  # fmt: skip
LINE = {  # 1.6 Mbit/s down, 150 ms there and back, as a telephone's
    "offline": False,
    "latency": 150,
    "downloadThroughput": 1_600_000 / 8,
    "uploadThroughput": 750_000 / 8,
}
SLOWER = 4  # the processor
SECONDS = {"here": 1.0, "far": 3.0}
SHIFT = 0.05
WATCH = """
  window.seen = {shift: 0};
  new PerformanceObserver((list) => {
    for (const one of list.getEntries())
      if (!one.hadRecentInput) seen.shift += one.value;
  }).observe({type: "layout-shift", buffered: true});
"""
TOLD = """() => ({...seen, paint: performance
  .getEntriesByName("first-contentful-paint")[0]?.startTime / 1000})"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    if not is_current(ROOT):
        pytest.skip("site/ is not current: run `make book` first")
    with served(ROOT / "site") as where:
        yield where


def visited(address: str, where: str) -> dict[str, dict[str, float]]:
    """Seconds until something is seen, and what moves, on a first visit:
    nothing is kept from one page to the next. The better of two.
    """
    found: dict[str, dict[str, float]] = {}
    with started() as browser:
        for page in PAGES * 2:
            seen = _visit(browser, f"{address}{page}.html", where)
            best = found.setdefault(page, seen)
            best["paint"] = min(best["paint"], seen["paint"])
            best["shift"] = max(best["shift"], seen["shift"])
    return found


def _visit(browser: Any, address: str, where: str) -> dict[str, float]:
    context = browser.new_context(viewport={"width": 390, "height": 844})
    context.add_init_script(WATCH)
    page = context.new_page()
    page.set_default_timeout(300_000)
    if where == "far":
        tools = context.new_cdp_session(page)
        tools.send("Network.enable")
        tools.send("Network.emulateNetworkConditions", LINE)
        tools.send("Emulation.setCPUThrottlingRate", {"rate": SLOWER})
    page.goto(address, wait_until="domcontentloaded")
    page.evaluate("() => document.fonts.ready.then(() => 0)")
    page.wait_for_timeout(1000)  # for what comes after all
    seen = page.evaluate(TOLD)
    context.close()
    return seen


@pytest.mark.parametrize("where", ["here", "far"])
def test_a_page_is_soon_seen_and_stays_where_it_is(
    address: str, where: str
) -> None:
    found = visited(address, where)
    print(json.dumps(found, indent=1))  # with -s: the figures
    late = {p: x for p, x in found.items() if x["paint"] > SECONDS[where]}
    moved = {p: x for p, x in found.items() if x["shift"] > SHIFT}
    assert (late, moved) == ({}, {})
    assert found.keys() == {*PAGES}
