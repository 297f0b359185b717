"""Chapter 15, page E10: a run that is stopped or killed and taken up."""

import errno
import os
import random
import shutil
import signal
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from annotated import checkpoints as plain
from annotated import training
from annotated.checkpoints import save_weights
from annotated.engine import trainer as engine
from annotated.engine.checkpoints import (
    checkpoints,
)
from annotated.engine.checkpoints import restore as load_checkpoint
from annotated.engine.errors import TrainingError
from annotated.engine.tensors import load_weights
from annotated.training import copy_corpus
from tests.engine.trainings import (
    CONFIG,
    EPOCH,
    assert_same,
    assert_whole,
    new_trainer,
    run,
    save_checkpoint,
    weights,
)
from tests.helpers import Killed, forking

# --- taken up as if nothing had happened ----------------------------------


def test_the_run_spans_several_epochs():
    assert 2 < EPOCH < CONFIG.max_steps / 2


@pytest.mark.parametrize("stop", range(CONFIG.max_steps + 1))
def test_a_run_that_was_stopped_ends_with_the_same_weights(
    stop, uninterrupted, tmp_path
):
    """At any step, the last of an epoch and the first among them."""
    trainer = new_trainer()
    run(trainer, stop)
    place = save_checkpoint(trainer, tmp_path, keep=1)
    torch.rand(stop)  # the later process has a past of its own
    trainer = new_trainer(seed=99)
    load_checkpoint(trainer, place)
    assert trainer.step == stop
    run(trainer)
    expected, tokens = uninterrupted
    assert_same(weights(trainer), expected)
    assert trainer.tokens == tokens


@pytest.mark.slow  # its threads wait for each other
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_it_is_so_on_any_number_of_threads(threads, tmp_path):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        whole, first = new_trainer(), new_trainer()
        run(whole)
        run(first, 7)
        place = save_checkpoint(first, tmp_path, keep=1)
        second = new_trainer(seed=5)
        load_checkpoint(second, place)
        run(second)
        assert_same(weights(second), weights(whole))
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(torch.__version__ < "2.4", reason="needs fused Adam")
@pytest.mark.parametrize("kind", [training.Trainer, engine.Trainer])
@pytest.mark.parametrize("saved", [True, False])
def test_the_optimizers_kernel_is_the_machines_not_the_checkpoints(
    kind, saved, tmp_path
):
    """A run may go on where Adam's fused kernel is not, or begin there."""

    def begun(fused):
        trainer = new_trainer(kind=kind)
        trainer.optimizer.param_groups[0]["fused"] = fused
        return trainer

    first, second, other = begun(saved), begun(not saved), begun(saved)
    run(first, 3)
    place = save_checkpoint(first, tmp_path)
    assert "fused" not in (place / "state.json").read_text()
    load_checkpoint(second, place)
    assert second.optimizer.param_groups[0]["fused"] is not saved
    run(second, 6)
    run(other, 6)
    for name, weight in weights(second).items():
        # the gradient of a key's bias is 0 but for rounding
        if not name.endswith("w_k.bias"):
            torch.testing.assert_close(
                weight, weights(other)[name], rtol=1e-4, atol=1e-5
            )


def test_stopped_many_times_it_is_still_the_same(uninterrupted, tmp_path):
    trainer = new_trainer()
    for stop in (2, 3, 8, 15):
        run(trainer, stop)
        place = save_checkpoint(trainer, tmp_path, keep=1)
        trainer = new_trainer(seed=stop)
        load_checkpoint(trainer, place)
    run(trainer)
    assert_same(weights(trainer), uninterrupted[0])


def test_the_seconds_go_on_counting(saved):
    trainer, place = saved
    spent = trainer.seconds
    config = replace(CONFIG, max_minutes=spent / 60 / 2)
    later = new_trainer(config=config)
    load_checkpoint(later, place)
    assert list(later.steps()) == []


@pytest.mark.parametrize("change", [{"batch_tokens": 30}, {"seed": 1}])
def test_a_run_with_other_batches_is_refused(saved, change):
    _, place = saved
    other = new_trainer(config=replace(CONFIG, **change))
    with pytest.raises(TrainingError, match=next(iter(change))):
        load_checkpoint(other, place)


