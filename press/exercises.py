"""Read the exercises that grade themselves, book/exercises/*.md.

What students may see and what they may not is separated here: their files
are made from `Exercise.given`, and everything that would give an answer
away is sealed.
"""

from __future__ import annotations

import ast
import base64
import json
import re
import zlib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from press.chapters import (
    COLUMNS,
    PressError,
    front_matter,
    read_text,
    split,
)
from press.project import read_project

GRADED = re.compile(r"^:::\{graded\} (\S+)\n:::$", re.M)
FENCE = re.compile(r"^:{3,}\{(exercise|graded)\} (.+)$", re.M)
NAME = re.compile(r"\d\d-[a-z0-9]+(-[a-z0-9]+)*\.md")
KINDS = ("predict", "implement", "fix", "investigate")
TRACKS = ("fast", "more")
MARKDOWN = {"statement", "hint", "insight", "rubric"}
CODE = {
    "starter", "symptom", "check", "hidden", "reference", "variant",
    "mutant",
}  # fmt: skip
SEEN = "What is seen comes from this:"  # above a symptom's code
WRITTEN = "In writing, a point for each of these:"  # above a rubric
LEAST = {"variant": 1, "mutant": 3, "check": 1}  # cells of a kind
WAYS = 3  # variants of what is code: other dtypes, buffers, calls, loops
ONE = ("statement", "starter", "reference", "insight")
FACTS: dict[str, type] = {
    "kind": str,
    "minutes": int,
    "difficulty": int,
    "goals": list,
    "section": str,
    "needs": list,
    "points": int,
    "track": str,
    "defines": str,
    "module": str,
}


@dataclass(frozen=True)
class Mutant:
    """A wrong solution, and what its author should read."""

    sentence: str
    code: str


@dataclass
class Exercise:
    """One book/exercises/NN-name.md."""

    path: Path
    title: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    cells: dict[str, list[str]] = field(default_factory=dict)
    mutants: list[Mutant] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def chapter(self) -> str:
        """The number of the page that it belongs to."""
        return self.name[:2]

    @property
    def checked(self) -> str:
        """What a notebook hands to check: a dictionary has no name."""
        defines = str(self.facts["defines"])
        named = self.facts["kind"] != "predict"
        return defines if named else f'{defines}, "{self.name}"'

    def one(self, tag: str) -> str:
        return self.cells[tag][0]

    @property
    def symptom(self) -> str:
        """What shows that something is wrong, where it is to be mended."""
        return "\n".join(self.cells.get("symptom", []))

    @property
    def rubric(self) -> list[str]:
        """What earns a point in what is to be written about it."""
        text = "\n".join(self.cells.get("rubric", []))
        items = re.split(r"^- ", text, flags=re.M)[1:]
        return [" ".join(item.split()) for item in items]

    @property
    def given(self) -> dict[str, Any]:
        """What the package carries: what a student may read, as text, and
        what would tell the answer, sealed. Hidden checks are not in it.
        """
        secret = {
            "reference": self.one("reference"),
            "variants": self.cells["variant"],
            "mutants": [[m.sentence, m.code] for m in self.mutants],
            "insight": self.one("insight"),
            "rubric": self.rubric,
        }
        return {
            "title": self.title,
            **self.facts,
            "statement": self.one("statement"),
            "starter": self.one("starter"),
            "symptom": self.symptom,
            "checks": self.cells["check"],
            "hints": self.cells["hint"],
            "sealed": seal(secret),
        }


def seal(data: Any) -> str:
    """Not a secret, but nothing that is read by accident."""
    text = json.dumps(data, ensure_ascii=False, sort_keys=True)
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def read_exercises(root: Path) -> list[Exercise]:
    """All exercises in the order of the book; every problem at once."""
    paths = sorted((root / "book" / "exercises").glob("*.md"))
    texts = (
        (path, read_text(path, f"book/exercises/{path.name}"))
        for path in paths
    )
    return list(_read(tuple(texts)))


@cache  # every page that has one asks
def _read(texts: tuple[tuple[Path, str], ...]) -> list[Exercise]:
    found: list[Exercise] = []
    problems: list[str] = []
    for path, text in texts:
        try:
            found.append(_parse(path, text))
        except PressError as error:
            problems += error.problems
    names = {exercise.name for exercise in found}
    homes: dict[str, str] = {}
    for exercise in found:
        where = f"book/exercises/{exercise.path.name}: front matter: "
        problems += [
            f"{where}needs '{name}', which is no exercise"
            for name in exercise.facts["needs"]
            if name not in names
        ]
        defines = exercise.facts["defines"]
        if defines in homes:
            problems.append(
                f"{where}'{defines}' is what {homes[defines]} defines"
            )
        homes[defines] = exercise.name
    if problems:
        raise PressError(*problems)
    return _in_order(found)


