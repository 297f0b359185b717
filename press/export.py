"""Assemble annotated/*.py from the cells that are tagged `export`."""

from __future__ import annotations

import ast
import json
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path

from pyflakes import checker, messages

from press import files
from press.chapters import COLUMNS, Cell, Chapter, PressError, read_book

PACKAGE = "annotated"
MARK = "Exported from the book; edit the chapter, then run `make export`."
PYTHON = (3, 10)  # the oldest that has to parse the package
STANDARD = sys.stdlib_module_names | {"tomllib"}  # the same on every Python


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
    tree: ast.Module

    @cached_property
    def imports(self) -> list[Import]:
        return [i for node in self.tree.body for i in _imports(node)]

    @cached_property
    def names(self) -> list[str]:
        """What the cell defines, in its order; overloads once."""
        return [n for node in self.tree.body for n in _defined(node)]

    @cached_property
    def body(self) -> list[str]:
        """The lines below the imports."""
        ends = [n.end_lineno or 0 for n in self.tree.body if _is_import(n)]
        lines = self.cell.source.splitlines()[max(ends, default=0) :]
        return "\n".join(lines).strip("\n").splitlines()

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


def export(root: Path, check: bool = False) -> list[str]:
    """Write annotated/ (or, to check, say what has drifted)."""
    folder = root / PACKAGE
    expected = expected_package(root)
    skip = {"__pycache__", ".ipynb_checkpoints"}
    present = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not skip & set(path.relative_to(folder).parts)
    ]
    if check:
        return files.drift(expected, present, root)
    return files.write(expected, present, _is_ours, root)


def expected_package(root: Path) -> dict[Path, str]:
    """Every file of annotated/ and its text."""
    chapters = read_book(root)
    texts = {
        f"{name}.py": text for name, text in assemble(chapters).items()
    }
    texts["py.typed"] = ""
    registry = root / "data" / "registry.toml"
    if registry.is_file():
        text = registry.read_text(encoding="utf-8")
        texts["registry.toml"] = text
    if ledger := sorted((root / "book" / "results").glob("*.json")):
        texts["results.json"] = _ledger(ledger)
    return {root / PACKAGE / name: texts[name] for name in sorted(texts)}


def assemble(chapters: list[Chapter]) -> dict[str, str]:
    """The text of each module; PressError with all that is refused."""
    modules, problems = collect(chapters)
    if not problems:
        for module in modules.values():
            problems += _check_names(module)
            problems += _check_own_imports(module, modules, chapters)
        problems += _check_cycles(modules)
    texts = {}
    if not problems:
        for module in modules.values():
            lines, origin = render(module, chapters)
            problems += _check_flakes(module, lines, origin)
            texts[module.name] = "\n".join(lines) + "\n"
    if problems:
        raise PressError(*dict.fromkeys(problems))
    return texts


# --- from cells to blocks -------------------------------------------------


def collect(
    chapters: list[Chapter],
) -> tuple[dict[str, Module], list[str]]:
    """The modules with their blocks, and what is wrong inside cells."""
    modules = {"__init__": Module("__init__")}
    problems: list[str] = []
    for place, chapter in enumerate(chapters):
        for cell in chapter.code:
            problems += _check_width(cell)
            try:
                target = target_of(cell, chapter)
                if target is None:
                    continue
                block = Block(cell, place, _parse(cell))
            except PressError as error:
                problems += error.problems
                continue
            problems += _check_statements(block, target)
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
        r"export(?::(__init__|__main__|[a-z][a-z0-9_]*))?", tags[0]
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


def _is_import(node: ast.stmt) -> bool:
    return isinstance(node, (ast.Import, ast.ImportFrom))


def _imports(node: ast.AST) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for name in node.names:
            yield Import(name.name, None, name.asname)
    elif isinstance(node, ast.ImportFrom):
        for name in node.names:
            yield Import(node.module or "", name.name, name.asname)


