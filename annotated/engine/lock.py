"""Exported from the book; edit the chapter, then run `make export`."""

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from annotated.engine.errors import RunError
from annotated.engine.files import LOCK, clear

__all__ = ["BREATH", "PATIENCE", "locked"]


# E10-runner.md: One trainer per folder
BREATH = 15.0  # seconds between two touches
PATIENCE = 90.0  # seconds to wait for one; NFS may hide it for 60


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a run folder, which is made where it is missing.
    RunError, saying who does, if another process holds it.
    """
    made = [p for p in (folder, *folder.parents) if not p.exists()]
    if made:  # not if it is being moved away at this moment
        folder.mkdir(parents=True, exist_ok=True)
    path, ended = folder / LOCK, threading.Event()
    try:
        with _taken(path):
            for place in (folder, folder / "checkpoints"):
                clear(place)  # what a killed trainer has left
            life = threading.Thread(
                target=_breathe, args=(path, ended), daemon=True
            )
            life.start()
            try:
                yield
            finally:
                ended.set()
                life.join()
                with suppress(OSError):  # of a folder that is gone, say
                    path.unlink()
        if os.name == "nt":  # where an open file cannot be deleted
            path.unlink(missing_ok=True)
    finally:
        for empty in made:  # nothing was begun
            with suppress(OSError):
                empty.rmdir()


def _breathe(path: Path, ended: threading.Event) -> None:
    while not ended.wait(BREATH):
        with suppress(OSError):
            os.utime(path)


def _taken(path: Path) -> IO[str]:
    """The lock's file, locked. RunError if another process holds it."""
    me = {"host": socket.gethostname(), "pid": os.getpid()}
    flags, fresh = os.O_RDWR | os.O_CREAT, True
    while True:
        try:
            number = os.open(path, flags | os.O_EXCL, 0o666)
        except FileExistsError:
            number, fresh = os.open(path, flags, 0o666), False
        file = os.fdopen(number, "r+")
        try:
            sure = _claim(file)
            who = _holder(file)
            if not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                raise FileNotFoundError  # its holder has just ended
            alien = who.get("host", me["host"]) != me["host"]
            if not fresh and (alien or not sure) and _alive(path, who):
                raise BlockingIOError
            me["since"] = time.strftime("%Y-%m-%d %H:%M:%S")
            file.seek(0)
            file.truncate()
            file.write(json.dumps(me))
            file.flush()
            return file
        except FileNotFoundError:
            file.close()
        except BlockingIOError:
            who = _holder(file)
            file.close()
            raise RunError(
                f"{path.parent} is being trained by process "
                f"{who.get('pid', '?')} on {who.get('host', '?')}, since "
                f"{who.get('since', 'just now')}: wait until that has "
                "ended, or stop it"
            ) from None
        except BaseException:
            file.close()
            raise


def _claim(file: IO[str]) -> bool:
    """Lock an open file; False where that cannot be done. BlockingIOError
    if another process has.
    """
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # not on this file system
        return False
    return True


def _holder(file: IO[str]) -> dict[str, object]:
    """What the holder of a lock has noted."""
    file.seek(0)
    with suppress(ValueError, TypeError):
        return dict(json.loads(file.read()))
    return {}


def _alive(path: Path, who: dict[str, object]) -> bool:
    """Whether the lock's file is touched within PATIENCE."""
    print(
        f"{path} is of process {who.get('pid', '?')} on "
        f"{who.get('host', '?')}: waiting {PATIENCE:g} seconds for a sign "
        "of life",
        file=sys.stderr,
    )
    before, end = path.stat().st_mtime_ns, time.monotonic() + PATIENCE
    while time.monotonic() < end:
        time.sleep(min(1.0, PATIENCE / 10))
        path.open("rb").close()  # NFS looks again on opening
        if path.stat().st_mtime_ns != before:
            return True
    return False
