"""Assemble build/source/ and let Sphinx set it as site/."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import nbformat
import yaml

from press import (
    beside,
    fold,
    guess,
    letters,
    notes,
    numbers,
    posters,
    previews,
)
from press.api import Reference
from press.build import alone, mirror, sphinx
from press.chapters import Cell, Chapter, PressError, read_book, select
from press.dark import light, style_sheet
from press.execute import as_notebook, executed_path, join
from press.figures import FOLDER, life, scripts
from press.foot import footed
from press.keys import Package, key
from press.modules import PACKAGE, packages_of, path_of, target_of
from press.one_file import FILE as ONE_FILE
from press.one_file import one_file
from press.pages import NAMES
from press.paper import counts, paper_map
from press.polish import ASIDE, polish
from press.project import NAME, TITLE, read_project
from press.references import works
from press.rules import Reading, sections
from press.study import GUIDE
from press.words import GLOSSARY

INDEX = "index"
CARDS = "cards.yml"  # the promises of pages, on the first one
SMALL = 120_000  # characters of a drawing that a card may show
READING = "::::::{container} reading"  # what is said of a hidden output
LARGE = 300_000  # characters of SVG beyond which the PNG is shown
# a picture of one pixel, in the place of figures that are not drawn
DOT = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mP4DwABAQEA"
    "HLCMmQAAAABJRU5ErkJggg=="
)
# what lies in book/ and is no part of the pages
APART = {"notebooks", "results", "exercises", FOLDER, "__pycache__"}
APART |= {"paper.yml", "paper.d", "references.bib"}
TOOLS = ("sphinx", "myst-nb", "sphinx-book-theme", "sphinx-copybutton")
OWN = (
    "build.py", "dark.py", "site.py", "pages.py", "polish.py", "numbers.py",
    "formulas.py", "references.py", "fold.py", "rules.py", "search.py",
    "figures.py", "api.py", "guess.py", "letters.py", "notes.py",
    "one_file.py", "previews.py", "beside.py", "foot.py",
    "meaning.py", "bundle.py",
    "study.py", "trim.py", "words.py",
)  # fmt: skip
# folders of the site with a file for each page or figure
MADE = (
    "_static/cards",
    "_static/posters",
    previews.FOLDER,
    f"_static/{FOLDER}",
)
# what annotated.book.figures writes for a notebook
MOVES = re.compile(
    r'<figure class="moves moves-(?P<name>\w+)">[\s\S]*?'
    r'<script type="application/json" class="moves-data">'
    r"(?P<data>[^<]*)</script>\s*"
)
LOADED = re.compile(
    r'<script type="text/plain" class="moves-large" '
    r'data-name="(?P<name>\w+)">'
    r"(?P<large>[^<]*)</script>"
)
# where the colours come into
STYLES: dict[str, Callable[[str], str]] = {
    "_static/book.css": lambda text: style_sheet() + text,
    "_static/epub.css": light,
}
# what opens all answers of a page, with a script
OPEN = (
    '<span class="control"><button type="button" class="book-quiet">'
    "open all answers</button></span>"
)
TOCTREE = re.compile(r"(```\{toctree\}\n(?::.*\n)*)((?:(?!```).*\n)*)```")


def site(root: Path) -> str:
    """Build site/ unless it is current; one line on what was done."""
    sources = page_sources(root)
    build = root / "build"
    stamp = build / "site.stamp"
    wanted = _digest(sources)
    index = root / "site" / "index.html"
    if index.is_file() and stamp.is_file() and stamp.read_text() == wanted:
        return "site/ is current"
    with alone(build):
        stamp.unlink(missing_ok=True)
        pages = _set(root, sources, build)
        mirror(footed(root, pages) | beside.found(sources), root / "site")
        stamp.write_text(wanted)
    return f"site/ holds {_count(pages)} pages"


def draft(root: Path, names: list[str]) -> str:
    """Some chapters alone, as build/draft/site/; their links stay here."""
    chapters = read_book(root)
    chosen = {chapter.name for chapter in select(chapters, names)}
    sources = page_sources(
        root, [chapter for chapter in chapters if chapter.name in chosen]
    )
    folder = root / "build" / "draft"
    with alone(folder):
        pages = _set(root, sources, folder)
        mirror(pages, folder / "site")
    return f"{folder / 'site'} holds {_count(pages)} pages"


def is_current(root: Path) -> bool:
    """Whether site/ is what the chapters as they are executed give."""
    stamp = root / "build" / "site.stamp"
    if not (stamp.is_file() and (root / "site" / "index.html").is_file()):
        return False
    try:
        return stamp.read_text() == _digest(page_sources(root))
    except PressError:  # chapters are stale
        return False


def page_sources(
    root: Path, chosen: list[Chapter] | None = None
) -> dict[str, bytes]:
    """Every file that Sphinx sees, by its path."""
    chapters = read_book(root)
    texts = executed(root, chapters if chosen is None else chosen)
    notebooks = {
        n: nbformat.reads(t, as_version=4) for n, t in texts.items()
    }
    return _files(root, _Book(root, chapters, notebooks))


def executed(root: Path, shown: list[Chapter]) -> dict[str, str]:
    """Their executed notebooks, by name. PressError if some are stale."""
    package = Package(root)
    stale = [c for c in shown if not join(root, c, key(c, package))]
    if stale:
        names = " ".join(chapter.name for chapter in stale)
        raise PressError(f"run `python -m press execute {names}` first")
    return {
        c.name: executed_path(root, c).read_text(encoding="utf-8")
        for c in shown
    }


def proof(root: Path) -> None:
    """Set every page without running one, and show it to nobody.

    What only Sphinx sees is found in seconds: links that lead nowhere,
    directives that do not exist.
    """
    chapters = read_book(root)
    book = _Book(root, chapters, {c.name: _unexecuted(c) for c in chapters})
    folder = root / "build" / "proof"
    with alone(folder):
        mirror(_files(root, book), folder / "source")
        sphinx(root, folder, "proof", _address(root))


def _unexecuted(chapter: Chapter) -> Any:
    """The chapter with a dot in the place of each figure."""
    notebook = as_notebook(chapter)
    notebook.metadata["annotated"] = {"seconds": 0}
    for cell in notebook.cells:
        if "mystnb" in cell.metadata:
            dot = {"image/png": DOT}
            cell.outputs = [nbformat.v4.new_output("display_data", dot)]
    return notebook


def _files(root: Path, book: _Book) -> dict[str, bytes]:
    """Every file that Sphinx sees, by its path."""
    chapters = book.chapters
    files = {f"{c.name}.ipynb": book.page(c) for c in book.shown.values()}
    folder = root / "book"
    sources = {chapter.file for chapter in chapters}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        parts = set(name.split("/"))
        hidden = any(part.startswith(".") for part in parts)
        apart = hidden or APART & parts or name in sources
        if path.is_file() and not apart:
            files[name] = path.read_bytes()
    for name, text in scripts(root).items():
        files[f"_static/{FOLDER}/{name}.js"] = text.encode()
    for name, words in STYLES.items():
        if name in files:
            files[name] = words(files[name].decode()).encode()
    if "E33-one-file" in book.shown:
        files[f"_static/{ONE_FILE}"] = one_file(root).encode()
    files |= book.large
    known: dict[str, Any] = {"works": notes.works(book.works)}
    if book.project.site:
        known["site"] = book.project.site
        files |= book.previews()
        known["previews"] = book.shows()
    if GLOSSARY in book.shown:
        known["terms"] = notes.terms(book.shown[GLOSSARY])
    if len(book.shown) == len(chapters):  # a draft has no reference
        api = Reference(root, chapters, book.project, book.paper)
        files |= {n: text.encode() for n, text in api.pages().items()}
        known["names"] = api.links()
    files[NAMES] = json.dumps(known, indent=0, sort_keys=True).encode()
    if "references.md" in files:
        text = files["references.md"].decode() + book.references()
        files["references.md"] = text.encode()
    if "index.md" in files:
        others = {
            name[:-3]: data.decode()
            for name, data in sorted(files.items())
            if name.endswith(".md")
        }
        index = book.index(others.pop("index"), others)
        files["index.md"] = index.encode()
    return files | book.as_markdown(files)


class _Book:
    """What the pages know of each other."""

    def __init__(
        self, root: Path, chapters: list[Chapter], notebooks: dict[str, Any]
    ) -> None:
        self.root = root
        self.project = read_project(root)
        self.chapters = chapters
        self.shown = {c.name: c for c in chapters if c.name in notebooks}
        self.labels = numbers.labels(chapters)
        self.works = works(root)
        self.paper: list[dict[str, Any]] = json.loads(
            paper_map(root) or "[]"
        )
        self.executed = notebooks
        # what figures load when they are asked to, by its path
        self.large: dict[str, bytes] = {}
        self.thumbnails: dict[str, str] = {}  # of a page: a path
        # of a page: its first figure, and what this shows
        self.drawn: dict[str, tuple[str, str]] = {}
        cards = root / "book" / CARDS
        text = cards.read_text("utf-8") if cards.is_file() else ""
        self.promises: dict[str, str] = yaml.safe_load(text) or {}

    # --- a chapter ---

    def page(self, chapter: Chapter) -> bytes:
        """The executed chapter with its numbers and a line of facts."""
        notebook = self.executed[chapter.name]
        figures = {
            place: text
            for cell, text in numbers.figures(chapter)
            for place, other in enumerate(chapter.cells)
            if other is cell
        }
        exercises = 0
        titled = False
        for place, cell in enumerate(notebook.cells):
            origin = chapter.cells[place]
            for output in cell.get("outputs", []):
                _choose_format(cell, output)
                drawing = output.get("data", {}).get("image/svg+xml")
                if drawing and "poster" in origin.tags:
                    cell.metadata["poster"] = self._poster(drawing)
                if moves := self._moves(output):
                    cell.metadata["moves"] = moves
                if "mystnb" in origin.metadata:
                    self._show(chapter.name, cell, output)
            if place in figures:
                figure = cell.metadata["mystnb"]["figure"]
                text = f"**{figures[place]}.** {figure['caption']}"
                figure["caption"] = self.inline(text, chapter)
            if cell.cell_type == "code":
                cell.metadata["fold"] = _labels(cell, origin, chapter)
                continue
            reading, rest = fold.reading(chapter, place)
            if reading:  # pages.py puts it into the fold
                cell.source = f"{READING}\n{reading}\n::::::\n\n{rest}"
            if not titled:
                cell.source, titled = self._titled(cell.source, chapter)
            cell.source, exercises = _number(
                cell.source, chapter, exercises, self.labels
            )
            cell.source = guess.fill(cell.source, chapter, place, notebook)
            cell.source = self.inline(cell.source, chapter)
        # nothing of the last run's circumstances: the same pages again
        record = notebook.metadata.pop("annotated")
        data = json.dumps(notebook, sort_keys=True, ensure_ascii=False)
        notebook.metadata["annotated"] = record
        return data.encode()

    def _moves(self, output: Any) -> dict[str, Any]:
        """The figure that moves of an output, which shows the still from
        now on: pages.py gives it its data, and its script.
        """
        data = output.get("data", {})
        text = data.get("text/html", "")
        found = MOVES.search(text)
        if found is None or "image/svg+xml" not in data:
            return {}
        del data["text/html"]
        name, files = found["name"], {}
        for large in LOADED.finditer(text, found.end()):
            stem = hashlib.sha256(large["large"].encode()).hexdigest()[:12]
            path = f"_static/{FOLDER}/{name}-{large['name']}-{stem}.js"
            script = f'movesLarge("{large["large"]}");\n'
            self.large[path] = script.encode()
            files[large["name"]] = path
        return {"name": name, "data": found["data"], "large": files}

    def _poster(self, drawing: str) -> str:
        """A hidden figure's axes, which are a file of their own."""
        empty = posters.poster(drawing).encode()
        stem = hashlib.sha256(empty).hexdigest()[:16]
        path = f"_static/posters/{stem}.svg"
        self.large[path] = empty
        return posters.image(drawing, path)

    def _show(self, name: str, cell: Any, output: Any) -> None:
        """The page's first drawing, for links to it, and the first that is
        small, for its card.
        """
        svg = output.get("data", {}).get("image/svg+xml", "")
        if not svg:
            return
        image = cell.metadata["mystnb"].get("image", {})
        self.drawn.setdefault(name, (svg, image.get("alt", "")))
        if len(svg) <= SMALL and name not in self.thumbnails:
            self.thumbnails[name] = f"_static/cards/{name}.svg"
            self.large[self.thumbnails[name]] = svg.encode()

    def previews(self) -> dict[str, bytes]:
        """Of each page with a figure a picture for links to it, by path;
        the first of these figures is that of the first page, too.
        """
        found: dict[str, bytes] = {}
        for name, (figure, _) in self.drawn.items():
            chapter = self.shown[name]
            words = self.promises.get(name) or _first_sentence(chapter)
            cards = [(name, _numbered(chapter), words)]
            if not found:
                cards.append((INDEX, TITLE, self.project.about))
            for page, title, words in cards:
                found[previews.path(page)] = previews.preview(
                    self.root, title, words, figure
                )
        return found

    def as_markdown(self, files: dict[str, bytes]) -> dict[str, bytes]:
        """Each page as Markdown, and llms.txt, which lists them."""
        rooms: dict[str, list[beside.Page]] = {}
        for name, chapter in self.shown.items():
            title = _numbered(chapter)
            words = self.promises.get(name) or _first_sentence(chapter)
            notebook = json.loads(files[f"{name}.ipynb"])
            page = beside.Page(name, title, words, notebook)
            rooms.setdefault(chapter.room, []).append(page)
        texts = beside.texts(self.project, rooms)
        return {
            f"{beside.FOLDER}/{n}": t.encode() for n, t in texts.items()
        }

    def shows(self) -> dict[str, str]:
        """What these pictures show, by page."""
        found = {name: alt for name, (_, alt) in self.drawn.items()}
        first = next(iter(found.values()), None)
        return {} if first is None else {INDEX: first, **found}

    def _titled(self, source: str, chapter: Chapter) -> tuple[str, bool]:
        number = numbers.number_of(chapter.name)
        start = f"# {number} · " if number != "0" else "# "
        line = self.facts(chapter)
        text, found = re.subn(
            r"^# +(.*)$",
            lambda match: f"{start}{match[1]}\n\n{line}\n",
            source,
            count=1,
            flags=re.M,
        )
        return text, bool(found)

    def inline(self, markdown: str, chapter: Chapter | None) -> str:
        """Links to chapters, figures, exercises and works, as Sphinx's."""

        def link(match: re.Match[str]) -> str:
            image, text, name, anchor, label = match.groups()
            if label and label not in self.labels:
                return match[0]
            anchor = anchor or label
            state = ""
            if anchor and ":" in anchor:  # of a figure, see pages.py
                page = f"{name}.md" if name or not chapter else chapter.file
                state = f' "{anchor}"'
                anchor = self._moving(page, anchor)
            here = name is None or (chapter and name == chapter.name)
            if image or (name and name not in self._names):
                return match[0]
            file, number = self.labels.get(anchor or "", ("", ""))
            text = text or number
            if name is None and file and chapter and file != chapter.file:
                name, here = file.removesuffix(".md"), False
            if name is None and not number:
                return match[0]
            if not here and name not in self.shown:
                return text or f"chapter {name}"  # a draft has not all
            place = f"#{anchor}" if anchor else ""
            if here and not place:
                return str(text)  # an exercise on its chapter's page
            page = "" if here else f"{name}.ipynb"
            return f"[{text}]({page}{place}{state})"

        markdown = re.sub(
            r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]"
            r"\((?:(?:(?:\./)?([\w-]+)\.md)?(?:#([\w.-]+(?::[\w.=&%+-]*)?))?|([\w-]+))\)",
            link,
            markdown,
        )
        markdown = numbers.once(markdown)
        return re.sub(r"\{cite(?::\w+)?\}`([^`]+)`", self._cite, markdown)

    def _moving(self, page: str, state: str) -> str:
        """The label of the figure of a state, `learn:mask=0`."""
        figure = state.partition(":")[0]
        for label, (file, _) in self.labels.items():
            if file == page and label.endswith(f"-{figure}"):
                return label
        raise PressError(f"book/{page} has no figure fig-…-{figure}")

    @cached_property
    def _names(self) -> set[str]:
        return {chapter.name for chapter in self.chapters}

    def _cite(self, match: re.Match[str]) -> str:
        keys = [key.strip() for key in match[1].split(",")]
        known = {work.key: work for work in self.works}
        missing = [key for key in keys if key not in known]
        if missing:
            raise PressError(
                f"book/references.bib has no entry {', '.join(missing)}"
            )
        return "; ".join(
            f"[{known[key].short}](references.md#{key})" for key in keys
        )

    def facts(self, chapter: Chapter) -> str:
        """A line of HTML on what a page takes, and what else there is about
        it, which press.foot takes to the page's end.
        """
        seconds = self.executed[chapter.name].metadata["annotated"][
            "seconds"
        ]
        took = f"{seconds:.0f} s"
        if seconds >= 90:
            took = f"{seconds / 60:.1f} min"
        targets = (target_of(cell, chapter) for cell in chapter.code)
        names = set(filter(None, targets))
        packages = packages_of(names)
        modules = []
        for name in sorted(names):
            path = path_of(name, packages)
            address = self.project.source(f"{PACKAGE}/{path}")
            code = f"<code>{PACKAGE}.{name}</code>"
            modules.append(f'<a href="{address}">{code}</a>')
        notebook = f"book/notebooks/{chapter.name}.ipynb"
        covered = _sections(self.paper, chapter.name)
        colab, source = (
            self.project.colab(notebook),
            self.project.source(notebook),
        )
        words = self._linked(chapter, GLOSSARY, "words")
        asked = self._linked(chapter, GUIDE, "guide")
        parts = [
            f"{reading_minutes(chapter)} min",
            covered,
            self._to_move(chapter),
            f'<a href="{colab}">Colab</a>' if chapter.code else "",
            f'<a href="{source}">notebook</a>' if chapter.code else "",
        ]
        button = OPEN if any(map(_asks, chapter.cells)) else ""
        tools = [
            f"{took} to run" if chapter.code else "",
            f"makes {', '.join(modules)}" if modules else "",
            f'<a href="{words}">words and symbols</a>' if words else "",
            f'<a href="{asked}">questions</a>' if asked else "",
        ]
        spans = "".join(f"<span>{part}</span>" for part in parts if part)
        items = "".join(f"<li>{tool}</li>" for tool in tools if tool)
        return (
            "```{raw} html\n"
            f'<p class="chapter-facts">{spans}{button}</p>\n'
            f'<ul class="page-tools">{items}</ul>\n```'
        )

    def _to_move(self, chapter: Chapter) -> str:
        """A link to the page's first figure that moves, if it has one."""
        for cell in self.executed[chapter.name].cells:
            figure = cell.metadata.get("mystnb", {}).get("figure", {})
            shown = (
                output.get("data", {}).get("text/html", "")
                for output in cell.get("outputs", [])
            )
            if "name" in figure and any(map(MOVES.search, shown)):
                link = f'<a class="to-move" href="#{figure["name"]}">'
                return f"{link}interactive figure</a>"
        return ""

    def _linked(self, chapter: Chapter, page: str, mark: str) -> str:
        """The address of what another page has on a chapter, if it has."""
        other = self.shown.get(page)
        target = f"{mark}-{chapter.number}"
        cells = other.cells if other else ()
        if not any(f"({target})=" in cell.source for cell in cells):
            return ""
        return f"{page}.html#{target}"

    # --- the other pages ---

    def references(self) -> str:
        """The works that the chapters cite or link to, and where."""
        lines = []
        for work in self.works:
            places = [
                f"[{_short_title(chapter)}]({chapter.name}.ipynb)"
                for chapter in self.shown.values()
                if work.is_in(chapter)
            ]
            where = f" *In {', '.join(places)}.*" if places else ""
            lines.append(f"({work.key})=\n{work.text}{where}\n")
        return "\n" + "\n".join(lines)

    def index(self, text: str, others: dict[str, str]) -> str:
        """The first page: lists of chapters, coverage, installation."""
        pages = [*self.shown, *others]

        def fill(match: re.Match[str]) -> str:
            # a part without a page is left out: Sphinx would warn
            patterns = match[2].split()
            found = [
                n for p in patterns for n in pages if fnmatchcase(n, p)
            ]
            if not found:
                return ""
            head = re.search(r":caption: (.*)", match[1])
            title = f"## {head[1]}\n" if head else ""
            lines = [title, *self._listed(found, others)]
            if head and all(re.match(ASIDE, name) for name in found):
                title = (
                    f":::{{admonition}} {head[1]}\n:class: dropdown part"
                )
                lines = [title, *lines[1:], ":::"]  # few come for these
            listed = "\n".join(["", *lines, ""])
            return "\n".join([match[1] + "\n".join(found), "```", listed])

        def choose(match: re.Match[str]) -> str:
            # a link to a pattern, to the first page that it fits
            text, wanted, look = match.groups()
            found = [n for n in self.shown if fnmatchcase(n, wanted)]
            return f"[{text}]({found[0]}.md){look}" if found else text

        start = [n for n in self.shown if n.startswith("02")]
        notebook = f"book/notebooks/{(start or [''])[0]}.ipynb"
        text = TOCTREE.sub(fill, text)
        for name, value in {
            "colab": self.project.colab(notebook),
            "cover": self._tagged("cover"),
            "translator": self._tagged("translator"),
            "coverage": counts(self.paper),
            "parts": str(len(self.paper)),
            "install": f"pip install {self.project.install}",
            "repository": self.project.repository,
            "taken": self._taken(),
        }.items():
            text = text.replace(f"%({name})", value)
        text = re.sub(r"%\(ledger (\S+) (\S+) (\S+)\)", self._ran, text)
        text = re.sub(r"%\(printed (\S+) ([^)]+)\)", self._printed, text)
        pattern = (
            r"\[([^\]]*)\]\(([\w*?-]*[*?][\w*?-]*)\.md\)((?:\{[^}]*\})?)"
        )
        text = re.sub(
            r'<a href="([\w-]+)\.html">(.*?)</a>',
            lambda link: link[0 if link[1] in self.shown else 2],
            text,
            flags=re.S,
        )
        return self.inline(re.sub(pattern, choose, text), None)

    def _listed(
        self, pages: list[str], others: dict[str, str]
    ) -> list[str]:
        """Chapters of the story as cards, a line for each other page."""
        cards = [
            name
            for name in pages
            if name in self.promises and self.shown[name].room == "story"
        ]
        rest = [name for name in pages if name not in cards]
        lines = [self._cards(cards)] if cards else []
        lines += ["{.chapters}"] if rest else []
        for name in rest:
            if name in self.shown:
                lines.append(self._entry(self.shown[name]))
            else:
                lines.append(_plain_entry(name, others[name]))
        return lines

    def _taken(self) -> str:
        """Where the book is in a form to take away, if that is known."""
        if not self.project.site:
            return ""
        where = f"{self.project.site}/download/{NAME}"
        return (
            f'To take away: the story <a href="{where}.epub">as an EPUB'
            f'</a> or <a href="{where}.pdf">as a PDF</a>, '
            f'<a href="{where}.zip">pages and notebooks as a zip</a>.'
        )

    def _ran(self, match: re.Match[str]) -> str:
        """A number of book/results, `name a.b/60 .0f`, or the mean of
        several runs, `name,other a.b .1f`.
        """
        keys, _, divisor = match[2].partition("/")
        values = []
        for name in match[1].split(","):
            path = self.root / "book" / "results" / f"{name}.json"
            try:
                value = json.loads(path.read_text(encoding="utf-8"))
                for key in keys.split("."):
                    value = value[key]
            except (OSError, KeyError) as error:
                raise PressError(
                    f"book/index.md: {match[0]}: {error}"
                ) from None
            values.append(value / float(divisor or 1))
        return format(sum(values) / len(values), match[3])

    def _printed(self, match: re.Match[str]) -> str:
        """What stands after some words in a page's printed output."""
        page = self.executed.get(match[1])
        for cell in page.cells if page else ():
            for output in cell.get("outputs", []):
                line = rf"^{re.escape(match[2])} +(\S+)"
                if found := re.search(line, output.get("text", ""), re.M):
                    return found[1]
        if (
            page is None
            or self.executed[match[1]].metadata["annotated"]["seconds"] == 0
        ):
            return "…"  # a draft without it, or a proof
        raise PressError(f"book/index.md: {match[0]}: it is not printed")

    def _cards(self, names: list[str]) -> str:
        """Pages with their picture and their promise."""
        lines = []
        for name in names:
            chapter = self.shown[name]
            picture = self.thumbnails.get(name, "")
            image = f'<img src="{picture}" alt="" loading="lazy">'
            lines.append(
                f'<li><a href="{name}.html">'
                f'<span class="picture">{image if picture else ""}</span>'
                f"<b>{html.escape(_numbered(chapter))}</b>"
                f"<span>{html.escape(self.promises[name])}</span>"
                f"<small>{reading_minutes(chapter)} min</small></a></li>"
            )
        listed = "\n".join(lines)
        return f'```{{raw}} html\n<ul class="cards">\n{listed}\n</ul>\n```'

    def _entry(self, chapter: Chapter) -> str:
        link = f"[{_numbered(chapter)}]({chapter.name}.md)"
        minutes = reading_minutes(chapter)
        words = self.promises.get(chapter.name) or _first_sentence(chapter)
        return f"{link} <small>{minutes} min</small>\n: {words}\n"

    def _tagged(self, tag: str) -> str:
        """The figure whose cell has this tag."""
        for name, notebook in self.executed.items():
            for cell, origin in zip(
                notebook.cells, self.shown[name].cells, strict=True
            ):
                if tag not in origin.tags:
                    continue
                for output in cell.outputs:
                    svg = output.get("data", {}).get("image/svg+xml")
                    image = cell.metadata.get("mystnb", {}).get("image", {})
                    if svg:
                        alt, moves = image.get("alt", ""), cell.metadata
                        still = _embedded(svg, alt, name)
                        return _cover_of(still, moves.get("moves"))
        return ""


