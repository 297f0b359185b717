"""One trainer per folder: engine.files, from page E3."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from annotated.engine import files
from annotated.engine.errors import RunError
from annotated.engine.files import _LOCK, check_new, locked
from annotated.engine.runner import train_recipe
from tests.helpers import TINY, at_step, content, forking


def hold(folder: Path, said: Any) -> None:
    with locked(folder):
        said.send("held")
        said.recv()


def holding(folder: Path) -> tuple[Any, Any]:
    """Another process that holds the lock, and the end to talk to it."""
    here, there = multiprocessing.Pipe()
    process = forking().Process(target=hold, args=(folder, there))
    process.start()
    assert here.recv() == "held"
    return process, here


def left(folder: Path, **holder: Any) -> Path:
    """What a trainer that did not end well has left."""
    folder.mkdir(exist_ok=True)
    (folder / _LOCK).write_text(json.dumps(holder))
    return folder


def test_a_second_is_refused_and_told_who_the_first_is(
    tmp_path: Path,
) -> None:
    process, say = holding(tmp_path)
    try:
        message = f"being trained by process {process.pid} on .*, since"
        with pytest.raises(RunError, match=message), locked(tmp_path):
            pass
        say.send("end")
        process.join()
        assert list(tmp_path.iterdir()) == []
        with locked(tmp_path):
            pass
    finally:
        process.kill()
        process.join()


def test_the_lock_of_a_killed_process_is_no_lock(tmp_path: Path) -> None:
    process, _ = holding(tmp_path)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert (tmp_path / _LOCK).exists()
    with locked(tmp_path):
        holder = json.loads((tmp_path / _LOCK).read_text())
        assert holder["pid"] == os.getpid()
    assert list(tmp_path.iterdir()) == []


def test_the_number_of_a_dead_process_may_be_anothers(
    tmp_path: Path,
) -> None:
    """This very process has it now; that proves nothing."""
    mine = {"pid": os.getpid(), "host": files.socket.gethostname()}
    with locked(left(tmp_path / "run", **mine)):
        pass


def test_half_a_note_is_no_obstacle(tmp_path: Path) -> None:
    for text in ("", "{", "[1]", "\0\0"):
        (tmp_path / _LOCK).write_text(text)
        with locked(tmp_path):
            pass


def test_where_there_are_no_locks_a_run_begins_nevertheless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "no locks here")

    fcntl = pytest.importorskip("fcntl")
    monkeypatch.setattr(fcntl, "flock", unknown)
    with locked(left(tmp_path / "run", pid=7, host="elsewhere")):
        holder = json.loads((tmp_path / "run" / _LOCK).read_text())
        assert holder["pid"] == os.getpid()
    assert list((tmp_path / "run").iterdir()) == []


def test_a_lock_that_its_holder_has_just_let_go_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that was opened is deleted already: another is made."""
    (tmp_path / _LOCK).touch()
    fcntl = pytest.importorskip("fcntl")
    flock, deleted = fcntl.flock, []

    def late(file: Any, how: int) -> None:
        flock(file, how)
        if not isinstance(file, int) and not deleted:
            deleted.append((tmp_path / _LOCK).unlink())

    monkeypatch.setattr(fcntl, "flock", late)
    with locked(tmp_path):
        assert deleted
        assert json.loads((tmp_path / _LOCK).read_text())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(
    sys.platform == "win32", reason="no folder with an open file is moved"
)
def test_a_lock_whose_folder_has_been_moved_is_let_go(
    tmp_path: Path,
) -> None:
    with locked(tmp_path / "run"):
        (tmp_path / "run").rename(tmp_path / "moved")
    with locked(tmp_path / "moved"):
        pass


def test_a_folder_that_is_moved_at_the_last_moment_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    exists = Path.exists

    def and_move(path: Path) -> bool:
        found = exists(path)
        if path.name == "run" and found:
            path.rename(tmp_path / "moved")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Path, "exists", and_move)
        with pytest.raises(FileNotFoundError), locked(tmp_path / "run"):
            pass
    assert [p.name for p in tmp_path.iterdir()] == ["moved"]


def test_a_folder_made_for_the_lock_goes_with_it(tmp_path: Path) -> None:
    with locked(tmp_path / "a" / "b"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_begun_folder_is_new_until_it_has_a_recipe(
    tmp_path: Path,
) -> None:
    folder = left(tmp_path / "run")
    (folder / "source.json").write_text("half")
    check_new(folder)
    (folder / "recipe.json").write_text("{}")
    with pytest.raises(RunError, match="is not empty: .* --resume"):
        check_new(folder)
    (folder / "recipe.json").unlink()
    (folder / _LOCK).unlink()
    with pytest.raises(RunError, match="is not empty: .* --out$"):
        check_new(folder)


@pytest.mark.parametrize("resume", [False, True])
def test_of_two_trainers_at_once_the_second_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resume: bool
) -> None:
    folder = tmp_path / "run"
    seen = []

    def second() -> None:
        before = content(folder)
        with pytest.raises(RunError, match="is being trained|not empty"):
            train_recipe(TINY, folder, resume=resume, device="cpu")
        assert content(folder) == before
        seen.append(before)

    at_step(monkeypatch, 12, second)
    train_recipe(TINY, folder, device="cpu")
    assert len(seen) == 1
    assert not (folder / _LOCK).exists()


def test_a_lock_that_another_has_open_ends_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Windows: the summary of a run that has ended is printed."""
    tries: list[float] = []

    def unlink(path: Path, **_: Any) -> None:
        raise PermissionError(13, "used by another process", str(path))

    class Windows:
        name = "nt"

        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

    bytes_of = SimpleNamespace(locking=lambda *_: None, LK_NBLCK=2)
    monkeypatch.setitem(sys.modules, "msvcrt", bytes_of)
    monkeypatch.setattr(files, "sys", SimpleNamespace(platform="win32"))
    monkeypatch.setattr(files.time, "sleep", tries.append)
    monkeypatch.setattr(files, "os", Windows())
    run = tmp_path / "run"
    with locked(run):
        monkeypatch.setattr(Path, "unlink", unlink)
    monkeypatch.undo()
    assert sum(tries) == 2.0
