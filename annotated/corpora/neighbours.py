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
    wanted = [np.unique(np.asarray(q, np.int64)) for q in queries]
    most = [int(ids.max(initial=0)) for ids in (corpus.ids, *wanted)]
    vocab = 1 + max(most)
    often = np.zeros(vocab, np.int64)
    parts = [(i, min(i + _PART, count)) for i in range(0, count, _PART)]
    for part in parts:
        often += np.diff(_holders(corpus, part, vocab)[1])
    rare = np.log(count / np.maximum(often, 1)) ** 2
    rare[often > max(count / 3, _FEW)] = 0.0
    best = np.zeros(len(queries), np.int64)
    highest = np.zeros(len(queries))
    for first, last in parts:
        rows, starts = _holders(corpus, (first, last), vocab)
        sizes = np.sqrt(_sums(rare, corpus, first, last)) + 1e-6
        for i, query in enumerate(wanted):
            shared = np.zeros(last - first)
            for token in query[rare[query] > 0]:
                shared[rows[starts[token] : starts[token + 1]]] += rare[
                    token
                ]
            likeness = shared / sizes
            if likeness.max() > highest[i]:
                highest[i] = likeness.max()
                best[i] = first + likeness.argmax()
    return best


def _holders(
    corpus: Sentences, part: tuple[int, int], vocab: int
) -> tuple[NDArray, NDArray]:
    """The sentences from first to last that have a token, once each and
    counted from first: rows[starts[token] : starts[token + 1]].
    """
    first, last = part
    start, end = corpus.starts[[first, last]]
    rows = np.repeat(np.arange(last - first), corpus.lengths[first:last])
    ids = corpus.ids[start:end].astype(np.int64)
    both = np.sort(ids * (last - first) + rows)  # np.unique is slower
    both = both[np.diff(both, prepend=-1) > 0]
    ids, rows = np.divmod(both, last - first)
    return rows, np.searchsorted(ids, np.arange(vocab + 1))


def _sums(
    rare: NDArray, corpus: Sentences, first: int, last: int
) -> NDArray:
    """The sum of the weights of each sentence's tokens."""
    start, end = corpus.starts[[first, last]]
    upto = np.concatenate([[0], np.cumsum(rare[corpus.ids[start:end]])])
    return np.diff(upto[corpus.starts[first : last + 1] - start])
