"""The exported cells, as the modules that they are parts of."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from press.chapters import Cell, Chapter, PressError

PACKAGE = "annotated"
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
    def body(self) -> list[tuple[int, str]]:
        """The lines below the imports, with their numbers in the cell."""
        ends = [n.end_lineno or 0 for n in self.tree.body if is_import(n)]
        lines = list(enumerate(self.cell.source.splitlines(), 1))
        lines = lines[max(ends, default=0) :]
        while lines and not lines[0][1].strip():
            del lines[0]
        while lines and not lines[-1][1].strip():
            del lines[-1]
        return lines

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

    @property
    def first(self) -> int:
        return self.blocks[0].chapter


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


def defined_by(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        overload = {"overload", "typing.overload"}
        if not overload & {ast.unparse(d) for d in node.decorator_list}:
            yield node.name
    elif isinstance(node, ast.ClassDef):
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


def own_modules(item: Import, known: set[str]) -> Iterator[str]:
    """The modules of the package that an import loads."""
    top, _, rest = item.module.partition(".")
    if top == PACKAGE:
        inside = ".".join(filter(None, (rest, item.name)))
        if inside in known:
            rest = inside
        if rest in known:
            yield rest


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
