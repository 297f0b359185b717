"""The exported cells, as the modules that they are parts of."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from press.chapters import Cell, Chapter, PressError

PACKAGE = "annotated"
MOVING = f"{PACKAGE}/book/moving"  # JavaScript: the one source in it
PYTHON = (3, 10)  # the oldest that has to parse the package
# "model", or "engine.packing" in a sub-package
MODULE = r"[a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)*"


@dataclass(frozen=True)
class Import:
    """One imported name: `import module` where name is None."""

    module: str
    name: str | None
    alias: str | None

    @property
    def bound(self) -> str:
        return self.alias or self.name or self.module.split(".")[0]


Line = tuple[int, str]  # with its number in the cell


@dataclass
class Block:
    """One exported cell."""

    cell: Cell
    chapter: int  # its place in the book
    target: str
    tree: ast.Module

    @cached_property
    def imports(self) -> list[Import]:
        return [i for node in self.tree.body for i in imports_of(node)]

    @cached_property
    def names(self) -> list[str]:
        """What the cell defines, in its order; overloads once."""
        return [n for node in self.tree.body for n in defined_by(node)]

    @cached_property
    def classes(self) -> list[ast.ClassDef]:
        return [n for n in self.tree.body if isinstance(n, ast.ClassDef)]

    @cached_property
    def body(self) -> list[Line]:
        """The lines below the imports, with their numbers in the cell."""
        ends = [n.end_lineno or 0 for n in self.tree.body if is_import(n)]
        lines = self._lines[max(ends, default=0) :]
        for node in filter(continues, self.classes):
            part = range(self._above(node) + 1, (node.end_lineno or 0) + 1)
            rest = [line for line in lines if line[0] >= part.stop]
            lines = [line for line in lines if line[0] < part.start]
            lines += _trimmed(rest, end=False) if lines else rest
        return _trimmed(lines)

    def part(self, node: ast.ClassDef) -> list[Line]:
        """What `class T(T):` adds to the class, and the comment above."""
        start, end = node.lineno, node.end_lineno
        above = self._lines[self._above(node) : start - 1]
        comment = [(row, f"    {text}") for row, text in above]
        return comment + _trimmed(self._lines[start:end])

    @property
    def _lines(self) -> list[Line]:
        return list(enumerate(self.cell.source.splitlines(), 1))

    def _above(self, node: ast.ClassDef) -> int:
        """How many lines there are above a class and its comment."""
        start = node.lineno - 1
        while start and self._lines[start - 1][1].startswith("#"):
            start -= 1
        return start

    def problem(self, what: str) -> str:
        return self.cell.problem(what)


@dataclass
class Module:
    """One annotated/NAME.py: its blocks in the order of the book."""

    name: str
    blocks: list[Block] = field(default_factory=list)

    @cached_property
    def names(self) -> dict[str, Block]:
        return {name: b for b in reversed(self.blocks) for name in b.names}

    @cached_property
    def imports(self) -> dict[Import, Block]:
        return {i: b for b in reversed(self.blocks) for i in b.imports}

    @cached_property
    def parts(self) -> dict[str, list[tuple[Block, ast.ClassDef]]]:
        """Where classes go on: the cells with `class T(T):`."""
        found: dict[str, list[tuple[Block, ast.ClassDef]]] = {}
        for block in self.blocks:
            for node in filter(continues, block.classes):
                found.setdefault(node.name, []).append((block, node))
        return found


def collect(
    chapters: list[Chapter],
) -> tuple[dict[str, Module], list[str]]:
    """The modules with their blocks, and what is wrong inside cells."""
    modules = {"__init__": Module("__init__")}
    problems: list[str] = []
    for place, chapter in enumerate(chapters):
        for cell in chapter.code:
            try:
                target = target_of(cell, chapter)
                if target is None:
                    continue
                block = Block(cell, place, target, _parse(cell))
            except PressError as error:
                problems += error.problems
                continue
            modules.setdefault(target, Module(target)).blocks.append(block)
    return modules, problems


def target_of(cell: Cell, chapter: Chapter) -> str | None:
    """The module that a cell is exported to."""
    tags = [tag for tag in cell.tags if "export" in tag.lower()]
    if not tags:
        return None
    if len(tags) > 1:
        raise PressError(cell.problem(f"has several export tags: {tags}"))
    match = re.fullmatch(
        rf"export(?::(__init__|__main__|{MODULE}))?", tags[0]
    )
    if match is None:
        raise PressError(
            cell.problem(
                f"tag '{tags[0]}' is neither 'export' nor 'export:module'"
            )
        )
    target = match[1] or chapter.module
    if target is None:
        raise PressError(
            cell.problem(
                "tag 'export' in a chapter without annotated.module: "
                "name the module there, or write 'export:module'"
            )
        )
    return target


def _parse(cell: Cell) -> ast.Module:
    try:
        return ast.parse(cell.source, feature_version=PYTHON)
    except (SyntaxError, ValueError) as error:
        for line in cell.source.splitlines():
            if re.match(r"\s*[%!?]|.*\?\s*$", line):
                what = (
                    f"'{line.strip()}': IPython's magics are not exported"
                )
                raise PressError(cell.problem(what)) from None
        row = getattr(error, "lineno", None)
        what = getattr(error, "msg", str(error))
        raise PressError(
            cell.problem(f"line {row} does not parse: {what}")
        ) from None


def is_import(node: ast.stmt) -> bool:
    return isinstance(node, (ast.Import, ast.ImportFrom))


def imports_of(node: ast.AST) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for name in node.names:
            yield Import(name.name, None, name.asname)
    elif isinstance(node, ast.ImportFrom):
        for name in node.names:
            yield Import(node.module or "", name.name, name.asname)


def continues(node: ast.ClassDef) -> bool:
    """Whether it is `class T(T):`, and goes on with an earlier class."""
    return node.name in {ast.unparse(base) for base in node.bases}


def _trimmed(lines: list[Line], end: bool = True) -> list[Line]:
    """Without the empty lines around them."""
    full = [i for i, (_, text) in enumerate(lines) if text.strip()]
    if not full:
        return []
    return lines[full[0] : full[-1] + 1 if end else None]


def defined_by(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        overload = {"overload", "typing.overload"}
        if not overload & {ast.unparse(d) for d in node.decorator_list}:
            yield node.name
    elif isinstance(node, ast.ClassDef):
        if not continues(node):
            yield node.name
    elif isinstance(node, ast.Assign):
        parts = [
            part for target in node.targets for part in parts_of(target)
        ]
        yield from (part.id for part in parts if isinstance(part, ast.Name))
    elif isinstance(node, ast.AnnAssign) and isinstance(
        node.target, ast.Name
    ):
        yield node.target.id


def parts_of(target: ast.expr) -> list[ast.expr]:
    """What an assignment assigns to: `A` has one part, `A, B` two."""
    return target.elts if isinstance(target, ast.Tuple) else [target]


def own(
    item: Import, modules: dict[str, Module]
) -> tuple[str, str | None] | None:
    """The module of the package that an import loads, and its name there.

    The name is None where a whole module is imported, as "engine.packing"
    by `from annotated.engine import packing`.
    """
    top, _, rest = item.module.partition(".")
    if top != PACKAGE:
        return None
    inside = ".".join(filter(None, (rest, item.name)))
    if inside in modules:
        return inside, None
    return rest or "__init__", item.name


def packages_of(names: Iterable[str]) -> set[str]:
    """The sub-packages that modules lie in: "engine" of engine.packing."""
    return {
        ".".join(parts[:i])
        for parts in (name.split(".") for name in names)
        for i in range(1, len(parts))
    }


def path_of(name: str, packages: set[str]) -> str:
    """The file of a module in the package's folder."""
    path = name.replace(".", "/")
    return f"{path}/__init__.py" if name in packages else f"{path}.py"
