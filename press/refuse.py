"""What the exporter refuses, with chapter, section and cell."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

from press.chapters import CLAIMS, COLUMNS, Cell, Chapter
from press.modules import (
    PACKAGE,
    Block,
    Import,
    Module,
    continues,
    defined_by,
    imports_of,
    is_import,
    own,
    parts_of,
)

FUTURE = (
    " here, only further down (for an annotation, begin the chapter's "
    "first exported cell with `from __future__ import annotations`)"
)
# what a cell may be tagged, beside `export` and `claims`
TAGS = {
    "cover", "full-width", "hide-cell", "hide-input", "hide-output",
    "one-file", "poster", "raises-exception", "show", "skip-execution",
    "translator",
}  # fmt: skip
# the block and the line in its cell that a line of a module comes from
Place = tuple[Block, int] | None


def check_cells(
    modules: dict[str, Module], chapters: list[Chapter]
) -> list[str]:
    """What is wrong with a cell by itself."""
    problems: list[str] = []
    for chapter in chapters:
        for cell in chapter.code:
            problems += _check_width(cell)
            problems += _check_tags(cell)
        for claim in chapter.claims:
            problems += _check_claim(claim)
    for module in modules.values():
        for block in module.blocks:
            problems += _check_statements(block)
    return problems


def check_modules(modules: dict[str, Module]) -> list[str]:
    """What is wrong between cells: names and imports."""
    problems: list[str] = []
    for module in modules.values():
        problems += _check_names(module)
        problems += _check_parts(module)
        problems += _check_own_imports(module, modules)
    return problems + _check_cycles(modules)


def _check_width(cell: Cell) -> list[str]:
    """The page shows so many columns, and scrolls beyond."""
    return [
        cell.problem(f"line {row} has {len(line)} columns, not {COLUMNS}")
        for row, line in enumerate(cell.source.splitlines(), 1)
        if len(line) > COLUMNS
    ]


def _check_tags(cell: Cell) -> list[str]:
    """A misspelt tag would show an answer, or a claim, and say nothing."""
    tags = cell.metadata.get("tags", [])
    if not isinstance(tags, list):
        return [cell.problem(f"tags are a list: write tags: [{tags}]")]
    found = []
    for tag in map(str, tags):
        if tag not in TAGS and "export" not in tag.lower():
            near = get_close_matches(tag, [*TAGS, CLAIMS, "export"], 1)
            meant = f" ('{near[0]}' does)" if near else ""
            known = ", ".join(sorted(TAGS))
            found.append(
                cell.problem(
                    f"the tag '{tag}' means nothing{meant}: there are "
                    f"{CLAIMS}, export, {known}"
                )
            )
    return found


def _check_claim(cell: Cell) -> list[str]:
    """One without an assertion would stand behind a sentence, and hold."""
    try:
        tree = ast.parse(cell.source)
    except SyntaxError as error:
        return [cell.problem(f"is no Python: {error.msg}")]
    defined = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef))
    if any(map(_asserts, defined)):
        return [cell.problem("a claim stands in a loop, not in a function")]
    if not _asserts(tree):
        return [cell.problem("a cell of claims asserts something")]
    return []


def _asserts(tree: ast.AST) -> bool:
    return any(isinstance(node, ast.Assert) for node in ast.walk(tree))


def _check_statements(block: Block) -> list[str]:
    """Only imports, then definitions and constants."""
    found: list[str] = []
    target = block.target
    last, imports_over = 0, False
    for node in block.tree.body:
        if node.lineno <= last:
            found.append(f"line {node.lineno} holds two statements")
        last = node.end_lineno or node.lineno
        if is_import(node):
            if imports_over:
                found.append(
                    f"line {node.lineno}: imports stand first in their cell"
                )
            continue
        imports_over = True
        if not _is_definition(node) and not _starts(node, target):
            text = ast.unparse(node).splitlines()[0]
            found.append(
                f"line {node.lineno} ({text}) is no import, definition or "
                "constant: take it into a cell that is not exported"
            )
        for name in defined_by(node):
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
    starts = any(_starts(node, target) for node in block.tree.body)
    if starts and "skip-execution" not in block.cell.tags:
        found.append(
            "would start the program in the chapter: add the tag "
            "'skip-execution'"
        )
    return [block.problem(what) for what in found]


def _is_definition(node: ast.stmt) -> bool:
    if isinstance(node, ast.Assign):
        parts = [
            part for target in node.targets for part in parts_of(target)
        ]
        return all(isinstance(part, ast.Name) for part in parts)
    if isinstance(node, ast.AnnAssign):
        return isinstance(node.target, ast.Name) and node.value is not None
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return isinstance(node, kinds)


def _starts(node: ast.stmt, target: str) -> bool:
    """`if __name__ == "__main__":`, in __main__.py and cli.py; in the first
    `main()` as well.
    """
    if target not in ("__main__", "cli"):
        return False
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "__name__ == '__main__'"
    if target == "cli":
        return False
    call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    return call or isinstance(node, ast.Raise)


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


def _check_parts(module: Module) -> list[str]:
    """A class that goes on means the same in a notebook and merged."""
    problems = []
    begun: dict[str, Block] = {}
    known: dict[str, dict[str, Block]] = {}  # what a class has so far
    for block in module.blocks:
        for node in block.classes:
            members = known.setdefault(node.name, {})
            if continues(node):
                begin = begun.get(node.name)
                for what in _part(node, block, begin, members):
                    problems.append(block.problem(what))
            else:
                begun.setdefault(node.name, block)
            for part in node.body:
                for name in defined_by(part):
                    members.setdefault(name, block)
    return problems


def _part(
    node: ast.ClassDef,
    block: Block,
    begin: Block | None,
    members: dict[str, Block],
) -> Iterator[str]:
    """What is wrong with one `class T(T):`."""
    name = node.name
    if begin is None or begin is block:
        yield (
            f"line {node.lineno}: goes on with class {name}, which no "
            f"earlier cell exports to {PACKAGE}.{block.target}"
        )
    if len(node.bases) > 1 or node.keywords or node.decorator_list:
        yield (
            f"line {node.lineno}: where class {name} goes on, write `class "
            f"{name}({name}):` and nothing else"
        )
    for part in node.body:
        if not isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield (
                f"line {part.lineno}: class {name} goes on with methods "
                "alone: its docstring, fields and constants stand where it "
                "begins"
            )
        elif part.name in members:
            yield (
                f"line {part.lineno}: {name}.{part.name} is there already, "
                f"from {_place(members[part.name])}"
            )
    plain = {  # super().name, where the class has no such name yet
        id(part.value.func)
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute)
        and isinstance(part.value, ast.Call)
        and not part.value.args
        and part.attr not in members
    }
    for call in ast.walk(node):
        if not isinstance(call, ast.Name) or call.id != "super":
            continue
        if id(call) not in plain:
            yield (
                f"line {call.lineno}: super() is the class so far in a "
                f"notebook, and the base of {name} in the package: take "
                "the method to the cell that begins the class"
            )


def _origin(item: Import) -> tuple[str, str | None]:
    """Equal where imports may repeat (`import a.b` and `import a.c`)."""
    whole = item.name is None and item.alias is None
    return (item.module.split(".")[0] if whole else item.module, item.name)


def _place(block: Block) -> str:
    cell = block.cell
    section = f'book/{cell.file}, section "{cell.heading}"'
    return f"{section}, code cell {cell.number}"


def _check_own_imports(
    module: Module, modules: dict[str, Module]
) -> list[str]:
    """What is imported from the package is there, and not further on."""
    problems = []
    for block in module.blocks:
        for node in ast.walk(block.tree):
            for item in imports_of(node):
                what = _own_import(item, block, module, modules)
                if what:
                    problems.append(block.problem(what))
    return problems


def _own_import(
    item: Import,
    block: Block,
    module: Module,
    modules: dict[str, Module],
) -> str | None:
    found = own(item, modules)
    if found is None:
        return None
    rest, name = found
    if rest not in modules:
        return f"imports {PACKAGE}.{rest}, which no chapter exports"
    if rest == module.name:
        return (
            f"imports {PACKAGE}.{rest} into itself: import what earlier "
            "chapters put there in a cell that is not exported"
        )
    if name is not None and name not in modules[rest].names:
        return f"imports '{name}', which {PACKAGE}.{rest} does not define"
    return None


def _check_cycles(modules: dict[str, Module]) -> list[str]:
    """No two modules import each other when they load."""
    edges: dict[str, dict[str, Block]] = {}
    for module in modules.values():
        for item, block in module.imports.items():
            found = own(item, modules)
            if found is not None and found[0] in modules:
                steps = edges.setdefault(module.name, {})
                steps.setdefault(found[0], block)
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


def _reachable(start: str, edges: dict[str, dict[str, Block]]) -> set[str]:
    found, todo = set(), [start]
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += edges.get(name, {})
    return found


RUFF = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache"]
RUFF += ["--target-version", "py310", "--line-length", str(COLUMNS)]
RUFF += ["--config", f"lint.isort.known-first-party=['{PACKAGE}']"]
RUFF += ["--select", "F,I", "--fix", "--fixable", "I", "--exit-zero"]
RUFF += ["--output-format", "json", "--quiet", "."]


def check_names(
    rendered: dict[str, tuple[list[str], list[Place]]],
    modules: dict[str, Module],
) -> tuple[dict[str, str], list[str]]:
    """The modules with sorted imports, and whatever else ruff sees.

    Undefined names, unused imports and variables, each with its cell.
    """
    with tempfile.TemporaryDirectory(prefix="press-") as folder:
        paths = {Path(folder).resolve() / f"{n}_.py": n for n in rendered}
        for path, name in paths.items():
            path.write_text("\n".join(rendered[name][0]) + "\n", "utf-8")
        done = subprocess.run(
            RUFF, cwd=folder, check=True, capture_output=True, text=True
        )
        texts = {n: p.read_text("utf-8") for p, n in paths.items()}
    problems = []
    for message in json.loads(done.stdout):
        name = paths[Path(message["filename"]).resolve()]
        module, (lines, origin) = modules[name], rendered[name]
        # sorting has changed the number of lines above the code
        shift = len(lines) - len(texts[name].splitlines())
        place = origin[message["location"]["row"] - 1 + shift]
        what, quoted = message["message"], message["message"].split("`")[1]
        if message["code"] == "F401":
            place = _place_of_import(quoted, module)
        elif message["code"] == "F821" and quoted in module.names:
            what += FUTURE
        if place is None:  # in a line that the press wrote
            problems.append(f"{PACKAGE}/{name}.py: {what}")
        else:
            block, row = place
            problems.append(block.problem(f"line {row}: {what}"))
    return texts, problems


def _place_of_import(name: str, module: Module) -> Place:
    """Where the import is that ruff calls `a.b`."""
    for item, block in module.imports.items():
        if name == ".".join(filter(None, (item.module, item.name))):
            for node in block.tree.body:
                if item in imports_of(node):
                    return block, node.lineno
    return None
