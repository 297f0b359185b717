"""Read the chapters. Nothing else in the press parses book/*.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from markdown_it import MarkdownIt
from mdit_py_plugins.front_matter import front_matter_plugin
from mdit_py_plugins.myst_blocks import myst_block_plugin

COLUMNS = 76
NAME = re.compile(r"(\d\d|[AE]\d{1,2})-[a-z0-9]+(-[a-z0-9]+)*\.md")
ROOMS = {"A": "appendix", "E": "engine"}  # by first letter; else a story
CLAIMS = "claims"  # the tag of a cell of assertions
GRADED = ":::{graded}"  # the place of one of book/exercises/ on a page
# what the study guide and the page for teachers take from other pages
STUDY = re.compile(r"^:::\{(outline|question|plan|inventory)\}", re.M)
NOT_CHAPTERS = {"index.md", "references.md"}
# they end a line for Python, and none for Markdown: nobody sees them
LINE_ENDS = re.compile("[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")


class PressError(Exception):
    """What a person has to mend, one line each."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True)
class Cell:
    """One cell, and where a person finds it."""

    file: str  # of the chapter, "02-attention.md"
    heading: str  # the section that it stands in
    number: int  # among the code cells of the chapter, from 1
    kind: str  # "code", "markdown" or "claims"
    source: str
    metadata: dict[str, Any]

    @property
    def tags(self) -> list[str]:
        tags = self.metadata.get("tags")
        return list(tags) if isinstance(tags, list) else []

    @property
    def section(self) -> str:
        """Chapter and section heading."""
        return f'book/{self.file}, section "{self.heading}"'

    @property
    def place(self) -> str:
        """Chapter, section heading and code cell."""
        lines = [line for line in self.source.splitlines() if line.strip()]
        first = lines[0].strip() if lines else "empty"
        return f"{self.section}, code cell {self.number} ({first})"

    def problem(self, what: str) -> str:
        """What is wrong, after where it is."""
        return f"{self.place}: {what}"


@dataclass(frozen=True)
class Chapter:
    """One book/NN-name.md."""

    path: Path
    title: str
    room: str  # "story", "engine" or "appendix"
    module: str | None
    minutes: int
    cells: tuple[Cell, ...]
    # what its sentences claim: run after the code cell of the same number,
    # shown nowhere
    claims: tuple[Cell, ...] = ()

    @property
    def file(self) -> str:
        return self.path.name

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def number(self) -> str:
        """ "02", "A5", "E12"."""
        return self.name.split("-")[0]

    @property
    def code(self) -> list[Cell]:
        return [cell for cell in self.cells if cell.kind == "code"]


def read_book(root: Path) -> list[Chapter]:
    """All chapters in the order of the book; every problem at once."""
    chapters: list[Chapter] = []
    problems: list[str] = []
    for path in sorted((root / "book").glob("*.md"), key=_by_number):
        if path.name in NOT_CHAPTERS:
            continue
        try:
            chapters.append(read_chapter(path))
        except PressError as error:
            problems += error.problems
    first: dict[str, Chapter] = {}
    for chapter in chapters:
        other = first.setdefault(chapter.number, chapter)
        if other is not chapter:
            problems.append(
                f"book/{chapter.file}: {chapter.number} is the number of "
                f"book/{other.file}: take the next that is free"
            )
    if problems:  # a page that another reads is told once
        raise PressError(*dict.fromkeys(problems))
    return chapters


def select(chapters: list[Chapter], names: list[str]) -> list[Chapter]:
    """Chapters by `02`, `02-attention` or `book/02-attention.md`."""
    if not names:
        return chapters
    chosen: list[Chapter] = []
    for name in names:
        stem = Path(name).name.removesuffix(".md")
        found = [c for c in chapters if stem in (c.name, c.number)]
        if not found:
            raise PressError(f"'{name}' is no chapter of book/")
        chosen += [c for c in found if c not in chosen]
    return chosen


def _by_number(path: Path) -> tuple[str, int, str]:
    """00 … 26, A1 … A5, E1 … E12."""
    match = re.match(r"([A-Z]?)(\d+)", path.name)
    return (match[1], int(match[2]), path.name) if match else ("", 0, "")


