"""A run that is stopped, killed, damaged or short of space, and goes on:
engine.start and runner, from pages E9 and E10.
"""

from __future__ import annotations

import errno
import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from annotated.engine import checkpoints as checkpoints_module
from annotated.engine import (
    files,
    runner,
    runs,
    trainer,
)
from annotated.engine.checkpoints import _FILES, checkpoints
from annotated.engine.errors import (
    DataError,
    RunError,
    Stopped,
    TrainingError,
)
from annotated.engine.recipes import (
    Recipe,
)
from annotated.engine.runner import train_recipe
from annotated.engine.runs import (
    Run,
    read_metrics,
    read_recipe,
)
from annotated.engine.trainer import Trainer
from annotated.tokens import Tokenizer
from tests.engine.folders import (
    TINY,
    own_corpus,
    replaced,
    same_training,
    send,
)
from tests.helpers import Killed, at_step, content

# --- stop, and go on ------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "step"),
    [
        (signal.SIGTERM, 7),
        (signal.SIGINT, 10),
        (signal.SIGTERM, 3),
        (signal.SIGTERM, 17),
    ],
    ids=["between", "at a checkpoint", "before the first", "near the end"],
)
def test_a_run_taken_up_again_is_the_run_that_never_stopped(
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    step: int,
) -> None:
    handler = signal.getsignal(number)
    with monkeypatch.context() as patch:
        at_step(patch, step, send(number))
        with pytest.raises(Stopped, match=f"at step {step}; continue"):
            train_recipe(TINY, tmp_path / "run")
    assert signal.getsignal(number) is handler
    train_recipe(TINY, tmp_path / "run", resume=True)
    same_training(finished, tmp_path / "run")


@pytest.mark.parametrize("moment", ["validate", "_keep_best"])
def test_killed_after_a_checkpoint_a_run_has_nothing_less_to_say(
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
) -> None:
    """Between a checkpoint and its validation, or before the best of them
    has its second name.
    """
    folder, owner = tmp_path / "run", (Trainer, runner)[moment[0] == "_"]
    real = getattr(owner, moment)

    def act(*args: Any) -> Any:
        places = checkpoints(folder / "checkpoints")
        if [p.name for p in places] == ["00000005", "00000010"]:
            raise Killed
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(owner, moment, act)
        with pytest.raises(Killed):
            train_recipe(TINY, folder)
    train_recipe(TINY, folder, resume=True)
    same_training(finished, folder)
    best = [load_file(f / "best.safetensors") for f in (finished, folder)]
    assert all(torch.equal(best[0][n], best[1][n]) for n in best[0])


