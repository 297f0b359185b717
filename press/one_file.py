"""dist/transformer.py: model, loss, schedule, training and search.

One file that imports nothing but PyTorch, for those who copy a file and
change it. It is put together from exported cells: what page E33 defines in
its own cells, and all that this uses, wherever it stands in the book.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from press import files
from press.chapters import COLUMNS, PressError, read_book
from press.modules import Block, Import, Module, collect, continues, own

TAG = "one-file"  # of the cells with which the file ends
FILE = "transformer.py"
# what checks fields, numbers and parts, and what draws: the package has it
LEFT_OUT = {"check_fields", "check_numbers", "recorded_weights"}
ALLOWED = {"torch", *sys.stdlib_module_names}
HEAD = '''"""The Transformer of "Attention Is All You Need", in one file.

Model, loss, schedule, training and beam search, as in the book
"{title}", {address}
Only PyTorch is needed. This trains the copy task, within a minute:

    python {file}

Made by `make transformer`: each part names its page and its heading.
Licence: {licence}.
"""
'''


@dataclass
class Part:
    """A definition, and the names that it uses."""

    module: str
    block: Block
    text: str
    names: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.names = _names(ast.parse(self.text))


def write_one_file(root: Path, out: Path) -> str:
    """Write it; one line on what was done."""
    text = one_file(root)
    files.replace(out, text)
    return f"{out} has {text.count(chr(10))} lines"


def one_file(root: Path) -> str:
    """Its text. PressError where a part needs more than PyTorch."""
    modules, problems = collect(read_book(root))
    if problems:
        raise PressError(*problems)
    page = _page(root)
    modules[page.name] = page
    parts: dict[str, Part] = {}
    imports: set[Import] = set()
    todo = [(page.name, name) for name in page.names]
    while todo:
        home, name = todo.pop()
        if name in page.names:  # in the place of a part that needs more
            home = page.name
        if name in parts:
            if parts[name].module != home:
                raise PressError(
                    f"{FILE}: {name} is of {home} and of "
                    f"{parts[name].module}"
                )
            continue
        part = parts[name] = _part(modules[home], name)
        for used in sorted(part.names):
            where = _source(used, modules[home], modules)
            if isinstance(where, Import):
                _allow(where, part, name)
                imports.add(where)
            elif where is not None:
                todo.append(where)
    return _text(root, _ordered(parts, modules, page), imports)


def _page(root: Path) -> Module:
    """The page's own cells, as a module."""
    page = Module("one file")
    for place, chapter in enumerate(read_book(root)):
        for cell in chapter.code:
            if TAG in cell.tags:
                tree = ast.parse(cell.source)
                page.blocks.append(Block(cell, place, page.name, tree))
    return page


def _part(module: Module, name: str) -> Part:
    """A definition with its comments, and all the methods of a class."""
    block = module.names[name]
    [node] = [n for n in block.tree.body if name in _defined(n)]
    lines = _lines(block, node)
    for other, more in module.parts.get(name, []):
        lines += ["", *_lines(other, more)[1:]]
    return Part(module.name, block, _without("\n".join(lines) + "\n"))


def _defined(node: ast.stmt) -> set[str]:
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        return {
            part.id
            for part in ast.walk(node)
            if isinstance(part, ast.Name)
            and isinstance(part.ctx, ast.Store)
        }
    if isinstance(node, ast.ClassDef) and continues(node):
        return set()
    return {getattr(node, "name", "")}


def _lines(block: Block, node: ast.stmt) -> list[str]:
    """A statement with its decorators, and with comments above it."""
    source = block.cell.source.splitlines()
    above = getattr(node, "decorator_list", None) or [node]
    first = above[0].lineno - 1
    while first and source[first - 1].startswith("#"):
        first -= 1
    return source[first : node.end_lineno]


