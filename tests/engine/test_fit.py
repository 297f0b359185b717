"""What a recipe leaves open is fitted to corpus and machine: engine.fit,
from page E9.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from annotated.batches import Corpus
from annotated.engine import (
    fit,
    start,
)
from annotated.engine.fit import fitted
from annotated.engine.micro import PackedBatch
from annotated.engine.recipes import (
    RECIPES,
    Recipe,
    described,
)
from annotated.engine.runs import (
    read_recipe,
)
from annotated.engine.start import begin_run, resume_run
from annotated.engine.trainer import (
    RunConfig,
)
from annotated.model import (
    Transformer,
    TransformerConfig,
    count_parameters,
)
from annotated.training import copy_corpus
from tests.engine.folders import (
    own_corpus,
)

# --- fitted to a corpus ---------------------------------------------------
from tests.engine.small import small_model
from tests.helpers import SHAPE

Speed = Callable[[Recipe], float]


def trains_with(operations: float) -> Speed:
    """The steps per second of a machine that makes so many operations: 6
    for each parameter and token.
    """

    def speed(made: Recipe) -> float:
        per_token = 6 * count_parameters(made.config())
        return operations / per_token / made.training.batch_tokens

    return speed


PAIR = RECIPES["pair"]
LAPTOP, GPU = trains_with(7e10), trains_with(2e13)


@pytest.mark.parametrize("speed", [trains_with(2e10), LAPTOP, GPU])
@pytest.mark.parametrize("pairs", [100, 2_000, 29_000, 400_000, 5_000_000])
def test_whatever_the_corpus_the_choice_is_one_that_learns(
    pairs: int, speed: Speed
) -> None:
    made = fitted(PAIR, pairs, 15 * pairs, speed)
    model, training = made.model, made.training
    assert not made.fit and model.norm == "pre"
    steps = training.max_steps
    assert 0 < training.warmup < steps - training.cooldown < steps
    assert training.save_every <= steps // 2
    peak = training.rate / math.sqrt(model.d_model * training.warmup)
    assert 0.0009 < peak < 0.0031
    # it fits into the minutes, and uses most of them unless the corpus
    # is small
    spent = steps / speed(made) / (60 * 20)
    seen = steps * training.batch_tokens / (15 * pairs)
    assert spent < 0.91
    assert spent > 0.81 or seen > 29
    assert steps <= 1000 or seen <= 30
    assert steps <= 20_000 or training.batch_tokens == 24_000


def test_more_text_and_more_time_make_a_larger_model() -> None:
    def width(pairs: int, minutes: float, speed: Speed) -> int:
        recipe = PAIR.changed(max_minutes=minutes)
        return fitted(recipe, pairs, 20 * pairs, speed).model.d_model

    assert width(2_000, 600, GPU) == 128
    assert width(29_000, 5, LAPTOP) == 128
    assert width(29_000, 40, LAPTOP) == 192
    assert width(29_000, 600, GPU) == 192
    assert width(400_000, 20, LAPTOP) == 128
    assert width(400_000, 60, LAPTOP) == 192
    assert width(400_000, 120, LAPTOP) == 256
    assert width(4_000_000, 60, GPU) == 512


def test_dropout_is_for_pairs_that_are_seen_often() -> None:
    found = [
        fitted(PAIR, n, 20 * n, LAPTOP).model.dropout
        for n in (2_000_000, 29_000, 1_000)
    ]
    assert found == [0.0, 0.1, 0.2]


def test_the_batch_that_is_measured_is_the_one_that_is_chosen() -> None:
    asked: list[tuple[int, int]] = []

    def speed(made: Recipe) -> float:  # whatever the batch
        asked.append((made.model.d_model, made.training.batch_tokens))
        return 1000.0

    made = fitted(PAIR, 5_000_000, 10**8, speed)
    assert made.training.batch_tokens == 24_000
    # and nothing is measured twice
    assert asked == [(512, 1500 * 2**i) for i in range(5)]
    asked.clear()
    made = fitted(PAIR.changed(batch_tokens=3000), 10**7, 10**8, speed)
    assert made.training.batch_tokens == 3000
    assert asked == [(512, 3000)]


def test_short_sentences_come_first_where_pairs_are_seen_once() -> None:
    long = fitted(PAIR, 2_000_000, 40_000_000, LAPTOP).training
    assert long.curriculum == long.max_steps // 2
    assert fitted(PAIR, 29_000, 400_000, LAPTOP).training.curriculum == 0


def test_what_was_given_is_kept() -> None:
    given = PAIR.changed(d_model=64, norm="post", max_steps=500, rate=0.7)
    made = fitted(given, 29_000, 400_000, LAPTOP)
    assert made.model.d_model == 64 and made.model.norm == "post"
    assert made.training.max_steps == 500 and made.training.rate == 0.7
    assert made.training.warmup == 83 and made.training.cooldown == 200
    # even what is as it was before
    for name, value in (
        ("d_model", 512),
        ("dropout", 0.1),
        ("warmup", 4000),
    ):
        given = PAIR.changed(**{name: value})
        made = fitted(given, 10**6, 10**8, LAPTOP)
        assert made.flat()[name] == value


def test_a_choice_is_said_in_a_line() -> None:
    made = fitted(PAIR, 29_000, 400_000, LAPTOP)
    said = described(made, PAIR, "fitted")
    assert "d_model 128, d_ff 512" in said and "\n" not in said
    assert "norm" not in said  # which PAIR has decided


def test_the_same_command_fits_the_same_model_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ANNOTATED_MEASURED", str(tmp_path / "measured"))
    recipe = own_corpus(tmp_path / "own").changed(fit=PAIR.fit)
    coming = iter([(0.1, True), (0.2, False), (9.0, False)])
    monkeypatch.setattr(fit, "training_speed", lambda *_: next(coming))
    steps = [
        begin_run(recipe, tmp_path / f"run{i}")[0].recipe.training.max_steps
        for i in range(3)
    ]
    # a busy moment is told, and not kept
    assert capsys.readouterr().err.count("keep this machine busy") == 1
    assert steps[0] < steps[1] == steps[2]
    assert len(list((tmp_path / "measured").iterdir())) == 1


def test_a_fitted_run_begins_and_resumes_as_it_was_fitted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = own_corpus(tmp_path / "own").changed(fit=PAIR.fit)
    run, _, _ = begin_run(recipe, tmp_path / "run")
    assert "fitted to the corpus: " in capsys.readouterr().err
    assert not run.recipe.fit
    again, _, _ = resume_run(recipe, tmp_path / "run")
    assert again.recipe == run.recipe == read_recipe(tmp_path / "run")


def test_where_all_was_given_nothing_is_said_to_be_fitted(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nothing_open(recipe: Recipe, *_: object) -> Recipe:
        return recipe.changed(fit=())

    monkeypatch.setattr(start, "fitted_here", nothing_open)
    recipe = own_corpus(tmp_path / "own").changed(fit=PAIR.fit)
    begin_run(recipe, tmp_path / "run")
    assert "fitted" not in capsys.readouterr().err


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
    monkeypatch.setattr(fit.time, "perf_counter", lambda: next(ticks))
    monkeypatch.setattr(fit.time, "process_time", read)
    used: list[list[int]] = []
    moved: list[Any] = []
    monkeypatch.setattr(
        PackedBatch, "to", lambda batch, place: moved.append(place) or batch
    )

    class Watched(Corpus):
        def batch(self, pairs: Any) -> Any:
            used.append(list(pairs))
            return super().batch(pairs)

    corpus = copy_corpus(20, vocab=12, length=5)
    model = small_model()
    before = model.embeddings.output.detach().clone()
    config = RunConfig(batch_tokens=40, seed=3)
    found = fit._step_seconds(
        model, Watched(corpus.src, corpus.tgt), config
    )
    half = least if stands else least / 2
    assert found == (least, pytest.approx(half))
    plan = corpus.plan(40, seed=3, epoch=0)
    assert 1 < len(plan) < 6
    around = [plan[i % len(plan)].tolist() for i in range(len(seconds))]
    assert used == around
    assert set(moved) == {torch.device("cpu")}
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

    monkeypatch.setattr(fit, "_step_seconds", step_seconds)
    monkeypatch.setattr(torch, "get_num_threads", lambda: counts[-1])
    monkeypatch.setattr(torch, "set_num_threads", counts.append)
    given = Transformer(TransformerConfig(**SHAPE)), copy_corpus(9)
    found = fit.training_speed(*given, RunConfig())  # type: ignore
    assert found == (pytest.approx(speed), busy)
    assert counts == ([1] if threads == 1 else [2, 1, 2])
    assert asked == [(*given, RunConfig())] * threads


def test_on_a_gpu_the_clock_on_the_wall_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fit, "_step_seconds", lambda *_: (0.5, 0.1))
    model = small_model().to("meta")
    found = fit.training_speed(model, copy_corpus(9), RunConfig())
    assert found == (2.0, False)
