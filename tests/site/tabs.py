"""A browser, and a page in it that says what went wrong."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from press.serve import Quiet

AXE = Path(__file__).parent / "vendor" / "axe.min.js"
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
WIDTHS = (1366, 390)

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


def _program() -> str | None:
    named = os.environ.get("CHROMIUM")
    return named or next(filter(None, map(shutil.which, PROGRAMS)), None)


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder's files."""
    handler = partial(Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@contextmanager
def started(name: str = "chromium") -> Iterator[Any]:
    """A browser; each thread needs its own. Without one the test is skipped."""
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed"
    )
    with sync_api.sync_playwright() as driver:
        kind = getattr(driver, name)
        path, options = kind.executable_path, []
        if name == "chromium":
            path = _program() or path
            # a container's root has no sandbox
            options = ["--no-sandbox"] if os.geteuid() == 0 else []
        if not Path(path).exists():
            pytest.skip(f"no {name} here (CHROMIUM=… may name a Chromium)")
        browser = kind.launch(executable_path=path, args=options)
        yield browser
        browser.close()


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
