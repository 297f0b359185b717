"""Page E5: the engine's trainer, one part at a time; how it trains stands
in test_training.py.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from annotated.batches import Corpus
from annotated.engine import trainer as engine
from annotated.engine.packing import PackedTransformer
from annotated.engine.trainer import LossScale, RunConfig, Trainer
from annotated.model import Transformer, TransformerConfig
from annotated.training import copy_corpus
from tests.helpers import SHAPE


def small_model() -> PackedTransformer:
    torch.manual_seed(0)
    return PackedTransformer(TransformerConfig(**SHAPE, dropout=0.0))


def small_trainer(**config: Any) -> Trainer:
    corpus = copy_corpus(20, vocab=12, length=5)
    return Trainer(small_model(), corpus, RunConfig(**config))


# --- minutes that end the run ---------------------------------------------


@pytest.mark.parametrize(
    ("plan", "minutes", "step", "seconds", "ends"),
    [
        # too few steps to tell the pace, and just enough
        ((100, 40), 0.5, 19, 19.0, None),
        ((100, 40), 0.5, 20, 20.0, (29, 9)),
        # all steps fit, by the second, also in a cool-down
        ((90, 40), 3.0, 60, 120.0, None),
        ((90, 40), 3.0, 60, 120.5, (88, 38)),
        # not one more does: of 1.5 steps one is run, of one none
        ((100, 40), 1.2, 70, 70.5, (71, 2)),
        ((100, 40), 1.2, 70, 71.0, None),
        # the cool-down has not begun: until half of the run is over …
        ((100, 40), 0.7, 20, 20.0, None),
        ((100, 40), 0.7, 20, 21.0, (39, 19)),
        ((70, 40), 1.15, 30, 30.0, None),
        # … or as many steps are left as it has
        ((200, 40), 2.0, 70, 70.0, None),
        ((200, 40), 2.0, 79, 79.0, (118, 39)),
        # it has: the rest of the line is made steeper
        ((100, 40), 1.5, 70, 70.0, (89, 26)),
        ((100, 40), 1.65, 60, 60.0, (97, 37)),
        # a cool-down that is longer than the run is the run
        ((100, 200), 1.0, 20, 20.0, (58, 48)),
    ],
)
def test_a_run_is_ended_with_its_minutes(
    plan: tuple[int, int],
    minutes: float,
    step: int,
    seconds: float,
    ends: tuple[int, int] | None,
) -> None:
    """Computed by hand: 97 % of the steps that fit at the pace so far."""
    steps, cooldown = plan
    trainer = small_trainer(
        max_steps=steps, cooldown=cooldown, max_minutes=minutes
    )
    trainer.step, trainer.seconds = step, seconds
    trainer.fit_end()
    now = trainer.config.max_steps, trainer.config.cooldown
    assert now == (ends or plan)
    assert trainer.since == ((step, seconds) if ends else (0, 0.0))
    assert trainer.ending() == {
        "plan": [steps, cooldown, minutes], "now": [*now, minutes]
    }  # fmt: skip


def test_after_a_decision_the_pace_is_that_of_the_steps_since() -> None:
    trainer = small_trainer(max_steps=100, cooldown=40, max_minutes=1.0)
    trainer.since, trainer.step, trainer.seconds = (10, 5.0), 29, 43.0
    trainer.fit_end()
    assert trainer.config.max_steps == 100  # 19 steps say too little
    trainer.step, trainer.seconds = 30, 45.0  # 2 seconds each; 7.5 fit
    trainer.fit_end()
    assert trainer.config.max_steps == 37
    assert trainer.since == (30, 45.0)


@pytest.mark.parametrize("config", [{"cooldown": 40}, {"max_minutes": 1.0}])
def test_without_minutes_or_a_cool_down_the_plan_stays(
    config: dict[str, Any],
) -> None:
    trainer = small_trainer(max_steps=100, **config)
    trainer.step, trainer.seconds = 50, 59.0
    trainer.fit_end()
    assert trainer.config.max_steps == 100
    assert trainer.config == trainer.planned


# --- how fast a machine trains --------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "least"),
    [
        ([4, 2], 2),  # the first says little; two seconds are enough
        ([4, 0.5, 0.25, 0.75], 0.25),
        ([4, 0.5, 0.5, 0.375], 0.375),  # one second is not
        ([4, 0.1, 0.1, 0.1, 0.1, 0.05], 0.05),  # nor are more than six
    ],
)
@pytest.mark.parametrize("stands", [False, True])
def test_a_step_takes_the_least_of_some_without_the_first(
    monkeypatch: pytest.MonkeyPatch,
    seconds: list[float],
    least: float,
    stands: bool,
) -> None:
    """By clocks of our own, which count while a step is computed; where
    the processor's stands still it is not believed.
    """
    ticks = iter([tick for took in seconds for tick in (0.0, took)])
    own = iter([t for took in seconds for t in (1.0, 1.0 + took / 2)])
    read = (lambda: 7.0) if stands else (lambda: next(own))
    monkeypatch.setattr(engine.time, "perf_counter", lambda: next(ticks))
    monkeypatch.setattr(engine.time, "process_time", read)
    used: list[list[int]] = []

    class Watched(Corpus):
        def batch(self, pairs: Any) -> Any:
            used.append(list(pairs))
            return super().batch(pairs)

    corpus = copy_corpus(20, vocab=12, length=5)
    model = small_model()
    before = model.embeddings.output.detach().clone()
    config = RunConfig(batch_tokens=40, seed=3)
    found = engine._step_seconds(
        model, Watched(corpus.src, corpus.tgt), config
    )
    half = least if stands else least / 2
    assert found == (least, pytest.approx(half))
    plan = corpus.plan(40, seed=3, epoch=0)
    assert 1 < len(plan) < 6
    around = [plan[i % len(plan)].tolist() for i in range(len(seconds))]
    assert used == around
    assert torch.equal(model.embeddings.output, before)  # the rate is 0
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    ("threads", "all_of_them", "one", "speed", "busy"),
    [
        (1, (1.0, 1.0), None, 1.0, False),
        (1, (4.0, 1.0), None, 1.0, True),  # others take three quarters
        (1, (5.0, 4.0), None, 0.25, False),  # a fifth is noise
        (2, (0.5, 0.9), (1.0, 1.0), 2.0, False),
        (2, (3.0, 5.0), (2.0, 1.0), 1.0, True),
        (2, (0.95, 1.8), (1.0, 1.0), 1 / 0.95, True),  # one core is taken
        (2, (0.8, 1.6), (1.0, 1.0), 1 / 0.8, False),
    ],
)
def test_what_other_programs_take_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
    threads: int,
    all_of_them: tuple[float, float],
    one: tuple[float, float] | None,
    speed: float,
    busy: bool,
) -> None:
    """A step's seconds on the wall and of the processor, as told."""
    counts, asked = [threads], []

    def step_seconds(*given: Any) -> tuple[float, float]:
        asked.append(given)
        return one if one and counts[-1] == 1 else all_of_them

    monkeypatch.setattr(engine, "_step_seconds", step_seconds)
    monkeypatch.setattr(torch, "get_num_threads", lambda: counts[-1])
    monkeypatch.setattr(torch, "set_num_threads", counts.append)
    given = Transformer(TransformerConfig(**SHAPE)), copy_corpus(9)
    found = engine.training_speed(*given, RunConfig())  # type: ignore
    assert found == (pytest.approx(speed), busy)
    assert counts == ([1] if threads == 1 else [2, 1, 2])
    assert asked == [(*given, RunConfig())] * threads


