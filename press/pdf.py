"""The story as a PDF: the pages of the EPUB on paper, by Chromium."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from posixpath import dirname, join, normpath
from urllib.parse import urlsplit
from xml.etree import ElementTree as ET

from annotated.engine.processes import tied
from press import files
from press.chapters import PressError
from press.epub import XHTML, epub
from press.project import TITLE

PROGRAMS = (
    "chromium", "chromium-browser", "google-chrome",
    "google-chrome-stable", "chrome", "msedge",
)  # fmt: skip
PATIENCE = 600  # seconds for Chromium
# what only screens need, and what a page of paper does otherwise
PAPER = """
@font-face {
  font-family: book; font-weight: 200 900;
  src: url(fonts/source-serif-4-latin-wght-normal.woff2);
}
@font-face {
  font-family: book; font-weight: 200 900; font-style: italic;
  src: url(fonts/source-serif-4-latin-wght-italic.woff2);
}
@font-face { font-family: "Book Math"; src: url(fonts/book-math.woff2); }
@page { size: A4; margin: 20mm 18mm 22mm; }
@page { @bottom-center { content: counter(page); font: 9pt serif; } }
@page :first { @bottom-center { content: none; } }
body { font: 10.5pt/1.45 book, serif; margin: 0; }
div.epub-cover img { height: 235mm; }
div.math { overflow: visible; }
h1 { break-before: page; }
h1, h2, h3, .admonition-title { break-after: avoid; }
figure, img, table, .admonition.paper, pre { break-inside: avoid; }
details.code, a.headerlink { display: none; }
a { color: inherit; }
"""


def pdf(root: Path, out: Path) -> str:
    """Write the book at `out`; one line on what was done."""
    program = chromium()
    with tempfile.TemporaryDirectory(prefix="press-") as name:
        folder = Path(name)
        epub(root, folder / "book.epub")
        with zipfile.ZipFile(folder / "book.epub") as book:
            book.extractall(folder)
        fonts = root / "book" / "_static" / "fonts"
        shutil.copytree(fonts, folder / "fonts")
        whole = folder / "whole.xhtml"
        tree = joined(folder)
        ET.register_namespace("", XHTML.strip("{}"))
        whole.write_bytes(ET.tostring(tree, "utf-8"))
        _print(program, whole, folder / "book.pdf")
        files.replace(out, (folder / "book.pdf").read_bytes())
    return f"{out} holds the story in {out.stat().st_size / 1e6:.1f} MB"


def chromium() -> str:
    """A program that prints: $CHROMIUM, one that is installed, or that of
    playwright.
    """
    if named := os.environ.get("CHROMIUM"):
        if program := shutil.which(named):
            return program
        raise PressError(f"CHROMIUM={named}: there is no such program")
    found = [shutil.which(one) for one in PROGRAMS]
    try:
        from playwright.sync_api import sync_playwright

        with sync_playwright() as driver:
            found.append(driver.chromium.executable_path)
    except ImportError:
        pass
    for one in found:
        if one and Path(one).is_file():
            return one
    raise PressError(
        "a PDF is printed by Chromium, and there is none: install it or "
        "Google Chrome, or name the program in CHROMIUM"
    )


def joined(folder: Path) -> ET.Element:
    """The pages of an unpacked EPUB in their order as one page, whose
    links lead from one to the other.
    """
    whole = ET.Element(f"{XHTML}html", lang="en")
    head = ET.SubElement(whole, f"{XHTML}head")
    ET.SubElement(head, f"{XHTML}title").text = TITLE
    body = ET.SubElement(whole, f"{XHTML}body")
    names = _order(folder)
    for style in sorted((folder / "_static").glob("*.css")):
        address = f"_static/{style.name}"
        link = {"rel": "stylesheet", "href": address}
        ET.SubElement(head, f"{XHTML}link", link)
    ET.SubElement(head, f"{XHTML}style").text = PAPER
    for name in names:
        page = ET.parse(folder / name).getroot().find(f"{XHTML}body")
        if page is None:
            continue
        section = ET.SubElement(body, f"{XHTML}section", id=_mark(name, ""))
        section.extend(page)
        for each in section.iter():
            _turn(each, name, set(names))
    return whole


def _order(folder: Path) -> list[str]:
    """Its pages, as they are read."""
    package = ET.parse(folder / "content.opf").getroot()
    space = {"opf": "http://www.idpf.org/2007/opf"}
    files = {
        item.get("id"): item.get("href", "")
        for item in package.iterfind(".//opf:item", space)
    }
    read = [
        files[item.get("idref")]
        for item in package.iterfind(".//opf:itemref", space)
    ]
    return [name for name in read if name != "nav.xhtml"]


def _mark(name: str, fragment: str) -> str:
    return f"{Path(name).stem}--{fragment}"


def _turn(each: ET.Element, name: str, pages: set[str]) -> None:
    """An element of one page, on the page with all of them."""
    if (mark := each.get("id")) and not mark.endswith("--"):
        each.set("id", _mark(name, mark))
    parts = urlsplit(each.get("href", "#-"))
    target = normpath(join(dirname(name), parts.path or name))
    if each.get("href") and not parts.scheme and target in pages:
        each.set("href", f"#{_mark(target, parts.fragment)}")


def _print(program: str, page: Path, out: Path) -> None:
    options = [
        "--headless", "--disable-gpu", "--no-pdf-header-footer",
        "--generate-pdf-document-outline", "--export-tagged-pdf",
        f"--user-data-dir={page.parent / 'profile'}",
    ]  # fmt: skip
    if sys.platform == "linux" and os.geteuid() == 0:
        options.append("--no-sandbox")  # a container's root has none
    try:
        with tied() as tie:
            done = subprocess.run(
                [program, *options, f"--print-to-pdf={out}", page.as_uri()],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=PATIENCE,
                **tie,
            )
    except subprocess.TimeoutExpired:
        raise PressError(
            f"{program} has printed nothing: ended after {PATIENCE} seconds"
        ) from None
    if not out.is_file():
        said = re.sub(r"\s+", " ", done.stderr)[-300:]
        raise PressError(f"{program} has printed nothing: {said}")
