"""annotated.pocket.german.

Exported from the book; edit the chapter, then run `make export`.

- E13-pocket-grammar.md: A grammar in two languages
"""

from __future__ import annotations

from annotated.pocket.meaning import SPECIAL, Clause, Meaning, Phrase
from annotated.pocket.trees import Part, Tree, leaf, node
from annotated.pocket.words import (
    ASKED,
    BELOW,
    CONJUNCTIONS,
    CONTRACTIONS,
    DAYS,
    DEFINITE,
    DETERMINERS,
    ENDINGS,
    FINITE,
    MIDDLE,
    NOUNS,
    PRONOUNS,
    RELATIVE,
    VERBS,
    WHO,
)

__all__ = [
    "COMMA",
    "CLOSING",
    "german_phrase",
    "german_clause",
    "german_sentence",
]


# E13-pocket-grammar.md: German phrases
COMMA = leaf("$,", ",")
CLOSING = leaf("$,", ",", "closing")  # goes where punctuation follows


def german_phrase(
    phrase: Phrase, case: str, key: str, *negation: str
) -> Tree:
    """A noun phrase whose words agree; negation: a key that kein adds."""
    if phrase.determiner in SPECIAL:
        return node("NP", _german_special(phrase, case, key))
    parts, series = [], "strong"
    if phrase.determiner != "bare":
        row = DETERMINERS[phrase.determiner]
        word = row.stem + ENDINGS[row.endings, case][phrase.column]
        parts.append(leaf(row.tag, word, key + "D", *negation))
        series = row.adjective
    ending = ENDINGS[series, case][phrase.column]
    for i, adjective in enumerate(phrase.adjectives):
        word = adjective.removesuffix("e") + ending
        parts.append(leaf("ADJA", word, f"{key}A{i}"))
    noun = NOUNS[phrase.noun].german_form(case, phrase.plural)
    parts.append(leaf("NN", noun, key + "N"))
    if phrase.relative:
        parts += _german_relative(phrase.relative, key + "r")
    return node("NP", *parts)


def _german_special(phrase: Phrase, case: str, key: str) -> Tree:
    """A name, a pronoun, a relative pronoun, wer or was."""
    if phrase.determiner == "name":
        return leaf("NE", phrase.noun, key)
    if phrase.determiner == "pronoun":
        return leaf("PPER", getattr(PRONOUNS[phrase.noun], case), key)
    if phrase.determiner == "relative":
        return leaf("PRELS", RELATIVE[case][phrase.column], key)
    word = "was" if phrase.noun == "what" else WHO[case]
    return leaf("PWS", word, key)


def _german_prepositional(
    preposition: str, phrase: Phrase, case: str, key: str
) -> Tree:
    """A preposition and its noun phrase; in dem is im."""
    tree = german_phrase(phrase, case, key)
    first, *rest = tree.leaves()
    fused = CONTRACTIONS.get(f"{preposition} {first.word}")
    if fused and phrase.determiner == "the":
        word = leaf("APPRART", fused, key + "P", key + "D")
        return node("PP", word, node("NP", *tree.children[1:]))
    return node("PP", leaf("APPR", preposition, key + "P"), tree)


def _german_time(time: str, key: str) -> Tree:
    """Heute; am Abend; jeden Tag."""
    preposition, article, noun = key + "P", key + "D", key + "N"
    if time == "evening":
        word = leaf("APPRART", "am", preposition, article)
        return node("PP", word, node("NP", leaf("NN", "Abend", noun)))
    if time == "every day":
        word = leaf("PIAT", "jeden", article)
        return node("NP", word, leaf("NN", "Tag", noun))
    return node("ADVP", leaf("ADV", DAYS[time], key))


# E13-pocket-grammar.md: The German clause
def _german_verbs(
    clause: Clause, key: str, final: bool
) -> tuple[Tree, list[Tree]]:
    """The finite verb, and the rest of the verb, which comes last."""
    verb, tense, person = (
        VERBS[clause.verb],
        clause.tense,
        clause.subject.person,
    )
    t, v = key + "T", key + "V"
    if tense in FINITE:  # werden or a modal, with the infinitive
        finite = leaf(
            FINITE[tense].tag, FINITE[tense][person], t, key + "M"
        )
        return finite, [leaf("VVINF", clause.verb, v)]
    if clause.verb == "sein":
        forms = FINITE["war" if tense == "past" else "ist"]
        return leaf("VAFIN", forms[person], t, v), []
    if tense in ("past", "already"):  # the perfect
        finite = leaf("VAFIN", FINITE[verb.auxiliary][person], t)
        return finite, [leaf("VVPP", verb.participle, v)]
    word = verb.present(person)
    if final:
        return leaf("VVFIN", verb.prefix + word, t, v), []
    rest = [leaf("PTKVZ", verb.prefix, v)] if verb.prefix else []
    return leaf("VVFIN", word, t, v), rest


def _german_objects(
    clause: Clause, key: str
) -> tuple[list[Part], list[Part], list[Part]]:
    """The objects that are pronouns, those known, and those new.

    Gibt es ihm; gibt dem Kind das Buch; gibt dem Kind ein Buch.
    """
    pronouns: list[Part] = []
    known: list[Part] = []
    new: list[Part] = []
    for role in ("dative", "accusative"):
        phrase, negation = getattr(clause, role), ()
        if phrase is None:
            continue
        if role == "accusative" and clause.denied_by_kein:
            phrase, negation = (
                phrase._replace(determiner="no"),
                (key + "N",),
            )
        tree = german_phrase(phrase, role, key + role[0], *negation)
        if phrase.determiner == "pronoun":
            pronouns.insert(0, (role, tree))
        elif phrase.determiner in DEFINITE + SPECIAL:
            known.append((role, tree))
        else:
            new.append((role, tree))
    return pronouns, known, new


