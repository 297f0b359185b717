"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from annotated.tokens import BOS, EOS, PAD

__all__ = [
    "Sentences", "pad_rows", "Batch", "Corpus", "plan_batches", "cut",
]  # fmt: skip


# 11-batches.md: What a batch is
@dataclass(frozen=True)
class Sentences:
    """Many sentences as one row of token ids and where each begins.

    Sentence i is ids[starts[i] : starts[i + 1]], without BOS and EOS.
    """

    ids: NDArray
    starts: NDArray

    @classmethod
    def of(
        cls, sentences: Sequence[Sequence[int]], dtype: DTypeLike = np.int32
    ) -> Sentences:
        """From lists of ids."""
        starts = np.cumsum([0, *map(len, sentences)], dtype=np.int64)
        ids = np.fromiter(chain.from_iterable(sentences), dtype, starts[-1])
        return cls(ids, starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, i: int) -> NDArray:
        i = range(len(self))[i]  # from the end, too; IndexError beyond it
        return self.ids[self.starts[i] : self.starts[i + 1]]

    @property
    def lengths(self) -> NDArray:
        """Tokens in each sentence, without BOS and EOS."""
        return np.diff(self.starts)

    # E17-corpora-on-disk.md: Corpora on disk
    def save(self, stem: Path) -> None:
        """Write STEM.ids.npy and STEM.starts.npy."""
        np.save(f"{stem}.ids.npy", self.ids)
        np.save(f"{stem}.starts.npy", self.starts)

    @classmethod
    def load(cls, stem: Path) -> Sentences:
        """Memory-map what save wrote. ValueError if a file is damaged or
        the two do not match.
        """
        try:
            ids = np.load(f"{stem}.ids.npy", mmap_mode="r")
            starts = np.load(f"{stem}.starts.npy", mmap_mode="r")
        except (ValueError, EOFError) as error:
            raise ValueError(f"{stem} is damaged: {error}") from None
        if not len(starts) or starts[0] != 0 or starts[-1] != len(ids):
            raise ValueError(f"{stem}: ids and starts do not match")
        return cls(ids, starts)


def pad_rows(
    rows: Sequence[NDArray],
    before: int | None = None,
    after: int | None = None,
) -> Tensor:
    """Stack rows of ids: (batch, longest), PAD after each.

    before and after are ids to put around every row, if any.
    """
    head = [] if before is None else [before]
    tail = [] if after is None else [after]
    longest = len(head) + max(map(len, rows), default=0) + len(tail)
    padded = np.full((len(rows), longest), PAD)
    for line, row in zip(padded, rows, strict=True):
        content = [*head, *row, *tail]
        line[: len(content)] = content
    return torch.from_numpy(padded)


@dataclass(frozen=True)
class Batch:
    """Padded ids, ready for the model: padding comes last in every row.

    src ends with EOS; tgt begins with BOS; labels are tgt shifted by one,
    ending with EOS (§3.1: the offset by one position).
    """

    src: Tensor  # (batch, src_len)
    tgt: Tensor  # (batch, tgt_len)
    labels: Tensor  # (batch, tgt_len)

    @property
    def tokens(self) -> int:
        """Target tokens to be predicted."""
        return int((self.labels != PAD).sum())

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        sides = self.src, self.tgt, self.labels
        return Batch(*(x.to(device, non_blocking=True) for x in sides))


@dataclass(frozen=True)
class Corpus:
    """Sentence pairs as ids. ValueError where one side has more."""

    src: Sentences
    tgt: Sentences

    def __post_init__(self) -> None:
        if len(self.src) != len(self.tgt):
            raise ValueError(
                f"{len(self.src)} source sentences, {len(self.tgt)} target"
            )

    def __len__(self) -> int:
        return len(self.src)

    def batch(self, pairs: Sequence[int] | NDArray) -> Batch:
        """The batch of these pairs."""
        src, tgt = (
            [side[i] for i in pairs] for side in (self.src, self.tgt)
        )
        return Batch(
            src=pad_rows(src, after=EOS),
            tgt=pad_rows(tgt, before=BOS),
            labels=pad_rows(tgt, after=EOS),
        )

    # 11-batches.md: Order is a function
    def plan(
        self, batch_tokens: int, seed: int, epoch: int
    ) -> list[NDArray]:
        """plan_batches for this corpus."""
        return plan_batches(
            self.src.lengths, self.tgt.lengths, batch_tokens, seed, epoch
        )

    def batches(self, batch_tokens: int) -> Iterator[Batch]:
        """Every pair once, in a fixed order: for validation."""
        for pairs in self.plan(batch_tokens, seed=0, epoch=0):
            yield self.batch(pairs)

    # E17-corpora-on-disk.md: Corpora on disk
    def save(self, stem: Path) -> None:
        """Write STEM.src.* and STEM.tgt.*, as Sentences.save does."""
        self.src.save(Path(f"{stem}.src"))
        self.tgt.save(Path(f"{stem}.tgt"))

    @classmethod
    def load(cls, stem: Path) -> Corpus:
        """Memory-map what save wrote. ValueError if it is damaged."""
        sides = (Path(f"{stem}.{side}") for side in ("src", "tgt"))
        return cls(*map(Sentences.load, sides))

    def first(self, count: int) -> Corpus:
        """The first count pairs, as a view; nothing is copied."""
        starts = [side.starts[: count + 1] for side in (self.src, self.tgt)]
        return Corpus(
            Sentences(self.src.ids[: starts[0][-1]], starts[0]),
            Sentences(self.tgt.ids[: starts[1][-1]], starts[1]),
        )


# E17-corpora-on-disk.md: The plan of chapter 11, in numpy
def plan_batches(
    src_lengths: NDArray,
    tgt_lengths: NDArray,
    batch_tokens: int,
    seed: int = 0,
    epoch: int = 0,
) -> list[NDArray]:
    """Which pairs make each batch of an epoch (§5.1): pairs of similar
    length, with at most batch_tokens tokens on either side. A function of
    (seed, epoch) alone; each pair occurs once, and one that is longer
    than batch_tokens is a batch of its own. ValueError if
    batch_tokens < 1.
    """
    if batch_tokens < 1:
        raise ValueError(
            f"batch_tokens must be at least 1, not {batch_tokens}"
        )
    draw = np.random.default_rng([seed, epoch])
    src, tgt = src_lengths + 1, tgt_lengths + 1
    order = draw.permutation(len(src))
    order = order[np.lexsort((src[order], tgt[order]))]
    # bands of similar target length; in each by source, up, then down
    total = max(int(src.sum()), int(tgt.sum()))
    bands = math.ceil(2 * math.sqrt(total / batch_tokens))
    band = np.cumsum(tgt[order]) * bands // (int(tgt.sum()) + 1)
    up = np.where(band % 2, src[order], -src[order])
    order = order[np.lexsort((up, band))]
    batches = cut(order, [src[order], tgt[order]], batch_tokens)
    return [batches[i] for i in draw.permutation(len(batches))]


def cut(
    order: NDArray, sides: Sequence[NDArray], batch_tokens: int
) -> list[NDArray]:
    """order, cut into pieces of at most batch_tokens on either side."""
    filled = [np.cumsum(side) for side in sides]
    batches, first = [], 0
    while first < len(order):
        last = len(order)
        for total in filled:
            most = batch_tokens + (total[first - 1] if first else 0)
            last = min(last, int(np.searchsorted(total, most, "right")))
        last = max(last, first + 1)
        batches.append(order[first:last])
        first = last
    return batches
