"""Exported from the book; edit the chapter, then run `make export`."""

from collections.abc import Collection, Sequence
from functools import lru_cache
from hashlib import sha512
from typing import Any, TypeVar

from annotated.pocket import words
from annotated.pocket.meaning import Clause, Meaning, Phrase

__all__ = ["Draw", "draw_meaning", "draw_front"]


# E14-pocket-sentences.md: Choices from a hash
_Option = TypeVar("_Option")
_Words = tuple[str, ...]


class Draw:
    """Choices from a hash: the same in every Python, on every machine.

    Each choice is a digit of one large number, in a base of its own.
    """

    def __init__(self, name: str):
        self.name, self.block, self.number = name, 0, 0

    def randbelow(self, n: int) -> int:
        """Draw an integer from 0 to n - 1."""
        if self.number < 1 << 32:
            digest = sha512(f"{self.name} {self.block}".encode()).digest()
            self.number = int.from_bytes(digest, "big")
            self.block += 1
        self.number, digit = divmod(self.number, n)
        return digit

    def choice(self, options: Sequence[_Option]) -> _Option:
        """Draw one of the options."""
        return options[self.randbelow(len(options))]


# E14-pocket-sentences.md: Who and what
_CHOICES = {
    name: tuple(row.options.split(", "))
    for name, row in words.read_table("choices.tsv").items()
}
_FREE = (
    *(verb for verb in words.VERBS if verb not in _CHOICES["telling"]),
    *("sein", "sein"),  # three times as often as any other
)


@lru_cache
def _nouns_of(kinds: str) -> _Words:
    """The nouns of these kinds."""
    nouns = words.NOUNS.items()
    return tuple(name for name, row in nouns if row.kind in kinds)


@lru_cache
def _adjectives_of(noun: str) -> _Words:
    """The adjectives that go with a noun, a name or a pronoun."""
    kind = words.NOUNS[noun].kind if noun in words.NOUNS else "p"
    young = noun in ("Kind", "Junge", "Mädchen")
    never = ("alt", "jung") if young else ()
    rows = words.ADJECTIVES.values()
    fitting = (row.german for row in rows if kind in row.kinds)
    return tuple(word for word in fitting if word not in never)


@lru_cache
def _gaps_of(kind: str) -> tuple[tuple[str, str], ...]:
    """The (verb, role) pairs open to a relative pronoun of a kind."""
    gaps = []
    for name, verb in words.VERBS.items():
        if name in _FREE:
            roles = [("subject", verb.subject)]
            roles += [(slot.role, slot.kinds) for slot in verb.slots]
            gaps += [(name, role) for role, kinds in roles if kind in kinds]
    return tuple(gaps)


def _draw_adjectives(draw: Draw, noun: str) -> _Words:
    """No adjective (2 times in 3), one, or a size and another."""
    options = _adjectives_of(noun)
    if draw.randbelow(3):
        return ()
    if draw.randbelow(4):
        return (draw.choice(options),)
    sizes = [word for word in options if word in ("klein", "groß")]
    others = [word for word in options if word not in sizes]
    return tuple(draw.choice(group) for group in (sizes, others) if group)


def _draw_noun(
    draw: Draw, kinds: str, only: _Words = (), extra: _Words = ()
) -> Phrase:
    """A noun, perhaps plural, perhaps with adjectives.

    only: the allowed determiners; extra: more of them in the singular.
    """
    noun = draw.choice(_nouns_of(kinds))
    mass = not words.NOUNS[noun].german_plural
    plural = not mass and draw.randbelow(3) == 0
    options = _CHOICES["mass" if mass else "plural"]
    if not (mass or plural):
        options = _CHOICES["singular"] + extra
    if only:
        options = tuple(word for word in options if word in only)
    if noun in _CHOICES["unowned"]:  # meine Frau is my wife
        options = tuple(w for w in options if w not in words.OWNERS)
    determiner = draw.choice(options)
    return Phrase(noun, determiner, plural, _draw_adjectives(draw, noun))


