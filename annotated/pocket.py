"""annotated.pocket.

Exported from the book; edit the chapter, then run `make export`.

- 17-pocket-german.md: Pocket German: a translator in two minutes
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha512
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

__all__ = [
    "Noun",
    "rows",
    "LIVING",
    "PLACES",
    "THINGS",
    "NOUNS",
    "NAMES",
    "ADJECTIVES",
    "PASSING",
    "Slot",
    "read_slot",
    "Verb",
    "INTRANSITIVE",
    "TRANSITIVE",
    "OTHER_VERBS",
    "VERBS",
    "Pronoun",
    "PRONOUNS",
    "DETERMINERS",
    "OWNERS",
    "DEFINITE",
    "ENDINGS",
    "RELATIVE",
    "WHO",
    "FINITE",
    "ENGLISH_FINITE",
    "TIMES",
    "MIDDLE",
    "ASKED",
    "CONJUNCTIONS",
    "BELOW",
    "Phrase",
    "Clause",
    "Meaning",
    "Pair",
    "leaf",
    "node",
    "SPECIAL",
    "person",
    "column",
    "german_noun",
    "german_phrase",
    "german_special",
    "english_phrase",
    "english_determiner",
    "english_special",
    "PREPOSITIONS",
    "CONTRACTIONS",
    "german_prepositional",
    "english_prepositional",
    "german_present",
    "german_verbs",
    "denies",
    "german_objects",
    "german_adverbials",
    "german_clause",
    "COMMA",
    "CLOSING",
    "german_complement",
    "gap",
    "german_relative",
    "third_person",
    "ing",
    "english_plain_verbs",
    "english_verbs",
    "english_verb_group",
    "english_roles",
    "english_objects",
    "english_rest",
    "english_places",
    "english_relative",
    "english_clause",
    "english_verb_phrases",
    "german_question",
    "german_two",
    "german_sentence",
    "english_question",
    "english_sentence",
    "english_two",
    "LEAF",
    "DROPPED",
    "finish",
    "realise",
    "Option",
    "Draw",
    "TELLING",
    "FREE",
    "PERSONAL",
    "STAYING",
    "nouns_of",
    "adjectives_of",
    "gaps_of",
    "SINGULAR",
    "PLURAL",
    "MASS",
    "UNOWNED",
    "draw_adjectives",
    "draw_noun",
    "draw_phrase",
    "PERSONS",
    "draw_object",
    "draw_roles",
    "COMMON",
    "MODALS",
    "TENSES",
    "TIMES_OF",
    "SOON",
    "draw_time",
    "draw_place",
    "draw_adverbials",
    "OPEN",
    "draw_clause",
    "draw_predicate",
    "kind_of",
    "marked",
    "clear",
    "draw_relative",
    "askable",
    "ask",
    "draw_question",
    "resumed",
    "draw_next",
    "draw_two",
    "draw_telling",
    "draw_meaning",
    "draw_front",
    "SPLITS",
    "nesting",
    "split_of",
    "pocket_pairs",
    "check_arguments",
    "pharaoh",
    "write_samples",
    "alignment_error_rate",
]


# 17-pocket-german.md: The words
class Noun(NamedTuple):
    """A row of the nouns; the plural "-" marks a mass noun.

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


def rows(table: str) -> list[list[str]]:
    """The words of each line of a table."""
    return [line.split() for line in table.splitlines() if line]


LIVING = """
Mann      m  Männer       man        men         p
Frau      f  Frauen       woman      women       p
Kind      n  Kinder       child      children    p
Junge     w  Jungen       boy        boys        p
Mädchen   n  Mädchen      girl       girls       p
Lehrer    m  Lehrer       teacher    teachers    p
Ärztin    f  Ärztinnen    doctor     doctors     p
Nachbar   w  Nachbarn     neighbour  neighbours  p
Freundin  f  Freundinnen  friend     friends     p
Hund      m  Hunde        dog        dogs        a
Katze     f  Katzen       cat        cats        a
Pferd     n  Pferde       horse      horses      a
"""
PLACES = """
Garten    m  Gärten       garden     gardens     l
Park      m  Parks        park       parks       l
Stadt     f  Städte       city       cities      l
Haus      n  Häuser       house      houses      h
Schule    f  Schulen      school     schools     h
"""


THINGS = """
Apfel     m  Äpfel        apple      apples      f
Birne     f  Birnen       pear       pears       f
Ei        n  Eier         egg        eggs        f
Brot      n  -            bread      -           m
Käse      m  -            cheese     -           m
Suppe     f  -            soup       -           m
Milch     f  -            milk       -           d
Tee       m  -            tea        -           d
Wasser    n  -            water      -           d
Buch      n  Bücher       book       books       t
Roman     m  Romane       novel      novels      t
Zeitung   f  Zeitungen    newspaper  newspapers  t
Brief     m  Briefe       letter     letters     n
Gedicht   n  Gedichte     poem       poems       n
Bild      n  Bilder       picture    pictures    o
Fahrrad   n  Fahrräder    bicycle    bicycles    o
Koffer    m  Koffer       suitcase   suitcases   o
Schlüssel m  Schlüssel    key        keys        o
Tasche    f  Taschen      bag        bags        o
Fenster   n  Fenster      window     windows     w
Schrank   m  Schränke     cupboard   cupboards   w
Tür       f  Türen        door       doors       w
"""
NOUNS = {row[0]: Noun(*row) for row in rows(LIVING + PLACES + THINGS)}
NAMES = {"Anna": "she", "Jonas": "he", "Lena": "she", "Paul": "he"}


ADJECTIVES = {  # English, and the kinds of noun that it goes with
    row[0]: (row[1], row[2])
    for row in rows("""
klein       small      paotnwhl
groß        big        aotwhlf
alt         old        paotwhl
neu         new        otwh
jung        young      pa
müde        tired      pa
krank       sick       pa
glücklich   happy      p
freundlich  friendly   pa
schön       beautiful  otnhl
warm        warm       md
kalt        cold       md
frisch      fresh      fmd
rot         red        owf
""")
}
PASSING = ("müde", "krank", "glücklich")  # one may be so today only


class Slot(NamedTuple):
    """An object that a verb asks for, and how each side marks it."""

    role: str  # accusative, dative, prepositional or complement
    case: str
    german: str  # a preposition, a conjunction or nothing
    english: str
    kinds: str


def read_slot(text: str) -> Slot:
    """Read a slot as the tables write it: A:tn, D/to:p, A.auf/for:pa."""
    match = re.fullmatch(r"([ADC])\.?(\w*)/?(\w*):(\w*)", text)
    if match is None:
        raise ValueError(f"{text!r} is no slot of a verb")
    letter, german, english, kinds = match.groups()
    cases = {"A": "accusative", "D": "dative", "C": "complement"}
    role = "prepositional" if german and kinds else cases[letter]
    return Slot(role, cases[letter], german, english, kinds)


class Verb(NamedTuple):
    """A row of the verbs.

    aspect says what goes with it: a activity, everything; p process, no
    gern; e event, no gerade either; s state, no modal; q being.
    """

    infinitive: str  # a bar behind a separable prefix: an|rufen
    third: str
    participle: str
    auxiliary: str
    english: str  # a bar before a particle: get|up
    past: str
    past_participle: str
    aspect: str
    subject: str  # the kinds that may be its subject
    slots: tuple[Slot, ...]


INTRANSITIVE = """
sein          ist      gewesen        ist be was been q paotfmdnwhl
schlafen      schläft  geschlafen     hat sleep slept slept a pa
arbeiten      arbeitet gearbeitet     hat work worked worked a p
lachen        lacht    gelacht        hat laugh laughed laughed p p
singen        singt    gesungen       hat sing sang sung a p
gehen         geht     gegangen       ist go went gone a p
laufen        läuft    gelaufen       ist run ran run a pa
auf|stehen    steht    aufgestanden   ist get|up got got a p
zurück|kommen kommt    zurückgekommen ist come|back came come e p
an|kommen     kommt    angekommen     ist arrive arrived arrived e p
ein|kaufen    kauft    eingekauft     hat shop shopped shopped a p
"""


