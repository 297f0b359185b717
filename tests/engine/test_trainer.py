"""Page E5: the engine's trainer, one part at a time; how it trains stands
in test_training.py.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from annotated import training
from annotated.engine import micro, optimizers
from annotated.engine import trainer as engine
from annotated.engine.errors import PeerError, TrainingError, UsageError
from annotated.engine.trainer import (
    RunConfig,
    Trainer,
    _freeze,
    _LossScale,
    packed_loss,
)
from annotated.model import Transformer
from annotated.training import copy_corpus, fingerprint, seed_dropout
from tests.engine.small import small_model, small_trainer

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
        ((200, 40), 2.0, 77, 77.0, None),
        ((200, 40), 2.0, 78, 78.0, (118, 40)),
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


# --- the loss -------------------------------------------------------------


@pytest.mark.parametrize(
    ("precision", "weights", "layers", "loss"),
    [
        ("float32", torch.float32, torch.float32, torch.float32),
        ("float32", torch.float64, torch.float32, torch.float64),
        ("bfloat16", torch.float32, torch.bfloat16, torch.bfloat16),
        ("float16", torch.float32, torch.float16, torch.float16),
    ],
)
def test_layers_and_loss_compute_in_the_runs_precision(
    monkeypatch: pytest.MonkeyPatch,
    precision: Any,
    weights: torch.dtype,
    layers: torch.dtype,
    loss: torch.dtype,
) -> None:
    model = small_model(output_bias=True).to(weights)
    hidden, seen = model.hidden, []
    given: dict[str, Any] = {}

    def watched(*args: Any) -> Any:
        one = torch.ones(1, 1)
        seen.append((one @ one).dtype)
        return hidden(*args)

    def chunked(x: Tensor, weight: Any, *rest: Any, bias: Any) -> Any:
        given.update(x=x, weight=weight, rest=rest, bias=bias)
        return "loss", "nll"

    monkeypatch.setattr(model, "hidden", watched)
    monkeypatch.setattr(engine, "chunked_loss", chunked)
    batch = copy_corpus(9, vocab=12, length=5).batch(np.arange(9))
    config = RunConfig(precision=precision, label_smoothing=0.25)
    assert packed_loss(model, batch, config) == ("loss", "nll")
    labels, smoothing = given["rest"]
    assert seen == [layers] and given["x"].dtype == loss
    assert given["weight"] is model.embeddings.output
    assert given["bias"] is model.embeddings.bias is not None
    assert smoothing == 0.25
    assert labels.tolist() == batch.labels[batch.labels != 0].tolist()


def noted_loss(trainer: Trainer, note: Callable[[Any], Any]) -> None:
    """Let a trainer have a loss that notes something of each batch."""

    def loss(batch: Any) -> tuple[Tensor, Tensor]:
        note(batch)
        weight = torch.ones(1, device=trainer.device, requires_grad=True)
        return weight.sum(), 2 * weight.detach().sum()

    trainer.loss = cast(Any, loss)


def test_batches_go_where_the_model_is() -> None:
    trainer = small_trainer(micro_tokens=10)
    work, seen = trainer.batch(np.arange(6)), []
    trainer.device = torch.device("meta")
    noted_loss(trainer, lambda batch: seen.append(batch.src.device.type))
    means = trainer.attempt(work, 1.0)
    assert means.device.type == "meta" and means.shape == (2,)
    assert seen == ["meta"] * len(work.micro)


def test_gradients_are_exchanged_with_the_last_micro_batch() -> None:
    trainer, said = small_trainer(micro_tokens=10), []

    @contextmanager
    def without() -> Iterator[None]:
        said.append("without")
        yield
        said.append("until here")

    trainer.no_sync = without
    noted_loss(trainer, lambda _: said.append("loss"))
    work = trainer.batch(np.arange(6))
    trainer.attempt(work, 1.0)
    before = ["without", "loss", "until here"] * (len(work.micro) - 1)
    assert before and said == [*before, "loss"]


def test_who_has_no_pair_of_a_batch_adds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (engine, micro):
        monkeypatch.setattr(module, "world_size", lambda: 3)
        monkeypatch.setattr(module, "rank", lambda: 2)
    trainer = small_trainer()
    work = trainer.batch(np.arange(1))
    assert trainer.attempt(work, 4.0).tolist() == [0.0, 0.0]
    assert work.tokens > 1
    for p in trainer.model.parameters():
        assert p.grad is None or not p.grad.any()


def test_validation_adds_up_in_float64() -> None:
    model, corpus = small_model().double(), copy_corpus(60, vocab=12)
    config = RunConfig(batch_tokens=40, micro_tokens=15)
    found = Trainer(model, corpus, config).validate(corpus)
    expected = training.validate(model, corpus, config)
    assert found == pytest.approx(expected, rel=1e-12)


def test_validation_goes_there_too_in_micro_batches() -> None:
    trainer = small_trainer(batch_tokens=40, micro_tokens=15)
    seen: list[Any] = []

    def note(batch: Any) -> None:
        seen.append(
            (batch.source.real.device.type, len(batch.source.index))
        )

    def loss(batch: Any) -> tuple[Tensor, Tensor]:
        note(batch)
        return torch.ones(()), torch.ones(())

    trainer.loss, trainer.device = cast(Any, loss), torch.device("meta")
    trainer.validate(copy_corpus(20, vocab=12, length=5))
    assert {place for place, _ in seen} == {"meta"}
    assert max(size for _, size in seen) <= 15


@pytest.mark.parametrize(("size", "me"), [(1, 0), (2, 0), (2, 1)])
def test_each_process_draws_noise_of_its_own(
    monkeypatch: pytest.MonkeyPatch, size: int, me: int
) -> None:
    trainer, seen = small_trainer(seed=3), []
    monkeypatch.setattr(engine, "world_size", lambda: size)
    monkeypatch.setattr(engine, "rank", lambda: me)
    noted_loss(trainer, lambda _: seen.append(torch.initial_seed()))
    work, trainer.step = trainer.batch(np.arange(4)), 5
    seed_dropout(3, trainer.step)  # as a step begins
    trainer.attempt(work, 1.0)
    seed_dropout(3, 5, *([me] if size > 1 else []))
    assert seen == [torch.initial_seed()]


def test_a_step_is_taken_again_with_the_noise_that_it_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And from no gradient, at the scale that is left."""
    trainer = small_trainer(precision="float16", seed=3, max_steps=6)
    trainer.step = 5
    tried: list[Any] = []

    def attempt(work: Any, scale: float) -> Tensor:
        some = list(trainer.model.parameters())
        tried.append((scale, torch.initial_seed(), [p.grad for p in some]))
        big = math.inf if len(tried) < 3 else 1.0
        for p in some:
            p.grad = torch.full_like(p, big)
        torch.manual_seed(99)
        return torch.ones(2)

    monkeypatch.setattr(trainer, "attempt", attempt)
    assert len(list(trainer.steps())) == 1
    seed_dropout(3, 5)
    none = [None for _ in trainer.model.parameters()]
    assert tried == [
        (2.0**n, torch.initial_seed(), none) for n in (16, 15, 14)
    ]


