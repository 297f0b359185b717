"""The works that the pages cite: book/references.bib."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from press.chapters import Chapter

ARXIV = re.compile(r"arxiv\.org/(?:abs|html|pdf)/(\d{4}\.\d{4,5})")
MOST = 6  # authors, before "and others"


@dataclass(frozen=True)
class Work:
    """One entry of the bibliography."""

    key: str
    people: tuple[str, ...]  # surnames; the last may be "others"
    full: tuple[str, ...]  # with initials
    title: str
    venue: str
    year: str
    url: str
    eprint: str

    @property
    def short(self) -> str:
        """`Post, 2018`, `Press and Wolf, 2017`, `Vaswani et al., 2017`."""
        names = self.people
        first = names[0] if names else self.title
        if len(names) == 2 and names[1] != "others":
            first = f"{names[0]} and {names[1]}"
        elif len(names) > 1:
            first += " et al."
        return f"{first}, {self.year}"

    @property
    def text(self) -> str:
        """As Markdown, one line."""
        names = list(self.full)
        more = names[-1:] == ["others"] or len(names) > MOST
        names = [name for name in names[:MOST] if name != "others"]
        joined = ", ".join(names)
        if more:
            joined += " and others"
        elif len(names) > 1:
            joined = f"{', '.join(names[:-1])} and {names[-1]}"
        title = f"[{self.title}]({self.url})" if self.url else self.title
        stop = "" if self.title.endswith(("?", "!")) else "."
        venue = f" {self.venue}," if self.venue else ""
        arxiv = f" arXiv:{self.eprint}." if self.eprint else ""
        return f"{joined}: {title}{stop}{venue} {self.year}.{arxiv}"

    def is_in(self, chapter: Chapter) -> bool:
        """Whether a chapter cites it or links to it."""
        for cell in chapter.cells:
            keys, papers = _cited(cell.source)
            if self.key in keys or self.eprint in papers:
                return True
            if self.url and self.url in cell.source:
                return True
        return False


@cache
def _cited(markdown: str) -> tuple[set[str], set[str]]:
    """Keys that a text cites, and numbers of arXiv that it links to."""
    cited = re.findall(r"\{cite(?::\w+)?\}`([^`]+)`", markdown)
    keys = {k.strip() for group in cited for k in group.split(",")}
    return keys, set(ARXIV.findall(markdown))


def works(root: Path) -> list[Work]:
    """All entries, by surname and year; none without the file."""
    from pybtex.database import parse_file

    path = root / "book" / "references.bib"
    if not path.is_file():
        return []
    entries = parse_file(str(path), "bibtex").entries
    found = [_work(key, entry) for key, entry in entries.items()]
    return sorted(
        found, key=lambda work: (work.people, work.year, work.key)
    )


def _work(key: str, entry: Any) -> Work:
    def plain(text: str) -> str:
        from pybtex.richtext import Text

        return str(Text.from_latex(text))

    people, full = [], []
    for person in entry.persons.get("author", []):
        last = plain(" ".join(person.prelast_names + person.last_names))
        first = [plain(n) for n in person.first_names + person.middle_names]
        people.append(last)
        initials = [f"{name[0]}." for name in first if name]
        full.append(" ".join([*initials, last]))
    fields = {k.lower(): plain(v) for k, v in entry.fields.items()}
    url = entry.fields.get("url", "")
    eprint = fields.get("eprint", "")
    if not url and eprint:
        url = f"https://arxiv.org/abs/{eprint}"
    if not url and "doi" in fields:
        url = f"https://doi.org/{fields['doi']}"
    return Work(
        key,
        tuple(people),
        tuple(full),
        fields.get("title", ""),
        fields.get("booktitle", fields.get("journal", "")),
        fields.get("year", ""),
        url,
        eprint,
    )
