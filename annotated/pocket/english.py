"""Exported from the book; edit the chapter, then run `make export`."""

import re
from collections.abc import Iterator

from annotated.pocket import words
from annotated.pocket.meaning import SPECIAL, Clause, Meaning, Phrase
from annotated.pocket.trees import Part, Tree, leaf, node

__all__ = ["english_sentence"]


# E13-pocket-grammar.md: English phrases
_AUXILIARIES = words.read_table("auxiliaries.tsv")  # be, was, have, do
_PREPOSITIONS = {"in": "in", "hinter": "behind", "zu": "to"}


def _english_phrase(
    phrase: Phrase, case: str, key: str, negated: bool = False
) -> Tree:
    """A noun phrase; case: subject, object or preposition.

    negated, where German has kein: a book, any books, any milk.
    """
    if phrase.determiner in SPECIAL:
        return _english_pronoun(phrase, case, key)
    noun, name = words.NOUNS[phrase.noun], phrase.determiner
    said = [words.ADJECTIVES[word].english for word in phrase.adjectives]
    parts = [leaf("JJ", word, f"{key}A{i}") for i, word in enumerate(said)]
    last = noun.english_plural if phrase.plural else noun.english
    parts.append(leaf("NNS" if phrase.plural else "NN", last, key + "N"))
    if name == "bare":
        first = "any" if negated else ""
    elif name == "a":
        first = "an" if parts[0].word[0] in "aeiou" else "a"
    else:
        row = words.DETERMINERS[name]
        first = row.english_plural if phrase.plural else row.english
    if first:
        tags = {"two": "CD", "three": "CD", "many": "JJ"}
        tag = "PRP$" if first in words.OWNERS else tags.get(first, "DT")
        parts.insert(0, leaf(tag, first, key + "D"))
    tree = node("NP", *parts)
    if phrase.relative is None:
        return tree
    return node("NP", tree, _english_relative(phrase.relative, key + "r"))


def _english_pronoun(phrase: Phrase, case: str, key: str) -> Tree:
    """A name or a pronoun: he, him; who, whom, that, of which; what."""
    if phrase.determiner == "name":
        return node("NP", leaf("NNP", phrase.noun, key))
    noun, relative = phrase.noun, phrase.determiner == "relative"
    if relative and phrase.kind != "p":
        word = "which" if case == "preposition" else "that"
        return node("WHNP", leaf("WDT", word, key))
    row = words.PRONOUNS["who" if relative else noun]
    word = row.english if case == "subject" else row.english_object
    if phrase.determiner == "pronoun":
        return node("NP", leaf("PRP", word, key))
    return node("WHNP", leaf("WP", word, key))


def _english_prepositional(
    preposition: str, phrase: Phrase, key: str, *word_keys: str
) -> Tree:
    """A preposition, with its own keys, and its noun phrase."""
    tree = _english_phrase(phrase, "preposition", key)
    label = "WHPP" if tree.label == "WHNP" else "PP"
    return node(label, _english_preposition(preposition, *word_keys), tree)


def _english_preposition(word: str, *keys: str) -> Tree:
    return leaf("TO" if word == "to" else "IN", word, *keys)


def _english_time(time: str, key: str) -> Tree:
    """A time phrase: today, in the evening, every day."""
    if time not in ("evening", "every day"):
        return node("NP", leaf("NN", time, key))
    article, noun = ("the", time) if time == "evening" else time.split()
    first = leaf("DT", article, key + "D")
    tree = node("NP", first, leaf("NN", noun, key + "N"))
    if time == "every day":
        return tree
    return node("PP", leaf("IN", "in", key + "P"), tree)


def _third_person(word: str) -> str:
    """The third person singular: reads, watches, carries, has."""
    if re.search(r"(s|sh|ch|x|o)$", word):
        return word + "es"
    if re.search(r"[^aeiou]y$", word):
        return word[:-1] + "ies"
    return "has" if word == "have" else word + "s"


def _ing(word: str) -> str:
    """The -ing form: reading, writing, running."""
    if re.search(r"[^e]e$", word):
        return word[:-1] + "ing"
    if re.search(r"^[^aeiou]*[aeiou][^aeiouwxy]$", word):
        return word + word[-1] + "ing"
    return word + "ing"


