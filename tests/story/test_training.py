"""Chapter 14 and page E5: a step, the loop, validation, the copy task;
the plain trainer and the engine's are held together.
"""

import itertools
import json
import math
import zlib
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from annotated import training
from annotated.batches import Batch, Corpus, Sentences
from annotated.engine import micro
from annotated.engine import trainer as engine
from annotated.engine.errors import TrainingError
from annotated.engine.machine import evaluating
from annotated.engine.micro import PackedBatch, micro_batches, split_batch
from annotated.engine.packing import FastDropout, PackedTransformer, packed
from annotated.engine.trainer import (
    RunConfig,
    packed_loss,
)
from annotated.model import Transformer, TransformerConfig
from annotated.schedule import learning_rate
from annotated.search import SearchConfig, plain_beam_search
from annotated.tokens import BOS, EOS, PAD, SPECIALS
from annotated.training import (
    TrainingConfig,
    batch_loss,
    copy_corpus,
    fingerprint,
    greedy_accuracy,
    validate,
)
from tests.helpers import SHAPE, benchmark


def small_model(seed=0, **changes):
    torch.manual_seed(seed)
    return Transformer(TransformerConfig(**(SHAPE | changes)))


def small_corpus(count=40, **kind):
    return copy_corpus(count, vocab=12, length=5, **kind)


CONFIG = RunConfig(batch_tokens=60, warmup=10, max_steps=12)


@pytest.fixture(params=["plain", "engine"])
def Trainer(request):
    """Both trainers: what is said of a trainer holds for each."""
    return {"plain": training.Trainer, "engine": engine.Trainer}[
        request.param
    ]


def train(kind, model, corpus=None, config=CONFIG):
    return list(kind(model, corpus or small_corpus(), config).steps())


def weights(model):
    return {
        name: p.detach().clone() for name, p in model.named_parameters()
    }


def same(one, other):
    """Whether two models, or sets of weights, are equal bit for bit."""
    if isinstance(one, torch.nn.Module):
        one, other = weights(one), weights(other)
    return all(torch.equal(one[name], other[name]) for name in one)


def far(one, other):
    """The largest difference of a weight."""
    one, other = weights(one), weights(other)
    return max((one[n] - other[n]).abs().max().item() for n in one)


# --- the loop -------------------------------------------------------------


def test_the_loss_falls(Trainer):
    history = train(
        Trainer, small_model(), config=replace(CONFIG, max_steps=60)
    )
    first, last = history[:5], history[-5:]
    assert sum(p.loss for p in last) < 0.9 * sum(p.loss for p in first)


def test_steps_equal_a_loop_by_hand(Trainer):
    """Against torch's cross_entropy and Adam, with the rate of eq. 3.

    Without biases: that of the keys has a gradient of 0, and Adam would
    make steps of its rounding errors.
    """
    ours, theirs = (small_model(dropout=0.0, bias=False) for _ in "ab")
    corpus, config = small_corpus(), replace(CONFIG, rate=0.7)
    train(Trainer, ours, corpus, config)
    adam = torch.optim.Adam(
        theirs.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9
    )
    batches = [
        batch
        for epoch in range(4)
        for batch in corpus.plan(config.batch_tokens, config.seed, epoch)
    ]
    for step in range(1, config.max_steps + 1):
        batch = corpus.batch(batches[step - 1])
        logits = theirs(batch.src, batch.tgt)
        loss = F.cross_entropy(
            logits.flatten(0, 1),
            batch.labels.flatten(),
            ignore_index=PAD,
            label_smoothing=0.1,
        )  # torch's mean is over the target tokens
        adam.zero_grad()
        loss.backward()
        adam.param_groups[0]["lr"] = learning_rate(step, 16, 10, 0.7)
        adam.step()
    assert far(ours, theirs) < 1e-4
    assert far(ours, small_model(dropout=0.0, bias=False)) > 0.05


def test_the_same_run_twice_gives_the_same_weights(Trainer):
    one, other = small_model(), small_model()
    assert train(Trainer, one)[-1].loss == train(Trainer, other)[-1].loss
    assert same(one, other)


def test_another_seed_gives_another_run(Trainer):
    one, other = small_model(), small_model()
    train(Trainer, one)
    train(Trainer, other, config=replace(CONFIG, seed=1))
    assert not same(one, other)


def test_a_step_does_not_depend_on_who_else_draws_random_numbers(Trainer):
    alone, beside, rival = small_model(), small_model(), small_model(1)
    train(Trainer, alone)
    both = zip(
        Trainer(beside, small_corpus(), CONFIG).steps(),
        Trainer(rival, small_corpus(seed=3), CONFIG).steps(),
        strict=True,
    )
    for _ in both:
        torch.rand(7)
        validate(beside, small_corpus(seed=5), CONFIG)
    assert same(alone, beside)