def _middle_field(clause: Clause, key: str) -> list[Part]:
    """All that stands between the finite verb and the rest, in order."""
    pronouns, known, new = _german_objects(clause, key)
    adverb = MIDDLE.get(clause.middle or clause.tense)
    parts = pronouns
    if clause.time:
        parts.append(("time", _german_time(clause.time, key + "t")))
    if adverb == "gerade":
        parts.append(("middle", _adverb(adverb, key)))
    parts += known
    if clause.negated and not clause.denied_by_kein:
        parts.append(("negation", leaf("PTKNEG", "nicht", key + "N")))
    if adverb and adverb != "gerade":
        parts.append(("middle", _adverb(adverb, key)))
    return parts + new + _german_places(clause, key)


def _adverb(word: str, key: str) -> Tree:
    return node("ADVP", leaf("ADV", word, key + "M"))


def _german_places(clause: Clause, key: str) -> list[Part]:
    """In the garden, for the boy, into town, tired: what stands last."""
    parts = []
    if clause.place:
        tree = _german_prepositional(*clause.place, "dative", key + "l")
        parts.append(("place", tree))
    if clause.prepositional:
        slot = VERBS[clause.verb].slots[0]
        tree = _german_prepositional(
            slot.german, clause.prepositional, slot.case, key + "p"
        )
        parts.append(("prepositional", tree))
    if clause.goal:
        case = "accusative" if clause.goal[0] == "in" else "dative"
        parts.append(
            ("goal", _german_prepositional(*clause.goal, case, key + "g"))
        )
    if clause.predicate:
        tree = node("ADJP", leaf("ADJD", clause.predicate, key + "Q"))
        parts.append(("predicate", tree))
    return parts


def german_clause(
    clause: Clause, key: str, order: str, front: str = "", *first: Tree
) -> list[Tree]:
    """The parts of a clause; order: the finite verb first, second, final.

    front: the role that goes to the front. first: what stands there but
    is no part of the clause.
    """
    finite, rest = _german_verbs(clause, key, order == "final")
    subject = german_phrase(clause.subject, "nominative", key + "s")
    parts = [("subject", subject), *_middle_field(clause, key)]
    before = [*first, *(tree for role, tree in parts if role == front)]
    field = [tree for role, tree in parts if role != front]
    if rest and rest[0].label != "PTKVZ":
        own = 0 if front == "subject" else 1  # the subject stays outside
        field, rest = field[:own], [node("VP", *field[own:], *rest)]
    if order == "final":
        ordered = [*before, *field, *rest, finite]
    else:
        ordered = [*before, finite, *field, *rest]
    if clause.complement:
        word = VERBS[clause.verb].slots[0].german
        inner = german_clause(clause.complement, key + "c", "final")
        said = node(
            "SBAR", leaf("KOUS", word, key + "C"), node("S", *inner)
        )
        ordered += [COMMA, said, CLOSING]
    return ordered


def _german_relative(clause: Clause, key: str) -> list[Tree]:
    """A relative clause between commas: pronoun first, verb last."""
    pronoun, *rest = german_clause(clause, key, "final", clause.gap)
    return [COMMA, node("SBAR", pronoun, node("S", *rest)), CLOSING]


def _german_question(clause: Clause) -> list[Tree]:
    """Verb first, or second after the word that asks."""
    if clause.asked in ASKED:
        word = leaf("PWAV", ASKED[clause.asked], "W")
        return german_clause(clause, "1", "second", "", node("ADVP", word))
    order = "second" if clause.asked else "first"
    return german_clause(clause, "1", order, clause.asked)


def _german_two(
    clause: Clause, conjunction: str, second: Clause, front: str
) -> list[Tree]:
    """Two clauses: the lower one is verb-final and may come first."""
    word = CONJUNCTIONS[conjunction]
    comma = leaf("$,", ",", "K")
    if conjunction in BELOW:
        inner = node("S", *german_clause(second, "2", "final"))
        lower = node("SBAR", leaf("KOUS", word, "C"), inner)
        if front == "second":
            return german_clause(clause, "1", "second", "", lower, comma)
        parts = german_clause(clause, "1", "second", front or "subject")
        return [*parts, COMMA, lower]
    parts = german_clause(clause, "1", "second", front or "subject")
    other = german_clause(second, "2", "second", "subject")
    return [
        node("S", *parts),
        *([comma] if word == "aber" else []),
        leaf("KON", word, "C"),
        node("S", *other),
    ]


def german_sentence(meaning: Meaning, front: str = "") -> Tree:
    """The German tree. front: the role that German puts first, "" for
    the subject; "second" for the second clause.
    """
    mood, clause, conjunction, second = meaning
    if mood == "question":
        parts = _german_question(clause)
    elif second is None:
        parts = german_clause(clause, "1", "second", front or "subject")
    else:
        parts = _german_two(clause, conjunction, second, front)
    end = "?" if mood == "question" else "."
    return _punctuated(node("S", *parts, leaf("$.", end, "E")))


def _punctuated(tree: Tree) -> Tree:
    """The tree without closing commas before punctuation."""
    leaves = tree.leaves()
    following = [*(leaf.label for leaf in leaves[1:]), ""]
    kept = [
        None if one == CLOSING and label in ("$,", "$.") else one
        for one, label in zip(leaves, following)
    ]
    return tree.over(iter(kept)) or tree
