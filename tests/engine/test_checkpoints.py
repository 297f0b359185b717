"""Chapter 15, page E10: what a checkpoint holds, and what is refused."""

import errno
import json
import os
import random
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch

from annotated import checkpoints as plain
from annotated import training
from annotated.checkpoints import save_weights
from annotated.engine import checkpoints as module
from annotated.engine import files as files_module
from annotated.engine.checkpoints import (
    _FILES,
    DamagedError,
    checkpoints,
)
from annotated.engine.checkpoints import restore as load_checkpoint
from annotated.engine.errors import RunError
from annotated.engine.files import replacing, write_text
from annotated.engine.tensors import load_weights, write_tensors
from annotated.model import count_parameters
from tests.engine.trainings import (
    assert_same,
    assert_whole,
    new_trainer,
    run,
    save_checkpoint,
    weights,
)

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


@pytest.mark.parametrize("file", _FILES)
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


@pytest.mark.parametrize("file", _FILES)
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


@pytest.mark.parametrize("file", _FILES)
def test_a_file_of_something_else_is_named(saved, file):
    _, place = saved
    (place / file).write_bytes(random.Random(0).randbytes(5000))
    with pytest.raises(ValueError, match=f"{file} cannot be read"):
        load_checkpoint(new_trainer(), place)


@pytest.mark.parametrize("file", _FILES)
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
        if file.name == "examiner.py":  # which refuses an answer's
            text = text.replace('"pickle.find_class"', "")
        found = re.findall(r"torch\.(?:load|save)\b|\bpickle\b", text)
        assert not found, file


def test_the_numbers_of_a_state_are_json_and_come_back_as_they_were(saved):
    trainer, place = saved
    state = json.loads((place / "state.json").read_text())
    assert state == trainer.state()
    assert [state[name] for name in training._COUNTERS] == [
        getattr(trainer, name) for name in training._COUNTERS
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
    """Each reads what the other has written, and goes on exactly. (Beside
    its weights the engine's says their step, for a copy of them.)
    """
    trainer = new_trainer()
    run(trainer, 5)
    place = plain.save_checkpoint(trainer, tmp_path / "plain")
    other = save_checkpoint(trainer, tmp_path / "engine")
    for name in _FILES[1:]:
        assert (place / name).read_bytes() == (other / name).read_bytes()
    both = [
        safetensors.torch.load_file(p / _FILES[0]) for p in (place, other)
    ]
    assert_same(*both)
    with safetensors.safe_open(other / _FILES[0], "pt") as file:
        assert file.metadata() == {"step": "5"}
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
@pytest.mark.parametrize("name", ["_checksum", "read_tensors"])
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
    sums[path.name] = module._checksum(path)
    (place / "checksums.json").write_text(json.dumps(sums))
    trainer = new_trainer(seed=4)
    before = weights(trainer)
    told = f"{re.escape(str(path))} .*{name} is absent in the file"
    with pytest.raises(RunError, match=told):
        load_checkpoint(trainer, place)
    assert_same(weights(trainer), before)


# --- a power cut ----------------------------------------------------------


def can(path):
    """Whether it can be flushed: no folder on Windows."""
    return sys.platform != "win32" or path.is_file()


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
            here = {p.stat().st_ino for p in (self, *inside) if can(p)}
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
    # and then its name
    assert tmp_path.stat().st_ino in flushed or not can(tmp_path)


def test_a_file_is_on_the_disk_before_it_replaces_the_old_one(
    tmp_path, monkeypatch
):
    flushed, renames = note_flushes(monkeypatch)
    with replacing(tmp_path / "x") as fresh:
        fresh.write_text("new")
    assert renames == [("x", True)]
    assert tmp_path.stat().st_ino in flushed or not can(tmp_path)


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


@pytest.mark.parametrize("name", [".", "{}"])
def test_the_folder_that_one_is_in_is_not_replaced(
    name, tmp_path, monkeypatch
):
    """Its new self would be another folder than the one that one is in."""
    monkeypatch.chdir(tmp_path)
    path = Path(name.format(tmp_path))
    with (
        pytest.raises(RunError, match="is where you are: choose another"),
        files_module.new_folder(path),
    ):
        pass
    assert tmp_path.is_dir() and not [*tmp_path.iterdir()]


def test_a_folder_is_on_the_disk_before_it_has_its_name(
    tmp_path, monkeypatch
):
    flushed, renames = note_flushes(monkeypatch)
    with files_module.new_folder(tmp_path / "x") as fresh:
        (fresh / "a").write_text("new")
    assert renames == [("x", True)]
    assert tmp_path.stat().st_ino in flushed or not can(tmp_path)


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


def test_a_scanner_that_holds_a_file_is_waited_for_on_windows(
    tmp_path, monkeypatch
):
    """For two seconds; elsewhere a refusal is one at once."""
    waited, replace = [], Path.replace
    path = tmp_path / "a.json"
    write_text(path, "old")

    def refused_twice(self, target):
        if len(waited) < 2:
            raise PermissionError(13, "used by another process")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", refused_twice)
    monkeypatch.setattr(files_module.time, "sleep", waited.append)
    if sys.platform != "win32":
        with pytest.raises(PermissionError):
            write_text(path, "new")
        assert path.read_text() == "old" and not waited
    windows = SimpleNamespace(platform="win32")
    monkeypatch.setattr(files_module, "sys", windows)
    write_text(path, "new")
    assert path.read_text() == "new" and len(waited) == 2
