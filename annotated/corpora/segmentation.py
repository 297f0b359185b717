"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from annotated.batches import Corpus, Sentences
from annotated.corpora.sentencepieces import kind_of
from annotated.engine.errors import UsageError
from annotated.tokens import SPECIALS, BytePairs, Tokenizer, split_words

__all__ = ["Segmenter", "SegmentedCorpus"]


# E16-tokenizers.md: Another segmentation in each epoch
class Segmenter:
    """Cuts the sentences of a tokenizer of byte pairs into tokens anew,
    with BPE-dropout. UsageError for tokens of another kind.
    """

    def __init__(self, tokenizer: Tokenizer):
        if (kind := kind_of(tokenizer)) != "bpe":
            raise UsageError(f"bpe_dropout needs byte pairs, not {kind}")
        model = json.loads(tokenizer.inner.to_str())["model"]
        number, self.size = model["vocab"], len(tokenizer)
        merges = model["merges"]
        keys = [number[a] * self.size + number[b] for a, b in merges]
        self.made = np.array([number[a + b] for a, b in merges], np.int64)
        self.order = np.argsort(np.array(keys, np.int64))
        self.keys = np.array(keys, np.int64)[self.order]
        self.never = len(merges)  # the rank of what cannot be merged
        first = len(SPECIALS)  # specials are spelt with nothing
        # what was added, such as a tag, is a letter of its own
        rows = [[i] * (i >= first) for i in range(self.size)]
        for name, i in number.items():
            if i >= first:
                rows[i] = [number[c] for c in name]
        self.spelling = Sentences.of(rows, np.int64)
        single = b"".join(BytePairs({}).tokens())
        # and it is a line break, which no word crosses
        self.bytes = np.full(self.size, ord("\n"), np.uint8)
        self.bytes[first : first + 256] = np.frombuffer(single, np.uint8)

    def redrawn(
        self, sentences: Sentences, p: float, draw: np.random.Generator
    ) -> Sentences:
        """The same text in other tokens: each possible merge is left out
        with probability p, at every step (Provilkov et al. 2020).
        """
        if not self.never:  # nothing was ever merged
            return sentences
        tokens = np.asarray(sentences.ids, np.int64)
        many = self.spelling.lengths[tokens]
        ends = np.append(0, np.cumsum(many))
        place = np.repeat(self.spelling.starts[tokens] - ends[:-1], many)
        letters = self.spelling.ids[place + np.arange(ends[-1])]
        heads = ends[sentences.starts]  # the letter that begins each
        words = self._words(letters, heads[:-1])
        ids, lengths = self._merged(letters, words, p, draw)
        count = np.append(0, np.cumsum(lengths))
        starts = count[np.searchsorted(words, heads)]
        return Sentences(ids.astype(sentences.ids.dtype), starts)

    def _words(self, letters: NDArray, heads: NDArray) -> NDArray:
        """Where each word begins. All sentences are split in one go, with
        a line break before each, which no word crosses.
        """
        raw = np.insert(self.bytes[letters], heads, ord("\n"))
        found = split_words(raw.tobytes().decode())  # puts a space first
        begin = np.cumsum([0, *map(len, found)])[1:-1] - 1
        byte = np.flatnonzero((raw & 0xC0) != 0x80)  # where characters are
        breaks = heads + np.arange(len(heads))
        begin = byte[begin]
        begin -= np.searchsorted(breaks, begin)  # without the line breaks
        words = np.sort(np.concatenate([begin, heads]), kind="stable")
        words = words[np.diff(words, prepend=-1) > 0]  # union1d is slow
        return words[words < len(letters)]  # not behind the last

    def _ranks(self, left: NDArray, right: NDArray) -> NDArray:
        """When the merge of each pair was learned."""
        key = left * self.size + right
        at = np.searchsorted(self.keys, key)
        at[at == self.never] = 0
        return np.where(self.keys[at] == key, self.order[at], self.never)

    def _merged(
        self, ids: NDArray, words: NDArray, p: float,
        draw: np.random.Generator,
    ) -> tuple[NDArray, NDArray]:  # fmt: skip
        """The tokens of all words, and how many each has."""
        word = np.zeros(len(ids), np.int64)
        word[words] = 1
        word = np.cumsum(word) - 1
        rank = np.full(len(ids), self.never)  # of each with the next
        inside = np.flatnonzero(word[1:] == word[:-1])
        rank[inside] = self._ranks(ids[inside], ids[inside + 1])
        done = [(word[:0], ids[:0])]
        while n := len(ids):
            kept = draw.random(n) >= p
            first = np.flatnonzero(np.diff(word, prepend=-1))
            # the least rank of each word, and in the same number where
            score = np.where(kept, rank, self.never) * n + np.arange(n)
            best = np.minimum.reduceat(score, first)
            goes = best < self.never * n
            on = np.repeat(goes, np.diff(np.append(first, n)))
            done.append((word[~on], ids[~on]))
            at = best[goes] % n
            ids[at] = self.made[rank[at]]
            on[at + 1] = False
            at = (np.cumsum(on) - 1)[at]
            ids, word, rank = ids[on], word[on], rank[on]
            for i in (at, at[at > 0] - 1):  # its pairs are others now
                j = np.minimum(i + 1, len(ids) - 1)
                new = self._ranks(ids[i], ids[j])
                joined = (word[i] == word[j]) & (i < j)
                rank[i] = np.where(joined, new, self.never)
        word, ids = map(np.concatenate, zip(*done))
        count = np.bincount(word, minlength=len(words))
        return ids[np.argsort(word, kind="stable")], count


@dataclass(frozen=True)
class SegmentedCorpus(Corpus):
    """A corpus that can be cut into tokens anew, batch by batch."""

    segmenters: tuple[Segmenter, Segmenter]  # of source and target

    @classmethod
    def of(
        cls, corpus: Corpus, tokenizers: tuple[Tokenizer, Tokenizer]
    ) -> SegmentedCorpus:
        """With the tokenizers of its two sides. UsageError unless both are
        of byte pairs.
        """
        source, target = tokenizers
        ours = Segmenter(source)
        theirs = ours if target is source else Segmenter(target)
        return cls(corpus.src, corpus.tgt, (ours, theirs))

    def redrawn(
        self, pairs: NDArray, p: float, seed: Sequence[int]
    ) -> Corpus:
        """These pairs alone, with BPE-dropout p; a function of the seed."""
        draw = np.random.default_rng([len(SPECIALS), *seed])
        sides = []
        for side, segmenter in zip((self.src, self.tgt), self.segmenters):
            rows = [side[i].tolist() for i in pairs]
            some = Sentences.of(rows, side.ids.dtype)
            sides.append(segmenter.redrawn(some, p, draw))
        return Corpus(*sides)
