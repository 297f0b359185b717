"""Slides for a class: headings, formulas, figures, questions of a chapter.

Each deck is one HTML file that loads nothing. A figure that the page hides
is folded here, too: a class says what it expects, then it is opened.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import yaml
from markdown_it import MarkdownIt

from annotated.book.colors import colors
from press import files, numbers, posters
from press.chapters import (
    Cell,
    Chapter,
    PressError,
    headings,
    read_book,
    select,
)
from press.exercises import numbers_in_pages, read_exercises
from press.formulas import STYLE, face, mathml, third
from press.site import CARDS, executed
from press.study import APART, read_questions

LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(#?([^)\s]*)\)")
ROLE = re.compile(r"\{\w+\}`([^`]+)`")
CITED = re.compile(r" ?\(?\{cite(?::\w+)?\}`[^`]+`\)?")
FORMULA = re.compile(r"\$([^$]+)\$")
DISPLAY = re.compile(r"^\$\$(.+?)\$\$", re.M | re.S)
FENCED = re.compile(r"^(:{3,}|`{3,}).*?^\1$", re.M | re.S)
SENTENCE = re.compile(r"(?<=[.?!])\s+(?=[A-Z*`$])")
QUESTION = re.compile(r"(?:(?<=[.?!:] )|^)[A-Z][^.?!\n]*\?", re.M)
PROSE = re.compile(r"[A-Z*`$\[]")  # how a paragraph of text begins

PAGE = """\
<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
html {{ scroll-snap-type: y proximity; background: {sheet}; color: {ink};
  font: clamp(1rem, 3.3vmin, 3rem)/1.4 system-ui, sans-serif; }}
body {{ margin: 0; }}
section {{ box-sizing: border-box; min-height: 100vh; padding: 4vmin 8vmin;
  display: flex; flex-direction: column; justify-content: center;
  gap: 1em; scroll-snap-align: start; overflow-wrap: break-word; }}
h1, h2, p, figure, ol {{ margin: 0; }}
h1 {{ font-size: 2.2em; line-height: 1.15; }}
h2 {{ font-size: 1.6em; line-height: 1.2; }}
img {{ display: block; width: 100%; max-height: 62vh;
  object-fit: contain; }}