def test_dropout_differs_from_step_to_step(Trainer):
    """With the rate at nearly nothing, only dropout moves the loss."""
    model = small_model(dropout=0.5)
    pair = Corpus(
        Sentences.of([[4, 5, 6, 7]]), Sentences.of([[4, 5, 6, 7]])
    )
    history = train(Trainer, model, pair, replace(CONFIG, rate=1e-12))
    assert len({round(p.loss, 5) for p in history}) == len(history)


def test_progress_says_what_happened(Trainer):
    corpus = small_corpus()
    history = train(Trainer, small_model(), corpus)
    plan = corpus.plan(CONFIG.batch_tokens, CONFIG.seed, 0)
    assert [p.step for p in history] == list(range(1, 13))
    assert [p.epoch for p in history] == [
        i // len(plan) for i in range(len(history))
    ]
    counts = [corpus.batch(pairs).tokens for pairs in plan]
    assert history[0].tokens == counts[0]
    assert history[1].tokens == counts[0] + counts[1]
    assert history[2].rate == learning_rate(3, 16, CONFIG.warmup)
    assert all(p.gradient_norm > 0 for p in history)
    seconds = [p.seconds for p in history]
    assert seconds == sorted(seconds)
    assert seconds[0] > 0


def test_only_the_time_of_the_steps_is_counted(monkeypatch):
    """By a clock that ticks when it is looked at: at both ends of a step."""
    ticks = itertools.count(100)
    clock = SimpleNamespace(perf_counter=lambda: next(ticks))
    monkeypatch.setattr(training, "time", clock)
    history = train(training.Trainer, small_model())
    assert [p.seconds for p in history] == list(range(1, 13))


def test_each_step_of_each_run_has_noise_of_its_own(Trainer):
    seeds = []
    for seed in (0, 1):
        config = replace(CONFIG, seed=seed)
        steps = Trainer(small_model(), small_corpus(), config).steps()
        seeds += [torch.initial_seed() for _ in steps]
    assert len(set(seeds)) == len(seeds) == 24


def test_batches_go_where_the_model_is():
    """To a device that computes nothing: we stop where it is asked to."""
    places = []

    def look(model, batch):
        places.extend(x.device.type for x in batch)
        raise InterruptedError

    model = small_model().to("meta")
    model.register_forward_pre_hook(look)
    trainer = training.Trainer(model, small_corpus(), CONFIG)
    for look_at in (
        lambda: next(trainer.steps()),
        lambda: validate(model, small_corpus(), CONFIG),
        lambda: greedy_accuracy(model, small_corpus()),
    ):
        with pytest.raises(InterruptedError):
            look_at()
    assert places == ["meta"] * 6


def test_the_last_steps_cool_down(Trainer):
    config = replace(CONFIG, cooldown=4)
    history = train(Trainer, small_model(), config=config)
    plain = train(Trainer, small_model())
    shares = [a.rate / b.rate for a, b in zip(history, plain)]
    assert shares == pytest.approx([1] * 9 + [0.75, 0.5, 0.25])


def test_an_epoch_uses_every_pair_once(Trainer):
    corpus, used = small_corpus(), []

    class Watched(Corpus):
        def batch(self, pairs):
            used.extend(pairs.tolist())
            return super().batch(pairs)

    steps = len(corpus.plan(CONFIG.batch_tokens, 0, 0))
    watched = Watched(corpus.src, corpus.tgt)
    train(Trainer, small_model(), watched, replace(CONFIG, max_steps=steps))
    assert sorted(used) == list(range(len(corpus)))


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
    file, data = tmp_path / "found.json", tmp_path / "data"
    data.mkdir()
    for split, count in (("train", 4000), ("valid", 20)):
        lines = "".join("a " * (i % 7) + "b\n" for i in range(count))
        for side in ("source", "target"):
            (data / f"{split}.{side}").write_text(lines)
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


def test_max_steps_ends_the_run(Trainer):
    trainer = Trainer(small_model(), small_corpus(), CONFIG)
    assert len(list(trainer.steps())) == trainer.step == CONFIG.max_steps
    assert list(trainer.steps()) == []


def test_max_minutes_ends_the_run():
    config = replace(CONFIG, max_minutes=1e-9)
    trainer = engine.Trainer(small_model(), small_corpus(), config)
    assert len(list(trainer.steps())) == 1
    assert list(trainer.steps()) == []  # its time is used up


