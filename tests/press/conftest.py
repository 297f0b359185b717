"""Tiny books in a temporary folder."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

HEAD = """\
---
jupytext:
  text_representation: {{extension: .md, format_name: myst}}
kernelspec: {{name: python3, display_name: Python 3}}
annotated: {{{facts}}}
---

# {title}
"""


def code(source: str, *tags: str) -> str:
    """A code cell of a chapter."""
    head = f":tags: [{', '.join(tags)}]\n\n" if tags else ""
    source = textwrap.dedent(source).strip("\n")
    return f"```{{code-cell}} ipython3\n{head}{source}\n```"


def exported(source: str) -> str:
    return code(source, "export")


@dataclass
class Book:
    """A repository with a book in it, and nothing else."""

    root: Path

    def chapter(
        self,
        name: str,
        *cells: str,
        module: str | None = None,
        minutes: int = 1,
        room: str | None = None,
        title: str = "A title",
    ) -> Path:
        facts = f"minutes: {minutes}"
        facts += f", module: {module}" if module else ""
        facts += f", room: {room}" if room else ""
        text = HEAD.format(facts=facts, title=title)
        return self.write(
            f"book/{name}.md", "\n\n".join([text, *cells]) + "\n"
        )

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def read(self, name: str) -> str:
        return (self.root / name).read_text(encoding="utf-8")

    def edit(self, name: str, old: str, new: str) -> None:
        text = self.read(name)
        assert text.count(old) == 1, (name, old)
        self.write(name, text.replace(old, new))

    def files(self, folder: str = "annotated") -> dict[str, bytes]:
        return {
            path.relative_to(self.root).as_posix(): path.read_bytes()
            for path in sorted((self.root / folder).rglob("*"))
            if path.is_file()
        }


def make_book(root: Path) -> Book:
    book = Book(root)
    book.write(
        "pyproject.toml",
        "[project.urls]\n"
        'Repository = "https://github.com/someone/some-book"\n',
    )
    (root / "book").mkdir()
    return book


@pytest.fixture
def book(tmp_path: Path) -> Book:
    return make_book(tmp_path)
