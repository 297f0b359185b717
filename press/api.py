"""The reference: an entry for every public name of the package.

What an entry says is read, and nothing is imported: signature, docstring
and lines from the exported modules, page and heading from the cells, the
parts of the paper from its map, and the tests that name it from tests/.
"""

from __future__ import annotations

import ast
import copy
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from mdit_py_plugins.anchors.index import slugify

from press.chapters import Chapter, PressError
from press.modules import (
    PACKAGE,
    Block,
    Module,
    collect,
    continues,
    own,
    packages_of,
    path_of,
)
from press.numbers import number_of
from press.paper import address
from press.project import Project

STORY, ENGINE, NAMES = "api-story", "api-engine", "api-names"
# of the sub-packages, and of what lies in none: a line for each
ROOMS = {
    "engine": "What trains, searches and translates: packing and kernels, "
    "the trainer, checkpoints, processes, runs.",
    "corpora": "Text, from a file to ids: reading, cleaning, tokenizers, "
    "prepared corpora, treebanks, downloads.",
    "exchange": "Weights in and out: published models read and written, "
    "and exports for other engines.",
    "commands": "The command line, a module for each family of verbs.",
    "school": "What teaches and judges: exercises, milestones, the "
    "terminal, marks of a whole class.",
    "pocket": "The small language: its words, its grammar, its sentences.",
    "book": "What only the pages need: plots, figures that move, the "
    "running example, the ledger of results.",
    "": "The command itself, and the door by which a notebook comes to "
    "the exercises.",
}
SHOWN = 5  # tests of an entry that are named
FILES = 3  # and their files
LONG = 70  # characters of a constant's value
Definition = ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign
# the comments by which the exporter says where code stands in the book
GENERATED = re.compile(r" *# (?:(?:\d\d|[AE]\d{1,2})-[\w-]+\.md: |  )")
SPECIAL = re.compile(r"([\\`*_{}\[\]<>$|~#@])")
# what is code in a docstring: quoted words, shapes, names with joints
CODE = re.compile(
    r"`(?P<ticked>[^`]+)`"
    r"|(?P<quoted>(?<!\w)\"[^\"\n]{1,40}\")"
    r"|(?P<shape>\((?:…|\.\.\.|\w+(?: ?[+·*/-] ?\w+)*)"
    r"(?:, (?:…|\.\.\.|\w+(?: ?[+·*/-] ?\w+)*))*,?\))"
    r"|(?P<name>\b[A-Za-z]\w*(?:\.\w+)*\b)"
)
BOUND = {"self", "cls"}
# before an argument's name they say that it is a word like any other
ARTICLES = re.compile(
    r"\b(?:an?|the|of|one|each|every|its|their|all|two|no|any|other|this|in"
    r"|to|with|by|for|per|or|and|as|from|at|on|not)\s+$",
    re.I,
)


@dataclass(frozen=True)
class Source:
    """One exported module, as it is on disk."""

    name: str  # "engine.packing"
    path: str  # "annotated/engine/packing.py"
    lines: tuple[str, ...]
    tree: ast.Module

    @cached_property
    def defined(self) -> dict[str, Definition]:
        """What stands at the top of the module, by its name."""
        found: dict[str, Definition] = {}
        for node in self.tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found[node.name] = node
            elif isinstance(node, ast.AnnAssign):
                found[ast.unparse(node.target)] = node
            elif isinstance(node, ast.Assign):
                for name in ast.walk(node.targets[0]):
                    if isinstance(name, ast.Name):
                        found[name.id] = node
        return found

    def comment(self, node: ast.stmt) -> str:
        """What a comment says of a constant or a field."""
        beside = self.lines[(node.end_lineno or 1) - 1]
        beside = beside.encode()[node.end_col_offset or 0 :].decode()
        if (found := re.match(r"\s+# (?!fmt:)(.+)", beside)) is not None:
            return found[1]
        above: list[str] = []
        for line in reversed(self.lines[: node.lineno - 1]):
            if not line.strip().startswith("# ") or GENERATED.match(line):
                break
            above.insert(0, line.strip()[2:])
        return " ".join(above)