def _draw_phrase(
    draw: Draw,
    kinds: str,
    pronouns: _Words,
    taken: set[str],
    only: _Words,
    extra: _Words = (),
) -> Phrase:
    """Draw a pronoun, name or noun not in taken, and add it to taken."""
    persons = "p" in kinds
    while True:
        choice = draw.randbelow(10)
        if pronouns and choice < (3 if persons else 1):
            phrase = Phrase(draw.choice(pronouns), "pronoun")
        elif persons and choice < 5:
            phrase = Phrase(draw.choice(tuple(words.NAMES)), "name")
        else:
            phrase = _draw_noun(draw, kinds, only, extra)
        if phrase.noun not in taken:
            break
    taken.add(phrase.noun)
    if phrase.noun in ("I", "we"):  # not "we see me"
        taken |= {"I", "we"}
    return phrase


def _draw_roles(
    draw: Draw,
    verb: Any,
    negated: bool,
    given: dict[str, Phrase],
    taken: set[str],
) -> dict[str, Any]:
    """The subject and the objects that the verb takes.

    nicht negates definite objects, kein indefinite ones.
    """
    roles: dict[str, Any] = dict(given)
    definite: _Words = words.DEFINITE if negated else ()
    if "subject" not in roles:
        pronouns = _CHOICES["person"] if "p" in verb.subject else ()
        extra = () if negated else ("every", "no")
        roles["subject"] = _draw_phrase(
            draw, verb.subject, pronouns, taken, definite, extra
        )
    for slot in verb.slots:
        if slot.role in roles or not slot.kinds:
            continue
        pronouns, only = (), definite
        if slot.role == "accusative":
            pronouns = ("it",)
            only = (*definite, "a", "bare") if negated else ()
        elif len(verb.slots) > 1:
            only = words.DEFINITE
        if "p" in slot.kinds:
            clear_only = slot.case == "accusative"
            pronouns = _CHOICES[
                "accusative person" if clear_only else "person"
            ]
        roles[slot.role] = _draw_phrase(
            draw, slot.kinds, pronouns, taken, only
        )
    return roles


# E14-pocket-sentences.md: When and where
def _draw_time(draw: Draw, clause: Clause) -> Clause:
    """Perhaps add a time or an adverb, never both."""
    aspect, tense = words.VERBS[clause.verb].aspect, clause.tense
    choice = draw.randbelow(6)
    passing = aspect in "ape" or clause.predicate in _CHOICES["passing"]
    plain = tense in ("present", "past")
    if choice < 2 and passing and tense not in words.MIDDLE:
        options = _CHOICES[f"time {tense}" if plain else "time later"]
        options = options[: 2 if clause.negated else 3]
        return clause._replace(time=draw.choice(options))
    denied = clause.negated or clause.subject.determiner == "no"
    if choice == 2 and plain and not denied and (passing or aspect == "s"):
        adverbs = _CHOICES["adverb" if passing else "adverb s"]
        return clause._replace(middle=draw.choice(adverbs))
    return clause


def _draw_adverbials(draw: Draw, clause: Clause) -> Clause:
    """Perhaps add a time or an adverb, and perhaps a place or a goal."""
    verb, clause = words.VERBS[clause.verb], _draw_time(draw, clause)
    runs = clause.verb == "laufen" and draw.randbelow(2) == 0
    if runs or clause.verb == "gehen":
        preposition = draw.choice(("in", "zu"))
        phrase = _draw_noun(draw, "lh", words.DEFINITE)
        return clause._replace(goal=(preposition, phrase))
    moves = clause.verb in _CHOICES["no place"] and clause.verb != "laufen"
    if verb.aspect in "ap" and not moves and draw.randbelow(6) == 0:
        preposition = draw.choice(("in", "in", "hinter"))
        kinds = "lh" if preposition == "in" else "h"
        phrase = _draw_noun(draw, kinds, ("the", "a", "my", "our"))
        if phrase.determiner != "the":
            phrase = phrase._replace(plural=False)
        return clause._replace(place=(preposition, phrase))
    return clause


