"""What a chapter's outputs depend on, and nothing else.

The key of a chapter changes with its code, with the code of the package
that it uses (directly or not), with the data files that this code reads,
with the runs in data/runs that it opens and with the versions of what
computes and draws. Prose does not change it.
"""

from __future__ import annotations

import ast
import hashlib
import json
import platform
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from importlib import metadata
from pathlib import Path

from IPython.core.inputtransformer2 import TransformerManager

from press.chapters import Cell, Chapter
from press.modules import PACKAGE

RECIPE = 1  # raise it when execution itself changes
VERSIONS = ("torch", "numpy", "tokenizers", "matplotlib", "seaborn")
RUNS = "data/runs"
OPENS = r"(?:\bruns/|--run |\bPath\(['\"]){}\b"  # a run, in a page's code
COMMAND = "cli"  # the module behind the command line `annotated …`
# what the exporter writes around the code changes with headings: prose
GENERATED = re.compile(
    r'\A"""[\s\S]*?^"""\n'
    r"|^ *# (?:\d\d|[AE]\d{1,2})-[a-z0-9-]+\.md: .*\n(?: *#   .*\n)*",
    re.MULTILINE,
)


class Package:
    """The exported modules as they are on disk."""

    def __init__(self, root: Path) -> None:
        self.folder = root / PACKAGE

    @cached_property
    def sources(self) -> dict[str, str]:
        return {
            self._name(path): GENERATED.sub("", path.read_text("utf-8"))
            for path in sorted(self.folder.rglob("*.py"))
        }

    def _name(self, path: Path) -> str:
        """ "engine.packing"; a package by its name, the whole __init__."""
        parts = path.relative_to(self.folder).with_suffix("").parts
        if len(parts) > 1 and parts[-1] == "__init__":
            parts = parts[:-1]
        return ".".join(parts)

    @cached_property
    def data(self) -> dict[str, str]:
        return {
            path.name: path.read_text(encoding="utf-8")
            for path in sorted(self.folder.rglob("*.*"))
            if path.suffix in {".toml", ".json", ".tsv"}
        }

    @cached_property
    def runs(self) -> dict[str, str]:
        """A hash of each run that is shipped, by its name."""
        runs: dict[str, str] = {}
        for path in sorted((self.folder.parent / RUNS).glob("*/*")):
            if path.suffix != ".md":
                data = runs.get(path.parent.name, "").encode()
                data += path.read_bytes()
                runs[path.parent.name] = hashlib.sha256(data).hexdigest()
        return runs

    @cached_property
    def edges(self) -> dict[str, set[str]]:
        return {
            name: self.loaded(imported(ast.parse(text)))
            for name, text in self.sources.items()
        }

    def loaded(self, names: Iterable[str]) -> set[str]:
        """The modules that dotted names load, and the packages around."""
        return {
            prefix
            for name in names
            for prefix in _prefixes(name)
            if prefix in self.sources
        }

    def closure(self, names: set[str]) -> list[str]:
        found: set[str] = set()
        todo = self.loaded(names)
        todo |= {"__init__"} & set(self.sources) if todo else set()
        while todo:
            name = todo.pop()
            found.add(name)
            todo |= self.edges[name] - found
        return sorted(found)


def _prefixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def key(chapter: Chapter, package: Package) -> str:
    """A hash: equal keys, equal outputs."""
    code = [(cell.source, _matters(cell)) for cell in chapter.code]
    run = [*chapter.code, *chapter.claims]
    modules = package.closure({m for c in run for m in used_by(c)})
    texts = [package.sources[name] for name in modules]
    everything = "\n".join([*texts, *(source for source, _ in code)])
    parts = [
        RECIPE,
        code,
        list(zip(modules, texts, strict=True)),
        [item for item in package.data.items() if item[0] in everything],
        platform.python_version(),
        [_version(name) for name in VERSIONS],
        *[(cell.number, cell.source) for cell in chapter.claims],
        *_opened(run, package),
    ]
    data = json.dumps(parts, sort_keys=True).encode()
    return hashlib.sha256(data).hexdigest()


def _opened(cells: Iterable[Cell], package: Package) -> list[str]:
    """Of each run that cells open, its hash."""
    text = "\n".join(cell.source for cell in cells)
    return [
        digest
        for name, digest in package.runs.items()
        if re.search(OPENS.format(re.escape(name)), text)
    ]


def _matters(cell: Cell) -> list[str]:
    """The tags that change what is executed."""
    return sorted({"raises-exception", "skip-execution"} & set(cell.tags))


def _version(name: str) -> str:
    try:
        return f"{name} {metadata.version(name)}"
    except metadata.PackageNotFoundError:
        return f"{name} none"


def used_by(cell: Cell) -> Iterator[str]:
    """The modules of the package that a cell imports or names.

    Strings count where they are run, not exported: they may be programs
    for a subprocess or lines for a shell, where `annotated train …` means
    the command line.
    """
    # without IPython's syntax: magics become calls with strings
    code = TransformerManager().transform_cell(cell.source)
    try:
        tree = ast.parse(code)
    except SyntaxError:  # the execution will say so, with its place
        return
    yield from imported(tree)
    if any(tag.startswith("export") for tag in cell.tags):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _named_in(node.value)


def imported(tree: ast.Module) -> Iterator[str]:
    """The modules of the package that code imports, wherever it does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield from _named_in(f"{name.name}.")
        elif isinstance(node, ast.ImportFrom) and node.module:
            top, _, rest = node.module.partition(".")
            if top == PACKAGE:
                for name in node.names:
                    yield ".".join(filter(None, (rest, name.name)))


def _named_in(text: str) -> Iterator[str]:
    """Modules in `annotated.model`, `from annotated import model` …"""
    yield from re.findall(rf"\b{PACKAGE}\.([a-z]\w*(?:\.\w+)*)", text)
    for names in re.findall(rf"\bfrom {PACKAGE} import ([\w, ]+)", text):
        yield from re.findall(r"\w+", names)
    command = rf"(^|[\s;&|(/]){PACKAGE}\s+[a-z-]|-m\s+{PACKAGE}\b"
    if text == PACKAGE or re.search(command, text):
        yield COMMAND