# E13-pocket-grammar.md: The English clause
def _english_verbs(
    clause: Clause, key: str, person: str, support: bool
) -> list[Tree]:
    """The verbs in order, the finite one first: reads, has read, is
    reading, likes to read. support: add do if there is no auxiliary.
    """
    verb, tense = words.VERBS[clause.verb], clause.tense
    present = "VBZ" if person == "er" else "VBP"
    t, v, m = key + "T", key + "V", key + "M"
    if tense in ("will", "can", "may", "should"):
        return [leaf("MD", tense, t, m), leaf("VB", verb.english, v)]
    if tense == "progressive":
        finite = leaf(present, _form("be", person), t, m)
        return [finite, leaf("VBG", _ing(verb.english), v)]
    if tense == "already":
        finite = leaf(present, _form("have", person), t)
        return [finite, leaf("VBN", verb.past_participle, v)]
    if verb.english == "be":
        name, tag = ("was", "VBD") if tense == "past" else ("be", present)
        return [leaf(tag, _form(name, person), t, v)]
    head, head_key, rest = verb.english, v, []
    if tense in ("likes", "have_to", "want_to"):
        head = "like" if tense == "likes" else words.FINITE[tense].english
        head_key = m
        rest = [leaf("TO", "to", m), leaf("VB", verb.english, v)]
    tag = "VBD" if tense == "past" else present
    if support:
        do = "did" if tense == "past" else _form("do", person)
        return [leaf(tag, do, t), leaf("VB", head, head_key), *rest]
    if tense == "past":
        head = verb.past
    elif person == "er":
        head = _third_person(head)
    return [leaf(tag, head, t, head_key), *rest]


def _form(name: str, person: str) -> str:
    return str(getattr(_AUXILIARIES[name], person))


def _verb_group(
    clause: Clause, key: str, person: str, invert: bool
) -> tuple[Tree, Tree | None, Tree | None, list[Tree]]:
    """The finite verb, the negation, the adverb, and the other verbs."""
    support = invert or clause.negated
    finite, *others = _english_verbs(clause, key, person, support)
    negation = leaf("RB", "not", key + "N") if clause.negated else None
    if negation and clause.tense == "can" and not invert:
        finite = leaf("MD", "cannot", *finite.keys, *negation.keys)
        negation = None
    word = "already" if clause.tense == "already" else clause.middle
    adverb = node("ADVP", leaf("RB", word, key + "M")) if word else None
    return finite, negation, adverb, others


def _english_roles(clause: Clause, front: str) -> list[tuple[str, str]]:
    """The objects in English order, each with its preposition, if any.

    She gives the man a book, but: gives it to the man; the book that she
    gives to the man. gefallen swaps its roles: I like it.
    """
    if clause.verb == "gefallen":
        return [("subject", "")]
    slots = words.VERBS[clause.verb].slots
    if len(slots) < 2:
        return [(s.role, s.english) for s in slots if s.kinds]
    thing = clause.accusative
    pronoun = thing is not None and thing.determiner == "pronoun"
    if pronoun or front in ("dative", "accusative"):
        return [("accusative", ""), ("dative", "to")]
    return [("dative", ""), ("accusative", "")]


def _english_objects(
    clause: Clause, key: str, front: str
) -> Iterator[Part]:
    """The role and tree of each object.

    The for that translates auf moves to the front with its noun: for
    whom. The for of "look for" belongs to suchen and stays. The to of
    "give to" has no German counterpart.
    """
    alone = len(words.VERBS[clause.verb].slots) == 1
    for role, preposition in _english_roles(clause, front):
        phrase, name = getattr(clause, role), key + role[0]
        part_of_verb = alone and role != "prepositional"
        keys = [key + "V" if part_of_verb else name + "P"] if alone else []
        stays = part_of_verb and role == front
        if preposition and not stays:
            tree = _english_prepositional(preposition, phrase, name, *keys)
            yield role, tree
            continue
        negated = role == "accusative" and clause.denied_by_kein
        yield role, _english_phrase(phrase, "object", name, negated)
        if preposition:
            word = _english_preposition(preposition, *keys)
            yield "left", node("PP", word)


