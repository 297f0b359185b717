"""Sentences and forms that a person wrote, bracketed and aligned."""

from __future__ import annotations

import pytest

from annotated.pocket import (
    english,
    realise,
    words,
)
from annotated.pocket.german import _german_phrase, _german_present
from annotated.pocket.meaning import Clause, Meaning, Phrase
from annotated.pocket.trees import leaf, node
from tests.pocket.phrases import (
    ANNA,
    BUCH,
    FRAU,
    HE,
    HUND,
    IT,
    KIND,
    MANN,
    ME,
    PAUL,
    PERSONS,
    SHE,
    THEY,
    WE,
    WHO,
    YOU,
    about,
    asks,
    says,
)

# by hand: German, English, the meaning, and what German puts first
BY_HAND = {
    # agreement: articles, adjectives, weak nouns
    "Ein alter Mann sieht den Hund .": (
        "An old man sees the dog .",
        says("sehen", Phrase("Mann", "a", False, ("alt",)), HUND),
    ),
    "Ich kaufe ein rotes Buch .": (
        "I buy a red book .",
        says("kaufen", ME, Phrase("Buch", "a", False, ("rot",))),
    ),
    "Du hilfst den Kindern .": (
        "You help the children .",
        says("helfen", YOU, dative=Phrase("Kind", plural=True)),
    ),
    "Die Frau sieht diesen müden Jungen .": (
        "The woman sees this tired boy .",
        says("sehen", FRAU, Phrase("Junge", "this", False, ("müde",))),
    ),
    "Wir trinken kalten Tee .": (
        "We drink cold tea .",
        says("trinken", WE, Phrase("Tee", "bare", False, ("kalt",))),
    ),
    "Du liest zwei alte Zeitungen .": (
        "You read two old newspapers .",
        says("lesen", YOU, Phrase("Zeitung", "two", True, ("alt",))),
    ),
    "Unser Kind sucht meinen Hund .": (
        "Our child looks for my dog .",
        says("suchen", Phrase("Kind", "our"), Phrase("Hund", "my")),
    ),
    "Das Kind spielt mit vielen Hunden .": (
        "The child plays with many dogs .",
        says("spielen", KIND, prepositional=Phrase("Hund", "many", True)),
    ),
    # verb second
    "Heute liest die Frau das Buch .": (
        "Today the woman reads the book .",
        says("lesen", FRAU, BUCH, time="today"),
        "time",
    ),
    "Den Hund sieht die Frau .": (
        "The woman sees the dog .",
        says("sehen", FRAU, HUND),
        "accusative",
    ),
    "Im Garten singen wir .": (
        "In the garden we sing .",
        says("singen", WE, place=("in", Phrase("Garten"))),
        "place",
    ),
    # separable verbs
    "Der Mann ruft am Abend das Kind an .": (
        "The man calls the child in the evening .",
        says("anrufen", MANN, KIND, time="evening"),
    ),
    "Sie holt ihn ab .": ("She picks him up .", says("abholen", SHE, HE)),
    "Sie haben das Kind abgeholt .": (
        "They picked up the child .",
        says("abholen", THEY, KIND, tense="past"),
    ),
    # modals, perfect, what German says with adverbs
    "Ich muss die Tür aufmachen .": (
        "I have to open the door .",
        says("aufmachen", ME, Phrase("Tür"), tense="have_to"),
    ),
    "Kein Hund will schlafen .": (
        "No dog wants to sleep .",
        says("schlafen", Phrase("Hund", "no"), tense="want_to"),
    ),
    "Die Frau ist in die Stadt gegangen .": (
        "The woman went into the city .",
        says("gehen", FRAU, tense="past", goal=("in", Phrase("Stadt"))),
    ),
    "Anna geht zur Schule .": (
        "Anna goes to the school .",
        says("gehen", ANNA, goal=("zu", Phrase("Schule"))),
    ),
    "Anna schreibt gerade einen Brief .": (
        "Anna is writing a letter .",
        says("schreiben", ANNA, Phrase("Brief", "a"), tense="progressive"),
    ),
    "Die Frau liest gerade das Buch .": (
        "The woman is reading the book .",
        says("lesen", FRAU, BUCH, tense="progressive"),
    ),
    "Paul hat das Buch schon gelesen .": (
        "Paul has already read the book .",
        says("lesen", PAUL, BUCH, tense="already"),
    ),
    "Hunde laufen gern .": (
        "Dogs like to run .",
        says("laufen", Phrase("Hund", "bare", True), tense="likes"),
    ),
    "Jede Katze ist heute müde .": (
        "Every cat is tired today .",
        says(
            "sein", Phrase("Katze", "every"), predicate="müde", time="today"
        ),
    ),
    # order of the objects
    "Die Frau gibt heute dem Kind das Buch .": (
        "The woman gives the child the book today .",
        says("geben", FRAU, BUCH, KIND, time="today"),
    ),
    "Wir zeigen es ihm .": (
        "We show it to him .",
        says("zeigen", WE, IT, HE),
    ),
    "Der Frau gefallen die Bücher .": (
        "The woman likes the books .",
        says("gefallen", Phrase("Buch", plural=True), dative=FRAU),
        "dative",
    ),
    # negation
    "Das Kind liest das Buch nicht .": (
        "The child does not read the book .",
        says("lesen", KIND, BUCH, negated=True),
    ),
    "Das Kind hat keinen Apfel gegessen .": (
        "The child did not eat an apple .",
        says(
            "essen", KIND, Phrase("Apfel", "a"), tense="past", negated=True
        ),
    ),
    "Er kann keine Milch trinken .": (
        "He cannot drink any milk .",
        says(
            "trinken",
            HE,
            Phrase("Milch", "bare"),
            tense="can",
            negated=True,
        ),
    ),
    "Ich warte nicht auf dich .": (
        "I do not wait for you .",
        says("warten", ME, prepositional=YOU, negated=True),
    ),
    # questions
    "Hat die Frau das Buch gelesen ?": (
        "Did the woman read the book ?",
        asks("lesen", FRAU, BUCH, tense="past"),
    ),
    "Wen rufst du an ?": (
        "Whom do you call ?",
        asks("anrufen", YOU, WHO, asked="accusative"),
    ),
    "Wer isst den Käse ?": (
        "Who eats the cheese ?",
        asks("essen", WHO, Phrase("Käse"), asked="subject"),
    ),
    "Mit wem spielt das Kind ?": (
        "With whom does the child play ?",
        asks("spielen", KIND, prepositional=WHO, asked="prepositional"),
    ),
    "Warum können sie nicht schlafen ?": (
        "Why can they not sleep ?",
        asks("schlafen", THEY, tense="can", negated=True, asked="why"),
    ),
    # relative clauses
    "Der Junge , der das Buch liest , schläft .": (
        "The boy who reads the book sleeps .",
        says(
            "schlafen",
            Phrase("Junge", relative=Clause("lesen", about("Junge"), BUCH)),
        ),
    ),
    "Ich habe die Kinder , denen der Mann hilft , gesehen .": (
        "I saw the children whom the man helps .",
        says(
            "sehen",
            ME,
            Phrase(
                "Kind",
                plural=True,
                relative=Clause("helfen", MANN, dative=about("Kind", True)),
            ),
            tense="past",
        ),
    ),
    "Sie findet eine Tasche , die Paul dem Kind zeigt .": (
        "She finds a bag that Paul shows to the child .",
        says(
            "finden",
            SHE,
            Phrase(
                "Tasche",
                "a",
                relative=Clause("zeigen", PAUL, about("Tasche"), KIND),
            ),
        ),
    ),
    "Die Frau , auf die wir warten , lacht .": (
        "The woman for whom we wait laughs .",
        says(
            "lachen",
            Phrase(
                "Frau",
                relative=Clause("warten", WE, prepositional=about("Frau")),
            ),
        ),
    ),
    # subordinate and coordinate clauses
    "Weil sie müde ist , schläft Anna .": (
        "Because she is tired , Anna sleeps .",
        Meaning(
            "statement",
            Clause("schlafen", ANNA),
            "because",
            Clause("sein", SHE, predicate="müde"),
        ),
        "second",
    ),
    "Wir haben gearbeitet , obwohl sie uns angerufen haben .": (
        "We worked although they called us .",
        Meaning(
            "statement",
            Clause("arbeiten", WE, tense="past"),
            "although",
            Clause("anrufen", THEY, WE, tense="past"),
        ),
    ),
    "Ich stehe auf , aber du wirst zurückkommen .": (
        "I get up , but you will come back .",
        Meaning(
            "statement",
            Clause("aufstehen", ME),
            "but",
            Clause("zurückkommen", YOU, tense="will"),
        ),
    ),
    "Der Mann fragt , ob sie einkaufen sollen .": (
        "The man asks whether they should shop .",
        says(
            "fragen",
            MANN,
            complement=Clause("einkaufen", THEY, tense="should"),
        ),
    ),
}


