"""Exported from the book; edit the chapter, then run `make export`."""

import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from annotated.engine.errors import RunError
from annotated.engine.files import LOCK, clear, patiently

__all__ = ["locked"]


# E10-runner.md: One trainer per folder
@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a run folder, which is made where it is missing.
    RunError, saying who does, if another process holds it.
    """
    new = [p for p in (folder, *folder.parents) if not p.exists()]
    if new:  # not if it is being moved away at this moment
        folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK
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
                    patiently(lambda: path.unlink(missing_ok=True))
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
