"""Chapter 14: a step, the loop, validation, the copy task."""

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from annotated import training
from annotated.batches import Corpus, Sentences
from annotated.engine import trainer as engine
from annotated.engine.errors import TrainingError
from annotated.engine.machine import evaluating
from annotated.engine.packing import packed
from annotated.engine.trainer import RunConfig, packed_loss
from annotated.schedule import learning_rate
from annotated.search import SearchConfig, plain_beam_search
from annotated.tokens import PAD, SPECIALS
from annotated.training import (
    TrainingConfig,
    batch_loss,
    copy_corpus,
    greedy_accuracy,
    validate,
)
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


@pytest.fixture(params=["plain", "engine"])
def Trainer(request):
    """Both trainers: what is said of a trainer holds for each."""
    return {"plain": training.Trainer, "engine": engine.Trainer}[
        request.param
    ]


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
    pairs = trainer.plan(trainer.epoch)[trainer.batch_index]
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


def test_a_run_may_be_taken_up_before_its_first_step(Trainer):
    first = Trainer(small_model(), small_corpus(), CONFIG)
    assert first.moments() == {}
    later = Trainer(small_model(7), small_corpus(), CONFIG)
    later.load(*parts(first))
    assert later.step == 0 and same(later.model, first.model)
    assert [p.step for p in later.steps()] == list(range(1, 13))


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


def learned(backwards, steps, rate, warmup, cooldown=0):
    """A small model after steps of a small copy task, and its test."""
    model = small_model(0, d_model=32, d_ff=128, dropout=0.0)
    corpus = small_corpus(2000, seed=1, backwards=backwards)
    test = small_corpus(200, seed=2, backwards=backwards)
    config = TrainingConfig(
        batch_tokens=300,
        warmup=warmup,
        rate=rate,
        max_steps=steps,
        cooldown=cooldown,
    )
    list(training.Trainer(model, corpus, config).steps())
    return model, test


def test_greedy_accuracy_is_what_greedy_search_writes():
    """On a model that is half-way: some right, some not."""
    model, test = learned(False, steps=150, rate=0.5, warmup=150)
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
    """Without a mistake, whatever the processor's order of sums: after 500
    steps four in 200 have been seen.
    """
    model, test = learned(
        backwards, steps=700, rate=0.8, warmup=100, cooldown=350
    )
    tokens, whole = greedy_accuracy(model, test)
    assert tokens > 0.995 and whole >= 0.985