@dataclass(frozen=True)
class Entry:
    """A public name."""

    name: str  # "Trainer"
    source: Source
    blocks: tuple[Block, ...]  # the cells that build it
    node: Definition
    parts: tuple[str, ...] = ()  # of the paper
    tests: tuple[tuple[str, str], ...] = ()  # file and name
    bases: tuple[Definition, ...] = ()  # in the package

    @property
    def whole(self) -> str:
        return f"{PACKAGE}.{self.source.name}.{self.name}"

    @property
    def kind(self) -> str:
        kinds = {ast.FunctionDef: "function", ast.ClassDef: "class"}
        return kinds.get(type(self.node), "data")

    @property
    def doc(self) -> str:
        if isinstance(self.node, (ast.FunctionDef, ast.ClassDef)):
            return ast.get_docstring(self.node) or ""
        return self.source.comment(self.node)

    @property
    def methods(self) -> list[ast.FunctionDef]:
        body = self.node.body if isinstance(self.node, ast.ClassDef) else []
        return [
            node
            for node in body
            if isinstance(node, ast.FunctionDef)
            and (node.name[0] != "_" or node.name == "__call__")
            and "overload" not in map(ast.unparse, node.decorator_list)
            and not any(
                "setter" in ast.unparse(d) for d in node.decorator_list
            )
        ]


