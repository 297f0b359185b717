"""Page E5 beside chapter 14: the engine's trainer takes the plain one's steps."""

import json
import math
import zlib
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from annotated import training
from annotated.batches import Batch, Corpus, Sentences
from annotated.engine import micro
from annotated.engine import trainer as engine
from annotated.engine.errors import TrainingError
from annotated.engine.micro import PackedBatch, _split_batch, micro_batches
from annotated.engine.packing import FastDropout, PackedTransformer
from annotated.engine.trainer import RunConfig
from annotated.tokens import BOS, EOS
from annotated.training import fingerprint, validate
from tests.helpers import benchmark, write_pairs
from tests.trainers import (
    CONFIG,
    far,
    parts,
    same,
    small_corpus,
    small_model,
    train,
    weights,
)

# --- short pairs first ----------------------------------------------------


def planned(lengths, curriculum, epoch=0, batch_tokens=60, seed=0):
    """The batches of an epoch of pairs with these lengths."""
    corpus = Corpus(*[Sentences.of([[5] * n for n in lengths])] * 2)
    config = RunConfig(
        batch_tokens=batch_tokens, curriculum=curriculum, seed=seed
    )
    return engine.Trainer(small_model(), corpus, config).plan(epoch)


def test_a_curriculum_begins_with_what_is_short():
    lengths = np.random.default_rng(0).integers(1, 50, 2000)
    plan = planned(lengths, curriculum=400)
    longest = np.array([lengths[pairs].max() for pairs in plan])
    # a quarter of the way: √(1/4) of the pairs may come, and no others
    for step in (0, 100, 200, 300):
        share = math.sqrt(0.05**2 + step / 400 * (1 - 0.05**2))
        assert max(longest[: step + 1]) <= np.quantile(lengths, share)
    assert longest[:50].mean() < 0.5 * lengths.mean()
    # what is allowed is mixed, not sorted
    assert (np.diff(longest[:400]) < 0).mean() > 0.2
    # after it, batches of all lengths in the order of the plan
    before = [pairs.tolist() for pairs in planned(lengths, curriculum=0)]
    after = [pairs.tolist() for pairs in plan[400:]]
    assert after == [pairs for pairs in before if pairs in after]


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=60),
    curriculum=st.integers(0, 70),
)
@settings(max_examples=60, deadline=None)
def test_a_curriculum_leaves_no_pair_out(lengths, curriculum):
    plan = planned(lengths, curriculum)
    assert sorted(np.concatenate(plan)) == list(range(len(lengths)))
    later = planned(lengths, curriculum, epoch=1)
    assert all(map(np.array_equal, later, planned(lengths, 0, epoch=1)))


def test_a_run_goes_on_only_with_the_curriculum_that_it_had():
    config = replace(CONFIG, curriculum=6)
    trainer = engine.Trainer(small_model(), small_corpus(), config)
    steps = trainer.steps()
    for _ in range(3):
        next(steps)
    weights, moments = trainer.weights(), trainer.moments()
    state = trainer.state()
    again = engine.Trainer(small_model(1), small_corpus(), config)
    again.load(weights, moments, state)
    list(again.steps())
    whole = small_model()
    train(engine.Trainer, whole, config=config)
    assert same(again.model, whole)
    other = engine.Trainer(small_model(), small_corpus(), CONFIG)
    with pytest.raises(TrainingError, match="curriculum"):
        other.load(weights, moments, state)


def test_the_benchmark_of_curricula_writes_the_ledger(tmp_path):
    file = tmp_path / "found.json"
    data = write_pairs(tmp_path / "data", train=4000, valid=20)
    with benchmark("curriculum") as script:
        settings = script.Settings(
            data=str(data), steps=6, d_model=16, layers=1, json=file
        )
        script.make_runs(settings, script.run, script.result)
    made = json.loads(file.read_text())
    assert made["command"].startswith(
        "python benchmarks/curriculum.py data "
    )
    assert set(made["metrics"]["perplexity"]) == {
        "short first", "as they come"
    }  # fmt: skip
    one, other = made["metrics"]["runs"]
    assert (one["curriculum"], other["curriculum"]) == (3, 0)
    assert one["nll"] != other["nll"]


# --- one run, two trainers ------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)]
)
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"norm": "pre"},
        {"tie": "none", "positions": "learned", "max_len": 16},
        {"window": 2, "d_k": 3, "d_v": 5},
    ],
)
@pytest.mark.parametrize("most", [None, 20])
def test_the_engine_takes_the_plain_trainers_steps(
    change, dtype, tolerance, most
):
    """Padded or packed, whole or in micro-batches: one loss curve."""
    config = replace(
        CONFIG, micro_tokens=most, clip=1.0, cooldown=4, rate=0.3
    )
    kinds = training.Trainer, engine.Trainer
    # without biases: that of the keys has a gradient of 0, and Adam would
    # make steps of its rounding errors
    models = [
        small_model(dropout=0.0, bias=False, **change).to(dtype)
        for _ in kinds
    ]
    plain, fast = (
        train(kind, model, config=config)
        for kind, model in zip(kinds, models, strict=True)
    )
    for one, other in zip(plain, fast, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=tolerance)
        assert one.nll == pytest.approx(other.nll, rel=tolerance)
        assert one.gradient_norm == pytest.approx(
            other.gradient_norm, rel=10 * tolerance
        )
        assert one.rate == other.rate
        assert (one.step, one.epoch) == (other.step, other.epoch)
        assert one.tokens == other.tokens
    assert plain[-1].loss < plain[0].loss
    assert far(*models) < 100 * tolerance