def _cover_of(still: str, moves: dict[str, str] | None) -> str:
    """The still for the first page, which may come to life."""
    if moves is not None:
        name = moves["name"]
        still = (
            f'<figure class="moves moves-{name}">\n{life(moves)}\n'
            f"{still}\n</figure>"
        )
    return f"```{{raw}} html\n{still}\n```"


def _plain_entry(name: str, text: str) -> str:
    title, _, rest = text.partition("\n")
    first = " ".join(rest.strip().partition("\n\n")[0].split())
    return f"[{title.lstrip('# ')}]({name}.md)\n: {first}\n"


def _numbered(chapter: Chapter) -> str:
    """The title as it stands on the page."""
    number = numbers.number_of(chapter.name)
    return f"{number} · {chapter.title}" if number != "0" else chapter.title


def _short_title(chapter: Chapter) -> str:
    number = numbers.number_of(chapter.name)
    kind = {"A": "appendix", "E": "page"}.get(number[0], "chapter")
    return f"{kind} {number}" if number != "0" else chapter.title


def _embedded(svg: str, alt: str, name: str) -> str:
    data = base64.b64encode(svg.encode()).decode()
    return (
        f'<a class="cover" href="{name}.html">'
        f'<img alt="{html.escape(alt)}" '
        f'src="data:image/svg+xml;base64,{data}"></a>'
    )


