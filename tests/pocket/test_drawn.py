"""What the grammar draws: its properties, splits and samples."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import chain, islice, product
from pathlib import Path

import pytest

from annotated.pocket import (
    Pair,
    _clear,
    _split_of,
    draw_pairs,
    english,
    german,
    pocket_pairs,
    realise,
    words,
    write_samples,
)
from annotated.pocket.german import _german_present
from annotated.pocket.meaning import Clause, Meaning, Phrase
from annotated.pocket.trees import Tree
from tests.pocket.phrases import (
    ANNA,
    FRAU,
    HUND,
    KIND,
    MANN,
    PAUL,
    PERSONS,
    THEY,
    WE,
)

SPLITS = ("train", "valid", "test", "generalisation")


@cache
def drawn(split: str, seed: int = 0) -> list[Pair]:
    counts = {
        "train": 3000,
        "valid": 300,
        "test": 300,
        "generalisation": 200,
    }
    return pocket_pairs(counts[split], split, seed)


def everything() -> list[Pair]:
    return [pair for split in SPLITS for pair in drawn(split)]


def nodes(tree: Tree) -> Iterator[Tree]:
    yield tree
    for child in tree.children:
        yield from nodes(child)


def labels(tree: Tree) -> list[str]:
    return [child.label for child in tree.children]


def depth_of(tree: Tree) -> int:
    """How many clauses lie in one another."""
    inner = max(map(depth_of, tree.children), default=0)
    return inner + (tree.label == "SBAR")


def german_words() -> set[str]:
    """Every form that the tables allow, computed without the rules."""
    found = {",", ".", "?", *words.NAMES, "im", "zum", "zur"}
    found |= {
        "am",
        "Abend",
        "jeden",
        "Tag",
        "nicht",
        *english._PREPOSITIONS,
    }
    for table in words.PARTICLES.values():
        found |= set(table.values())
    for name, noun in words.NOUNS.items():
        found |= {name, noun.german_plural, noun.german_plural + "n"}
    stems = {row.endings: set() for row in words.DETERMINERS.values()}
    for row in words.DETERMINERS.values():
        stems[row.endings].add(row.stem)
    stems["relative"] = {""}
    for row in german._ENDINGS.values():
        for stem in stems.get(row.series.split()[0], ()):
            found |= {stem + ending for ending in row[1:]}
    for word, end in product(
        words.ADJECTIVES, ["", "e", "en", "er", "es", "em"]
    ):
        found |= {word, word.removesuffix("e") + end}
    for row in words.PRONOUNS.values():
        found |= {row.nominative, row.accusative, row.dative}
    for row in words.FINITE.values():
        found |= {getattr(row, person) for person in PERSONS}
    for name, verb in words.VERBS.items():
        found |= {name, verb.prefix, verb.participle}
        found |= {slot.german for slot in verb.slots}
        for person in PERSONS:
            word = _german_present(name, person)
            found |= {word, verb.prefix + word}
    return found


def english_words() -> set[str]:
    found = {",", ".", "?", *words.NAMES, "a", "an", "any", "to", "into"}
    found |= {
        *words.PARTICLES["day"],
        "evening",
        "day",
        "not",
        "did",
        "cannot",
        "will",
    }
    found |= {
        "who",
        "whom",
        "what",
        "that",
        "which",
        "may",
        "should",
        "can",
    }
    found |= {
        *english._PREPOSITIONS.values(),
        *words.PARTICLES["middle"],
        *words.PARTICLES["question"],
    }
    found |= {*words.PARTICLES["conjunction"]}
    for row in english._AUXILIARIES.values():
        found |= set(row[1:])
    for noun in words.NOUNS.values():
        found |= {noun.english, noun.english_plural}
    for row in words.DETERMINERS.values():
        found |= {row.english, row.english_plural}
    found |= {row.english for row in words.ADJECTIVES.values()}
    for row in words.PRONOUNS.values():
        found |= {row.english, row.english_object}
    for base in ("like", "want", "have"):
        found |= {base, english._third_person(base)}
    for verb in words.VERBS.values():
        base = verb.english
        found |= {base, verb.particle, verb.past, verb.past_participle}
        found |= {english._third_person(base), english._ing(base)}
        found |= {slot.english for slot in verb.slots}
    return found


def test_every_word_is_in_the_lexicon():
    german, english = german_words(), english_words()
    for pair in everything():
        for text, known in ((pair.source, german), (pair.target, english)):
            first, *others = text.split()
            assert first[0].isupper()
            assert {first, first[0].lower() + first[1:]} & known, pair
            assert set(others) <= known, (set(others) - known, pair)


def test_leaves_of_the_trees_are_the_sentences():
    for pair in everything():
        assert pair.source_tree.words() == pair.source
        assert pair.target_tree.words() == pair.target


FINITE = {"VVFIN", "VAFIN", "VMFIN"}


def test_the_finite_verb_is_second_or_first_in_main_clauses():
    for pair in everything():
        tree = pair.source_tree
        halves = [c for c in tree.children if c.label == "S"] or [tree]
        for clause in halves:
            tags = [tag for tag in labels(clause) if tag != "$,"]
            place = [tag in FINITE for tag in tags].index(True)
            yes_or_no = pair.target_tree.label == "SQ"
            assert place == (0 if yes_or_no else 1), pair


def test_the_finite_verb_is_last_in_subordinate_clauses():
    for pair in everything():
        for clause in nodes(pair.source_tree):
            if clause.label == "SBAR":
                assert clause.children[-1].label == "S"
                tags = labels(clause.children[-1])
                while tags[-1] in ("$,", "SBAR"):  # what is said, asked
                    tags.pop()
                assert tags[-1] in FINITE, pair
                assert sum(tag in FINITE for tag in tags) == 1, pair


def test_participles_and_infinitives_close_their_phrase():
    for pair in everything():
        for phrase in nodes(pair.source_tree):
            if phrase.label == "VP":
                last = phrase.children[-1]
                assert last.label in ("VVPP", "VVINF"), pair


def test_alignments_name_words_and_cover_what_matters():
    # words of their own that the other language does without
    german_alone = {"$,"}
    english_alone = {"TO"}
    for pair in everything():
        sides = (
            (
                pair.source_tree,
                {i for i, _ in pair.alignment},
                german_alone,
            ),
            (
                pair.target_tree,
                {j for _, j in pair.alignment},
                english_alone,
            ),
        )
        assert list(pair.alignment) == sorted(set(pair.alignment))
        for tree, aligned, alone in sides:
            tags = [leaf.label for leaf in tree.leaves()]
            assert aligned <= set(range(len(tags)))
            free = {tags[i] for i in range(len(tags)) if i not in aligned}
            assert free <= alone, (free, pair)


def test_aligned_nouns_and_verbs_translate_each_other():
    english = {
        form: {noun.english, noun.english_plural}
        for noun in words.NOUNS.values()
        for form in (
            noun.german,
            noun.german_plural,
            noun.german_plural + "n",
        )
    }
    for pair in everything():
        source, target = pair.source.split(), pair.target.split()
        for i, j in pair.alignment:
            if source[i] in english and i:
                assert target[j].lower() in english[source[i]], pair


def test_an_stands_before_a_vowel_and_a_does_not():
    for pair in everything():
        for article, word in re.findall(r"\b([Aa]n?) (\w+)", pair.target):
            assert (article.lower() == "an") == (word[0] in "aeiou"), pair


def test_english_subjects_and_verbs_agree():
    checked = 0
    for pair in everything():
        for clause in nodes(pair.target_tree):
            tags = labels(clause) if clause.label == "S" else []
            if "NP VP" not in " ".join(tags):
                continue
            place = tags.index("VP")
            subject, group = clause.children[place - 1 : place + 1]
            while (
                subject.children[0].label == "NP"
            ):  # with a relative clause
                subject = subject.children[0]
            noun, verb = subject.children[-1], group.children[0]
            if verb.label == "ADVP":
                verb = group.children[1]
            third = noun.label in ("NN", "NNP")
            third = third or noun.word.lower() in ("he", "she", "it")
            if verb.label in ("VBZ", "VBP"):
                assert (verb.label == "VBZ") == third, pair
                checked += 1
            if verb.word in ("am", "is", "are", "was", "were"):
                singular = verb.word in ("am", "is", "was")
                assert singular == (third or noun.word == "I"), pair
    assert checked > 1000


def test_the_same_arguments_give_the_same_pairs():
    again = pocket_pairs(50, "train")
    assert again == drawn("train")[:50]
    assert again != pocket_pairs(50, "train", seed=1)


def test_the_first_pairs_are_known_everywhere():
    # a change here changes every corpus that anyone has drawn
    texts = [(p.source, p.target) for p in pocket_pairs(3, "test", seed=7)]
    assert texts == KNOWN


KNOWN = [
    (
        "Wo darf Paul singen ?",
        "Where may Paul sing ?",
    ),
    (
        "Diesem kranken Nachbarn schicken sie zwei kleine Taschen .",
        "They send this sick neighbour two small bags .",
    ),
    (
        "Ich habe viele Jungen , die Anna abgeholt haben , gefunden .",
        "I found many boys who picked up Anna .",
    ),
]


@pytest.mark.parametrize("split", SPLITS)
def test_pairs_of_one_call_are_different(split):
    pairs = drawn(split)
    assert len({pair.source for pair in pairs}) == len(pairs)


def test_splits_share_no_sentence_on_either_side():
    for side in ("source", "target"):
        seen: dict[str, str] = {}
        for split, seed in product(SPLITS, (0, 1)):
            for pair in drawn(split, seed):
                text = getattr(pair, side)
                assert seen.setdefault(text, split) == split


def test_what_stands_first_does_not_change_the_split():
    moved = 0
    for pair in drawn("train"):
        clause = pair.meaning.clause
        if clause.time and not pair.front and pair.source[-1] == ".":
            other = realise(pair.meaning, "time")
            assert other.source != pair.source
            assert _split_of(other) == "train"
            moved += 1
    assert moved > 100


def test_a_field_more_in_a_meaning_does_not_change_the_split():
    class Wider(Clause):
        def __repr__(self) -> str:
            return f"Clause({', '.join(map(repr, self))}, mode='')"

    for pair in drawn("test"):
        clause = Wider(*pair.meaning.clause)
        meaning = pair.meaning._replace(clause=clause)
        assert repr(meaning) != repr(pair.meaning)
        assert _split_of(realise(meaning, pair.front)) == "test"


@pytest.mark.parametrize(
    ("verb", "subject", "thing", "known"),
    [
        ("sehen", FRAU, KIND, False),
        ("sehen", MANN, KIND, True),  # der
        ("sehen", FRAU, HUND, True),  # den
        ("sehen", FRAU, Phrase("Kind", plural=True), True),  # sieht
        ("sehen", THEY, Phrase("Kind", plural=True), False),
        ("sehen", WE, Phrase("Kind", plural=True), True),
        ("sehen", ANNA, PAUL, False),
        ("lesen", FRAU, Phrase("Zeitung"), True),  # who reads whom?
        ("sehen", Phrase("Katze"), Phrase("Tür"), True),
        ("finden", Phrase("Katze"), FRAU, False),
    ],
)
def test_it_is_known_when_order_alone_tells_who_does_it(
    verb, subject, thing, known
):
    assert _clear(Clause(verb, subject, thing)) is known


def turned(clause: Clause) -> Clause | None:
    """Subject and accusative changed, where the verb puts up with it."""
    subject, thing = clause.subject, clause.accusative
    if thing is None or "question" in (subject[1], thing[1]):
        return None
    verb = words.VERBS[clause.verb]
    fits = thing.kind in verb.subject
    if not fits or subject.kind not in verb.slots[-1].kinds:
        return None
    pronoun = words.PRONOUNS.get(subject.noun)
    if pronoun and not pronoun.accusative:  # she, they
        return None
    return clause._replace(subject=thing, accusative=subject)


def test_nobody_can_take_the_object_for_the_subject():
    checked = 0
    for pair in islice(draw_pairs("turned"), 8000):
        meaning, front = pair.meaning, pair.front
        clause = turned(meaning.clause)
        if clause and front == "accusative":
            said = realise(meaning, front).source
            assert realise(meaning._replace(clause=clause)).source != said
            checked += 1
        for role in ("subject", "accusative", "dative"):
            phrase = getattr(meaning.clause, role)
            clause = phrase and phrase.relative and turned(phrase.relative)
            if clause and phrase.relative.tense != "likes":
                other = meaning.clause._replace(
                    **{role: phrase._replace(relative=clause)}
                )
                said = realise(meaning).source
                assert (
                    realise(meaning._replace(clause=other)).source != said
                )
                checked += 1
    assert checked > 50


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(50_000, marks=pytest.mark.slow),
        pytest.param(200_000, marks=pytest.mark.exhaustive),
    ],
)
def test_german_has_one_reading(count: int) -> None:
    """No German sentence has two meanings, let alone two translations."""
    seen: dict[str, tuple[str, Meaning]] = {}
    plain = islice(draw_pairs("reading"), count * 9 // 10)
    deep = islice(draw_pairs("reading", deep=True), count // 10)
    for pair in chain(plain, deep):
        said = (pair.target, pair.meaning)
        assert seen.setdefault(pair.source, said) == said, pair.source


@pytest.mark.parametrize("side", ["source", "target"])
def test_generalisation_is_longer_and_deeper(side):
    def length(pair: Pair) -> int:
        return len(getattr(pair, side).split())

    def depth(pair: Pair) -> int:
        return depth_of(getattr(pair, f"{side}_tree"))

    known = [pair for split in SPLITS[:3] for pair in drawn(split)]
    deep = drawn("generalisation")
    assert min(map(length, deep)) > max(map(length, known))
    assert min(map(depth, deep)) > max(map(depth, known))


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"count": -1}, "count"),
        ({"count": 2.0}, "count"),
        ({"count": True}, "count"),
        ({"count": 1, "split": "dev"}, "split"),
        ({"count": 1, "seed": -3}, "seed"),
        ({"count": 1, "seed": "0"}, "seed"),
    ],
)
def test_wrong_arguments_are_named(arguments, name):
    with pytest.raises(ValueError, match=f"^{name} must be"):
        pocket_pairs(**arguments)


def test_no_pairs_are_drawn_where_none_are_wanted():
    assert pocket_pairs(0) == []


SAMPLES = Path(__file__).resolve().parents[2] / "data" / "pocket"


@pytest.fixture(scope="module")
def fresh_samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("samples")
    write_samples(folder)
    return folder


@pytest.mark.parametrize("split", SPLITS)
def test_committed_samples_are_what_the_grammar_says(split, fresh_samples):
    fresh = (fresh_samples / f"{split}.tsv").read_bytes()
    assert fresh == (SAMPLES / f"{split}.tsv").read_bytes()
    head, *lines = fresh.decode().splitlines()
    assert head.split("\t")[:3] == ["source", "target", "alignment"]
    assert len(lines) == 200
    pair = drawn(split)[0]
    links = " ".join(f"{i}-{j}" for i, j in pair.alignment)
    assert lines[0].split("\t") == [
        pair.source,
        pair.target,
        links,
        str(pair.source_tree),
        str(pair.target_tree),
    ]
