"""Chapter 14: runs that are stopped, killed, damaged and taken up."""

import errno
import json
import os
import random
import re
import shutil
import signal
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

from annotated import checkpoints as plain
from annotated import training
from annotated.checkpoints import save_weights
from annotated.engine import checkpoints as module
from annotated.engine import files as files_module
from annotated.engine import trainer as engine
from annotated.engine.checkpoints import (
    FILES,
    DamagedError,
    checkpoints,
    drop_old,
    write_checkpoint,
)
from annotated.engine.checkpoints import restore as load_checkpoint
from annotated.engine.errors import RunError, TrainingError
from annotated.engine.files import replacing, write_text
from annotated.engine.tensors import load_weights, write_tensors
from annotated.engine.trainer import RunConfig
from annotated.model import Transformer, TransformerConfig, count_parameters
from annotated.training import copy_corpus
from tests.helpers import SHAPE, Killed, forking

CONFIG = RunConfig(batch_tokens=60, warmup=10, max_steps=16)
CORPUS = copy_corpus(40, vocab=12, length=5)
EPOCH = len(CORPUS.plan(CONFIG.batch_tokens, CONFIG.seed, 0))


def new_trainer(seed=0, config=CONFIG, kind=engine.Trainer, **changes):
    torch.manual_seed(seed)
    shape = SHAPE | {"dropout": 0.2} | changes
    model = Transformer(TransformerConfig(**shape))
    return kind(model, CORPUS, config)


def run(trainer, until=CONFIG.max_steps):
    if trainer.step >= until:
        return
    for progress in trainer.steps():
        if progress.step == until:
            return


def save_checkpoint(trainer, folder, keep=5, every=1):
    folder.mkdir(exist_ok=True)
    place = folder / f"{trainer.step:08d}"
    parts = trainer.weights(), trainer.moments(), trainer.state()
    write_checkpoint(*parts, place)
    drop_old(place, keep, every)
    return place


def weights(trainer):
    return {
        n: p.detach().clone() for n, p in trainer.model.named_parameters()
    }


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


@pytest.fixture(scope="module")
def uninterrupted():
    trainer = new_trainer()
    run(trainer)
    return weights(trainer), trainer.tokens


@pytest.fixture
def saved(tmp_path):
    """A trainer after 3 steps and its checkpoint."""
    trainer = new_trainer()
    run(trainer, 3)
    return trainer, save_checkpoint(trainer, tmp_path, keep=5)


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
    ("change", "same"),
    [({}, True), ({"micro_tokens": 20}, False), ({"compile": True}, False)],
)
def test_what_gives_dropout_other_noise_is_noticed(
    saved, monkeypatch, change, same
):
    monkeypatch.setattr(engine, "compile_layers", lambda model: None)
    _, place = saved
    later = new_trainer(config=replace(CONFIG, **change))
    load_checkpoint(later, place)
    assert later.same_noise is same


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


def assert_whole(folder, steps):
    """Just these checkpoints are listed, and each can be taken up."""
    assert [int(p.name) for p in checkpoints(folder)] == steps
    for place in checkpoints(folder):
        later = new_trainer(seed=9)
        load_checkpoint(later, place)
        run(later, later.step + 1)


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

    fatal(plain, "save_file", lambda args: args[1])
    for name in ("write_text", "mkdir", "rename", "replace"):
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


# --- kept and dropped -----------------------------------------------------


def test_the_last_k_are_kept(tmp_path):
    trainer = new_trainer()
    for progress in trainer.steps():
        place = save_checkpoint(trainer, tmp_path, keep=3)
        assert place.name == f"{progress.step:08d}"
        assert len(checkpoints(tmp_path)) == min(progress.step, 3)
    assert_whole(tmp_path, [14, 15, 16])


def test_only_regular_checkpoints_count_and_others_give_way(tmp_path):
    """Every fourth step is regular; one between is there to go on from."""
    trainer = new_trainer()
    left = []
    for progress in trainer.steps():
        if progress.step % 4 == 0 or progress.step in (5, 6, 13):
            save_checkpoint(trainer, tmp_path, keep=2, every=4)
            left.append([int(p.name) for p in checkpoints(tmp_path)])
    assert left == [
        [4],
        [4, 5],
        [4, 6],
        [4, 8],
        [8, 12],
        [8, 12, 13],
        [12, 16],
    ]
    assert [p.name for p in checkpoints(tmp_path, every=8)] == ["00000016"]


