"""Exported from the book; edit the chapter, then run `make export`."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import parent_process
from multiprocessing.connection import wait
from threading import Thread
from typing import Any

__all__ = ["end_with_parent", "tied"]


# E3-ground.md: Processes that end with their parent
def end_with_parent(line: int | None = None) -> None:
    """For a process that has just been started: kill it, and what it will
    have started, when its parent ends, however that ends. line is an end
    of a pipe whose other end the parent alone holds (unset: that of
    multiprocessing). It becomes the first of a group of its own.
    """
    if line is None:
        parent = parent_process()
        assert parent is not None, "multiprocessing has not started it"
        line = parent.sentinel
    # Windows has none; or this is the first of its group already
    with suppress(AttributeError, PermissionError):
        os.setsid()
    try:
        import fcntl

        fcntl.fcntl(line, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(line, fcntl.F_SETSIG, signal.SIGKILL)
        flags = fcntl.fcntl(line, fcntl.F_GETFL)
        fcntl.fcntl(line, fcntl.F_SETFL, flags | os.O_ASYNC)
        if wait([line], timeout=0):  # it had ended before
            _end_group([line])
    except (ImportError, AttributeError, OSError):  # not Linux
        Thread(target=_end_group, args=([line],), daemon=True).start()


def _end_group(lines: list[int]) -> None:
    """Wait for the parent's end; then end this process and its group."""
    wait(lines)
    with suppress(AttributeError):  # Windows
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


@contextmanager
def tied() -> Iterator[dict[str, Any]]:
    """Arguments for subprocess: on Linux, what it starts is in a group of
    its own, which is killed when the block ends or this process does.
    """
    if sys.platform != "linux":
        yield {}
        return
    line, held = os.pipe()
    try:
        begin = partial(end_with_parent, line)
        yield {"pass_fds": [line], "preexec_fn": begin}
    finally:
        os.close(line)
        os.close(held)