TRANSITIVE = """
lesen       liest    gelesen     hat read read read a p A:tn
schreiben   schreibt geschrieben hat write wrote written a p A:n
essen       isst     gegessen    hat eat ate eaten a p A:fm
trinken     trinkt   getrunken   hat drink drank drunk a p A:d
kaufen      kauft    gekauft     hat buy bought bought p p A:fmdto
sehen       sieht    gesehen     hat see saw seen e pa A:paotwh
suchen      sucht    gesucht     hat look looked looked p pa A/for:paot
finden      findet   gefunden    hat find found found e pa A:paot
tragen      trägt    getragen    hat carry carried carried p p A:o
waschen     wäscht   gewaschen   hat wash washed washed p p A:af
malen       malt     gemalt      hat paint painted painted a p A:pafh
besuchen    besucht  besucht     hat visit visited visited a p A:p
lieben      liebt    geliebt     hat love loved loved s p A:pa
brauchen    braucht  gebraucht   hat need needed needed s p A:otmd
an|rufen    ruft     angerufen   hat call called called p p A:p
ab|holen    holt     abgeholt    hat pick|up picked picked p p A:p
ein|laden   lädt     eingeladen  hat invite invited invited a p A:p
auf|machen  macht    aufgemacht  hat open opened opened p p A:w
zu|machen   macht    zugemacht   hat close closed closed p p A:w
mit|bringen bringt   mitgebracht hat bring brought brought e p A:fmdto
"""


OTHER_VERBS = """
helfen    hilft   geholfen  hat help helped helped a p D:p
danken    dankt   gedankt   hat thank thanked thanked p p D:p
folgen    folgt   gefolgt   ist follow followed followed p pa D:pa
zu|hören  hört    zugehört  hat listen listened listened a p D/to:p
gefallen  gefällt gefallen  hat like liked liked s tnoh D:p
geben     gibt    gegeben   hat give gave given p p D/to:p A:ofmdt
zeigen    zeigt   gezeigt   hat show showed shown p p D/to:p A:otnah
schicken  schickt geschickt hat send sent sent p p D/to:p A:on
warten    wartet  gewartet  hat wait waited waited p pa A.auf/for:pa
denken    denkt   gedacht   hat think thought thought p p A.an/of:paot
spielen   spielt  gespielt  hat play played played a pa D.mit/with:pa
sprechen  spricht gesprochen hat talk talked talked a p D.mit/to:p
sagen     sagt    gesagt    hat say said said s p C.dass/that:
glauben   glaubt  geglaubt  hat believe believed believed s p C.dass/that:
hoffen    hofft   gehofft   hat hope hoped hoped s p C.dass/that:
fragen    fragt   gefragt   hat ask asked asked s p C.ob/whether:
"""
VERBS = {
    row[0].replace("|", ""): Verb._make(
        [*row[:9], tuple(map(read_slot, row[9:]))]
    )
    for row in rows(INTRANSITIVE + TRANSITIVE + OTHER_VERBS)
}


class Pronoun(NamedTuple):
    """A row of the pronouns; "-" where German could be misread."""

    nominative: str
    accusative: str
    dative: str
    english: str
    english_object: str
    person: str  # 0 ich, 1 du, 2 er, 3 wir and the plural sie


PRONOUNS = {
    row[3]: Pronoun(*row)
    for row in rows("""
ich  mich  mir    I     me    0
du   dich  dir    you   you   1
er   ihn   ihm    he    him   2
sie  -     ihr    she   her   2
-    es    -      it    it    2
wir  uns   uns    we    us    3
sie  -     ihnen  they  them  3
""")
}


DETERMINERS = {  # stem, its endings, the adjective's, tag, English sg., pl.
    row[0]: row[1:]
    for row in rows("""
the    d      definite  weak    ART     the    the
a      ein    ein       mixed   ART     a      any
no     kein   ein       mixed   PIAT    no     no
my     mein   ein       mixed   PPOSAT  my     my
your   dein   ein       mixed   PPOSAT  your   your
his    sein   ein       mixed   PPOSAT  his    his
our    unser  ein       mixed   PPOSAT  our    our
this   dies   strong    weak    PDAT    this   these
every  jed    strong    weak    PIAT    every  -
two    zwei   none      strong  CARD    -      two
three  drei   none      strong  CARD    -      three
many   viel   strong    strong  PIAT    -      many
""")
}
OWNERS = ("my", "your", "his", "our")
DEFINITE = ("the", "this", *OWNERS)


ENDINGS = {  # masculine, feminine, neuter, plural in each case
    (row[0], case): [ending.strip("-") for ending in row[i : i + 4]]
    for row in rows("""
definite  er ie as ie   en ie as ie   em er em en
strong    er e  es e    en e  es e    em er em en
ein       -  e  -  e    en e  -  e    em er em en
weak      e  e  e  en   en e  e  en   en en en en
mixed     er e  es en   en e  es en   en en en en
none      -  -  -  -    -  -  -  -    -  -  -  -
""")
    for i, case in ((1, "nominative"), (5, "accusative"), (9, "dative"))
}
RELATIVE = {
    "nominative": ("der", "die", "das", "die"),
    "accusative": ("den", "die", "das", "die"),
    "dative": ("dem", "der", "dem", "denen"),
}
WHO = {"nominative": "wer", "accusative": "wen", "dative": "wem"}


FINITE = {  # ich, du, er, wir; tag; the English modal or verb before "to"
    row[0]: row[1:]
    for row in rows("""
hat      habe   hast    hat    haben   VAFIN  -
ist      bin    bist    ist    sind    VAFIN  -
war      war    warst   war    waren   VAFIN  -
will     werde  wirst   wird   werden  VAFIN  will
can      kann   kannst  kann   können  VMFIN  can
may      darf   darfst  darf   dürfen  VMFIN  may
should   soll   sollst  soll   sollen  VMFIN  should
have_to  muss   musst   muss   müssen  VMFIN  have
want_to  will   willst  will   wollen  VMFIN  want
""")
}
ENGLISH_FINITE = {  # I, you, he, we
    "be": ("am", "are", "is", "are"),
    "was": ("was", "were", "was", "were"),
    "have": ("have", "have", "has", "have"),
    "do": ("do", "do", "does", "do"),
}


TIMES = {  # both trees; {0} is where the key of the alignment goes
    "today": ("(ADVP (ADV heute|{0}))", "(NP (NN today|{0}))"),
    "yesterday": ("(ADVP (ADV gestern|{0}))", "(NP (NN yesterday|{0}))"),
    "tomorrow": ("(ADVP (ADV morgen|{0}))", "(NP (NN tomorrow|{0}))"),
    "evening": (
        "(PP (APPRART am|{0}P+{0}D) (NP (NN Abend|{0}N)))",
        "(PP (IN in|{0}P) (NP (DT the|{0}D) (NN evening|{0}N)))",
    ),
    "every day": (
        "(NP (PIAT jeden|{0}D) (NN Tag|{0}N))",
        "(NP (DT every|{0}D) (NN day|{0}N))",
    ),
}


MIDDLE = {  # adverbs, and tenses that German makes with an adverb
    "always": "immer",
    "never": "nie",
    "often": "oft",
    "sometimes": "manchmal",
    "already": "schon",
    "likes": "gern",
    "progressive": "gerade",
}
ASKED = {"where": "wo", "when": "wann", "why": "warum"}
CONJUNCTIONS = {
    "and": "und",
    "but": "aber",
    "because": "weil",
    "although": "obwohl",
    "if": "wenn",
}
BELOW = ("because", "although", "if")  # the clause after these is lower


