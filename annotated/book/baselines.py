"""Exported from the book; edit the chapter, then run `make export`."""

import re
from collections import Counter
from collections.abc import Sequence

from annotated.batches import Sentences
from annotated.corpora.cleaning import WORD_OR_MARK
from annotated.corpora.neighbours import nearest

__all__ = ["words", "dictionary", "word_by_word", "nearest_captions"]


# 20-multi30k.md: How good is that?
def words(line: str) -> list[str]:
    """The words and punctuation marks of a line."""
    return WORD_OR_MARK.findall(line)


def dictionary(src: Sequence[str], tgt: Sequence[str]) -> dict[str, str]:
    """Map each source word to the target word most associated with it."""
    ours, theirs = Counter[str](), Counter[str]()
    both = Counter[tuple[str, str]]()
    for one, other in zip(src, tgt, strict=True):
        a, b = set(words(one.lower())), set(words(other))
        ours.update(a)
        theirs.update(b)
        both.update((x, y) for x in a for y in b if y.isalnum())
    found: dict[str, tuple[float, str]] = {}
    for (x, y), n in both.items():
        dice = 2 * n / (ours[x] + theirs[y])
        found[x] = max(found.get(x, (0.0, "")), (dice, y))
    return {x: y for x, (_, y) in found.items() if x.isalnum()}


def word_by_word(line: str, known: dict[str, str]) -> str:
    """Translate word by word; words not in the dictionary are copied."""
    text = " ".join(known.get(w.lower(), w) for w in words(line))
    return re.sub(r" (?=[.,;:!?])", "", text)


def nearest_captions(
    lines: Sequence[str], src: Sequence[str], tgt: Sequence[str]
) -> list[str]:
    """For each line, the translation of the most similar source sentence,
    by their words.
    """
    known: dict[str, int] = {}

    def ids(some: Sequence[str]) -> list[list[int]]:
        return [
            [known.setdefault(w, len(known)) for w in words(line.lower())]
            for line in some
        ]

    memory = Sentences.of(ids(src))
    return [tgt[int(i)] for i in nearest(ids(lines), memory)]
