"""The study guide and the page for teachers: what they take from the book.

Their fences are filled while a page is read, so that the page, its notebook
and the package say the same:

    :::{outline} 02          a chapter's heading, its parts and its words
    :::{question} Title      a question of the chapter above it
    :::{plan} fast           a course: a row for each week
    :::{inventory}           what there is to read and to solve, by page
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from press.chapters import Chapter, PressError, headings, read_chapter
from press.exercises import Exercise, numbers_in_pages, read_exercises
from press.myst import slug
from press.rules import Reading, sections
from press.words import GLOSSARY, as_html, rows

GUIDE = "A2-study-guide"
FENCE = re.compile(
    r"^:::\{(outline|question|plan|inventory)\}[ \t]*(.*)\n"
    r"((?:(?!:::$).*\n)*):::$",
    re.M,
)
ITEM = re.compile(r"^- .*(?:\n(?!- ).*\S.*)*", re.M)
MARK = "✓"
LEAST = 3  # choices of a question
APART = {"Exercises", "What to read next"}  # sections of no chapter's own
OTHERS = re.compile(
    r"^:{3,}\{exercise\} .*?(?:, (\d+) minutes?)?\)?$", re.M
)


@dataclass(frozen=True)
class Question:
    """One of the study guide: choices, each with what is to be said."""

    name: str  # 2a
    title: str
    text: str
    choices: tuple[tuple[str, str], ...]
    right: int

    @property
    def chapter(self) -> str:
        """The number of its page, as 02."""
        return self.name[:-1].zfill(2)


@dataclass(frozen=True)
class Part:
    """A section of a page."""

    title: str
    minutes: float  # to read


def fill_page(page: Path, text: str) -> str:
    """A page's text with its fences filled."""
    guide = _Guide(page)
    return FENCE.sub(guide.fill, text)


def read_questions(root: Path) -> list[Question]:
    """Those of the study guide, in their order."""
    page = root / "book" / f"{GUIDE}.md"
    if not page.is_file():
        return []
    guide = _Guide(page)
    FENCE.sub(guide.fill, page.read_text(encoding="utf-8"))
    return guide.questions


