"""Assemble build/source/ and let Sphinx set it as site/."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from fnmatch import fnmatchcase
from importlib import metadata
from pathlib import Path
from typing import Any

import nbformat

from press.chapters import Chapter, PressError, read_book
from press.execute import executed_path, join
from press.keys import Package, key
from press.modules import PACKAGE, packages_of, path_of, target_of
from press.project import Project, read_project

LARGE = 300_000  # characters of SVG beyond which the PNG is shown
# what lies in book/ and is no part of the pages
APART = {"notebooks", "results", "exercises", "__pycache__"}
APART |= {"paper.yml", "paper.d"}
TOOLS = ("sphinx", "myst-nb", "sphinx-book-theme", "sphinx-exercise")


def site(root: Path) -> str:
    """Build site/ unless it is current; one line on what was done."""
    sources = page_sources(root)
    build = root / "build"
    stamp = build / "site.stamp"
    wanted = _digest(sources)
    index = root / "site" / "index.html"
    if index.is_file() and stamp.is_file() and stamp.read_text() == wanted:
        return "site/ is current"
    stamp.unlink(missing_ok=True)
    _mirror(sources, build / "source")
    _sphinx(root)
    html = build / "html"
    pages = {
        path.relative_to(html).as_posix(): path.read_bytes()
        for path in sorted(html.rglob("*"))
        if path.is_file()
    }
    _mirror(pages, root / "site")
    stamp.write_text(wanted)
    return f"site/ holds {len(list(html.glob('*.html')))} pages"


def page_sources(root: Path) -> dict[str, bytes]:
    """Every file that Sphinx sees, by its path."""
    chapters = read_book(root)
    project, package = read_project(root), Package(root)
    stale = [c for c in chapters if not join(root, c, key(c, package))]
    if stale:
        names = " ".join(chapter.name for chapter in stale)
        raise PressError(f"run `python -m press execute {names}` first")
    pages = [chapter.name for chapter in chapters]
    files = {
        f"{chapter.name}.ipynb": _page(root, chapter, project, pages)
        for chapter in chapters
    }
    book = root / "book"
    for path in sorted(book.rglob("*")):
        name = path.relative_to(book).as_posix()
        parts = set(name.split("/"))
        hidden = any(part.startswith(".") for part in parts)
        if path.is_file() and not hidden and not APART & parts:
            files[name] = path.read_bytes()
    for chapter in chapters:
        del files[chapter.file]
    if "index.md" in files:
        others = [n[:-3] for n in sorted(files) if n.endswith(".md")]
        index = _contents(files["index.md"].decode(), pages + others)
        files["index.md"] = _links(index, pages).encode()
    return files


def _contents(index: str, pages: list[str]) -> str:
    """The tables of contents with pages in the place of patterns.

    A part that has no chapter yet is left out: Sphinx would warn.
    """

    def fill(match: re.Match[str]) -> str:
        head, patterns = match[1], match[2].split()
        found = [n for p in patterns for n in pages if fnmatchcase(n, p)]
        return "\n".join([head, *found, "```"]) if found else ""

    toctree = r"(```\{toctree\}\n(?::.*\n)*)((?:(?!```).*\n)*)```"
    return re.sub(toctree, fill, index)


def _page(
    root: Path, chapter: Chapter, project: Project, pages: list[str]
) -> bytes:
    """The executed chapter, with its number and a line below its title."""
    text = executed_path(root, chapter).read_text(encoding="utf-8")
    notebook = nbformat.reads(text, as_version=4)
    seconds = notebook.metadata["annotated"]["seconds"]
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            line = _facts(chapter, project, seconds)
            number = chapter.name.split("-")[0].lstrip("0")
            start = f"# {number} · " if number else "# "
            cell.source, found = re.subn(
                r"^# +(.*)$",
                lambda m: f"{start}{m[1]}\n\n{line}\n",  # noqa: B023
                cell.source,
                count=1,
                flags=re.M,
            )
            if found:
                break
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = _links(cell.source, pages)
        for output in cell.get("outputs", []):
            _choose_format(cell, output)
    # nothing of the last run's circumstances: equal content, equal pages
    notebook.metadata.pop("annotated")
    data = json.dumps(notebook, sort_keys=True, ensure_ascii=False)
    return data.encode()


def _links(markdown: str, pages: list[str]) -> str:
    """Chapters link to each other by source; their pages are notebooks."""
    names = "|".join(map(re.escape, pages))
    pattern = rf"\]\((?:\./)?({names})\.md(?=[#)])"
    return re.sub(pattern, r"](\1.ipynb", markdown)


def _facts(chapter: Chapter, project: Project, seconds: float) -> str:
    """Time, modules and links, as one line of HTML."""
    targets = (target_of(cell, chapter) for cell in chapter.code)
    names = set(filter(None, targets))
    packages = packages_of(names)
    modules = []
    for name in sorted(names):
        path = path_of(name, packages)
        address = project.source(f"{PACKAGE}/{path}")
        code = f"<code>{PACKAGE}.{name}</code>"
        modules.append(f'<a href="{address}">{code}</a>')
    notebook = f"book/notebooks/{chapter.name}.ipynb"
    took = f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"
    parts = [
        f"runs in {took} (at most {chapter.minutes} min on two cores)",
        f"makes {', '.join(modules)}" if modules else "",
        f'<a href="{project.colab(notebook)}">open in Colab</a>',
        f'<a href="{project.source(notebook)}">notebook</a>',
    ]
    spans = "".join(f"<span>{part}</span>" for part in parts if part)
    paragraph = f'<p class="chapter-facts">{spans}</p>'
    return f"```{{raw}} html\n{paragraph}\n```"


def _choose_format(cell: Any, output: Any) -> None:
    """SVG for drawings; PNG, at half its pixels, for what is large."""
    data = output.get("data", {})
    if "image/svg+xml" not in data or "image/png" not in data:
        return
    if len(data["image/svg+xml"]) <= LARGE:
        del data["image/png"]
        return
    del data["image/svg+xml"]
    width = output.metadata.get("image/png", {}).get("width")
    image = cell.metadata.setdefault("mystnb", {}).setdefault("image", {})
    if width and "width" not in image:
        image["width"] = f"{width}px"


# --- files and Sphinx -----------------------------------------------------


def _digest(sources: dict[str, bytes]) -> str:
    tools = [f"{name} {metadata.version(name)}" for name in TOOLS]
    total = hashlib.sha256("\n".join(tools).encode())
    total.update(Path(__file__).read_bytes())
    for name in sorted(sources):
        total.update(name.encode() + b"\0")
        total.update(hashlib.sha256(sources[name]).digest())
    return total.hexdigest()


def _mirror(sources: dict[str, bytes], folder: Path) -> None:
    """Make folder hold exactly these files; equal ones keep their time."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_file():
            if path.relative_to(folder).as_posix() not in sources:
                path.unlink()
        elif not any(path.iterdir()):
            path.rmdir()
    for name, data in sources.items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != data:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def _sphinx(root: Path) -> None:
    """From build/source to build/html; warnings are errors."""
    source, build = root / "build" / "source", root / "build"
    address = read_project(root).repository
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-j", "auto"]
    command += ["-W", "--keep-going", "-q", "-d", str(build / "doctrees")]
    command += ["--no-color"]  # its messages are read: see _places
    command += ["-D", f"html_theme_options.repository_url={address}"]
    done = subprocess.run(
        [*command, str(source), str(build / "html")],
        env=dict(os.environ, LC_ALL="C.UTF-8"),
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    if done.returncode:
        # else the next run would not read, and warn of, these pages again
        shutil.rmtree(build / "doctrees", ignore_errors=True)
        raise PressError(
            *_places(done.stderr, read_book(root), source),
            "Sphinx found the faults above: site/ is not whole",
        )


def _places(text: str, chapters: list[Chapter], folder: Path) -> list[str]:
    """Sphinx's messages with chapter and section for its line numbers."""
    named = {chapter.name: chapter for chapter in chapters}

    def place(match: re.Match[str]) -> str:
        chapter = named[match[1]]
        number = int(match[2] or 0) // 10_000 - 1  # MyST-NB counts so
        if not 0 <= number < len(chapter.cells):
            return f"book/{chapter.file}"
        section = chapter.cells[number].heading
        return f'book/{chapter.file}, section "{section}"'

    text = text.replace(f"{folder}{os.sep}", "book/")
    names = "|".join(map(re.escape, named)) or "-"
    return re.sub(
        rf"^book/({names})\.ipynb(?::(\d+))?", place, text, flags=re.M
    ).splitlines()
