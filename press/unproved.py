"""Sentences about a trained or timed result with no claim behind them.

What a cell computes by training or by the clock differs from machine to
machine. Where its reading, caption, alt text or the choices above it have a
number or a comparison, a claims cell stands below it. `book/unproved.yml`
has the exceptions, each with its page and a reason.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from press.chapters import Cell, Chapter
from press.fold import exported, follows_hidden, reading, visible
from press.modules import PACKAGE

EXCEPTIONS = "book/unproved.yml"
MOST = 20
# what makes a result hang on the machine: an optimizer, steps along a
# gradient, a clock
STEPS = {"backward", "step"}
STEPPING = "steps along a gradient"
TRAINS = {"optim", "perf_counter", "process_time", STEPPING}
# what is drawn on says nothing of what is drawn
DRAWN_ON = {"ax", "axes", "fig", "figure", "still"}
# a number, or a word that compares
SAYS = re.compile(
    r"(?<![\w.])\d|\b(?:\w+er than|more|less|fewer|better|worse|faster"
    r"|slower|sooner|later|higher|lower|larger|smaller|longer|shorter"
    r"|best|worst|most|least|twice|half|thirds?|quarters?|alike|equal"
    r"|same|level|as (?:\w+) as|rises?|falls?|grows?|shrinks?|sinks?"
    r"|learns?|fails?|all|none|never|always|only|every|hardly|nearly"
    r"|one|two|three|four|five|six|seven|eight|nine|ten)\b"
)
CHOICES = re.compile(
    r"^(:{3,})\{admonition\} Predict.*?^\1[ \t]*$", re.M | re.S
)

SOLUTION = re.compile(
    r"^(:{3,})\{solution\} *(\S+)(.*?)^\1[ \t]*$", re.M | re.S
)
LISTING = re.compile(r"^(`{3,})python\n(.*?)^\1[ \t]*$", re.M | re.S)


def unproved(root: Path, chapters: list[Chapter]) -> dict[str, list[str]]:
    """By page, its sentences that nothing stands behind."""
    trains = Trains(root)
    excused = exceptions(root)
    return {
        chapter.name: [
            line
            for place, text in bare(chapter, trains)
            if not any(
                e["page"] == chapter.name and e["says"] in text
                for e in excused
            )
            for line in [
                f'{place}: "{" ".join(text.split())[:60]}…" rests on a '
                "trained or timed result: a claims cell below it has to "
                f"say so in Python, or {EXCEPTIONS} why not"
            ]
        ]
        for chapter in chapters
    }


def exceptions(root: Path) -> list[dict[str, str]]:
    path = root / EXCEPTIONS
    if not path.exists():
        return []
    return yaml.safe_load(path.read_text(encoding="utf-8")) or []


def bare(chapter: Chapter, trains: Trains) -> Iterator[tuple[str, str]]:
    """The place and the text of what is said and nowhere claimed."""
    claimed = {claim.number for claim in chapter.claims}
    tainted: set[str] = set()  # names on the page that hang on training
    for row, cell in enumerate(chapter.cells):
        if cell.kind != "code" or not trains.taints(cell, tainted):
            continue
        if cell.number in claimed:
            continue
        for text in said(chapter, row):
            if SAYS.search(text):
                yield cell.place, text
                break


def solutions(chapter: Chapter, trains: Trains) -> Iterator[str]:
    """The labels of solutions that say what comes of a training, and
    assert nothing.
    """
    tainted: set[str] = set()
    for cell in chapter.cells:
        if cell.kind == "code":
            trains.taints(cell, tainted)
        for found in SOLUTION.finditer(cell.source):
            code = "\n".join(m[2] for m in LISTING.finditer(found[3]))
            nodes = ast.walk(_parsed(code))
            if (
                trains.taints(replace(cell, source=code), {*tainted})
                and SAYS.search(LISTING.sub("", found[3]))
                and not any(isinstance(node, ast.Assert) for node in nodes)
            ):
                yield found[2]


def said(chapter: Chapter, row: int) -> Iterator[str]:
    """What a page says of the output of one of its cells."""
    cell = chapter.cells[row]
    settings: dict[str, Any] = cell.metadata.get("mystnb") or {}
    yield str((settings.get("figure") or {}).get("caption", ""))
    yield str((settings.get("image") or {}).get("alt", ""))
    after = chapter.cells[row + 1 : row + 2]
    if after and after[0].kind == "markdown":
        if follows_hidden(chapter, row + 1):
            yield reading(chapter, row + 1)[0]
        else:
            yield visible(after[0].source)
    before = chapter.cells[row - 1] if row else cell
    if before.kind == "markdown" and "hide-output" in cell.tags:
        yield from (m[0] for m in CHOICES.finditer(before.source))


class Trains:
    """Which functions train, or look at a clock, directly or not."""

    def __init__(self, root: Path) -> None:
        uses: dict[tuple[str, str], set[tuple[str, str]]] = {}
        for path in sorted((root / PACKAGE).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            module = ".".join(parts).removesuffix(".__init__")
            tree = ast.parse(path.read_text(encoding="utf-8"))
            known = dict(_imported(tree))
            for node in tree.body:
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    uses[module, node.name] = {
                        ("", name)
                        if name in TRAINS
                        else known.get(name, (module, name))
                        for name in _used(node)
                    }
        self.names = {("", name) for name in TRAINS}
        while more := {
            name
            for name, used in uses.items()
            if name not in self.names and used & self.names
        }:
            self.names |= more

    def taints(self, cell: Cell, tainted: set[str]) -> bool:
        """Whether a cell's results hang on training; its names join."""
        found = False
        for node in _parsed(cell.source).body:
            if isinstance(node, ast.ImportFrom):
                tainted.update(
                    here
                    for here, name in _imported(node)
                    if name in self.names
                )
            elif exported(cell):
                names = {name for _, name in self.names}
                tainted |= names & {getattr(node, "name", "")}
            elif _used(node) & (TRAINS | tainted - DRAWN_ON):
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    tainted.add(node.name)
                else:
                    found = True
                    trained = _first_arguments(node, TRAINS | tainted)
                    passing = set(_loop_variables(node))
                    tainted |= (trained | set(_stored(node))) - passing
            else:  # a name may get another value
                tainted -= set(_stored(node))
        return found