def test_a_corpus_that_has_changed_is_refused(saved):
    """As many pairs and tokens as before, and one word is another."""
    trainer, place = saved
    changed = copy_corpus(40, vocab=12, length=5)
    changed.src.ids[17] = 4 + (changed.src.ids[17] + 1) % 8
    other = engine.Trainer(trainer.model, changed, CONFIG)
    with pytest.raises(TrainingError, match="would not be the same"):
        load_checkpoint(other, place)


def test_another_corpus_is_refused(saved):
    trainer, place = saved
    other = engine.Trainer(
        trainer.model, copy_corpus(41, vocab=12, length=5), CONFIG
    )
    with pytest.raises(TrainingError, match="would not be the same"):
        load_checkpoint(other, place)


def test_the_plain_trainer_goes_on_as_exactly(tmp_path):
    plain = {"kind": training.Trainer}
    whole = new_trainer(**plain)
    run(whole)
    for stop in (1, EPOCH, EPOCH + 1, 11):
        trainer = new_trainer(**plain)
        run(trainer, stop)
        place = save_checkpoint(trainer, tmp_path, keep=1)
        trainer = new_trainer(seed=99, **plain)
        load_checkpoint(trainer, place)
        run(trainer)
        assert_same(weights(trainer), weights(whole))
        assert trainer.tokens == whole.tokens


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({}, []),
        ({"micro_tokens": 20}, ["micro_tokens"]),
        ({"compile": True}, ["compile"]),
    ],
)
def test_what_gives_dropout_other_noise_is_noticed(
    saved, monkeypatch, change, named
):
    monkeypatch.setattr(engine, "compile_layers", lambda model: None)
    _, place = saved
    later = new_trainer(config=replace(CONFIG, **change))
    load_checkpoint(later, place)
    assert later.changed == named


def test_what_adds_up_in_another_order_is_noticed(saved, monkeypatch):
    """Threads, device and version, as another machine has them."""
    _, place = saved
    later = new_trainer()  # the optimizer's kernel depends on the version
    threads = torch.get_num_threads() + 1
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    cpu = torch.backends.cpu
    monkeypatch.setattr(cpu, "get_cpu_capability", lambda: "ABACUS")
    load_checkpoint(later, place)
    assert later.changed == ["threads", "device", "torch"]


# --- killed and out of space ----------------------------------------------


@contextmanager
def running(action, *args):
    """A process that does action(say, *args), and what it says."""
    here, there = forking().Pipe()
    process = forking().Process(target=action, args=(there, *args))
    process.start()
    there.close()  # so that a death there is noticed here
    try:
        yield process, here
    finally:
        process.kill()
        process.join(60)