# 17-pocket-german.md: What a sentence says
class Phrase(NamedTuple):
    """Who or what: a noun, with all that belongs to it.

    determiner: a row of DETERMINERS, or bare, name, pronoun (noun is then
    a row of PRONOUNS), relative (the noun that a relative clause is
    about), question (noun is who or what).
    """

    noun: str
    determiner: str = "the"
    plural: bool = False
    adjectives: tuple[str, ...] = ()
    relative: Clause | None = None


class Clause(NamedTuple):
    """Who does what to whom, when and where; verb is in German.

    tense: present, past, progressive, already, likes, or a modal: will,
    can, may, should, have_to, want_to. asked: the role that a question
    asks for, or where, when, why.
    """

    verb: str
    subject: Phrase
    accusative: Phrase | None = None
    dative: Phrase | None = None
    prepositional: Phrase | None = None
    complement: Clause | None = None  # what is said, believed, asked
    predicate: str = ""  # an adjective, with sein
    tense: str = "present"
    negated: bool = False
    middle: str = ""  # always, never, often or sometimes
    time: str = ""  # a row of TIMES
    place: tuple[str, Phrase] | None = None  # in or hinter, and what
    goal: tuple[str, Phrase] | None = None  # in or zu, and what
    asked: str = ""


class Meaning(NamedTuple):
    """What a sentence says, whatever it puts first.

    mood: statement or question. A conjunction brings a second clause.
    """

    mood: str
    clause: Clause
    conjunction: str = ""
    second: Clause | None = None


@dataclass(frozen=True)
class Pair:
    """A German sentence, its translation, and how they correspond.

    Words and punctuation stand between single blanks; only the first word
    and what is always large begin large. alignment: (source word, target
    word), from 0, sorted. Trees are bracketed, (LABEL child …).
    """

    source: str
    target: str
    alignment: tuple[tuple[int, int], ...]
    source_tree: str
    target_tree: str


# 17-pocket-german.md: One meaning, two trees
def leaf(tag: str, word: str, keys: str = "") -> str:
    """A word under its tag. Words that share a key are aligned."""
    return f"({tag} {word}|{keys})"


def node(label: str, *children: str) -> str:
    """A label over its children; empty ones are left out."""
    return f"({label} {' '.join(filter(None, children))})"


SPECIAL = ("name", "pronoun", "relative", "question")


def person(phrase: Phrase) -> int:
    """The form that its verb takes: 0 ich, 1 du, 2 er, 3 wir."""
    if phrase.determiner == "pronoun":
        return int(PRONOUNS[phrase.noun].person)
    return 3 if phrase.plural else 2


def column(phrase: Phrase) -> int:
    """Its column of ENDINGS: masculine, feminine, neuter, plural."""
    if phrase.plural:
        return 3
    return "mfnw".index(NOUNS[phrase.noun].gender) % 3


def german_noun(phrase: Phrase, case: str) -> str:
    """The noun in its case: den Jungen, den Kindern."""
    noun = NOUNS[phrase.noun]
    if phrase.plural:
        more = case == "dative" and noun.german_plural[-1] not in "ns"
        return noun.german_plural + "n" * more
    weak = noun.gender == "w" and case != "nominative"
    return noun.german_plural if weak else noun.german


def german_phrase(
    phrase: Phrase, case: str, key: str, negation: str = ""
) -> str:
    """A noun phrase whose words agree; negation: a key that kein adds."""
    if phrase.determiner in SPECIAL:
        return node("NP", german_special(phrase, case, key))
    parts, strength = [], "strong"
    if phrase.determiner != "bare":
        stem, endings, strength, tag, *_ = DETERMINERS[phrase.determiner]
        word = stem + ENDINGS[endings, case][column(phrase)]
        parts.append(leaf(tag, word, f"{key}D{negation}"))
    ending = ENDINGS[strength, case][column(phrase)]
    for i, adjective in enumerate(phrase.adjectives):
        word = adjective.removesuffix("e") + ending
        parts.append(leaf("ADJA", word, f"{key}A{i}"))
    parts.append(leaf("NN", german_noun(phrase, case), f"{key}N"))
    if phrase.relative:
        parts += german_relative(phrase.relative, key + "r")
    return node("NP", *parts)


def german_special(phrase: Phrase, case: str, key: str) -> str:
    """A name, a pronoun, a relative pronoun, wer or was."""
    if phrase.determiner == "name":
        return leaf("NE", phrase.noun, key)
    if phrase.determiner == "pronoun":
        return leaf("PPER", getattr(PRONOUNS[phrase.noun], case), key)
    if phrase.determiner == "relative":
        return leaf("PRELS", RELATIVE[case][column(phrase)], key)
    word = "was" if phrase.noun == "what" else WHO[case]
    return leaf("PWS", word, key)


def english_phrase(
    phrase: Phrase, case: str, key: str, negated: bool = False
) -> str:
    """The same in English; case: subject, object or preposition."""
    if phrase.determiner in SPECIAL:
        return english_special(phrase, case, key)
    noun = NOUNS[phrase.noun]
    last = noun.english_plural if phrase.plural else noun.english
    words = [ADJECTIVES[word][0] for word in phrase.adjectives]
    parts = [leaf("JJ", w, f"{key}A{i}") for i, w in enumerate(words)]
    parts.append(leaf("NNS" if phrase.plural else "NN", last, f"{key}N"))
    first = english_determiner(phrase, [*words, last][0], negated)
    if first:
        tags = {"two": "CD", "three": "CD", "many": "JJ"}
        tag = "PRP$" if first in OWNERS else tags.get(first, "DT")
        parts.insert(0, leaf(tag, first, f"{key}D"))
    tree = node("NP", *parts)
    if phrase.relative is None:
        return tree
    return node("NP", tree, english_relative(phrase.relative, key + "r"))


def english_determiner(
    phrase: Phrase, following: str, negated: bool
) -> str:
    """The determiner before the word that follows, or nothing.

    What kein denies is a book, any books, any milk.
    """
    name = phrase.determiner
    if name == "bare":
        return "any" if negated else ""
    if name == "a":
        return "an" if following[0] in "aeiou" else "a"
    return DETERMINERS[name][5 if phrase.plural else 4]


def english_special(phrase: Phrase, case: str, key: str) -> str:
    """A name or a pronoun: he, him; who, whom, that, of which; what."""
    if phrase.determiner == "name":
        return node("NP", leaf("NNP", phrase.noun, key))
    if phrase.determiner == "pronoun":
        row = PRONOUNS[phrase.noun]
        word = row.english if case == "subject" else row.english_object
        return node("NP", leaf("PRP", word, key))
    if phrase.determiner == "relative" and NOUNS[phrase.noun].kind != "p":
        word = "which" if case == "preposition" else "that"
        return node("WHNP", leaf("WDT", word, key))
    word = "who" if case == "subject" else "whom"
    word = "what" if phrase.noun == "what" else word
    return node("WHNP", leaf("WP", word, key))


PREPOSITIONS = {"in": "in", "hinter": "behind", "zu": "to"}
CONTRACTIONS = {"in dem": "im", "zu dem": "zum", "zu der": "zur"}


def german_prepositional(
    preposition: str, phrase: Phrase, case: str, key: str
) -> str:
    """A preposition and its noun phrase; in dem is im."""
    tree = german_phrase(phrase, case, key)
    if phrase.determiner == "the":
        article = "d" + ENDINGS["definite", case][column(phrase)]
        short = CONTRACTIONS.get(f"{preposition} {article}")
        if short:
            word = leaf("APPRART", short, f"{key}P+{key}D")
            article = leaf("ART", article, f"{key}D")
            return node("PP", word, tree.replace(f"{article} ", "", 1))
    return node("PP", leaf("APPR", preposition, f"{key}P"), tree)


