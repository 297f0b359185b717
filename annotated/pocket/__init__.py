"""Pocket German, a small language made by a grammar: a meaning is drawn and
said in German and in English, as two trees whose words are aligned. Read
words, meaning, german and english; then how a meaning is drawn, and the
pairs, here.

In the order of the book: trees (E13), words (E13), german (E13), meaning
(E13), english (E13), relations (E14).

Exported from the book; edit the chapter, then run `make export`.
"""

import itertools
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha512
from pathlib import Path
from typing import Any, TypeVar

from annotated.engine.errors import check_whole
from annotated.pocket import words
from annotated.pocket.english import english_sentence
from annotated.pocket.german import german_sentence
from annotated.pocket.meaning import Clause, Meaning, Phrase
from annotated.pocket.trees import Tree

__all__ = [
    "SPLITS", "Pair", "realise", "depth", "draw_pairs", "pocket_pairs",
    "write_samples",
]  # fmt: skip


# E14-pocket-sentences.md: Choices from a hash
_Option = TypeVar("_Option")
_Words = tuple[str, ...]


class _Draw:
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


def _draw_adjectives(draw: _Draw, noun: str) -> _Words:
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
    draw: _Draw, kinds: str, only: _Words = (), extra: _Words = ()
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
    draw: _Draw,
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
    draw: _Draw,
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
def _draw_time(draw: _Draw, clause: Clause) -> Clause:
    """Perhaps add a time or an adverb, never both."""
    aspect, tense = words.VERBS[clause.verb].aspect, clause.tense
    choice = draw.randbelow(6)
    passing = aspect in "ape" or clause.predicate in _CHOICES["passing"]
    plain = tense in ("present", "past")
    if choice < 2 and passing and tense not in words.PARTICLES["middle"]:
        options = _CHOICES[f"time {tense}" if plain else "time later"]
        options = options[: 2 if clause.negated else 3]
        return clause._replace(time=draw.choice(options))
    denied = clause.negated or clause.subject.determiner == "no"
    if choice == 2 and plain and not denied and (passing or aspect == "s"):
        adverbs = _CHOICES["adverb" if passing else "adverb s"]
        return clause._replace(middle=draw.choice(adverbs))
    return clause


def _draw_adverbials(draw: _Draw, clause: Clause) -> Clause:
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
    draw: _Draw,
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
    draw: _Draw, head: Phrase, depth: int, taken: Collection[str]
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
    dated = (
        clause.time
        or clause.middle
        or clause.tense in words.PARTICLES["middle"]
    )
    if aspect in "ape" and not dated:
        options.append("when")
    return options


def _draw_question(draw: _Draw) -> Meaning:
    """A question: yes or no; about a role; or where, when or why."""
    clause = _draw_clause(draw, draw.choice(_FREE))
    if clause.subject.determiner == "no":
        subject = clause.subject._replace(determiner="the")
        clause = clause._replace(subject=subject)
    asked = draw.choice(_askable(clause)) if draw.randbelow(2) else ""
    if asked != "why":
        clause = clause._replace(negated=False)
    if asked and asked not in words.PARTICLES["question"]:
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


def _draw_next(draw: _Draw, subject: Phrase, depth: int) -> Clause:
    """Another clause, half the time about the same person."""
    pronoun = _resumed(subject)
    if pronoun and draw.randbelow(2):
        people = [v for v in _FREE if "p" in words.VERBS[v].subject]
        name, given = draw.choice(people), {"subject": pronoun}
    else:
        name, given = draw.choice(_FREE), {}
    return _draw_clause(draw, name, given, depth, (subject.noun,))


def _draw_two(draw: _Draw, depth: int) -> Meaning:
    """Two clauses, coordinated or one subordinate to the other."""
    clause = _draw_clause(draw, draw.choice(_FREE), {}, depth)
    second = _draw_next(draw, clause.subject, depth)
    conjunction = draw.choice(tuple(words.PARTICLES["conjunction"]))
    if conjunction == "if" and "past" in (clause.tense, second.tense):
        conjunction = "because"
    return Meaning("statement", clause, conjunction, second)


def _draw_telling(draw: _Draw, depth: int) -> Meaning:
    """A person says, believes, hopes or asks something."""
    name = draw.choice(_CHOICES["telling"])
    negated = name in ("sagen", "glauben") and draw.randbelow(4) == 0
    roles = _draw_roles(draw, words.VERBS[name], negated, {}, set())
    inner = _draw_next(draw, roles["subject"], depth)
    clause = Clause(name, **roles, complement=inner, negated=negated)
    return Meaning("statement", clause)


def _draw_meaning(draw: _Draw, deep: bool = False) -> Meaning:
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


def _draw_front(draw: _Draw, meaning: Meaning) -> str:
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


# E14-pocket-sentences.md: Pairs and splits
SPLITS = {  # fewest and most words, in both languages
    "train": (2, 16),
    "valid": (2, 16),
    "test": (2, 16),
    "generalisation": (17, 30),
}