def _without(text: str) -> str:
    """Without the calls of what is left out, and the methods that need
    more of it.
    """
    [node] = ast.parse(text).body
    lines: list[str | None] = [*text.splitlines(keepends=True)]

    def cut(part: ast.stmt) -> None:
        above = getattr(part, "decorator_list", None) or [part]
        for row in range(above[0].lineno - 1, part.end_lineno or 0):
            lines[row] = None

    for function in ast.walk(node):
        if isinstance(function, ast.FunctionDef):
            calls = [part for part in function.body if _left_out(part)]
            rest = [part for part in function.body if part not in calls]
            needs = any(LEFT_OUT & _names(part) for part in rest)
            if function is not node and (needs or not rest):
                cut(function)
            for part in calls:
                cut(part)
    return "".join(line for line in lines if line is not None)


def _left_out(node: ast.stmt) -> bool:
    """Whether it only calls what is left out."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Name)
        and node.value.func.id in LEFT_OUT
    )


def _names(node: ast.AST) -> set[str]:
    return {p.id for p in ast.walk(node) if isinstance(p, ast.Name)}


def _source(
    name: str, module: Module, modules: dict[str, Module]
) -> Import | tuple[str, str] | None:
    """Where a name comes from: another package, or a part of ours."""
    if name in module.names:
        return module.name, name
    for item in module.imports:
        if item.bound == name:
            found = own(item, modules)
            if found is None:
                return item
            home, wanted = found
            if wanted is not None and home in modules:
                return home, wanted
    return None


def _allow(item: Import, part: Part, name: str) -> None:
    top = item.module.partition(".")[0]
    if top not in ALLOWED:
        raise PressError(
            part.block.problem(
                f"{name} needs {top}, which {FILE} does without: define it "
                f"anew in a cell tagged {TAG}"
            )
        )


def _ordered(
    parts: dict[str, Part], modules: dict[str, Module], page: Module
) -> Iterator[Part]:
    """Modules after those that they use, the page last."""
    homes = {part.module for part in parts.values()}
    order: list[str] = []

    def visit(home: str) -> None:
        for item in modules[home].imports:
            found = own(item, modules)
            if found and found[0] in homes - {home}:
                visit(found[0])
        if home not in order:
            order.append(home)

    for home in modules:
        if home in homes and home != page.name:
            visit(home)
    for home in [*order, page.name]:
        for block in modules[home].blocks:
            for name in block.names:
                if name in parts and parts[name].module == home:
                    yield parts[name]


def _text(root: Path, parts: Iterator[Part], imports: set[Import]) -> str:
    from press.project import TITLE, read_project

    project = read_project(root)
    head = HEAD.format(
        title=TITLE,
        address=project.repository,
        file=FILE,
        licence="MIT",
    )
    lines = [head, "from __future__ import annotations", ""]
    for item in imports - {Import("__future__", "annotations", None)}:
        alias = f" as {item.alias}" if item.alias else ""
        lines.append(
            f"from {item.module} import {item.name}{alias}"
            if item.name
            else f"import {item.module}{alias}"
        )
    section = ""
    for part in parts:
        cell = part.block.cell
        here = f"{cell.file}: {cell.heading}".replace("`", "")
        if here != section:
            lines += ["", "", f"# --- {here}"]
        section = here
        text = part.text.rstrip()
        lines += [text] if "\n" not in text else [text, "", ""]
    lines += ["", "", 'if __name__ == "__main__":', "    main()", ""]
    return _formatted("\n".join(lines))


def _formatted(text: str) -> str:
    """With sorted imports, as ruff formats the package."""
    ruff = [sys.executable, "-m", "ruff"]
    options = ["--isolated", "--quiet", "--line-length", str(COLUMNS)]
    options += ["--target-version", "py310"]
    for command in (
        ["check", "--select", "F,I", "--fix", "--no-cache", *options, "-"],
        ["format", *options, "-"],
    ):
        done = subprocess.run(
            [*ruff, *command],
            input=text,
            capture_output=True,
            text=True,
            encoding="utf-8",
        )
        if done.returncode:
            raise PressError(f"{FILE}: {done.stdout[-400:]}{done.stderr}")
        text = done.stdout
    return text
