"""annotated.batches.

Exported from the book; edit the chapter, then run `make export`.

- 11-batches.md: Batches
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from annotated.tokens import BOS, EOS, PAD

__all__ = [
    "Sentences",
    "id_type",
    "join_sentences",
    "pad_rows",
    "Batch",
    "Corpus",
    "plan_batches",
]


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
    def of(
        cls,
        sentences: Sequence[Sequence[int]],
        dtype: DTypeLike = np.int32,
    ) -> Sentences:
        """From lists of ids."""
        starts = np.zeros(len(sentences) + 1, dtype=np.int64)
        np.cumsum([len(s) for s in sentences], out=starts[1:])
        ids = np.fromiter(
            chain.from_iterable(sentences), dtype, count=starts[-1]
        )
        return cls(ids, starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, i: int) -> NDArray:
        return self.ids[self.starts[i] : self.starts[i + 1]]

    @property
    def lengths(self) -> NDArray:
        """Tokens in each sentence, without BOS and EOS."""
        lengths = np.empty(len(self), dtype=np.int32)
        # half the memory of np.diff, which matters at 36 million
        ends, firsts = self.starts[1:], self.starts[:-1]
        return np.subtract(ends, firsts, out=lengths, casting="unsafe")

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

    def padded(
        self,
        which: Sequence[int] | NDArray,
        before: int = 0,
        after: int = 0,
    ) -> Tensor:
        """pad_rows of these sentences, without a loop over them."""
        which = np.asarray(which)
        first = self.starts[which]
        length = self.starts[which + 1] - first
        lead = int(bool(before))
        column = np.arange(int(length.max()) + lead + bool(after)) - lead
        inside = (column >= 0) & (column < length[:, None])
        rows = np.full(inside.shape, PAD, dtype=np.int64)
        rows[inside] = self.ids[(first[:, None] + column)[inside]]
        rows[:, :lead] = before
        if after:
            rows[np.arange(len(which)), length + lead] = after
        return torch.from_numpy(rows)


def id_type(vocab: int) -> type:
    """The narrowest type that holds every id of a vocabulary."""
    return np.uint16 if vocab <= 2**16 else np.int32


def join_sentences(parts: Sequence[Path], stem: Path) -> None:
    """Write the sentences of saved parts as one: STEM.ids.npy and
    STEM.starts.npy. Memory holds one part at a time.
    """
    sizes = [(len(p.ids), len(p)) for p in map(Sentences.load, parts)]
    kind = Sentences.load(parts[0]).ids.dtype
    with (
        Path(f"{stem}.ids.npy").open("wb") as ids,
        Path(f"{stem}.starts.npy").open("wb") as starts,
    ):
        _write_header(ids, kind, sum(tokens for tokens, _ in sizes))
        _write_header(starts, np.int64, 1 + sum(n for _, n in sizes))
        starts.write(np.zeros(1, dtype=np.int64).tobytes())
        first = 0
        for part in map(Sentences.load, parts):
            ids.write(part.ids.tobytes())
            starts.write((part.starts[1:] + first).tobytes())
            first += len(part.ids)


def _write_header(file: IO[bytes], dtype: DTypeLike, count: int) -> None:
    """The beginning of an .npy file with one row of numbers."""
    kind = np.lib.format.dtype_to_descr(np.dtype(dtype))
    head = {"descr": kind, "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(file, head)


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

    def first(self, count: int) -> Corpus:
        """The first pairs, as they lie; nothing is copied."""
        sides = (
            Sentences(
                side.ids[: side.starts[: count + 1][-1]],
                side.starts[: count + 1],
            )
            for side in (self.src, self.tgt)
        )
        return Corpus(*sides)

    def batch(self, pairs: Sequence[int] | NDArray) -> Batch:
        """The batch of these pairs."""
        return Batch(
            self.src.padded(pairs, after=EOS),
            self.tgt.padded(pairs, before=BOS),
            self.tgt.padded(pairs, after=EOS),
        )

    def save(self, stem: Path) -> None:
        """Write STEM.src.* and STEM.tgt.*, as Sentences.save does."""
        self.src.save(Path(f"{stem}.src"))
        self.tgt.save(Path(f"{stem}.tgt"))

    @classmethod
    def load(cls, stem: Path) -> Corpus:
        """Map what save wrote. ValueError where it is damaged."""
        sides = (
            Sentences.load(Path(f"{stem}.{s}")) for s in ("src", "tgt")
        )
        return cls(*sides)

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
    order = draw.permutation(np.arange(len(src_lengths), dtype=np.int32))
    src, tgt = (_narrow(n) + 1 for n in (src_lengths, tgt_lengths))
    order = order[_sort(tgt[order], src[order])]
    # bands of like target; in each by source, up and down in turn
    total = max(int(n.sum(dtype=np.int64)) for n in (src, tgt))
    bands = math.ceil(2 * math.sqrt(total / batch_tokens))
    band = np.cumsum(tgt[order], dtype=np.int64)
    band *= bands
    band //= int(tgt.sum(dtype=np.int64)) + 1
    band, wide = _narrow(band), src[order]
    up = np.where(band % 2, wide, wide.max(initial=0) - wide)
    order = order[_sort(band, up)]
    sides = [np.cumsum(n[order], dtype=np.int64) for n in (src, tgt)]
    batches = _cut(order, sides, batch_tokens)
    return [batches[i] for i in draw.permutation(len(batches))]


def _narrow(numbers: NDArray) -> NDArray:
    """The same numbers in 16 bits, if they fit with one added: numpy sorts
    those by radix, in a fraction of the time.
    """
    fits = numbers.max(initial=0) < 2**16 - 1
    return numbers.astype(np.uint16 if fits else np.int64)


def _sort(first: NDArray, then: NDArray) -> NDArray:
    """np.lexsort((then, first)), by two stable sorts."""
    order = np.argsort(then, kind="stable")
    return order[np.argsort(first[order], kind="stable")]


def _cut(
    order: NDArray, sides: Sequence[NDArray], batch_tokens: int
) -> list[NDArray]:
    """order in pieces in which neither side's running sum grows by more
    than batch_tokens.
    """
    batches, first = [], 0
    while first < len(order):
        last = len(order)
        for filled in sides:
            before = filled[first - 1] if first else 0
            most = before + batch_tokens
            last = min(last, int(np.searchsorted(filled, most, "right")))
        last = max(last, first + 1)
        batches.append(order[first:last])
        first = last
    return batches