def _sections(paper: list[dict[str, Any]], chapter: str) -> str:
    """`§3.2.1, 3.2.2, Figure 2` by what the map says of a chapter."""
    found: list[str] = []
    for item in paper:
        section = str(item["item"]).split()[0]
        here = any(
            line.get("chapter") == chapter for line in item["covered"]
        )
        if here and section[0].isdigit() and section not in found:
            found.append(section)
    if len(found) > 6:  # the whole paper, nearly
        found = sorted({section.split(".")[0] for section in found})
    told = [f"§{', '.join(found)}"] if found else []
    for kind, name in (
        ("fig", "Figure"),
        ("table", "Table"),
        ("fn", "footnote"),
    ):
        own = [
            str(item["item"]).split()[1]
            for item in paper
            if str(item["item"]).split()[0] == kind
            and any(
                line.get("chapter") == chapter for line in item["covered"]
            )
        ]
        numbers = ", ".join(dict.fromkeys(own))
        if numbers:
            told.append(f"{name}{'s' * (',' in numbers)} {numbers}")
    return ", ".join(told)


def _asks(cell: Cell) -> bool:
    """Whether it hides an answer."""
    asks = re.search(r"^:class: predict\b|\{question\}", cell.source, re.M)
    return "hide-output" in cell.tags or asks is not None