@pytest.mark.parametrize("german", BY_HAND)
def test_a_meaning_is_said_as_a_person_wrote_it(german):
    english, *meant = BY_HAND[german]
    pair = realise(*meant)
    assert (pair.source, pair.target) == (german, english)


def test_words_are_aligned_as_a_person_aligned_them():
    sings = Clause("singen", about("Junge"), tense="likes")
    boy = Phrase("Junge", relative=sings)
    pair = realise(says("anrufen", FRAU, boy, negated=True))
    german, english = pair.source.split(), pair.target.split()
    assert {(german[i], english[j]) for i, j in pair.alignment} == {
        ("Die", "The"),
        ("Frau", "woman"),
        ("ruft", "does"),
        ("ruft", "call"),
        ("den", "the"),
        ("Jungen", "boy"),
        ("der", "who"),
        ("gern", "likes"),
        ("gern", "to"),
        ("singt", "likes"),
        ("singt", "sing"),
        ("nicht", "not"),
        ("an", "call"),
        (".", "."),
    }


def test_trees_are_what_a_person_bracketed():
    pair = realise(
        says("helfen", ME, dative=KIND, tense="can", negated=True)
    )
    assert str(pair.source_tree) == (
        "(S (NP (PPER Ich)) (VMFIN kann) (VP (NP (ART dem) (NN Kind)) "
        "(PTKNEG nicht) (VVINF helfen)) ($. .))"
    )
    assert str(pair.target_tree) == (
        "(S (NP (PRP I)) (VP (MD cannot) (VP (VB help) (NP (DT the) "
        "(NN child)))) (. .))"
    )


