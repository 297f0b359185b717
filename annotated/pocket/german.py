"""Exported from the book; edit the chapter, then run `make export`."""

from annotated.pocket import words
from annotated.pocket.meaning import SPECIAL, Clause, Meaning, Phrase
from annotated.pocket.trees import Part, Tree, leaf, node

__all__ = ["german_clause", "german_sentence"]


# E13-pocket-grammar.md: Words
def _german_noun(name: str, case: str, plural: bool) -> str:
    """A noun inflected for case and number: den Jungen, den Kindern."""
    row = words.NOUNS[name]
    if plural:
        bare = case != "dative" or row.german_plural[-1] in "ns"
        return str(row.german_plural + ("" if bare else "n"))
    weak = row.gender == "weak" and case != "nominative"
    return str(row.german_plural if weak else name)


def _german_present(name: str, person: str) -> str:
    """Present tense without prefix: lese, liest, liest, lesen."""
    row = words.VERBS[name]
    plural, second = name.removeprefix(row.prefix), row.third[:-1]
    second += "t" if second[-1] in "sz" else "st"  # du liest, du lernst
    first, third = plural.removesuffix("n"), row.third
    forms = {"ich": first, "du": second, "er": third, "wir": plural}
    return str(forms[person])


# E13-pocket-grammar.md: German phrases
_ENDINGS = words.read_table("endings.tsv")
_CONTRACTIONS = {"in dem": "im", "zu dem": "zum", "zu der": "zur"}

_COMMA = leaf("$,", ",")
_CLOSING = leaf("$,", ",", "closing")  # dropped before other punctuation


def _german_phrase(
    phrase: Phrase, case: str, key: str, negation: str = ""
) -> Tree:
    """An inflected noun phrase; negation: the key that kein adds."""
    if phrase.determiner == "name":
        return node("NP", leaf("NE", phrase.noun, key))
    if phrase.determiner in ("pronoun", "question"):
        tag = "PPER" if phrase.determiner == "pronoun" else "PWS"
        word = getattr(words.PRONOUNS[phrase.noun], case)
        return node("NP", leaf(tag, word, key))
    if phrase.determiner == "relative":
        word = _ending("relative", case, phrase)
        return node("NP", leaf("PRELS", word, key))
    parts, series = [], "strong"
    if phrase.determiner != "bare":
        row = words.DETERMINERS[phrase.determiner]
        word = row.stem + _ending(row.endings, case, phrase)
        keys = (key + "D", negation) if negation else (key + "D",)
        parts.append(leaf(row.tag, word, *keys))
        series = row.adjective
    for i, adjective in enumerate(phrase.adjectives):
        word = adjective.removesuffix("e") + _ending(series, case, phrase)
        parts.append(leaf("ADJA", word, f"{key}A{i}"))
    noun = _german_noun(phrase.noun, case, phrase.plural)
    parts.append(leaf("NN", noun, key + "N"))
    if phrase.relative:
        parts += _german_relative(phrase.relative, key + "r")
    return node("NP", *parts)


def _ending(series: str, case: str, phrase: Phrase) -> str:
    return str(getattr(_ENDINGS[f"{series} {case}"], phrase.column))


def _german_prepositional(
    preposition: str, phrase: Phrase, case: str, key: str
) -> Tree:
    """A preposition and its noun phrase; in dem becomes im."""
    tree = _german_phrase(phrase, case, key)
    if phrase.determiner == "the":
        article, *others = tree.children
        fused = _CONTRACTIONS.get(f"{preposition} {article.word}")
        if fused:
            word = leaf("APPRART", fused, key + "P", key + "D")
            return node("PP", word, node("NP", *others))
    return node("PP", leaf("APPR", preposition, key + "P"), tree)


def _german_time(time: str, key: str) -> Tree:
    """A time phrase: heute, am Abend, jeden Tag."""
    preposition, article, noun = key + "P", key + "D", key + "N"
    if time == "evening":
        word = leaf("APPRART", "am", preposition, article)
        return node("PP", word, node("NP", leaf("NN", "Abend", noun)))
    if time == "every day":
        word = leaf("PIAT", "jeden", article)
        return node("NP", word, leaf("NN", "Tag", noun))
    return node("ADVP", leaf("ADV", words.PARTICLES["day"][time], key))


# E13-pocket-grammar.md: The German clause
def _german_verbs(
    clause: Clause, key: str, final: bool
) -> tuple[Tree, list[Tree]]:
    """The finite verb, and the rest of the verb, which comes last."""
    verb, tense = words.VERBS[clause.verb], clause.tense
    person, t, v = clause.subject.person, key + "T", key + "V"
    if tense in words.FINITE:  # werden or a modal, with the infinitive
        row = words.FINITE[tense]
        finite = leaf(row.tag, getattr(row, person), t, key + "M")
        return finite, [leaf("VVINF", clause.verb, v)]
    if clause.verb == "sein":
        row = words.FINITE["war" if tense == "past" else "ist"]
        return leaf(row.tag, getattr(row, person), t, v), []
    if tense in ("past", "already"):  # the perfect
        row = words.FINITE[verb.auxiliary]
        finite = leaf(row.tag, getattr(row, person), t)
        return finite, [leaf("VVPP", verb.participle, v)]
    word = _german_present(clause.verb, person)
    if final:
        return leaf("VVFIN", verb.prefix + word, t, v), []
    rest = [leaf("PTKVZ", verb.prefix, v)] if verb.prefix else []
    return leaf("VVFIN", word, t, v), rest