def _first_sentence(chapter: Chapter) -> str:
    """The chapter's first words, without links and marks; neither the
    line of what it needs, all in italics, nor the heading of a paragraph.
    """
    for cell in chapter.cells:
        if cell.kind != "markdown":
            continue
        for block in re.split(r"\n\s*\n", cell.source):
            text = re.sub(r"^\*\*[^*]+\.\*\* ", "", " ".join(block.split()))
            needs = re.fullmatch(r"\*[^*]+\*", text)
            if text and not needs and re.match(r"[^#:`|>%(-]", text):
                text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
                found = re.match(r".*?[.?!:](?=[\s”\"*]|$)[”\"*]*", text)
                words = found[0] if found else text
                return re.sub(r"[:]$", ".", words)
    return ""


def reading_minutes(chapter: Chapter) -> int:
    whole = sum(sections(chapter).values(), Reading())
    return max(1, round(whole.minutes))


# --- cells ----------------------------------------------------------------


def _labels(cell: Any, origin: Cell, chapter: Chapter) -> dict[str, str]:
    """What the folded parts of a cell are called."""
    code = fold.title(chapter, origin)
    kinds = {kind for out in cell.outputs for kind in out.get("data", {})}
    if code == "Code":  # what came of it is known here
        if any(kind.startswith("image/") for kind in kinds):
            code = "Code of this figure"
        elif {"text/html", "text/markdown"} & kinds:
            code = "Code of this table"
        elif cell.outputs:
            code = "Code of this output"
    answer = "Show what happens" if "hide-output" in origin.tags else code
    return {"code": code, "answer": answer}