@dataclass
class Reference:
    """All entries, and the pages that show them."""

    root: Path
    chapters: list[Chapter]
    project: Project
    paper: list[dict[str, Any]]
    modules: dict[str, Module] = field(init=False)
    known: dict[str, dict[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.modules, problems = collect(self.chapters)
        if problems:
            raise PressError(*problems)

    @cached_property
    def sources(self) -> dict[str, Source]:
        packages = packages_of(self.modules)
        found = {}
        for name, module in self.modules.items():
            public = [n for n in module.names if n[0] != "_"]
            if name.startswith("__") or not public:
                continue
            path = f"{PACKAGE}/{path_of(name, packages)}"
            try:
                text = (self.root / path).read_text(encoding="utf-8")
            except OSError:
                raise PressError(
                    f"{path} is missing: make export"
                ) from None
            found[name] = Source(
                name, path, tuple(text.splitlines()), ast.parse(text)
            )
        return found

    @cached_property
    def entries(self) -> dict[str, list[Entry]]:
        """By module, in the order in which the book makes them."""
        tests = naming_tests(self.root)
        parts: dict[str, list[str]] = {}
        proofs: dict[str, list[tuple[str, str]]] = {}
        for item in self.paper:
            for line in item["covered"]:
                if symbol := line.get("symbol"):
                    parts.setdefault(symbol, []).append(str(item["item"]))
                    if line.get("test"):
                        file, name = line["test"].split("::")
                        proofs.setdefault(symbol, []).append((file, name))
        found: dict[str, list[Entry]] = {}
        for name, source in self.sources.items():
            module = self.modules[name]
            for symbol, block in module.names.items():
                if symbol[0] == "_":
                    continue
                if symbol not in source.defined:
                    raise PressError(
                        f"{source.path} has no {symbol}: make export"
                    )
                whole = f"{PACKAGE}.{name}.{symbol}"
                more = [part for part, _ in module.parts.get(symbol, [])]
                found.setdefault(name, []).append(
                    Entry(
                        symbol,
                        source,
                        (block, *more),
                        source.defined[symbol],
                        tuple(dict.fromkeys(_of(parts, whole))),
                        tuple(
                            dict.fromkeys(
                                [*_of(proofs, whole), *tests.get(whole, ())]
                            )
                        ),
                    )
                )
        order = {
            name: [e.blocks[0].chapter for e in entries]
            for name, entries in found.items()
        }
        return {
            name: sorted(found[name], key=lambda e: e.node.lineno)
            for name in sorted(found, key=lambda name: min(order[name]))
        }

    def room(self, name: str) -> str:
        """Where a module's first cell stands."""
        chapter = self.entries[name][0].blocks[0].chapter
        return self.chapters[chapter].room

    # --- pages ---

    def pages(self) -> dict[str, str]:
        """The pages of the reference, by their files."""
        if not self.entries:
            return {}
        rooms: dict[str, list[str]] = {}
        for name in self.entries:
            rooms.setdefault(self.room(name), []).append(name)
        found = {}
        if "story" in rooms:
            found[f"{STORY}.md"] = self._list(
                "Reference: the story",
                "What each chapter of the story adds to the package: the "
                "plain forms, in the order of the book.",
                rooms["story"],
            )
        if "engine" in rooms:
            found[f"{ENGINE}.md"] = self._list(
                "Reference: the engine room",
                "What makes the plain forms fast, large, safe or "
                "convenient, room by room.",
                sorted(rooms["engine"], key=_place),
                rooms=True,
            )
        found[f"{NAMES}.md"] = self._names()
        for name in self.entries:
            found[f"{PACKAGE}.{name}.md"] = self._module(name)
        return found

    def _list(
        self, title: str, about: str, names: list[str], rooms: bool = False
    ) -> str:
        """Modules with their names, and what each of them is."""
        lines = [f"# {title}", "", about, ""]
        files = "\n".join(f"{PACKAGE}.{name}" for name in names)
        seen = None
        for name in names:
            if rooms and (room := _room(name)) != seen:
                seen = room
                head = f"`{PACKAGE}.{room}`" if room else f"`{PACKAGE}`"
                lines += [f"## {head}", "", ROOMS[room], ""]
            mark = "###" if rooms else "##"
            lines += [
                f"{mark} [`{PACKAGE}.{name}`]({PACKAGE}.{name}.md)",
                "",
                f"From {self._built(name)}.",
                "",
                "{.api-names}",
            ]
            for entry in self.entries[name]:
                about = _first(entry.doc)
                lines.append(
                    f"- {_role(entry.whole)}"
                    + (f": {marked(about)}" if about else "")
                )
            lines.append("")
        # below a heading the pages would belong to that module's
        tree = ["```{toctree}", ":hidden:", "", files, "```", ""]
        return "\n".join([*lines[:4], *tree, *lines[4:]])

    def _names(self) -> str:
        """Every name and every method, by its first letter; a name that
        several have is said once.
        """
        rows: dict[str, dict[str, list[str]]] = {}
        for entries in self.entries.values():
            for entry in entries:
                own = [(entry.name, entry.whole)]
                own += [
                    (node.name, f"{entry.whole}.{node.name}")
                    for node in entry.methods
                ]
                for short, whole in own:
                    letter = short.lstrip("_")[0].upper()
                    named = rows.setdefault(letter, {})
                    named.setdefault(short, []).append(whole)
        lines = [
            "# Index of names",
            "",
            "Everything that the package offers by name, with the module "
            "or the class that has it.",
            "",
        ]
        for letter in sorted(rows):
            lines += [f"## {letter}", "", "{.api-index}"]
            for short, places in sorted(
                rows[letter].items(), key=lambda row: (row[0].lower(), row)
            ):
                lines.append(f"- {_listed(short, sorted(places))}")
            lines.append("")
        return "\n".join(lines)

    def _module(self, name: str) -> str:
        source = self.sources[name]
        room = self.room(name)
        up, what = {
            "story": (STORY, "the story"),
        }.get(room, (ENGINE, "the engine room"))
        address = self.project.source(source.path)
        lines = [
            f"# `{PACKAGE}.{name}`",
            "",
            f"A module of [{what}]({up}.md), from {self._built(name)}; "
            f"[`{source.path}`]({address}).",
            "",
            f"```{{py:module}} {PACKAGE}.{name}",
            "```",
            "",
        ]
        for entry in self.entries[name]:
            lines += self._entry(entry)
        return "\n".join(lines) + "\n"

    def _built(self, name: str) -> str:
        """The pages whose cells make a module."""
        places = sorted({b.chapter for b in self.modules[name].blocks})
        links = [
            f"[{_numbered(self.chapters[place])}]"
            f"({self.chapters[place].name}.ipynb)"
            for place in places
        ]
        return " and ".join(
            filter(None, [", ".join(links[:-1]), links[-1]])
        )

    # --- links to entries ---

    def links(self) -> dict[str, str]:
        """What code in prose may say, and the only entry that this names.

        A plain word may be an argument or a command as well: press.pages
        asks what it is on the page.
        """
        whole = {
            entry.whole: entry
            for entries in self.entries.values()
            for entry in entries
        }
        meant: dict[str, set[str]] = {}

        def add(name: str, target: str) -> None:
            meant.setdefault(name, set()).add(target)

        for target, entry in whole.items():
            module = entry.source.name
            for node in entry.methods:
                method = f"{entry.name}.{node.name}"
                add(method, f"{target}.{node.name}")
                add(f"{method}()", f"{target}.{node.name}")
            add(target, target)
            add(f"{entry.name}()", target)
            add(entry.name, target)
            if "." in module or not entry.name.islower():
                add(f"{module}.{entry.name}", target)
        for name in self.sources:
            target = f"{PACKAGE}.{name}"
            add(target, target)
            if "." in name:
                add(name, target)
        return {
            name: min(targets)
            for name, targets in sorted(meant.items())
            if len(targets) == 1
        }

    # --- an entry ---

    def _entry(self, entry: Entry) -> Iterator[str]:
        node, kind = entry.node, entry.kind
        options = [f":module: {PACKAGE}.{entry.source.name}"]
        signature = entry.name
        names: set[str] = set()
        if isinstance(node, ast.FunctionDef):
            signature += self._signature(entry, node)
            names = _arguments(node)
        elif isinstance(node, ast.ClassDef):
            text, names = self._construction(entry, node)
            signature += text
        else:
            value = ast.unparse(node.value) if node.value else ""
            if len(value) > LONG:
                value = value[:LONG].rsplit(" ", 1)[0] + " …"
            options += [f":value: {_quoted(value)}"] if value else []
            if isinstance(node, ast.AnnAssign):
                annotation = ast.unparse(node.annotation)
                options.insert(1, f":type: {_quoted(annotation)}")
        yield f"::::::{{py:{kind}}} {signature}"
        yield from options
        yield ""
        yield marked(entry.doc, names)
        yield ""
        if isinstance(node, ast.ClassDef):
            yield from self._fields(entry, node)
        yield from self._facts(entry)
        yield ""
        for method in entry.methods:
            yield from self._method(entry, method)
        yield "::::::"
        yield ""

    def _method(self, entry: Entry, node: ast.FunctionDef) -> Iterator[str]:
        marks = {ast.unparse(d) for d in node.decorator_list}
        property = marks & {"property", "cached_property"}
        property |= {m for m in marks if m.endswith(".cached_property")}
        options = [f":module: {PACKAGE}.{entry.source.name}"]
        signature = node.name
        if property:
            kind = "property"
            if node.returns:
                returns = self._resolved(entry.source, node.returns)
                options.append(f":type: {_quoted(returns)}")
        else:
            kind = "method"
            options += [
                f":{mark}:"
                for mark in ("classmethod", "staticmethod")
                if mark in marks
            ]
            signature += self._signature(
                entry, node, bound="staticmethod" not in marks
            )
        yield f":::::{{py:{kind}}} {entry.name}.{signature}"
        yield from options
        yield ""
        yield marked(ast.get_docstring(node) or "", _arguments(node))
        yield ":::::"
        yield ""

    def _facts(self, entry: Entry) -> Iterator[str]:
        """Where it is built, what of the paper it is, its tests, source."""
        yield "{.api-facts}"
        places = dict.fromkeys(
            (block.cell.file, block.cell.heading, block.chapter)
            for block in entry.blocks
        )
        links = [
            f"[{_numbered(self.chapters[place], heading)}]"
            f"({file.removesuffix('.md')}.ipynb"
            f"{self._anchor(self.chapters[place], heading)})"
            for file, heading, place in places
        ]
        yield f"- **Built in** {', '.join(links)}"
        if entry.parts:
            links = [f"[{part_name(p)}]({address(p)})" for p in entry.parts]
            yield f"- **Paper** {', '.join(links)}"
        if entry.tests:
            shown = [
                f"[`{name}`]({self.project.source(file)})"
                for file, name in entry.tests[:SHOWN]
            ]
            line = f"- **Tests** {', '.join(shown)}"
            if rest := entry.tests[SHOWN:]:
                files = dict.fromkeys(file for file, _ in rest)
                where = ", ".join(
                    f"[`{Path(file).name}`]({self.project.source(file)})"
                    for file in files
                )
                if len(files) > FILES:
                    where = f"{len(files)} files"
                line += f", and {len(rest)} more in {where}"
            yield line
        node = entry.node
        first, last = node.lineno, node.end_lineno or node.lineno
        link = self.project.source(entry.source.path)
        lines = (
            f"lines {first} to {last}" if last > first else f"line {first}"
        )
        yield f"- **Source** [{lines}]({link}#L{first}-L{last})"

    def _anchor(self, chapter: Chapter, heading: str) -> str:
        """Of a section; of a page's first, none is needed."""
        if heading == chapter.title or not heading:
            return ""
        return f"#{slugify(_shown(heading))}"

    def _fields(self, entry: Entry, node: ast.ClassDef) -> Iterator[str]:
        """The fields of which a comment says something."""
        rows = [
            (each, entry.source.comment(each))
            for each in node.body
            if isinstance(each, ast.AnnAssign)
            and not ast.unparse(each.target).startswith("_")
        ]
        told = [(each, text) for each, text in rows if text]
        if told:
            yield "{.api-fields}"
        for each, text in told:
            yield f"- `{ast.unparse(each.target)}`: {marked(text)}"
        if told:
            yield ""

    # --- signatures ---

    def _construction(
        self, entry: Entry, node: ast.ClassDef
    ) -> tuple[str, set[str]]:
        """How an object of a class is made."""
        for each in node.body:
            if (
                isinstance(each, ast.FunctionDef)
                and each.name == "__init__"
            ):
                text = self._signature(entry, each).partition(" -> ")[0]
                return text, _arguments(each)
        fields = self._data(entry.source, node)
        if fields:
            text = ", ".join(
                f"{name}: {annotation}"
                + (f" = {default}" if default else "")
                for name, (annotation, default) in fields.items()
            )
            return f"({text})", set(fields)
        for base in self._bases(entry.source, node):
            source, above = base
            if isinstance(above, ast.ClassDef):
                near = Entry(above.name, source, entry.blocks, above)
                return self._construction(near, above)
        return "", set()

    def _data(
        self, source: Source, node: ast.ClassDef
    ) -> dict[str, tuple[str, str]]:
        """The fields of a dataclass or named tuple, inherited ones too."""
        found: dict[str, tuple[str, str]] = {}
        for above, base in self._bases(source, node):
            if isinstance(base, ast.ClassDef):
                found |= self._data(above, base)
        marks = [ast.unparse(d) for d in node.decorator_list]
        marks += [ast.unparse(b) for b in node.bases]
        if not any("dataclass" in m or "NamedTuple" in m for m in marks):
            return found
        for each in node.body:
            if not isinstance(each, ast.AnnAssign):
                continue
            default = ast.unparse(each.value) if each.value else ""
            if "init=False" in default or "ClassVar" in ast.unparse(each):
                continue
            if default.startswith(("field(", "dataclasses.field(")):
                default = "…"
            annotation = self._resolved(source, each.annotation)
            found[ast.unparse(each.target)] = annotation, default
        return found

    def _bases(
        self, source: Source, node: ast.ClassDef
    ) -> Iterator[tuple[Source, Definition]]:
        for base in node.bases:
            name = self._full(source).get(ast.unparse(base), "")
            module, _, symbol = name.rpartition(".")
            above = self.sources.get(module.removeprefix(f"{PACKAGE}."))
            if above and symbol in above.defined:
                yield above, above.defined[symbol]

    def _signature(
        self, entry: Entry, node: ast.FunctionDef, bound: bool = True
    ) -> str:
        arguments = copy.deepcopy(node.args)
        if bound and arguments.args and arguments.args[0].arg in BOUND:
            del arguments.args[0]
        for each in ast.walk(arguments):
            if isinstance(each, ast.arg) and each.annotation:
                each.annotation = self._whole(entry.source, each.annotation)
        text = f"({ast.unparse(arguments)})"
        if node.returns is not None:
            text += f" -> {self._resolved(entry.source, node.returns)}"
        return text

    def _resolved(self, source: Source, node: ast.expr) -> str:
        return ast.unparse(self._whole(source, node))

    def _whole(self, source: Source, node: ast.expr) -> ast.expr:
        """An annotation in which our own names are whole."""
        full = self._full(source)

        class Whole(ast.NodeTransformer):
            def visit_Name(self, name: ast.Name) -> ast.expr:
                return ast.Name(full.get(name.id, name.id), ast.Load())

        return cast(ast.expr, Whole().visit(copy.deepcopy(node)))

    def _full(self, source: Source) -> dict[str, str]:
        """Whole names by what a module calls them."""
        if source.name in self.known:
            return self.known[source.name]
        found = {
            name: f"{PACKAGE}.{source.name}.{name}"
            for name in source.defined
            if name[0] != "_"
        }
        for block in self.modules[source.name].blocks:
            for item in block.imports:
                module, name = own(item, self.modules) or ("", None)
                if name and name[0] != "_" and module in self.sources:
                    found[item.bound] = f"{PACKAGE}.{module}.{name}"
        self.known[source.name] = found
        return found


def _of(rows: dict[str, list[Any]], whole: str) -> list[Any]:
    """What the map says of a name, or of a method of it."""
    return [
        value
        for name, values in rows.items()
        if name == whole or name.startswith(f"{whole}.")
        for value in values
    ]


def _room(name: str) -> str:
    """The room that a module lies in, "" for none."""
    top = name.partition(".")[0]
    return top if top in ROOMS else ""


def _place(name: str) -> int:
    """The engine first, what lies in no room last."""
    return list(ROOMS).index(_room(name))


def _arguments(node: ast.FunctionDef) -> set[str]:
    return {
        each.arg
        for each in ast.walk(node.args)
        if isinstance(each, ast.arg)
    }


def _quoted(text: str) -> str:
    """A value of an option, whatever it holds."""
    return json.dumps(text, ensure_ascii=False)


# --- words ----------------------------------------------------------------


def _plain(text: str) -> str:
    return SPECIAL.sub(r"\\\1", text)


def _first(doc: str) -> str:
    """The first paragraph; of a long one its first sentence."""
    text = " ".join(doc.split("\n\n")[0].split())
    found = re.match(r".{40,}?[.](?= [A-Z])", text)
    return found[0] if found and len(text) > 120 else text


def marked(doc: str, arguments: set[str] | None = None) -> str:
    """A docstring as Markdown: shapes, names and values are code, sections
    of the paper are links.
    """

    def code(match: re.Match[str]) -> str:
        text = match[0]
        if match["ticked"]:
            return text
        if match["name"]:
            joined = "_" in text or re.search(r"[a-z]\.[a-z]|\d", text)
            given = text in (arguments or ()) and not (
                len(text) > 3
                and ARTICLES.search(match.string[: match.start()])
            )
            named = re.fullmatch(r"[A-Z][a-z]+[A-Z]\w*", text)
            constant = text in {"None", "True", "False", "NaN"}
            if not (joined or named or constant or given):
                return _plain(text)
        if match["shape"] and not re.search(r"[,…_]|\b\w\b", text):
            return _plain(text)
        return f"`{text}`"

    blocks = []
    for block in doc.split("\n\n"):
        out, done = [], 0
        text = " ".join(block.split()).replace(" -> ", " → ")
        for match in CODE.finditer(text):
            out += [_plain(text[done : match.start()]), code(match)]
            done = match.end()
        text = "".join([*out, _plain(text[done:])])
        text = re.sub(r"^([-+:=]|\d+[.)])", r"\\\1", text)
        blocks.append(re.sub(r"§(\d(?:\.\d)*)", _section, text))
    return "\n\n".join(blocks)


def _section(match: re.Match[str]) -> str:
    return f"[§{match[1]}]({address(match[1])})"


def part_name(item: str) -> str:
    """`3.2.1 p4` as one would say it."""
    text = re.sub(r"^(\d(?:\.\d)*)", r"§\1", item)
    text = re.sub(r" p(\d+)$", r" paragraph \1", text)
    for short, word in (
        (r"^eq (\d)", r"equation \1"),
        (r" eq$", " equation"),
        (r"^fn ", "footnote "),
        (r"^fig ", "Figure "),
        (r"^table ", "Table "),
    ):
        text = re.sub(short, word, text)
    return _plain(text)


def _listed(short: str, places: list[str]) -> str:
    """A name of the index; what has it leads there, if several do."""
    owners = [place.rpartition(".")[0] for place in places]
    if len(places) == 1:
        owner = owners[0].removeprefix(f"{PACKAGE}.")
        return f"{{py:obj}}`{short} <{places[0]}>` *{_plain(owner)}*"
    links = (
        f"{{py:obj}}`{owner.rpartition('.')[2]} <{place}>`"
        for owner, place in zip(owners, places, strict=True)
    )
    return f"`{short}` *of* {', '.join(links)}"


def _role(whole: str) -> str:
    return f"{{py:obj}}`~{whole}`"


def _shown(heading: str) -> str:
    """A heading as it is read: MyST makes its anchor from that."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[`*$\\]", "", text)


def _numbered(chapter: Chapter, heading: str = "") -> str:
    number = number_of(chapter.name)
    start = f"{number} · " if number != "0" else ""
    title = (
        heading if heading and heading != chapter.title else chapter.title
    )
    return f"{start}{re.sub(r'[$]', '', title)}"


# --- tests ----------------------------------------------------------------


def naming_tests(root: Path) -> dict[str, list[tuple[str, str]]]:
    """The tests that name something of the package: (file, test)."""
    found: dict[str, list[tuple[str, str]]] = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        file = path.relative_to(root).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {
            item.asname or item.name: f"{node.module}.{item.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            and f"{node.module}.".startswith(f"{PACKAGE}.")
            for item in node.names
        }
        for test in tree.body:
            if not isinstance(test, ast.FunctionDef):
                continue
            if not test.name.startswith("test_"):
                continue
            named = dict.fromkeys(
                whole
                for node in ast.walk(test)
                for whole in _names(node, names)
            )
            for whole in named:
                found.setdefault(whole, []).append((file, test.name))
    return found


def _names(node: ast.AST, names: dict[str, str]) -> Iterator[str]:
    if isinstance(node, ast.Name):
        if node.id in names:
            yield names[node.id]
    elif isinstance(node, ast.Attribute):
        above = getattr(node.value, "id", None)
        if above in names:
            yield f"{names[above]}.{node.attr}"


def undocumented(block: Block) -> Iterator[str]:
    """Public functions and classes without a word: for press.rules."""
    for node in block.tree.body:
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            continue
        part = isinstance(node, ast.ClassDef) and continues(node)
        overload = any(
            ast.unparse(mark).endswith("overload")
            for mark in node.decorator_list
        )
        public = node.name[0] != "_" and not part and not overload
        if public and not ast.get_docstring(node):
            yield node.name
