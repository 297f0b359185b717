"""Exported from the book; edit the chapter, then run `make export`."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from annotated.batches import Sentences

__all__ = ["nearest"]


# E34-dirty-text.md: The most similar sentence
_MOST = 1_000_000  # sentences that are looked at
_PART = 50_000  # sentences at a time
_FEW = 300  # that may have a token, whatever their share


def nearest(
    queries: Sequence[Sequence[int] | NDArray], corpus: Sentences
) -> NDArray:
    """For each query the number of the corpus's most similar sentence,
    both as ids of one vocabulary; of equals the first, and the first of
    all where no token is shared.
    """
    count = min(len(corpus), _MOST)
    wanted = np.unique(np.concatenate([*map(np.asarray, queries), [0]]))
    vocab = 1 + int(max(wanted.max(), corpus.ids.max()))
    lengths = corpus.lengths[:count]
    found, often = [], np.zeros(vocab, np.int64)
    for first in range(0, count, _PART):
        rows = np.arange(first, min(first + _PART, count))
        start, end = corpus.starts[[rows[0], rows[-1] + 1]]
        ids = corpus.ids[start:end].astype(np.int64)
        keys = np.unique(np.repeat(rows, lengths[rows]) * vocab + ids)
        often += np.bincount(keys % vocab, minlength=vocab)
        keys = keys[np.isin(keys % vocab, wanted)]
        found.append([*map(np.int32, np.divmod(keys, vocab))])
    rows, ids = map(np.concatenate, zip(*found))
    rare = np.log(count / np.maximum(often, 1)) ** 2
    rare[often > max(count / 3, _FEW)] = 0.0
    sizes = np.sqrt(_sums(rare, corpus, count)) + 1e-6
    order = np.argsort(ids, kind="stable")
    rows = rows[order]
    starts = np.searchsorted(ids[order], np.arange(vocab + 1))
    best = np.zeros(len(queries), np.int64)
    for i, query in enumerate(queries):
        shared = np.zeros(count, np.float32)
        for token in np.unique(np.asarray(query, np.int64)):
            if rare[token]:
                places = rows[starts[token] : starts[token + 1]]
                shared[places] += np.float32(rare[token])
        best[i] = (shared / sizes).argmax()
    return best


def _sums(rare: NDArray, corpus: Sentences, count: int) -> NDArray:
    """The sum of the weights of each sentence's tokens."""
    sums = np.zeros(count, np.float32)
    for first in range(0, count, _PART):
        last = min(first + _PART, count)
        start, end = corpus.starts[[first, last]]
        upto = np.concatenate([[0], np.cumsum(rare[corpus.ids[start:end]])])
        edges = corpus.starts[first : last + 1] - start
        sums[first:last] = np.diff(upto[edges])
    return sums