# E14-pocket-sentences.md: Clauses
def _marked(phrase: Phrase) -> bool:
    """Whether its form distinguishes nominative from accusative."""
    if phrase.determiner == "pronoun":
        return phrase.noun not in ("she", "they", "it")
    if phrase.determiner in ("name", "bare"):
        return False
    return phrase.column == "masculine"  # der, den


def _clear(clause: Clause) -> bool:
    """Whether subject and accusative can be told apart in any order.

    By the verb's number, by case, or by sense: books do not read women.
    """
    subject, other = clause.subject, clause.accusative
    if other is None or subject.person != other.person:
        return True
    return other.kind not in "pa" or _marked(subject) or _marked(other)


def _draw_clause(
    draw: Draw,
    name: str,
    given: dict[str, Phrase] | None = None,
    depth: int = 0,
    taken: Collection[str] = (),
) -> Clause:
    """A clause with this verb; given: roles that are already filled.

    depth: how deeply to nest relative clauses in it, where possible;
    taken: words that it must not use.
    """
    verb, given = words.VERBS[name], given or {}
    used = {name, *taken, *(phrase.noun for phrase in given.values())}
    tense = draw.choice(_CHOICES[f"tense {verb.aspect}"])
    takes_not = tense not in ("progressive", "already")
    negated = draw.randbelow(6) == 0 and takes_not
    roles = _draw_roles(draw, verb, negated, given, used)
    if tense == "already" and roles["subject"].determiner == "no":
        tense = "past"
    described = _CHOICES["described"]
    describable = [r for r in roles if roles[r].determiner in described]
    if depth and describable:
        role = draw.choice(describable)
        roles[role] = _draw_relative(draw, roles[role], depth, used)
    clause = Clause(name, **roles, tense=tense, negated=negated)
    if name == "sein":  # "will be" only for passing states, not "old"
        word = draw.choice(_adjectives_of(clause.subject.noun))
        if tense == "will" and word not in _CHOICES["passing"]:
            clause = clause._replace(tense="present")
        clause = clause._replace(predicate=word)
    inner = any(p.determiner == "relative" for p in roles.values())
    if inner and name != "gehen" and draw.randbelow(3):
        return clause  # relative clauses are kept short
    return _draw_adverbials(draw, clause)


def _draw_relative(
    draw: Draw, head: Phrase, depth: int, taken: Collection[str]
) -> Phrase:
    """The phrase with an unambiguous relative clause, if there is one."""
    known = Phrase(head.noun, "relative", head.plural)
    gaps = _gaps_of(words.NOUNS[head.noun].kind)
    gaps = tuple((name, role) for name, role in gaps if name not in taken)
    while gaps:
        name, role = draw.choice(gaps)
        clause = _draw_clause(draw, name, {role: known}, depth - 1, taken)
        if role in ("dative", "prepositional") or _clear(clause):
            first = head.adjectives[:1]
            return head._replace(adjectives=first, relative=clause)
    return head  # no suitable verb is left


# E14-pocket-sentences.md: Questions, and two clauses
def _askable(clause: Clause) -> list[str]:
    """What a question about the clause can ask for."""
    options, aspect = ["why"], words.VERBS[clause.verb].aspect
    for role in ("subject", "accusative", "dative", "prepositional"):
        phrase = getattr(clause, role)
        if phrase and (phrase.kind == "p" or role == "accusative"):
            options += [role, role]
    stays = clause.verb not in _CHOICES["no place"]
    if aspect in "ap" and stays and not clause.place:
        options.append("where")
    dated = clause.time or clause.middle or clause.tense in words.MIDDLE
    if aspect in "ape" and not dated:
        options.append("when")
    return options


