"""Chapter 19: several processes that train one model (gloo, on the CPU)."""

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
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from annotated import cli
from annotated.batches import Corpus, Sentences
from annotated.checkpoints import (
    checkpoints,
    load_checkpoint,
    save_checkpoint,
)
from annotated.engine import distributed as scale
from annotated.engine import runner
from annotated.engine.distributed import join
from annotated.engine.errors import (
    Elsewhere,
    RunError,
    Stopped,
    TrainingError,
)
from annotated.engine.runner import train_recipe
from annotated.engine.runs import read_metrics
from annotated.model import Transformer, TransformerConfig
from annotated.training import (
    Team,
    Trainer,
    TrainingConfig,
    copy_corpus,
    validate,
)
from tests.helpers import SHAPE, TINY, environment, forking

SHARDED = pytest.param(
    True,
    marks=pytest.mark.skipif(
        torch.__version__ < "2.9", reason="fully_shard as it is used here"
    ),
)
# without a bias: that of the keys has a gradient of 0, and Adam makes
# whole steps of its rounding errors
CONFIG = TrainingConfig(batch_tokens=60, warmup=20, max_steps=12)
CORPUS = copy_corpus(50, vocab=12, length=6)


# --- a team in processes of its own ---------------------------------------


def in_team(
    size: int, action: Callable[..., Any], *args: Any, shard: bool = False
) -> list[Any]:
    """What action(team, *args) returns, or raises, in each process."""
    return in_processes(size, joined, shard, action, *args)


def joined(shard: bool, action: Callable[..., Any], *args: Any) -> Any:
    with join("cpu", shard=shard, minutes=1) as (team, _):
        return action(team, *args)


def in_processes(
    size: int, action: Callable[..., Any], *args: Any
) -> list[Any]:
    """What action(*args) returns, or raises, in processes of torchrun."""
    with started(size, action, *args) as (processes, results):
        found = dict(results.get(timeout=60) for _ in processes)
        for process in processes:
            process.join(timeout=5)
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
    team: Team | None = None,
    config: TrainingConfig = CONFIG,
    corpus: Corpus = CORPUS,
    seed: int = 0,
    **changes: Any,
) -> Trainer:
    torch.manual_seed(seed)
    shape = SHAPE | {"dropout": 0.0, "bias": False} | changes
    model = Transformer(TransformerConfig(**shape))
    return Trainer(model, corpus, config, team)


def learn(
    team: Team | None = None,
    config: TrainingConfig = CONFIG,
    **changes: Any,
) -> tuple[list[float], list[float], int, dict[str, Any]]:
    """Losses, norms, tokens and the weights at the end."""
    trainer = new_trainer(team, config, **changes)
    history = list(trainer.steps())
    weights = {n: w.numpy().copy() for n, w in trainer.weights().items()}
    losses = [p.loss for p in history]
    return (
        losses,
        [p.gradient_norm for p in history],
        trainer.tokens,
        weights,
    )


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
    everyone = in_team(size, learn)
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
    for one in in_team(2, learn, config, shard=shard):
        assert_same_run(one, alone)


def test_a_batch_of_fewer_pairs_than_processes_is_no_accident() -> None:
    config = replace(CONFIG, batch_tokens=7)  # one pair, now and then two
    for one in in_team(3, learn, config):
        assert_same_run(one, learn(config=config))


def count_exchanges(team: Team, config: TrainingConfig) -> int:
    calls, sum_up = [], scale._sum_up

    def counted(gradients: torch.Tensor) -> Any:
        calls.append(len(gradients))
        return sum_up(gradients)

    scale._sum_up = counted
    list(new_trainer(team, config).steps())
    return len(calls)


def test_gradients_are_exchanged_once_a_step_whatever_the_pieces() -> None:
    counts = [
        in_team(2, count_exchanges, replace(CONFIG, micro_tokens=most))
        for most in (None, 10)
    ]
    assert counts[0] == counts[1]
    assert counts[0][0] >= CONFIG.max_steps


def evaluate(team: Team, size: int) -> dict[str, float]:
    config = replace(CONFIG, batch_tokens=size)
    trainer = new_trainer(team, dropout=0.3)
    return validate(trainer.model, CORPUS, config, team, trainer.loss)


@pytest.mark.parametrize("shard", [False, SHARDED])
def test_each_validates_a_part_and_all_know_the_whole(shard: bool) -> None:
    expected = evaluate(Team(), 60)
    for found in in_team(3, evaluate, 60, shard=shard):
        assert found == pytest.approx(expected, rel=1e-5)