def _defined(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        overload = {"overload", "typing.overload"}
        if not overload & {ast.unparse(d) for d in node.decorator_list}:
            yield node.name
    elif isinstance(node, ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign):
        yield from (t.id for t in node.targets if isinstance(t, ast.Name))
    elif isinstance(node, ast.AnnAssign) and isinstance(
        node.target, ast.Name
    ):
        yield node.target.id


# --- what is refused ------------------------------------------------------


def _check_width(cell: Cell) -> list[str]:
    """The page shows so many columns, and scrolls beyond."""
    return [
        cell.problem(f"line {row} has {len(line)} columns, not {COLUMNS}")
        for row, line in enumerate(cell.source.splitlines(), 1)
        if len(line) > COLUMNS
    ]


def _check_statements(block: Block, target: str) -> list[str]:
    """Only imports, then definitions and constants."""
    found: list[str] = []
    last, imports_over = 0, False
    for node in block.tree.body:
        if node.lineno <= last:
            found.append(f"line {node.lineno} holds two statements")
        last = node.end_lineno or node.lineno
        if _is_import(node):
            if imports_over:
                found.append(
                    f"line {node.lineno}: imports stand first in their cell"
                )
            continue
        imports_over = True
        if not _is_definition(node) and not _is_guard(node, target):
            text = ast.unparse(node).splitlines()[0]
            found.append(
                f"line {node.lineno} ({text}) is no import, definition or "
                "constant: take it into a cell that is not exported"
            )
        for name in _defined(node):
            dunder = name.startswith("__") and name.endswith("__")
            if dunder and (target, name) != ("__init__", "__version__"):
                found.append(f"'{name}' is the press's to write")
    for part in ast.walk(block.tree):
        if isinstance(part, ast.ImportFrom):
            if part.level:
                found.append(
                    f"line {part.lineno}: relative import; write "
                    f"'from {PACKAGE}.module import name'"
                )
            if any(name.name == "*" for name in part.names):
                found.append(f"line {part.lineno}: import names, not *")
    return [block.problem(what) for what in found]


def _is_definition(node: ast.stmt) -> bool:
    if isinstance(node, ast.Assign):
        return all(isinstance(t, ast.Name) for t in node.targets)
    if isinstance(node, ast.AnnAssign):
        return isinstance(node.target, ast.Name) and node.value is not None
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return isinstance(node, kinds)


def _is_guard(node: ast.stmt, target: str) -> bool:
    """`if __name__ == "__main__":`, which __main__.py alone may hold."""
    return (
        target == "__main__"
        and isinstance(node, ast.If)
        and ast.unparse(node.test) == "__name__ == '__main__'"
        and not node.orelse
    )


def _check_names(module: Module) -> list[str]:
    """No name is defined twice, or imported from two places."""
    problems = []
    seen: dict[str, tuple[object, Block]] = {}
    for block in module.blocks:
        bindings: list[tuple[str, object]] = [
            (i.bound, _origin(i)) for i in block.imports
        ]
        bindings += [(name, object()) for name in block.names]
        for name, origin in bindings:
            before, other = seen.setdefault(name, (origin, block))
            if before != origin and name != "_":
                problems.append(
                    block.problem(
                        f"'{name}' is in {PACKAGE}.{module.name} already, "
                        f"from {_place(other)}"
                    )
                )
    return problems


def _origin(item: Import) -> tuple[str, str | None]:
    """Equal where imports may repeat (`import a.b` and `import a.c`)."""
    whole = item.name is None and item.alias is None
    return (item.module.split(".")[0] if whole else item.module, item.name)


def _place(block: Block) -> str:
    cell = block.cell
    section = f'book/{cell.file}, section "{cell.heading}"'
    return f"{section}, code cell {cell.number}"


def _check_own_imports(
    module: Module, modules: dict[str, Module], chapters: list[Chapter]
) -> list[str]:
    """What is imported from the package is there, and not further on."""
    problems = []
    for block in module.blocks:
        for node in ast.walk(block.tree):
            for item in _imports(node):
                what = _own_import(item, block, module, modules, chapters)
                if what:
                    problems.append(block.problem(what))
    return problems


def _own_import(
    item: Import,
    block: Block,
    module: Module,
    modules: dict[str, Module],
    chapters: list[Chapter],
) -> str | None:
    top, _, rest = item.module.partition(".")
    if top != PACKAGE:
        return None
    name = item.name
    if not rest:  # `from annotated import module_or_name`
        rest, name = (name, None) if name in modules else ("__init__", name)
    rest = rest or "__init__"
    if rest not in modules:
        return f"imports {PACKAGE}.{rest}, which no chapter exports"
    source = modules[rest]
    if rest == module.name:
        return (
            f"imports {PACKAGE}.{rest} into itself: import what earlier "
            "chapters put there in a cell that is not exported"
        )
    if rest != "__init__" and source.first > block.chapter:
        return (
            f"imports {PACKAGE}.{rest}, which only book/"
            f"{chapters[source.first].file} begins"
        )
    if name is not None and name not in source.names:
        return f"imports '{name}', which {PACKAGE}.{rest} does not define"
    if name is not None and source.names[name].chapter > block.chapter:
        later = f"book/{source.names[name].cell.file}"
        return (
            f"imports {PACKAGE}.{rest}.{name}, which only {later} defines"
        )
    return None


def _check_cycles(modules: dict[str, Module]) -> list[str]:
    """No two modules import each other when they load."""
    edges: dict[str, dict[str, Block]] = {}
    for module in modules.values():
        for item, block in module.imports.items():
            for name in own_modules(item, set(modules)):
                edges.setdefault(module.name, {}).setdefault(name, block)
    problems = []
    for start in sorted(edges):
        for step, block in sorted(edges[start].items()):
            if start in _reachable(step, edges):
                problems.append(
                    block.problem(
                        f"{PACKAGE}.{start} imports {PACKAGE}.{step}, "
                        "which imports it back"
                    )
                )
    return problems


def own_modules(item: Import, known: set[str]) -> Iterator[str]:
    """The modules of the package that an import loads."""
    top, _, rest = item.module.partition(".")
    if top == PACKAGE:
        if not rest and item.name in known:
            rest = item.name or ""
        if rest in known:
            yield rest


def _reachable(start: str, edges: dict[str, dict[str, Block]]) -> set[str]:
    found, todo = set(), [start]
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += edges.get(name, {})
    return found


def _check_flakes(
    module: Module, lines: list[str], origin: list[Block | None]
) -> list[str]:
    """Undefined names, unused imports: whatever pyflakes sees."""
    text = "\n".join(lines) + "\n"
    try:
        tree = ast.parse(text)
    except SyntaxError as error:  # each cell parses, so this is ours
        return [f"{PACKAGE}/{module.name}.py: {error}"]
    found = checker.Checker(tree, filename=f"{module.name}.py").messages
    problems = []
    for message in sorted(found, key=lambda m: (m.lineno, m.col)):
        what = message.message % message.message_args
        block = origin[message.lineno - 1]
        if isinstance(message, messages.UnusedImport):
            name = message.message_args[0].split(" as ")[-1]
            block = next(
                (
                    b
                    for i, b in module.imports.items()
                    if name in (i.bound, i.module, f"{i.module}.{i.name}")
                ),
                block,
            )
        if block is None:
            problems.append(f"{PACKAGE}/{module.name}.py: {what}")
        else:
            problems.append(block.problem(what))
    return problems


# --- the text of a module -------------------------------------------------


def render(
    module: Module, chapters: list[Chapter]
) -> tuple[list[str], list[Block | None]]:
    """The lines of annotated/NAME.py, and the block of each line."""
    lines = _header(module, chapters)
    if module.imports:
        lines += ["", *_import_lines(list(module.imports))]
    names = [name for block in module.blocks for name in block.names]
    public = [n for n in names if n[0] != "_" or n == "__version__"]
    if public and module.name != "__main__":
        lines += ["", *_bracketed("__all__ = [", public, "]")]
    origin: list[Block | None] = [None] * len(lines)
    sections = groupby(
        (block for block in module.blocks if block.names or block.body),
        key=lambda block: (block.cell.file, block.cell.heading),
    )
    for (file, heading), blocks in sections:
        title = f"{file}: {re.sub(r'[`*$]', '', heading)}"
        comment = textwrap.wrap(
            title, COLUMNS, initial_indent="# ", subsequent_indent="#   "
        )
        for block in blocks:
            if not block.body:
                continue
            new = ["", "", *comment, *block.body]
            comment = []
            lines += new
            origin += [block] * len(new)
    return lines, origin


def _header(module: Module, chapters: list[Chapter]) -> list[str]:
    places = sorted({block.chapter for block in module.blocks})
    name = (
        PACKAGE if module.name == "__init__" else f"{PACKAGE}.{module.name}"
    )
    titles = [f"{chapters[p].file}: {chapters[p].title}" for p in places]
    listing = [
        line
        for title in titles
        for line in textwrap.wrap(
            re.sub(r"[`*$\\]", "", title),
            COLUMNS,
            initial_indent="- ",
            subsequent_indent="  ",
        )
    ]
    gap = [""] if listing else []
    return [f'"""{name}.', "", MARK, *gap, *listing, '"""']


def _import_lines(imports: list[Import]) -> list[str]:
    """Merged, and in the order of isort (as ruff checks it)."""
    sections: dict[int, list[Import]] = {0: [], 1: [], 2: [], 3: []}
    for item in imports:
        top = item.module.split(".")[0]
        if top == "__future__":
            sections[0].append(item)
        elif top == PACKAGE:
            sections[3].append(item)
        else:
            sections[1 if top in STANDARD else 2].append(item)
    groups = [_section_lines(items) for items in sections.values() if items]
    lines = [line for group in groups for line in ("", *group)]
    return lines[1:]


def _section_lines(imports: list[Import]) -> list[str]:
    plain = [i for i in imports if i.name is None]
    plain.sort(key=lambda i: (_natural(i.module), i.alias or ""))
    lines = [f"import {i.module}{_as(i)}" for i in plain]
    groups: dict[tuple[str, str], list[Import]] = {}
    for item in imports:
        if item.name is not None:
            alone = f"{item.name}{_as(item)}" if item.alias else ""
            groups.setdefault((item.module, alone), []).append(item)
    for members in groups.values():
        members.sort(key=_member)
    ordered = sorted(
        groups.values(),
        key=lambda m: (_natural(m[0].module), _member(m[0])),
    )
    for members in ordered:
        names = [f"{i.name}{_as(i)}" for i in members]
        start = f"from {members[0].module} import "
        one = start + ", ".join(names)
        if len(one) <= COLUMNS:
            lines.append(one)
        else:
            lines += [f"{start}(", *(f"    {n}," for n in names), ")"]
    return lines


def _as(item: Import) -> str:
    return f" as {item.alias}" if item.alias else ""


def _member(item: Import) -> tuple[int, list[tuple[int, int, str]], str]:
    """CONSTANTS, then Classes, then functions, each by name."""
    name = item.name or ""
    if len(name) > 1 and name.isupper():
        kind = 0
    else:
        kind = 1 if name[:1].isupper() else 2
    return (kind, _natural(name), item.alias or "")


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Digits compare as numbers, letters without their case."""
    parts = re.findall(r"\d+|\D", name.lower())
    return [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in parts]


def _bracketed(start: str, names: list[str], end: str) -> list[str]:
    """A list of strings on one line, or one a line."""
    quoted = [f'"{name}"' for name in names]
    one = start + ", ".join(quoted) + end
    if len(one) <= COLUMNS:
        return [one]
    return [start, *(f"    {name}," for name in quoted), end]


# --- data that the package carries ----------------------------------------


def _ledger(paths: list[Path]) -> str:
    """All runs in one object, by the names of their files."""
    runs, problems = {}, []
    for path in paths:
        try:
            runs[path.stem] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            problems.append(f"book/results/{path.name}: {error}")
    if problems:
        raise PressError(*problems)
    return (
        json.dumps(runs, indent=2, sort_keys=True, ensure_ascii=False)
        + "\n"
    )


def _is_ours(path: Path) -> bool:
    """Whether the press wrote this file, so that it may remove it."""
    if path.name in {"registry.toml", "results.json", "py.typed"}:
        return True
    return path.suffix == ".py" and MARK.encode() in path.read_bytes()[:500]