def _number(
    source: str,
    chapter: Chapter,
    count: int,
    labels: dict[str, tuple[str, str]],
) -> tuple[str, int]:
    """Exercises and their solutions as admonitions with numbers."""

    def exercise(match: re.Match[str]) -> str:
        nonlocal count
        count += 1
        number = f"{numbers.number_of(chapter.name)}.{count}"
        title = numbers.exercise_title(match[2], number)
        return f"{match[1]}{{admonition}} {title}\n:class: exercise"

    source = numbers.EXERCISE.sub(exercise, source)
    source = re.sub(
        r"^(:class: exercise\n(?::class:.*\n)?):label:",
        r"\1:name:",
        source,
        flags=re.M,
    )

    def solution(match: re.Match[str]) -> str:
        what = labels.get(match[2], ("", "the exercise"))[1]
        title = f"Solution of {what[0].lower()}{what[1:]}"
        return (
            f"{match[1]}{{admonition}} {title}\n:class: solution dropdown"
        )

    return re.sub(
        r"^(:{3,}|`{3,})\{solution\}[ \t]*(\S+)[ \t]*"
        r"(?:\n:class:[ \t]*dropdown)?$",
        solution,
        source,
        flags=re.M,
    ), count


def _choose_format(cell: Any, output: Any) -> None:
    """SVG for drawings; PNG, at half its pixels, for what is large."""
    data = output.get("data", {})
    image = cell.metadata.setdefault("mystnb", {}).setdefault("image", {})
    drawing = data.get("image/svg+xml", "")
    if look := letters.look(drawing):
        image["classes"] = look
    if "image/svg+xml" not in data or "image/png" not in data:
        return
    if len(data["image/svg+xml"]) <= LARGE:
        del data["image/png"]
        return
    del data["image/svg+xml"]
    width = output.metadata.get("image/png", {}).get("width")
    if width and "width" not in image:
        image["width"] = f"{width}px"