@pytest.fixture
def moments():
    """Random moments; where the test fails, the seed is printed."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"random moments of seed {seed}")
    return random.Random(seed)


def save_for_ever(say, folder):
    trainer = new_trainer()
    run(trainer, 2)
    save_checkpoint(trainer, folder, keep=1)
    say.send("ready")
    while True:
        trainer.step += 1
        save_checkpoint(trainer, folder, keep=2)


def train_on(say, folder):
    """Take up the newest checkpoint, and write every second one."""
    trainer = new_trainer()
    if found := checkpoints(folder):
        load_checkpoint(trainer, found[-1])
    say.send("ready")
    for progress in trainer.steps():
        if progress.step % 2 == 0:
            save_checkpoint(trainer, folder, keep=2)


def test_kill_9_at_any_moment_leaves_whole_checkpoints(tmp_path, moments):
    with running(save_for_ever, tmp_path) as (process, said):
        assert said.recv() == "ready"
        time.sleep(moments.uniform(0.05, 0.5))
        assert process.is_alive()  # until it is killed
    assert process.exitcode == -signal.SIGKILL
    found = checkpoints(tmp_path)
    # the old, the kept, and one not yet dropped
    assert 1 <= len(found) <= 3
    for place in found:
        load_checkpoint(new_trainer(seed=9), place)


@pytest.mark.parametrize(
    "times", [4, pytest.param(20, marks=pytest.mark.exhaustive)]
)
def test_killed_again_and_again_it_ends_with_the_same_weights(
    times, uninterrupted, tmp_path, moments
):
    """kill -9 at random moments; half of the time goes into checkpoints."""
    for _ in range(times):
        with running(train_on, tmp_path) as (process, said):
            assert said.recv() == "ready"
            time.sleep(moments.uniform(0.0, 0.15))
    with running(train_on, tmp_path) as (process, _):
        process.join(60)
        assert process.exitcode == 0
    trainer = new_trainer(seed=7)
    load_checkpoint(trainer, checkpoints(tmp_path)[-1])
    assert trainer.step == CONFIG.max_steps
    assert_same(weights(trainer), uninterrupted[0])


def dying(monkeypatch, number):
    """Kill the plain checkpoint's writer in its call of this number, at
    half of what the call does; returns how many calls there have been.
    """
    calls = []

    def cut(file):
        if file.is_dir():
            next(file.iterdir()).unlink()
        elif file.exists():
            os.truncate(file, file.stat().st_size // 2)

    def fatal(owner, name, file_of):
        whole = getattr(owner, name)

        def act(*args, **more):
            calls.append(name)
            last = len(calls) == number
            if last and name in ("mkdir", "rename", "replace"):
                raise Killed  # they happen or they do not
            if last and name == "rmtree":
                cut(file_of(args)) if file_of(args).exists() else None
                raise Killed
            found = whole(*args, **more)
            if last:
                cut(file_of(args))
                raise Killed
            return found

        monkeypatch.setattr(owner, name, act)

    for name in ("write_bytes", "write_text", "mkdir", "rename", "replace"):
        fatal(plain.Path, name, lambda args: args[0])
    fatal(shutil, "rmtree", lambda args: args[0])
    return calls


@pytest.mark.parametrize("number", range(1, 12))
@pytest.mark.parametrize("again", [False, True])
def test_the_plain_checkpoint_can_be_killed_anywhere_and_written_again(
    number, again, uninterrupted, tmp_path
):
    """Also where an earlier run has left one of the same step."""

    def newest():
        places = sorted(tmp_path.glob("[0-9]*"))
        trainer = new_trainer(seed=9)
        plain.load_checkpoint(trainer, places[-1])
        return trainer

    trainer = new_trainer()
    run(trainer, 3)
    plain.save_checkpoint(trainer, tmp_path)
    run(trainer, 5)
    if again:
        plain.save_checkpoint(trainer, tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        calls = dying(patch, number)
        with suppress(Killed):
            plain.save_checkpoint(trainer, tmp_path)
    assert len(calls) <= number and (number < 11 or len(calls) < number)
    trainer = newest()
    assert trainer.step in (3, 5)
    run(trainer, 5)
    place = plain.save_checkpoint(trainer, tmp_path)
    assert place.name == "00000005"
    assert {p.name for p in tmp_path.iterdir()} == {"00000003", place.name}
    trainer = newest()
    assert trainer.step == 5
    run(trainer)
    assert_same(weights(trainer), uninterrupted[0])


@pytest.mark.parametrize("number", [1, 2])
def test_plain_weights_can_be_killed_anywhere_and_written_again(
    number, tmp_path
):
    path = tmp_path / "weights.safetensors"
    old, new = new_trainer().model, new_trainer(seed=1).model
    save_weights(old, path)
    before = path.read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        dying(patch, number)
        with pytest.raises(Killed):
            save_weights(new, path)
    assert path.read_bytes() == before
    save_weights(new, path)
    load_weights(old, path)
    assert all(
        torch.equal(a, b)
        for a, b in zip(old.parameters(), new.parameters())
    )
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("writer", ["Path.write_bytes", "write_tensors"])
def test_a_full_disk_leaves_the_earlier_checkpoint(
    writer, saved, tmp_path, monkeypatch
):
    trainer, place = saved
    run(trainer, 5)

    def full(*args):
        path = next(a for a in args if isinstance(a, Path))
        with path.open("wb") as file:
            file.write(b"as far as it went")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(f"annotated.engine.checkpoints.{writer}", full)
        with pytest.raises(OSError, match="No space left"):
            save_checkpoint(trainer, tmp_path, keep=5)
    assert_whole(tmp_path, [3])
    save_checkpoint(trainer, tmp_path, keep=5)
    assert_whole(tmp_path, [3, 5])
    assert len(list(tmp_path.iterdir())) == 2
