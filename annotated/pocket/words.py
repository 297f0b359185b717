"""Exported from the book; edit the chapter, then run `make export`."""

import re
from collections import namedtuple
from importlib import resources
from typing import Any, NamedTuple

__all__ = [
    "read_table", "NOUNS", "NAMES", "ADJECTIVES", "VERBS", "PRONOUNS",
    "DETERMINERS", "OWNERS", "DEFINITE", "FINITE", "PARTICLES",
    "SUBORDINATING",
]  # fmt: skip


# E13-pocket-grammar.md: Words
def read_table(name: str) -> dict[str, Any]:
    """The rows of a table (e.g. nouns.tsv), keyed by their first cell.

    "-" marks an empty cell. Raises ValueError for a line of wrong length.
    """
    file = resources.files("annotated.pocket") / name
    head, *lines = file.read_text("utf-8").splitlines()
    row = namedtuple("row", head.split("\t"))  # type: ignore[misc]
    rows = {}
    for number, line in enumerate(lines, 2):
        cells = ["" if cell == "-" else cell for cell in line.split("\t")]
        if len(cells) != len(row._fields):
            wrong = f"expected {len(row._fields)} cells, got {len(cells)}"
            raise ValueError(f"{name}, line {number}: {wrong}")
        rows[cells[0]] = row(*cells)
    return rows


class _Slot(NamedTuple):
    """An object that a verb takes, and how each language marks it."""

    role: str  # accusative, dative, prepositional or complement
    case: str
    german: str  # a preposition, a conjunction or empty
    english: str
    kinds: str


def _read_slot(text: str) -> _Slot:
    """Parse a slot as the table writes it: A:tn, D/to:p, A.auf/for:pa."""
    match = re.fullmatch(r"([ADC])\.?(\w*)/?(\w*):(\w*)", text)
    if match is None:
        raise ValueError(f"verbs.tsv: {text!r} is not a valid slot")
    letter, german, english, kinds = match.groups()
    case = {"A": "accusative", "D": "dative", "C": "complement"}[letter]
    role = "prepositional" if german and kinds else case
    return _Slot(role, case, german, english, kinds)


def _particles(kind: str) -> dict[str, str]:
    """English-to-German dictionary of one kind in particles.tsv."""
    rows = read_table("particles.tsv").values()
    return {row.english: row.german for row in rows if row.kind == kind}


NOUNS = read_table("nouns.tsv")
NAMES = {"Anna": "she", "Jonas": "he", "Lena": "she", "Paul": "he"}
ADJECTIVES = read_table("adjectives.tsv")
VERBS = {
    name: row._replace(slots=tuple(map(_read_slot, row.slots.split())))
    for name, row in read_table("verbs.tsv").items()
}
PRONOUNS = read_table("pronouns.tsv")
DETERMINERS = read_table("determiners.tsv")
OWNERS = ("my", "your", "his", "our")
DEFINITE = ("the", "this", *OWNERS)
FINITE = read_table("finite.tsv")
PARTICLES = {  # middle: adverbs, and tenses that use one
    kind: _particles(kind)
    for kind in ("day", "middle", "question", "conjunction")
}
SUBORDINATING = ("because", "although", "if")