def english_prepositional(
    preposition: str, phrase: Phrase, key: str, word_key: str
) -> str:
    """The same in English; word_key is the preposition's own key."""
    tree = english_phrase(phrase, "preposition", key)
    label = "WHPP" if tree.startswith("(WHNP") else "PP"
    tag = "TO" if preposition == "to" else "IN"
    return node(label, leaf(tag, preposition, word_key), tree)


# 17-pocket-german.md: The German clause
def german_present(verb: Verb, who: int) -> str:
    """The present without its prefix: lese, liest, liest, lesen."""
    plural = verb.infinitive.rpartition("|")[2]
    second = verb.third[:-1]  # as er, but in st; s and z swallow the s
    second += "t" if second[-1] in "sz" else "st"
    return (plural.removesuffix("n"), second, verb.third, plural)[who]


def german_verbs(
    clause: Clause, key: str, final: bool
) -> tuple[str, list[str]]:
    """The finite verb, and the rest of the verb, which comes last."""
    verb, tense = VERBS[clause.verb], clause.tense
    who = person(clause.subject)
    t, v, tv = f"{key}T", f"{key}V", f"{key}T+{key}V"
    if tense in FINITE:
        finite = leaf(FINITE[tense][4], FINITE[tense][who], f"{t}+{key}M")
        return finite, [leaf("VVINF", clause.verb, v)]
    if clause.verb == "sein":
        forms = FINITE["war" if tense == "past" else "ist"]
        return leaf("VAFIN", forms[who], tv), []
    if tense in ("past", "already"):
        finite = leaf("VAFIN", FINITE[verb.auxiliary][who], t)
        return finite, [leaf("VVPP", verb.participle, v)]
    prefix = verb.infinitive.rpartition("|")[0]
    if final:
        return leaf("VVFIN", prefix + german_present(verb, who), tv), []
    rest = [leaf("PTKVZ", prefix, v)] if prefix else []
    return leaf("VVFIN", german_present(verb, who), tv), rest


def denies(clause: Clause) -> bool:
    """Whether kein denies the clause, not nicht."""
    thing = clause.accusative
    indefinite = thing is not None and thing.determiner in ("a", "bare")
    return clause.negated and indefinite and clause.tense != "likes"


def german_objects(
    clause: Clause, key: str
) -> Iterator[tuple[int, str, str]]:
    """Place in the middle field, role and tree of each object.

    First pronouns (gibt es ihm), then definite noun phrases (gibt dem
    Kind das Buch), last indefinite ones.
    """
    for role, second in (("dative", 0), ("accusative", 1)):
        phrase = getattr(clause, role)
        if phrase is None:
            continue
        negation = ""
        if second and denies(clause):
            phrase, negation = phrase._replace(determiner="no"), f"+{key}N"
        place = 7 + second
        if phrase.determiner == "pronoun":
            place = 2 - second
        elif phrase.determiner in DEFINITE + SPECIAL:
            place = 4 + second
        tree = german_phrase(phrase, role, key + role[0], negation)
        yield place, role, tree


def german_adverbials(
    clause: Clause, key: str
) -> Iterator[tuple[int, str, str]]:
    """Place, role and tree of all else in the middle field."""
    if clause.time:
        yield 3, "time", TIMES[clause.time][0].format(key + "t")
    if clause.negated and not denies(clause):
        yield 6, "negation", leaf("PTKNEG", "nicht", f"{key}N")
    word = MIDDLE.get(clause.middle or clause.tense)
    if word:
        tree = node("ADVP", leaf("ADV", word, f"{key}M"))
        yield 3 if word == "gerade" else 6, "middle", tree
    if clause.place:
        tree = german_prepositional(*clause.place, "dative", key + "l")
        yield 9, "place", tree
    if clause.prepositional:
        slot, own = VERBS[clause.verb].slots[0], key + "p"
        tree = german_prepositional(
            slot.german, clause.prepositional, slot.case, own
        )
        yield 10, "prepositional", tree
    if clause.goal:
        case = "accusative" if clause.goal[0] == "in" else "dative"
        tree = german_prepositional(*clause.goal, case, key + "g")
        yield 11, "goal", tree
    if clause.predicate:
        word = leaf("ADJD", clause.predicate, f"{key}Q")
        yield 12, "predicate", node("ADJP", word)


def german_clause(
    clause: Clause, key: str, order: str, front: str = "", first: str = ""
) -> list[str]:
    """The parts of a clause; order: the finite verb first, second, final.

    front: the role that goes to the front. first: a tree that stands there
    but is no part of the clause.
    """
    finite, rest = german_verbs(clause, key, order == "final")
    subject = german_phrase(clause.subject, "nominative", key + "s")
    parts = [(0, "subject", subject), *german_objects(clause, key)]
    parts += german_adverbials(clause, key)
    parts.sort(key=lambda part: part[0])
    before = [first] if first else []
    before += [tree for _, role, tree in parts if role == front]
    field = [tree for _, role, tree in parts if role != front]
    if rest and not rest[0].startswith("(PTKVZ"):
        own = 0 if front == "subject" else 1  # the subject stays outside
        field, rest = field[:own], [node("VP", *field[own:], *rest)]
    if order == "final":
        ordered = [*before, *field, *rest, finite]
    else:
        ordered = [*before, finite, *field, *rest]
    return ordered + german_complement(clause, key)


COMMA = leaf("$,", ",")
CLOSING = leaf("$,", ",", "closing")  # not where punctuation follows


def german_complement(clause: Clause, key: str) -> list[str]:
    """The clause with dass or ob, or nothing."""
    if clause.complement is None:
        return []
    word = leaf("KOUS", VERBS[clause.verb].slots[0].german, f"{key}C")
    inner = german_clause(clause.complement, key + "c", "final")
    return [COMMA, node("SBAR", word, node("S", *inner)), CLOSING]


def gap(clause: Clause) -> str:
    """The role of the relative pronoun."""
    for role in ("subject", "accusative", "dative"):
        phrase = getattr(clause, role)
        if phrase is not None and phrase.determiner == "relative":
            return role
    return "prepositional"


def german_relative(clause: Clause, key: str) -> list[str]:
    """A relative clause between commas: pronoun first, verb last."""
    pronoun, *rest = german_clause(clause, key, "final", gap(clause))
    return [COMMA, node("SBAR", pronoun, node("S", *rest)), CLOSING]


# 17-pocket-german.md: The English clause
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


def english_plain_verbs(
    verb: Verb, tense: str, key: str, who: int, support: bool
) -> list[str]:
    """Reads, read, likes to read; with support, does … read."""
    base = head = verb.english.partition("|")[0]
    own, rest = f"{key}V", []
    if tense in ("likes", "have_to", "want_to"):
        head = "like" if tense == "likes" else FINITE[tense][5]
        own = f"{key}M"
        rest = [leaf("TO", "to", own), leaf("VB", base, f"{key}V")]
    tag = "VBD" if tense == "past" else "VBZ" if who == 2 else "VBP"
    if support:
        do = "did" if tense == "past" else ENGLISH_FINITE["do"][who]
        return [leaf(tag, do, f"{key}T"), leaf("VB", head, own), *rest]
    if tense == "past":
        head = verb.past
    elif who == 2:
        head = third_person(head)
    return [leaf(tag, head, f"{key}T+{own}"), *rest]


