"""Pages E4 and E5: several processes that train one model (gloo, CPU)."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from annotated.engine import trainer as engine
from annotated.engine.checkpoints import checkpoints
from annotated.engine.checkpoints import restore as load_checkpoint
from annotated.engine.distributed import (
    rank,
    rank_zero_only,
    world_size,
)
from annotated.engine.packing import compile_layers
from annotated.engine.trainer import RunConfig
from annotated.schedule import cooldown_factor, learning_rate
from tests.engine.groups import (
    CONFIG,
    CORPUS,
    SHARDED,
    assert_same_run,
    joined,
    learn,
    new_trainer,
    started,
    together,
    weights_of,
)
from tests.helpers import SHAPE


@pytest.fixture(scope="module")
def alone() -> Any:
    return learn()


# --- the same run ---------------------------------------------------------


@pytest.mark.parametrize("size", [2, 4])
def test_the_loss_curve_does_not_depend_on_how_many_train(
    size: int, alone: Any
) -> None:
    everyone = together(size, learn)
    for one in everyone:
        assert_same_run(one, alone)
    first, *others = everyone
    for other in others:  # among themselves they agree to the last bit
        assert other[0] == first[0]
        assert all((other[3][n] == first[3][n]).all() for n in first[3])


@pytest.mark.parametrize("shard", [False, SHARDED])
def test_nor_on_the_pieces_in_which_each_takes_its_share(
    shard: bool, alone: Any
) -> None:
    config = replace(CONFIG, micro_tokens=10)
    for one in together(2, learn, config, shard):
        assert_same_run(one, alone)


def learn_compiled(shard: bool) -> Any:
    """Traced as for a compiler, which need not be here."""
    vars(engine)["compile_layers"] = partial(
        compile_layers, backend="eager"
    )
    return learn(replace(CONFIG, compile=True), shard)


@pytest.mark.parametrize("shard", [False, SHARDED])
def test_nor_on_whether_layers_are_compiled(
    shard: bool, alone: Any
) -> None:
    for one in together(2, learn_compiled, shard):
        assert_same_run(one, alone)


def learn_in_float16(shard: bool) -> tuple[list[float], int]:
    """Losses, and how often a step overflowed: it begins too large."""
    trainer = new_trainer(replace(CONFIG, precision="float16"), shard=shard)
    assert trainer.scaling is not None
    trainer.scaling.scale = 2.0**40
    losses = [p.loss for p in trainer.steps()]
    return losses, trainer.scaling.overflows


@pytest.mark.parametrize("shard", [False, SHARDED])
def test_in_float16_all_take_an_overflowing_step_again(shard: bool) -> None:
    (losses, fell), other = together(2, learn_in_float16, shard)
    assert (losses, fell) == other
    alone, _ = learn_in_float16(False)
    assert losses == pytest.approx(alone, rel=0.02)
    assert fell > 5


def held(
    precision: Any,
) -> tuple[list[int], list[int], set[str], list[float]]:
    """Of a sharded trainer: its numbers of each weight, those of each
    gradient before the second micro-batch of a step, the types in which a
    layer meets its weights, and the losses.
    """
    config = replace(
        CONFIG, micro_tokens=9, precision=precision, max_steps=4
    )
    trainer: Any = new_trainer(config, shard=True)
    gradients: list[int] = []
    calls: list[int] = []
    types: set[str] = set()

    def watched(*_: Any) -> None:
        calls.append(trainer.step)
        if calls.count(trainer.step) == 2 and not gradients:
            gradients.extend(
                0 if p.grad is None else p.grad.to_local().numel()
                for p in trainer.model.parameters()
            )

    trainer.loss.register_forward_pre_hook(watched, prepend=True)
    layer = trainer.model.encoder.layers[0].attention
    layer.register_forward_pre_hook(
        lambda part, _: types.add(str(part.w_q.weight.dtype))
    )
    weights = [p.to_local().numel() for p in trainer.model.parameters()]
    losses = [p.loss for p in trainer.steps()]
    assert {p.dtype for p in trainer.model.parameters()} == {torch.float32}
    return weights, gradients, types, losses


@pytest.mark.skipif(torch.__version__ < "2.9", reason="FSDP of old torch")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_each_holds_its_part_of_weights_and_gradients(
    precision: Any,
) -> None:
    """Also between two micro-batches; and fetches a layer in 16 bits."""
    config = replace(
        CONFIG, micro_tokens=9, precision=precision, max_steps=4
    )
    alone = [p.loss for p in new_trainer(config).steps()]
    for weights, gradients, types, losses in together(2, held, precision):
        assert gradients == weights
        assert types == {f"torch.{precision}"}
        assert losses == pytest.approx(alone, rel=1e-3)


def test_a_batch_of_fewer_pairs_than_processes_is_no_accident() -> None:
    config = replace(CONFIG, batch_tokens=7)  # one pair, now and then two
    for one in together(3, learn, config):
        assert_same_run(one, learn(config))


def count_exchanges(config: RunConfig) -> tuple[int, int]:
    """Of gradients, in the background, and of numbers, while all wait."""
    calls, all_reduce = [], torch.distributed.all_reduce

    def counted(*args: Any, async_op: bool = False, **kwargs: Any) -> Any:
        calls.append(async_op)
        return all_reduce(*args, async_op=async_op, **kwargs)

    trainer = new_trainer(config)
    torch.distributed.all_reduce = counted
    list(trainer.steps())
    return sum(calls), len(calls) - sum(calls)


def test_a_step_is_one_exchange_of_gradients_and_one_of_numbers() -> None:
    """However many micro-batches there are."""
    for most in (None, 10):
        config = replace(CONFIG, micro_tokens=most)
        for gradients, numbers in together(2, count_exchanges, config):
            # torch puts the first backward pass into more than one bucket
            assert gradients in (CONFIG.max_steps, CONFIG.max_steps + 1)
            assert numbers == CONFIG.max_steps


def evaluate(size: int, shard: bool = False) -> dict[str, float]:
    config = replace(CONFIG, batch_tokens=size)
    return new_trainer(config, dropout=0.3, shard=shard).validate(CORPUS)


@pytest.mark.parametrize("shard", [False, SHARDED])
def test_each_validates_a_part_and_all_know_the_whole(shard: bool) -> None:
    expected = evaluate(60)
    for found in together(3, evaluate, 60, shard):
        assert found == pytest.approx(expected, rel=1e-5)


def seconds_seen() -> list[float]:
    trainer = new_trainer()
    seen = []
    for progress in trainer.steps():
        seen.append(progress.seconds)
        trainer.clock += 100.0 * rank()
    return seen


def test_the_clock_of_process_0_is_everyones() -> None:
    """So that a limit of time ends all at the same step."""
    found = together(2, seconds_seen)
    assert found[0] == found[1]
    assert found[0][-1] < 60


TIMED = replace(
    CONFIG, max_steps=100, warmup=5, cooldown=40, max_minutes=50 / 60
)


def timed(folder: Path, last: int = 0, resume: bool = False) -> Any:
    """A run of 50 of process 0's seconds, one a step; the clocks of the
    others are wrong. It saves and ends after step last, if there is one.
    """
    now, readings = [0.0], [0]

    def clock() -> float:
        readings[0] += 1
        if readings[0] % 4 == 3:  # a step's work, the second of its two
            now[0] += 1.0 + 6.5 * rank()
        return now[0]

    vars(engine)["time"] = SimpleNamespace(perf_counter=clock)
    trainer = new_trainer(TIMED, dropout=0.1)
    if resume:
        load_checkpoint(trainer, checkpoints(folder)[-1])
    rates = {}
    for progress in trainer.steps():
        rates[progress.step] = progress.rate
        if progress.step == last:
            trainer.save(folder)
            break
    return rates, trainer.ending(), weights_of(trainer)


def timed_runs(folder: str) -> dict[int, Any]:
    """A whole run, and others that were stopped at a step and resumed."""
    runs = {0: timed(Path(folder))}
    for last in (12, 40):
        place = Path(folder) / str(last)
        rank_zero_only(place.mkdir)
        begun, ended = timed(place, last), timed(place, resume=True)
        runs[last] = begun[0] | ended[0], *ended[1:]
    return runs


@pytest.fixture(scope="module")
def timed_by_two(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return together(2, timed_runs, str(tmp_path_factory.mktemp("timed")))


@pytest.mark.parametrize("last", [0, 12, 40])
def test_minutes_end_the_run_at_the_same_step_of_all(
    timed_by_two: Any, last: int
) -> None:
    """And the cool-down, which begins in time for it, is one for all."""
    (rates, ending, weights), other = (runs[last] for runs in timed_by_two)
    assert other[:2] == (rates, ending)
    assert all((other[2][n] == weights[n]).all() for n in weights)
    steps, cooldown, _ = ending["now"]
    assert 48 <= steps <= 50 and [*rates] == [*range(1, steps + 1)]
    assert ending["plan"][:2] == [100, 40] and cooldown <= 27
    for step, rate in rates.items():
        full = learning_rate(step, SHAPE["d_model"], TIMED.warmup)
        factor = cooldown_factor(step, steps, cooldown)
        assert rate == pytest.approx(full * factor)


def test_a_run_that_is_cooling_down_resumes_to_the_same_end(
    timed_by_two: Any,
) -> None:
    """One that is not yet measures its pace again, and then decides."""
    for runs in timed_by_two:
        assert runs[40][:2] == runs[0][:2]
        for name, weight in runs[0][2].items():
            assert (runs[40][2][name] == weight).all(), name


# --- checkpoints ----------------------------------------------------------


def half_way(folder: str, shard: bool = False) -> list[str]:
    trainer = new_trainer(replace(CONFIG, keep=1), shard=shard)
    for progress in trainer.steps():
        if progress.step == 6:
            trainer.save(Path(folder))
            break
    return [p.name for p in checkpoints(Path(folder))]


def go_on(folder: str, shard: bool = False) -> Any:
    trainer = new_trainer(seed=9 if world_size() == 1 else 0, shard=shard)
    load_checkpoint(trainer, checkpoints(Path(folder))[-1])
    losses = [p.loss for p in trainer.steps()]
    return losses, [], trainer.tokens, weights_of(trainer)


@pytest.mark.parametrize("before", [1, 2])
@pytest.mark.parametrize("after", [1, 3])
@pytest.mark.parametrize("shard", [False, SHARDED])
def test_a_run_goes_on_with_another_number_of_processes(
    before: int, after: int, shard: bool, alone: Any, tmp_path: Path
) -> None:
    folder = str(tmp_path)
    if before == 1:
        half_way(folder)
    else:
        names = together(before, half_way, folder, shard)
        assert names == [["00000006"]] * before
    if after == 1:
        later = [go_on(folder)]
    else:
        later = together(after, go_on, folder, shard)
    expected = alone[0][6:], [], alone[2], alone[3]
    for one in later:
        assert_same_run(one, expected)


def take_up(folder: str) -> dict[str, Any]:
    """Go on from the newest checkpoint, and write every second one."""
    trainer = new_trainer(replace(CONFIG, keep=2, save_every=2))
    if found := checkpoints(Path(folder)):
        load_checkpoint(trainer, found[-1])
    (Path(folder) / "going").touch()
    for progress in trainer.steps():
        time.sleep(0.03)
        if progress.step % 2 == 0:
            trainer.save(Path(folder))
    return weights_of(trainer)


@pytest.mark.parametrize(
    "times", [3, pytest.param(20, marks=pytest.mark.exhaustive)]
)
def test_two_that_are_killed_again_and_again_end_as_one_that_was_not(
    times: int, alone: Any, tmp_path: Path
) -> None:
    """kill -9 at random moments, between the first step and the last."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"random moments of seed {seed}")
    moments = random.Random(seed)
    going = tmp_path / "going"
    for _ in range(times):
        with started(2, joined, take_up, str(tmp_path)) as two:
            while not going.exists():
                assert all(process.is_alive() for process in two[0])
                time.sleep(0.01)
            time.sleep(moments.uniform(0.0, 0.4))
        going.unlink()
    for weights in together(2, take_up, str(tmp_path)):
        for name, expected in alone[3].items():
            np.testing.assert_allclose(
                weights[name], expected, rtol=0, atol=1e-5, err_msg=name
            )