def seconds_seen(team: Team) -> list[float]:
    trainer = new_trainer(team)
    seen = []
    for progress in trainer.steps():
        seen.append(progress.seconds)
        trainer.seconds += 100.0 * team.rank
    return seen


def test_the_clock_of_process_0_is_everyones() -> None:
    """So that a limit of time ends all at the same step."""
    found = in_team(2, seconds_seen)
    assert found[0] == found[1]
    assert found[0][-1] < 60


# --- checkpoints ----------------------------------------------------------


def half_way(team: Team, folder: str) -> list[str]:
    trainer = new_trainer(team)
    for progress in trainer.steps():
        if progress.step == 6:
            save_checkpoint(trainer, Path(folder), keep=1)
            break
    return [p.name for p in checkpoints(Path(folder))]


def go_on(team: Team | None, folder: str) -> Any:
    trainer = new_trainer(team, seed=9 if team is None else 0)
    load_checkpoint(trainer, checkpoints(Path(folder))[-1])
    losses = [p.loss for p in trainer.steps()]
    weights = {n: w.numpy().copy() for n, w in trainer.weights().items()}
    return losses, [], trainer.tokens, weights


@pytest.mark.parametrize("before", [1, 2])
@pytest.mark.parametrize("after", [1, 3])
@pytest.mark.parametrize("shard", [False, SHARDED])
def test_a_run_goes_on_with_another_number_of_processes(
    before: int, after: int, shard: bool, alone: Any, tmp_path: Path
) -> None:
    folder = str(tmp_path)
    if before == 1:
        half_way(Team(), folder)
    else:
        names = in_team(before, half_way, folder, shard=shard)
        assert names == [["00000006"]] * before
    if after == 1:
        later = [go_on(None, folder)]
    else:
        later = in_team(after, go_on, folder, shard=shard)
    expected = alone[0][6:], [], alone[2], alone[3]
    for one in later:
        assert_same_run(one, expected)


def take_up(team: Team, folder: str) -> dict[str, Any]:
    """Go on from the newest checkpoint, and write every second one."""
    trainer = new_trainer(team)
    if found := checkpoints(Path(folder)):
        load_checkpoint(trainer, found[-1])
    (Path(folder) / "going").touch()
    for progress in trainer.steps():
        time.sleep(0.03)
        if progress.step % 2 == 0:
            save_checkpoint(trainer, Path(folder), keep=2)
    return {n: w.numpy().copy() for n, w in trainer.weights().items()}


@pytest.mark.parametrize(
    "times", [3, pytest.param(20, marks=pytest.mark.exhaustive)]
)
def test_two_that_are_killed_again_and_again_end_as_one_that_was_not(
    times: int, alone: Any, tmp_path: Path
) -> None:
    """kill -9 at random moments, between the first step and the last."""
    going = tmp_path / "going"
    for _ in range(times):
        with started(2, joined, False, take_up, str(tmp_path)) as team:
            while not going.exists():
                assert all(process.is_alive() for process in team[0])
                time.sleep(0.01)
            time.sleep(random.uniform(0.0, 0.4))
        going.unlink()
    for weights in in_team(2, take_up, str(tmp_path)):
        for name, expected in alone[3].items():
            np.testing.assert_allclose(
                weights[name], expected, rtol=0, atol=1e-5, err_msg=name
            )


# --- accidents ------------------------------------------------------------


def with_other_data(team: Team) -> None:
    lines = [list(CORPUS.src[i]) for i in range(len(CORPUS))]
    if team.rank == 1:
        lines[7][0] = 4 + (lines[7][0] + 1) % 8
    src = Sentences.of(lines)
    new_trainer(team, corpus=Corpus(src, CORPUS.tgt))


def test_other_data_in_one_process_is_noticed_before_a_step() -> None:
    one, other = in_team(2, with_other_data)
    assert one[0] is TrainingError
    assert "process 1 has another training data than process 0" in one[1]
    assert other[0] is Elsewhere  # one line is enough


def with_other_options(team: Team) -> None:
    new_trainer(team, replace(CONFIG, rate=1.0 + team.rank))


def with_other_weights(team: Team) -> None:
    new_trainer(team, seed=team.rank)


@pytest.mark.parametrize(
    ("action", "what"),
    [(with_other_options, "settings"), (with_other_weights, "weights")],
)
def test_other_options_and_weights_are_noticed_too(
    action: Callable[[Team], None], what: str
) -> None:
    one, _ = in_team(2, action)
    assert f"process 1 has another {what}" in one[1]


def with_a_death(team: Team) -> None:
    for progress in new_trainer(team).steps():
        if progress.step == 5 and team.rank == 1:
            raise KeyError("its own reason")


