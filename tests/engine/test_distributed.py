"""Pages E4 and E5: several processes that train one model (gloo, CPU)."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from annotated import cli
from annotated.batches import Corpus, Sentences
from annotated.engine import distributed, runner
from annotated.engine import trainer as engine
from annotated.engine.checkpoints import checkpoints
from annotated.engine.checkpoints import restore as load_checkpoint
from annotated.engine.distributed import (
    all_gather,
    all_reduce_sum,
    process_group,
    rank,
    rank_zero_first,
    rank_zero_only,
    world_size,
)
from annotated.engine.errors import (
    PeerError,
    RunError,
    Stopped,
    TrainingError,
    UsageError,
)
from annotated.engine.packing import compile_layers
from annotated.engine.runner import train_recipe
from annotated.engine.runs import Run, read_metrics
from annotated.engine.trainer import RunConfig, Trainer
from annotated.model import Transformer, TransformerConfig
from annotated.schedule import cooldown_factor, learning_rate
from annotated.training import copy_corpus
from tests.helpers import SHAPE, TINY, environment, forking

SHARDED_ONLY = pytest.mark.skipif(
    torch.__version__ < "2.9", reason="fully_shard as it is used here"
)
SHARDED = pytest.param(True, marks=SHARDED_ONLY)
# without a bias: that of the keys has a gradient of 0, and Adam makes
# whole steps of its rounding errors
CONFIG = RunConfig(batch_tokens=60, warmup=20, max_steps=12)
CORPUS = copy_corpus(50, vocab=12, length=6)


# --- processes of their own ---------------------------------------


def together(
    size: int, action: Callable[..., Any], *args: Any
) -> list[Any]:
    """What action(*args) returns, or raises, in each process of a group."""
    return in_processes(size, joined, action, *args)


def joined(action: Callable[..., Any], *args: Any) -> Any:
    with process_group("cpu", minutes=30):
        return action(*args)


def in_processes(
    size: int, action: Callable[..., Any], *args: Any
) -> list[Any]:
    """What action(*args) returns, or raises, in processes of torchrun."""
    with started(size, action, *args) as (processes, results):
        found = dict(results.get(timeout=1800) for _ in processes)
        for process in processes:
            process.join(timeout=60)
    return [found[rank] for rank in range(size)]


@contextlib.contextmanager
def started(
    size: int, action: Callable[..., Any], *args: Any
) -> Iterator[tuple[list[Any], Any]]:
    """Processes as torchrun starts them, and where their results come; at
    the end they are killed.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    results = forking().Queue()
    processes = [
        forking().Process(
            target=member, args=(results, rank, size, port, action, args)
        )
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    try:
        yield processes, results
    finally:
        for process in processes:
            process.kill()
            process.join()


def member(
    results: Any,
    rank: int,
    size: int,
    port: str,
    action: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    torch.set_num_threads(1)
    result: Any = None
    try:
        result = action(*args)
    except Exception as error:
        result = type(error), str(error)
    results.put((rank, result))
    results.close()
    results.join_thread()


def new_trainer(
    config: RunConfig = CONFIG,
    corpus: Corpus = CORPUS,
    seed: int = 0,
    shard: bool = False,
    **changes: Any,
) -> Trainer:
    torch.manual_seed(seed)
    shape = SHAPE | {"dropout": 0.0, "bias": False} | changes
    model = Transformer(TransformerConfig(**shape))
    return Trainer(model, corpus, config, shard)


def learn(
    config: RunConfig = CONFIG, shard: bool = False
) -> tuple[list[float], list[float], int, dict[str, Any]]:
    """Losses, norms, tokens and the weights at the end."""
    trainer = new_trainer(config, shard=shard)
    history = list(trainer.steps())
    weights = weights_of(trainer)
    losses = [p.loss for p in history]
    return (
        losses,
        [p.gradient_norm for p in history],
        trainer.tokens,
        weights,
    )


def weights_of(trainer: Trainer) -> dict[str, Any]:
    """Copies of all weights, whole, in every process."""
    whole = distributed.full_tensor
    return {
        name: whole(p.detach()).numpy().copy()
        for name, p in trainer.model.named_parameters()
    }


def assert_same_run(one: Any, other: Any, atol: float = 2e-5) -> None:
    for a, b in zip(one[:2], other[:2], strict=True):
        assert a == pytest.approx(b, abs=10 * atol)
    assert one[2] == other[2]
    for name in one[3]:
        difference = abs(one[3][name] - other[3][name]).max()
        assert difference < atol, name


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


# --- accidents ------------------------------------------------------------


def with_other_data() -> None:
    lines = [list(CORPUS.src[i]) for i in range(len(CORPUS))]
    if rank() == 1:
        lines[7][0] = 4 + (lines[7][0] + 1) % 8
    src = Sentences.of(lines)
    new_trainer(corpus=Corpus(src, CORPUS.tgt))


def test_other_data_in_one_process_is_noticed_before_a_step() -> None:
    one, other = together(2, with_other_data)
    assert one[0] is TrainingError
    assert "process 1 differs from process 0 in its training data" in one[1]
    assert other[0] is PeerError  # one line is enough


def with_other_options() -> None:
    new_trainer(replace(CONFIG, rate=1.0 + rank()))


def with_other_weights() -> None:
    new_trainer(seed=rank())


@pytest.mark.parametrize(
    ("action", "what"),
    [(with_other_options, "settings"), (with_other_weights, "weights")],
)
def test_other_options_and_weights_are_noticed_too(
    action: Callable[[], None], what: str
) -> None:
    one, _ = together(2, action)
    assert f"differs from process 0 in its {what}" in one[1]


def with_a_death() -> None:
    for progress in new_trainer().steps():
        if progress.step == 5 and rank() == 1:
            raise KeyError("its own reason")


def test_a_process_that_is_gone_is_missed_at_once() -> None:
    one, other = together(2, with_a_death)
    assert other[0] is KeyError
    assert one[0] is TrainingError
    assert "another process of this run has died" in one[1]
    assert "--resume" in one[1]


def with_a_silence() -> None:
    """Process 1 does not die: it stands still, in the middle of a step."""
    Trainer.step_minutes = 0.05
    for progress in new_trainer().steps():
        if progress.step == 5 and rank() == 1:
            time.sleep(20)


def test_a_step_is_not_waited_for_as_long_as_a_preparation() -> None:
    # the group itself would wait, and both would go on
    one, other = together(2, with_a_silence)
    assert one[0] is TrainingError
    assert "does not respond" in one[1]
    assert other[0] is TrainingError


def with_a_number_that_is_none() -> None:
    trainer = new_trainer()
    for progress in trainer.steps():
        if progress.step == 3 and rank() == 1:
            with torch.no_grad():
                next(trainer.model.parameters()).fill_(torch.nan)


def test_a_number_that_is_none_is_told_by_one_process() -> None:
    one, other = together(2, with_a_number_that_is_none)
    assert one[0] is TrainingError
    assert "step 4 has loss nan" in one[1]
    assert other[0] is PeerError


def failing(who: int) -> Any:
    def act() -> str:
        if rank() == who:
            raise OSError("no space left")
        return f"done by {rank()}"

    if who == 0:
        return rank_zero_only(act)
    return rank_zero_first(act)


@pytest.mark.parametrize("who", [0, 1])
def test_a_failure_of_one_is_everyones(who: int) -> None:
    found = together(3, failing, who)
    assert found[who] == (OSError, "no space left")
    assert all(found[r][0] is PeerError for r in range(3) if r != who)


def talking() -> tuple[Any, ...]:
    return (
        rank_zero_only(rank),
        rank_zero_first(rank),
        all_reduce_sum(torch.tensor([rank() + 1.0])).item(),
        all_gather(rank()),
    )


def test_what_is_said_to_one_and_to_all() -> None:
    rest = 3.0, [0, 1]
    assert together(2, talking) == [(0, 0, *rest), (None, 1, *rest)]


def in_turn(folder: str) -> list[str]:
    """Who has acted before each process does; each can do it once."""

    def act() -> list[str]:
        before = sorted(path.name for path in Path(folder).iterdir())
        Path(folder, str(rank())).touch(exist_ok=False)
        return before

    return rank_zero_first(act)


def test_process_0_is_first_and_then_each_acts_once(tmp_path: Path) -> None:
    first, *others = together(3, in_turn, str(tmp_path))
    assert first == [] and all(seen[0] == "0" for seen in others)
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1", "2"}


def test_alone_nothing_is_said() -> None:
    numbers = torch.tensor([1.0])
    assert all_reduce_sum(numbers) is numbers
    assert talking() == (0, 0, 1.0, [0])


def saved_copies() -> tuple[list[int], list[int]]:
    """How large the tensors are that a process of DDP keeps of a
    checkpoint.
    """
    trainer = new_trainer(replace(CONFIG, max_steps=2))
    list(trainer.steps())
    weights = trainer.weights()
    moments = [
        value.numel()
        for name, value in trainer.moments().items()
        if not name.endswith(".step")
    ]
    return [w.numel() for w in weights.values()], moments


def test_equal_weights_are_copied_by_process_0_alone() -> None:
    """Eight processes of one machine would have eight copies of a model
    and its moments in memory, for one that is written.
    """
    (weights, moments), (none, nothing) = together(2, saved_copies)
    assert min(weights) > 0
    assert sorted(moments) == sorted([*weights, *weights])
    assert set(none) == set(nothing) == {0}


def saved_shards() -> tuple[list[int], list[int], int]:
    """How large the tensors are that a process keeps of a checkpoint, and
    of those that were whole on the way, how many stood at once.
    """
    trainer = new_trainer(replace(CONFIG, max_steps=2), shard=True)
    list(trainer.steps())
    alive, most = 0, 0
    whole = distributed.full_tensor

    def counted(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal alive, most
        if not hasattr(tensor, "full_tensor"):  # Adam's count of steps
            return whole(tensor)
        full = whole(tensor).clone()
        alive += 1
        most = max(most, alive)

        def gone() -> None:
            nonlocal alive
            alive -= 1

        weakref.finalize(full, gone)
        return full

    distributed.full_tensor = counted
    weights = trainer.weights()
    moments = [
        value.numel()
        for name, value in trainer.moments().items()
        if name.endswith(".exp_avg")
    ]
    return [w.numel() for w in weights.values()], moments, most


@SHARDED_ONLY
def test_whole_tensors_gather_on_process_0_alone() -> None:
    """The moments of all weights at once on each device would be what
    sharding is there to avoid.
    """
    (weights, moments, _), (none, nothing, most) = together(2, saved_shards)
    assert weights == moments
    assert min(weights) > 0
    assert set(none) == set(nothing) == {0}
    assert most == 1


# --- recipes and the command line -----------------------------------------


def recipe_with_signal(folder: str) -> Any:
    note = runner._Log.step

    def and_signal(log: Any, progress: Any) -> None:
        note(log, progress)
        if progress.step == 6 and rank() == 1:  # of one alone, and twice
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)

    runner._Log.step = and_signal
    try:
        train_recipe(TINY, Path(folder), device="cpu")
    except Stopped as stopped:
        return str(stopped), stopped.number
    return None


def test_a_signal_to_one_stops_all_with_a_checkpoint(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    found = together(2, recipe_with_signal, str(run))
    message = "stopped at step 7; continue with --resume"
    assert found == [(message, signal.SIGTERM)] * 2
    assert checkpoints(run / "checkpoints")[-1].name == "00000007"
    train_recipe(TINY, run, resume=True, device="cpu")
    train_recipe(TINY, tmp_path / "whole", device="cpu")
    curves = [
        [e["loss"] for e in read_metrics(folder) if "loss" in e]
        for folder in (run, tmp_path / "whole")
    ]
    assert curves[0] == pytest.approx(curves[1], abs=1e-4)


def launched(command: str) -> subprocess.CompletedProcess[str]:
    """What torchrun prints that starts the command twice."""
    torchrun = "-m torch.distributed.run --standalone --nproc-per-node 2"
    done = subprocess.run(
        [sys.executable, *torchrun.split(), *command.split()],
        env=environment(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
def test_torchrun_starts_the_same_command(tmp_path: Path) -> None:
    done = launched(
        f"-m annotated train copy --out {tmp_path} --device cpu "
        "--train-pairs 100 --num-encoder-layers 1 --num-decoder-layers 1 "
        "--d-model 16 --d-ff 16 --num-heads 2 --batch-tokens 200 "
        "--max-steps 4 --save-every 2"
    )
    summary = json.loads(done.stdout)  # one process speaks
    assert summary["processes"] == 2
    assert summary["steps"] == 4
    assert done.stderr.count("in 2 processes") == 1


DIES = """
import os, signal, torch
from annotated.engine.distributed import all_reduce_sum, process_group, rank

with process_group("cpu"):
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if first and rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    print(all_reduce_sum(torch.tensor(rank() + 1.0)).item(), flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    torch.__version__ < "2.5", reason="the launcher of 2.3 does not restart"
)
def test_started_again_processes_do_not_look_for_the_dead(
    tmp_path: Path,
) -> None:
    (tmp_path / "dies.py").write_text(DIES)
    done = launched(f"--max-restarts 1 {tmp_path / 'dies.py'}")
    assert done.stdout.count("3.0") == 2


def test_a_store_that_outlives_processes_has_a_fresh_part_for_the_next() -> (
    None
):
    store = torch.distributed.HashStore()
    for delays in ((0, 0, 0), (0, 0.1, 0.05), (0.1, 0, 0)):
        with ThreadPoolExecutor(3) as threads:

            def join(me: int, delays: Any = delays) -> Any:
                time.sleep(delays[me])
                return distributed._fresh_part(store, me, 3)

            joined = list(threads.map(join, range(3)))
        # what one writes the others read, and nobody has written before
        assert not joined[0].check(["address"])
        joined[0].set("address", "here")
        assert all(part.get("address") == b"here" for part in joined)


def command_line(*words: str) -> tuple[object, str]:
    """The exit code of the command, and its complaint."""
    sys.argv = ["annotated", *words]
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            cli.main()
        except SystemExit as stop:
            return stop.code, said.getvalue()
    return 0, said.getvalue()


def test_a_refusal_is_told_by_one_process(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    line = f"train copy --device cpu --out {tmp_path}"
    (code, said), other = in_processes(2, command_line, *line.split())
    assert code == 2
    assert said.count("\n") == 1 and "is not empty" in said
    assert other == (2, "")


def test_shard_wants_several(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="use torchrun"):
        train_recipe(TINY, tmp_path / "run", shard=True)
    assert not (tmp_path / "run").exists()


def test_more_processes_than_gpus_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(RunError, match="but 1 GPUs: start 1"):
        distributed._own_device("cuda")


def test_one_gpu_for_all_processes_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """--device cuda:1 would put every process on the second GPU."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with (
        pytest.raises(UsageError, match="cuda:1 .* 2 processes: .*cuda$"),
        process_group("cuda:1"),
    ):
        pass


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a group of two is asked for that is never formed."""
    found: dict[str, Any] = {}

    def meet(url: str, timeout: timedelta) -> Iterator[Any]:
        found.update(url=url, waits=timeout)
        yield torch.distributed.HashStore(), 0, 1

    def form(backend: str, **more: Any) -> None:
        found.update(more, backend=backend)

    module = sys.modules["torch.distributed.rendezvous"]
    monkeypatch.setattr(module, "rendezvous", meet)
    monkeypatch.setattr(torch.distributed, "init_process_group", form)
    monkeypatch.setattr(
        torch.distributed,
        "destroy_process_group",
        lambda: found.update(ended=True),
    )
    monkeypatch.setenv("WORLD_SIZE", "2")
    return found


@pytest.mark.parametrize(
    ("device", "gpus", "own", "backend"),
    [
        ("cpu", 0, "cpu", "gloo"),
        (None, 0, "cpu", "gloo"),
        ("cpu", 2, "cpu", "gloo"),
        (None, 2, "cuda:1", "cpu:gloo,cuda:nccl"),
        ("cuda", 2, "cuda:1", "cpu:gloo,cuda:nccl"),
    ],
)
def test_each_process_has_its_device_and_numbers_their_carrier(
    asked: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    device: str | None,
    gpus: int,
    own: str,
    backend: str,
) -> None:
    taken: list[int] = []
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    with process_group(device, minutes=7) as found:
        assert found == own and "ended" not in asked
    assert taken == ([1] if own == "cuda:1" else [])
    assert (asked["backend"], asked["ended"]) == (backend, True)
    assert (asked["url"], asked["waits"]) == ("env://", timedelta(0, 420))
    assert (asked["rank"], asked["world_size"]) == (0, 1)
    assert asked["timeout"] == asked["waits"]
    assert isinstance(asked["store"], torch.distributed.PrefixStore)


def test_a_group_is_waited_for_an_hour(asked: dict[str, Any]) -> None:
    with process_group("cpu"):
        pass
    assert asked["timeout"] == timedelta(hours=1)


def test_a_group_that_cannot_be_formed_is_told_in_a_line(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def form(*_: Any, **__: Any) -> None:
        raise RuntimeError("the port is taken\nTraceback of C++")

    monkeypatch.setattr(torch.distributed, "init_process_group", form)
    message = "^cannot form a process group: the port is taken$"
    with pytest.raises(RunError, match=message), process_group("cpu"):
        pass


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RuntimeError("[gloo] lost\nat x.cc\nat y"), "([gloo] lost)"),
        (RuntimeError("Connection " + "x" * 200), f"({'x' * 149})"),
        (RuntimeError("shapes do not match"), None),
        (TrainingError("process 1 timed out"), None),
        (KeyError("socket"), None),
    ],
)
def test_a_lost_connection_is_told_from_other_errors(
    error: Exception, told: str | None
) -> None:
    with pytest.raises(type(error)) as found, distributed._in_touch():
        raise error
    if told is None:
        assert found.value is error
        return
    assert isinstance(found.value, TrainingError)
    assert str(found.value).endswith(told.replace("(x", "(Connection x"))
    assert found.value.__cause__ is error


def test_numbers_go_to_the_group_that_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That of a step, which does not wait for an hour."""

    def reduce(tensor: torch.Tensor, group: Any) -> None:
        tensor.add_(len(group))

    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "all_reduce", reduce)
    mine, group = torch.tensor([1.0]), cast(Any, "step")
    assert all_reduce_sum(mine, group).item() == 5.0
    assert mine.item() == 1.0


class Wrapped:
    """Stands for DistributedDataParallel; told apart by what it takes."""

    no_sync = "no sync"

    def register_comm_hook(self, state: Any, hook: Any) -> None:
        self.hook = hook


class Newer(Wrapped):
    def __init__(self, module: Any, *, process_group: Any,
                 gradient_as_bucket_view: bool,
                 forward_sync_buffers: bool):  # fmt: skip
        self.given = process_group, gradient_as_bucket_view
        self.buffers = forward_sync_buffers


class Older(Wrapped):
    def __init__(self, module: Any, *, process_group: Any,
                 gradient_as_bucket_view: bool,
                 broadcast_buffers: bool):  # fmt: skip
        self.given = process_group, gradient_as_bucket_view
        self.buffers = broadcast_buffers


@pytest.mark.parametrize("kind", [Newer, Older])
def test_gradients_are_summed_in_place_and_buffers_stay(
    kind: type[Wrapped], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the argument is called: torch has given it a new name."""
    asked: dict[str, Any] = {}
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result([3.0])

    def reduce(gradients: Any, **more: Any) -> Any:
        asked.update(more, gradients=gradients)
        return SimpleNamespace(get_future=lambda: future)

    monkeypatch.setattr(distributed, "DistributedDataParallel", kind)
    monkeypatch.setattr(torch.distributed, "all_reduce", reduce)
    group = cast(Any, "of a step")
    made: Any
    made, no_sync = distributed.data_parallel(torch.nn.ReLU(), group)
    assert made.given == (group, True) and made.buffers is False
    assert no_sync == "no sync"
    bucket = SimpleNamespace(buffer=lambda: "gradients")
    assert made.hook(None, bucket).wait() == 3.0
    assert asked == {
        "gradients": "gradients", "group": group, "async_op": True
    }  # fmt: skip


@pytest.mark.parametrize(
    ("version", "old"),
    [
        ("2.3.1", True),
        ("2.8.1+cpu", True),
        pytest.param("2.9", False, marks=SHARDED_ONLY),
    ],
)
def test_an_old_torch_does_not_shard(
    version: str, old: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = type(torch.__version__)(version)
    monkeypatch.setattr(torch, "__version__", number)
    model, group = torch.nn.ReLU(), cast(Any, "of a step")
    # without parameters there is nothing to ask for a device
    kind: type[Exception] = RunError if old else StopIteration
    with pytest.raises(kind, match="not 2.[38].1" if old else "^$"):
        distributed.data_parallel(model, group, [model])


@SHARDED_ONLY
def test_a_part_is_cut_where_the_weight_lies_and_nothing_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cut = []
    monkeypatch.setattr(
        import_module("torch.distributed.tensor"),
        "distribute_tensor",
        lambda *args, **more: cut.append((args, more)) or "part",
    )
    whole, like = (
        torch.ones(4),
        SimpleNamespace(
            full_tensor=None,
            device="meta",
            device_mesh="mesh",
            placements="rows",
        ),
    )
    assert distributed.own_part(whole, like) == "part"
    [((given, *rest), more)] = cut
    assert given.is_meta and rest == ["mesh", "rows"]
    assert more == {"src_data_rank": None}
    assert distributed.own_part(whole, torch.ones(2)) is whole


class Sharded(torch.nn.Module):
    """Stands for a module that FSDP has taken; notes what it is told."""

    def __init__(self, *layers: torch.nn.Module):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.layers = torch.nn.ModuleList(layers)
        self.told: list[Any] = []

    def set_gradient_divide_factor(self, factor: float) -> None:
        self.told.append(("divided by", factor))

    def set_force_sum_reduction_for_comms(self, enable: bool) -> None:
        self.told.append(("summed", enable))

    def set_requires_gradient_sync(self, requires: bool) -> None:
        self.told.append(("exchanged", requires))


@SHARDED_ONLY
def test_shards_sum_their_gradients_after_the_last_micro_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[Any] = []

    def shard(module: Any, mesh: Any) -> Any:
        taken.append((module, mesh))
        return module

    fsdp = import_module("torch.distributed.fsdp")
    meshes = import_module("torch.distributed.device_mesh")
    monkeypatch.setattr(fsdp, "FSDPModule", Sharded)
    monkeypatch.setattr(fsdp, "fully_shard", shard)
    mesh = SimpleNamespace(from_group=lambda *about: about)
    monkeypatch.setattr(meshes, "DeviceMesh", mesh)
    layers, group = [Sharded(), Sharded()], cast(Any, "of a step")
    model = Sharded(*layers, torch.nn.ReLU())
    same, no_sync = distributed.data_parallel(model, group, layers)
    assert same is model
    # the layers first, so that the whole takes what is left
    assert taken == [(one, (group, "cpu")) for one in (*layers, model)]
    sums = [("divided by", 1.0), ("summed", True)]
    assert all(one.told == sums for one in (*layers, model))
    with no_sync():
        assert model.told == [*sums, ("exchanged", False)]
    assert model.told[-1] == ("exchanged", True)


def groups_of_shards() -> bool:
    trainer = new_trainer(shard=True)
    own: Any = trainer.model.named_parameters()
    return all(p.device_mesh.get_group() is trainer.group for _, p in own)


@SHARDED_ONLY
def test_shards_are_gathered_in_the_group_of_a_step() -> None:
    """The other one would wait for a process that is lost for an hour."""
    assert together(2, groups_of_shards) == [True, True]


WITHOUT = """
import sys, torch, torch.distributed as dist
for name in ("ProcessGroup", "Store", "PrefixStore", "init_process_group"):
    delattr(dist, name)
dist.is_available = lambda: False
sys.modules["torch.distributed.rendezvous"] = None
from annotated.engine.distributed import all_gather, process_group, rank
with process_group("cpu") as own:
    print(own, rank(), all_gather(3))
"""


def test_a_torch_without_distributed_trains_alone() -> None:
    """There are builds of it, some for macOS among them."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT],
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.stdout == "cpu 0 [3]\n", done.stderr


# --- evaluation -----------------------------------------------------------


def evaluated(run: str, text: str) -> tuple[str, list[int]]:
    """What evaluate prints, and how many lines it gave to its search."""
    counts, translate = [], Run.translate

    def counting(self: Run, lines: Any, *args: Any, **more: Any) -> Any:
        counts.append(len(lines))
        return translate(self, lines, *args, **more)

    said, line = io.StringIO(), f"--src {text} --ref {text} --json"
    Run.translate = counting  # type: ignore[method-assign]
    try:
        with contextlib.redirect_stdout(said):
            cli.dispatch(
                f"evaluate --run {run} --against {run} {line} --device cpu "
                "--precision float32 --extra 2 --beam 2".split()
            )
    finally:
        Run.translate = translate  # type: ignore[method-assign]
    return said.getvalue(), counts


def test_evaluation_is_shared_and_told_once(tmp_path: Path) -> None:
    train_recipe(TINY, tmp_path / "run", device="cpu")
    text = tmp_path / "text"
    text.write_text(
        "".join(f"{'a b c d '[: 2 * i]}\n" for i in (1, 2, 3, 4, 2))
    )
    call = str(tmp_path / "run"), str(text)
    printed, counts = zip(*in_processes(2, evaluated, *call))
    assert counts == ([3, 3], [2, 2])  # this run's and the other's
    assert printed[1] == ""
    alone, _ = evaluated(*call)
    shared, whole = map(json.loads, (printed[0], alone))
    for found in (shared, whole):
        assert found.pop("seconds") >= 0
    assert shared == whole
    assert whole["sentences"] == 5