@dataclass(frozen=True)
class Pair:
    """A German sentence, its translation, and their word alignment.

    Words and punctuation are separated by single spaces; only the first
    word and words that always have a capital begin with one. alignment:
    sorted (source word, target word) indices from 0. front: see realise.
    """

    source: str
    target: str
    alignment: tuple[tuple[int, int], ...]
    meaning: Meaning
    front: str = ""

    @property
    def lengths(self) -> tuple[int, int]:
        """The number of words in the source and in the target."""
        return self.source.count(" ") + 1, self.target.count(" ") + 1

    @property
    def source_tree(self) -> Tree:
        return _capitalised(german_sentence(self.meaning, self.front))

    @property
    def target_tree(self) -> Tree:
        return _capitalised(english_sentence(self.meaning, self.front))


def _capitalised(tree: Tree) -> Tree:
    """The tree with its first letter capitalised."""
    first, *rest = tree.leaves()
    word = first.word[0].upper() + first.word[1:]
    return tree.over(iter([first._replace(word=word), *rest])) or tree


def realise(meaning: Meaning, front: str = "") -> Pair:
    """Express a meaning in both languages.

    front: the role that German puts first, "" for the subject, "second"
    for the second clause.
    """
    german = german_sentence(meaning, front).leaves()
    english = english_sentence(meaning, front).leaves()
    indices: dict[str, list[int]] = {}
    for j, leaf in enumerate(english):
        for key in leaf.keys:
            indices.setdefault(key, []).append(j)
    links = {
        (i, j)
        for i, leaf in enumerate(german)
        for key in leaf.keys
        for j in indices.get(key, ())
    }
    sides = [" ".join(leaf.word for leaf in x) for x in (german, english)]
    source, target = (side[0].upper() + side[1:] for side in sides)
    return Pair(source, target, tuple(sorted(links)), meaning, front)


def depth(meaning: Meaning) -> int:
    """How deeply clauses are nested below the main clause."""
    first, second = _nesting(meaning.clause), 0
    if meaning.second is not None:
        below = meaning.conjunction in words.SUBORDINATING
        second = below + _nesting(meaning.second)
    return max(first, second)


def _nesting(clause: Clause) -> int:
    phrases = [part for part in clause if isinstance(part, Phrase)]
    inner = [clause.complement, *(phrase.relative for phrase in phrases)]
    return max((1 + _nesting(c) for c in inner if c), default=0)


def _split_of(pair: Pair) -> str:
    """The split of a pair, regardless of what German puts first.

    The German sentence with its subject first identifies the meaning.
    """
    if depth(pair.meaning) > 1:
        return "generalisation"
    name = pair.source
    if pair.front:
        told = german_sentence(pair.meaning).words()
        name = told[0].upper() + told[1:]
    bucket = zlib.crc32(name.encode()) % 10
    return {0: "test", 1: "valid"}.get(bucket, "train")


def draw_pairs(name: str, deep: bool = False) -> Iterator[Pair]:
    """Endless pairs, of every split and length; name is the seed."""
    for attempt in itertools.count():
        draw = _Draw(f"{name} {attempt}")
        meaning = _draw_meaning(draw, deep)
        yield realise(meaning, _draw_front(draw, meaning))


def pocket_pairs(
    count: int, split: str = "train", seed: int = 0
) -> list[Pair]:
    """The first count pairs of train, valid, test or generalisation.

    The same arguments give the same pairs everywhere, without duplicates.
    No meaning is in two splits, whatever the seeds; all sentences in
    generalisation are longer and more deeply nested than any of the
    others. Raises ValueError for an invalid argument.
    """
    if split not in SPLITS:
        names = ", ".join(SPLITS)
        raise ValueError(f"split must be one of {names}, not {split!r}")
    check_whole("count", count, least=0)
    check_whole("seed", seed, least=0)
    pairs: dict[str, Pair] = {}
    shortest, longest = SPLITS[split]
    drawn = draw_pairs(f"{split} {seed}", split == "generalisation")
    while len(pairs) < count:
        pair = next(drawn)
        few, many = sorted(pair.lengths)
        fits = shortest <= few and many <= longest
        if fits and _split_of(pair) == split:
            pairs.setdefault(pair.source, pair)
    return list(pairs.values())


def write_samples(folder: Path, count: int = 200) -> None:
    """Write SPLIT.tsv with the first pairs of each split."""
    names = ("source", "target", "alignment", "source_tree", "target_tree")
    for split in SPLITS:
        lines = ["\t".join(names)]
        for pair in pocket_pairs(count, split):
            links = " ".join(f"{i}-{j}" for i, j in pair.alignment)
            trees = str(pair.source_tree), str(pair.target_tree)
            lines.append(
                "\t".join([pair.source, pair.target, links, *trees])
            )
        text = "".join(f"{line}\n" for line in lines)
        (folder / f"{split}.tsv").write_bytes(text.encode())