def test_checkpoints_are_in_the_order_of_their_steps(tmp_path):
    for step in (99_999_999, 100_000_000, 7):
        (tmp_path / f"{step:08d}").mkdir()
    found = [int(p.name) for p in checkpoints(tmp_path)]
    assert found == [7, 99_999_999, 100_000_000]


def test_what_is_no_checkpoint_is_left_alone(tmp_path):
    for name in ("2024-results", "1", "notes", "000000001"):
        (tmp_path / name).mkdir()
    (tmp_path / "12345678").write_text("a file of eight digits")
    trainer = new_trainer()
    run(trainer, 1)
    save_checkpoint(trainer, tmp_path, keep=1)
    run(trainer, 2)
    save_checkpoint(trainer, tmp_path, keep=1)
    assert [p.name for p in checkpoints(tmp_path)] == ["00000002"]
    assert len(list(tmp_path.iterdir())) == 6


def test_a_checkpoint_may_be_written_again(saved, tmp_path):
    trainer, place = saved
    (place / "state.json").write_bytes(b"damaged")
    assert save_checkpoint(trainer, tmp_path, keep=1) == place
    assert_whole(tmp_path, [3])


def test_the_new_checkpoint_is_kept_where_there_are_later_ones(tmp_path):
    """A run taken up at an earlier checkpoint than its last."""
    trainer = new_trainer()
    for stop in (4, 8):
        run(trainer, stop)
        save_checkpoint(trainer, tmp_path, keep=2)
    trainer = new_trainer()
    load_checkpoint(trainer, tmp_path / "00000004")
    run(trainer, 5)
    place = save_checkpoint(trainer, tmp_path, keep=1)
    assert place.is_dir()
    load_checkpoint(new_trainer(), place)


def test_no_folder_has_no_checkpoints(tmp_path):
    assert checkpoints(tmp_path / "nothing") == []


