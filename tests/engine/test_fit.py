"""What a recipe leaves open is fitted to corpus and machine: engine.fit,
from page E9.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from annotated.engine import (
    distributed,
    fit,
    machine,
    speed,
    start,
)
from annotated.engine import trainer as engine
from annotated.engine.errors import RunError
from annotated.engine.fit import fitted
from annotated.engine.parts import PartsConfig
from annotated.engine.recipes import (
    RECIPES,
    Recipe,
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


def trains_with(operations: float, launch: float = 0.0) -> Speed:
    """The steps per second of a machine that makes so many operations: 6
    for each parameter and token; and needs so many seconds to begin a
    step of each layer.
    """

    def speed(made: Recipe) -> float:
        per_token = 6 * count_parameters(made.config())
        layers = 2 * made.model.num_encoder_layers
        spent = per_token * made.training.batch_tokens / operations
        return 1 / (spent + launch * layers)

    return speed


PAIR = RECIPES["pair"]
LAPTOP, GPU = trains_with(7e10), trains_with(2e13)


@pytest.mark.parametrize("pace", [trains_with(2e10), LAPTOP, GPU])
@pytest.mark.parametrize("pairs", [100, 2_000, 29_000, 400_000, 5_000_000])
def test_whatever_the_corpus_the_choice_is_one_that_learns(
    pairs: int, pace: Speed
) -> None:
    made = fitted(PAIR, pairs, 15 * pairs, pace)
    model, training = made.model, made.training
    assert not made.fit and model.norm == "pre"
    steps = training.max_steps
    assert 0 < training.warmup < steps - training.cooldown < steps
    assert training.save_every <= steps // 2
    peak = training.rate / math.sqrt(model.d_model * training.warmup)
    assert 0.0009 < peak < 0.0031
    # it fits into the minutes, and uses most of them unless the corpus
    # is small
    spent = steps / pace(made) / (60 * 20)
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


# what devices reach in this trainer's steps, and the seconds that a layer
# takes to be launched, forward and backward
DEVICES = {
    "two cores": trains_with(7e10),
    "T4": trains_with(1.2e13, launch=4e-3),
    "H100": trains_with(1.1e14, launch=3e-3),
}


@pytest.mark.parametrize(
    ("device", "minutes", "d_model", "batch"),
    [
        ("two cores", 5, 128, 1500),
        ("two cores", 120, 256, 1500),
        ("T4", 5, 256, 12_000),
        ("T4", 60, 512, 6000),
        ("H100", 5, 512, 24_000),
        ("H100", 60, 512, 24_000),
    ],
)
def test_a_device_gets_the_model_that_its_tokens_per_second_allow(
    device: str, minutes: float, d_model: int, batch: int
) -> None:
    """678,000 pairs of Europarl: a GPU has to be given larger batches
    before a shape is too much for it.
    """
    recipe = PAIR.changed(max_minutes=minutes)
    made = fitted(recipe, 678_000, 30 * 678_000, DEVICES[device])
    found = made.model.d_model, made.training.batch_tokens
    assert found == (d_model, batch)
    assert made.training.max_steps >= 2000 or device == "two cores"


def test_small_batches_alone_would_have_refused_the_base_model() -> None:
    """Without this a device that takes as long for 12,000 tokens as for
    1,500 is judged by an eighth of what it can do.
    """
    slow = trains_with(1e14, launch=8e-3)
    recipe = PAIR.changed(max_minutes=5.0)
    base = recipe.changed(d_model=512, d_ff=2048, batch_tokens=1500)
    assert 270 * slow(base) * 1500 < 9e6  # not enough
    assert fitted(recipe, 678_000, 2 * 10**7, slow).model.d_model == 512


def test_a_corpus_that_is_soon_read_gets_small_batches_on_any_device() -> (
    None
):
    """Its passes end the run, not the time: more steps learn more."""
    made = fitted(PAIR, 29_000, 15 * 29_000, DEVICES["H100"])
    assert made.training.batch_tokens == 1500


def test_what_does_not_fit_into_memory_is_passed_over() -> None:
    def small(most: int) -> Speed:
        def speed(made: Recipe) -> float:
            size = made.model.d_model * made.training.batch_tokens
            return DEVICES["H100"](made) if size <= most else 0.0

        return speed

    recipe = PAIR.changed(max_minutes=5.0)

    def found(most: int) -> tuple[int, int]:
        made = fitted(recipe, 678_000, 2 * 10**7, small(most))
        return made.model.d_model, made.training.batch_tokens

    assert found(512 * 6000) == (512, 6000)
    assert found(512 * 1400)[0] == 256
    with pytest.raises(RunError, match="micro-tokens 250"):
        found(100)


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
    said = made.described(PAIR, "fitted")
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
    clock = SimpleNamespace(
        perf_counter=lambda: next(ticks), process_time=read
    )
    monkeypatch.setattr(speed, "time", clock)
    corpus, config = copy_corpus(20, vocab=12, length=5), RunConfig(
        batch_tokens=40, seed=3, max_steps=1, max_minutes=1e-9
    )  # fmt: skip
    found = speed._step_seconds(small_model(), corpus, config)
    half = least if stands else least / 2
    assert found == (least, pytest.approx(half))
    assert next(ticks, None) is None  # not one step more


def test_what_is_measured_is_what_will_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The trainer's own steps: compiled, in micro-batches, on the corpus's
    batches in their order, read ahead; and a GPU is waited for only after
    some of them.
    """
    trainers: list[Any] = []
    looks: list[int] = []

    class Watched(engine.Trainer):
        def __init__(self, *given: Any):
            super().__init__(*given)
            trainers.append(self)
            self.works: list[Any] = []

        def learn(self, work: Any) -> Any:
            self.works.append(work)
            return super().learn(work)

        def look(self) -> None:
            looks.append(self.step)
            super().look()

    compiled: list[Any] = []
    monkeypatch.setattr(engine, "compile_layers", compiled.append)
    monkeypatch.setattr(speed, "Trainer", Watched)
    corpus, model = copy_corpus(60, vocab=12, length=5), small_model()
    config = RunConfig(
        batch_tokens=40, seed=3, compile=True, micro_tokens=15
    )
    assert min(speed._step_seconds(model, corpus, config)) > 0
    (trainer,) = trainers
    assert compiled == [trainer.model]
    assert 2 <= len(trainer.works) <= 6
    plan = corpus.plan(40, seed=3, epoch=0)
    assert max(len(work.micro) for work in trainer.works) > 1
    for work, pairs in zip(trainer.works, plan):
        expected = trainer.batch(pairs)
        assert len(work.micro) == len(expected.micro)
        for (one, _), (other, _) in zip(work.micro, expected.micro):
            assert torch.equal(one.src, other.src)