def test_another_trouble_than_the_disks_is_not_called_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a checkpoint of another process is not taken away, either."""

    def lost(*_: Any) -> None:
        raise TrainingError("another process of this run has gone")

    half = tmp_path / "run" / "checkpoints" / ".00000003"

    def begin() -> None:
        half.mkdir(parents=True)

    monkeypatch.setattr(Trainer, "weights", lost)
    at_step(monkeypatch, 3, begin)
    with pytest.raises(TrainingError, match="has gone"):
        train_recipe(TINY, tmp_path / "run")
    assert half.exists()


def test_a_second_signal_stops_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_step(monkeypatch, 7, send(signal.SIGINT, signal.SIGINT))
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train_recipe(TINY, tmp_path / "run")
    assert signal.getsignal(signal.SIGINT) is handler
    places = checkpoints(tmp_path / "run" / "checkpoints")
    assert [p.name for p in places] == ["00000005"]


def killed() -> None:
    raise Killed


def test_a_killed_run_goes_on_from_its_last_checkpoint(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        at_step(patch, 11, killed)
        with pytest.raises(Killed):
            train_recipe(TINY, folder)
    # the marks of a kill: a line cut off, a checkpoint half written
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 20, "loss": 9.9}\n{"step": 2')
    begun = folder / "checkpoints" / ".abcdefgh.00000015.part"
    begun.mkdir()
    (begun / "model.safetensors").write_bytes(b"half")
    train_recipe(TINY, folder, resume=True)
    same_training(finished, folder)
    assert not begun.exists()


@pytest.mark.parametrize("file", _FILES)
@pytest.mark.parametrize("size", [0, 100, None])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    finished: Path,
    run: Path,
    capsys: pytest.CaptureFixture[str],
    file: str,
    size: int | None,
) -> None:
    path = run / "checkpoints" / "00000020" / file
    if size is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:size])
    train_recipe(TINY, run, resume=True)
    said = capsys.readouterr().err
    assert f"00000020/{file} cannot be read" in said
    assert "set aside as damaged-00000020" in said
    assert "resuming at step 15" in said
    same_training(finished, run)


@pytest.mark.parametrize("keep", [4, 2])
def test_the_best_weights_are_never_of_a_step_that_comes_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    keep: int,
) -> None:
    """The best was step 15, whose checkpoint is damaged; trained again, it
    is worse than step 5. With two kept, that of 5 is gone.
    """
    folder, nll = tmp_path / "run", {5: 2.0, 10: 3.0, 15: 1.0, 20: 9.0}
    best = folder / "best.safetensors"

    def scored(trainer: Trainer, *_: Any) -> dict[str, float]:
        return {"nll": nll[trainer.step], "loss": 1.0, "perplexity": 1.0}

    monkeypatch.setattr(Trainer, "validate", scored)
    kept: dict[int, bytes] = {}

    def stop() -> None:
        kept[15] = best.read_bytes()
        raise Killed

    recipe = TINY.changed(keep=keep)
    with monkeypatch.context() as patch:
        at_step(patch, 16, stop)
        with pytest.raises(Killed):
            train_recipe(recipe, folder)
    places = checkpoints(folder / "checkpoints")
    (places[-1] / "state.json").write_bytes(b"")
    nll[15] = 8.0
    if keep == 4:
        kept[5] = (places[0] / "model.safetensors").read_bytes()
    summary = train_recipe(recipe, folder, resume=True)
    assert summary["best"] == 5
    assert "of step 15: set aside as discarded-" in capsys.readouterr().err
    aside = best.with_name("discarded-best.safetensors")
    assert aside.read_bytes() == kept[15]
    now = best.read_bytes() if best.exists() else None
    assert now == kept.get(5)


def test_a_checkpoint_of_something_else_gives_way_too(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = run / "checkpoints" / "00000020" / "state.json"
    state.write_text('{"step": 20}')
    train_recipe(TINY, run, resume=True)
    assert "resuming at step 15" in capsys.readouterr().err


def test_with_no_checkpoint_whole_nothing_is_pretended(run: Path) -> None:
    """Neither the first time nor, when they are set aside, the second."""
    for place in checkpoints(run / "checkpoints"):
        (place / "state.json").write_bytes(b"")
    for _ in range(2):
        with pytest.raises(RunError, match="no intact checkpoint"):
            train_recipe(TINY, run, resume=True)
        for name in (
            "model.safetensors",
            "best.safetensors",
            "summary.json",
        ):
            (run / name).unlink(missing_ok=True)


@pytest.mark.parametrize("left", ["all else", "the log", "the model"])
def test_a_run_whose_checkpoints_are_gone_is_not_trained_over(
    run: Path, left: str
) -> None:
    if left == "the log":
        for path in run.glob("*.safetensors"):
            path.unlink()
        (run / "summary.json").unlink()
    if left == "the model":
        (run / "metrics.jsonl").unlink()
    for keep_the_folder in (True, False):
        shutil.rmtree(run / "checkpoints")
        if keep_the_folder:
            (run / "checkpoints").mkdir()
        before = content(run)
        with pytest.raises(RunError, match="no intact.*left as it is"):
            train_recipe(TINY, run, resume=True)
        assert content(run) == before


def test_a_run_that_never_had_a_checkpoint_begins_again(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a launcher does that starts a killed run again."""
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        at_step(patch, 4, killed)
        with pytest.raises(Killed):
            train_recipe(TINY, folder)
    assert [e["step"] for e in read_metrics(folder)] == [1]
    train_recipe(TINY, folder, resume=True)
    same_training(finished, folder)


@pytest.mark.parametrize(
    "trouble", [OSError(errno.EIO, "Input/output error"), MemoryError()]
)
def test_a_passing_trouble_leaves_the_checkpoint_alone(
    finished: Path, run: Path, monkeypatch: pytest.MonkeyPatch, trouble: Any
) -> None:
    before = content(run)

    def fails(*_: Any) -> None:
        raise trouble

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints_module, "read_tensors", fails)
        with pytest.raises(type(trouble)):
            train_recipe(TINY, run, resume=True)
    assert content(run) == before
    train_recipe(TINY, run, resume=True)
    same_training(finished, run)