def _middle_field(clause: Clause, key: str) -> list[Part]:
    """Everything between the finite verb and the other verbs, in order.

    Gibt es ihm; gibt dem Kind das Buch; gibt dem Kind ein Buch.
    """
    pronouns: list[Part] = []
    known: list[Part] = []
    new: list[Part] = []
    for role in ("dative", "accusative"):
        phrase, negation = getattr(clause, role), ""
        if phrase is None:
            continue
        if role == "accusative" and clause.denied_by_kein:
            phrase, negation = phrase._replace(determiner="no"), key + "N"
        tree = _german_phrase(phrase, role, key + role[0], negation)
        if phrase.determiner == "pronoun":
            pronouns.insert(0, (role, tree))
        elif phrase.determiner in words.DEFINITE + SPECIAL:
            known.append((role, tree))
        else:
            new.append((role, tree))
    before, after = pronouns, known
    if clause.time:
        before.append(("time", _german_time(clause.time, key + "t")))
    if clause.negated and not clause.denied_by_kein:
        after.append(("negation", leaf("PTKNEG", "nicht", key + "N")))
    adverb = words.PARTICLES["middle"].get(clause.middle or clause.tense)
    if adverb:
        tree = node("ADVP", leaf("ADV", adverb, key + "M"))
        side = before if adverb == "gerade" else after
        side.append(("middle", tree))
    return before + after + new + _german_places(clause, key)


def _german_places(clause: Clause, key: str) -> list[Part]:
    """What comes last: in the garden, for the boy, into town, tired."""
    parts = []
    if clause.place:
        tree = _german_prepositional(*clause.place, "dative", key + "l")
        parts.append(("place", tree))
    if clause.prepositional:
        slot = words.VERBS[clause.verb].slots[0]
        tree = _german_prepositional(
            slot.german, clause.prepositional, slot.case, key + "p"
        )
        parts.append(("prepositional", tree))
    if clause.goal:
        case = "accusative" if clause.goal[0] == "in" else "dative"
        tree = _german_prepositional(*clause.goal, case, key + "g")
        parts.append(("goal", tree))
    if clause.predicate:
        tree = node("ADJP", leaf("ADJD", clause.predicate, key + "Q"))
        parts.append(("predicate", tree))
    return parts


def german_clause(
    clause: Clause, key: str, order: str, front: str = "", *first: Tree
) -> list[Tree]:
    """The parts of a clause; order: finite verb first, second or final.

    front: the role that goes to the front. first: trees that come first
    but are not part of the clause.
    """
    finite, rest = _german_verbs(clause, key, order == "final")
    subject = _german_phrase(clause.subject, "nominative", key + "s")
    parts = [("subject", subject), *_middle_field(clause, key)]
    before = [*first, *(tree for role, tree in parts if role == front)]
    field = [tree for role, tree in parts if role != front]
    if rest and rest[0].label != "PTKVZ":
        outer = 0 if front == "subject" else 1  # the subject stays outside
        field, rest = field[:outer], [node("VP", *field[outer:], *rest)]
    if order == "final":
        ordered = [*before, *field, *rest, finite]
    else:
        ordered = [*before, finite, *field, *rest]
    if clause.complement:
        word = words.VERBS[clause.verb].slots[0].german
        inner = german_clause(clause.complement, key + "c", "final")
        head = leaf("KOUS", word, key + "C")
        said = node("SBAR", head, node("S", *inner))
        ordered += [_COMMA, said, _CLOSING]
    return ordered


def _german_relative(clause: Clause, key: str) -> list[Tree]:
    """A relative clause between commas: pronoun first, verb last."""
    pronoun, *rest = german_clause(clause, key, "final", clause.gap)
    return [_COMMA, node("SBAR", pronoun, node("S", *rest)), _CLOSING]


def german_sentence(meaning: Meaning, front: str = "") -> Tree:
    """The German tree. front: the role that German puts first, "" for
    the subject, "second" for the second clause.
    """
    mood, clause, conjunction, second = meaning
    end, comma = leaf("$.", ".", "E"), leaf("$,", ",", "K")
    if mood == "question":  # verb first, or second after a question word
        end, order = leaf("$.", "?", "E"), "second"
        before: list[Tree] = []
        if clause.asked in words.PARTICLES["question"]:
            asked = leaf(
                "PWAV", words.PARTICLES["question"][clause.asked], "W"
            )
            before.append(node("ADVP", asked))
        elif not clause.asked:
            order = "first"
        parts = german_clause(clause, "1", order, clause.asked, *before)
        return _punctuated(node("S", *parts, end))
    if second is not None and conjunction in words.SUBORDINATING:
        inner = node("S", *german_clause(second, "2", "final"))
        word = leaf(
            "KOUS", words.PARTICLES["conjunction"][conjunction], "C"
        )
        lower = node("SBAR", word, inner)
        if front == "second":
            parts = german_clause(clause, "1", "second", "", lower, comma)
            return _punctuated(node("S", *parts, end))
        parts = german_clause(clause, "1", "second", front or "subject")
        return _punctuated(node("S", *parts, _COMMA, lower, end))
    parts = german_clause(clause, "1", "second", front or "subject")
    if second is None:
        return _punctuated(node("S", *parts, end))
    other = german_clause(second, "2", "second", "subject")
    word = leaf("KON", words.PARTICLES["conjunction"][conjunction], "C")
    between = comma if conjunction == "but" else None
    halves = node("S", *parts), between, word, node("S", *other)
    return _punctuated(node("S", *halves, end))


def _punctuated(tree: Tree) -> Tree:
    """Drop closing commas that come before other punctuation."""
    leaves = tree.leaves()
    if _CLOSING not in leaves:
        return tree
    following = [*(leaf.label for leaf in leaves[1:]), ""]
    kept = [
        None if one == _CLOSING and label in ("$,", "$.") else one
        for one, label in zip(leaves, following)
    ]
    return tree.over(iter(kept)) or tree