def test_on_a_gpu_the_clock_on_the_wall_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "_step_seconds", lambda *_: (0.5, 0.1))
    model = small_model().to("meta")
    found = engine.training_speed(model, copy_corpus(9), RunConfig())
    assert found == (2.0, False)


# --- a range that is too small --------------------------------------------


def parameters(*gradients: list[float] | None) -> list[torch.nn.Parameter]:
    made = [torch.nn.Parameter(torch.zeros(2)) for _ in gradients]
    for parameter, gradient in zip(made, gradients, strict=True):
        if gradient is not None:
            parameter.grad = torch.tensor(gradient)
    return made


def test_gradients_are_divided_by_the_scale_that_the_loss_had() -> None:
    scaling = LossScale(4.0, calm=7, overflows=3)
    some = parameters([6.0, -2.0], None, [8.0, 0.0])
    assert scaling.settle(some)
    assert [p.grad if p.grad is None else p.grad.tolist() for p in some] == [
        [1.5, -0.5], None, [2.0, 0.0]
    ]  # fmt: skip
    assert scaling == LossScale(4.0, calm=8, overflows=3)


@pytest.mark.parametrize("number", [math.inf, math.nan])
def test_an_overflow_halves_the_scale_down_to_the_least(
    number: float,
) -> None:
    scaling = LossScale(2 * LossScale.least, calm=7, overflows=3)
    some = parameters([1.0, 2.0], [number, 0.0])
    assert not scaling.settle(some)
    assert scaling == LossScale(LossScale.least, calm=0, overflows=4)
    # whoever called has to find another cause
    assert scaling.settle(some)
    assert scaling == LossScale(LossScale.least, calm=1, overflows=4)


def test_the_scale_doubles_after_as_many_calm_steps_as_it_says() -> None:
    scaling = LossScale(8.0, calm=LossScale.patience - 2)
    for expected in ((8.0, LossScale.patience - 1), (16.0, 0), (16.0, 1)):
        some = parameters([16.0, 0.0])
        before = scaling.scale
        assert scaling.settle(some)
        assert some[0].grad is not None
        assert some[0].grad.tolist() == [16.0 / before, 0.0]
        assert (scaling.scale, scaling.calm) == expected


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
