"""Exported from the book; edit the chapter, then run `make export`."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from annotated.tokens import SPECIALS, Tokenizer

__all__ = ["from_torchtext", "torchtext_pairs"]


# E16-tokenizers.md: torchtext, where it loads
_SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>")  # its names for SPECIALS


def from_torchtext(
    vocab: Any, specials: Sequence[str] = _SPECIALS
) -> tuple[Tokenizer, list[int]]:
    """A torchtext vocabulary as a word tokenizer, and for each new id the
    word's old id: old_embedding[rows] is in the new order.

    specials are its names for padding, start, end and unknown. ValueError
    unless they are four, and it has all of them and words, too.
    """
    if len(specials) != len(SPECIALS):
        raise ValueError(
            "specials must be four names, for padding, start, end and "
            f"unknown, in this order, not {list(specials)}"
        )
    theirs = list(vocab.get_itos())
    index = {word: i for i, word in enumerate(theirs)}
    if absent := [name for name in specials if name not in index]:
        raise ValueError(
            f"the vocabulary has no {', '.join(absent)}: give its names "
            "for padding, start, end and unknown as specials, in this order"
        )
    known = {*specials, *SPECIALS}
    words = [word for word in theirs if word not in known]
    if not words:
        raise ValueError("the vocabulary has no words")
    rows = [index[word] for word in (*specials, *words)]
    return Tokenizer.of_words(words), rows


def torchtext_pairs(
    dataset: Iterable[Any], count: int | None = None
) -> tuple[list[str], list[str]]:
    """The source and target lines of a torchtext translation data set, all
    or the first count. ValueError if an item is not a pair of strings.
    """
    sides: tuple[list[str], list[str]] = [], []
    for number, item in enumerate(islice(dataset, count)):
        pair = item if isinstance(item, (tuple, list)) else ()
        if len(pair) != 2 or not all(isinstance(x, str) for x in pair):
            raise ValueError(
                f"item {number} is not a pair of strings: {item!r}"
            )
        for side, line in zip(sides, pair, strict=True):
            side.append(line.replace("\n", " ").strip())
    return sides