def test_one_trainer_goes_on_with_the_others_state():
    whole, begun = (small_model(dropout=0.0, bias=False) for _ in "ab")
    train(training.Trainer, whole)
    first = training.Trainer(begun, small_corpus(), CONFIG)
    for progress in first.steps():
        if progress.step == 5:
            break
    second = engine.Trainer(small_model(7), small_corpus(), CONFIG)
    with pytest.raises(KeyError):  # biases
        second.load(*parts(first))
    model = small_model(7, dropout=0.0, bias=False)
    second = engine.Trainer(model, small_corpus(), CONFIG)
    second.load(*parts(first))
    third = training.Trainer(
        small_model(8, dropout=0.0, bias=False), small_corpus(), CONFIG
    )
    for progress in second.steps():
        if progress.step == 9:
            break
    third.load(*parts(second))
    assert [p.step for p in third.steps()] == [10, 11, 12]
    assert far(third.model, whole) < 1e-5


def test_the_engine_trains_the_parameters_that_it_was_given():
    model = small_model()
    before = weights(model)
    train(engine.Trainer, model)
    assert not same(before, weights(model))
    packed_model = PackedTransformer(model.config)
    trainer = engine.Trainer(packed_model, small_corpus(), CONFIG)
    assert trainer.model is packed_model


@pytest.mark.parametrize("size", [8, 1000])
def test_the_engine_validates_as_the_plain_form_does(size):
    model, corpus = small_model(), small_corpus(60)
    config = replace(CONFIG, batch_tokens=size, micro_tokens=15)
    trainer = engine.Trainer(model, corpus, config)
    expected = validate(model, corpus, config)
    assert trainer.validate(corpus) == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ValueError, match="validation corpus is empty"):
        trainer.validate(Corpus(Sentences.of([]), Sentences.of([])))


@pytest.mark.parametrize("most", [1, 10, 25])
def test_micro_batches_make_the_same_step(most):
    whole, pieces = (small_model(dropout=0.0, bias=False) for _ in "ab")
    a = train(engine.Trainer, whole)
    b = train(
        engine.Trainer, pieces, config=replace(CONFIG, micro_tokens=most)
    )
    assert far(whole, pieces) < 1e-5
    for one, other in zip(a, b, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-5)
        assert one.nll == pytest.approx(other.nll, rel=1e-5)
        assert one.tokens == other.tokens


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=40),
    st.integers(1, 8),
    st.one_of(st.none(), st.integers(1, 60)),
)
@settings(max_examples=60, deadline=None)
def test_a_split_batch_is_the_batch(lengths, count, most):
    side = Sentences.of([[4] * n for n in lengths])
    corpus, pairs = Corpus(side, side), np.arange(len(lengths))
    pieces = _split_batch(corpus, pairs, count, most)
    assert len(pieces) % count == 0
    assert np.concatenate(pieces).tolist() == pairs.tolist()
    loads = [(side.lengths[piece] + 1).sum() for piece in pieces]
    if most is not None:
        assert all(
            load <= most or len(piece) <= 1
            for load, piece in zip(loads, pieces, strict=True)
        )
    # no share is off by more than a sentence at either end
    mean = (side.lengths + 1).sum() / len(pieces)
    if max(map(len, pieces)) > 1:
        assert max(abs(load - mean) for load in loads) <= max(lengths) + 1


def test_few_long_pairs_are_a_micro_batch_each():
    """Half of the tokens is not a pair: the first has three quarters."""
    side = Sentences.of([[4] * 59, [4] * 20])
    pieces = _split_batch(Corpus(side, side), np.arange(2), 2, 22)
    assert [piece.tolist() for piece in pieces] == [[0], [1]]
    pieces = _split_batch(Corpus(side, side), np.arange(2), 3, 22)
    assert [piece.tolist() for piece in pieces] == [[0], [1], []]


def test_every_process_has_as_many_micro_batches_and_each_pair_is_in_one(
    monkeypatch,
):
    corpus, size = small_corpus(), 3
    monkeypatch.setattr(micro, "world_size", lambda: size)
    for pairs in corpus.plan(60, seed=0, epoch=0):
        tokens, counts = 0, set()
        for rank in range(size):
            monkeypatch.setattr(micro, "rank", lambda r=rank: r)
            own = micro_batches(corpus, pairs, 9)
            counts.add(len(own))
            tokens += sum(weight * batch.tokens for batch, weight in own)
        assert len(counts) == 1
        assert tokens == corpus.batch(pairs).tokens


