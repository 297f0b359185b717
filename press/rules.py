"""What a page keeps to beyond its code: DESIGN's rules for a reader.

The exporter refuses code; these rules are enforced page by page, by
`press check` and by `press rules`.
"""

from __future__ import annotations

import ast
import json
import re
import symtable
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from IPython.core.inputtransformer2 import TransformerManager
from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.colon_fence import colon_fence_plugin

from press import myst
from press.api import undocumented
from press.chapters import COLUMNS, Cell, Chapter, read_book, select
from press.fold import (
    READING,
    exported,
    folded,
    follows_hidden,
    reading,
    visible,
)
from press.modules import (
    PACKAGE,
    Block,
    Import,
    Module,
    collect,
    imports_of,
    own,
)
from press.numbers import LABEL, figure_of
from press.references import ARXIV, works
from press.unproved import unproved

MINUTES = 45  # that a story page may take to read
LINES = {"story": 30}  # that a cell may have, not counting empty ones
OTHER_LINES = 60
MARKDOWN = MarkdownIt("commonmark").enable("table").use(colon_fence_plugin)


def check_rules(root: Path, names: list[str] | None = None) -> list[str]:
    """The offences of these pages, or of all."""
    chosen = {page.name for page in select(read_book(root), names or [])}
    return [
        line
        for page, lines in offences(root).items()
        if page in chosen
        for line in lines
    ]


def offences(root: Path) -> dict[str, list[str]]:
    """What is wrong with each page."""
    chapters = read_book(root)
    modules, _ = collect(chapters)  # what does not parse, export refuses
    later = Order(chapters, modules)
    twice = _twice(chapters)
    bare = unproved(root, chapters)
    listed = {work.eprint for work in works(root)}
    found = {}
    for place, chapter in enumerate(chapters):
        lines = [
            *_room(chapter),
            *later.offences(place),
            *_size(chapter),
            *_wide(chapter),
            *_budget(chapter, sections(chapter)),
            *_introduced(chapter, chapters),
            *_folded_prose(chapter),
            *_taken(chapter),
            *_given_away(chapter),
            *told(chapter, _printed(root, chapter)),
            *_figures(chapter),
            *_undocumented(place, modules),
            *twice[chapter.name],
            *bare[chapter.name],
            *_unlisted(chapter, listed),
        ]
        if lines:
            found[chapter.name] = lines
    return found


def _room(chapter: Chapter) -> Iterator[str]:
    """Appendices export nothing."""
    for cell in chapter.code:
        if chapter.room == "appendix" and exported(cell):
            yield cell.problem("an appendix exports nothing")


# --- no idea is used before it is taught ----------------------------------


class Order:
    """Where a story page's imports lead, directly or by engine modules."""

    def __init__(
        self, chapters: list[Chapter], modules: dict[str, Module]
    ) -> None:
        self.chapters = chapters
        self.modules = modules

    def offences(self, place: int) -> Iterator[str]:
        if self.chapters[place].room != "story":
            return
        for module in self.modules.values():
            for block in module.blocks:
                if block.chapter == place:
                    for item in every_import(block):
                        chain = self.chain(item, place)
                        if chain:
                            yield block.problem(chain)

    def chain(self, item: Import, place: int) -> str:
        """How an import reaches a later page of the story; "" if not."""
        seen: set[str] = set()
        todo = [(item, "imports ")]
        while todo:
            item, so_far = todo.pop(0)
            for path, block in self.sources(item):
                path = so_far + path
                page = self.chapters[block.chapter]
                if page.room == "story":
                    if block.chapter > place:
                        return (
                            f"{path}, which only book/{page.file} teaches"
                        )
                elif block.target not in seen:
                    seen.add(block.target)
                    path += ", which imports "
                    beneath = self.beneath(self.modules[block.target])
                    todo += [(i, path) for i in beneath]
        return ""

    def sources(self, item: Import) -> Iterator[tuple[str, Block]]:
        """The cells that define what is imported, and its whole name."""
        name, wanted = own(item, self.modules) or ("", None)
        if name not in self.modules:
            return
        module, path = self.modules[name], f"{PACKAGE}.{name}"
        if wanted is None:
            yield from ((path, block) for block in module.blocks)
        elif wanted in module.names:
            yield f"{path}.{wanted}", module.names[wanted]

    def beneath(self, module: Module) -> Iterator[Import]:
        """What a module imports on the pages that are no story."""
        for block in module.blocks:
            if self.chapters[block.chapter].room != "story":
                yield from every_import(block)


