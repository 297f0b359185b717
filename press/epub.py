"""The story as an EPUB: from the executed pages, to be read anywhere."""

from __future__ import annotations

import html
import io
import json
import re
import shutil
import zipfile
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from posixpath import dirname, join, normpath
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree as ET

from press import files
from press.build import alone, mirror, sphinx
from press.chapters import Chapter, PressError, read_book
from press.previews import preview
from press.project import NAME, TITLE, Project, read_project
from press.site import GLOSSARY, INDEX, TOCTREE, page_sources

COVER = "_static/cover.png"
COVER_SIZE = 1200, 1800
# of the files that the site has besides its chapters
KEPT = {"conf.py", "references.md", "_static/epub.css", "_static/logo.svg"}
EXTENSIONS = "myst_nb,press.pages,press.reader"
XHTML = "{http://www.w3.org/1999/xhtml}"
# a style sheet that MyST-NB brings after the EPUB is made
MYST = re.compile(rb'\s*<link [^>]*href="_static/mystnb\.[^>]*>')
# the same bytes whenever the same pages are put together
NEVER = 1980, 1, 1, 0, 0, 0


def epub(root: Path, out: Path) -> str:
    """Write the book at `out`; one line on what was done."""
    chapters = [
        chapter
        for chapter in read_book(root)
        if chapter.room == "story" or chapter.name == GLOSSARY
    ]
    build = root / "build" / "epub"
    sources = _sources(root, chapters, page_sources(root, chapters))
    with alone(build):
        mirror(sources, build / "source")
        shutil.rmtree(build / "epub", ignore_errors=True)
        sphinx(root, build, "epub", _options(read_project(root)))
        made = _finished(build / "epub" / f"{NAME}.epub")
    if found := faults(io.BytesIO(made)):
        raise PressError(*(f"{out.name}: {fault}" for fault in found))
    files.replace(out, made)
    size = len(made) / 1e6
    return f"{out} holds {len(chapters)} chapters in {size:.1f} MB"


def _sources(
    root: Path, chapters: list[Chapter], pages: dict[str, bytes]
) -> dict[str, bytes]:
    """Of the site's files what the EPUB needs, with a first page and a
    cover of its own.
    """
    project = read_project(root)
    names = {f"{chapter.name}.ipynb" for chapter in chapters}
    kept = {n: data for n, data in pages.items() if n in KEPT | names}
    kept["names.json"] = b"{}"  # no popovers, no reference
    listed = [Path(name).stem for name in names | {"references.md"}]
    text = (root / "book" / f"{INDEX}.md").read_text("utf-8")
    kept[f"{INDEX}.md"] = _contents(text, sorted(listed), project).encode()
    drawing = _cover(chapters, pages)
    kept[COVER] = preview(root, TITLE, project.about, drawing, COVER_SIZE)
    return kept


def _cover(chapters: list[Chapter], pages: dict[str, bytes]) -> str:
    """The drawing of the cell with the tag `cover`, which the first page
    of the site has, too.
    """
    for chapter in chapters:
        cells = json.loads(pages[f"{chapter.name}.ipynb"])["cells"]
        for cell, origin in zip(cells, chapter.cells, strict=True):
            if "cover" not in origin.tags:
                continue
            for output in cell["outputs"]:
                if svg := output.get("data", {}).get("image/svg+xml"):
                    return "".join(svg)
    raise PressError('no cell with the tag "cover" shows a drawing')


def _contents(text: str, pages: list[str], project: Project) -> str:
    """The first page; its lists of chapters are for the reader's own
    contents alone.
    """
    lines = [f"# {TITLE}", "", project.about, ""]
    if project.site:
        lines += [
            f"This is the story, with what its cells gave when they ran. "
            f"[The site]({project.site}) has figures that move, the engine "
            "room and the reference.",
            "",
        ]
    for match in TOCTREE.finditer(text):
        found = [
            page
            for pattern in match[2].split()
            for page in pages
            if fnmatchcase(page, pattern)
        ]
        if found:
            lines += [match[1] + "\n" + "\n".join(found), "```", ""]
    return "\n".join(lines)


def _options(project: Project) -> dict[str, str]:
    """What conf.py says otherwise for the site."""
    return {
        "extensions": EXTENSIONS,
        "version": project.version,
        "epub_description": project.about or TITLE,
    }


# --- what Sphinx leaves to do ---------------------------------------------


def _finished(made: Path) -> bytes:
    """The same files, with what a reader has to know of each page."""
    whole = io.BytesIO()
    with (
        zipfile.ZipFile(made) as before,
        zipfile.ZipFile(whole, "w") as after,
    ):
        held = {name: before.read(name) for name in before.namelist()}
        for name, data in held.items():
            if name == "content.opf":
                data = _manifest(data.decode(), held).encode()
            if name.endswith(".xhtml"):
                data = MYST.sub(b"", data)
            packed = zipfile.ZIP_DEFLATED
            if name == "mimetype":  # which comes first
                packed = zipfile.ZIP_STORED
            after.writestr(zipfile.ZipInfo(name, NEVER), data, packed)
    return whole.getvalue()


def _manifest(text: str, held: dict[str, bytes]) -> str:
    """The list of files, which says where formulas are, and the cover."""

    def item(match: re.Match[str]) -> str:
        name = html.unescape(match[1])
        kinds = []
        if name.endswith(".xhtml") and b"<math" in held[name]:
            kinds.append("mathml")
        if name == COVER:
            kinds.append("cover-image")
        told = f' properties="{" ".join(kinds)}"' if kinds else ""
        return f"{match[0][:-3].rstrip()}{told} />"

    return re.sub(r'<item id="epub-\d+" href="([^"]*)"[^>]*/>', item, text)


# --- whether it is whole --------------------------------------------------


def faults(path: Path | io.BytesIO) -> list[str]:
    """What is wrong with an EPUB: pages that are no XML, links and
    pictures that lead nowhere, what would be fetched or run.
    """
    with zipfile.ZipFile(path) as book:
        held = {name: book.read(name) for name in book.namelist()}
    found = []
    if next(iter(held), "") != "mimetype":
        found.append("its first file is not mimetype")
    trees = {}
    for name, data in held.items():
        if name.endswith((".xhtml", ".opf", ".ncx", ".xml", ".svg")):
            try:
                trees[name] = ET.fromstring(data)
            except ET.ParseError as error:
                found.append(f"{name} is no XML: {error}")
    marks = {
        name: {each.get("id") for each in tree.iter()}
        for name, tree in trees.items()
    }
    for name, tree in trees.items():
        if not name.endswith(".xhtml"):
            continue
        for each in tree.iter():
            if each.tag == f"{XHTML}script":
                found.append(f"{name} has a script")
        for kind, address in _addresses(tree):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                if kind != "href":
                    found.append(f"{name} asks for {address}")
                continue
            place = unquote(parts.path)
            target = normpath(join(dirname(name), place)) if place else name
            if target not in held:
                found.append(f"{name} -> {address}: not there")
                continue
            there = marks.get(target, {""}) | {""}
            if target in marks and unquote(parts.fragment) not in there:
                found.append(f"{name} -> {address}: no such place")
    return found


def _addresses(tree: ET.Element) -> Iterator[tuple[str, str]]:
    for each in tree.iter():
        for kind in ("href", "src", "data", "poster"):
            value = each.get(kind)
            # a style sheet is fetched, a link is followed
            if value is not None:
                fetched = kind == "href" and each.tag != f"{XHTML}a"
                yield "fetched" if fetched else kind, value
