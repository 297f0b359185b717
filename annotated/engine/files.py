"""Exported from the book; edit the chapter, then run `make export`."""

import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import IO, Any

import platformdirs

from annotated.engine.errors import RunError

__all__ = [
    "check_new", "aside", "clear", "one_at_a_time", "replacing",
    "new_folder", "move", "write_text", "write_json", "keep_first",
    "cache_folder", "locked",
]  # fmt: skip


# E3-ground.md: Files that are complete
_LOCK = ".lock"  # in the folder of a run that is being trained


def check_new(folder: Path) -> None:
    """RunError unless folder is empty, does not exist, or has a lock and
    no recipe: it is then of a run that has just been begun.
    """
    path = folder.absolute()
    first = next(p for p in (path, *path.parents) if p.exists())
    if not first.is_dir():
        raise RunError(f"{first} is a file: choose another --out")
    names = {path.name for path in folder.glob("*")}
    if names and (_LOCK not in names or "recipe.json" in names):
        run = "recipe.json" in names
        more = " (a run that train continues with --resume)" if run else ""
        raise RunError(f"{folder} is not empty: choose another --out{more}")


@contextmanager
def aside(path: Path) -> Iterator[Path]:
    """A hidden folder beside path, to write in what is to become path; it
    is deleted at the end. What killed processes have left goes first. An
    OSError about what is hidden names path.
    """
    clear(path.parent, path.name)
    end = f".{path.name}.part"
    try:
        while True:
            hidden = Path(mkdtemp(end, ".", path.parent))
            handle = _claim(hidden, wait=True)
            if hidden.exists():
                break
            if handle is not None:  # another's clear came before the lock
                os.close(handle)
        try:
            yield hidden
        finally:
            _discard(hidden, path)
            if handle is not None:
                os.close(handle)
    except OSError as error:
        if end in str(error.filename):
            error.filename = str(path)
        raise


def clear(folder: Path, name: str = "") -> None:
    """Delete the hidden folders in which killed processes were writing
    name, or anything, in folder.
    """
    for hidden in list(folder.glob(".*.part")):
        written = hidden.name[1:-5].partition(".")[2]
        if name not in ("", written):
            continue
        if (handle := _claim(hidden)) is not None:
            _discard(hidden, folder / written)
            os.close(handle)


def _discard(hidden: Path, path: Path) -> None:
    """Delete a hidden folder; but what was at path, and has no successor,
    goes back.
    """
    old = hidden / f"{path.name}.old"
    if old.exists() and not path.exists():
        try:
            old.rename(path)
        except OSError:  # the next may be able to
            return
    shutil.rmtree(hidden, ignore_errors=True)


def _claim(folder: Path, wait: bool = False) -> int | None:
    """A handle of a folder, locked until it is closed, however that comes
    about; None where another has locked it, or where none can.
    """
    if sys.platform == "win32":
        return None
    import fcntl

    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        os.close(handle)
        return None
    return handle


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Context manager: whoever reads files of a folder and then writes
    them is alone; others wait, where the system can lock a folder.
    """
    handle = _claim(folder, wait=True)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path, to write a file or a folder to, which replaces
    path at the end, when it is on the disk; after an error it is deleted
    and path is unchanged.
    """
    with aside(path) as hidden:
        fresh = hidden / path.name
        yield fresh
        for part in (*fresh.rglob("*"), fresh):
            _flush(part)
        if path.is_dir():  # which nothing can replace in one step
            move(path, hidden / f"{path.name}.old")
        move(fresh, path)
        _flush(path.parent)


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder that becomes folder at the end; nothing is left
    after an error. RunError as in check_new, and for the folder that the
    program is in, which would be gone.
    """
    if folder.exists() and folder.samefile("."):
        raise RunError(f"{folder} is where you are: choose another --out")
    clear(folder.parent, folder.name)
    check_new(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with aside(folder) as hidden:
        fresh = hidden / folder.name
        fresh.mkdir()
        yield fresh
        for part in (*fresh.rglob("*"), fresh):
            _flush(part)
        check_new(folder)  # another process may have filled it
        if folder.exists():
            folder.rmdir()
        # fails, and deletes nothing, if it is full
        _patiently(lambda: fresh.rename(folder))
        _flush(folder.parent)


def move(path: Path, to: Path) -> None:
    """Rename a file or folder; a file at to is replaced."""
    _patiently(lambda: path.replace(to))


_PAUSES = (0.05, 0.1, 0.25, 0.6, 1.0)  # two seconds


def _patiently(action: Callable[[], object]) -> None:
    """Rename or delete a file; on Windows, where a scanner may have it
    open for a moment, again and again over two seconds.
    """
    for pause in _PAUSES if sys.platform == "win32" else ():
        try:
            action()
            return
        except PermissionError:
            time.sleep(pause)
    action()


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with replacing(path) as fresh:
        fresh.write_text(text, "utf-8", newline="\n")


def write_json(path: Path, value: Any) -> None:
    """Write value to path as JSON, atomically."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    write_text(path, text + "\n")


