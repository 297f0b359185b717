"""Figures that move: checked, and each joined with what it needs.

A module of book/figures/ imports nothing. A page that is opened from a
folder refuses modules, so the kit and the figure become one classic script,
which a notebook's output can carry as well. The package has the parts, so
that the kit is in it once; annotated.book.figures joins them as here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from press.chapters import PressError

FOLDER = "figures"  # in book/, and in the site's _static/
KIT = "kit"
HOSTED = f"\n{KIT}.host("  # in the part of a figure alone
# characters of a figure with what it needs: `learn` brings a model that
# trains, half of it, and what is read is less than one photograph
MOST = 48_000
NEEDS = re.compile(r"^// needs: (.*)$", re.M)
COMMENT = re.compile(r"^[ \t]*(?:/\*\*.*?\*/|//[^\n]*)\n", re.M | re.S)
EXPORTED = re.compile(
    r"^export (?:async )?(?:function|const|class) (\w+)", re.M
)
SPACE = '"http://www.w3.org/2000/svg"'  # a name, which is never asked for
REFUSED = {
    r"^export (?:const|let) \w+ = [^({\[`]*, *\w+ =": "exports two names",
    r"\bimport\b\s*[({*\w\"']|\brequire\(": "imports something",
    r"\bhttps?:|[\"'`]//": "holds an address",
    r"\beval\(|\bFunction\(": "runs text as code",
    r"\binnerHTML\b|\bdocument\.write\b": "writes HTML as text",
    r"\bfetch\(|\bXMLHttpRequest\b|\bWebSocket\b": "asks a host",
    r"\blocalStorage\b|\bcookie\b": "keeps something about a reader",
}


def parts(root: Path) -> dict[str, str]:
    """What the package has of each module of book/figures/: a constant that
    holds what it exports. The first line of a figure's names the others
    that come before it, the last hands it to the kit.
    """
    modules = {
        path.stem: path.read_text(encoding="utf-8")
        for path in sorted((root / "book" / FOLDER).glob("*.mjs"))
    }
    problems = [
        f"book/{FOLDER}/{name}.mjs {fault}"
        for name, text in modules.items()
        for fault in _faults(name, text, modules)
    ]
    if problems:
        raise PressError(*problems)
    return {name: _part(name, text) for name, text in modules.items()}


def scripts(root: Path) -> dict[str, str]:
    """The classic script of each figure, by its name."""
    whole, problems = parts(root), []
    figures = [name for name, text in whole.items() if HOSTED in text]
    joined = {name: join(whole, name) for name in figures}
    for name, text in joined.items():
        if len(text) > MOST:
            problems.append(
                f"book/{FOLDER}/{name}.mjs has, with what it needs, "
                f"{len(text):,} characters; {MOST:,} are allowed"
            )
    if problems:
        raise PressError(*problems)
    return joined


def _is_figure(text: str) -> bool:
    return re.search(r"^export default \{", text, re.M) is not None


def needs(text: str) -> list[str]:
    """The modules that a figure is given besides the kit."""
    line = NEEDS.search(text)
    return re.split(r",\s*", line[1].strip()) if line else []


def _faults(name: str, text: str, modules: dict[str, str]) -> Iterator[str]:
    plain = text.replace(SPACE, '""')
    for row, line in enumerate(plain.splitlines(), 1):
        code = re.sub(r"^\s*(?://|/?\*).*", "", line)
        for pattern, fault in REFUSED.items():
            if re.search(pattern, code):
                yield f"{fault} in line {row}: {line.strip()}"
    if _is_figure(text) and KIT not in modules:
        yield f"is a figure, but there is no {KIT}.mjs"
    for other in needs(text):
        if other not in modules:
            yield f"needs {other}, which is not there"


def _part(name: str, text: str) -> str:
    lines = [f"// Made from book/{FOLDER}/{name}.mjs. Edit it there."]
    lines.append(_closed(name, text))
    if _is_figure(text):
        before = needs(text)
        lines[0] += f" After: {', '.join([KIT, *before])}"
        given = f"{{ {', '.join(before)} }}"
        lines.append(f'{KIT}.host("{name}", {name}.figure, {given});')
    return "\n".join(lines) + "\n"


def join(parts: Mapping[str, str], name: str) -> str:
    """The script of a figure, of the parts that its first line names."""
    first = parts[name].partition("\n")[0]
    before = first.partition("After: ")[2].split(", ")
    own = "".join(parts[each] for each in (*before, name))
    own = re.sub(r"^[ \t]+", "", own, flags=re.M)
    return f'(() => {{\n"use strict";\n{own}}})();\n'


def _closed(name: str, text: str) -> str:
    """A module as a constant that has what it exports, without what its
    comments tell those who read the source.
    """
    names = EXPORTED.findall(text)
    if _is_figure(text):
        names.append("figure")
    text = re.sub(r"^export default ", "const figure = ", text, flags=re.M)
    text = re.sub(r"^export ", "", text, flags=re.M)
    text = COMMENT.sub("", text)
    return (
        f"const {name} = (() => {{\n{text.strip()}\n"
        f"return {{ {', '.join(names)} }};\n}})();"
    )


def life(moves: dict[str, str]) -> str:
    """What a page has inside a figure besides the still."""
    name, parts = moves["name"], []
    parts.append(
        '<script type="application/json" class="moves-data">'
        f"{moves['data']}</script>"
    )
    if "large" in moves:
        parts.append(
            '<script type="text/plain" class="moves-large" '
            f'data-file="{moves["large"]}"></script>'
        )
    parts.append(
        f'<script defer src="_static/{FOLDER}/{name}.js"></script>'
    )
    return "\n".join(parts)