def test_a_process_that_is_gone_is_missed_at_once() -> None:
    one, other = in_team(2, with_a_death)
    assert other[0] is KeyError
    assert one[0] is TrainingError
    assert "another process of this run has gone" in one[1]
    assert "--resume" in one[1]


def failing(team: Team, who: int) -> Any:
    def act() -> str:
        if team.rank == who:
            raise OSError("no space left")
        return f"done by {team.rank}"

    if who == 0:
        return team.first(act)
    return team.in_turn(act)


@pytest.mark.parametrize("who", [0, 1])
def test_a_failure_of_one_is_everyones(who: int) -> None:
    found = in_team(3, failing, who)
    assert found[who] == (OSError, "no space left")
    assert all(
        found[rank][0] is Elsewhere for rank in range(3) if rank != who
    )


def acting(team: Team) -> tuple[Any, Any]:
    return team.first(lambda: team.rank), team.in_turn(lambda: team.rank)


def test_process_0_acts_first() -> None:
    assert in_team(2, acting) == [(0, 0), (None, 1)]


# --- recipes and the command line -----------------------------------------


def recipe_with_signal(team: Team, folder: str) -> Any:
    note = runner._NoLog.step

    def and_signal(log: Any, progress: Any) -> None:
        note(log, progress)
        if progress.step == 7:  # of process 1 alone, and twice
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)

    runner._NoLog.step = and_signal
    try:
        train_recipe(TINY, Path(folder), device="cpu", team=team)
    except Stopped as stopped:
        return str(stopped), stopped.number
    return None


def test_a_signal_to_one_stops_all_with_a_checkpoint(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    found = in_team(2, recipe_with_signal, str(run))
    message = "stopped at step 7: --resume goes on"
    assert found == [(message, signal.SIGTERM)] * 2
    assert checkpoints(run / "checkpoints")[-1].name == "00000007"
    train_recipe(TINY, run, resume=True, device="cpu")
    train_recipe(TINY, tmp_path / "whole", device="cpu")
    curves = [
        [e["loss"] for e in read_metrics(folder) if "loss" in e]
        for folder in (run, tmp_path / "whole")
    ]
    assert curves[0] == pytest.approx(curves[1], abs=1e-4)


@pytest.mark.slow
def test_torchrun_starts_the_same_command(tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = (
        "-m torch.distributed.run --standalone --nproc-per-node 2 "
        f"-m annotated train copy --out {out} --device cpu "
        "--train-pairs 100 --num-encoder-layers 1 --num-decoder-layers 1 "
        "--d-model 16 --d-ff 16 --num-heads 2 --batch-tokens 200 "
        "--max-steps 4 --save-every 2"
    )
    done = subprocess.run(
        [sys.executable, *command.split()],
        env=environment(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)  # one process speaks
    assert summary["processes"] == 2
    assert summary["steps"] == 4
    assert done.stderr.count("in 2 processes") == 1


def command_line(*words: str) -> tuple[object, str]:
    """The exit code of the command, and its complaint."""
    sys.argv = ["annotated", *words]
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            cli.main()
        except SystemExit as stop:
            return stop.code, said.getvalue()
    return 0, said.getvalue()


def test_processes_share_a_test_set_and_one_of_them_scores_it(
    tmp_path: Path,
) -> None:
    recipe = TINY.changed(max_steps=10)
    runner.train_recipe(recipe, tmp_path / "run")
    lines = [" ".join("abcdef"[: 1 + i % 6]) for i in range(7)]
    (tmp_path / "text").write_text("\n".join(lines) + "\n")
    words = "evaluate --run run --src text --ref text --json --device cpu"
    where = [
        str(tmp_path / w) if w in ("run", "text") else w
        for w in words.split()
    ]
    (found,) = in_processes(1, printed, *where)
    shared, silent = in_processes(2, printed, *where)
    assert silent == ""
    one, two = json.loads(found), json.loads(shared)
    del one["seconds"], two["seconds"]
    assert one == two
    assert one["sentences"] == 7


def printed(*words: str) -> str:
    """What a command prints."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        cli.obey(words)
    return said.getvalue()


def test_a_refusal_is_told_by_one_process(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    line = f"train copy --device cpu --out {tmp_path}"
    (code, said), other = in_processes(2, command_line, *line.split())
    assert code == 2
    assert said.count("\n") == 1 and "is not empty" in said
    assert other == (2, "")


def test_shard_wants_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(RunError, match="use torchrun"):
        join("cpu", shard=True).__enter__()


def test_more_processes_than_gpus_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(RunError, match="but 1 GPUs: start 1"):
        scale._own_device("cuda")
