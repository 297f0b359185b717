"""The recall edition: a chapter to be written again from memory.

Headings, signatures and questions; no bodies and no prose. Whoever has read
a chapter writes its cells, and opens the page to compare.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from press.chapters import Cell, Chapter, headings
from press.fold import only_imports
from press.modules import is_import
from press.study import APART, ITEM, Question

FOLDER = "recall"
PREDICTION = re.compile(
    r"^:{3,}\{admonition\} (Predict:.*)\n:class: predict\n"
    r"((?:(?!:{3,}$).*\n)*):{3,}$",
    re.M,
)
EMPTY = "raise NotImplementedError"


def recalled(
    chapter: Chapter, questions: list[Question]
) -> Iterator[tuple[str, str]]:
    """The kind and the text of each cell, headings joined to what comes
    below them.
    """
    for cell in chapter.cells:
        if cell.kind == "code":
            text = stubs(cell)
        else:
            text = "\n\n".join(_asked(cell.source))
        if text:
            yield cell.kind, text
    own = [q for q in questions if q.chapter == chapter.number]
    if own:
        yield "markdown", "## Questions"
    for question in own:
        offered = "\n".join(f"- {choice}" for choice, _ in question.choices)
        head = f"**{question.name} · {question.title}** {question.text}"
        yield "markdown", f"{head.strip()}\n\n{offered}"


def _asked(markdown: str) -> Iterator[str]:
    """Headings and predictions in their order, without what is said of
    the choices.
    """
    found: list[tuple[int, str]] = []
    for level, title in headings(markdown):
        if title in APART:
            continue
        line = f"{'#' * level} {title}"
        found.append((markdown.index(line.split(maxsplit=1)[1]), line))
    for match in PREDICTION.finditer(markdown):
        items = ITEM.findall(match[2])
        start = match[2].index(items[0]) if items else len(match[2])
        text = match[2][:start].strip()
        offered = "\n".join(item.partition(" — ")[0] for item in items)
        parts = [f"**{match[1]}** {text}".strip(), offered]
        found.append((match.start(), "\n\n".join(filter(None, parts))))
    for _, text in sorted(found):
        yield text


def stubs(cell: Cell) -> str:
    """What a cell that is exported asks for; of any other its imports."""
    if only_imports(cell):
        return cell.source
    lines = cell.source.splitlines()
    try:
        body = ast.parse(cell.source).body
    except SyntaxError:  # IPython's own syntax
        return ""
    if not any(tag.partition(":")[0] == "export" for tag in cell.tags):
        body = [node for node in body if is_import(node)]
    found: list[str] = []
    for node in body:
        gap = "\n\n" if found and _defines(node) else ""
        found.append(gap + _stub(node, lines))
    return "\n".join(found)


def _defines(node: ast.stmt) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.ClassDef))


def _stub(node: ast.stmt, lines: list[str]) -> str:
    """A statement without what is to be remembered."""
    if isinstance(node, ast.FunctionDef):
        return _function(node, lines)
    if isinstance(node, ast.ClassDef):
        return _class(node, lines)
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return _text(node.lineno, node.end_lineno, lines)
    if isinstance(node, ast.Assign):
        names = [ast.unparse(target) for target in node.targets]
        return f"{' = '.join(names)} = ..."
    if isinstance(node, ast.AnnAssign):
        kind = ast.unparse(node.annotation)
        return f"{ast.unparse(node.target)}: {kind} = ..."
    return ""


def _function(node: ast.FunctionDef, lines: list[str]) -> str:
    """Decorators, signature and docstring."""
    margin = " " * (node.col_offset + 4)
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    inner = node.body[0]
    if inner.lineno == node.lineno:  # all in one line
        return _text(first, node.lineno, lines)
    end = inner.lineno - 1
    if ast.get_docstring(node) is not None:
        end = inner.end_lineno or inner.lineno
    head = _text(first, end, lines)
    while head.splitlines()[-1].lstrip().startswith("#"):
        head = head.rpartition("\n")[0]  # a comment on the first line
    return f"{head}\n{margin}{EMPTY}"


def _class(node: ast.ClassDef, lines: list[str]) -> str:
    """Decorators, bases, docstring, fields, and each method's stub."""
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    docs = ast.get_docstring(node) is not None
    inner = node.body[0]
    end = (inner.end_lineno or 0) if docs else node.lineno
    parts = [_text(first, end, lines)]
    for part in node.body[docs:]:
        if isinstance(part, ast.FunctionDef):
            parts.append(f"\n{_function(part, lines)}")
        else:  # a field, with what it is when nobody sets it
            parts.append(_text(part.lineno, part.end_lineno, lines))
    return "\n".join(parts)


def _text(first: int, last: int | None, lines: list[str]) -> str:
    return "\n".join(lines[first - 1 : last])


def notebook_of(chapter: Chapter) -> Path:
    """Where the edition of a chapter is, from book/notebooks/."""
    return Path(FOLDER) / f"{chapter.name}.ipynb"