def english_verbs(
    clause: Clause, key: str, who: int, support: bool
) -> list[str]:
    """The verbs in order, the finite one first.

    support: put do where there is no other auxiliary.
    """
    verb, tense = VERBS[clause.verb], clause.tense
    base, tag = verb.english.partition("|")[0], "VBZ" if who == 2 else "VBP"
    t, v, tm = f"{key}T", f"{key}V", f"{key}T+{key}M"
    if tense in ("will", "can", "may", "should"):
        return [leaf("MD", tense, tm), leaf("VB", base, v)]
    if tense == "progressive":
        be = leaf(tag, ENGLISH_FINITE["be"][who], tm)
        return [be, leaf("VBG", ing(base), v)]
    if tense == "already":
        have = leaf(tag, ENGLISH_FINITE["have"][who], t)
        return [have, leaf("VBN", verb.past_participle, v)]
    if base == "be":
        name, tag = ("was", "VBD") if tense == "past" else ("be", tag)
        return [leaf(tag, ENGLISH_FINITE[name][who], f"{t}+{v}")]
    return english_plain_verbs(verb, tense, key, who, support)


def english_verb_group(
    clause: Clause, key: str, who: int, invert: bool
) -> tuple[str, str, str, list[str]]:
    """The finite verb, not, the adverb beside it, and the other verbs."""
    support = invert or clause.negated
    finite, *others = english_verbs(clause, key, who, support)
    negation = leaf("RB", "not", f"{key}N") if clause.negated else ""
    if negation and clause.tense == "can" and not invert:
        finite = leaf("MD", "cannot", f"{key}T+{key}M+{key}N")
        negation = ""
    word = "already" if clause.tense == "already" else clause.middle
    adverb = node("ADVP", leaf("RB", word, f"{key}M")) if word else ""
    return finite, negation, adverb, others


def english_roles(clause: Clause, front: str) -> list[tuple[str, str]]:
    """The objects in English order, each with its preposition, if any.

    She gives the man a book, but: gives it to the man; the book that she
    gives to the man. gefallen turns its roles round: I like it.
    """
    if clause.verb == "gefallen":
        return [("subject", "")]
    slots = VERBS[clause.verb].slots
    if len(slots) < 2:
        return [(s.role, s.english) for s in slots if s.kinds]
    thing = clause.accusative
    pronoun = thing is not None and thing.determiner == "pronoun"
    if pronoun or front in ("dative", "accusative"):
        return [("accusative", ""), ("dative", "to")]
    return [("dative", ""), ("accusative", "")]


def english_objects(
    clause: Clause, key: str, front: str
) -> Iterator[tuple[str, str]]:
    """Role and tree of each object.

    auf is for, and goes to the front with its noun: for whom. The for of
    "look for" belongs to suchen and stays. The to of "give to" answers to
    no German word.
    """
    alone = len(VERBS[clause.verb].slots) == 1
    for role, preposition in english_roles(clause, front):
        phrase, own = getattr(clause, role), key + role[0]
        part = alone and role != "prepositional"
        word = f"{key}V" if part else f"{own}P" if alone else ""
        if preposition and not (part and role == front):
            tree = english_prepositional(preposition, phrase, own, word)
        else:
            negated = role == "accusative" and denies(clause)
            tree = english_phrase(phrase, "object", own, negated)
        yield role, tree
        if preposition and part and role == front:
            tag = "TO" if preposition == "to" else "IN"
            yield "left", node("PP", leaf(tag, preposition, word))


def english_rest(
    clause: Clause, key: str, front: str
) -> list[tuple[str, str]]:
    """Role and tree of all that follows the verbs, in order."""
    parts = list(english_objects(clause, key, front))
    particle = VERBS[clause.verb].english.partition("|")[2]
    if particle:  # picks up the man, but: picks him up
        thing = clause.accusative
        late = thing is not None and thing.determiner == "pronoun"
        tree = node("PRT", leaf("RP", particle, f"{key}V"))
        parts.insert(int(late), ("particle", tree))
    if clause.predicate:
        word = leaf("JJ", ADJECTIVES[clause.predicate][0], f"{key}Q")
        parts.append(("predicate", node("ADJP", word)))
    parts += english_places(clause, key)
    if clause.time:
        parts.append(("time", TIMES[clause.time][1].format(key + "t")))
    if clause.complement:
        word = leaf("IN", VERBS[clause.verb].slots[0].english, f"{key}C")
        _, inner = english_clause(clause.complement, key + "c")
        parts.append(("", node("SBAR", word, node("S", *inner))))
    return parts


def english_places(clause: Clause, key: str) -> Iterator[tuple[str, str]]:
    """Into the garden; in the garden."""
    if clause.goal:
        preposition, phrase = clause.goal
        word = "into" if preposition == "in" else PREPOSITIONS[preposition]
        own = key + "g"
        yield "goal", english_prepositional(word, phrase, own, f"{own}P")
    if clause.place:
        preposition, phrase = clause.place
        word, own = PREPOSITIONS[preposition], key + "l"
        yield "place", english_prepositional(word, phrase, own, f"{own}P")


def english_relative(clause: Clause, key: str) -> str:
    """A relative clause, with who, that, to whom, for which in front."""
    pronoun, rest = english_clause(clause, key, gap(clause))
    return node("SBAR", pronoun, node("S", *rest))


def english_clause(
    clause: Clause,
    key: str,
    front: str = "",
    invert: bool = False,
    last: str = "",
) -> tuple[str, list[str]]:
    """What goes to the front, if anything, and the rest in order.

    invert: verb before subject, as questions have it. last: a tree that
    ends the verb phrase.
    """
    role = "dative" if clause.verb == "gefallen" else "subject"
    phrase = getattr(clause, role)
    subject = english_phrase(phrase, "subject", key + role[0])
    parts = english_rest(clause, key, front)
    first = "".join(tree for own, tree in parts if front and own == front)
    rest = [tree for own, tree in parts if not front or own != front]
    if front == role:
        first, subject, invert = subject, "", False
    finite, negation, adverb, others = english_verb_group(
        clause, key, person(phrase), invert
    )
    rest = english_verb_phrases(others, [*rest, last])
    if invert:
        return first, [finite, subject, negation, adverb, *rest]
    head = [finite, negation, adverb]
    plain = clause.tense in ("present", "past") and clause.verb != "sein"
    if plain and not negation:  # often reads, but: is often
        head = [adverb, finite]
    return first, [subject, node("VP", *head, *rest)]


def english_verb_phrases(verbs: list[str], rest: list[str]) -> list[str]:
    """Each verb the head of what follows it."""
    for verb in reversed(verbs):
        rest = [node("VP", verb, *rest)]
        if verb.startswith("(TO"):
            rest = [node("S", *rest)]
    return rest


# 17-pocket-german.md: Whole sentences
def german_question(clause: Clause) -> list[str]:
    """Verb first, or second after the word that asks."""
    if clause.asked in ASKED:
        word = leaf("PWAV", ASKED[clause.asked], "W")
        return german_clause(clause, "1", "second", "", node("ADVP", word))
    order = "second" if clause.asked else "first"
    return german_clause(clause, "1", order, clause.asked)


def german_two(
    clause: Clause, conjunction: str, second: Clause, front: str
) -> list[str]:
    """Two clauses: the lower one is verb-final and may come first."""
    word = CONJUNCTIONS[conjunction]
    if conjunction in BELOW:
        inner = node("S", *german_clause(second, "2", "final"))
        inner = node("SBAR", leaf("KOUS", word, "C"), inner)
        if front == "second":
            inner = f"{inner} {leaf('$,', ',', 'K')}"
            return german_clause(clause, "1", "second", "", inner)
        parts = german_clause(clause, "1", "second", front or "subject")
        return [*parts, COMMA, inner]
    parts = german_clause(clause, "1", "second", front or "subject")
    other = german_clause(second, "2", "second", "subject")
    comma = leaf("$,", ",", "K") if word == "aber" else ""
    word = leaf("KON", word, "C")
    return [node("S", *parts), comma, word, node("S", *other)]


def german_sentence(meaning: Meaning, front: str) -> str:
    """The German tree; front as in realise."""
    mood, clause, conjunction, second = meaning
    if mood == "question":
        parts = german_question(clause)
    elif second is None:
        parts = german_clause(clause, "1", "second", front or "subject")
    else:
        parts = german_two(clause, conjunction, second, front)
    end = "?" if mood == "question" else "."
    return node("S", *parts, leaf("$.", end, "E"))


