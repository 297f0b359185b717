"""Phrases and clauses that the tests of pocket German are made of."""

from annotated.pocket.meaning import Clause, Meaning, Phrase

FRAU, MANN, KIND = Phrase("Frau"), Phrase("Mann"), Phrase("Kind")


JUNGE, BUCH, HUND = Phrase("Junge"), Phrase("Buch"), Phrase("Hund")


ANNA, PAUL = Phrase("Anna", "name"), Phrase("Paul", "name")


ME, YOU, HE, SHE, WE, THEY = (
    Phrase(word, "pronoun")
    for word in ("I", "you", "he", "she", "we", "they")
)


IT = Phrase("it", "pronoun")


WHO, WHAT = Phrase("who", "question"), Phrase("what", "question")


def says(*clause, **more) -> Meaning:
    return Meaning("statement", Clause(*clause, **more))


def asks(*clause, **more) -> Meaning:
    return Meaning("question", Clause(*clause, **more))


def about(noun: str, plural: bool = False) -> Phrase:
    return Phrase(noun, "relative", plural)


PERSONS = ("ich", "du", "er", "wir")
