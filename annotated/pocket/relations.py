"""Exported from the book; edit the chapter, then run `make export`."""

import re
from collections.abc import Sequence

from annotated.pocket import Pair, words
from annotated.pocket.meaning import SPECIAL
from annotated.pocket.trees import Tree

__all__ = ["Links", "word_links", "antecedent"]


# E14-pocket-sentences.md: What belongs to what
Links = set[tuple[int, int]]  # from a word, to a word


def word_links(leaves: Sequence[Tree]) -> dict[str, Links]:
    """Which word of a pocket sentence belongs to which, by relation.

    A leaf's keys say what it stands for: 1sN is the noun (N) of the
    subject (s) of the first clause (1); 1T and 1V are the tense and the
    meaning of its verb.
    """
    at: dict[str, list[int]] = {}
    for index, leaf in enumerate(leaves):
        for key in leaf.keys:
            at.setdefault(key, []).append(index)
    links: dict[str, Links] = {}

    def link(name: str, start: list[int], end: list[int]) -> None:
        pairs = {(a, b) for a in start for b in end if a != b}
        links.setdefault(name, set()).update(pairs)

    for key, start in at.items():
        if match := re.fullmatch(r"(.*[a-z])(D|A\d)", key):
            noun = _head_of(match[1], at)
            link("article or adjective → noun", start, noun)
        elif match := re.fullmatch(r"(.*[a-z])r[a-z]", key):
            link("relative pronoun → noun", start, _head_of(match[1], at))
        elif key.endswith("T"):
            subject = _head_of(key[:-1] + "s", at)
            other = at[key[:-1] + "V"]
            link("verb → its other half", start, other)
            link("other half → verb", other, start)
            link("verb → subject", start, subject)
            link("subject → verb", subject, start)
            if leaves[subject[0]].word.lower() == "sie":
                link("sie → its verb", subject, start)
    return links


def _head_of(phrase: str, at: dict[str, list[int]]) -> list[int]:
    """The positions of a phrase's noun, name or pronoun."""
    return at.get(phrase + "N") or at.get(phrase) or []


def antecedent(pair: Pair) -> Links:
    """A link from the er or sie that is a second clause's subject to the
    first clause's subject, if gender and number agree.
    """
    first, second = pair.meaning.clause, pair.meaning.second
    key = "2s" if second else "1cs"
    clause, who = second or first.complement, first.subject
    if clause is None or clause.subject.determiner != "pronoun":
        return set()
    genders = {"masculine": "he", "feminine": "she", "plural": "they"}
    fits = words.NAMES.get(who.noun)
    if who.determiner not in SPECIAL and who.kind == "p":
        fits = genders.get(who.column)
    if fits != clause.subject.noun:
        return set()
    leaves = pair.source_tree.leaves()
    at = {k: [i] for i, leaf in enumerate(leaves) for k in leaf.keys}
    return {(at[key][0], _head_of("1s", at)[0])}