figcaption {{ color: {soft}; font-size: .65em; margin-top: .6em; }}
summary {{ cursor: pointer; padding: .3em 0; }}
summary p {{ display: inline; }}
section:has(details[open]) > img {{ display: none; }}
details > :not(summary) {{ margin-left: 1.2em; color: {good}; }}
.formula {{ font-size: 1.3em; max-width: 100%; overflow-x: auto; }}
a {{ color: inherit; }}
{math}
@page {{ size: 297mm 167mm; margin: 0; }}
@media print {{ section {{ break-after: page; }} }}
</style>
<body>
{slides}
<script>
const all = [...document.querySelectorAll("section")];
const now = () => all.findLastIndex(s => s.getBoundingClientRect().top < 9);
addEventListener("keydown", event => {{
  const by = {{ ArrowRight: 1, PageDown: 1, ArrowLeft: -1, PageUp: -1 }};
  const to = all[now() + by[event.key]];
  if (to) {{ event.preventDefault(); to.scrollIntoView(); }}
}});
</script>
</html>
"""


def slides(root: Path, names: list[str], out: Path) -> list[str]:
    """Write a deck for each of these chapters, or for the whole story."""
    book = read_book(root)
    chosen = select(book, names)
    story = [chapter for chapter in chosen if chapter.room == "story"]
    if names and len(story) < len(chosen):
        others = [c.name for c in chosen if c not in story]
        raise PressError(
            f"no slides of {', '.join(others)}: only pages of the story "
            "have some"
        )
    texts, labels = executed(root, story), numbers.labels(book)
    written = []
    for chapter in story:
        deck = _Deck(root, chapter, texts[chapter.name], labels)
        path = out / f"{chapter.name}.html"
        files.replace(path, deck.page())
        size = path.stat().st_size / 1e6
        written.append(f"wrote {path}: {deck.count} slides, {size:.1f} MB")
    return written


class _Deck:
    """The slides of one chapter."""

    def __init__(
        self,
        root: Path,
        chapter: Chapter,
        notebook: str,
        labels: dict[str, tuple[str, str]],
    ) -> None:
        self.root, self.chapter, self.labels = root, chapter, labels
        self.cells = nbformat.reads(notebook, as_version=4).cells
        self.count = 0

    def page(self) -> str:
        found = [
            self.title(),
            *self.sections(),
            *self.questions(),
            self.exercises(),
        ]
        found = [slide for slide in found if slide]
        self.count = len(found)
        listed = "\n".join(f"<section>\n{s}\n</section>" for s in found)
        title = html.escape(self.name)
        math = face(self.root) + STYLE if "<math" in listed else ""
        return PAGE.format(
            title=title, slides=listed, math=math, **colors()
        )

    @property
    def name(self) -> str:
        number = numbers.number_of(self.chapter.name)
        return f"{number} · {self.chapter.title}"

    def title(self) -> str:
        promises = self.root / "book" / CARDS
        text = promises.read_text("utf-8") if promises.is_file() else ""
        promise = (yaml.safe_load(text) or {}).get(self.chapter.name, "")
        return f"<h1>{self.inline(self.name)}</h1>{self.set(promise)}"

    def sections(self) -> Iterator[str]:
        """Of each section its first sentence and formula; its figures."""
        drawn = {id(c): text for c, text in numbers.figures(self.chapter)}
        heading, prose, figures = "", "", list[str]()
        for place, cell in enumerate(self.chapter.cells):
            if cell.kind == "code":
                if id(cell) in drawn:
                    figures.append(self.figure(place, drawn[id(cell)]))
                continue
            for part in re.split(r"^(?=## )", cell.source, flags=re.M):
                level, title = next(iter(headings(part)), (0, ""))
                if level == 2:
                    yield from self.section(heading, prose, figures)
                    heading, prose, figures = title, "", []
                prose += f"\n\n{part}"
        yield from self.section(heading, prose, figures)

    def section(
        self, heading: str, prose: str, figures: list[str]
    ) -> Iterator[str]:
        if heading in {*APART, "Check"}:
            return
        title = f"<h2>{self.inline(heading)}</h2>" if heading else ""
        if heading:
            formula = DISPLAY.search(prose)
            shown = self.formula(formula[1], True) if formula else ""
            yield f"{title}{self.set(_sentence(prose))}{shown}"
        for figure in figures:
            yield f"{title}{figure}" if figure else ""

    def figure(self, place: int, number: str) -> str:
        """A figure with its caption; folded where the page hides it."""
        cell = self.chapter.cells[place]
        shown = _picture(self.cells[place], cell)
        if not shown:
            return ""
        caption = (numbers.figure_of(cell) or {})["caption"]
        text = self.inline(f"**{number}.** {caption}")
        whole = f"<figure>{shown}<figcaption>{text}</figcaption></figure>"
        if "hide-output" not in cell.tags:
            return whole
        drawn = "poster" in cell.tags  # into its axes
        before = _picture(self.cells[place], cell, True) if drawn else ""
        opened = "Say what you expect, or draw it; then open this."
        return (
            f"{self.asked(place)}{before}"
            f"<details><summary>{opened}</summary>{whole}</details>"
        )

    def asked(self, place: int) -> str:
        """The last question of the text above a cell, or its last words."""
        texts = [c for c in self.chapter.cells[:place] if c.kind != "code"]
        text = texts[-1].source.strip() if texts else ""
        ends = SENTENCE.split(text.rpartition("\n\n")[2])[-1:]
        found = QUESTION.findall(text) or ends
        return self.set(found[-1]) if not found[-1].endswith(":::") else ""

    def questions(self) -> Iterator[str]:
        for question in read_questions(self.root):
            if question.chapter != self.chapter.number:
                continue
            choices = "".join(
                f"<details><summary>{self.inline(choice)}</summary>"
                f"{self.set(reason)}</details>"
                for choice, reason in question.choices
            )
            title = self.inline(question.title)
            yield f"<h2>{title}</h2>{self.set(question.text)}{choices}"

    def exercises(self) -> str:
        places = numbers_in_pages(self.root)
        found = [
            e
            for e in read_exercises(self.root)
            if e.chapter == self.chapter.number and e.name in places
        ]
        found.sort(key=lambda e: int(places[e.name].split(".")[1]))
        lines = [
            f"<p>{places[e.name]} · {self.inline(e.title)}, "
            f"{e.facts['minutes']} minutes</p>"
            for e in found
        ]
        return f"<h2>Exercises</h2>{''.join(lines)}" if lines else ""

    # --- text ---

    def formula(self, tex: str, block: bool = False) -> str:
        text = third(mathml(tex.strip(), block))
        return f'<div class="formula">{text}</div>' if block else text

    def set(self, markdown: str) -> str:
        """Markdown of a page as HTML, without its links."""
        formulas: list[str] = []

        def keep(match: re.Match[str]) -> str:
            formulas.append(self.formula(match[1]))
            return f"\ue000{len(formulas) - 1}\ue001"

        def link(match: re.Match[str]) -> str:
            return match[1] or self.labels.get(match[2], ("", ""))[1]

        text = ROLE.sub(r"\1", CITED.sub("", markdown))
        text = FORMULA.sub(keep, LINK.sub(link, text))
        shown: str = MarkdownIt().render(numbers.once(text))
        return re.sub(
            "\ue000(\\d+)\ue001", lambda m: formulas[int(m[1])], shown
        )

    def inline(self, markdown: str) -> str:
        """The same without a paragraph around it."""
        text = self.set(" ".join(markdown.split())).strip()
        return text.removeprefix("<p>").removesuffix("</p>")


def _sentence(prose: str) -> str:
    """The first of a section's own text that does not lead to code."""
    for part in FENCED.sub("", prose).split("\n\n"):
        text = " ".join(part.split())
        if PROSE.match(text) and not text.startswith("$$"):
            first: str = SENTENCE.split(text)[0]
            if not first.endswith(":"):
                return first
    return ""


def _picture(cell: Any, origin: Cell, empty: bool = False) -> str:
    """What a cell has drawn, or its empty axes, as an image that holds its
    own data.
    """
    image = (origin.metadata.get("mystnb") or {}).get("image") or {}
    alt = posters.EMPTY if empty else image.get("alt", "")
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        if drawing := "".join(data.get("image/svg+xml", "")):
            text = posters.poster(drawing) if empty else drawing
            raw = base64.b64encode(text.encode()).decode()
            return _image("svg+xml", raw, alt)
        if "image/png" in data and not empty:
            return _image("png", data["image/png"], alt)
    return ""


def _image(kind: str, raw: str, alt: str) -> str:
    source = f"data:image/{kind};base64,{raw}"
    return f'<img alt="{html.escape(alt)}" src="{source}">'