@pytest.mark.parametrize("shard", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_processes_share_the_loss_and_its_layers(
    monkeypatch: pytest.MonkeyPatch, shard: bool, compiled: bool
) -> None:
    """In a group that waits ten minutes for a step; the optimiser is made
    of what the layers have become.
    """
    made: list[Any] = []

    def share(
        module: Any, group: Any, layers: Any, half: Any
    ) -> tuple[Any, Any]:
        assert half is None  # float32
        made.extend([group, list(layers)])
        if shard:  # which replaces parameters
            first = module.model.encoder.layers[0].attention.w_q
            first.weight = torch.nn.Parameter(first.weight.detach())
            made.append(first.weight)
        return module, "without"

    monkeypatch.setattr(engine, "step_group", lambda minutes: minutes)
    monkeypatch.setattr(engine, "data_parallel", share)
    monkeypatch.setattr(engine, "compile_layers", made.append)
    model = small_model()
    config, corpus = RunConfig(compile=compiled), copy_corpus(9, vocab=12)
    asked = [shard] if shard else []  # it is not, unless told
    trainer = Trainer(model, corpus, config, *asked)
    if compiled:
        assert made.pop(0) is model
    layers = [*model.encoder.layers, *model.decoder.layers]
    assert made[:2] == [10.0, layers if shard else []]
    assert (trainer.group, trainer.no_sync) == (10.0, "without")
    learned = trainer.optimizer.param_groups[0]["params"]
    assert all(any(p is own for own in learned) for p in made[2:])
    batch = corpus.batch(np.arange(3))
    one, other = trainer.loss(batch), packed_loss(model, batch, config)
    assert one[0].item() == other[0].item()


def test_each_process_takes_its_part_of_a_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the optimizer's tensors as of the weights that they belong to."""
    begun = small_trainer(max_steps=1)
    list(begun.steps())
    weights, moments = begun.weights(), begun.moments()
    trainer, cut = small_trainer(), []

    def part(whole: Tensor, like: Any) -> Tensor:
        cut.append((whole, like))
        return whole

    monkeypatch.setattr(engine, "own_part", part)
    monkeypatch.setattr(optimizers, "own_part", part)
    trainer.load(weights, moments, begun.state())
    own = dict(trainer.model.named_parameters())
    expected = [(weights[name], own[name]) for name in own]
    expected += [
        (moment, own[name.rpartition(".")[0]])
        for name, moment in moments.items()
        if not name.endswith(".step")
    ]
    assert len(cut) == len(expected) == 3 * len(own)
    for one, other in zip(cut, expected, strict=True):
        assert one[0] is other[0] and one[1] is other[1]


# --- seconds, and who tells them ------------------------------------------


def ticking(monkeypatch: pytest.MonkeyPatch, seconds: float) -> Any:
    """A clock that goes on each time that it is read."""
    ticks = itertools.count(0.0, seconds)
    clock = SimpleNamespace(perf_counter=lambda: next(ticks))
    monkeypatch.setattr(engine, "time", clock)
    return clock


def test_seconds_are_those_of_the_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A step reads the clock four times; it is told the second and third,
    and counts the others for the next.
    """
    clock = ticking(monkeypatch, 1.0)
    trainer, seen = small_trainer(max_steps=4), []
    for progress in trainer.steps():
        seen.append(progress.seconds)
        for _ in range(50):  # what others do between two steps
            clock.perf_counter()
    assert seen == [1.0, 4.0, 7.0, 10.0]
    later = small_trainer(max_steps=5)
    later.load(trainer.weights(), trainer.moments(), trainer.state())
    assert later.since == (4, 10.0)
    assert [progress.seconds for progress in later.steps()] == [11.0]


def test_a_run_ends_when_its_minutes_have_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticking(monkeypatch, 15.0)
    trainer = small_trainer(max_minutes=1.0)
    assert [p.seconds for p in trainer.steps()] == [15.0, 60.0]


def test_who_asks_for_the_end_hears_of_it_with_the_step() -> None:
    trainer = small_trainer(max_steps=3)
    heard = []
    for progress in trainer.steps():
        heard.append(trainer.stopping)
        trainer.stop = progress.step == 1
    assert heard == [False, True, False]


@pytest.mark.parametrize("me", [0, 1])
def test_what_a_process_adds_to_the_numbers_of_a_step(
    monkeypatch: pytest.MonkeyPatch, me: int
) -> None:
    """Its share of the losses, whether it was asked to stop, and process 0
    the seconds; the norm is known to all.
    """
    given: list[Any] = []

    def reduce(tensor: Tensor, group: Any) -> Tensor:
        given.append((tensor.tolist(), tensor.dtype, group))
        return tensor

    trainer = small_trainer()
    monkeypatch.setattr(engine, "all_reduce_sum", reduce)
    monkeypatch.setattr(engine, "rank", lambda: me)
    clock = SimpleNamespace(perf_counter=lambda: 9.0)
    monkeypatch.setattr(engine, "time", clock)
    trainer.clock, trainer.started, trainer.stop = 5.0, 6.0, me == 1
    trainer.group = cast(Any, "of a step")
    numbers = torch.tensor([0.1, 0.5, 2.0], dtype=torch.float64)
    found = trainer.collect(numbers[:2], numbers[2])
    assert found.tolist() == [0.1, 0.5, 2.0]
    seconds = [8.0, 0.0][me]
    told = [0.1, 0.5, seconds, float(me)]
    assert given == [(told, torch.float64, "of a step")]
    assert (trainer.seconds, trainer.stopping) == (seconds, me == 1)
    # where the device is not waited for, its numbers go by themselves
    monkeypatch.setattr(Trainer, "late", True)
    given.clear()
    assert trainer.collect(numbers[:2], numbers[2]).tolist() == [
        0.1,
        0.5,
        2,
    ]
    assert [told for told, *_ in given] == [told[:2], told[2:]]


@pytest.mark.parametrize("me", [0, 1])
@pytest.mark.parametrize(
    "bad", [[math.nan, 1, 1], [1, math.inf, 1], [1, 1, -math.inf]]
)
def test_what_is_not_finite_is_told_by_the_first_process(
    monkeypatch: pytest.MonkeyPatch, me: int, bad: list[float]
) -> None:
    """And refused by all, before the weights change."""
    trainer = small_trainer()
    before = trainer.model.embeddings.output.detach().clone()
    monkeypatch.setattr(engine, "rank", lambda: me)
    told = torch.tensor(bad, dtype=torch.float64)
    monkeypatch.setattr(trainer, "collect", lambda *_: told)
    with pytest.raises(PeerError if me else TrainingError):
        next(trainer.steps())
    assert trainer.step == 0
    assert torch.equal(trainer.model.embeddings.output, before)


def test_processes_compare_what_they_begin_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer, told = small_trainer(seed=3), []
    monkeypatch.setattr(engine, "check_same", told.append)
    trainer.check_same()
    assert told == []  # alone there is nobody else
    monkeypatch.setattr(engine, "world_size", lambda: 2)
    trainer.step = 7
    trainer.check_same()
    configs = trainer.config, trainer.model.config
    settings = repr((*configs, {})).encode()  # and no files of one's own
    weights = [p.detach().numpy() for p in trainer.model.parameters()]
    assert told == [
        {
            "training data": fingerprint(trainer.corpus),
            "settings": zlib.crc32(settings),
            "step": 7,
            "weights": zlib.crc32(b"".join(w.tobytes() for w in weights)),
        }
    ]


# --- checkpoints, and what they say ---------------------------------------


def test_a_state_says_what_its_last_bit_and_order_depend_on() -> None:
    trainer = small_trainer(curriculum=6, micro_tokens=20)
    state = trainer.state()
    kernels = torch.backends.cpu.get_cpu_capability()
    assert state["bits"] == {
        "processes": 1, "micro_tokens": 20, "compile": False,
        "threads": torch.get_num_threads(), "device": f"cpu ({kernels})",
        "torch": torch.__version__,
    }  # fmt: skip
    assert state["order"]["curriculum"] == 6
    assert state["ending"] == trainer.ending()
    assert "scaling" not in state
    assert "curriculum" not in small_trainer().order()
    later = small_trainer(curriculum=6, micro_tokens=20)
    later.load(trainer.weights(), trainer.moments(), state)
    assert later.changed == []


def test_a_run_goes_on_to_the_end_that_it_has_decided_on() -> None:
    """Unless it is given another plan."""
    limits = {"cooldown": 40, "max_minutes": 0.5}
    begun = small_trainer(max_steps=100, **limits)
    begun.step, begun.seconds = 20, 20.0
    begun.fit_end()
    parts = begun.weights(), begun.moments(), begun.state()
    for planned, ends in ((100, (29, 9)), (200, (200, 40))):
        later = small_trainer(max_steps=planned, **limits)
        later.load(*parts)
        config = later.config
        assert (config.max_steps, config.cooldown) == ends


def test_a_run_in_float16_may_go_on_from_one_that_was_not() -> None:
    begun = small_trainer(max_steps=2)
    list(begun.steps())
    parts = begun.weights(), begun.moments(), begun.state()
    trainer = small_trainer(max_steps=3, precision="float16")
    trainer.load(*parts)
    assert trainer.scaling == _LossScale()
    assert [p.step for p in trainer.steps()] == [3]
    trainer.scaling.scale = 4.0  # type: ignore[union-attr]
    parts = trainer.weights(), trainer.moments(), trainer.state()
    later = small_trainer(max_steps=3, precision="float16")
    later.load(*parts)
    assert later.scaling == _LossScale(4.0, calm=1)


def test_a_trainer_saves_itself_and_drops_what_is_too_old(
    tmp_path: Path,
) -> None:
    trainer = small_trainer(max_steps=6, keep=2, save_every=2)
    there = []
    for progress in trainer.steps():
        place = trainer.save(tmp_path)
        assert place == tmp_path / f"{progress.step:08d}"
        assert (place / "model.safetensors").is_file()
        there.append([int(p.name) for p in sorted(tmp_path.iterdir())])
    assert there == [
        [1], [2], [2, 3], [2, 4], [2, 4, 5], [4, 6]
    ]  # fmt: skip


# --- parts that do not learn ----------------------------------------------


def learning(model: Transformer) -> set[str]:
    """The first names of what learns."""
    return {
        name.split(".")[0]
        for name, p in model.named_parameters()
        if p.requires_grad
    }


def test_all_parts_learn_but_those_that_are_named() -> None:
    model = small_model(positions="learned", max_len=9)
    _freeze(model, ["embeddings", "decoder"])
    assert learning(model) == {"encoder"}
    _freeze(model, ["encoder"])
    rest = {"embeddings", "src_positions", "tgt_positions", "decoder"}
    assert learning(model) == rest
    corpus = copy_corpus(20, vocab=12, length=5)
    trainer = Trainer(model, corpus, RunConfig(freeze=("decoder",)))
    assert learning(trainer.model) == rest - {"decoder"} | {"encoder"}


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        (("head", "body"), "embeddings, encoder, decoder, not body, head"),
        (("encoder", "decoder", "embeddings"), "leaves nothing to train"),
    ],
)
def test_what_cannot_be_frozen_is_told(parts: Any, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        RunConfig(freeze=parts)
    assert RunConfig(freeze=("encoder", "decoder")).freeze
