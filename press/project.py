"""Addresses: all of them from [project.urls] in pyproject.toml."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from press.chapters import PressError

BRANCH = "main"  # where work goes on
NAME = "attention-annotated"  # of the distribution
TITLE = "Attention, Annotated"  # of the book


@dataclass(frozen=True)
class Project:
    """Where the book lives on the web."""

    repository: str
    site: str = ""  # without a slash at its end; empty if nobody knows
    about: str = ""  # in a line
    version: str = "0.dev0"

    @property
    def slug(self) -> str:
        """owner/name."""
        return "/".join(self.repository.split("/")[-2:])

    @property
    def released(self) -> bool:
        """A version between two releases ends in .dev0."""
        return ".dev" not in self.version

    @property
    def ref(self) -> str:
        """What links lead to and notebooks install: a release itself, so
        that a class does not break in mid-term, or the newest.
        """
        return f"v{self.version}" if self.released else BRANCH

    def source(self, path: str) -> str:
        return f"{self.repository}/blob/{self.ref}/{path}"

    def raw(self, path: str) -> str:
        return f"{self.repository}/raw/{self.ref}/{path}"

    def colab(self, path: str) -> str:
        site = "https://colab.research.google.com/github"
        return f"{site}/{self.slug}/blob/{self.ref}/{path}"

    @property
    def install(self) -> str:
        """An archive, which pip unpacks where there is no git, too."""
        kind = "tags" if self.released else "heads"
        return f"{self.repository}/archive/refs/{kind}/{self.ref}.zip"

    @property
    def install_book(self) -> str:
        """The package with what the notebooks draw with."""
        return f'"{NAME}[book] @ {self.install}"'


def read_project(root: Path) -> Project:
    # Python 3.10 has no tomllib, and four lines need no parser
    text = (root / "pyproject.toml").read_text(encoding="utf-8")

    def given(label: str, value: str = r"(https://[^\"\s]+?)/?") -> str:
        found = re.search(rf'^{label} = "{value}"', text, re.M)
        return found[1] if found else ""

    if not given("Repository"):
        raise PressError(
            "pyproject.toml: [project.urls] has no line "
            'Repository = "https://…"'
        )
    return Project(
        given("Repository"),
        given("Documentation"),
        given("description", "(.*)"),
        given("version", "(.*)") or "0.dev0",
    )