# --- files and Sphinx -----------------------------------------------------


def _digest(sources: dict[str, bytes]) -> str:
    tools = [f"{name} {metadata.version(name)}" for name in TOOLS]
    total = hashlib.sha256("\n".join(tools).encode())
    for name in OWN:
        total.update((Path(__file__).parent / name).read_bytes())
    for name in sorted(sources):
        total.update(name.encode() + b"\0")
        total.update(hashlib.sha256(sources[name]).digest())
    return total.hexdigest()


def _set(
    root: Path, sources: dict[str, bytes], build: Path
) -> dict[str, bytes]:
    """The pages of these sources, through build/source and build/html."""
    mirror(sources, build / "source")
    sphinx(root, build, "html", _address(root))
    html = build / "html"
    stems = {Path(name).stem for name in sources} | {"search"}
    for path in html.glob("*.html"):  # Sphinx leaves what is gone
        if path.stem not in stems:
            path.unlink()
    for folder in MADE:
        for path in (html / folder).glob("*"):
            if path.relative_to(html).as_posix() not in sources:
                path.unlink()
    return polish(
        {
            path.relative_to(html).as_posix(): path.read_bytes()
            for path in sorted(html.rglob("*"))
            if path.is_file()
        }
    )


def _address(root: Path) -> dict[str, str]:
    """The theme's button leads there."""
    address = read_project(root).repository
    return {"html_theme_options.repository_url": address}


def _count(pages: dict[str, bytes]) -> int:
    return sum("/" not in n and n.endswith(".html") for n in pages)