# --- damaged and not fitting ----------------------------------------------


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("part", [0.0, 0.01, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_named_and_nothing_is_loaded(saved, file, part):
    _, place = saved
    path = place / file
    with path.open("rb+") as opened:
        opened.truncate(int(part * path.stat().st_size))
    trainer = new_trainer(seed=4)
    before = weights(trainer)
    with pytest.raises(ValueError, match=f"{file} cannot be read"):
        load_checkpoint(trainer, place)
    assert_same(weights(trainer), before)
    assert trainer.step == 0


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
def test_one_bit_that_flipped_is_noticed(saved, file, place):
    """Within a tensor, say: every format would read it without a word."""
    path = saved[1] / file
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 4
    path.write_bytes(content)
    with pytest.raises(
        ValueError, match=f"{file} cannot be read.*checksum"
    ):
        load_checkpoint(new_trainer(), saved[1])


@pytest.mark.parametrize("content", [None, b"", b"{", b"[1]", b"{}"])
def test_without_checksums_nothing_is_believed(saved, content):
    path = saved[1] / "checksums.json"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match="cannot be read"):
        load_checkpoint(new_trainer(), saved[1])


@pytest.mark.parametrize("file", FILES)
def test_a_file_of_something_else_is_named(saved, file):
    _, place = saved
    (place / file).write_bytes(random.Random(0).randbytes(5000))
    with pytest.raises(ValueError, match=f"{file} cannot be read"):
        load_checkpoint(new_trainer(), place)


@pytest.mark.parametrize("file", FILES)
def test_a_missing_file_is_named(saved, file):
    _, place = saved
    (place / file).unlink()
    with pytest.raises(ValueError, match=f"{file} cannot be read"):
        load_checkpoint(new_trainer(), place)


def test_a_state_runs_no_code():
    """Nothing in the package reads or writes a pickle, but for the loader
    of published weights, which knows tensors alone."""
    source = Path(module.__file__).parents[1]
    for file in source.rglob("*.py"):
        text = file.read_text("utf-8")
        if file.name == "marian.py":
            loads = re.findall(r"torch\.load\(.*", text)
            assert loads and all("weights_only=True" in x for x in loads)
            text = re.sub(r"torch\.load\(|#.*", "", text)
        found = re.findall(r"torch\.(?:load|save)\b|\bpickle\b", text)
        assert not found, file


def test_the_numbers_of_a_state_are_json_and_come_back_as_they_were(saved):
    trainer, place = saved
    state = json.loads((place / "state.json").read_text())
    assert state == trainer.state()
    assert [state[name] for name in training.COUNTERS] == [
        getattr(trainer, name) for name in training.COUNTERS
    ]


def test_all_moments_are_stored_by_the_parameters_names(saved):
    trainer, place = saved
    stored = safetensors.torch.load_file(place / "optimizer.safetensors")
    names = [n for n, _ in trainer.model.named_parameters()]
    keys = "step", "exp_avg", "exp_avg_sq"
    assert stored.keys() == {f"{n}.{k}" for n in names for k in keys}
    for name, parameter in trainer.model.named_parameters():
        for key, value in trainer.optimizer.state[parameter].items():
            assert torch.equal(stored[f"{name}.{key}"], value)


def test_the_plain_checkpoint_and_the_engines_are_the_same_files(
    uninterrupted, tmp_path
):
    """Each reads what the other has written, and goes on exactly."""
    trainer = new_trainer()
    run(trainer, 5)
    place = plain.save_checkpoint(trainer, tmp_path / "plain")
    other = save_checkpoint(trainer, tmp_path / "engine")
    for name in FILES:
        assert (place / name).read_bytes() == (other / name).read_bytes()
    trainer = new_trainer(seed=8)
    plain.load_checkpoint(trainer, other)
    run(trainer)
    assert_same(weights(trainer), uninterrupted[0])


def test_adam_computes_as_this_machine_does_not_as_the_file_says(saved):
    """The file has no such settings; the rate is that of its last step."""
    trainer, place = saved
    later = new_trainer(seed=3)
    (before,) = later.optimizer.state_dict()["param_groups"]
    load_checkpoint(later, place)
    (after,) = later.optimizer.state_dict()["param_groups"]
    assert after == before | {"lr": trainer.rate(3)}


@pytest.mark.parametrize(
    "trouble", [OSError(errno.EIO, "Input/output error"), MemoryError()]
)
@pytest.mark.parametrize("name", ["checksum", "read_tensors"])
def test_a_passing_trouble_is_no_damage(saved, monkeypatch, trouble, name):
    def fails(*_):
        raise trouble

    monkeypatch.setattr(module, name, fails)
    with pytest.raises(type(trouble)):
        load_checkpoint(new_trainer(), saved[1])


def test_a_checkpoint_that_does_not_fit_is_not_damaged(saved):
    trainer = new_trainer(d_ff=48)
    before = weights(trainer)
    path = re.escape(str(saved[1] / "model.safetensors"))
    with pytest.raises(RunError, match=f"{path} does not fit") as caught:
        load_checkpoint(trainer, saved[1])
    assert not isinstance(caught.value, DamagedError)
    assert_same(weights(trainer), before)


def test_moments_that_do_not_fit_are_named_and_nothing_is_loaded(saved):
    _, place = saved
    path = place / "optimizer.safetensors"
    moments = safetensors.torch.load_file(path)
    name = next(n for n in moments if n.endswith(".exp_avg_sq"))
    del moments[name]
    safetensors.torch.save_file(moments, path)
    sums = json.loads((place / "checksums.json").read_text())
    sums[path.name] = files_module.checksum(path)
    (place / "checksums.json").write_text(json.dumps(sums))
    trainer = new_trainer(seed=4)
    before = weights(trainer)
    told = f"{re.escape(str(path))} .*{name} is absent in the file"
    with pytest.raises(RunError, match=told):
        load_checkpoint(trainer, place)
    assert_same(weights(trainer), before)


# --- a power cut ----------------------------------------------------------


def note_flushes(monkeypatch):
    """What fsync was called on, and for each rename, what was flushed of
    that which it puts into place.
    """
    flushed, renames = set(), []
    real = os.fsync

    def fsync(handle):
        flushed.add(os.fstat(handle).st_ino)
        real(handle)

    def watched(name):
        act = getattr(Path, name)

        def rename(self, target):
            inside = [*self.iterdir()] if self.is_dir() else []
            here = {p.stat().st_ino for p in (self, *inside)}
            renames.append((Path(target).name, here <= flushed))
            done = act(self, target)
            flushed.discard(Path(target).parent.stat().st_ino)
            return done

        monkeypatch.setattr(Path, name, rename)

    monkeypatch.setattr(os, "fsync", fsync)
    watched("rename")
    watched("replace")
    return flushed, renames


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(
    tmp_path, monkeypatch
):
    trainer = new_trainer()
    run(trainer, 1)
    flushed, renames = note_flushes(monkeypatch)
    place = save_checkpoint(trainer, tmp_path)
    assert renames == [(place.name, True)]
    assert tmp_path.stat().st_ino in flushed  # and then its name


def test_a_file_is_on_the_disk_before_it_replaces_the_old_one(
    tmp_path, monkeypatch
):
    flushed, renames = note_flushes(monkeypatch)
    with replacing(tmp_path / "x") as fresh:
        fresh.write_text("new")
    assert renames == [("x", True)]
    assert tmp_path.stat().st_ino in flushed


def test_weights_have_the_rights_of_any_other_file(tmp_path):
    before = os.umask(0o027)
    try:
        write_tensors({"w": torch.ones(2)}, tmp_path / "w")
        (tmp_path / "other").touch()
    finally:
        os.umask(before)
    assert (tmp_path / "w").stat().st_mode == (
        tmp_path / "other"
    ).stat().st_mode


@pytest.mark.skipif(sys.platform == "win32", reason="no locks on folders")
def test_what_killed_writers_left_goes_and_what_others_write_stays(
    tmp_path,
):
    for name in ("x", "y"):
        (tmp_path / f".abcdefgh.{name}.part").mkdir()
    with replacing(tmp_path / "x") as fresh:
        fresh.write_text("first")
        write_text(tmp_path / "x", "second")
        assert fresh.exists()
        assert (tmp_path / "x").read_text() == "second"
    assert (tmp_path / "x").read_text() == "first"
    assert {p.name for p in tmp_path.iterdir()} == {"x", ".abcdefgh.y.part"}


@pytest.mark.skipif(sys.platform == "win32", reason="no locks on folders")
def test_what_lost_its_place_to_nothing_comes_back(tmp_path):
    """Killed between the two renames by which a folder is replaced."""
    hidden = tmp_path / ".abcdefgh.run.part"
    (hidden / "run.old").mkdir(parents=True)
    (hidden / "run.old/a").write_text("whole")
    files_module.clear(tmp_path)
    assert (tmp_path / "run/a").read_text() == "whole"
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_a_folder_is_on_the_disk_before_it_has_its_name(
    tmp_path, monkeypatch
):
    flushed, renames = note_flushes(monkeypatch)
    with files_module.new_folder(tmp_path / "x") as fresh:
        (fresh / "a").write_text("new")
    assert renames == [("x", True)]
    assert tmp_path.stat().st_ino in flushed


@pytest.mark.parametrize(
    ("change", "tensor"),
    [
        ({"d_ff": 48}, "feed_forward"),
        (
            {"num_encoder_layers": 2},
            r"encoder\.layers\.1\..* is absent in the",
        ),
        ({"tie": "none"}, r"embeddings\.output is absent in the file"),
        (
            {"src_vocab": 13, "tgt_vocab": 13},
            r"\(12, 16\) in the file, not \(13,",
        ),
    ],
)
def test_weights_that_do_not_fit_name_the_tensor(saved, change, tensor):
    _, place = saved
    trainer = new_trainer(**change)
    before = weights(trainer)
    with pytest.raises(ValueError, match=tensor):
        load_weights(trainer.model, place / "model.safetensors")
    assert_same(weights(trainer), before)


def test_a_tensor_too_many_is_named(saved):
    trainer, place = saved
    path = place / "model.safetensors"
    extra = safetensors.torch.load_file(path) | {"more": torch.ones(2)}
    safetensors.torch.save_file(extra, path)
    with pytest.raises(ValueError, match=r"more is \(2,\) in the file"):
        load_weights(trainer.model, path)


@pytest.mark.parametrize("tie", ["all", "decoder", "none"])
def test_weights_come_back_and_a_tied_one_is_stored_once(tie, tmp_path):
    one, other = new_trainer(1, tie=tie), new_trainer(2, tie=tie)
    path = tmp_path / "model.safetensors"
    save_weights(one.model, path)
    load_weights(other.model, path)
    assert_same(weights(one), weights(other))
    assert (
        other.model.embeddings.output is other.model.embeddings.target
    ) == (tie != "none")
    stored = safetensors.torch.load_file(path)
    count = count_parameters(one.model.config)
    assert sum(t.numel() for t in stored.values()) == count