def english_question(clause: Clause) -> str:
    """Inverted, after the word that asks if there is one."""
    end = leaf(".", "?", "E")
    first, parts = english_clause(clause, "1", clause.asked, invert=True)
    if clause.asked in ASKED:
        first = node("WHADVP", leaf("WRB", clause.asked, "W"))
    if not clause.asked:
        return node("SQ", *parts, end)
    return node("SBARQ", first, node("SQ", *parts), end)


def english_sentence(meaning: Meaning, front: str) -> str:
    """The English tree; times and places go to the front as in German."""
    mood, clause, conjunction, second = meaning
    if mood == "question":
        return english_question(clause)
    end, moved = leaf(".", ".", "E"), front * (front in ("time", "place"))
    if second is None:
        first, parts = english_clause(clause, "1", moved)
        return node("S", first, *parts, end)
    return node("S", *english_two(clause, conjunction, second, front), end)


def english_two(
    clause: Clause, conjunction: str, second: Clause, front: str
) -> list[str]:
    """Two clauses; the lower one may come first, as in German."""
    inner = node("S", *english_clause(second, "2")[1])
    moved = front * (front in ("time", "place"))
    if conjunction not in BELOW:
        first, parts = english_clause(clause, "1", moved)
        comma = leaf(",", ",", "K") if conjunction == "but" else ""
        word = leaf("CC", conjunction, "C")
        return [node("S", first, *parts), comma, word, inner]
    inner = node("SBAR", leaf("IN", conjunction, "C"), inner)
    if front == "second":
        parts = english_clause(clause, "1")[1]
        return [inner, leaf(",", ",", "K"), *parts]
    first, parts = english_clause(clause, "1", moved, last=inner)
    return [first, *parts]


LEAF = re.compile(r"\([^ ()]+ ([^ ()|]+)\|([^ ()]*)\)")
DROPPED = re.compile(r" \(\$, ,\|closing\)(?=\)* \(\$[.,])")


def finish(tree: str) -> tuple[list[str], list[str], str]:
    """The words, their keys, and the tree without keys."""
    tree = DROPPED.sub("", tree)
    start = tree.rindex(" ", 0, tree.index("|")) + 1
    tree = tree[:start] + tree[start].upper() + tree[start + 1 :]
    leaves = LEAF.findall(tree)
    words, keys = [word for word, _ in leaves], [key for _, key in leaves]
    return words, keys, re.sub(r"\|[^ ()]*", "", tree)


def realise(meaning: Meaning, front: str = "") -> Pair:
    """Say a meaning in both languages.

    front: the role that German puts first, "" for the subject; "second"
    for the second clause.
    """
    source, own, source_tree = finish(german_sentence(meaning, front))
    target, other, target_tree = finish(english_sentence(meaning, front))
    places: dict[str, list[int]] = {}
    for j, keys in enumerate(other):
        for key in keys.split("+"):
            places.setdefault(key, []).append(j)
    links = {
        (i, j)
        for i, keys in enumerate(own)
        if keys
        for key in keys.split("+")
        for j in places.get(key, ())
    }
    sentences = " ".join(source), " ".join(target)
    return Pair(*sentences, tuple(sorted(links)), source_tree, target_tree)


# 17-pocket-german.md: Drawing meanings
Option = TypeVar("Option")


class Draw:
    """Choices from a hash: the same in every Python, on every machine.

    A large number whose digits, each to the base of its choice, choose.
    """

    def __init__(self, name: str):
        self.name, self.block, self.number = name, 0, 0

    def below(self, n: int) -> int:
        """A whole number from 0 to n - 1."""
        if self.number < 1 << 32:
            digest = sha512(f"{self.name} {self.block}".encode()).digest()
            self.number = int.from_bytes(digest, "big")
            self.block += 1
        self.number, digit = divmod(self.number, n)
        return digit

    def pick(self, options: Sequence[Option]) -> Option:
        """One of the options."""
        return options[self.below(len(options))]


TELLING = ("sagen", "glauben", "hoffen", "fragen")  # that, whether
FREE = (*(name for name in VERBS if name not in TELLING), "sein", "sein")
PERSONAL = tuple(name for name in FREE if "p" in VERBS[name].subject)
STAYING = ("aufstehen", "aufmachen", "zumachen")  # where is no question


@lru_cache
def nouns_of(kinds: str) -> tuple[str, ...]:
    """The nouns of these kinds."""
    return tuple(word for word in NOUNS if NOUNS[word].kind in kinds)


@lru_cache
def adjectives_of(word: str) -> tuple[str, ...]:
    """The adjectives that go with a noun, a name or a pronoun."""
    kind = NOUNS[word].kind if word in NOUNS else "p"
    never = ("alt", "jung") if word in ("Kind", "Junge", "Mädchen") else ()
    return tuple(
        adjective
        for adjective, (_, kinds) in ADJECTIVES.items()
        if kind in kinds and adjective not in never
    )


@lru_cache
def gaps_of(kind: str) -> tuple[tuple[str, str], ...]:
    """The verbs and roles that a relative pronoun of a kind can fill."""
    found = []
    for name, verb in VERBS.items():
        if name not in TELLING:
            roles = [("subject", verb.subject)]
            roles += [(slot.role, slot.kinds) for slot in verb.slots]
            found += [(name, role) for role, own in roles if kind in own]
    return tuple(found)


SINGULAR = (*["the"] * 6, *["a"] * 4, *OWNERS, "this")
PLURAL = ("the", "the", "bare", "two", "three", "many", "my", "this")
MASS = ("the", "the", "bare", "bare", "bare", "my")
UNOWNED = ("Mann", "Frau", "Junge", "Mädchen", "Park", "Stadt")


def draw_adjectives(draw: Draw, noun: str) -> tuple[str, ...]:
    """None in two cases of three, else one, or a size and another."""
    words = adjectives_of(noun)
    if draw.below(3):
        return ()
    if draw.below(4):
        return (draw.pick(words),)
    sizes = [word for word in words if word in ("klein", "groß")]
    others = [word for word in words if word not in sizes]
    return tuple(draw.pick(group) for group in (sizes, others) if group)


def draw_noun(
    draw: Draw,
    kinds: str,
    only: Collection[str] = (),
    extra: tuple[str, ...] = (),
) -> Phrase:
    """A noun, perhaps plural, perhaps with adjectives.

    only: the determiners to choose from; extra: more for the singular.
    """
    noun = draw.pick(nouns_of(kinds))
    mass = NOUNS[noun].german_plural == "-"
    plural = not mass and draw.below(3) == 0
    options = MASS if mass else PLURAL if plural else SINGULAR + extra
    if only:
        options = tuple(word for word in options if word in only)
    if noun in UNOWNED:  # meine Frau is my wife
        options = tuple(word for word in options if word not in OWNERS)
    determiner = draw.pick(options)
    return Phrase(noun, determiner, plural, draw_adjectives(draw, noun))


def draw_phrase(
    draw: Draw,
    kinds: str,
    pronouns: tuple[str, ...],
    taken: set[str],
    only: Collection[str] = (),
    extra: tuple[str, ...] = (),
) -> Phrase:
    """A pronoun, a name or a noun; none of taken, which it joins."""
    persons = "p" in kinds
    while True:
        choice = draw.below(10)
        if pronouns and choice < (3 if persons else 1):
            phrase = Phrase(draw.pick(pronouns), "pronoun")
        elif persons and choice < 5:
            phrase = Phrase(draw.pick(tuple(NAMES)), "name")
        else:
            phrase = draw_noun(draw, kinds, only, extra)
        if phrase.noun not in taken:
            break
    taken.add(phrase.noun)
    if phrase.noun in ("I", "we"):  # we do nothing to me
        taken |= {"I", "we"}
    return phrase