def _draw_question(draw: Draw) -> Meaning:
    """A question: yes or no; about a role; or where, when or why."""
    clause = _draw_clause(draw, draw.choice(_FREE))
    if clause.subject.determiner == "no":
        subject = clause.subject._replace(determiner="the")
        clause = clause._replace(subject=subject)
    asked = draw.choice(_askable(clause)) if draw.randbelow(2) else ""
    if asked != "why":
        clause = clause._replace(negated=False)
    if asked and asked not in words.ASKED:
        word = "who" if getattr(clause, asked).kind == "p" else "what"
        change: dict[str, Any] = {asked: Phrase(word, "question")}
        clause = clause._replace(**change)
    return Meaning("question", clause._replace(asked=asked))


def _resumed(phrase: Phrase) -> Phrase | None:
    """The pronoun that refers back to a person, if there is one."""
    pronouns = {"masculine": "he", "feminine": "she", "plural": "they"}
    word = None
    if phrase.determiner == "pronoun":
        word = phrase.noun
    elif phrase.determiner == "name":
        word = words.NAMES[phrase.noun]
    elif phrase.kind == "p":
        word = pronouns.get(phrase.column)
    return Phrase(word, "pronoun") if word else None


def _draw_next(draw: Draw, subject: Phrase, depth: int) -> Clause:
    """Another clause, half the time about the same person."""
    pronoun = _resumed(subject)
    if pronoun and draw.randbelow(2):
        people = [v for v in _FREE if "p" in words.VERBS[v].subject]
        name, given = draw.choice(people), {"subject": pronoun}
    else:
        name, given = draw.choice(_FREE), {}
    return _draw_clause(draw, name, given, depth, (subject.noun,))


def _draw_two(draw: Draw, depth: int) -> Meaning:
    """Two clauses, coordinated or one subordinate to the other."""
    clause = _draw_clause(draw, draw.choice(_FREE), {}, depth)
    second = _draw_next(draw, clause.subject, depth)
    conjunction = draw.choice(tuple(words.CONJUNCTIONS))
    if conjunction == "if" and "past" in (clause.tense, second.tense):
        conjunction = "because"
    return Meaning("statement", clause, conjunction, second)


def _draw_telling(draw: Draw, depth: int) -> Meaning:
    """A person says, believes, hopes or asks something."""
    name = draw.choice(_CHOICES["telling"])
    negated = name in ("sagen", "glauben") and draw.randbelow(4) == 0
    roles = _draw_roles(draw, words.VERBS[name], negated, {}, set())
    inner = _draw_next(draw, roles["subject"], depth)
    clause = Clause(name, **roles, complement=inner, negated=negated)
    return Meaning("statement", clause)


def draw_meaning(draw: Draw, deep: bool = False) -> Meaning:
    """Draw a meaning; a deep one nests clauses in clauses."""
    choice = draw.randbelow(20)
    if choice < 4 and not deep:
        return _draw_question(draw)
    if choice < 6:
        return _draw_telling(draw, int(deep))
    if choice < 10:
        return _draw_two(draw, int(deep))
    depth = 2 if deep else int(choice < 14)
    clause = _draw_clause(draw, draw.choice(_FREE), {}, depth)
    return Meaning("statement", clause)


def draw_front(draw: Draw, meaning: Meaning) -> str:
    """Draw what German puts first, "" for the subject."""
    clause = meaning.clause
    if meaning.mood == "question" or draw.randbelow(3):
        return ""
    options = [role for role in ("time", "place") if getattr(clause, role)]
    if meaning.conjunction in words.SUBORDINATING:
        options.append("second")
    for role in ("accusative", "dative", "prepositional"):
        phrase = getattr(clause, role)
        if phrase is None or phrase.determiner == "pronoun":
            continue
        plain = role != "dative" or phrase.determiner != "name"
        if role == "accusative":
            plain = _clear(clause) and not clause.denied_by_kein
        if plain:
            options.append(role)
    return draw.choice(options) if options else ""