def keep_first(path: Path, text: str) -> str:
    """Write a text file, complete or not at all, unless there is one: of
    several processes the first wins. Returns what the file holds.
    """
    with aside(path) as hidden:
        fresh = hidden / path.name
        fresh.write_text(text, "utf-8", newline="\n")
        _flush(fresh)
        try:
            os.link(fresh, path)  # fails if path exists; a rename does not
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            move(fresh, path)
        return path.read_text("utf-8")


def _flush(path: Path) -> None:
    """Flush a file to disk; OSError where that fails. Of a folder, its
    entries, where the system can.
    """
    folder = path.is_dir()
    try:
        handle = os.open(path, os.O_RDONLY if folder else os.O_RDWR)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError:
        if not folder:
            raise


def cache_folder() -> Path | None:
    """Where this user's programs keep what can be had again; None for a
    user without a home.
    """
    with suppress(RuntimeError):
        folder = Path(platformdirs.user_cache_dir("annotated"))
        return folder if folder.is_absolute() else None
    return None


# E3-ground.md: One trainer per folder
@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a run folder, which is made where it is missing.
    RunError, saying who does, if another process holds it.
    """
    new = [p for p in (folder, *folder.parents) if not p.exists()]
    if new:  # not if it is being moved away at this moment
        folder.mkdir(parents=True, exist_ok=True)
    path = folder / _LOCK
    try:
        file = _taken(path)
        try:
            for written in (folder, folder / "checkpoints"):
                clear(written)  # what a killed trainer has left
            yield
        finally:
            with suppress(OSError):  # of a folder that is gone, say
                path.unlink()
            file.close()
            if os.name == "nt":  # where an open file cannot be deleted
                with suppress(OSError):  # another process waits for it
                    _patiently(lambda: path.unlink(missing_ok=True))
    finally:
        for empty in new:  # nothing was begun
            with suppress(OSError):
                empty.rmdir()


def _taken(path: Path) -> IO[str]:
    """The lock's file, locked. RunError if another process holds it."""
    while True:
        file = path.open("a+", encoding="utf-8")
        try:
            _lock(file)
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                break
        except FileNotFoundError:
            pass
        except BlockingIOError:
            who = _holder(file)
            file.close()
            raise RunError(
                f"{path.parent} is being trained by process "
                f"{who.get('pid', '?')} on {who.get('host', '?')}, since "
                f"{who.get('since', 'just now')}: wait until that has "
                "ended, or stop it"
            ) from None
        file.close()  # its holder has just ended: once more
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    file.truncate(0)
    me = {"host": socket.gethostname(), "pid": os.getpid(), "since": since}
    file.write(json.dumps(me))
    file.flush()
    return file


def _lock(file: IO[str]) -> None:
    """Lock an open file, where the system and its file system can.
    BlockingIOError if another process has.
    """
    try:
        if sys.platform == "win32":
            _lock_here(file.fileno())
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # not on this file system
        return


def _lock_here(handle: int) -> None:
    """Windows' lock: on a byte far behind the note, which others can then
    still read.
    """
    import msvcrt

    os.lseek(handle, 2**30, os.SEEK_SET)
    try:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore
    except PermissionError:
        raise BlockingIOError from None


def _holder(file: IO[str]) -> dict[str, object]:
    """What the holder of a lock has noted."""
    file.seek(0)
    with suppress(ValueError, TypeError):
        return dict(json.loads(file.read()))
    return {}