PERSONS = {  # the pronouns that cannot be misread
    "nominative": ("I", "you", "he", "she", "we", "they"),
    "accusative": ("I", "you", "he", "we"),
    "dative": ("I", "you", "he", "she", "we", "they"),
}


def draw_object(
    draw: Draw, slot: Slot, negated: bool, alone: bool, taken: set[str]
) -> Phrase:
    """What fills a slot: what nicht and kein can deny, if negated."""
    pronouns: tuple[str, ...] = ()
    if "p" in slot.kinds:
        pronouns = PERSONS[slot.case]
    elif slot.role == "accusative":
        pronouns = ("it",)
    only: tuple[str, ...] = DEFINITE if negated or not alone else ()
    if slot.role == "accusative":
        only = (*DEFINITE, "a", "bare") if negated else ()
    return draw_phrase(draw, slot.kinds, pronouns, taken, only)


def draw_roles(
    draw: Draw,
    verb: Verb,
    negated: bool,
    given: dict[str, Phrase],
    taken: set[str],
) -> dict[str, Any]:
    """The subject and the objects that the verb asks for."""
    roles: dict[str, Any] = dict(given)
    if "subject" not in roles:
        kinds = verb.subject
        pronouns = PERSONS["nominative"] * ("p" in kinds)
        only = DEFINITE if negated else ()
        extra = () if negated else ("every", "no")
        roles["subject"] = draw_phrase(
            draw, kinds, pronouns, taken, only, extra
        )
    alone = len(verb.slots) == 1
    for slot in verb.slots:
        if slot.role not in roles and slot.kinds:
            phrase = draw_object(draw, slot, negated, alone, taken)
            roles[slot.role] = phrase
    return roles


COMMON = ("present", "past") * 4
MODALS = ("can", "may", "should", "have_to", "want_to")
TENSES = {  # by the verb's aspect
    "a": (*COMMON, "progressive", "likes", "already", "will", *MODALS),
    "p": (*COMMON, "progressive", "already", "will", *MODALS),
    "e": (*COMMON[:6], "already", "will", "can"),
    "s": ("present", "present", "past"),
    "q": (*COMMON[:4], "will"),
}
TIMES_OF = {
    "present": ("today", "evening", "every day"),
    "past": ("yesterday", "evening", "every day"),
}
SOON = ("today", "tomorrow", "evening")  # with a modal


def draw_time(draw: Draw, clause: Clause) -> Clause:
    """Perhaps a time, perhaps an adverb, never both."""
    verb, tense, choice = VERBS[clause.verb], clause.tense, draw.below(6)
    passing = verb.aspect in "ape" or clause.predicate in PASSING
    if choice < 2 and passing and tense not in MIDDLE:
        options = TIMES_OF.get(tense, SOON)[: 2 if clause.negated else 3]
        return clause._replace(time=draw.pick(options))
    denied = clause.negated or clause.subject.determiner == "no"
    if choice == 2 and tense in ("present", "past") and not denied:
        if passing:
            words = ("always", "never", "often", "sometimes")
            return clause._replace(middle=draw.pick(words))
        if verb.aspect == "s":
            return clause._replace(middle=draw.pick(("always", "never")))
    return clause


def draw_place(draw: Draw) -> tuple[str, Phrase]:
    """In the garden, behind an old house."""
    preposition = draw.pick(("in", "in", "hinter"))
    kinds = "lh" if preposition == "in" else "h"
    phrase = draw_noun(draw, kinds, ("the", "a", "my", "our"))
    if phrase.determiner != "the":
        phrase = phrase._replace(plural=False)
    return preposition, phrase


def draw_adverbials(draw: Draw, clause: Clause) -> Clause:
    """Perhaps a time or an adverb, perhaps a place or a goal."""
    verb, clause = VERBS[clause.verb], draw_time(draw, clause)
    runs = clause.verb == "laufen" and draw.below(2) == 0
    if runs or clause.verb == "gehen":
        goal = draw.pick(("in", "zu")), draw_noun(draw, "lh", DEFINITE)
        return clause._replace(goal=goal)
    anywhere = verb.aspect in "ap" and clause.verb not in STAYING
    if anywhere and draw.below(6) == 0:
        return clause._replace(place=draw_place(draw))
    return clause


OPEN = ("the", "a", "two", "three", "many", "bare")  # may be described


def draw_clause(
    draw: Draw,
    name: str,
    given: dict[str, Phrase] | None = None,
    depth: int = 0,
    taken: Collection[str] = (),
) -> Clause:
    """A clause with a verb; given: the roles that are filled already.

    depth: how many relative clauses to nest in it, where there is room;
    taken: words that it must not use.
    """
    verb, given = VERBS[name], given or {}
    used = {name, *taken, *(phrase.noun for phrase in given.values())}
    tense = draw.pick(TENSES[verb.aspect])
    negated = draw.below(6) == 0 and tense not in ("progressive", "already")
    roles = draw_roles(draw, verb, negated, given, used)
    if tense == "already" and roles["subject"].determiner == "no":
        tense = "past"
    describable = [r for r in roles if roles[r].determiner in OPEN]
    if depth and describable:
        role = draw.pick(describable)
        roles[role] = draw_relative(draw, roles[role], depth, used)
    clause = Clause(name, **roles, tense=tense, negated=negated)
    if name == "sein":
        clause = draw_predicate(draw, clause)
    inner = any(p.determiner == "relative" for p in roles.values())
    if inner and name != "gehen" and draw.below(3):
        return clause  # what is said in passing is said briefly
    return draw_adverbials(draw, clause)


def draw_predicate(draw: Draw, clause: Clause) -> Clause:
    """What somebody or something is; will be, only in passing."""
    word = draw.pick(adjectives_of(clause.subject.noun))
    lasting = clause.tense == "will" and word not in PASSING
    tense = "present" if lasting else clause.tense
    return clause._replace(predicate=word, tense=tense)


def kind_of(phrase: Phrase) -> str:
    """The letter by which verbs select it."""
    if phrase.determiner in ("name", "pronoun"):
        return "o" if phrase.noun == "it" else "p"
    return NOUNS[phrase.noun].kind


def marked(phrase: Phrase) -> bool:
    """Whether its form tells nominative from accusative."""
    if phrase.determiner == "pronoun":
        return phrase.noun not in ("she", "they", "it")
    if phrase.determiner in ("name", "bare"):
        return False
    return column(phrase) == 0  # der, den


def clear(clause: Clause) -> bool:
    """Whether subject and accusative can be told apart in any order.

    By the verb's number, by case, or by sense: no book reads a woman.
    """
    subject, other = clause.subject, clause.accusative
    if other is None or person(subject) != person(other):
        return True
    lifeless = kind_of(other) not in "pa"
    return lifeless or marked(subject) or marked(other)


def draw_relative(
    draw: Draw, head: Phrase, depth: int, taken: Collection[str]
) -> Phrase:
    """The phrase with a relative clause that reads in one way."""
    known = Phrase(head.noun, "relative", head.plural)
    gaps = gaps_of(NOUNS[head.noun].kind)
    gaps = tuple((name, role) for name, role in gaps if name not in taken)
    while gaps:
        name, role = draw.pick(gaps)
        clause = draw_clause(draw, name, {role: known}, depth - 1, taken)
        if role in ("dative", "prepositional") or clear(clause):
            words = head.adjectives[:1]
            return head._replace(adjectives=words, relative=clause)
    return head  # nothing new can be said about it


def askable(clause: Clause) -> list[str]:
    """What can be asked about what the clause says."""
    options, aspect = ["why"], VERBS[clause.verb].aspect
    for role in ("subject", "accusative", "dative", "prepositional"):
        phrase = getattr(clause, role)
        if phrase and (kind_of(phrase) == "p" or role == "accusative"):
            options += [role, role]
    stays = clause.verb not in ("gehen", "laufen", *STAYING)
    if aspect in "ap" and stays and not clause.place:
        options.append("where")
    dated = clause.time or clause.middle or clause.tense in MIDDLE
    if aspect in "ape" and not dated:
        options.append("when")
    return options


