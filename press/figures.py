"""Figures that move: checked, and each joined with what it needs.

Their modules lie in annotated/book/moving/, the one folder of the package
that is not derived: a wheel that is built from git alone holds them. A
module imports nothing; annotated.book.scripts makes it and the kit one
classic script, for a page and for a notebook's output.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from annotated.book import scripts as joined
from press.chapters import PressError
from press.modules import MOVING

FOLDER = "figures"  # in the site's _static/
# characters of a figure with what it needs: `learn` brings a model that
# trains, which is half of them
MOST = 50_000
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


def _modules(root: Path) -> dict[str, str]:
    """The modules by name; PressError with what they may not do."""
    modules = {
        path.stem: path.read_text(encoding="utf-8")
        for path in sorted((root / MOVING).glob("*.mjs"))
    }
    problems = [
        f"{MOVING}/{name}.mjs {fault}"
        for name, text in modules.items()
        for fault in _faults(text)
    ]
    if problems:
        raise PressError(*problems)
    return modules


def scripts(root: Path) -> dict[str, str]:
    """The classic script of each figure, by its name."""
    try:
        figures = joined.scripts(_modules(root))
    except ValueError as error:
        raise PressError(f"{MOVING}/{error}") from None
    problems = [
        f"{MOVING}/{name}.mjs has, with what it needs, "
        f"{len(text):,} characters; {MOST:,} are allowed"
        for name, text in figures.items()
        if len(text) > MOST
    ]
    if problems:
        raise PressError(*problems)
    return figures


def _faults(text: str) -> Iterator[str]:
    plain = text.replace(SPACE, '""')
    for row, line in enumerate(plain.splitlines(), 1):
        code = re.sub(r"^\s*(?://|/?\*).*", "", line)
        for pattern, fault in REFUSED.items():
            if re.search(pattern, code):
                yield f"{fault} in line {row}: {line.strip()}"


def life(moves: dict[str, Any]) -> str:
    """What a page has inside a figure besides the still."""
    name, parts = moves["name"], []
    parts.append(
        '<script type="application/json" class="moves-data">'
        f"{moves['data']}</script>"
    )
    parts += [
        '<script type="text/plain" class="moves-large" '
        f'data-name="{large}" data-file="{path}"></script>'
        for large, path in moves["large"].items()
    ]
    parts.append(
        f'<script defer src="_static/{FOLDER}/{name}.js"></script>'
    )
    return "\n".join(parts)