def test_a_stand_in_is_no_pair_of_the_corpus(monkeypatch):
    """Its loss counts 0 times, and 0 x inf would be no number."""
    monkeypatch.setattr(micro, "world_size", lambda: 3)
    monkeypatch.setattr(micro, "rank", lambda: 2)
    ((batch, weight),) = micro_batches(small_corpus(), np.arange(1), None)
    assert weight == 0.0
    assert batch.src.tolist() == [[EOS]]
    assert (batch.tgt.tolist(), batch.labels.tolist()) == ([[BOS]], [[EOS]])


def test_the_order_of_the_batches_hangs_on_four_numbers():
    corpus, config = small_corpus(), replace(CONFIG, seed=3)
    assert training.Trainer(small_model(), corpus, config).order() == {
        "pairs": 40, "data": fingerprint(corpus), "batch_tokens": 60,
        "seed": 3,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("length", "apart"), [(0, 4096), (10_000, 4096), (2**25, 2**13)]
)
def test_a_fingerprint_is_the_crc_of_4096_samples_of_4096(length, apart):
    """Or of everything, where that is no more."""
    ids = np.random.default_rng(0).integers(0, 256, length, np.uint8)
    starts = np.array([0, length])
    side = SimpleNamespace(starts=starts, ids=ids)
    parts = [
        row[first : first + 4096].tobytes()
        for row in (starts, ids, starts, ids)
        for first in range(0, len(row), apart)
    ]
    found = fingerprint(SimpleNamespace(src=side, tgt=side))
    assert found == zlib.crc32(b"".join(parts))


@pytest.mark.parametrize("side", ["src", "tgt"])
@pytest.mark.parametrize("place", [0, 50, -1])
def test_a_fingerprint_sees_every_word(side, place):
    before = fingerprint(small_corpus())
    changed = small_corpus()
    getattr(changed, side).ids[place] += 1
    assert fingerprint(changed) != before
    assert fingerprint(small_corpus()) == before


# --- nothing waits --------------------------------------------------------

# what makes Python wait for a GPU: its answer is a number, or a size
WAITS = {
    "_local_scalar_dense", "nonzero", "masked_select", "_unique2",
    "equal", "is_nonzero", "repeat_interleave",
}  # fmt: skip


class Watch(TorchDispatchMode):
    """Notes the calls in this thread that would wait for a GPU."""

    def __init__(self):
        super().__init__()
        self.waits = []

    def __torch_dispatch__(self, call, types, args=(), kwargs=None):
        name = call.overloadpacket.__name__
        masks = args[1] if name in ("index", "index_put_") else ()
        bools = [
            m for m in masks if m is not None and m.dtype == torch.bool
        ]
        if name in WAITS or bools:
            self.waits.append(name)
        return call(*args, **(kwargs or {}))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("window", [None, 3])
def test_a_step_waits_only_for_its_three_numbers(
    monkeypatch, precision, window
):
    # as on a GPU
    monkeypatch.setattr(FastDropout, "forward", torch.nn.Dropout.forward)
    config = replace(CONFIG, precision=precision, micro_tokens=20, clip=1.0)
    model = small_model(dropout=0.1, window=window)
    trainer = engine.Trainer(model, small_corpus(), config)
    work = trainer.batch(np.arange(12))
    assert any(not b.source.full for b, _ in work.micro)
    trainer.model.train()
    with Watch() as watch:
        trainer.gradient(work)
        torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
    assert watch.waits == []
    batch = work.micro[0][0]
    with Watch() as watch:  # it would see
        trainer.model.hidden(batch.src, batch.tgt)
    assert watch.waits == ["nonzero"] * 2


def test_the_plain_trainer_counts_tokens_before_they_are_on_the_device(
    monkeypatch,
):
    """On one that computes nothing: it stops where numbers are wanted."""
    counted = []

    def tokens(batch):
        counted.append(batch.labels.device.type)
        return 1

    def loss(model, batch, smoothing):
        assert batch.labels.is_meta
        total = sum(w.sum() for w in model.parameters())
        return total, total

    monkeypatch.setattr(Batch, "tokens", property(tokens))
    monkeypatch.setattr(training, "batch_loss", loss)
    model = small_model().to("meta")
    trainer = training.Trainer(model, small_corpus(), CONFIG)
    with pytest.raises((NotImplementedError, RuntimeError), match="meta"):
        next(trainer.steps())
    assert trainer.step == 0 and {*counted} == {"cpu"}


def test_what_the_reader_finds_goes_where_the_batch_goes():
    batch = small_corpus().batch(np.arange(5))
    there = PackedBatch.of(batch).to("meta")
    for side in (there.source, there.target):
        assert side.real.is_meta and side.index.is_meta
    assert there.labels.is_meta
    assert isinstance(there, PackedBatch)
    assert PackedBatch.of(there) is there