def test_breaking_off_and_going_on_changes_nothing(Trainer):
    one, other = small_model(), small_model()
    train(Trainer, one)
    trainer = Trainer(other, small_corpus(), CONFIG)
    for progress in trainer.steps():
        if progress.step == 5:
            break
    # a gradient left behind, as by a cell that was interrupted
    for p in other.parameters():
        p.grad = torch.ones_like(p)
    list(trainer.steps())
    assert same(one, other)


def test_clip_bounds_the_gradient(Trainer):
    seen = []
    model, config = small_model(), replace(CONFIG, clip=0.01)
    trainer = Trainer(model, small_corpus(), config)
    for progress in trainer.steps():
        grads = [p.grad.flatten() for p in model.parameters()]
        seen.append(
            (progress.gradient_norm, torch.cat(grads).norm().item())
        )
    assert all(before > 0.1 for before, _ in seen)
    assert all(abs(after - 0.01) < 1e-5 for _, after in seen)


def test_bfloat16_learns_much_the_same():
    full = train(engine.Trainer, small_model(dropout=0.0))
    half = train(
        engine.Trainer,
        small_model(dropout=0.0),
        config=replace(CONFIG, precision="bfloat16"),
    )
    # later, rounding has taken the two apart, as any two roundings would
    for one, other in list(zip(full, half, strict=True))[:6]:
        assert abs(one.loss - other.loss) < 0.05 * one.loss


def test_an_empty_corpus_is_refused(Trainer):
    nothing = Corpus(Sentences.of([]), Sentences.of([]))
    with pytest.raises(ValueError, match="training corpus is empty"):
        Trainer(small_model(), nothing, CONFIG)
    with pytest.raises(ValueError, match="validation corpus is empty"):
        validate(small_model(), nothing, CONFIG)


# --- numbers that are none ------------------------------------------------


def test_a_nan_stops_the_run_and_names_the_batch(Trainer):
    model = small_model(tie="none")
    corpus = small_corpus()
    poisoned = 17
    lines = [corpus.src[i].clip(max=10) for i in range(len(corpus))]
    lines[poisoned] = np.array([11, 4])
    corpus = Corpus(Sentences.of(lines), corpus.tgt)
    with torch.no_grad():
        model.embeddings.source[11] = math.nan
    config = replace(CONFIG, batch_tokens=20, max_steps=100)
    trainer = Trainer(model, corpus, config)
    with pytest.raises(TrainingError) as stop:
        list(trainer.steps())
    message = str(stop.value)
    assert "loss nan" in message
    assert message.endswith("raise warmup, or look at these pairs")
    assert f"step {trainer.step + 1} " in message
    pairs = trainer.plan(trainer.epoch)[trainer.place]
    assert poisoned in pairs
    assert str(sorted(pairs.tolist())[:8]) in message
    rest = (p for n, p in model.named_parameters() if "source" not in n)
    assert all(p.isfinite().all() for p in rest)


def test_of_a_large_batch_the_first_eight_pairs_are_named():
    config = replace(CONFIG, batch_tokens=1000)
    trainer = training.Trainer(small_model(), small_corpus(), config)
    said = trainer.trouble(math.inf, 1.0, 2.0)
    assert "(epoch 0, batch 0: pairs [0, 1, 2, 3, 4, 5, 6, 7] …)" in said


def test_a_gradient_that_overflows_never_reaches_the_weights(Trainer):
    model = small_model()
    trainer = Trainer(model, small_corpus(), CONFIG)
    steps = trainer.steps()
    for _ in range(3):
        next(steps)
    before = weights(model)
    model.embeddings.target.register_hook(lambda grad: grad * math.inf)
    with pytest.raises(
        TrainingError, match="step 4 .*gradient norm (inf|nan)"
    ):
        next(steps)
    assert same(before, weights(model))
    assert trainer.step == 3


def test_an_absurd_rate_is_reported(Trainer):
    config = replace(CONFIG, rate=1e20, max_steps=100)
    with pytest.raises(TrainingError, match="lower rate"):
        train(Trainer, small_model(), config=config)