def ask(draw: Draw, clause: Clause) -> Clause:
    """The clause as a question: for a role, or where, when or why."""
    asked = draw.pick(askable(clause))
    if asked != "why":
        clause = clause._replace(negated=False)
    if asked not in ASKED:
        who = kind_of(getattr(clause, asked)) == "p"
        word = Phrase("who" if who else "what", "question")
        change: dict[str, Any] = {asked: word}
        clause = clause._replace(**change)
    return clause._replace(asked=asked)


def draw_question(draw: Draw) -> Meaning:
    """A question, for yes or no or for more."""
    clause = draw_clause(draw, draw.pick(FREE))
    if clause.subject.determiner == "no":
        subject = clause.subject._replace(determiner="the")
        clause = clause._replace(subject=subject)
    if draw.below(2):
        return Meaning("question", ask(draw, clause))
    return Meaning("question", clause._replace(negated=False))


def resumed(phrase: Phrase) -> Phrase | None:
    """The pronoun that goes on about a person, where there is one."""
    word = ""
    if phrase.determiner == "pronoun":
        word = phrase.noun
    elif phrase.determiner == "name":
        word = NAMES[phrase.noun]
    elif kind_of(phrase) == "p":
        word = ("he", "she", "", "they")[column(phrase)]
    return Phrase(word, "pronoun") if word else None


def draw_next(draw: Draw, subject: Phrase, depth: int) -> Clause:
    """One more clause, in half the cases about the same person."""
    pronoun = resumed(subject)
    if pronoun and draw.below(2):
        name, given = draw.pick(PERSONAL), {"subject": pronoun}
    else:
        name, given = draw.pick(FREE), {}
    return draw_clause(draw, name, given, depth, (subject.noun,))


def draw_two(draw: Draw, depth: int) -> Meaning:
    """Two clauses, side by side or one below the other."""
    clause = draw_clause(draw, draw.pick(FREE), {}, depth)
    second = draw_next(draw, clause.subject, depth)
    conjunction = draw.pick(tuple(CONJUNCTIONS))
    if conjunction == "if" and "past" in (clause.tense, second.tense):
        conjunction = "because"
    return Meaning("statement", clause, conjunction, second)


def draw_telling(draw: Draw, depth: int) -> Meaning:
    """Somebody says, believes, hopes or asks something."""
    name = draw.pick(TELLING)
    negated = name in ("sagen", "glauben") and draw.below(4) == 0
    roles = draw_roles(draw, VERBS[name], negated, {}, set())
    inner = draw_next(draw, roles["subject"], depth)
    clause = Clause(name, **roles, complement=inner, negated=negated)
    return Meaning("statement", clause)


def draw_meaning(draw: Draw, deep: bool = False) -> Meaning:
    """A meaning; the deep ones nest clauses in clauses."""
    choice = draw.below(20)
    if choice < 4 and not deep:
        return draw_question(draw)
    if choice < 6:
        return draw_telling(draw, int(deep))
    if choice < 10:
        return draw_two(draw, int(deep))
    depth = 2 if deep else int(choice < 14)
    clause = draw_clause(draw, draw.pick(FREE), {}, depth)
    return Meaning("statement", clause)


def draw_front(draw: Draw, meaning: Meaning) -> str:
    """What German puts first, if not the subject."""
    clause = meaning.clause
    if meaning.mood == "question" or draw.below(3):
        return ""
    options = [role for role in ("time", "place") if getattr(clause, role)]
    if meaning.conjunction in BELOW:
        options.append("second")
    for role in ("accusative", "dative", "prepositional"):
        phrase = getattr(clause, role)
        if phrase is None or phrase.determiner == "pronoun":
            continue
        plain = role != "dative" or phrase.determiner != "name"
        if role == "accusative":
            plain = clear(clause) and not denies(clause)
        if plain:
            options.append(role)
    return draw.pick(options) if options else ""


# 17-pocket-german.md: Splits by meaning
SPLITS = {  # shortest and longest sentence, on both sides
    "train": (2, 16),
    "valid": (2, 16),
    "test": (2, 16),
    "generalisation": (17, 30),
}


def nesting(clause: Clause | None) -> int:
    """How many clauses lie in one another below this one."""
    if clause is None:
        return 0
    inner = [clause.complement]
    inner += [phrase.relative for phrase in clause[1:5] if phrase]
    return max(1 + nesting(c) if c else 0 for c in inner)


def split_of(meaning: Meaning) -> str:
    """The split of a meaning, whatever German puts first."""
    below = meaning.conjunction in BELOW
    depth = max(nesting(meaning.clause), below + nesting(meaning.second))
    if depth > 1:
        return "generalisation"
    bucket = zlib.crc32(repr(meaning).encode()) % 10
    return {0: "test", 1: "valid"}.get(bucket, "train")


def pocket_pairs(
    count: int, split: str = "train", seed: int = 0
) -> list[Pair]:
    """So many different pairs: train, valid, test or generalisation.

    The same arguments give the same pairs everywhere. No meaning is in
    two splits, whatever the seeds; in generalisation all sentences are
    longer, and more deeply nested, than any of the others. ValueError
    names a wrong argument.
    """
    check_arguments(count, split, seed)
    pairs: dict[str, Pair] = {}
    attempt, (shortest, longest) = 0, SPLITS[split]
    while len(pairs) < count:
        draw = Draw(f"{split} {seed} {attempt}")
        attempt += 1
        meaning = draw_meaning(draw, split == "generalisation")
        if split_of(meaning) != split:
            continue
        pair = realise(meaning, draw_front(draw, meaning))
        words = sorted(s.count(" ") + 1 for s in (pair.source, pair.target))
        if shortest <= words[0] and words[1] <= longest:
            pairs.setdefault(pair.source, pair)
    return list(pairs.values())


def check_arguments(count: int, split: str, seed: int) -> None:
    """Raise ValueError, naming the argument that is wrong."""
    if split not in SPLITS:
        names = ", ".join(SPLITS)
        raise ValueError(f"split must be one of {names}, not {split!r}")
    for name, value in (("count", count), ("seed", seed)):
        if type(value) is not int or value < 0:
            raise ValueError(
                f"{name} must be a whole number, at least 0, not {value!r}"
            )


def pharaoh(alignment: Sequence[tuple[int, int]]) -> str:
    """Links as text: 0-0 1-2."""
    return " ".join(f"{i}-{j}" for i, j in alignment)


def write_samples(folder: Path, count: int = 200) -> None:
    """Write SPLIT.tsv with the first pairs of each split."""
    names = ("source", "target", "alignment", "source_tree", "target_tree")
    for split in SPLITS:
        lines = ["\t".join(names)]
        for pair in pocket_pairs(count, split):
            cells = [pair.source, pair.target, pharaoh(pair.alignment)]
            lines.append(
                "\t".join([*cells, pair.source_tree, pair.target_tree])
            )
        text = "".join(f"{line}\n" for line in lines)
        (folder / f"{split}.tsv").write_bytes(text.encode())


# 17-pocket-german.md: Measuring an alignment
def alignment_error_rate(
    gold: Collection[Hashable], predicted: Collection[Hashable]
) -> float:
    """1 - 2 |A ∩ S| / (|A| + |S|): all gold links are sure ones.

    A link is (source, target), or (sentence, source, target) to rate many
    sentences at once. 0 where there is nothing to find and nothing found.
    """
    sure, found = set(gold), set(predicted)
    if not sure and not found:
        return 0.0
    return 1 - 2 * len(sure & found) / (len(sure) + len(found))