def questions_data(root: Path) -> str | None:
    """annotated/questions.json: one line for each question."""
    questions = read_questions(root)
    if not questions:
        return None
    lines = [
        f'"{q.name}":'
        + json.dumps(
            {
                "chapter": q.chapter,
                "title": q.title,
                "text": q.text,
                "choices": q.choices,
                "right": q.right,
            },
            ensure_ascii=False,
        )
        for q in questions
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


class _Guide:
    """A page that is being filled, from its first fence to its last."""

    def __init__(self, page: Path) -> None:
        self.page = page
        self.root = page.parent.parent
        self.chapter: Chapter | None = None  # of the last outline
        self.questions: list[Question] = []

    @cached_property
    def exercises(self) -> list[Exercise]:
        return read_exercises(self.root)

    @cached_property
    def places(self) -> dict[str, str]:
        """The number of each exercise that grades itself."""
        return numbers_in_pages(self.root)

    def fill(self, match: re.Match[str]) -> str:
        kind, title, inside = match[1], match[2].strip(), match[3]
        if kind == "outline":
            self.chapter = self.named(title)
            return self.outline(self.chapter)
        if kind == "question":
            return self.question(title, inside)
        if kind == "plan":
            return self.plan(title, inside)
        return self.inventory()

    def wrong(self, what: str) -> PressError:
        return PressError(f"book/{self.page.name}: {what}")

    def named(self, number: str) -> Chapter:
        found = sorted(self.page.parent.glob(f"{number}-*.md"))
        if not re.fullmatch(r"\d\d", number) or not found:
            raise self.wrong(f"no chapter has the number '{number}'")
        return read_chapter(found[0])

    # --- the study guide ---

    def outline(self, chapter: Chapter) -> str:
        number = chapter.number
        parts = "\n".join(
            f"- [{part.title}]({chapter.file}#{slug(part.title)}), "
            f"{_minutes(part.minutes)}"
            for part in parts_of(chapter)
        )
        whole = _minutes(reading(chapter))
        return (
            f"(guide-{number})=\n## {number} · {chapter.title}\n\n"
            f":::{{admonition}} Outline: {whole} to read\n"
            f":class: dropdown\n"
            f"[Chapter {number}]({chapter.file}) has these parts:\n\n"
            f"{parts}\n:::\n{self.cards(number)}"
        )

    def cards(self, number: str) -> str:
        """The chapter's words: each opens on what it means."""
        glossary = self.page.parent / f"{GLOSSARY}.md"
        if not glossary.is_file():
            return ""
        cards = [
            f"<details><summary>{as_html(cells[0])}</summary>"
            f"<p>{as_html(cells[-1])}</p></details>"
            for target, cells in rows(glossary.read_text("utf-8"))
            if target == f"words-{number}"
        ]
        if not cards:
            return ""
        listed = "\n".join(cards)
        return (
            "\n:::{admonition} Words: say what each means, then open it\n"
            f':class: dropdown\n<div class="words">\n{listed}\n</div>\n:::'
        )

    def question(self, title: str, inside: str) -> str:
        if self.chapter is None:
            raise self.wrong(f"'{title}' stands before any outline")
        place = sum(
            q.chapter == self.chapter.number for q in self.questions
        )
        name = f"{int(self.chapter.number)}{'abcdefghi'[place]}"
        items = ITEM.findall(inside)
        choices, right = [], []
        for row, item in enumerate(items):
            choice, dash, reason = " ".join(item[2:].split()).partition(
                " — "
            )
            if not dash:
                raise self.wrong(f"{name}: '{choice}' has no reason")
            if reason.startswith(MARK):
                right.append(row)
            choices.append((choice, reason.removeprefix(MARK).lstrip()))
        if len(right) != 1 or len(choices) < LEAST:
            raise self.wrong(
                f"{name}: a question has {LEAST} choices or more, and one "
                f"of them is right: '- choice — {MARK} why'"
            )
        text = inside[: inside.index(items[0])].strip()
        self.questions.append(
            Question(name, title, text, tuple(choices), right[0])
        )
        return (
            f":::{{admonition}} {name} · {title}\n:class: predict\n"
            f"{inside}:::"
        )

    # --- for teachers ---

    def plan(self, track: str, inside: str) -> str:
        """A week is `pages | what is reached | milestone`, the last only
        where there is one.
        """
        if track not in {"fast", "all"}:
            raise self.wrong(f"a plan is 'fast' or 'all', not '{track}'")
        lines = [
            "| week | read | solve | hours | at the end you have |",
            "|---|---|---|--:|---|",
        ]
        total = 0.0
        for week, row in enumerate(inside.strip().splitlines(), 1):
            pages, _, rest = row.partition("|")
            reached, _, milestone = rest.partition("|")
            chapters = [self.named(number) for number in pages.split()]
            solve = [
                exercise
                for chapter in chapters
                for exercise in self.graded(chapter, track)
            ]
            minutes = sum(map(reading, chapters)) + sum(
                exercise.facts["minutes"] for exercise in solve
            )
            total += minutes
            reached = reached.strip()
            if milestone := milestone.strip():
                several = "s" * (" " in milestone)
                reached += f"; **milestone{several} {milestone}**"
            read = ", ".join(f"[{c.number}]({c.file})" for c in chapters)
            listed = ", ".join(map(self.link, solve)) or "–"
            lines.append(
                f"| {week} | {read} | {listed} | {minutes / 60:.1f} "
                f"| {reached} |"
            )
        lines.append(f"| | | | **{total / 60:.0f}** | in all |")
        return "\n".join(lines)

    def link(self, exercise: Exercise) -> str:
        page = next(self.page.parent.glob(f"{exercise.chapter}-*.md"))
        number = self.places[exercise.name]
        return f"[{number}]({page.name}#ex-graded-{exercise.name})"

    def graded(self, chapter: Chapter, track: str) -> list[Exercise]:
        """Its exercises that grade themselves, as the page has them."""
        found = [
            e
            for e in self.exercises
            if e.chapter == chapter.number
            and e.name in self.places
            and track in ("all", e.facts["track"])
        ]
        return sorted(
            found, key=lambda e: int(self.places[e.name].split(".")[1])
        )

    def inventory(self) -> str:
        lines = [
            "| page | to read | grade themselves | others |",
            "|---|--:|--:|--:|",
        ]
        sums = [0.0] * 5
        for path in sorted(self.page.parent.glob("[0-9][0-9]-*.md")):
            chapter = read_chapter(path)
            graded = self.graded(chapter, "all")
            others = OTHERS.findall(path.read_text(encoding="utf-8"))
            numbers = [
                reading(chapter),
                len(graded),
                sum(e.facts["minutes"] for e in graded),
                len(others),
                sum(int(minutes) for minutes in others if minutes),
            ]
            sums = [a + b for a, b in zip(sums, numbers)]
            lines.append(
                f"| [{chapter.number} {chapter.title}]({chapter.file}) | "
                f"{_row(numbers)} |"
            )
        return "\n".join([*lines, f"| in all | {_row(sums)} |"])


def _row(numbers: list[float]) -> str:
    read, graded, minutes, others, more = (round(x) for x in numbers)

    def counted(count: int, time: int) -> str:
        return f"{count}: {time} min" if count else "–"

    return (
        f"{read} min | {counted(graded, minutes)} | {counted(others, more)}"
    )


def parts_of(chapter: Chapter) -> list[Part]:
    """Its sections, with what is read in their subsections."""
    levels = {
        title: level
        for cell in chapter.cells
        if cell.kind == "markdown"
        for level, title in headings(cell.source)
    }
    found: list[Part] = []
    for title, whole in sections(chapter).items():
        if levels.get(title) == 2:
            found.append(Part(title, whole.minutes))
        elif levels.get(title, 0) > 2 and found:
            last = found[-1]
            found[-1] = Part(last.title, last.minutes + whole.minutes)
    return [part for part in found if part.title not in APART]


def reading(chapter: Chapter) -> float:
    """Minutes to read a page, exercises apart."""
    return sum(sections(chapter).values(), Reading()).minutes


def _minutes(number: float) -> str:
    whole = max(1, round(number))
    return f"{whole} minute{'s' * (whole > 1)}"