# --- configuration --------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((f, 0) for f in ("batch_tokens", "max_steps", "warmup")),
        *((f, 0) for f in ("save_every", "keep", "max_minutes", "rate")),
        *((f, 0) for f in ("micro_tokens", "save_minutes")),
        *((f, -1) for f in ("batch_tokens", "max_minutes", "rate", "clip")),
        *((f, v) for f in ("cooldown", "curriculum") for v in (-1, 0.5)),
        *((f, 2.5) for f in ("batch_tokens", "max_steps", "keep", "seed")),
        *((f, math.nan) for f in ("max_minutes", "rate", "clip")),
        ("clip", 0.0),
        ("seed", -1),
        ("label_smoothing", -0.1),
        ("label_smoothing", 1.0),
        ("label_smoothing", math.nan),
        ("precision", "float8"),
    ],
)
def test_a_wrong_field_is_named(field, value):
    kinds = [
        kind
        for kind in (TrainingConfig, RunConfig)
        if field in kind.__dataclass_fields__
    ]
    for kind in kinds:
        with pytest.raises(ValueError, match=rf"^{field} must "):
            kind(**{field: value})


def test_the_defaults_are_the_papers():
    config = TrainingConfig()
    assert config.batch_tokens == 25_000
    assert config.max_steps == 100_000
    assert config.warmup == 4000
    assert config.label_smoothing == 0.1
    assert config.rate == 1.0
    assert config.cooldown == 0
    assert config.clip is None


# --- the loss of a batch --------------------------------------------------


