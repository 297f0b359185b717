"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from annotated.batches import Batch, Corpus, Sentences
from annotated.engine.distributed import rank, world_size
from annotated.engine.packing import Packing
from annotated.tokens import BOS, EOS, PAD

__all__ = ["PackedBatch", "micro_batches"]


# E5-trainer.md: The loss, packed
@dataclass(frozen=True)
class PackedBatch(Batch):
    """A batch with the packing of each side."""

    source: Packing
    target: Packing
    memory: Tensor | None = None  # bytes that all of them are views of

    @classmethod
    def of(cls, batch: Batch) -> PackedBatch:
        """The packed form of a batch; a PackedBatch is returned as is."""
        if isinstance(batch, cls):
            return batch
        sides = Packing.of(batch.src), Packing.of(batch.tgt)
        return cls(batch.src, batch.tgt, batch.labels, *sides)

    @classmethod
    def read(cls, corpus: Corpus, pairs: NDArray) -> PackedBatch:
        """The packed form of corpus.batch(pairs), without a loop."""
        if type(corpus).batch is not Corpus.batch:  # a batch of its own
            return cls.of(corpus.batch(pairs))
        src, source = _read(corpus.src, pairs)
        labels, target = _read(corpus.tgt, pairs)
        for ids, packing in ((src, source), (labels, target)):
            if not torch.equal(ids != PAD, packing.real):  # PAD as a word
                return cls.of(corpus.batch(pairs))
        tgt = _shifted(labels, target.real)
        return cls(src, tgt, labels, source, target)

    def moved(self, move: Callable[[Tensor], Tensor]) -> PackedBatch:
        """A copy with move applied to each of its tensors."""
        src, tgt, labels = map(move, (self.src, self.tgt, self.labels))
        source, target = self.source.moved(move), self.target.moved(move)
        return PackedBatch(src, tgt, labels, source, target)

    def together(self, pin: bool) -> PackedBatch:
        """A copy of which all tensors lie in one piece of memory."""
        ends = [0]

        def count(x: Tensor) -> Tensor:
            ends.append(ends[-1] - (-x.nbytes // _ALIGNED) * _ALIGNED)
            return x

        self.moved(count)
        memory = torch.empty(ends[-1], dtype=torch.uint8, pin_memory=pin)
        starts = iter(ends)

        def put(x: Tensor) -> Tensor:
            return _view(memory, next(starts), x).copy_(x)

        return replace(self.moved(put), memory=memory)

    def to(self, device: torch.device | str) -> PackedBatch:
        """The same batch there: in one transfer, if it lies together."""
        if self.memory is None:
            return self.moved(lambda x: x.to(device, non_blocking=True))
        there = self.memory.to(device, non_blocking=True)

        def same(x: Tensor) -> Tensor:
            return _view(there, int(x.storage_offset()) * x.itemsize, x)

        return replace(self.moved(same), memory=there)


def _read(side: Sentences, pairs: NDArray) -> tuple[Tensor, Packing]:
    """These sentences with EOS behind each, (batch, length), and their
    packing.
    """
    first = side.starts[pairs]
    lengths = side.starts[pairs + 1] - first
    real = np.arange(lengths.max(initial=0) + 1) <= lengths[:, None]
    index = np.flatnonzero(real)
    ends = np.cumsum(lengths + 1)  # of the rows, among the real tokens
    words = np.ones(len(index), dtype=bool)
    words[ends - 1] = False
    place = np.repeat(first - ends + lengths + 1, lengths)
    place += np.flatnonzero(words)
    row = np.full(len(index), EOS)
    row[words] = np.take(side.ids, place)
    padded = np.full(real.shape, PAD)
    padded.reshape(-1)[index] = row
    packing = Packing(torch.from_numpy(real), torch.from_numpy(index))
    return torch.from_numpy(padded), packing


def _shifted(labels: Tensor, real: Tensor) -> Tensor:
    """The decoder's input for these labels: BOS, and no last token."""
    tgt = torch.full_like(labels, BOS)
    tgt[:, 1:] = labels[:, :-1]
    return tgt.masked_fill_(~real, PAD)


_ALIGNED = 64  # bytes: where each tensor begins


def _view(memory: Tensor, first: int, like: Tensor) -> Tensor:
    """The bytes of memory from first on, as a tensor like this one."""
    part = memory[first : first + like.nbytes]
    return part.view(like.dtype).view(like.shape)


# E5-trainer.md: One batch, several micro-batches, several processes
def _split_batch(
    corpus: Corpus, pairs: NDArray, count: int, most: int | None = None
) -> list[NDArray]:
    """Split a batch into micro-batches of roughly equal token counts.

    There are count of them, or the smallest multiple of count that keeps
    each within most tokens per side (a single pair may exceed it). If
    there are too few pairs, some are empty. Pairs keep their order.
    """
    sides = [
        np.cumsum(
            np.append(0, side.starts[pairs + 1] - side.starts[pairs] + 1)
        )
        for side in (corpus.src, corpus.tgt)
    ]
    total, parts = sides[0] + sides[1], count
    while True:
        goal = total[-1] * np.arange(1, parts) / parts
        cuts = np.searchsorted((total[1:] + total[:-1]) / 2, goal)
        ends = np.append(0, np.append(cuts, len(pairs)))
        counted = np.diff(ends) > 1  # one pair alone may be too long
        counted |= not counted.any()
        largest = max(np.diff(side[ends])[counted].max() for side in sides)
        if most is None or largest <= most:
            return np.split(pairs, cuts)
        if parts >= len(pairs):
            return np.split(pairs, range(1, parts))  # a pair in each
        parts += count


def micro_batches(
    corpus: Corpus, pairs: NDArray, most: int | None
) -> list[tuple[PackedBatch, float]]:
    """This process's micro-batches, each with the weight of its loss: 1,
    or 0 for a placeholder.
    """
    parts = _split_batch(corpus, pairs, world_size(), most)
    each = len(parts) // world_size()
    mine = parts[rank() * each : (rank() + 1) * each]
    start, end = torch.tensor([[BOS]]), torch.tensor([[EOS]])
    nothing = PackedBatch.of(Batch(end, start, end))
    return [
        (PackedBatch.read(corpus, p), 1.0) if len(p) else (nothing, 0.0)
        for p in mine
    ]
