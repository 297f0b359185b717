"""Page E5: batches, cut for processes and memory: engine.micro; and the
scale of a float16 loss.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from annotated.batches import Corpus, Sentences
from annotated.engine.micro import PackedBatch, short_first, split_batch
from annotated.engine.trainer import (
    RunConfig,
    Trainer,
    _LossScale,
)
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
    found = split_batch(corpus, pairs, count, most)
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
    found = short_first(plan, lengths, steps, seed=3)
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
    first = short_first(plain.plan(0), lengths, 9, seed=3)
    for found, expected in (
        (short.plan(0), first),
        (short.plan(1), plain.plan(1)),
        (short.plan(2), plain.plan(2)),
    ):
        assert list(map(list, found)) == list(map(list, expected))
    assert list(map(list, first)) != list(map(list, plain.plan(0)))


def test_a_batch_is_sent_while_the_processor_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def to(tensor: Tensor, place: Any, **more: Any) -> Tensor:
        asked.append((place, more))
        return tensor + 0

    batch = PackedBatch.of(copy_corpus(5, vocab=12).batch(np.arange(3)))
    monkeypatch.setattr(Tensor, "to", to)
    there = batch.to("there")
    assert asked == [("there", {"non_blocking": True})] * 7
    for name in ("src", "tgt", "labels"):
        assert torch.equal(getattr(there, name), getattr(batch, name))
    for side in ("source", "target"):
        one, other = getattr(there, side), getattr(batch, side)
        assert torch.equal(one.real, other.real)
        assert torch.equal(one.index, other.index)


def test_for_a_gpu_batches_lie_where_it_can_fetch_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pinned = []
    monkeypatch.setattr(
        Tensor, "pin_memory", lambda x: pinned.append(x) or x + 0
    )
    trainer = small_trainer(micro_tokens=10)
    plain = trainer.batch(np.arange(6))
    assert not pinned
    trainer.device = torch.device("cuda")
    work = trainer.batch(np.arange(6))
    assert len(work.micro) > 1 and len(pinned) == 7 * len(work.micro)
    assert [weight for _, weight in work.micro] == [1.0] * len(work.micro)
    for (one, _), (other, _) in zip(work.micro, plain.micro, strict=True):
        assert torch.equal(one.src, other.src)


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