def test_a_gpu_is_waited_for_after_five_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of which the first five do not count."""
    told: list[str] = []

    class Device:
        def __init__(self, model: Any, corpus: Any, config: RunConfig):
            assert config.max_steps == 30 and config.max_minutes is None

        def steps(self) -> Any:
            while True:
                told.append("step")
                yield

        def look(self) -> None:
            told.append("look")

    now = {"s": 0.0}

    def clock() -> float:
        now["s"] = 0.4 * told.count("step")
        return now["s"]

    monkeypatch.setattr(speed, "Trainer", Device)
    clocks = SimpleNamespace(perf_counter=clock, process_time=lambda: 0.0)
    monkeypatch.setattr(speed, "time", clocks)
    model = small_model().to("meta")
    found = speed._step_seconds(model, copy_corpus(9), RunConfig())
    assert found == (pytest.approx(0.4), pytest.approx(0.4))
    assert told == [*["step"] * 5, "look"] * 2


def test_who_measures_is_alone_while_the_others_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(distributed.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed.dist, "get_world_size", lambda: 4)
    monkeypatch.setattr(distributed.dist, "get_rank", lambda: 3)
    assert (distributed.rank(), distributed.world_size()) == (3, 4)
    with pytest.raises(KeyError), distributed.alone():
        assert (distributed.rank(), distributed.world_size()) == (0, 1)
        raise KeyError
    assert (distributed.rank(), distributed.world_size()) == (3, 4)


def test_each_process_is_timed_with_its_share_that_fits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Out of memory is no end: the trial is passed over."""
    monkeypatch.setenv("ANNOTATED_MEASURED", str(tmp_path))
    monkeypatch.setattr(fit, "world_size", lambda: 4)
    monkeypatch.setattr(fit, "memory_bytes", lambda _: 0.0)
    asked: list[tuple[int, int | None]] = []

    def measured(model: Any, corpus: Any, config: RunConfig) -> Any:
        asked.append((config.batch_tokens, config.micro_tokens))
        if len(asked) < 3:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return 1000.0, False

    monkeypatch.setattr(fit, "training_speed", measured)
    corpus, words = copy_corpus(100), [0] * 20
    recipe = PAIR.changed(batch_tokens=6000)
    given: Any = (recipe, corpus, words, words, "cpu")
    with pytest.raises(RunError, match="out of memory.*micro-tokens"):
        fit.fitted_here(*given)
    with pytest.raises(RunError):
        fit.fitted_here(*given)
    assert fit.fitted_here(*given).training.max_steps > 100
    assert asked == [(1500, 500)] * 3


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (MemoryError(), True),
        (torch.cuda.OutOfMemoryError("CUDA out of memory."), True),
        (RuntimeError("MPS backend out of memory"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("expected 2 dimensions"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_out_of_memory_is_known_by_its_kind_or_its_words(
    error: Exception, is_one: bool
) -> None:
    assert machine.out_of_memory(error) is is_one


@pytest.mark.parametrize(
    ("threads", "all_of_them", "one", "rate", "busy"),
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
    rate: float,
    busy: bool,
) -> None:
    """A step's seconds on the wall and of the processor, as told."""
    counts, asked = [threads], []

    def step_seconds(*given: Any) -> tuple[float, float]:
        asked.append(given)
        return one if one and counts[-1] == 1 else all_of_them

    monkeypatch.setattr(speed, "_step_seconds", step_seconds)
    monkeypatch.setattr(torch, "get_num_threads", lambda: counts[-1])
    monkeypatch.setattr(torch, "set_num_threads", counts.append)
    given = Transformer(TransformerConfig(**SHAPE)), copy_corpus(9)
    found = speed.training_speed(*given, RunConfig())  # type: ignore
    assert found == (pytest.approx(rate), busy)
    assert counts == ([1] if threads == 1 else [2, 1, 2])
    assert asked == [(*given, RunConfig())] * threads


def test_on_a_gpu_the_clock_on_the_wall_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(speed, "_step_seconds", lambda *_: (0.5, 0.1))
    model = small_model().to("meta")
    found = speed.training_speed(model, copy_corpus(9), RunConfig())
    assert found == (2.0, False)


@pytest.mark.parametrize(
    ("batch", "tokens", "sizes", "seconds"),
    [
        (2800, 5000.0, [2800], 3.3),  # all of it
        (2800, 600.0, [147, 588], 3.3),  # read off a line: 0.5 + s/1000
        (2801, 3.0, [56, 224], 3.301),
    ],
)
def test_a_step_of_a_large_batch_is_read_off_two_small_ones(
    monkeypatch: pytest.MonkeyPatch,
    batch: int,
    tokens: float,
    sizes: list[int],
    seconds: float,
) -> None:
    timed = []

    def step_seconds(model: Any, corpus: Any, config: RunConfig) -> Any:
        size = config.batch_tokens
        timed.append(size)
        assert model.config == shape
        for side in (corpus.src, corpus.tgt):
            assert {*side.lengths} == {27}  # and an end
            assert side.ids.max() < shape.src_vocab
        assert len(corpus) == 8 * size // 28
        return 0.5 + size / 1000, 60.0

    monkeypatch.setattr(speed, "_step_seconds", step_seconds)
    shape = TransformerConfig(**SHAPE)
    config = RunConfig(batch_tokens=batch)
    found = speed.step_seconds(shape, config, "cpu", tokens)
    assert found == (pytest.approx(seconds), sizes)
    assert timed == sizes


def test_the_step_that_is_timed_is_a_recipes() -> None:
    """Whatever kind of model it has, and whoever draws its tokens."""
    model = PartsConfig(**SHAPE, positions="rotary", num_kv_heads=1)
    config = RunConfig(
        batch_tokens=300, bpe_dropout=0.1, curriculum=5, max_steps=1
    )
    found, sizes = speed.step_seconds(model, config, "cpu", 50.0)
    assert 0 < found < 60
    assert sizes == [56, 224]
