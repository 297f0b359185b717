"""Exported from the book; edit the chapter, then run `make export`."""

from collections.abc import Iterator
from itertools import islice

import numpy as np

from annotated.corpora.cleaning import Division
from annotated.engine.errors import DataError
from annotated.pocket import SPLITS, pocket_pairs

__all__ = ["SYNTHETIC", "synthetic_pairs"]


# E7-text.md: Text without a file
_SYMBOLS = tuple("abcdefghijklmnop")
SYNTHETIC = {  # name: the languages of its two sides
    "copy": ("symbols", "symbols"),
    "reverse": ("symbols", "symbols"),
    "pocket": ("de", "en"),
}


def synthetic_pairs(
    name: str, split: str, count: int, seed: int
) -> tuple[list[str], list[str]]:
    """The source and target lines of copy, reverse or pocket, generated
    on the fly. The splits (train, valid, test, …) share no pairs.
    DataError for an unknown split.
    """
    splits = SPLITS if name == "pocket" else ("train", "valid", "test")
    if split not in splits:
        raise DataError(
            f"{name} has no split {split!r}; it has {', '.join(splits)}"
        )
    if name == "pocket":
        pairs = pocket_pairs(count, split, seed)
        return [p.source for p in pairs], [p.target for p in pairs]
    lines = list(islice(_symbol_lines(split, seed), count))
    if name == "reverse":
        return lines, [line[::-1] for line in lines]
    return lines, lines


def _symbol_lines(split: str, seed: int) -> Iterator[str]:
    """Endless lines of 1 to 10 letters; a line's hash sets its split."""
    draw = np.random.default_rng(seed)
    division = Division("source", of=10, valid=0, test=1)
    while True:
        line = " ".join(draw.choice(_SYMBOLS, draw.integers(1, 11)))
        if division.split(0, line) == split:
            yield line
