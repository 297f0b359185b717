"""annotated.pocket.words.

Exported from the book; edit the chapter, then run `make export`.

- E13-pocket-grammar.md: A grammar in two languages
"""

from __future__ import annotations

import re
from importlib import resources
from typing import NamedTuple

__all__ = [
    "read_table",
    "Noun",
    "NOUNS",
    "NAMES",
    "ADJECTIVES",
    "Slot",
    "read_slot",
    "Verb",
    "VERBS",
    "Pronoun",
    "Finite",
    "PRONOUNS",
    "FINITE",
    "ENGLISH_FINITE",
    "Determiner",
    "DETERMINERS",
    "OWNERS",
    "DEFINITE",
    "ENDINGS",
    "RELATIVE",
    "WHO",
    "DAYS",
    "MIDDLE",
    "ASKED",
    "CONJUNCTIONS",
    "BELOW",
    "PREPOSITIONS",
    "CONTRACTIONS",
    "third_person",
    "ing",
]


# E13-pocket-grammar.md: Words
def read_table(name: str) -> list[list[str]]:
    """The rows of a table, nouns.tsv say, below its line of names.

    A cell "-" is empty. ValueError names a line of the wrong length.
    """
    file = resources.files("annotated.pocket") / name
    head, *lines = file.read_text("utf-8").splitlines()
    width, rows = len(head.split("\t")), []
    for number, line in enumerate(lines, 2):
        rows.append([cell.strip("-") for cell in line.split("\t")])
        if len(rows[-1]) != width:
            found = len(rows[-1])
            raise ValueError(
                f"{name}, line {number}: {found} cells, not {width}"
            )
    return rows


class Noun(NamedTuple):
    """A row of nouns.tsv; a mass noun has no plural.

    gender: m, f, n, or w, a weak masculine (der Junge, den Jungen).
    kind: the letter by which verbs select: p person, a animal, f fruit,
    m meal, d drink, t print, n note, o object, w opening, h building,
    l open place.
    """

    german: str
    gender: str
    german_plural: str
    english: str
    english_plural: str
    kind: str

    def german_form(self, case: str, plural: bool) -> str:
        """The noun in its case: den Jungen, den Kindern."""
        if plural:
            bare = case != "dative" or self.german_plural[-1] in "ns"
            return self.german_plural + ("" if bare else "n")
        weak = self.gender == "w" and case != "nominative"
        return self.german_plural if weak else self.german


NOUNS = {row[0]: Noun(*row) for row in read_table("nouns.tsv")}
NAMES = {"Anna": "she", "Jonas": "he", "Lena": "she", "Paul": "he"}
ADJECTIVES = {  # English, and the kinds of noun that it goes with
    german: (english, kinds)
    for german, english, kinds in read_table("adjectives.tsv")
}


class Slot(NamedTuple):
    """An object that a verb asks for, and how each side marks it."""

    role: str  # accusative, dative, prepositional or complement
    case: str
    german: str  # a preposition, a conjunction or nothing
    english: str
    kinds: str


def read_slot(text: str) -> Slot:
    """Read a slot as the table has it: A:tn, D/to:p, A.auf/for:pa."""
    match = re.fullmatch(r"([ADC])\.?(\w*)/?(\w*):(\w*)", text)
    if match is None:
        raise ValueError(f"verbs.tsv: {text!r} is no slot of a verb")
    letter, german, english, kinds = match.groups()
    case = {"A": "accusative", "D": "dative", "C": "complement"}[letter]
    role = "prepositional" if german and kinds else case
    return Slot(role, case, german, english, kinds)


class Verb(NamedTuple):
    """A row of verbs.tsv; irregular forms stand there.

    aspect says what goes with it: a activity, everything; p process, no
    gern; e event, no gerade either; s state, no modal; q being.
    """

    prefix: str  # an of anrufen; it leaves the verb in main clauses
    infinitive: str
    third: str
    participle: str
    auxiliary: str
    english: str
    particle: str  # up of get up
    past: str
    past_participle: str
    aspect: str
    subject: str  # the kinds that may be its subject
    slots: tuple[Slot, ...]

    def present(self, person: int) -> str:
        """Without its prefix: lese, liest, liest, lesen (ich to wir)."""
        second = self.third[:-1]  # as er, but in st; s and z take a t
        second += "t" if second[-1] in "sz" else "st"
        first, plural = self.infinitive.removesuffix("n"), self.infinitive
        return (first, second, self.third, plural)[person]


VERBS = {
    row[0] + row[1]: Verb(*row, tuple(map(read_slot, slots.split())))
    for *row, slots in read_table("verbs.tsv")
}


class Pronoun(NamedTuple):
    """A row of pronouns.tsv; empty where German could be misread."""

    nominative: str
    accusative: str
    dative: str
    english: str
    english_object: str
    person: str


class Finite(NamedTuple):
    """A row of finite.tsv: forms by person, the English before "to"."""

    ich: str
    du: str
    er: str
    wir: str
    tag: str
    english: str


PRONOUNS = {row[3]: Pronoun(*row) for row in read_table("pronouns.tsv")}
FINITE = {name: Finite(*row) for name, *row in read_table("finite.tsv")}
ENGLISH_FINITE = {  # I, you, he, we
    "be": ("am", "are", "is", "are"),
    "was": ("was", "were", "was", "were"),
    "have": ("have", "have", "has", "have"),
    "do": ("do", "do", "does", "do"),
}


class Determiner(NamedTuple):
    """A row of determiners.tsv: its endings, and its adjective's."""

    stem: str
    endings: str
    adjective: str
    tag: str
    english: str
    english_plural: str


DETERMINERS = {
    name: Determiner(*row) for name, *row in read_table("determiners.tsv")
}
OWNERS = ("my", "your", "his", "our")
DEFINITE = ("the", "this", *OWNERS)
ENDINGS = {
    (series, case): columns
    for series, case, *columns in read_table("endings.tsv")
}
RELATIVE = {
    "nominative": ("der", "die", "das", "die"),
    "accusative": ("den", "die", "das", "die"),
    "dative": ("dem", "der", "dem", "denen"),
}
WHO = {"nominative": "wer", "accusative": "wen", "dative": "wem"}


def _particles(kind: str) -> dict[str, str]:
    """English to German, for one kind of particles.tsv."""
    rows = read_table("particles.tsv")
    return {english: german for own, english, german in rows if own == kind}


DAYS = _particles("day")
MIDDLE = _particles("middle")  # adverbs, and tenses made by an adverb
ASKED = _particles("question")
CONJUNCTIONS = _particles("conjunction")
BELOW = ("because", "although", "if")  # the clause after these is lower
PREPOSITIONS = {"in": "in", "hinter": "behind", "zu": "to"}
CONTRACTIONS = {"in dem": "im", "zu dem": "zum", "zu der": "zur"}


def third_person(word: str) -> str:
    """Reads, watches, carries, has."""
    if re.search(r"(s|sh|ch|x|o)$", word):
        return word + "es"
    if re.search(r"[^aeiou]y$", word):
        return word[:-1] + "ies"
    return "has" if word == "have" else word + "s"


def ing(word: str) -> str:
    """Reading, writing, running."""
    if re.search(r"[^e]e$", word):
        return word[:-1] + "ing"
    if re.search(r"^[^aeiou]*[aeiou][^aeiouwxy]$", word):
        return word + word[-1] + "ing"
    return word + "ing"
