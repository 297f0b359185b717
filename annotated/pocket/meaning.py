"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

from typing import NamedTuple

from annotated.pocket import words

__all__ = ["SPECIAL", "Phrase", "Clause", "Meaning"]


# E13-pocket-grammar.md: Meanings
SPECIAL = ("name", "pronoun", "relative", "question")


class Phrase(NamedTuple):
    """A noun phrase: a noun with everything that belongs to it.

    determiner: a row of DETERMINERS, or bare, name, pronoun (noun is then
    a row of PRONOUNS), relative (noun is what the relative clause is
    about) or question (noun is who or what).
    """

    noun: str
    determiner: str = "the"
    plural: bool = False
    adjectives: tuple[str, ...] = ()
    relative: Clause | None = None

    @property
    def person(self) -> str:
        """The person that its verb agrees with: ich, du, er or wir."""
        if self.determiner == "pronoun":
            return str(words.PRONOUNS[self.noun].person)
        return "wir" if self.plural else "er"

    @property
    def column(self) -> str:
        """Its column of ENDINGS: masculine, feminine, neuter, plural."""
        gender = words.NOUNS[self.noun].gender
        singular = "masculine" if gender == "weak" else gender
        return "plural" if self.plural else str(singular)

    @property
    def kind(self) -> str:
        """The letter by which verbs select it."""
        if self.determiner in ("name", "pronoun"):
            return "o" if self.noun == "it" else "p"
        return str(words.NOUNS[self.noun].kind)


class Clause(NamedTuple):
    """Who does what to whom, when and where; verb is in German.

    tense: present, past, progressive, already, likes, or a modal: will,
    can, may, should, have_to, want_to. asked: the role that a question
    asks about, or where, when or why.
    """

    verb: str
    subject: Phrase
    accusative: Phrase | None = None
    dative: Phrase | None = None
    prepositional: Phrase | None = None
    complement: Clause | None = None  # what is said, believed or asked
    predicate: str = ""  # an adjective, with sein
    tense: str = "present"
    negated: bool = False
    middle: str = ""  # always, never, often or sometimes
    time: str = ""  # today, yesterday, tomorrow, evening or every day
    place: tuple[str, Phrase] | None = None  # in or hinter, and what
    goal: tuple[str, Phrase] | None = None  # in or zu, and what
    asked: str = ""

    @property
    def gap(self) -> str:
        """The role of the relative pronoun in a relative clause."""
        for role in ("subject", "accusative", "dative"):
            phrase = getattr(self, role)
            if phrase is not None and phrase.determiner == "relative":
                return role
        return "prepositional"

    @property
    def denied_by_kein(self) -> bool:
        """Whether kein negates it: its object is indefinite."""
        thing = self.accusative
        indefinite = thing is not None and thing.determiner in ("a", "bare")
        return self.negated and indefinite and self.tense != "likes"


class Meaning(NamedTuple):
    """What a sentence says, regardless of what it puts first.

    mood: statement or question. A conjunction adds a second clause.
    """

    mood: str
    clause: Clause
    conjunction: str = ""
    second: Clause | None = None