def test_a_checkpoint_that_does_not_fit_is_left_alone(run: Path) -> None:
    replaced("model", d_ff=8)(run)
    before = content(run)
    with pytest.raises(RunError, match="does not fit the model"):
        train_recipe(TINY.changed(d_ff=8), run, resume=True)
    assert content(run) == before


def test_a_damaged_checkpoint_does_not_push_out_a_whole_one(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run / "checkpoints" / "00000020" / "state.json").write_bytes(b"")
    at_step(monkeypatch, 17, send(signal.SIGTERM))
    with pytest.raises(Stopped):
        train_recipe(TINY, run, resume=True)
    places = checkpoints(run / "checkpoints")
    assert [p.name for p in places] == ["00000015", "00000017"]


def test_to_resume_a_finished_run_changes_nothing(
    finished: Path, run: Path
) -> None:
    train_recipe(TINY, run, resume=True)
    same_training(finished, run)


def test_a_finished_run_can_be_made_longer(
    run: Path, tmp_path: Path
) -> None:
    longer = TINY.changed(max_steps=30)
    train_recipe(longer, run, resume=True)
    train_recipe(longer, tmp_path / "at once")
    a, b = (
        load_file(folder / "model.safetensors")
        for folder in (run, tmp_path / "at once")
    )
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert read_recipe(run) == longer


@pytest.mark.parametrize(
    ("field", "value"),
    [("d_model", 32), ("seed", 1), ("train_pairs", 100), ("keep", 3)],
)
def test_a_resumed_run_must_be_the_same_run(
    run: Path, field: str, value: int
) -> None:
    before = content(run)
    other = TINY.changed(**{field: value})
    old = TINY.flat()[field]
    complaint = f"started with {field} {old}: .*; {value} needs"
    with pytest.raises(RunError, match=complaint):
        train_recipe(other, run, resume=True)
    assert content(run) == before


def own_run(tmp_path: Path) -> tuple[Recipe, Path]:
    """A run on files of its own, of ten steps."""
    recipe = own_corpus(tmp_path / "own").changed(max_steps=10)
    train_recipe(recipe, tmp_path / "run")
    return recipe, tmp_path / "run"


def test_a_resume_that_fails_has_changed_nothing(tmp_path: Path) -> None:
    """Its data are gone, or others, or its checkpoint is of other data."""
    recipe, run = own_run(tmp_path)
    before, longer = content(run), recipe.changed(max_steps=12)
    (tmp_path / "own").rename(tmp_path / "moved")
    with pytest.raises(DataError, match="there is no folder .*--data"):
        train_recipe(
            read_recipe(run).changed(max_steps=12), run, resume=True
        )
    assert content(run) == before
    shutil.copytree(tmp_path / "moved", tmp_path / "own")
    (tmp_path / "own" / "train.en").write_bytes(b"b a c\n" * 40)
    with pytest.raises(
        RunError, match="pairs of train in .* are not those"
    ):
        train_recipe(longer, run, resume=True)
    (tmp_path / "own" / "train.en").unlink()
    with pytest.raises(DataError, match="has none of train.en"):
        train_recipe(longer, run, resume=True)
    assert content(run) == before


def test_steps_that_are_done_are_not_taken_back(tmp_path: Path) -> None:
    recipe, run = own_run(tmp_path)
    before = content(run)
    with pytest.raises(RunError, match="for 10 steps already, more than"):
        train_recipe(recipe.changed(max_steps=9), run, resume=True)
    assert content(run) == before
    train_recipe(recipe, run, resume=True)
    assert content(run) == before


def test_other_pairs_to_validate_on_are_noticed_too(tmp_path: Path) -> None:
    recipe, run = own_run(tmp_path)
    (tmp_path / "own" / "valid.de").write_bytes(b"c b a\n" * 40)
    with pytest.raises(RunError, match="pairs of valid in"):
        train_recipe(recipe, run, resume=True)


