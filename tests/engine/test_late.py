"""Page E5: on a GPU no step waits for its numbers. Here a processor takes
its place: what would wait is counted, and the steps are the same.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from annotated.engine import trainer as engine
from annotated.engine.errors import TrainingError
from annotated.engine.log import Log
from annotated.engine.packing import FastDropout
from annotated.engine.trainer import _LateProgress, RunConfig, Trainer
from annotated.training import copy_corpus
from tests.engine.small import small_model
from tests.engine.test_two_trainers import Watch
from tests.trainers import parts

skips = pytest.mark.skipif(
    torch.__version__ < "2.4", reason="Adam on a processor is not fused"
)
pytestmark = skips


class Late(Trainer):
    """A trainer that treats this processor as a GPU."""

    late = True  # type: ignore[assignment]


def made(
    kind: type[Trainer] = Late, dropout: float = 0.1, **more: Any
) -> Trainer:
    corpus = copy_corpus(60, vocab=12, length=5)
    given = {"batch_tokens": 40, "micro_tokens": 25, "max_steps": 34}
    config = RunConfig(warmup=10, **given | more)
    return kind(small_model(dropout=dropout), corpus, config)


@contextmanager
def waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What this thread does that would wait for a GPU."""
    watch, me = Watch(), threading.current_thread()
    with monkeypatch.context() as patch, watch:
        for name in ("tolist", "cpu", "numpy"):

            def noted(
                x: Tensor, *rest: Any, name: str = name, **more: Any
            ) -> Any:
                # time and stop, (2,), are the processor's own
                if threading.current_thread() is me and x.shape != (2,):
                    watch.waits.append(name)
                with torch.utils._python_dispatch._disable_current_modes():
                    return own[name](x, *rest, **more)

            patch.setattr(Tensor, name, noted)
        yield watch.waits


own: dict[str, Callable[..., Any]] = {
    name: getattr(Tensor, name) for name in ("tolist", "cpu", "numpy")
}


def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FastDropout, "forward", torch.nn.Dropout.forward)


@pytest.mark.parametrize("clip", [None, 1.0])
def test_between_two_looks_no_step_waits(
    monkeypatch: pytest.MonkeyPatch, clip: float | None
) -> None:
    as_on_a_gpu(monkeypatch)
    trainer = made(clip=clip)
    steps, counts = trainer.steps(), []
    next(steps)
    for _ in range(29):
        with waits(monkeypatch) as seen:
            next(steps)
        counts.append(len(seen))
    looks = [2 + i for i, n in enumerate(counts) if n]
    assert looks == [10, 20, 30]
    assert {counts[i - 2] for i in looks} == {1}


def test_a_log_looks_at_what_it_shows_and_at_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    as_on_a_gpu(monkeypatch)
    trainer = made()
    log = Log(tmp_path, trainer)
    steps, looks = trainer.steps(), []
    for step in range(1, 31):
        with waits(monkeypatch) as seen:
            log.step(next(steps))
        looks += [step] if seen else []
    log.close()
    assert looks == [1, 10, 20, 30]


def test_who_waits_at_every_step_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    as_on_a_gpu(monkeypatch)
    for steps in (made(Trainer).steps(), (p.loss for p in made().steps())):
        next(steps)
        for _ in range(5):
            with waits(monkeypatch) as seen:
                next(steps)
            assert seen


@pytest.mark.parametrize("scale", ["float32", "float16"])
def test_steps_are_the_same_whenever_their_numbers_are_read(
    scale: Any,
) -> None:
    """To the bit: numbers, weights, and the optimizer's state."""
    now, later = made(Trainer, precision=scale), made(precision=scale)
    first = [replace(p, seconds=0.0) for p in now.steps()]
    second = list(later.steps())  # read when all is over
    assert any(isinstance(p, _LateProgress) for p in second)
    for p, q in zip(first, second, strict=True):
        vars(q)["seconds"] = 0.0
        assert astuple(p)[:-1] == tuple(
            getattr(q, name) for name in vars(p) if name != "seconds"
        )
    for one, other in zip(parts(now)[:2], parts(later)[:2]):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[n], other[n]) for n in one)


@pytest.mark.parametrize("number", [math.nan, math.inf])
@pytest.mark.parametrize("read", ["by itself", "by the log", "to save"])
def test_what_is_not_finite_changes_nothing_however_late_it_is_read(
    monkeypatch: pytest.MonkeyPatch, number: float, read: str
) -> None:
    """The trainer is as it was before that step, and names its pairs."""
    plain = made(Trainer)
    steps = plain.steps()
    for _ in range(12):
        next(steps)
    before, batch = parts(plain), plain.batch_index
    pairs = sorted(plain.plan(plain.epoch)[batch].tolist())

    trainer = made()
    attempt = trainer.attempt

    def spoilt(work: Any, scale: float) -> Tensor:
        means = attempt(work, scale)
        if trainer.step == 12:
            next(trainer.model.parameters()).grad[0] = number  # type: ignore
        return means

    monkeypatch.setattr(trainer, "attempt", spoilt)
    with pytest.raises(TrainingError, match="step 13 has loss") as error:
        for progress in trainer.steps():
            if progress.step == 15 and read == "by the log":
                assert progress.loss
            if progress.step == 15 and read == "to save":
                trainer.weights()
    assert f"pairs {pairs[:8]}" in str(error.value)
    after = parts(trainer)
    for one, other in zip(before[:2], after[:2]):
        assert all(torch.equal(one[n], other[n]) for n in one)
    for name in ("step", "epoch", "batch_index", "tokens"):
        assert after[2][name] == before[2][name]


def test_a_run_that_ends_between_looks_is_looked_at() -> None:
    trainer = made(max_steps=13)

    def spoilt(*_: Any) -> Tensor:
        return torch.tensor(math.nan)

    steps = trainer.steps()
    for _ in range(12):
        next(steps)
    trainer.clip = spoilt  # type: ignore[method-assign]
    with pytest.raises(TrainingError, match="step 13"):
        next(steps)


def test_only_a_gpu_with_an_optimizer_that_skips_is_not_waited_for() -> (
    None
):
    trainer = made(Trainer)
    assert not trainer.late
    trainer.device = torch.device("cuda")
    assert trainer.late  # Adam, fused
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), 0.1)
    assert not trainer.late


# --- gradients that are not clipped ---------------------------------------


def test_gradients_are_rewritten_only_where_they_are_clipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = {}
    for clip in (None, 1e9, 0.01):
        trainer = made(Trainer, clip=clip)
        trainer.gradient(trainer.batch(trainer.plan(0)[0]))
        grads = [
            p.grad for p in trainer.model.parameters() if p.grad is not None
        ]
        versions = [g._version for g in grads]
        norm = trainer.clip()
        touched = [g._version for g in grads] != versions
        found[clip] = norm.item(), touched
    assert found[None] == (found[1e9][0], False)
    assert found[None][0] == found[0.01][0]
    assert found[0.01][1]


def test_a_model_without_gradients_has_none_to_measure() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    assert engine._gradient_norm([weight]).item() == 0.0
    weight.grad = torch.tensor([3.0, 4.0])
    assert engine._gradient_norm([weight]).item() == 5.0
