"""Each page as Markdown beside it, and llms.txt, which lists these: for
what a reader asks about the book, such as an assistant or a search of
their own.

A page's text is that of the site, with its numbers and links. A box is a
quotation that begins with its title; code has what it printed below it,
and a figure says in words what it shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from press.project import TITLE, Project

FOLDER = "beside"  # in the sources; Sphinx does not read it
ROOMS = {
    "story": "The book",
    "appendix": "Appendices",
    "engine": "Optional",  # in llms.txt: what may be left out
}
RAW = re.compile(r"^(`{3,}|:{3,})\{raw\}.*?^\1[ \t]*$", re.M | re.S)
TARGET = re.compile(r"^\([\w-]+\)=\n", re.M)
LINK = re.compile(r"(\]\([\w-]+)\.ipynb(#[\w.-]+)?(?: \"[^\"]*\")?\)")
OPENS = re.compile(r"(:{3,}|`{3,})\{([\w-]+)\}[ \t]*(.*)")
OPTION = re.compile(r":[\w-]+:( |$)")
CODE = re.compile(r"`{3,}|~{3,}")


@dataclass(frozen=True)
class Page:
    """A chapter as it goes to Sphinx."""

    name: str
    title: str
    promise: str  # in a sentence
    notebook: dict[str, Any]


def texts(
    project: Project, rooms: Mapping[str, list[Page]]
) -> dict[str, str]:
    """The files, by name."""
    where = f"{project.site}/" if project.site else ""
    found, lines = {}, [f"# {TITLE}", "", f"> {project.about}", ""]
    for room, head in ROOMS.items():
        pages = rooms.get(room, [])
        lines += [f"## {head}", ""] if pages else []
        for page in pages:
            name = f"{page.name}.md"
            found[name] = markdown(page.notebook["cells"])
            link = f"- [{page.title}]({where}{name})"
            lines.append(
                f"{link}: {page.promise}" if page.promise else link
            )
        lines += [""] if pages else []
    return {**found, "llms.txt": "\n".join(lines)}


def found(sources: Mapping[str, bytes]) -> dict[str, bytes]:
    """These files among the sources, as they lie beside the pages."""
    start = f"{FOLDER}/"
    return {
        name.removeprefix(start): data
        for name, data in sources.items()
        if name.startswith(start)
    }


def markdown(cells: list[dict[str, Any]]) -> str:
    """Prose, code and what it gave."""
    parts: list[str] = []
    for cell in cells:
        source = "".join(cell["source"]).strip()
        if cell["cell_type"] == "markdown":
            parts.append(_plain(source))
        elif source:
            parts.append(f"```python\n{source}\n```")
            parts += map(_shown, cell.get("outputs", []))
            parts.append(_described(cell))
    text = "\n\n".join(part for part in parts if part)
    return f"{LINK.sub(_link, text)}\n"


def _link(match: re.Match[str]) -> str:
    return f"{match[1]}.md{match[2] or ''})"


def _plain(source: str) -> str:
    text = TARGET.sub("", RAW.sub("", source))
    lines = "\n".join(_quoted(text.splitlines()))
    return re.sub(r"\n{3,}", "\n\n", lines).strip()


def _quoted(lines: list[str]) -> Iterator[str]:
    """Boxes as quotations; the fences of other directives are left out."""
    fences: list[tuple[str, bool]] = []  # open: marks, and whether a box
    listing, head = "", False

    def mark() -> str:
        return "> " * sum(box for _, box in fences)

    for line in lines:
        opens = None if listing else OPENS.fullmatch(line)
        if opens:
            yield mark().rstrip()
            fences.append((opens[1], opens[2] == "admonition"))
            if fences[-1][1]:
                yield f"{mark()}**{opens[3]}**"
                yield mark().rstrip()
            head = True
            continue
        if fences and not listing and line.rstrip() == fences[-1][0]:
            fences.pop()
            yield mark().rstrip()
            continue
        if head and OPTION.match(line):
            continue
        head = False
        if listing:
            listing = "" if line.rstrip() == listing else listing
        elif code := CODE.match(line):
            listing = code[0]
        yield f"{mark()}{line}".rstrip() if mark() else line


def _described(cell: dict[str, Any]) -> str:
    """A figure's caption, and what it shows."""
    settings = cell["metadata"].get("mystnb") or {}
    caption = (settings.get("figure") or {}).get("caption", "")
    alt = (settings.get("image") or {}).get("alt", "")
    return " ".join(filter(None, [caption, alt]))


def _shown(output: dict[str, Any]) -> str:
    """An output as text; nothing of a picture."""
    if output["output_type"] == "stream":
        return f"```text\n{''.join(output['text']).rstrip()}\n```"
    data = output.get("data", {})
    if any(kind.startswith("image/") for kind in data):
        return ""
    if words := "".join(data.get("text/markdown", "")):
        return words.strip()
    text = "".join(data.get("text/plain", "")).rstrip()
    return f"```text\n{text}\n```" if text else ""