def reference_loss(model, batch, smoothing):
    logits = model(batch.src, batch.tgt).flatten(0, 1)
    return F.cross_entropy(
        logits,
        batch.labels.flatten(),
        ignore_index=PAD,
        reduction="sum",
        label_smoothing=smoothing,
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("form", ["plain", "packed"])
def test_the_loss_of_a_batch_is_the_summed_cross_entropy(form, smoothing):
    model = small_model(dropout=0.0)
    batch = small_corpus().batch(range(9))
    if form == "plain":
        loss, nll = batch_loss(model, batch, smoothing)
    else:
        config = replace(CONFIG, label_smoothing=smoothing)
        loss, nll = packed_loss(packed(model), batch, config)
    expected = reference_loss(model, batch, smoothing)
    torch.testing.assert_close(loss, expected, atol=0.0, rtol=1e-5)
    expected = reference_loss(model, batch, 0.0)
    torch.testing.assert_close(nll, expected, atol=0.0, rtol=1e-5)


@pytest.mark.parametrize("parts", [2, 3, 7])
def test_the_gradient_of_a_batch_is_the_sum_of_its_parts(parts):
    model, corpus = small_model(dropout=0.0), small_corpus()

    def gradient(pieces):
        model.zero_grad()
        tokens = 0
        for piece in pieces:
            batch = corpus.batch(piece)
            batch_loss(model, batch, 0.1)[0].backward()
            tokens += batch.tokens
        grads = [p.grad.flatten() for p in model.parameters()]
        return torch.cat(grads) / tokens

    pairs = np.arange(20)
    whole = gradient([pairs])
    pieces = gradient(np.array_split(pairs, parts))
    torch.testing.assert_close(pieces, whole, atol=1e-6, rtol=1e-4)
    assert whole.norm() > 0.1


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


def parts(trainer):
    return trainer.weights(), trainer.moments(), trainer.state()


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


def test_a_run_may_be_taken_up_before_its_first_step(Trainer):
    first = Trainer(small_model(), small_corpus(), CONFIG)
    assert first.moments() == {}
    later = Trainer(small_model(7), small_corpus(), CONFIG)
    later.load(*parts(first))
    assert later.step == 0 and same(later.model, first.model)
    assert [p.step for p in later.steps()] == list(range(1, 13))


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
    pieces = split_batch(corpus, pairs, count, most)
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
    pieces = split_batch(Corpus(side, side), np.arange(2), 2, 22)
    assert [piece.tolist() for piece in pieces] == [[0], [1]]
    pieces = split_batch(Corpus(side, side), np.arange(2), 3, 22)
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


# --- validation -----------------------------------------------------------


def test_validation_is_a_mean_over_tokens_however_they_are_batched():
    model, corpus = small_model(), small_corpus(60)
    few, many, whole = (
        validate(model, corpus, replace(CONFIG, batch_tokens=size))
        for size in (8, 100, 10_000)
    )
    assert few == pytest.approx(whole, rel=1e-5)
    assert many == pytest.approx(whole, rel=1e-5)
    with evaluating(model):
        batch = corpus.batch(range(len(corpus)))
        nll = (reference_loss(model, batch, 0.0) / batch.tokens).item()
        loss = (reference_loss(model, batch, 0.1) / batch.tokens).item()
    assert whole["nll"] == pytest.approx(nll, rel=1e-5)
    assert whole["loss"] == pytest.approx(loss, rel=1e-5)
    assert whole["perplexity"] == pytest.approx(math.exp(nll), rel=1e-4)


def test_validation_adds_up_in_float64():
    model, corpus = small_model(dropout=0.0).double(), small_corpus(60)
    found = validate(model, corpus, replace(CONFIG, batch_tokens=20))
    with torch.no_grad():
        batch = corpus.batch(range(len(corpus)))
        nll = reference_loss(model, batch, 0.0).item() / batch.tokens
    assert found["nll"] == pytest.approx(nll, rel=1e-12)


def test_a_perplexity_is_always_a_number():
    said = training.scores(800.5, 700.5)
    assert said == {
        "loss": 800.5, "nll": 700.5, "perplexity": math.exp(700)
    }  # fmt: skip


@pytest.mark.parametrize("mode", [True, False])
def test_looking_leaves_the_model_as_it_was(mode):
    model = small_model(dropout=0.3).train(mode)
    before = weights(model)
    one = validate(model, small_corpus(), CONFIG)
    assert validate(model, small_corpus(), CONFIG) == one  # no dropout
    greedy_accuracy(model, small_corpus())
    assert all(m.training is mode for m in model.modules())
    assert all(p.grad is None for p in model.parameters())
    assert same(before, weights(model))


def test_the_mode_comes_back_after_an_error():
    model = small_model().train()
    with pytest.raises(KeyError), evaluating(model):
        assert not model.training
        assert not torch.is_grad_enabled()
        raise KeyError
    assert model.training
    assert torch.is_grad_enabled()


# --- the copy task --------------------------------------------------------


@pytest.mark.parametrize("backwards", [False, True])
def test_a_copy_corpus_is_what_it_says(backwards):
    corpus = copy_corpus(300, vocab=9, length=6, backwards=backwards)
    for i in range(len(corpus)):
        src, tgt = corpus.src[i].tolist(), corpus.tgt[i].tolist()
        assert tgt == (src[::-1] if backwards else src)
        assert 1 <= len(src) <= 6
        assert set(src) <= set(range(len(SPECIALS), 9))
    assert set(corpus.src.lengths) == set(range(1, 7))
    assert len(set(corpus.src.ids)) == 5


def test_a_copy_corpus_has_sixteen_symbols_and_lengths_up_to_ten():
    corpus = copy_corpus(300)
    assert set(corpus.src.ids) == set(range(4, 20))
    assert set(corpus.src.lengths) == set(range(1, 11))
    assert corpus.tgt.ids.tolist() == corpus.src.ids.tolist()
    same = copy_corpus(300, seed=0)
    assert corpus.src.ids.tolist() == same.src.ids.tolist()


def test_a_copy_corpus_is_a_function_of_its_seed():
    one, again, other = (copy_corpus(50, seed=seed) for seed in (3, 3, 4))
    assert one.src.ids.tolist() == again.src.ids.tolist()
    assert one.src.ids.tolist() != other.src.ids.tolist()


def learned(backwards, steps, cooldown=0, seed=0):
    """A small model after steps of a small copy task, and its test."""
    model = small_model(seed, d_model=32, d_ff=128, dropout=0.0)
    corpus = small_corpus(2000, seed=1, backwards=backwards)
    test = small_corpus(200, seed=2, backwards=backwards)
    config = TrainingConfig(
        batch_tokens=300,
        warmup=150,
        rate=0.5,
        max_steps=steps,
        cooldown=cooldown,
    )
    list(training.Trainer(model, corpus, config).steps())
    return model, test


def test_greedy_accuracy_is_what_greedy_search_writes():
    """On a model that is half-way: some right, some not."""
    model, test = learned(backwards=False, steps=150)
    limit = SearchConfig(beam=1, extra=3)
    written = [
        plain_beam_search(model, test.src[i].tolist(), limit)[0].ids
        for i in range(60)
    ]
    right = [ids == test.tgt[i].tolist() for i, ids in enumerate(written)]
    some = Corpus(
        Sentences.of([test.src[i] for i in range(60)]),
        Sentences.of([test.tgt[i] for i in range(60)]),
    )
    tokens, whole = greedy_accuracy(model, some)
    assert whole == sum(right) / 60
    assert 0.0 < whole < 1.0
    assert whole < tokens < 1.0
    assert greedy_accuracy(model, some, batch_tokens=10) == (tokens, whole)


@pytest.fixture
def one_thread():
    """The same sums on every machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("backwards", [False, True])
def test_a_small_copy_task_is_learned(backwards, one_thread):
    """Without a mistake on most machines; one in 200 has been seen."""
    model, test = learned(backwards, steps=1000, cooldown=500)
    tokens, whole = greedy_accuracy(model, test)
    assert tokens > 0.995 and whole >= 0.985


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
