"""Page E5: batches, cut for processes and memory: engine.micro; and the
scale of a float16 loss.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from annotated.batches import Corpus, Sentences
from annotated.engine.micro import (
    PackedBatch,
    _split_batch,
    micro_batches,
)
from annotated.engine.trainer import (
    RunConfig,
    Trainer,
    _LossScale,
    _short_first,
)
from annotated.tokens import PAD
from annotated.training import copy_corpus
from tests.engine.small import small_model, small_trainer

# --- the batches ----------------------------------------------------------


def test_no_batch_is_read_that_no_step_will_use() -> None:
    read = []

    class Watched(Corpus):
        def batch(self, pairs: Any) -> Any:
            read.append(len(pairs))
            return super().batch(pairs)

    corpus = copy_corpus(20, vocab=12, length=5)
    watched = Watched(corpus.src, corpus.tgt)
    config = RunConfig(batch_tokens=40, max_steps=7)
    trainer = Trainer(small_model(), watched, config)
    for progress in trainer.steps():
        # each while the one before is used; nobody waits for it here
        assert len(read) <= progress.step + 1
    assert len(read) == 7
    assert np.sum(read[: len(trainer.plan(0))]) == 20


def lengths_of(*sides: list[int]) -> Corpus:
    return Corpus(
        *[Sentences.of([[5] * n for n in side]) for side in sides]
    )


@pytest.mark.parametrize(
    ("lengths", "count", "most", "parts"),
    [
        # five tokens each, with the end; on either side
        ([[4] * 4], 1, None, [[0, 1, 2, 3]]),
        ([[4] * 4], 2, None, [[0, 1], [2, 3]]),
        ([[4] * 4], 1, 10, [[0, 1], [2, 3]]),
        ([[4] * 4], 1, 9, [[0], [1], [2], [3]]),
        ([[4] * 4], 2, 9, [[0], [1], [2], [3]]),
        # of 5, 4 and 6, the first two are nine
        ([[4, 3, 5]], 2, 9, [[0, 1], [2]]),
        ([[4, 3, 5]], 2, 8, [[0], [1], [], [2]]),
        # a pair is on the side where its middle is
        ([[1] * 7], 4, None, [[0, 1], [2], [3, 4], [5, 6]]),
        # 10 + 2, 2 + 2 and 2 + 10 tokens
        ([[9, 1, 1], [1, 1, 9]], 2, 12, [[0], [1, 2]]),
        ([[9, 1, 1], [1, 1, 9]], 2, 11, [[0], [], [1], [2]]),
        # one pair of 40 tokens, too long by itself, and forty of 2
        (
            [[39] + [1] * 40],
            1,
            20,
            [[], [0], *([*range(i, i + 10)] for i in (1, 11, 21, 31))],
        ),
    ],
)
def test_a_batch_is_cut_at_equal_numbers_of_tokens(
    lengths: list[list[int]],
    count: int,
    most: int | None,
    parts: list[list[int]],
) -> None:
    """Computed by hand: in as few parts as will do, times count."""
    corpus = lengths_of(lengths[0], lengths[-1])
    pairs = np.arange(len(corpus))
    found = _split_batch(corpus, pairs, count, most)
    assert [part.tolist() for part in found] == parts


def from_a_bag(
    longest: list[int], lengths: list[int], steps: int, seed: int
) -> list[int]:
    """A curriculum by hand: a bag, to which each step adds batches."""
    waiting = sorted(range(len(longest)), key=lambda i: longest[i])
    draw, bag, order = np.random.default_rng(seed), [], []
    for step in range(steps):
        share = math.sqrt(0.05**2 + step / steps * (1 - 0.05**2))
        limit = np.quantile(lengths, share)
        while waiting and (longest[waiting[0]] <= limit or not bag):
            bag.append(waiting.pop(0))
        place = draw.integers(len(bag))
        bag[place], bag[-1] = bag[-1], bag[place]
        order.append(bag.pop())
    return order


@pytest.mark.parametrize("steps", [1, 7, 40, 80, 100])
@pytest.mark.parametrize("most", [1, 4, 30])
def test_short_batches_come_first_out_of_a_growing_bag(
    steps: int, most: int
) -> None:
    draw = np.random.default_rng(steps)
    lengths = draw.integers(1, most + 1, 160)
    plan = list(draw.permutation(160).reshape(80, 2))
    longest = [int(lengths[pairs].max()) for pairs in plan]
    found = _short_first(plan, lengths, steps, seed=3)
    places = {id(pairs): i for i, pairs in enumerate(plan)}
    names = [places[id(pairs)] for pairs in found]
    first = from_a_bag(longest, lengths.tolist(), min(steps, 80), 3)
    rest = [i for i in range(80) if i not in first]
    assert names == first + rest


def test_a_curriculum_is_that_of_the_first_epoch() -> None:
    """By the longer side of each pair; the next ones are as they come."""
    draw = np.random.default_rng(0)
    corpus = lengths_of(*draw.integers(1, 9, (2, 60)).tolist())
    plain, short = (
        Trainer(small_model(), corpus, RunConfig(batch_tokens=20, seed=3,
                curriculum=steps)) for steps in (0, 9)
    )  # fmt: skip
    lengths = np.maximum(corpus.src.lengths, corpus.tgt.lengths)
    first = _short_first(plain.plan(0), lengths, 9, seed=3)
    for found, expected in (
        (short.plan(0), first),
        (short.plan(1), plain.plan(1)),
        (short.plan(2), plain.plan(2)),
    ):
        assert list(map(list, found)) == list(map(list, expected))
    assert list(map(list, first)) != list(map(list, plain.plan(0)))


def tensors(batch: PackedBatch) -> list[Tensor]:
    found: list[Tensor] = []
    batch.moved(lambda x: found.append(x) or x)
    return found


def assert_same(one: PackedBatch, other: PackedBatch) -> None:
    """Bit for bit, and of the same types."""
    for a, b in zip(tensors(one), tensors(other), strict=True):
        assert a.dtype == b.dtype and torch.equal(a, b)


ROW = st.lists(st.integers(4, 2**16 - 1), max_size=9)


@settings(deadline=None)  # a busy machine is no failure
@given(
    st.lists(st.tuples(ROW, ROW), min_size=1, max_size=12),
    st.sampled_from([np.uint16, np.int32, np.int64]),
    st.data(),
)
def test_batches_are_read_at_once_as_they_are_row_by_row(
    rows: list[Any], kind: Any, data: st.DataObject
) -> None:
    corpus = Corpus(*(Sentences.of(side, kind) for side in zip(*rows)))
    some = st.lists(st.integers(0, len(rows) - 1))
    pairs = np.array(data.draw(some), dtype=np.int64)
    found = PackedBatch.read(corpus, pairs)
    assert_same(found, PackedBatch.of(corpus.batch(pairs)))


@pytest.mark.parametrize("side", [0, 1])
def test_a_word_that_is_the_padding_is_left_out_as_in_any_batch(
    side: int,
) -> None:
    rows = [[5, 6, 7], [8], [9, 4]], [[5, 6, 7], [8], [9, 4]]
    rows[side][0][1] = PAD
    corpus = Corpus(*(Sentences.of(row, np.int32) for row in rows))
    for pairs in ([0, 1, 2], [1, 2]):
        found = PackedBatch.read(corpus, np.array(pairs))
        batch = corpus.batch(np.array(pairs))
        assert_same(found, PackedBatch.of(batch))


def test_a_corpus_with_batches_of_its_own_is_asked_for_them() -> None:
    class Backwards(Corpus):
        def batch(self, pairs: Any) -> Any:
            return super().batch(pairs[::-1])

    plain = copy_corpus(20, vocab=12)
    own, pairs = Backwards(plain.src, plain.tgt), np.arange(5)
    ((found, _),) = micro_batches(own, pairs, None)
    assert_same(found, PackedBatch.read(plain, pairs[::-1]))


def lines_run(action: Any) -> int:
    """The lines of Python that action executes: while they are, no other
    thread of Python goes on.
    """
    count = 0

    def note(frame: Any, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return note

    before = sys.gettrace()
    sys.settrace(note)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


def test_the_reader_runs_no_line_of_python_for_each_pair() -> None:
    corpus = copy_corpus(2000, vocab=12, length=9)

    def lines(make: Any, pairs: int) -> int:
        return lines_run(lambda: make(corpus, np.arange(pairs)))

    def read(corpus: Corpus, pairs: Any) -> Any:
        ((batch, _),) = micro_batches(corpus, pairs, None)
        return batch.together(pin=False)

    read(corpus, np.arange(20))  # what is made but once does not count
    assert lines(read, 20) == lines(read, 2000)

    def rows(corpus: Corpus, pairs: Any) -> Any:
        return corpus.batch(pairs)

    assert lines(rows, 2000) > lines(rows, 20) + 1980  # it would see


def test_a_batch_is_sent_at_once_while_the_processor_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def to(tensor: Tensor, place: Any, **more: Any) -> Tensor:
        asked.append((place, more))
        return tensor.clone()

    corpus = copy_corpus(9, vocab=12)
    batch = PackedBatch.read(corpus, np.array([3, 0, 8]))
    monkeypatch.setattr(Tensor, "to", to)
    for one, times in ((batch, 7), (batch.together(pin=False), 1)):
        there = one.to("there")
        assert asked == [("there", {"non_blocking": True})] * times
        assert_same(there, batch)
        asked.clear()
    assert_same(there.to("back"), batch)
    assert len(asked) == 1


def test_what_lies_together_overlaps_nowhere_and_is_aligned() -> None:
    corpus = copy_corpus(9, vocab=12)
    batch = PackedBatch.read(corpus, np.array([3, 0, 8])).together(False)
    assert batch.memory is not None
    begin, after = batch.memory.data_ptr(), 0
    for x in tensors(batch):
        first = x.data_ptr() - begin
        assert first % 64 == 0 and first >= after
        after = first + x.nbytes
    assert after <= len(batch.memory) < after + 64


def test_for_a_gpu_batches_lie_where_it_can_fetch_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pinned, empty = [], torch.empty

    def watched(*size: Any, pin_memory: bool = False, **more: Any) -> Any:
        pinned.append(pin_memory)
        return empty(*size, **more)

    trainer = small_trainer(micro_tokens=10)
    plain = trainer.batch(np.arange(6))
    monkeypatch.setattr(torch, "empty", watched)
    assert trainer.batch(np.arange(6)).micro[0][0].memory is None
    for kind in ("mps", "cuda"):
        trainer.device = torch.device(kind)
        pinned.clear()
        work = trainer.batch(np.arange(6))
        assert len(work.micro) > 1
        assert pinned == [kind == "cuda"] * len(work.micro)
        assert [w for _, w in work.micro] == [1.0] * len(work.micro)
        for (one, _), (other, _) in zip(work.micro, plain.micro):
            assert_same(one, other)


# --- a range that is too small --------------------------------------------


def parameters(*gradients: list[float] | None) -> list[torch.nn.Parameter]:
    made = [torch.nn.Parameter(torch.zeros(2)) for _ in gradients]
    for parameter, gradient in zip(made, gradients, strict=True):
        if gradient is not None:
            parameter.grad = torch.tensor(gradient)
    return made


def test_gradients_are_divided_by_the_scale_that_the_loss_had() -> None:
    scaling = _LossScale(4.0, calm=7, overflows=3)
    some = parameters([6.0, -2.0], None, [8.0, 0.0])
    assert scaling.settle(some)
    assert [p.grad if p.grad is None else p.grad.tolist() for p in some] == [
        [1.5, -0.5], None, [2.0, 0.0]
    ]  # fmt: skip
    assert scaling == _LossScale(4.0, calm=8, overflows=3)


@pytest.mark.parametrize("number", [math.inf, math.nan])
def test_an_overflow_halves_the_scale_down_to_the_least(
    number: float,
) -> None:
    scaling = _LossScale(2 * _LossScale.min_scale, calm=7, overflows=3)
    some = parameters([1.0, 2.0], [number, 0.0])
    assert not scaling.settle(some)
    assert scaling == _LossScale(_LossScale.min_scale, calm=0, overflows=4)
    # whoever called has to find another cause
    assert scaling.settle(some)
    assert scaling == _LossScale(_LossScale.min_scale, calm=1, overflows=4)


def test_the_scale_doubles_after_as_many_calm_steps_as_it_says() -> None:
    scaling = _LossScale(8.0, calm=_LossScale.patience - 2)
    for expected in ((8.0, _LossScale.patience - 1), (16.0, 0), (16.0, 1)):
        some = parameters([16.0, 0.0])
        before = scaling.scale
        assert scaling.settle(some)
        assert some[0].grad is not None
        assert some[0].grad.tolist() == [16.0 / before, 0.0]
        assert (scaling.scale, scaling.calm) == expected