@pytest.mark.parametrize(
    ("determiner", "plural", "forms"),
    [
        (
            "the",
            False,
            "der alte Junge, den alten Jungen, dem alten Jungen",
        ),
        (
            "a",
            False,
            "ein alter Junge, einen alten Jungen, einem alten Jungen",
        ),
        (
            "the",
            True,
            "die alten Jungen, die alten Jungen, den alten Jungen",
        ),
        (
            "two",
            True,
            "zwei alte Jungen, zwei alte Jungen, zwei alten Jungen",
        ),
        (
            "many",
            True,
            "viele alte Jungen, viele alte Jungen, vielen alten Jungen",
        ),
    ],
)
def test_a_noun_phrase_has_the_forms_of_its_cases(
    determiner, plural, forms
):
    phrase = Phrase("Junge", determiner, plural, ("alt",))
    found = []
    for case in ("nominative", "accusative", "dative"):
        found.append(_german_phrase(phrase, case, "").words())
    assert ", ".join(found) == forms


@pytest.mark.parametrize(
    ("verb", "forms"),
    [
        ("lesen", "lese liest liest lesen"),
        ("schlafen", "schlafe schläfst schläft schlafen"),
        ("warten", "warte wartest wartet warten"),
        ("einladen", "lade lädst lädt laden"),
    ],
)
def test_a_verb_has_the_forms_of_its_persons(verb, forms):
    found = [_german_present(verb, person) for person in PERSONS]
    assert " ".join(found) == forms


@pytest.mark.parametrize(
    ("word", "third", "ing"),
    [
        ("go", "goes", "going"),
        ("carry", "carries", "carrying"),
        ("wash", "washes", "washing"),
        ("write", "writes", "writing"),
        ("run", "runs", "running"),
        ("open", "opens", "opening"),
        ("play", "plays", "playing"),
        ("see", "sees", "seeing"),
    ],
)
def test_english_verbs_have_the_right_endings(word, third, ing):
    assert english._third_person(word) == third
    assert english._ing(word) == ing


def test_a_tree_is_printed_as_treebanks_print_it():
    boy = node("NP", leaf("DT", "the"), None, leaf("NN", "boy", "1sN"))
    assert str(boy) == "(NP (DT the) (NN boy))"
    assert boy.words() == "the boy"
    assert [one.keys for one in boy.leaves()] == [(), ("1sN",)]


def test_a_tree_over_fewer_leaves_has_no_empty_node():
    inner = node("PP", leaf("IN", "for"))
    tree = node("S", leaf("NN", "boy"), inner, leaf(".", "."))
    boy, _, stop = tree.leaves()
    fewer = tree.over(iter([boy._replace(word="Boy"), None, stop]))
    assert str(fewer) == "(S (NN Boy) (. .))"


def test_a_faulty_line_of_a_table_is_named(tmp_path, monkeypatch):
    (tmp_path / "nouns.tsv").write_text("german\tkind\nFrau\tp\nMann\n")
    monkeypatch.setattr(words.resources, "files", lambda package: tmp_path)
    with pytest.raises(
        ValueError, match="nouns.tsv, line 3: expected 2 cells, got 1"
    ):
        words.read_table("nouns.tsv")


def test_a_faulty_slot_of_a_verb_is_named():
    with pytest.raises(
        ValueError, match="verbs.tsv: 'X:p' is not a valid slot"
    ):
        words._read_slot("X:p")