def test_data_may_be_moved_and_the_command_given_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = own_corpus(Path("own")).changed(max_steps=6)
    train_recipe(recipe, Path("run"))
    begun = read_recipe(Path("run"))
    assert begun.data == str(tmp_path / "own")
    (tmp_path / "away").mkdir()
    monkeypatch.chdir(tmp_path / "away")
    folder, longer = Path("..", "run"), begun.changed(max_steps=8)
    train_recipe(longer, folder, resume=True)
    (tmp_path / "own").rename(tmp_path / "moved")
    moved = longer.changed(data="../moved", max_steps=10)
    train_recipe(moved, folder, resume=True)
    assert read_recipe(folder).data == str(tmp_path / "moved")
    whole = begun.changed(data="../moved", max_steps=10)
    train_recipe(whole, Path("whole"))
    same = [
        load_file(f / "best.safetensors") for f in (folder, Path("whole"))
    ]
    assert all(torch.equal(same[0][n], same[1][n]) for n in same[0])


def test_a_resume_never_writes_the_tokenizers(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without them the weights mean nothing."""

    def fails(*_: Any) -> None:
        raise AssertionError("a tokenizer was written")

    monkeypatch.setattr(Tokenizer, "save", fails)
    train_recipe(TINY.changed(max_steps=22), run, resume=True)
    assert read_recipe(run).training.max_steps == 22


def test_a_full_disk_in_a_resume_costs_nothing(
    finished: Path, run: Path
) -> None:
    """No file can grow beyond 100 bytes, the tokenizers' too."""
    before = content(run)
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(RunError, match="recipe.json could not be"):
            train_recipe(TINY.changed(max_steps=22), run, resume=True)
        with pytest.raises((RunError, OSError)):
            train_recipe(TINY, run, resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert content(run) == before
    train_recipe(TINY, run, resume=True)
    same_training(finished, run)


def test_a_full_disk_at_the_start_leaves_nothing(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            train_recipe(TINY, tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "says"), [(..., 1), (1, 1), (runs._FORMAT + 1, 3)]
)
def test_a_folder_of_another_format_is_refused_in_a_line(
    run: Path, number: Any, says: int
) -> None:
    """The first format had no number."""
    about = json.loads((run / "recipe.json").read_text())
    assert about["format"] == runs._FORMAT
    replaced(format=number)(run)
    before = content(run)
    with pytest.raises(RunError, match=f"has format {says}, but this ver"):
        Run.open(run)
    with pytest.raises(RunError, match="use the version that made it"):
        train_recipe(TINY, run, resume=True)
    assert content(run) == before


def test_without_a_compiler_nothing_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(*_: Any, **__: Any) -> None:
        raise RuntimeError("no compiler\nwas found")

    monkeypatch.setattr(torch, "compile", absent)
    with pytest.raises(RunError, match=r"layers on cpu \(no compiler\)"):
        train_recipe(TINY.changed(compile=True), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_where_nothing_was_begun_nothing_is_resumed(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a run folder.*recipe.json"):
        train_recipe(TINY, tmp_path / "run", resume=True)
    assert not (tmp_path / "run").exists()


# --- a full disk ----------------------------------------------------------


def full_disk(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def small_files(save: Callable[..., None]) -> Callable[..., None]:
    """save, where no file can grow beyond 1,000 bytes."""

    def limited(*args: Any) -> None:
        resource = pytest.importorskip("resource")
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        try:
            save(*args)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limited


@pytest.mark.parametrize("kind", ["no space", "no growth"])
def test_a_full_disk_costs_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    save = trainer.write_checkpoint
    fails = full_disk if kind == "no space" else small_files(save)

    def second_fails(*args: Any) -> None:
        how = save if args[-1].name == "00000005" else fails
        how(*args)

    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "write_checkpoint", second_fails)
        with pytest.raises(RunError, match="step 10 could not be written"):
            train_recipe(TINY, folder)
    left = [path.name for path in (folder / "checkpoints").iterdir()]
    assert left == ["00000005"]
    train_recipe(TINY, folder, resume=True)
    assert (folder / "model.safetensors").exists()


def test_a_full_disk_at_the_end_costs_no_model(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = content(run)
    limited = small_files(runner.write_tensors)
    monkeypatch.setattr(runner, "write_tensors", limited)
    with pytest.raises(RunError, match="the model could not be"):
        train_recipe(TINY, run, resume=True)
    assert content(run) == before


def test_a_file_is_replaced_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.json"
    files.write_json(path, {"a": "ä"})
    monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(OSError, match="No space"):
        files.write_json(path, {"b": 1})
    assert content(tmp_path) == {"x.json": '{\n  "a": "ä"\n}\n'.encode()}
