"""annotated.batches.

Exported from the book; edit the chapter, then run `make export`.

- 11-batches.md: Batches
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from annotated.tokens import BOS, EOS, PAD

__all__ = ["Sentences", "pad_rows", "Batch", "Corpus", "plan_batches"]


# 11-batches.md: A corpus is one long row of numbers
@dataclass(frozen=True)
class Sentences:
    """Many sentences as one row of token ids and where each begins.

    Sentence i is ids[starts[i] : starts[i + 1]], without BOS and EOS.
    Arrays that were saved are mapped, not read: opening a corpus costs
    the same whatever its size.
    """

    ids: NDArray
    starts: NDArray

    @classmethod
    def of(cls, sentences: Sequence[Sequence[int]]) -> Sentences:
        """From lists of ids."""
        starts = np.zeros(len(sentences) + 1, dtype=np.int64)
        np.cumsum([len(s) for s in sentences], out=starts[1:])
        ids = np.fromiter(
            (i for s in sentences for i in s), np.int32, count=starts[-1]
        )
        return cls(ids, starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, i: int) -> NDArray:
        return self.ids[self.starts[i] : self.starts[i + 1]]

    @property
    def lengths(self) -> NDArray:
        """Tokens in each sentence, without BOS and EOS."""
        return np.diff(self.starts)

    def save(self, stem: Path) -> None:
        """Write STEM.ids.npy and STEM.starts.npy."""
        np.save(f"{stem}.ids.npy", self.ids)
        np.save(f"{stem}.starts.npy", self.starts)

    @classmethod
    def load(cls, stem: Path) -> Sentences:
        """Map what save wrote. ValueError where a file is damaged, or the
        two do not fit together.
        """
        try:
            ids = np.load(f"{stem}.ids.npy", mmap_mode="r")
            starts = np.load(f"{stem}.starts.npy", mmap_mode="r")
        except (ValueError, EOFError) as error:
            raise ValueError(f"{stem}: damaged: {error}") from None
        if not len(starts) or starts[0] != 0 or starts[-1] != len(ids):
            raise ValueError(f"{stem}: ids and starts do not fit together")
        return cls(ids, starts)


# 11-batches.md: What a batch is
def pad_rows(
    rows: Sequence[NDArray], before: int = 0, after: int = 0
) -> Tensor:
    """Stack rows of ids: (batch, longest), PAD after each.

    before and after are ids to put around every row; 0 puts nothing.
    """
    extra = bool(before) + bool(after)
    longest = max(len(row) for row in rows) + extra
    padded = np.full((len(rows), longest), PAD, dtype=np.int64)
    for place, row in zip(padded, rows, strict=True):
        first = bool(before)
        place[:first] = before
        place[first : first + len(row)] = row
        if after:
            place[first + len(row)] = after
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
        src = [self.src[i] for i in pairs]
        tgt = [self.tgt[i] for i in pairs]
        return Batch(
            pad_rows(src, after=EOS),
            pad_rows(tgt, before=BOS),
            pad_rows(tgt, after=EOS),
        )

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


# 11-batches.md: A pair has two lengths
def plan_batches(
    src_lengths: NDArray,
    tgt_lengths: NDArray,
    batch_tokens: int,
    seed: int = 0,
    epoch: int = 0,
) -> list[NDArray]:
    """Which pairs make each batch of an epoch (§5.1).

    Pairs of like length stand together; a batch ends before it holds
    more than batch_tokens tokens on either side, so at the paper's 25,000
    it has about that many of both. Both the batches and their order are a
    function of (seed, epoch) alone, and each pair comes once. A pair that
    is longer than batch_tokens is a batch of its own.
    """
    if batch_tokens < 1:
        raise ValueError(
            f"batch_tokens must be at least 1, not {batch_tokens}"
        )
    draw = np.random.default_rng([seed, epoch])
    # the permutation decides between pairs that are alike
    order = draw.permutation(len(src_lengths))
    order = order[np.lexsort((src_lengths[order], tgt_lengths[order]))]
    src, tgt = src_lengths[order] + 1, tgt_lengths[order] + 1
    # bands of like target; in each by source, up and down in turn
    count = max(src.sum(), tgt.sum()) / batch_tokens
    bands = math.ceil(2 * math.sqrt(count))
    band = np.cumsum(tgt) * bands // (tgt.sum() + 1)
    place = np.lexsort((np.where(band % 2, src, -src), band))
    order = order[place]
    filled = [np.cumsum(np.append(0, side[place])) for side in (src, tgt)]
    batches, first = [], 0
    while first < len(order):
        last = min(
            int(np.searchsorted(f, f[first] + batch_tokens, "right")) - 1
            for f in filled
        )
        last = max(last, first + 1)
        batches.append(order[first:last])
        first = last
    return [batches[i] for i in draw.permutation(len(batches))]