def read_text(path: Path, where: str) -> str:
    """A page or an exercise. PressError on what is no text, or has
    characters that nobody sees and that would cut it at the wrong lines.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise PressError(f"{where}: cannot be read: {error}") from None
    if text[:1] == "\ufeff":
        raise PressError(
            f"{where}: begins with a byte order mark (BOM): save it as "
            "UTF-8 without one"
        )
    found = LINE_ENDS.search(text) and [
        f"{where}, line {row}: the character U+{ord(sign):04X} before "
        f"'{line.partition(sign)[2].strip()[:20]}' is not seen, and ends a "
        "line for Python: delete it"
        for row, line in enumerate(text.split("\n"), 1)
        for sign in dict.fromkeys(LINE_ENDS.findall(line))
    ]
    if found:
        raise PressError(*found)
    return text


def read_chapter(path: Path) -> Chapter:
    where = f"book/{path.name}"
    if not NAME.fullmatch(path.name):
        raise PressError(
            f"{where}: a chapter is called NN-name.md, a page of the "
            "engine room E1-name.md, an appendix A1-name.md (lower case, "
            "digits and hyphens)"
        )
    text = read_text(path, where)
    if GRADED in text:
        from press.exercises import set_in_page  # it reads cells, too

        text = set_in_page(path, text)
    if STUDY.search(text):
        from press.study import fill_page

        text = fill_page(path, text)
    return _parse(path, text)


@cache  # one command asks for the book several times
def _parse(path: Path, text: str) -> Chapter:
    where = f"book/{path.name}"
    facts = _front_matter(where, text)
    heading, number, cells, claims = "", 0, [], []
    for kind, source, options in split(text):
        if kind == "code" and CLAIMS in _tags(options):
            claims.append(
                Cell(path.name, heading, number, CLAIMS, source, {})
            )
            continue
        number += kind == "code"
        if kind == "markdown":
            found = headings(source)
            heading = found[-1][1] if found else heading
        cell = Cell(path.name, heading, number, kind, source, {})
        try:
            cell.metadata.update(yaml.safe_load(options) or {})
        except (yaml.YAMLError, ValueError, TypeError) as error:
            line = " ".join(str(error).split())
            raise PressError(cell.problem(f"its options: {line}")) from None
        cells.append(cell)
    titles = [
        title
        for cell in cells
        if cell.kind == "markdown"
        for level, title in headings(cell.source)
        if level == 1
    ]
    if len(titles) != 1:
        raise PressError(
            f"{where}: a chapter has one title (a line '# …'), "
            f"this one has {len(titles)}"
        )
    return Chapter(path, titles[0], *facts, tuple(cells), tuple(claims))


def _tags(options: str) -> list[str]:
    """Of a cell whose options may be anything."""
    try:
        data = yaml.safe_load(options)
    except yaml.YAMLError:
        return []
    tags = data.get("tags") if isinstance(data, dict) else None
    return tags if isinstance(tags, list) else []


BLOCKS = (
    MarkdownIt("commonmark")
    .use(front_matter_plugin)
    .use(myst_block_plugin)
    .disable("inline", True)
)


def split(text: str) -> Iterator[tuple[str, str, str]]:
    """Kind, source and options of the cells, as Jupytext reads them."""
    lines, start, own = text.splitlines(), 0, ""
    for token in BLOCKS.parse(text):
        if token.level or token.map is None:
            continue
        code = token.type == "fence" and token.info.startswith(
            "{code-cell}"
        )
        if code or token.type in {"front_matter", "myst_block_break"}:
            if prose := "\n".join(lines[start : token.map[0]]).strip("\n"):
                yield "markdown", prose.rstrip(), own
            start, own = token.map[1], ""
        if token.type == "myst_block_break":  # +++ {"tags": [...]}
            own = token.content
        if code:
            options, source = _options(token.content.splitlines())
            yield "code", "\n".join(source), "\n".join(options)
    if prose := "\n".join(lines[start:]).strip("\n"):
        yield "markdown", prose.rstrip(), own


def _options(lines: list[str]) -> tuple[list[str], list[str]]:
    """A cell's options as YAML, and its code."""
    if lines[:1] == ["---"]:
        end = lines.index("---", 1) if "---" in lines[1:] else len(lines)
        options, lines = lines[1:end], lines[end + 1 :]
    else:
        rows = [row for row, x in enumerate(lines) if not x.startswith(":")]
        end = rows[0] if rows else len(lines)
        options, lines = [x[1:] for x in lines[:end]], lines[end:]
    return options, lines[not "".join(lines[:1]).strip() :]


def headings(markdown: str) -> list[tuple[int, str]]:
    """(level, text) of the headings outside fences."""
    found, fence = [], ""
    for line in markdown.splitlines():
        mark = re.match(r"\s*(`{3,}|~{3,}|:{3,})(.*)", line)
        if fence:
            closes = (
                mark and mark[1].startswith(fence) and not mark[2].strip()
            )
            fence = "" if closes else fence
        elif mark:
            fence = mark[1]
        elif title := re.match(r"(#{1,6})\s+(.+?)\s*#*\s*$", line):
            found.append((len(title[1]), title[2]))
    return found


def front_matter(where: str, text: str) -> Any:
    """What stands between the two --- at the head of a file, if it does."""
    match = re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)
    try:
        return yaml.safe_load(match[1]) if match else None
    except yaml.YAMLError as error:
        line = " ".join(str(error).split())
        raise PressError(f"{where}: front matter: {line}") from None


def _front_matter(where: str, text: str) -> tuple[str, str | None, int]:
    """The chapter's room, its module and its minutes."""
    data = front_matter(where, text)
    if not isinstance(data, dict):
        raise PressError(
            f"{where}: the front matter (--- … ---) is missing"
        )
    problems = []

    def get(*keys: str) -> Any:
        value: Any = data
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    if get("jupytext", "text_representation", "format_name") != "myst":
        problems.append(
            "jupytext.text_representation.format_name is 'myst'"
        )
    if get("kernelspec", "name") != "python3":
        problems.append("kernelspec.name is 'python3'")
    by_name = ROOMS.get(Path(where).name[0], "story")
    room = get("annotated", "room")
    module = get("annotated", "module")
    minutes = get("annotated", "minutes")
    if room is not None and by_name == "appendix":
        problems.append("annotated.room means nothing in an appendix")
    elif room not in (None, "story", "engine"):
        problems.append(
            f"annotated.room is 'story' or 'engine', not {room!r}"
        )
    if module is not None and not re.fullmatch(
        r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*", str(module)
    ):
        problems.append(
            f"annotated.module is a module's name, not {module!r}"
        )
    if type(minutes) is not int or minutes < 1:
        problems.append(
            f"annotated.minutes is a whole number from 1, not {minutes!r}"
        )
    unknown = set(get("annotated") or {}) - {"room", "module", "minutes"}
    problems += [
        f"annotated.{key} means nothing here" for key in sorted(unknown)
    ]
    if problems:
        raise PressError(*(f"{where}: front matter: {p}" for p in problems))
    return room or by_name, module, minutes
