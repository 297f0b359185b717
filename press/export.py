"""Assemble annotated/*.py from the cells that are tagged `export`."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import tomli

from press import files
from press.chapters import COLUMNS, Chapter, PressError, read_book
from press.exercises import package_data
from press.modules import (
    MOVING,
    PACKAGE,
    Block,
    Import,
    Module,
    collect,
    continues,
    packages_of,
    path_of,
    target_of,
)
from press.paper import paper_map
from press.refuse import Place, check_cells, check_modules, check_names
from press.study import questions_data

MARK = "Exported from the book; edit the chapter, then run `make export`."
TRAVELS = "pocket"  # of data/runs, the run that is part of the package


def export(root: Path, check: bool = False) -> list[str]:
    """Write annotated/ (or, to check, say what has drifted)."""
    folder = root / PACKAGE
    expected = expected_package(root)
    skip = {"__pycache__", ".ipynb_checkpoints"}
    present = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and not skip & set(path.relative_to(folder).parts)
        and path.parent != root / MOVING
    ]
    if check:
        return files.drift(expected, present, root)
    return files.write(expected, present, _is_ours, root)


def expected_package(root: Path) -> dict[Path, str | bytes]:
    """Every file of annotated/ and what it holds."""
    chapters = read_book(root)
    modules = assemble(chapters)
    packages = packages_of(modules)
    for name in packages - modules.keys():
        modules[name] = f'"""{MARK}"""\n'
    for name, text in _introductions(root, chapters).items():
        if name in modules:
            modules[name] = modules[name].replace(MARK, text, 1)
    texts: dict[str, str | bytes] = {
        path_of(name, packages): modules[name] for name in modules
    }
    texts["py.typed"] = ""
    shipped = root / "data" / "runs"
    for path in sorted(shipped.glob(f"{TRAVELS}/*")):
        texts[f"runs/{path.relative_to(shipped).as_posix()}"] = (
            path.read_bytes()
        )
    registry = root / "data" / "registry.toml"
    if registry.is_file():
        text = registry.read_text(encoding="utf-8")
        texts["registry.toml"] = text
    if "pocket" in packages:  # its lexicon
        for path in sorted((root / "data/pocket/tables").glob("*.tsv")):
            texts[f"pocket/{path.name}"] = path.read_text(encoding="utf-8")
    if ledger := sorted((root / "book" / "results").glob("*.json")):
        texts["book/results.json"] = _ledger(ledger)
    if (paper := paper_map(root)) is not None:
        texts["book/paper.json"] = paper
    if (exercises := package_data(root)) is not None:
        texts["exercises.json"] = exercises
    if (questions := questions_data(root)) is not None:
        texts["questions.json"] = questions
    return {root / PACKAGE / name: texts[name] for name in sorted(texts)}


def assemble(chapters: list[Chapter]) -> dict[str, str]:
    """The text of each module; PressError with all that is refused."""
    modules, problems = collect(chapters)
    problems += check_cells(modules, chapters)
    if not problems:
        problems += check_modules(modules)
    if not problems:
        rendered = {n: render(m) for n, m in modules.items()}
        texts, problems = check_names(rendered, modules)
    if problems:
        raise PressError(*sorted(set(problems), key=_order))
    return texts


def _order(problem: str) -> tuple[str, int, str]:
    """By chapter and cell."""
    match = re.match(r"book/(\S+), .*?code cell (\d+)", problem)
    file, number = match.groups() if match else ("", "0")
    return (file, int(number), problem)


# --- the text of a module -------------------------------------------------


def render(module: Module) -> tuple[list[str], list[Place]]:
    """The lines of annotated/NAME.py, and the place of each line.

    Its imports are still in the order of the book.
    """
    lines = [f'"""{MARK}"""']
    if module.imports:
        lines += ["", *map(_import, module.imports)]
    names = [name for block in module.blocks for name in block.names]
    public = [n for n in names if n[0] != "_" or n == "__version__"]
    gap = ["", ""]
    if module.name == "__main__":
        gap = [""]  # a program, whose call stands right below its imports
    elif public:
        lines += ["", *_public(public)]
    elif module.blocks:
        lines += ["", "__all__: list[str] = []"]
    origin: list[Place] = [None] * len(lines)
    sections = groupby(filter(lambda b: b.body, module.blocks), _section)
    for section, blocks in sections:
        comment = _comment(section)
        for block in blocks:
            lines += [*gap, *comment]
            origin += [None] * (len(gap) + len(comment))
            gap, comment = ["", ""], []
            for line, place in _whole(block, module):
                lines.append(line)
                origin.append(place)
    return lines, origin


def _whole(block: Block, module: Module) -> Iterator[tuple[str, Place]]:
    """The body of a block, in which classes are whole."""
    ends = {
        node.end_lineno: module.parts.get(node.name, [])
        for node in block.classes
        if not continues(node)
    }
    for row, line in block.body:
        yield line, (block, row)
        section = _section(block)
        for part, node in ends.get(row, []):
            yield "", None
            if _section(part) != section:
                section = _section(part)
                for comment in _comment(section, "    "):
                    yield comment, None
            for number, text in part.part(node):
                yield text, (part, number)


def _section(block: Block) -> tuple[str, str]:
    return block.cell.file, block.cell.heading


def _comment(section: tuple[str, str], indent: str = "") -> list[str]:
    """Where the code below it stands in the book."""
    text = f"{section[0]}: {_plain(section[1])}"
    return _wrap(text, f"{indent}# ", f"{indent}#   ")


def _plain(title: str) -> str:
    """A heading without its markup, safe in a comment."""
    return re.sub(r"[`*$\\\\\"]", "", title)


def _wrap(text: str, first: str, rest: str) -> list[str]:
    return textwrap.wrap(
        text, COLUMNS, initial_indent=first, subsequent_indent=rest
    )


def _import(item: Import) -> str:
    """One statement; ruff merges and sorts them."""
    alias = f" as {item.alias}" if item.alias else ""
    if item.name is None:
        return f"import {item.module}{alias}"
    return f"from {item.module} import {item.name}{alias}"


def _public(names: list[str]) -> list[str]:
    """__all__ on one line, or on lines that are full: ruff would give each
    name its own.
    """
    text = ", ".join(f'"{name}"' for name in names)
    one = f"__all__ = [{text}]"
    if len(one) <= COLUMNS:
        return [one]
    return [
        "__all__ = [",
        *_wrap(f"{text},", *["    "] * 2),
        "]  # fmt: skip",
    ]


# --- rooms ----------------------------------------------------------------


def _introductions(root: Path, chapters: list[Chapter]) -> dict[str, str]:
    """The docstring of each room's package: what pyproject.toml has under
    [tool.annotated.about], and its modules with the pages they begin on.
    """
    file = root / "pyproject.toml"
    project = tomli.loads(file.read_text("utf-8")) if file.is_file() else {}
    about = project.get("tool", {}).get("annotated", {}).get("about", {})
    begins: dict[str, str] = {}
    for chapter in chapters:
        for target in (target_of(cell, chapter) for cell in chapter.code):
            if target is not None:
                begins.setdefault(target, chapter.number)
    texts = {}
    for room, text in about.items():
        named = (
            f"{target.rpartition('.')[2]} ({page})"
            for target, page in begins.items()
            if room == (target.rpartition(".")[0] or "story")
            and target not in about
            and target[:2] != "__"
        )
        parts = (text, f"In the order of the book: {', '.join(named)}.")
        name = "__init__" if room == "story" else room
        texts[name] = (
            "\n\n".join(
                textwrap.fill(part, COLUMNS - 3) for part in (*parts, MARK)
            )
            + "\n"
        )
    return texts


# --- data that the package carries ----------------------------------------


def _ledger(paths: list[Path]) -> str:
    """All runs in one object, by the names of their files, a line each."""
    runs, problems = {}, []
    for path in paths:
        try:
            runs[path.stem] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            problems.append(f"book/results/{path.name}: {error}")
    if problems:
        raise PressError(*problems)
    one = json.JSONEncoder(
        sort_keys=True, ensure_ascii=False, separators=(",", ":")
    )
    lines = [
        f'"{name}":{one.encode(run)}' for name, run in sorted(runs.items())
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _is_ours(path: Path) -> bool:
    """Whether the press wrote this file, so that it may remove it."""
    data = {
        "registry.toml", "results.json", "paper.json", "exercises.json",
        "questions.json", "py.typed",
    }  # fmt: skip
    if path.name in data or path.match("pocket/*.tsv"):
        return True
    if path.match("runs/*/*"):
        return True
    return path.suffix == ".py" and MARK in path.read_text("utf-8")