def every_import(block: Block) -> Iterator[Import]:
    """Those inside functions too."""
    for node in ast.walk(block.tree):
        yield from imports_of(node)


# --- how long a page takes ------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """What there is to read on a page, or in a part of it: what stands
    open, exercises apart.
    """

    words: int = 0
    lines: int = 0  # of code
    figures: int = 0
    predictions: int = 0

    def __add__(self, more: Reading) -> Reading:
        return Reading(
            self.words + more.words,
            self.lines + more.lines,
            self.figures + more.figures,
            self.predictions + more.predictions,
        )

    @property
    def minutes(self) -> float:
        return (
            self.words / 180
            + self.lines / 8
            + 0.75 * self.figures
            + self.predictions
        )


def sections(chapter: Chapter) -> dict[str, Reading]:
    """By heading; code that is folded is not read."""
    found: dict[str, Reading] = {}
    heading = ""
    for cell in chapter.cells:
        if cell.kind == "markdown":
            parts = prose(cell.source, heading)
        else:
            lines = 0 if folded(chapter, cell) else size(cell)
            drawn = int(figure_of(cell) is not None)
            parts = [(cell.heading, Reading(0, lines, drawn))]
        for heading, part in parts:
            found[heading] = found.get(heading, Reading()) + part
    return found


def size(cell: Cell) -> int:
    """Its lines, without the empty ones."""
    return _full(cell.source.splitlines())


@cache  # rules and pages ask again
def prose(markdown: str, heading: str) -> list[tuple[str, Reading]]:
    """Words, and lines of code between them, each below its heading."""
    found = []
    tokens = MARKDOWN.parse(markdown)
    for row, token in enumerate(tokens):
        if token.type == "heading_open":
            heading = tokens[row + 1].content
        elif token.type == "inline":
            words = sum(_words(x.content) for x in token.children or [])
            asked = bool(ASKED.search(token.content))
            found.append((heading, Reading(words, predictions=asked)))
        elif token.type in {"fence", "colon_fence"}:
            found.append((heading, _fenced(token)))
    return found


def _fenced(token: Token) -> Reading:
    """A listing, or a directive and what is in it."""
    info = re.sub(r"^\{(\S*)\}", r"\1 ", token.info.strip())
    name, _, title = info.partition(" ")
    plain = token.type == "fence" and token.info[:1] != "{"
    inside = myst.options(token.content.splitlines())[1]
    if plain or name in myst.CODE:
        return Reading(lines=_full(inside))
    if name in myst.DROPPED or name in {"exercise", "solution"}:
        return Reading()
    parts = [part for _, part in prose("\n".join(inside), "")]
    asked = bool(ASKED.search(title))
    return sum(parts, Reading(_words(title), predictions=asked))


def _full(lines: list[str]) -> int:
    return sum(bool(line.strip()) for line in lines)


ASKED = re.compile(r"\b[Pp]redict\b|\bSketch\b")


def _words(text: str) -> int:
    return sum(any(map(str.isalnum, part)) for part in text.split())


def _size(chapter: Chapter) -> Iterator[str]:
    most = LINES.get(chapter.room, OTHER_LINES)
    for cell in chapter.code:
        if size(cell) > most:
            yield cell.problem(f"has {size(cell)} lines, not {most}")


def _wide(chapter: Chapter) -> Iterator[str]:
    """A listing between two paragraphs is seen without scrolling."""
    for cell in chapter.cells:
        if cell.kind != "markdown":
            continue
        inside = ""
        for line in cell.source.splitlines():
            if line.lstrip().startswith("```"):
                inside = "" if inside else line.strip("`") or "text"
            elif inside and inside[0] != "{" and len(line) > COLUMNS:
                yield (
                    f'{cell.section}: the line "{line[:40]}…" of a listing '
                    f"has {len(line)} columns, not {COLUMNS}"
                )


def _budget(chapter: Chapter, parts: dict[str, Reading]) -> Iterator[str]:
    """A story page is read in an evening."""
    whole = sum(parts.values(), Reading())
    if chapter.room != "story" or whole.minutes <= MINUTES:
        return
    longest = max(parts, key=lambda heading: parts[heading].minutes)
    yield (
        f'book/{chapter.file}, section "{longest}": the page takes '
        f"{whole.minutes:.1f} minutes to read, not {MINUTES}; this section "
        f"takes most of them, {parts[longest].minutes:.1f}"
    )


def _introduced(chapter: Chapter, chapters: list[Chapter]) -> Iterator[str]:
    """A page of the story leads to each page of the engine room."""
    link = rf"\]\((?:\./)?{re.escape(chapter.file)}[#)]"
    if chapter.room == "engine" and not any(
        re.search(link, cell.source)
        for page in chapters
        if page.room == "story"
        for cell in page.cells
        if cell.kind == "markdown"
    ):
        yield (
            f'book/{chapter.file}, section "{chapter.title}": no page of '
            "the story introduces it with a link"
        )


def _unlisted(chapter: Chapter, listed: set[str]) -> Iterator[str]:
    """A paper that a page links to is among the references."""
    for cell in chapter.cells:
        for number in sorted({*ARXIV.findall(cell.source)} - listed):
            yield f"{cell.section}: arXiv {number} is not in references.bib"


def _folded_prose(chapter: Chapter) -> Iterator[str]:
    """What is folded with a hidden output does not ask the next thing."""
    for place, cell in enumerate(chapter.cells):
        if cell.kind == "markdown":
            text, _ = reading(chapter, place)
            if re.search(r"\bPredict\b|\band predict\b", text):
                yield (
                    f'{cell.section}: "{text[:40]}…" is folded with the '
                    "output above it; begin a paragraph before the next "
                    "prediction"
                )


# how a paragraph begins that goes on from what was seen, and its name
GOES_ON = re.compile(r"\W*(So|Thus|This|These|Both|They|It|With ours)\b")
SEEN = re.compile(
    r"\b(?:curves?|panels?|maps?|bars?|dots?|points|dashed line"
    r"|(?:first|last|two|three|four) (?:rows?|columns?)"
    r"|(?:figure|table|map|output) (?:above|also|shows?|names))\b"
)
ASKS = re.compile(r"\b(?:[Pp]redict|[Ss]ketch|[Gg]uess)\b|\?$")


def _given_away(chapter: Chapter) -> Iterator[str]:
    """What stands open below a hidden output does not talk about it."""
    for place, cell in enumerate(chapter.cells):
        if cell.kind != "markdown":
            continue
        rest = reading(chapter, place)[1]
        if READING.search(rest):
            yield (
                f"{cell.section}: a fence `reading` stands at the head of "
                "the text right below an output tagged hide-output"
            )
        if not follows_hidden(chapter, place):
            continue
        text = visible(rest)
        word = GOES_ON.match(text)
        if not (word or ASKS.search(text)):
            word = SEEN.search(text)
        if word:
            yield (
                f'{cell.section}: "{text[:40]}…" stands open below a '
                f'hidden output and talks about it ("{word[0]}"): put it '
                "into a fence `reading` with what is folded, or begin "
                "with what comes next"
            )


GUESS = "guess"  # what the first cell of a notebook makes


def _taken(chapter: Chapter) -> Iterator[str]:
    """No cell of a notebook takes the name that its guesses are made by."""
    for cell in chapter.code:
        code = TransformerManager().transform_cell(cell.source)
        try:
            table = symtable.symtable(code, chapter.file, "exec")
        except SyntaxError:  # the execution will say so, with its place
            continue
        if _binds(table, GUESS):
            yield cell.problem(
                f"{GUESS} is what a notebook's guesses are made by: "
                "take another name"
            )


def _binds(table: symtable.SymbolTable, name: str) -> bool:
    """Whether code gives a module's name another value, at its top level
    or in a function that declares it global.
    """
    if name in table.get_identifiers():
        symbol = table.lookup(name)
        there = table.get_type() == "module" or symbol.is_declared_global()
        if there and (symbol.is_assigned() or symbol.is_imported()):
            return True
    return any(_binds(child, name) for child in table.get_children())


# --- figures and labels ---------------------------------------------------


def _figures(chapter: Chapter) -> Iterator[str]:
    """A figure is described for those who do not see it, and captioned."""
    for cell in chapter.code:
        settings = cell.metadata.get("mystnb") or {}
        figure = settings.get("figure") or {}
        image = settings.get("image") or {}
        if figure and not image.get("alt"):
            yield cell.problem("the figure has no alt text")
        if (figure or image) and not figure.get("caption"):
            yield cell.problem("the figure has no caption")


def _undocumented(place: int, modules: dict[str, Module]) -> Iterator[str]:
    """A public name says what it is: the reference has nothing else."""
    for module in modules.values():
        for block in module.blocks:
            if block.chapter == place:
                for name in undocumented(block):
                    yield block.problem(f"{name} has no docstring")


def _twice(chapters: list[Chapter]) -> dict[str, list[str]]:
    """By page, the labels that are taken: links find them book-wide."""
    first: dict[str, str] = {}
    found: dict[str, list[str]] = {chapter.name: [] for chapter in chapters}
    for chapter in chapters:
        for label, place in _labels(chapter):
            if label in first:
                there = f"the label {label} is taken: {first[label]}"
                found[chapter.name].append(f"{place}: {there}")
            first.setdefault(label, place)
    return found


def _labels(chapter: Chapter) -> Iterator[tuple[str, str]]:
    """Those of figures and exercises, and where they are given."""
    for cell in chapter.cells:
        name = (figure_of(cell) or {}).get("name")
        if name:
            yield str(name), cell.place
        if cell.kind == "markdown":
            for match in LABEL.finditer(cell.source):
                yield match[1], cell.section


def minutes(root: Path) -> list[str]:
    """A table of what there is to read on each page."""
    lines = [
        "Minutes to read: words/180 + open lines of code/8 + 3/4 for a "
        "figure + 1 for a prediction.",
        "Exercises and empty lines do not count.",
        "",
        f"{'page':28} {'room':8} {'words':>6} {'lines':>6} {'figures':>8} "
        f"{'predictions':>12} {'largest':>8} {'minutes':>8}",
    ]
    for chapter in read_book(root):
        parts = sections(chapter)
        whole = sum(parts.values(), Reading())
        largest = max(map(size, chapter.code), default=0)
        over = any([*_size(chapter), *_budget(chapter, parts)])
        lines.append(
            f"{chapter.name:28} {chapter.room:8} {whole.words:6} "
            f"{whole.lines:6} {whole.figures:8} {whole.predictions:12} "
            f"{largest:8} {whole.minutes:8.0f}{' *' if over else ''}"
        )
    return [*lines, "", "* over the limits: see `press rules`"]


# --- numbers of a hidden output -------------------------------------------

# its number is a place in the book
CHAPTER_LINK = re.compile(r"\[(?:chapter|page|appendix) \w+\]\([^)\s]*\)")

# a number that says something: two digits or more that count
NUMBER = re.compile(r"(?<![\w.,])-?\d[\d,]*(?:\.\d+)?(?![\w]|\.\d)")


def told(chapter: Chapter, outputs: list[str]) -> Iterator[str]:
    """What stands open below a hidden output does not name its numbers.

    `outputs` is what each of the page's code cells has printed, or nothing
    where it has not run. A number that stands above is known already.
    """
    if len(outputs) != len(chapter.code):
        return
    texts = iter(outputs)
    printed = [
        next(texts) if cell.kind == "code" else "" for cell in chapter.cells
    ]
    for place, cell in enumerate(chapter.cells):
        if cell.kind != "markdown" or not follows_hidden(chapter, place):
            continue
        hidden = _numbers(printed[place - 1])
        open_ = visible(reading(chapter, place)[1])
        said = CHAPTER_LINK.sub("", open_)
        above = " ".join(c.source for c in chapter.cells[:place])
        known = _numbers(
            above
            + " ".join(
                text
                for other, text in zip(chapter.cells[: place - 1], printed)
                if "hide-output" not in other.tags
            )
        )
        if given := (_numbers(said) & hidden) - known:
            numbers = ", ".join(sorted(given))
            yield (
                f'{cell.section}: "{open_[:40]}…" stands open below a '
                f"hidden output and tells its numbers: {numbers}"
            )


def _printed(root: Path, chapter: Chapter) -> list[str]:
    """The text of what each code cell gave, if this code has run."""
    path = root / "build" / "executed" / f"{chapter.name}.ipynb"
    if not path.is_file():
        return []
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    cells = [cell for cell in cells if cell["cell_type"] == "code"]
    sources = ["".join(cell["source"]) for cell in cells]
    if sources != [cell.source for cell in chapter.code]:
        return []
    return [" ".join(_texts(cell["outputs"])) for cell in cells]


def _texts(outputs: list[dict[str, Any]]) -> Iterator[str]:
    for output in outputs:
        yield "".join(output.get("text", ""))
        for kind in ("text/plain", "text/markdown"):
            yield "".join(output.get("data", {}).get(kind, ""))


def _numbers(text: str) -> set[str]:
    """Numbers of at least two digits that count, without their commas."""
    found = set()
    for number in NUMBER.findall(text):
        plain = number.replace(",", "")
        if len(plain.lstrip("-0.").replace(".", "")) >= 2:
            found.add(plain)
    return found
