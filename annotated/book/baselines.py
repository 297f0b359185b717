"""Exported from the book; edit the chapter, then run `make export`."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from annotated.corpora.cleaning import WORD_OR_MARK

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
    by the cosine similarity of their words, weighted by rarity.
    """
    where: dict[str, list[int]] = defaultdict(list)
    for i, line in enumerate(src):
        for word in set(words(line.lower())):
            where[word].append(i)
    places = {w: np.array(p) for w, p in where.items()}
    rare = {w: math.log(len(src) / len(p)) for w, p in where.items()}

    def likeness(line: str) -> NDArray:
        common = np.zeros(len(src))
        for word in set(words(line.lower())) & places.keys():
            common[places[word]] += rare[word] ** 2
        return common

    size = np.zeros(len(src))
    for word, place in places.items():
        size[place] += rare[word] ** 2
    size = np.sqrt(size) + 1e-9
    return [tgt[int((likeness(x) / size).argmax())] for x in lines]