def _in_order(exercises: list[Exercise]) -> list[Exercise]:
    """By page, and on each page after what they need."""
    ordered: list[Exercise] = []
    left = list(exercises)
    while left:
        done = {exercise.name for exercise in ordered}
        ready = [e for e in left if set(e.facts["needs"]) <= done]
        if not ready:
            names = ", ".join(e.name for e in left)
            raise PressError(f"book/exercises: {names} need each other")
        ordered.append(ready[0])
        left.remove(ready[0])
    return ordered


def package_data(root: Path) -> str | None:
    """annotated/exercises.json: one line for each exercise."""
    exercises = read_exercises(root)
    if not exercises:
        return None
    places = numbers_in_pages(root)
    lines = [
        f'"{e.name}":'
        + json.dumps(
            e.given | {"number": places.get(e.name, "")}, ensure_ascii=False
        )
        for e in exercises
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def numbers_in_pages(root: Path) -> dict[str, str]:
    """What a page calls each graded exercise: 4.1 is the first of 04."""
    found = {}
    for page in sorted((root / "book").glob("[0-9][0-9]-*.md")):
        chapter = page.name[:2]
        text = read_text(page, f"book/{page.name}")
        for count, (kind, name) in enumerate(FENCE.findall(text), 1):
            if kind == "graded":
                found[name.strip()] = f"{int(chapter)}.{count}"
    return found


def set_in_page(page: Path, text: str) -> str:
    """A page's text with its exercises in place of their names."""
    root = page.parent.parent
    known = {exercise.name: exercise for exercise in read_exercises(root)}

    def whole(match: re.Match[str]) -> str:
        if match[1] not in known:
            raise PressError(
                f"book/{page.name}: no exercise is called '{match[1]}'"
            )
        return _on_page(known[match[1]], root)

    return GRADED.sub(whole, text)


def _on_page(exercise: Exercise, root: Path) -> str:
    facts = exercise.facts
    title = f"{facts['kind'].capitalize()}: {exercise.title}"
    stars = "★" * facts["difficulty"]
    link = read_project(root).colab(notebook_of(exercise))
    hints = "\n".join(
        f":::{{admonition}} Hint {place}\n:class: dropdown\n{text}\n:::"
        for place, text in enumerate(exercise.cells["hint"], 1)
    )
    label = f"ex-graded-{exercise.name}"
    seen = rubric = ""
    if exercise.rubric:
        rubric = f"\n{WRITTEN}\n\n{listed(exercise.rubric)}\n"
    if exercise.symptom:
        seen = f"{SEEN}\n\n```python\n{exercise.symptom}\n```\n\n"
    return f"""\
::::{{exercise}} {title} ({stars}, {facts["minutes"]} minutes)
:label: {label}
{exercise.one("statement")}

```python
{exercise.one("starter")}
```

{seen}This exercise grades itself: `check({exercise.checked})` in \
[its notebook]({link}) says whether your answer is right, and if not, why.

{hints}
::::

:::{{solution}} {label}
:class: dropdown
```python
{exercise.one("reference")}
```

{exercise.one("insight")}
{rubric}:::
"""


def listed(lines: list[str]) -> str:
    """As a list in Markdown."""
    return "\n".join(f"- {line}" for line in lines)


def notebook_of(exercise: Exercise) -> str:
    """The notebook of a page's exercises, from the root."""
    return f"book/notebooks/exercises/{exercise.chapter}.ipynb"


@cache  # one command asks several times
def _parse(path: Path, text: str) -> Exercise:
    where = f"book/exercises/{path.name}"
    if not NAME.fullmatch(path.name):
        raise PressError(
            f"{where}: an exercise is called NN-name.md, NN being the page "
            "that it belongs to"
        )
    exercise = Exercise(path, facts=_facts(where, text))
    problems: list[str] = []
    for number, (kind, source, options) in enumerate(split(text), 1):
        lines = source.splitlines() or ["empty"]
        place = f"{where}, cell {number} ({lines[0].strip()})"
        try:
            tags = (yaml.safe_load(options) or {}).get("tags", [])
        except (yaml.YAMLError, AttributeError) as error:
            what = " ".join(str(error).split())
            problems.append(f"{place}: its options: {what}")
            continue
        problems += [
            f"{place}: {what}" for what in _wrong(kind, source, tags)
        ]
        for tag in tags:
            exercise.cells.setdefault(tag, []).append(source)
    problems += [f"{where}: {what}" for what in _count(exercise)]
    if problems:
        raise PressError(*problems)
    exercise.cells.setdefault("hint", [])
    exercise.cells.setdefault("hidden", [])
    title, _, statement = exercise.one("statement").partition("\n")
    exercise.title = title.removeprefix("# ").strip()
    exercise.cells["statement"] = [statement.strip()]
    for count, code in enumerate(exercise.cells["mutant"], 1):
        exercise.mutants.append(_mutant(where, count, code, exercise))
    return exercise


def _facts(where: str, text: str) -> dict[str, Any]:
    data = front_matter(where, text)
    facts = data.get("exercise") if isinstance(data, dict) else None
    if not isinstance(facts, dict):
        raise PressError(f"{where}: front matter: 'exercise' is missing")
    if facts.get("kind") != "implement":  # no part of one's own package
        facts = {"module": ""} | facts
    problems = [f"{name} is missing" for name in FACTS if name not in facts]
    problems += [
        f"{name} means nothing here" for name in facts if name not in FACTS
    ]
    for name, kind in FACTS.items():
        if name in facts and type(facts[name]) is not kind:
            what = {int: "a whole number", list: "a list", str: "a text"}
            problems.append(f"{name} is {what[kind]}, not {facts[name]!r}")
    choices: dict[str, tuple[Any, ...]] = {
        "kind": KINDS, "difficulty": (1, 2, 3), "track": TRACKS,
    }  # fmt: skip
    for name, allowed in choices.items():
        if name in facts and facts[name] not in allowed:
            known = ", ".join(map(str, allowed))
            problems.append(
                f"{name} is one of {known}, not {facts[name]!r}"
            )
    if problems:
        raise PressError(*(f"{where}: front matter: {p}" for p in problems))
    return {name: facts[name] for name in FACTS}


def _wrong(kind: str, source: str, tags: list[str]) -> list[str]:
    """What is wrong with a cell by itself."""
    known = MARKDOWN if kind == "markdown" else CODE
    if len(tags) != 1 or tags[0] not in known:
        return [
            f"a {kind} cell of an exercise has one tag of "
            f"{', '.join(sorted(known))}, not {tags}"
        ]
    if kind == "markdown":
        if tags == ["statement"] and not source.startswith("# "):
            return ["the statement begins with the title, '# …'"]
        return []
    wide = [
        f"line {row} has {len(line)} columns, not {COLUMNS}"
        for row, line in enumerate(source.splitlines(), 1)
        if len(line) > COLUMNS
    ]
    try:
        ast.parse(source, feature_version=(3, 10))
    except SyntaxError as error:
        return [*wide, f"line {error.lineno} does not parse: {error.msg}"]
    return wide


def _count(exercise: Exercise) -> list[str]:
    """Which cells are missing or too many."""
    counts = {tag: len(cells) for tag, cells in exercise.cells.items()}
    found = [
        f"an exercise has one cell tagged {tag}, this one "
        f"{counts.get(tag, 0)}"
        for tag in ONE
        if counts.get(tag, 0) != 1
    ]
    found += [
        f"an exercise has at least {least} cells tagged {tag}, this one "
        f"{counts.get(tag, 0)}"
        for tag, least in (LEAST | _ways(exercise)).items()
        if counts.get(tag, 0) < least
    ]
    asked = exercise.facts["kind"] == "investigate"
    if counts.get("rubric", 0) != asked:
        found.append(
            "what is to be investigated has one cell tagged rubric, a list "
            "with a line for each point, and nothing else has"
        )
    if counts.get("hint", 0) > 3:
        found.append("an exercise has at most 3 hints")
    broken = exercise.facts["kind"] == "fix"
    if counts.get("symptom", 0) != broken:
        found.append(
            "what is to be mended (kind fix) has one cell tagged symptom, "
            "and nothing else has"
        )
    return found


def _ways(exercise: Exercise) -> dict[str, int]:
    """How many variants there have to be: a prediction is numbers, whose
    kinds the press makes itself, and what is investigated has two parts.
    """
    written = exercise.facts["kind"] in ("implement", "fix")
    return {"variant": WAYS} if written else {}


def _mutant(where: str, place: int, source: str, of: Exercise) -> Mutant:
    """A whole solution, or the reference with `was` replaced by `now`."""
    tree = ast.parse(source)
    sentence = ast.get_docstring(tree)
    if not sentence:
        raise PressError(
            f"{where}, mutant {place}: it begins with the sentence that "
            'its author should read, """…"""'
        )
    sentence = " ".join(sentence.split())
    strings = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }
    if set(strings) != {"was", "now"}:
        return Mutant(sentence, source)
    whole = of.one("reference")
    if whole.count(strings["was"]) != 1:
        raise PressError(
            f"{where}, mutant {place}: {strings['was']!r} occurs "
            f"{whole.count(strings['was'])} times in the reference, not "
            "once"
        )
    return Mutant(sentence, whole.replace(strings["was"], strings["now"]))
