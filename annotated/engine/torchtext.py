"""Exported from the book; edit the chapter, then run `make export`."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from annotated.tokens import SPECIALS, Tokenizer

__all__ = ["TORCHTEXT", "from_torchtext", "torchtext_pairs"]


# E16-tokenizers.md: torchtext, where it loads
TORCHTEXT = ("<pad>", "<bos>", "<eos>", "<unk>")  # for ours, in our order


def from_torchtext(
    vocab: Any, specials: Sequence[str] = TORCHTEXT
) -> tuple[Tokenizer, list[int]]:
    """A torchtext vocabulary as a tokenizer for words, and for each of its
    ids the id that the word has there: old_embedding[rows] is in our order.

    specials are its names for padding, start, end and unknown. ValueError
    where it has not all of them, or no words.
    """
    theirs = list(vocab.get_itos())
    place = {word: i for i, word in enumerate(theirs)}
    if absent := [name for name in specials if name not in place]:
        raise ValueError(
            f"the vocabulary has no {', '.join(absent)}: say what its "
            "padding, start, end and unknown are called, in this order"
        )
    known = {*specials, *SPECIALS}
    words = [word for word in theirs if word not in known]
    if not words:
        raise ValueError("the vocabulary has no words")
    rows = [place[word] for word in (*specials, *words)]
    return Tokenizer.of_words(words), rows


def torchtext_pairs(
    dataset: Iterable[Any], count: int | None = None
) -> tuple[list[str], list[str]]:
    """A torchtext translation data set as source lines and target lines,
    all or the first count. ValueError where an item is no pair of strings.
    """
    sides: tuple[list[str], list[str]] = [], []
    for number, item in enumerate(islice(dataset, count)):
        pair = tuple(item)
        if len(pair) != 2 or not all(isinstance(x, str) for x in pair):
            raise ValueError(
                f"item {number} is no pair of strings: {item!r}"
            )
        for side, line in zip(sides, pair, strict=True):
            side.append(" ".join(line.split("\n")).strip())
    return sides
