"""Translators without a model: annotated.book.baselines, chapter 20."""

from __future__ import annotations

from annotated.book.baselines import (
    dictionary,
    nearest_captions,
    word_by_word,
    words,
)

EN = ["A dog runs.", "A dog sleeps.", "The cat runs.", "A bird sings."]
DE = [
    "Ein Hund rennt.",
    "Ein Hund schläft.",
    "Die Katze rennt.",
    "Ein Vogel singt.",
]


def test_words_and_marks_are_told_apart() -> None:
    assert words("It's a dog.") == ["It", "'", "s", "a", "dog", "."]


def test_a_word_is_what_goes_with_it_most() -> None:
    known = dictionary(EN, DE)
    assert known["dog"] == "Hund" and known["runs"] == "rennt"
    assert "." not in known
    line = "A dog, a zebra runs."
    assert word_by_word(line, known) == "Ein Hund, Ein zebra rennt."


def test_of_two_captions_the_one_with_the_rare_word_is_nearer() -> None:
    found = nearest_captions(["A bird runs.", "The cat sleeps."], EN, DE)
    assert found == ["Ein Vogel singt.", "Die Katze rennt."]