def _imported(tree: ast.AST) -> Iterator[tuple[str, tuple[str, str]]]:
    """The names that it gets from the package, and where they are from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            for name in node.names if module.startswith(PACKAGE) else ():
                yield name.asname or name.name, (module, name.name)


def _used(node: ast.AST) -> set[str]:
    """The names in it, and what of TRAINS it has as an attribute."""
    names, attributes = set(), set()
    for n in ast.walk(node):
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load):
            names.add(n.id)
        elif isinstance(n, ast.Attribute):
            attributes.add(n.attr)
    names -= set(_loop_variables(node))  # its own
    if attributes >= STEPS:
        names.add(STEPPING)
    return names | (attributes & TRAINS)


def _stored(node: ast.AST) -> Iterator[str]:
    """What it assigns, or fills: `losses[4] = train(model)`."""
    for n in ast.walk(node):
        if isinstance(n, ast.Name | ast.Subscript) and isinstance(
            n.ctx, ast.Store
        ):
            inner: ast.AST = n
            while isinstance(inner, ast.Subscript):
                inner = inner.value
            if isinstance(inner, ast.Name):
                yield inner.id


def _loop_variables(node: ast.AST) -> Iterator[str]:
    """Names that go through something: what follows means another."""
    for n in ast.walk(node):
        if isinstance(n, ast.For | ast.comprehension):
            yield from _stored(n.target)


def _first_arguments(node: ast.AST, trains: set[str]) -> set[str]:
    """What is trained in place: model in `train(model, words)`, and in
    `loss = model(words)` with steps along its gradient.
    """
    here = STEPPING in _used(node)
    found = set()
    for n in ast.walk(node):
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name):
            if here:
                found.add(n.func.id)
            first = n.args[0] if n.args else None
            if n.func.id in trains and isinstance(first, ast.Name):
                found.add(first.id)
    return found - set(dir(builtins))


@cache
def _parsed(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except SyntaxError:  # IPython's own syntax: it trains in a shell
        return ast.Module([], [])