def _english_rest(clause: Clause, key: str, front: str) -> list[Part]:
    """The role and tree of everything after the verbs, in order."""
    parts = list(_english_objects(clause, key, front))
    particle = words.VERBS[clause.verb].particle
    if particle:  # picks up the man, but: picks him up
        thing = clause.accusative
        late = thing is not None and thing.determiner == "pronoun"
        tree = node("PRT", leaf("RP", particle, key + "V"))
        parts.insert(int(late), ("particle", tree))
    if clause.predicate:
        word = words.ADJECTIVES[clause.predicate].english
        tree = node("ADJP", leaf("JJ", word, key + "Q"))
        parts.append(("predicate", tree))
    if clause.goal:
        into = "into" if clause.goal[0] == "in" else "to"
        name, phrase = key + "g", clause.goal[1]
        tree = _english_prepositional(into, phrase, name, name + "P")
        parts.append(("goal", tree))
    if clause.place:
        where = _PREPOSITIONS[clause.place[0]]
        name, phrase = key + "l", clause.place[1]
        tree = _english_prepositional(where, phrase, name, name + "P")
        parts.append(("place", tree))
    if clause.time:
        parts.append(("time", _english_time(clause.time, key + "t")))
    if clause.complement:
        that = words.VERBS[clause.verb].slots[0].english
        _, inner = _english_clause(clause.complement, key + "c")
        tree = node("SBAR", leaf("IN", that, key + "C"), node("S", *inner))
        parts.append(("complement", tree))
    return parts


def _english_clause(
    clause: Clause,
    key: str,
    front: str = "",
    invert: bool = False,
    last: Tree | None = None,
) -> tuple[Tree | None, list[Tree | None]]:
    """The tree that goes to the front, if any, and the rest in order.

    invert: verb before subject, as in questions. last: a tree that ends
    the verb phrase.
    """
    role = "dative" if clause.verb == "gefallen" else "subject"
    phrase = getattr(clause, role)
    subject = _english_phrase(phrase, "subject", key + role[0])
    parts = _english_rest(clause, key, front)
    first: Tree | None = dict(parts).get(front)
    rest = [tree for role, tree in parts if role != front]
    if front == role:
        first, invert = subject, False
    finite, negation, adverb, others = _verb_group(
        clause, key, phrase.person, invert
    )
    rest += [last] if last else []
    for verb in reversed(others):  # each verb heads what follows it
        rest = [node("VP", verb, *rest)]
        if verb.label == "TO":
            rest = [node("S", *rest)]
    if invert:
        return first, [finite, subject, negation, adverb, *rest]
    head = [finite, negation, adverb]
    plain = clause.tense in ("present", "past") and clause.verb != "sein"
    if plain and not negation:  # often reads, but: is often
        head = [adverb, finite]
    outside = None if front == role else subject
    return first, [outside, node("VP", *head, *rest)]


def _english_relative(clause: Clause, key: str) -> Tree:
    """A relative clause that begins with who, that, to whom, for which."""
    pronoun, rest = _english_clause(clause, key, clause.gap)
    return node("SBAR", pronoun, node("S", *rest))


def english_sentence(meaning: Meaning, front: str = "") -> Tree:
    """The English tree; times and places are fronted as in German."""
    mood, clause, conjunction, second = meaning
    if mood == "question":
        end, asked = leaf(".", "?", "E"), clause.asked
        first, parts = _english_clause(clause, "1", asked, invert=True)
        if not asked:
            return node("SQ", *parts, end)
        if asked in words.PARTICLES["question"]:
            first = node("WHADVP", leaf("WRB", asked, "W"))
        return node("SBARQ", first, node("SQ", *parts), end)
    end = leaf(".", ".", "E")
    moved = front if front in ("time", "place") else ""
    if second is None:
        first, parts = _english_clause(clause, "1", moved)
        return node("S", first, *parts, end)
    comma = leaf(",", ",", "K")
    inner = node("S", *_english_clause(second, "2")[1])
    if conjunction not in words.SUBORDINATING:
        first, parts = _english_clause(clause, "1", moved)
        word = leaf("CC", conjunction, "C")
        before = comma if conjunction == "but" else None
        return node("S", node("S", first, *parts), before, word, inner, end)
    lower = node("SBAR", leaf("IN", conjunction, "C"), inner)
    if front == "second":
        upper = _english_clause(clause, "1")[1]
        return node("S", lower, comma, *upper, end)
    first, parts = _english_clause(clause, "1", moved, last=lower)
    return node("S", first, *parts, end)
